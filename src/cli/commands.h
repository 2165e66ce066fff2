// Every subcommand, one file each (src/cli/<name>.cpp).
#pragma once

#include "cli/parser.h"

namespace fathom::cli {

Command bench_command();
Command check_command();
Command doctor_command();
Command kernels_command();
Command plan_command();
Command run_command();
Command serve_command();
Command trace_command();

}  // namespace fathom::cli

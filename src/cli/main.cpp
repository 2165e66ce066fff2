#include "cli/commands.h"

int main(int argc, char** argv) {
  using namespace fathom::cli;
  return run_command_line(argc, argv,
                          {run_command(), bench_command(), check_command(), doctor_command(), kernels_command(),
                           plan_command(), serve_command(), trace_command()});
}

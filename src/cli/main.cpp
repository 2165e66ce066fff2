#include "cli/commands.h"

int main(int argc, char** argv) {
  using namespace fathom::cli;
  return run_command_line(argc, argv, {run_command(), check_command(), kernels_command(), plan_command(), trace_command()});
}

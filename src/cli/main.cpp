#include "cli/commands.h"

int main(int argc, char** argv) {
  using namespace fathom::cli;
  return run_command_line(argc, argv, {kernels_command(), run_command(), trace_command()});
}

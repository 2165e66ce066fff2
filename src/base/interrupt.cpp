#include "base/interrupt.h"

#include <unistd.h>

#include <csignal>
#include <string_view>

namespace fathom {
namespace {

volatile std::sig_atomic_t flag = 0;

void on_signal(int) {
  flag = 1;
}

void on_bus_error(int) {
  constexpr std::string_view line =
      "fathom: a file became shorter, or its disk failed, while it was being read (is a model or trace being "
      "overwritten?);"
      " start again when it is complete\n";
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, line.data(), line.size());
  ::_exit(1);
}

}  // namespace

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESETHAND;  // the next one ends the process; no SA_RESTART, so that reads end
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error, reported like any other
}

void catch_lost_pages() {
  std::signal(SIGBUS, on_bus_error);
}

bool interrupted() {
  return flag != 0;
}

void throw_if_interrupted(const char* what) {
  if (interrupted()) throw Interrupted(fmt::format("interrupted while {}", what));
}

}  // namespace fathom

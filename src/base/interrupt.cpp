#include "base/interrupt.h"

#include <csignal>

namespace fathom {
namespace {

volatile std::sig_atomic_t flag = 0;

void on_signal(int) {
  flag = 1;
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

bool interrupted() {
  return flag != 0;
}

void throw_if_interrupted(const char* what) {
  if (interrupted()) throw Interrupted(fmt::format("interrupted while {}", what));
}

}  // namespace fathom

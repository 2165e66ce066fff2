#include "base/interrupt.h"

#include <csignal>

namespace fathom {
namespace {

volatile std::sig_atomic_t flag = 0;

void on_signal(int number) {
  flag = 1;
  std::signal(number, SIG_DFL);  // the next one ends the process
}

}  // namespace

void catch_interrupts() {
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is a write error, reported like any other
}

bool interrupted() {
  return flag != 0;
}

}  // namespace fathom

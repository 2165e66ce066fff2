// Ctrl-C: the first SIGINT or SIGTERM asks for a clean end, the second ends the process at once. SIGBUS, which a mapped
// file raises when somebody cuts it short, ends the process with one line.
#pragma once

#include "base/error.h"

namespace fathom {

/// Ends work that was interrupted before it had a result; the command line exits with 130.
class Interrupted : public Error {
  using Error::Error;
};

/// Installs the handlers. After it, interrupted() turns true on the first signal, and a read that waits for input
/// ends with EINTR.
void catch_interrupts();
/// Installs the handler of SIGBUS: prints one line and ends with status 1.
void catch_lost_pages();
bool interrupted();
/// Throws Interrupted after a signal. `what` is what was going on: "loading weights".
void throw_if_interrupted(const char* what);

}  // namespace fathom

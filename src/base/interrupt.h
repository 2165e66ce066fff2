// Ctrl-C: the first SIGINT or SIGTERM asks for a clean end, the second ends the process at once.
#pragma once

namespace fathom {

/// Installs the handlers. After it, interrupted() turns true on the first signal.
void catch_interrupts();
bool interrupted();

}  // namespace fathom

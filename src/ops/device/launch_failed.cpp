#include "base/error.h"

namespace fathom::ops::device {

[[noreturn]] void launch_failed(const char* op, const char* what, const char* why) {
  fail("{}: CUDA refuses the {}: {}", op, what, why);
}

}  // namespace fathom::ops::device

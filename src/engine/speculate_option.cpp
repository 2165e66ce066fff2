#include "engine/speculate_option.h"

#include "base/error.h"
#include "engine/request.h"

namespace fathom {

int32_t read_speculate(const std::string& text) {
  if (text == "off") return 0;
  if (text == "auto") return -1;
  if (text.size() == 1 && text[0] >= '1' && text[0] <= '0' + kMostDrafts) return text[0] - '0';
  fail("--speculate {}: it must be off, auto or a number from 1 to {}", printable(text, 40), kMostDrafts);
}

}  // namespace fathom

#include "base/error.h"

#include "base/utf8.h"

namespace fathom {

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  size_t at = 0;
  while (at < text.size()) {
    if (out.size() >= limit) return out + "...";
    const Utf8Char c = decode_utf8(text, at);
    if (c.valid && c.code >= 0x20 && (c.code < 0x7f || c.code > 0x9f)) {
      out.append(text.substr(at, c.length));
    } else {
      for (size_t i = 0; i < c.length; ++i) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[at + i]));
    }
    at += c.length;
  }
  return out;
}

}  // namespace fathom

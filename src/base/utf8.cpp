#include "base/utf8.h"

namespace fathom {
namespace {

// Allowed range of the second byte depends on the first (Unicode 15, table 3-7).
struct Lead {
  int length;  // 0: never a lead byte
  uint8_t low, high;
};

Lead lead_of(unsigned char c) {
  if (c < 0x80) return {1, 0, 0};
  if (c < 0xC2) return {0, 0, 0};
  if (c < 0xE0) return {2, 0x80, 0xBF};
  if (c == 0xE0) return {3, 0xA0, 0xBF};
  if (c == 0xED) return {3, 0x80, 0x9F};
  if (c < 0xF0) return {3, 0x80, 0xBF};
  if (c == 0xF0) return {4, 0x90, 0xBF};
  if (c < 0xF4) return {4, 0x80, 0xBF};
  if (c == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char decode_utf8(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const Lead lead = lead_of(byte(at));
  if (lead.length == 1) return {byte(at), 1, true};
  if (lead.length == 0) return {};
  uint32_t code = byte(at) & (0xFF >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (at + i >= text.size() || byte(at + i) < low || byte(at + i) > high)
      return {0xFFFD, static_cast<uint8_t>(i), false};
    code = code << 6 | (byte(at + i) & 0x3F);
  }
  return {code, static_cast<uint8_t>(lead.length), true};
}

void append_utf8(std::string& out, uint32_t code) {
  const auto put = [&](uint32_t c) { out.push_back(static_cast<char>(c)); };
  if (code < 0x80) {
    put(code);
  } else if (code < 0x800) {
    put(0xC0 | code >> 6), put(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    put(0xE0 | code >> 12), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  } else {
    put(0xF0 | code >> 18), put(0x80 | (code >> 12 & 0x3F)), put(0x80 | (code >> 6 & 0x3F)), put(0x80 | (code & 0x3F));
  }
}

size_t utf8_complete_prefix(std::string_view text) {
  // Only the last three bytes can belong to an unfinished character.
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t at = text.size() - back;
    const Lead lead = lead_of(static_cast<unsigned char>(text[at]));
    if (lead.length <= 1) {
      if (lead.length == 1) return text.size();
      continue;  // a continuation byte: look further back
    }
    const Utf8Char c = decode_utf8(text, at);
    const bool cut = !c.valid && at + c.length == text.size() && c.length < lead.length;
    return cut ? at : text.size();
  }
  return text.size();
}

std::string utf8_repaired(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (c.valid) {
      out.append(text.substr(at, c.length));
    } else {
      append_utf8(out, 0xFFFD);
    }
    at += c.length;
  }
  return out;
}

bool is_valid_utf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = decode_utf8(text, at);
    if (!c.valid) return false;
    at += c.length;
  }
  return true;
}

}  // namespace fathom

// UTF-8 without locale or allocation: decode one character, encode one, find the last whole one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace fathom {

struct Utf8Char {
  uint32_t code = 0xFFFD;  // code point; U+FFFD where the bytes are not valid
  uint8_t length = 1;      // bytes consumed, at least 1
  bool valid = false;
};

/// The character at text[at] (at < text.size()). Overlong forms, surrogates, values past U+10FFFF and cut
/// sequences are invalid; an invalid character consumes the maximal valid prefix, as Unicode recommends
/// (so "\xE2\x82" at the end of the text is one error of two bytes).
Utf8Char decode_utf8(std::string_view text, size_t at);

/// Appends `code` (a valid scalar value) to `out`.
void append_utf8(std::string& out, uint32_t code);

/// Length of the longest prefix of `text` that does not end inside a character. Bytes that can never become a
/// character count as whole, so that garbage is not held back for ever.
size_t utf8_complete_prefix(std::string_view text);

/// `text` with every invalid sequence replaced by U+FFFD.
std::string utf8_repaired(std::string_view text);

bool is_valid_utf8(std::string_view text);

}  // namespace fathom

// A lexer for the JSON that profilers really write.
//
// It works on a window of text and never copies. It accepts what strict parsers refuse and real traces contain: inf and
// NaN in all spellings, unknown escapes, control characters and broken UTF-8 inside strings, trailing and doubled
// commas, integers of any size. It does not accept broken structure (a lost quote, a missing colon): that is `bad`, and
// the caller resynchronises at the next event. No recursion.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace fathom::trace {

/// `more`: the window ended inside the value.
enum class Scan : uint8_t { ok, more, bad };

/// A scalar as it stands in the text: without its quotes, with its escapes.
struct RawText {
  std::string_view text;
  bool present = false, quoted = false, escaped = false;
};

struct ScanCounts {
  uint64_t non_finite = 0, bad_escapes = 0, big_integers = 0;
};

class JsonScanner {
 public:
  JsonScanner(const char* begin, const char* end) : at(begin), end(end) {}

  const char* at;
  const char* end;
  size_t depth_limit = 100'000;
  ScanCounts counts;
  const char* error = "";  // after `bad`: what was expected; `at` is where

  /// Skips white space; `more` at the end of the window.
  Scan space() {
    while (at != end && static_cast<unsigned char>(*at) <= ' ') ++at;
    return at == end ? Scan::more : Scan::ok;
  }

  /// A string; `at` is on its opening quote.
  Scan string(RawText& out);
  /// A number or bare word; `at` is on its first byte.
  Scan token(RawText& out);
  /// Any value. Scalars are returned in `out`; of objects and arrays out.text is the whole text, out.present stays
  /// false.
  Scan value(RawText& out);
  /// A key and the colon behind it; `at` is on the opening quote.
  Scan key(RawText& out);

 private:
  Scan container();
  Scan fail(const char* what) {
    error = what;
    return Scan::bad;
  }
  const char* string_end(const char* from) const;
  void check_escape(const char* backslash);
  std::vector<char> open_;
};

/// Calls `member(key, value)` for each member of the object `text` (starting at its brace), in order, until the object
/// ends or is broken. Values are as from JsonScanner::value().
template <typename Member>
void for_each_member(std::string_view text, Member&& member) {
  JsonScanner s(text.data(), text.data() + text.size());
  if (s.at == s.end || *s.at != '{') return;
  ++s.at;
  while (s.space() == Scan::ok) {
    if (*s.at == ',') {
      ++s.at;
      continue;
    }
    if (*s.at != '"') return;
    RawText key, value;
    if (s.key(key) != Scan::ok || s.space() != Scan::ok || s.value(value) != Scan::ok) return;
    member(key, value);
  }
}

/// Calls `element(value)` for each element of the array `text`.
template <typename Element>
void for_each_element(std::string_view text, Element&& element) {
  JsonScanner s(text.data(), text.data() + text.size());
  if (s.at == s.end || *s.at != '[') return;
  ++s.at;
  while (s.space() == Scan::ok && *s.at != ']') {
    if (*s.at == ',') {
      ++s.at;
      continue;
    }
    RawText value;
    if (s.value(value) != Scan::ok) return;
    element(value);
  }
}

/// The text with escapes resolved and made valid UTF-8. Unknown escapes keep their backslash. Sets `repaired` when
/// bytes that are no UTF-8 were replaced, `controls` when control characters stood in it raw.
std::string decode_text(const RawText& raw, bool* repaired = nullptr, bool* controls = nullptr);

/// The decimal number times 10^shift, rounded half away from zero; exponents are understood. False when `text` is no
/// finite number or the result does not fit.
bool parse_scaled(std::string_view text, int shift, int64_t& out);
inline bool parse_integer(std::string_view text, int64_t& out) {
  return parse_scaled(text, 0, out);
}
/// False when it is no finite number.
bool parse_real(std::string_view text, double& out);

}  // namespace fathom::trace

// A lexer for the JSON that profilers really write.
//
// It works on a window of text and never copies. It accepts what strict parsers refuse and real traces contain: inf and
// NaN in all spellings, unknown escapes, control characters and broken UTF-8 inside strings, trailing and doubled
// commas, integers of any size. It does not accept broken structure (a lost quote, a missing colon): that is `bad`, and
// the caller resynchronises at the next event. No recursion.
#pragma once

#include <array>
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
  /// `bad`, with what was expected.
  Scan fail(const char* what) {
    error = what;
    return Scan::bad;
  }

 private:
  Scan container();
  Scan word(RawText& out);
  const char* string_end(const char* from) const;
  void check_escape(const char* backslash);
  std::vector<char> open_;
};

// The small steps of the lexer are inline: they run for every byte of a file.

/// What a byte may be part of: 1 a number, 2 another bare word. '#', '(' and ')' occur in the NaN spellings of Windows.
inline constexpr std::array<uint8_t, 256> token_bytes = [] {
  std::array<uint8_t, 256> table{};
  for (int c = 'a'; c <= 'z'; ++c) table[static_cast<size_t>(c)] = table[static_cast<size_t>(c - 32)] = 2;
  for (const char c : {'#', '_', '(', ')'}) table[static_cast<size_t>(c)] = 2;
  for (int c = '0'; c <= '9'; ++c) table[static_cast<size_t>(c)] = 1;
  for (const char c : {'+', '-', '.', 'e', 'E'}) table[static_cast<size_t>(c)] = 1;
  return table;
}();

/// First quote or backslash at or after `from`, or the end of the window.
inline const char* JsonScanner::string_end(const char* from) const {
#ifdef __SSE2__
  const __m128i quote = _mm_set1_epi8('"'), backslash = _mm_set1_epi8('\\');
  while (end - from >= 16) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    const auto hits = static_cast<unsigned>(
        _mm_movemask_epi8(_mm_or_si128(_mm_cmpeq_epi8(bytes, quote), _mm_cmpeq_epi8(bytes, backslash))));
    if (hits) return from + __builtin_ctz(hits);
    from += 16;
  }
#endif
  while (from != end && *from != '"' && *from != '\\') ++from;
  return from;
}

inline Scan JsonScanner::string(RawText& out) {
  const char* begin = at + 1;
  const char* p = begin;
  out.escaped = false;
  for (;;) {
    p = string_end(p);
    if (p == end) return Scan::more;
    if (*p == '"') break;
    if (end - p < 2) return Scan::more;
    out.escaped = true;
    check_escape(p);
    p += 2;
  }
  out.text = {begin, static_cast<size_t>(p - begin)};
  out.present = out.quoted = true;
  at = p + 1;
  return Scan::ok;
}

inline Scan JsonScanner::token(RawText& out) {
  const char* p = at;
  uint8_t seen = 0;
  while (p != end && token_bytes[static_cast<unsigned char>(*p)]) seen |= token_bytes[static_cast<unsigned char>(*p++)];
  if (p == end) return Scan::more;
  out.text = {at, static_cast<size_t>(p - at)};
  out.present = true;
  out.quoted = out.escaped = false;
  const bool plain = seen == 1 && *at >= '0' && *at <= '9' && out.text.size() < 19;
  if (!plain)
    if (const Scan s = word(out); s != Scan::ok) return s;
  at = p;
  return Scan::ok;
}

inline Scan JsonScanner::key(RawText& out) {
  if (const Scan s = string(out); s != Scan::ok) return s;
  if (const Scan s = space(); s != Scan::ok) return s;
  if (*at != ':') return fail("expected ':' after a key");
  ++at;
  return Scan::ok;
}

inline Scan JsonScanner::value(RawText& out) {
  out = {};
  if (at == end) return Scan::more;
  if (*at == '"') return string(out);
  if (*at != '{' && *at != '[') return token(out);
  const char* begin = at;
  const Scan s = container();
  if (s == Scan::ok) out.text = {begin, static_cast<size_t>(at - begin)};
  return s;
}

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

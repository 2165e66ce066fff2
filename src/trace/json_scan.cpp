#include "trace/json_scan.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "base/utf8.h"

namespace fathom::trace {
namespace {

constexpr bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
constexpr bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Bytes that numbers and bare words are made of. '#', '(' and ')' occur in the NaN spellings of Windows.
constexpr bool is_token_byte(char c) {
  return is_digit(c) || is_letter(c) || c == '.' || c == '-' || c == '+' || c == '#' || c == '_' || c == '(' ||
         c == ')';
}

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/// True for inf, nan and their relatives, with or without a sign.
bool is_non_finite(std::string_view word) {
  if (!word.empty() && (word[0] == '-' || word[0] == '+')) word.remove_prefix(1);
  const auto starts = [&](std::string_view with) {
    if (word.size() < with.size()) return false;
    for (size_t i = 0; i < with.size(); ++i)
      if ((word[i] | 0x20) != with[i]) return false;
    return true;
  };
  return starts("inf") || starts("nan") || word.find('#') != std::string_view::npos;
}

}  // namespace

// First quote or backslash at or after `from`, or the end of the window.
const char* JsonScanner::string_end(const char* from) const {
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

void JsonScanner::check_escape(const char* backslash) {
  const char c = backslash[1];
  if (c == 'u') {
    for (int i = 2; i < 6; ++i)
      if (backslash + i >= end || hex_digit(backslash[i]) < 0) {
        ++counts.bad_escapes;
        return;
      }
  } else if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) {
    ++counts.bad_escapes;
  }
}

Scan JsonScanner::string(RawText& out) {
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

Scan JsonScanner::token(RawText& out) {
  const char* begin = at;
  const char* p = at;
  while (p != end && is_token_byte(*p)) ++p;
  if (p == end) return Scan::more;
  if (p == begin) return fail("expected a value");
  out.text = {begin, static_cast<size_t>(p - begin)};
  const char first = *begin == '-' || *begin == '+' ? (p - begin > 1 ? begin[1] : ' ') : *begin;
  if (is_digit(first) || first == '.') {
    if (out.text.size() >= 19 && out.text.find_first_not_of("0123456789-") == std::string_view::npos) {
      int64_t ignored;
      if (!parse_integer(out.text, ignored)) ++counts.big_integers;
    }
    if (out.text.find('#') != std::string_view::npos) ++counts.non_finite;
  } else if (is_non_finite(out.text)) {
    ++counts.non_finite;
  } else if (out.text != "true" && out.text != "false" && out.text != "null" && out.text != "True" &&
             out.text != "False" && out.text != "None" && out.text != "undefined") {
    return fail("expected a value");
  }
  out.present = true;
  out.quoted = out.escaped = false;
  at = p;
  return Scan::ok;
}

Scan JsonScanner::key(RawText& out) {
  if (const Scan s = string(out); s != Scan::ok) return s;
  if (const Scan s = space(); s != Scan::ok) return s;
  if (*at != ':') return fail("expected ':' after a key");
  ++at;
  return Scan::ok;
}

Scan JsonScanner::value(RawText& out) {
  out = {};
  if (at == end) return Scan::more;
  if (*at == '"') return string(out);
  if (*at != '{' && *at != '[') return token(out);
  const char* begin = at;
  const Scan s = container();
  if (s == Scan::ok) out.text = {begin, static_cast<size_t>(at - begin)};
  return s;
}

// An object or array of any depth: a small automaton over `open_`, the stack of open brackets.
Scan JsonScanner::container() {
  open_.clear();
  RawText ignored;
  bool key_next = false;
  for (;;) {
    if (const Scan s = space(); s != Scan::ok) return s;
    const char c = *at;
    if (c == ',' && !open_.empty()) {
      ++at;
      key_next = open_.back() == '{';
      continue;
    }
    if (c == '}' || c == ']') {
      if (open_.empty() || open_.back() != (c == '}' ? '{' : '[')) return fail("a bracket closes what is not open");
      ++at;
      open_.pop_back();
      if (open_.empty()) return Scan::ok;
    } else {
      if (key_next) {
        if (c != '"') return fail("expected a key or '}'");
        if (const Scan s = key(ignored); s != Scan::ok) return s;
        if (const Scan s = space(); s != Scan::ok) return s;
      }
      if (*at == '{' || *at == '[') {
        if (open_.size() >= depth_limit) return fail("nested too deeply");
        open_.push_back(*at);
        key_next = *at == '{';
        ++at;
        continue;
      }
      const Scan s = *at == '"' ? string(ignored) : token(ignored);
      if (s != Scan::ok) return s;
    }
    // Behind a value: a comma or the end of the container.
    if (const Scan s = space(); s != Scan::ok) return s;
    if (*at != ',' && *at != '}' && *at != ']') return fail("expected ',' or the end of the object");
  }
}

std::string decode_text(const RawText& raw, bool* repaired, bool* controls) {
  std::string text;
  if (!raw.escaped) {
    text = raw.text;
  } else {
    text.reserve(raw.text.size());
    const auto four = [&](size_t from) {
      int code = from + 4 <= raw.text.size() ? 0 : -1;
      for (size_t i = from; code >= 0 && i < from + 4; ++i) {
        const int digit = hex_digit(raw.text[i]);
        code = digit < 0 ? -1 : code * 16 + digit;
      }
      return code;
    };
    for (size_t i = 0; i < raw.text.size(); ++i) {
      const char c = raw.text[i];
      if (c != '\\' || i + 1 == raw.text.size()) {
        text += c;
        continue;
      }
      const char e = raw.text[++i];
      constexpr std::string_view plain = "\"\\/bfnrt", means = "\"\\/\b\f\n\r\t";
      if (const size_t k = plain.find(e); k != std::string_view::npos) {
        text += means[k];
      } else if (const int high = e == 'u' ? four(i + 1) : -1; high >= 0) {
        i += 4;
        uint32_t code = static_cast<uint32_t>(high);
        const bool leads = code >= 0xD800 && code < 0xDC00;
        if (leads && i + 2 < raw.text.size() && raw.text[i + 1] == '\\' && raw.text[i + 2] == 'u') {
          const int low = four(i + 3);
          if (low >= 0xDC00 && low < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + (static_cast<uint32_t>(low) - 0xDC00);
            i += 6;
          }
        }
        append_utf8(text, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
      } else {
        text += '\\';
        text += e;
      }
    }
  }
  if (controls)
    for (const char c : raw.text) *controls |= static_cast<unsigned char>(c) < 0x20;
  if (is_valid_utf8(text)) return text;
  if (repaired) *repaired = true;
  return utf8_repaired(text);
}

bool parse_scaled(std::string_view text, int shift, int64_t& out) {
  using Wide = unsigned __int128;
  constexpr auto largest = static_cast<Wide>(std::numeric_limits<int64_t>::max());
  constexpr Wide enough =
      Wide{1'000'000'000'000'000'000} * 1'000'000'000;  // further digits are far below any unit here
  size_t i = !text.empty() && (text[0] == '-' || text[0] == '+') ? 1 : 0;
  const bool negative = i && text[0] == '-';
  Wide digits = 0;
  int64_t exponent = shift;
  bool fraction = false, seen = false;
  for (; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.' && !fraction) {
      fraction = true;
    } else if (is_digit(c)) {
      seen = true;
      if (digits < enough) {
        digits = digits * 10 + static_cast<unsigned>(c - '0');
        exponent -= fraction;
      } else {
        exponent += !fraction;
      }
    } else {
      break;
    }
  }
  if (!seen) return false;
  if (i < text.size()) {
    int power = 0;
    const char* from = text.data() + i + 1;
    const char* to = text.data() + text.size();
    if ((text[i] | 0x20) != 'e') return false;
    if (from != to && *from == '+') ++from;
    const auto parsed = std::from_chars(from, to, power);
    if (parsed.ec != std::errc() || parsed.ptr != to) return false;
    exponent += power;
  }
  for (; exponent > 0 && digits; --exponent) {
    if (digits > largest) return false;
    digits *= 10;
  }
  if (exponent < -37) digits = 0;
  if (exponent < 0 && digits) {
    Wide divisor = 1;
    for (; exponent < 0; ++exponent) divisor *= 10;
    digits = digits / divisor + (digits % divisor >= divisor / 2 ? 1 : 0);
  }
  if (digits > largest) return false;
  out = negative ? -static_cast<int64_t>(digits) : static_cast<int64_t>(digits);
  return true;
}

bool parse_real(std::string_view text, double& out) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), out);
  return parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && std::isfinite(out);
}

}  // namespace fathom::trace

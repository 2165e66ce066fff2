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

/// The common case: digits with at most `shift` decimals, everything within 18 digits.
bool parse_plain(std::string_view text, int shift, int64_t& out) {
  if (text.empty() || text.size() > 19 || shift < 0 || shift > 3) return false;
  uint64_t digits = 0;
  size_t i = 0;
  for (; i < text.size() && is_digit(text[i]); ++i) digits = digits * 10 + static_cast<uint64_t>(text[i] - '0');
  if (i == 0) return false;
  int decimals = 0;
  if (i < text.size() && text[i] == '.')
    for (++i; i < text.size() && is_digit(text[i]) && decimals < shift; ++i, ++decimals)
      digits = digits * 10 + static_cast<uint64_t>(text[i] - '0');
  if (i != text.size()) return false;
  if (decimals < shift && digits > std::numeric_limits<uint64_t>::max() / 1000) return false;
  for (; decimals < shift; ++decimals) digits *= 10;
  if (digits > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return false;
  out = static_cast<int64_t>(digits);
  return true;
}

}  // namespace

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

// What is not a plain number: signs, long numbers, literals, inf and NaN.
Scan JsonScanner::word(RawText& out) {
  const std::string_view text = out.text;
  if (text.empty()) return fail("expected a value");
  const size_t sign = text[0] == '-' || text[0] == '+' ? 1 : 0;
  const char first = sign < text.size() ? text[sign] : ' ';
  if (is_digit(first) || first == '.') {
    int64_t ignored;
    if (text.size() >= 19 && text.find_first_not_of("0123456789-") == std::string_view::npos &&
        !parse_integer(text, ignored))
      ++counts.big_integers;
    if (text.find('#') != std::string_view::npos) ++counts.non_finite;
    return Scan::ok;
  }
  if (is_non_finite(text)) {
    ++counts.non_finite;
    return Scan::ok;
  }
  for (const std::string_view known : {"true", "false", "null", "True", "False", "None", "undefined"})
    if (text == known) return Scan::ok;
  return fail("expected a value");
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
  if (parse_plain(text, shift, out)) return true;
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

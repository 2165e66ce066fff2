#include "text/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <unordered_map>

#include "base/utf8.h"

namespace fathom::text {
namespace {

constexpr int kMaxDepth = 990;              // Python's recursion limit as seen from inside a server
constexpr size_t kMaxIntegerDigits = 4300;  // Python's limit for text to int

/// Recursive descent over one text. Errors are thrown as Fault and never leave read_json.
class Reader {
 public:
  struct Fault {
    const char* what;
    size_t at;
  };
  struct Limits {
    bool python_numbers;  // NaN, Infinity, -Infinity
    int depth;
  };

  Reader(std::string_view text, Limits limits) : text_(text), limits_(limits) {}

  JsonValue document() {
    skip_space();
    JsonValue v = value(0);
    skip_space();
    if (at_ < text_.size()) throw Fault{"text after the value", at_};
    return v;
  }
  bool lone_surrogate() const { return lone_surrogate_; }

 private:
  using Kind = JsonValue::Kind;

  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }

  JsonValue value(int depth) {
    if (depth > limits_.depth) throw Fault{"nested too deeply", at_};
    JsonValue v;
    switch (peek()) {
      case '{':
        object(v, depth);
        return v;
      case '[':
        array(v, depth);
        return v;
      case '"':
        v.kind = Kind::string;
        v.text = string();
        return v;
      default:
        break;
    }
    if (take("null")) return v;
    if (take("true") || take("false")) {
      v.kind = Kind::boolean;
      v.truth = text_[at_ - 2] == 'u';
      return v;
    }
    v.kind = Kind::number;
    v.text = number();
    return v;
  }

  void array(JsonValue& v, int depth) {
    v.kind = Kind::array;
    ++at_;
    skip_space();
    if (take("]")) return;
    for (;;) {
      v.items.push_back(value(depth + 1));
      skip_space();
      if (take("]")) return;
      if (!take(",")) throw Fault{"expected ',' or ']'", at_};
      skip_space();
    }
  }

  void object(JsonValue& v, int depth) {
    v.kind = Kind::object;
    ++at_;
    skip_space();
    if (take("}")) return;
    std::unordered_map<std::string, size_t> position;  // used once the object is large
    for (;;) {
      if (peek() != '"') throw Fault{"expected a key in double quotes", at_};
      std::string key = string();
      skip_space();
      if (!take(":")) throw Fault{"expected ':'", at_};
      skip_space();
      put(v, position, std::move(key), value(depth + 1));
      skip_space();
      if (take("}")) return;
      if (!take(",")) throw Fault{"expected ',' or '}'", at_};
      skip_space();
    }
  }

  static void put(JsonValue& v, std::unordered_map<std::string, size_t>& position, std::string key, JsonValue member) {
    constexpr size_t kLarge = 16;
    if (v.members.size() < kLarge) {
      for (auto& [k, old] : v.members)
        if (k == key) {
          old = std::move(member);
          return;
        }
    } else {
      if (position.empty())
        for (size_t i = 0; i < v.members.size(); ++i) position.emplace(v.members[i].name, i);
      const auto [it, fresh] = position.emplace(key, v.members.size());
      if (!fresh) {
        v.members[it->second].value = std::move(member);
        return;
      }
    }
    v.members.emplace_back(std::move(key), std::move(member));
  }

  std::string number() {
    const size_t start = at_;
    if (limits_.python_numbers && (take("NaN") || take("Infinity") || take("-Infinity")))
      return std::string(text_.substr(start, at_ - start));
    take("-");
    const size_t digits = at_;
    if (!take("0")) skip_digits();
    if (at_ == digits) throw Fault{"expected a value", start};
    const size_t integer_digits = at_ - digits;
    bool integer = true;
    if (peek() == '.' && is_digit(at_ + 1)) {
      ++at_, skip_digits();
      integer = false;
    }
    if (peek() == 'e' || peek() == 'E') {
      size_t exponent = at_ + 1;
      if (exponent < text_.size() && (text_[exponent] == '+' || text_[exponent] == '-')) ++exponent;
      if (is_digit(exponent)) {
        at_ = exponent, skip_digits();
        integer = false;
      }
    }
    if (integer && integer_digits > kMaxIntegerDigits) throw Fault{"integer of more than 4300 digits", start};
    return std::string(text_.substr(start, at_ - start));
  }
  bool is_digit(size_t i) const { return i < text_.size() && text_[i] >= '0' && text_[i] <= '9'; }
  void skip_digits() {
    while (is_digit(at_)) ++at_;
  }

  std::string string() {
    const size_t start = at_++;
    std::string out;
    for (;;) {
      size_t run = at_;
      while (run < text_.size() && text_[run] != '"' && text_[run] != '\\' &&
             static_cast<unsigned char>(text_[run]) >= 0x20)
        ++run;
      out.append(text_.substr(at_, run - at_));
      at_ = run;
      if (at_ >= text_.size()) throw Fault{"string without an end", start};
      if (text_[at_] == '"') {
        ++at_;
        return out;
      }
      if (text_[at_] != '\\') throw Fault{"control character in a string", at_};
      escape(out);
    }
  }

  void escape(std::string& out) {
    ++at_;
    const char c = peek();
    constexpr std::string_view kLetters = "\"\\/bfnrt", kMeaning = "\"\\/\b\f\n\r\t";
    if (const size_t i = kLetters.find(c); at_ < text_.size() && i != kLetters.npos) {
      out += kMeaning[i];
      ++at_;
      return;
    }
    if (c != 'u') throw Fault{"unknown escape", at_};
    ++at_;
    uint32_t code = hex4();
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      const size_t back = at_;
      at_ += 2;
      const uint32_t low = hex4();
      if (low >= 0xDC00 && low < 0xE000) {
        code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = back;
      }
    }
    if (code >= 0xD800 && code < 0xE000) lone_surrogate_ = true;
    append_utf8(out, code);  // a lone half comes out as its three-byte form
  }

  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) throw Fault{"expected four hexadecimal digits", at_};
      code = code << 4 | static_cast<uint32_t>(digit);
    }
    return code;
  }

  std::string_view text_;
  Limits limits_;
  size_t at_ = 0;
  bool lone_surrogate_ = false;
};

JsonReading read(std::string_view text, Reader::Limits limits) {
  JsonReading result;
  if (!is_valid_utf8(text)) {
    result.error = "not UTF-8";
    return result;
  }
  Reader reader(text, limits);
  try {
    result.value = reader.document();
    result.lone_surrogate = reader.lone_surrogate();
  } catch (const Reader::Fault& fault) {
    result.error = fmt::format("{} at byte {}", fault.what, fault.at);
  }
  return result;
}

/// True when a decimal outside the range of a double is too large; false when it is too small.
bool overflows(std::string_view spelled) {
  const size_t e = spelled.find_first_of("eE");
  const std::string_view digits = spelled.substr(0, e);
  int64_t exponent = 0;
  if (e != spelled.npos) {
    const std::string_view text = spelled.substr(e + (spelled[e + 1] == '+' ? 2 : 1));
    if (std::from_chars(text.data(), text.data() + text.size(), exponent).ec != std::errc{}) return text[0] != '-';
  }
  const int64_t point = static_cast<int64_t>(std::min(digits.find('.'), digits.size()));
  const int64_t first = static_cast<int64_t>(std::min(digits.find_first_of("123456789"), digits.size()));
  return point - first + exponent > 0;
}

/// repr() of a finite double: shortest digits that read back, exponent form from 1e16 up and below 1e-4.
std::string python_float(double v) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, v, std::chars_format::scientific).ptr;
  std::string_view s(buffer, static_cast<size_t>(end - buffer));
  std::string sign;
  if (s[0] == '-') sign = "-", s.remove_prefix(1);
  const size_t e = s.find('e');
  std::string digits(1, s[0]);
  if (e > 2) digits.append(s.substr(2, e - 2));
  int exponent = 0;
  std::from_chars(s.data() + e + (s[e + 1] == '+' ? 2 : 1), s.data() + s.size(), exponent);
  if (exponent < -4 || exponent >= 16) {
    std::string mantissa = digits.substr(0, 1);
    if (digits.size() > 1) mantissa += "." + digits.substr(1);
    return fmt::format("{}{}e{}{:02d}", sign, mantissa, exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0) return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const size_t point = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= point) return sign + digits + std::string(point - digits.size(), '0') + ".0";
  return sign + digits.substr(0, point) + "." + digits.substr(point);
}

void write(std::string& out, const JsonValue& v) {
  using Kind = JsonValue::Kind;
  switch (v.kind) {
    case Kind::null:
      out += "null";
      break;
    case Kind::boolean:
      out += v.truth ? "true" : "false";
      break;
    case Kind::number:
      out += python_number(v.text);
      break;
    case Kind::string:
      out += json_quoted(v.text);
      break;
    case Kind::array:
      out += '[';
      for (size_t i = 0; i < v.items.size(); ++i) {
        if (i) out += ", ";
        write(out, v.items[i]);
      }
      out += ']';
      break;
    case Kind::object:
      out += '{';
      for (size_t i = 0; i < v.members.size(); ++i) {
        if (i) out += ", ";
        out += json_quoted(v.members[i].name) + ": ";
        write(out, v.members[i].value);
      }
      out += '}';
      break;
  }
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  for (const auto& [k, v] : members)
    if (k == key) return &v;
  return nullptr;
}

bool JsonValue::truthy() const {
  switch (kind) {
    case Kind::null:
      return false;
    case Kind::boolean:
      return truth;
    case Kind::number: {
      const std::string s = python_number(text);
      return s != "0" && s != "0.0" && s != "-0.0";
    }
    case Kind::string:
      return !text.empty();
    case Kind::array:
      return !items.empty();
    case Kind::object:
      return !members.empty();
  }
  return false;
}

JsonReading read_json(std::string_view text) {
  return read(text, {.python_numbers = true, .depth = kMaxDepth});
}

std::string write_json(const JsonValue& value) {
  std::string out;
  write(out, value);
  return out;
}

void append_json_escaped(std::string& out, std::string_view text) {
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
        } else {
          out += c;
        }
    }
  }
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  append_json_escaped(out, text);
  out += '"';
  return out;
}

std::string python_number(std::string_view spelled) {
  if (spelled == "NaN" || spelled == "Infinity" || spelled == "-Infinity") return std::string(spelled);
  if (spelled.find_first_of(".eE") == spelled.npos) return spelled == "-0" ? "0" : std::string(spelled);
  double v = 0;
  const auto [end, error] = std::from_chars(spelled.data(), spelled.data() + spelled.size(), v);
  const bool negative = spelled[0] == '-';
  if (error == std::errc::result_out_of_range) {
    if (overflows(spelled)) return negative ? "-Infinity" : "Infinity";
    v = negative ? -0.0 : 0.0;
  }
  if (std::isinf(v)) return negative ? "-Infinity" : "Infinity";
  return python_float(v);
}

bool is_strict_json(std::string_view text) {
  const JsonReading r = read(text, {.python_numbers = false, .depth = 200});
  return r.value && !r.lone_surrogate;
}

}  // namespace fathom::text

#include "formats/json_reader.h"

#include <charconv>
#include <cmath>

#include "base/error.h"
#include "base/utf8.h"

namespace fathom {
namespace {

constexpr int max_depth = 32;

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

}  // namespace

JsonReader::JsonReader(std::string_view text, std::string name, uint64_t first_offset)
    : text_(text), name_(std::move(name)), first_offset_(first_offset) {}

void JsonReader::fail(std::string_view what) const {
  fathom::fail("{}: byte {}: {}", name_, first_offset_ + value_at_, what);
}

void JsonReader::fail_here(std::string_view what) {
  value_at_ = at_;
  fail(what);
}

void JsonReader::fail_duplicate(const std::string& key) {
  fail(fmt::format("the name \"{}\" appears twice", printable(key)));
}

void JsonReader::fail_kind(std::string_view wanted) {
  if (at_ >= text_.size()) fail_here(fmt::format("the JSON ends where {} was expected", wanted));
  fail_here(fmt::format("expected {}, found \"{}\"", wanted, printable(text_.substr(at_, 16))));
}

void JsonReader::space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c != ' ' && c != '\n' && c != '\t' && c != '\r') break;
    ++at_;
  }
}

JsonReader::Kind JsonReader::kind() {
  space();
  switch (at_ < text_.size() ? text_[at_] : '\0') {
    case '{':
      return Kind::object;
    case '[':
      return Kind::array;
    case '"':
      return Kind::string;
    case 't':
    case 'f':
      return Kind::boolean;
    case 'n':
      return Kind::null;
    default:
      if (at_ < text_.size() && (text_[at_] == '-' || is_digit(text_[at_]))) return Kind::number;
      fail_kind("a value");
  }
}

void JsonReader::open(char bracket) {
  space();
  if (at_ >= text_.size() || text_[at_] != bracket) fail_kind(bracket == '{' ? "an object" : "an array");
  value_at_ = at_++;
  if (++depth_ > max_depth) fail(fmt::format("nested deeper than {} levels", max_depth));
}

bool JsonReader::closes(char bracket) {
  space();
  if (at_ >= text_.size() || text_[at_] != bracket) return false;
  ++at_;
  return true;
}

bool JsonReader::continues(char bracket) {
  if (closes(bracket)) return false;
  if (at_ >= text_.size() || text_[at_] != ',') fail_kind(bracket == '}' ? "\",\" or \"}\"" : "\",\" or \"]\"");
  ++at_;
  return true;
}

void JsonReader::expect(char c) {
  space();
  if (at_ >= text_.size() || text_[at_] != c) fail_kind(fmt::format("\"{}\"", c));
  ++at_;
}

std::string JsonReader::string() {
  space();
  if (at_ >= text_.size() || text_[at_] != '"') fail_kind("a string");
  const size_t begin = at_++;
  std::string out;
  for (;;) {
    const size_t plain = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' && static_cast<uint8_t>(text_[at_]) >= 0x20)
      ++at_;
    const std::string_view part = text_.substr(plain, at_ - plain);
    if (!is_valid_utf8(part)) {
      value_at_ = plain;
      fail("a string is not valid UTF-8");
    }
    out += part;
    if (at_ >= text_.size()) {
      value_at_ = begin;
      fail("a string does not end");
    }
    if (text_[at_] == '"') break;
    if (text_[at_] != '\\') fail_here("a control character in a string");
    escape(out);
  }
  ++at_;
  value_at_ = begin;
  return out;
}

uint32_t JsonReader::hex4() {
  uint32_t code = 0;
  const char* begin = text_.data() + at_;
  if (text_.size() - at_ < 4 || std::from_chars(begin, begin + 4, code, 16).ptr != begin + 4)
    fail_here("\\u needs four hexadecimal digits");
  at_ += 4;
  return code;
}

void JsonReader::escape(std::string& out) {
  if (text_.size() - at_ < 2) fail_here("a string does not end");
  const char c = text_[at_ + 1];
  constexpr std::string_view from = "\"\\/bfnrt", to = "\"\\/\b\f\n\r\t";
  if (const size_t i = from.find(c); i != from.npos) {
    out += to[i];
    at_ += 2;
    return;
  }
  if (c != 'u') fail_here("an unknown escape in a string");
  at_ += 2;
  uint32_t code = hex4();
  if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
    at_ += 2;
    const uint32_t low = hex4();
    if (low < 0xDC00 || low > 0xDFFF) fail_here("half a surrogate pair in a string");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  } else if (code >= 0xD800 && code < 0xE000) {
    fail_here("half a surrogate pair in a string");
  }
  append_utf8(out, code);
}

std::string_view JsonReader::number_token() {
  space();
  if (at_ >= text_.size() || (text_[at_] != '-' && !is_digit(text_[at_]))) fail_kind("a number");
  value_at_ = at_;
  size_t end = at_;
  const auto digits = [&] {
    if (end >= text_.size() || !is_digit(text_[end])) fail("not a number");
    while (end < text_.size() && is_digit(text_[end])) ++end;
  };
  if (text_[end] == '-') ++end;
  const size_t first = end;
  digits();
  if (text_[first] == '0' && end > first + 1) fail("a number starts with 0");
  if (end < text_.size() && text_[end] == '.') {
    ++end;
    digits();
  }
  if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
    ++end;
    if (end < text_.size() && (text_[end] == '+' || text_[end] == '-')) ++end;
    digits();
  }
  const std::string_view token = text_.substr(at_, end - at_);
  at_ = end;
  return token;
}

double JsonReader::number() {
  const std::string_view token = number_token();
  double value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (error != std::errc() || end != token.data() + token.size() || !std::isfinite(value))
    fail(fmt::format("the number {} is out of range", printable(token, 40)));
  return value;
}

int64_t JsonReader::integer() {
  const std::string_view token = number_token();
  int64_t value = 0;
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), value);
  if (end != token.data() + token.size()) fail(fmt::format("expected an integer, found {}", printable(token, 40)));
  if (error != std::errc()) fail(fmt::format("the integer {} is out of range", printable(token, 40)));
  return value;
}

void JsonReader::literal(std::string_view word) {
  if (text_.substr(at_, word.size()) != word) fail_kind(fmt::format("\"{}\"", word));
  value_at_ = at_;
  at_ += word.size();
}

bool JsonReader::boolean() {
  space();
  if (at_ >= text_.size() || (text_[at_] != 't' && text_[at_] != 'f')) fail_kind("true or false");
  const bool value = text_[at_] == 't';
  literal(value ? "true" : "false");
  return value;
}

void JsonReader::null() {
  space();
  literal("null");
}

void JsonReader::skip() {
  switch (kind()) {
    case Kind::object:
      return object([this](const std::string&) { skip(); });
    case Kind::array:
      return array([this] { skip(); });
    case Kind::string:
      string();
      return;
    case Kind::number:
      number();
      return;
    case Kind::boolean:
      boolean();
      return;
    case Kind::null:
      return null();
  }
}

void JsonReader::finish() {
  space();
  if (at_ < text_.size()) fail_here(fmt::format("\"{}\" after the end of the JSON", printable(text_.substr(at_, 16))));
}

}  // namespace fathom

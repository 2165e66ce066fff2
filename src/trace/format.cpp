#include "trace/format.h"

#include "base/error.h"
#include "base/utf8.h"

namespace fathom::trace {

std::string time_text(Ns ns) {
  const double v = static_cast<double>(ns < 0 ? -ns : ns);
  const char* sign = ns < 0 ? "-" : "";
  const auto digits = [](double x) { return x < 9.995 ? 2 : x < 999.5 ? 1 : 0; };
  if (v < 1000) return fmt::format("{}{:.0f} ns", sign, v);
  if (v < 999'950) return fmt::format("{}{:.{}f} us", sign, v / 1e3, digits(v / 1e3));
  if (v < 999'950'000) return fmt::format("{}{:.{}f} ms", sign, v / 1e6, digits(v / 1e6));
  return fmt::format("{}{:.{}f} s", sign, v / 1e9, digits(v / 1e9));
}

std::string milliseconds(Ns ns) {
  return fmt::format("{:.3f}", static_cast<double>(ns) / 1e6);
}

std::string microseconds(double ns) {
  const double us = ns / 1e3;
  return fmt::format("{:.{}f}", us, us < 99.995 ? 2 : us < 99999.5 ? 1 : 0);
}

std::string speedup_text(double factor) {
  return factor >= 100 ? "over 100x" : fmt::format("{:.2f}x", factor);
}

std::string percent(double share) {
  const double p = share * 100;
  if (p > 0 && p < 0.05) return "<0.1 %";
  return fmt::format("{:.1f} %", p);
}

std::string count_text(int64_t n) {
  std::string digits = fmt::format("{}", n < 0 ? -n : n);
  for (size_t at = digits.size(); at > 3; at -= 3) digits.insert(at - 3, ",");
  return (n < 0 ? "-" : "") + digits;
}

size_t text_width(std::string_view text) {
  size_t width = 0;
  for (size_t at = 0; at < text.size(); at += decode_utf8(text, at).length) ++width;
  return width;
}

std::string fit(std::string_view text, size_t width) {
  const size_t have = text_width(text);
  if (have <= width) return std::string(text);
  if (width == 0) return "";
  if (width < 8) return std::string(text.substr(0, 0)) + std::string(width, '.');
  const size_t head = (width - 1) * 3 / 5, tail = width - 1 - head;
  std::string front, back;
  size_t column = 0;
  for (size_t at = 0; at < text.size(); ++column) {
    const size_t length = decode_utf8(text, at).length;
    if (column < head) front += text.substr(at, length);
    if (column >= have - tail) back += text.substr(at, length);
    at += length;
  }
  return front + "…" + back;
}

std::string counted(int64_t n, std::string_view one, std::string_view many) {
  if (n == 1) return fmt::format("1 {}", one);
  return fmt::format("{} {}{}", count_text(n), many.empty() ? one : many, many.empty() ? "s" : "");
}

std::string padded(std::string_view text, size_t width, bool right) {
  const size_t have = text_width(text);
  const std::string space(have < width ? width - have : 0, ' ');
  return right ? space + std::string(text) : std::string(text) + space;
}

std::string wrapped(std::string_view text, size_t width, std::string_view indent) {
  std::string out, line;
  size_t column = 0;
  bool fresh = true;  // nothing but the indent in the line
  const auto flush = [&] {
    out += line + "\n";
    line = indent;
    column = text_width(indent);
    fresh = true;
  };
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, space);
    text.remove_prefix(std::min(text.size(), space + 1));
    if (!fresh && column + 1 + text_width(word) > width) flush();
    if (!fresh) line += ' ', ++column;
    for (size_t at = 0; at < word.size();) {  // a word longer than a line is broken
      if (column >= width) flush();
      const size_t length = decode_utf8(word, at).length;
      line += word.substr(at, length);
      ++column;
      at += length;
    }
    fresh = false;
  }
  if (!fresh) flush();
  return out;
}

}  // namespace fathom::trace

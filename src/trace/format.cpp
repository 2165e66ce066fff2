#include "trace/format.h"

#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <memory>

#include "base/error.h"
#include "base/utf8.h"

namespace fathom::trace {
namespace {

/// The nested name of a mangled one that the demangler does not know (types of newer compilers): _ZN5aiter3addI...
std::string nested_name(std::string_view mangled) {
  std::string out;
  size_t at = mangled.starts_with("_ZN") ? 3 : 2;
  while (at < mangled.size() && mangled[at] >= '1' && mangled[at] <= '9') {
    size_t length = 0;
    for (; at < mangled.size() && mangled[at] >= '0' && mangled[at] <= '9' && length < 10'000; ++at)
      length = length * 10 + static_cast<size_t>(mangled[at] - '0');
    if (length > mangled.size() - at) break;
    out += (out.empty() ? "" : "::") + std::string(mangled.substr(at, length));
    at += length;
  }
  return out.empty() ? std::string(mangled) : out + std::string(mangled.substr(at).empty() ? "" : "<...>");
}

std::string demangled(std::string_view name) {
  if (!name.starts_with("_Z") || name.size() > 4000) return std::string(name);
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(std::string(name).c_str(), nullptr, nullptr, &status), &std::free);
  return status == 0 && text ? std::string(text.get()) : nested_name(name);
}

void remove_all(std::string& text, std::string_view what) {
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at)) text.erase(at, what.size());
}

/// Where the parameter list begins: the '(' that closes at the end of the name and is not inside template arguments.
size_t parameter_list(std::string_view text) {
  std::string_view body = text;
  if (body.ends_with(" const")) body.remove_suffix(6);
  if (!body.ends_with(')')) return text.size();
  int depth = 0;
  for (size_t i = body.size(); i-- > 0;) {
    if (body[i] == ')') ++depth;
    if (body[i] == '(' && --depth == 0) return i > 0 ? i : text.size();
  }
  return text.size();
}

}  // namespace

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

std::string display_name(std::string_view name) {
  if (name.empty()) return "(empty name)";
  std::string text = demangled(name);
  if (text.starts_with("void ")) text.erase(0, 5);
  if (!text.starts_with("Memcpy") && !text.starts_with("Memset")) text.resize(parameter_list(text));
  remove_all(text, "(anonymous namespace)::");
  while (text.ends_with(' ')) text.pop_back();
  if (text.empty()) text = name;
  return printable(text, 4000);
}

std::string short_name(std::string_view name) {
  const std::string full = display_name(name);
  std::string out;
  int depth = 0;
  for (const char c : full) {
    if (c == '<') ++depth;
    if (depth == 0) out += c;
    if (c == '>' && depth > 0) --depth;
  }
  while (out.ends_with(' ') || out.ends_with(':')) out.pop_back();
  return out.empty() ? full : out;
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

std::vector<std::string> distinct_names(const std::vector<std::string>& names, size_t width) {
  std::vector<std::string> out;
  std::map<std::string, int> seen;
  for (const std::string& name : names) {
    std::string text = fit(name, width);
    const int n = ++seen[text];
    if (n > 1) {
      const std::string mark = fmt::format(" ({})", n);
      text = fit(name, width > mark.size() + 8 ? width - mark.size() : width) + mark;
    }
    out.push_back(text);
  }
  return out;
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

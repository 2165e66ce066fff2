#include "trace/names.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>

#include "base/error.h"
#include "trace/format.h"

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

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// The texts between the outermost angle brackets, split at their commas.
std::vector<std::string> template_arguments(std::string_view full) {
  std::vector<std::string> out;
  int depth = 0, inner = 0;
  for (const char c : full) {
    if (c == '<' && depth++ == 0) {
      out.emplace_back();
      continue;
    }
    if (c == '>' && depth > 0) --depth;
    if (depth == 0) continue;
    if (c == '(' || c == '{' || c == '[') ++inner;
    if (c == ')' || c == '}' || c == ']') --inner;
    if (c == ',' && depth == 1 && inner <= 0)
      out.emplace_back();
    else if (!(c == ' ' && out.back().empty()))
      out.back() += c;
  }
  return out;
}

/// "(deep_gemm::GemmType)2" -> "GemmType 2", "4096u" -> "4096", "cute::tuple<...>" -> "tuple".
std::string plain_argument(std::string_view argument) {
  std::string out;
  int depth = 0;
  for (size_t i = 0; i < argument.size(); ++i) {
    const char c = argument[i];
    if (c == '<') ++depth;
    if (depth == 0 && c == ':' && i + 1 < argument.size() && argument[i + 1] == ':') {  // drop the namespace before
      while (!out.empty() && is_word(out.back())) out.pop_back();
      ++i;
    } else if (depth == 0 && c != '(') {
      out += c == ')' ? ' ' : c;
    }
    if (c == '>' && depth > 0) --depth;
  }
  const bool number = !out.empty() && out[0] >= '0' && out[0] <= '9';
  while (number && (out.back() == 'u' || out.back() == 'l' || out.back() == 'U' || out.back() == 'L')) out.pop_back();
  while (out.ends_with(' ')) out.pop_back();
  return out;
}

/// What a generic kernel applies: the most telling identifier among its template arguments; empty when none tells.
std::string functor_of(std::string_view full) {
  static constexpr std::string_view endings[] = {"_kernel_cuda", "Functor", "Ops", "_kernel_impl", "_cuda", "_kernel"};
  static constexpr std::string_view wrappers[] = {"BinaryFunctor",  "AUnaryFunctor",   "BUnaryFunctor",
                                                  "func_wrapper_t", "gpu_kernel_impl", "gpu_kernel_impl_nocast",
                                                  "LoadWithCast"};
  const std::string_view inside = full.substr(std::min(full.find('<'), full.size()));
  size_t best = std::size(endings);
  std::string_view found;
  for (size_t at = 0; at < inside.size();) {
    size_t end = at;
    while (end < inside.size() && is_word(inside[end])) ++end;
    const std::string_view word = inside.substr(at, end - at);
    at = end + 1;
    if (std::find(std::begin(wrappers), std::end(wrappers), word) != std::end(wrappers)) continue;
    for (size_t i = 0; i < best; ++i)
      if (word.size() > endings[i].size() && word.ends_with(endings[i])) best = i, found = word;
  }
  return std::string(found);
}

bool is_wrapper(std::string_view base) {
  const size_t colons = base.rfind("::");
  const std::string_view last = colons == std::string_view::npos ? base : base.substr(colons + 2);
  return last == "Kernel" || last == "Kernel2" || last == "device_kernel" || last == "GemmUniversal" ||
         last.find("elementwise_kernel") != std::string_view::npos || last == "reduce_kernel" ||
         last.starts_with("multi_tensor_apply");
}

/// Tensile (rocBLAS, hipBLASLt): "Cijk_Alik_Bljk_BBS_BH_..._MT16x16x256_..." -> "Cijk_Alik_Bljk_BBS_BH MT16x16x256".
std::string tensile_name(std::string_view base) {
  size_t end = 0;
  for (int part = 0; part < 5 && end < base.size(); ++part) end = std::min(base.find('_', end + 1), base.size());
  const size_t tile = base.find("_MT");
  if (tile == std::string_view::npos || tile < end) return std::string(base);
  const size_t stop = std::min(base.find('_', tile + 1), base.size());
  return fmt::format("{} {}", base.substr(0, end), base.substr(tile + 1, stop - tile - 1));
}

std::string without_arguments(std::string_view full) {
  std::string out;
  int depth = 0;
  for (const char c : full) {
    if (c == '<') ++depth;
    if (depth == 0) out += c;
    if (c == '>' && depth > 0) --depth;
  }
  while (out.ends_with(' ') || out.ends_with(':')) out.pop_back();
  return out.empty() ? std::string(full) : out;
}

/// brief_name of a display name.
std::string brief(std::string_view full) {
  const std::string base = without_arguments(full);
  if (base.starts_with("Cijk_")) return tensile_name(base);
  if (!is_wrapper(base)) return base;
  std::string what = functor_of(full);
  if (what.empty()) {
    const auto arguments = template_arguments(full);
    for (const std::string& a : arguments)
      if (what.empty() && a.size() > 12 && !(a[0] >= '0' && a[0] <= '9')) what = plain_argument(a);
  }
  return what.empty() ? base : fmt::format("{} [{}]", base, what);
}

/// `base` with the arguments that tell it from the others of its kind, as many as fit.
std::string with_arguments(std::string base, const std::vector<std::string>& arguments,
                           const std::vector<bool>& differs, size_t width) {
  std::string list;
  for (size_t i = 0; i < arguments.size() && i < differs.size(); ++i) {
    if (!differs[i]) continue;
    const std::string next = list + (list.empty() ? "" : ", ") + plain_argument(arguments[i]);
    if (text_width(base) + text_width(next) + 2 > width) break;
    list = next;
  }
  return list.empty() ? base : fmt::format("{}<{}>", base, list);
}

/// Of a brief name that does not fit: without namespaces; of a wrapper then what it wraps alone.
std::string fitted_base(std::string base, size_t width) {
  for (size_t at = base.find("::"); text_width(base) > width && at != std::string::npos; at = base.find("::"))
    base.erase(0, at + 2);
  if (const size_t what = base.find(" ["); text_width(base) > width && what != std::string::npos)
    return base.substr(what + 2, base.size() - what - 3);
  return base;
}

}  // namespace

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
  return without_arguments(display_name(name));
}

std::string brief_name(std::string_view name) {
  return brief(display_name(name));
}

std::vector<std::string> distinct_names(const std::vector<std::string>& names, size_t width) {
  std::vector<std::string> bases;
  std::vector<std::vector<std::string>> arguments;
  std::map<std::string, std::vector<size_t>> groups;
  for (const std::string& name : names) {
    groups[brief(name)].push_back(bases.size());
    bases.push_back(brief(name));
    arguments.push_back(template_arguments(name));
  }
  std::vector<std::string> out(names.size());
  for (const auto& [base, members] : groups) {
    std::vector<bool> differs;
    for (const size_t m : members)
      for (size_t i = 0; i < arguments[m].size(); ++i) {
        const auto& first = arguments[members.front()];
        if (i >= differs.size()) differs.push_back(false);
        if (i >= first.size() || first[i] != arguments[m][i]) differs[i] = true;
      }
    for (const size_t m : members)
      out[m] = text_width(names[m]) <= width ? names[m]
                                             : with_arguments(fitted_base(base, width), arguments[m], differs, width);
  }
  std::map<std::string, int> seen;
  for (std::string& text : out) {
    const std::string whole = text;
    text = fit(whole, width);
    const int n = ++seen[text];
    if (n == 1) continue;
    const std::string mark = fmt::format(" ({})", n);
    text = fit(whole, width > mark.size() + 8 ? width - mark.size() : width) + mark;
  }
  return out;
}

}  // namespace fathom::trace

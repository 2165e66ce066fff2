#include "text/output_tags.h"

#include <algorithm>
#include <cctype>

namespace fathom::text {
namespace {

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}
bool is_quote(char c) {
  return c == '"' || c == '\'';
}

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && is_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_space(s.back())) s.remove_suffix(1);
  return s;
}

/// Takes `word="` (or with the other quote) from the front; the quote is returned, 0 when it does not stand there.
char take_opening(std::string_view& s, std::string_view word) {
  if (s.substr(0, word.size()) != word || s.size() < word.size() + 2 || s[word.size()] != '=') return 0;
  const char quote = s[word.size() + 1];
  if (!is_quote(quote)) return 0;
  s.remove_prefix(word.size() + 2);
  return quote;
}

/// Names may hold quotes, but not what looks like another attribute: quote, space, word, '=', quote.
bool holds_attribute(std::string_view name, char quote) {
  for (size_t at = name.find(quote); at != name.npos; at = name.find(quote, at + 1)) {
    size_t i = at + 1;
    while (i < name.size() && is_space(name[i])) ++i;
    const size_t word = i;
    while (i < name.size() && (std::isalnum(static_cast<unsigned char>(name[i])) || name[i] == '_' || name[i] == '-'))
      ++i;
    if (word > at + 1 && i > word && i + 1 < name.size() && name[i] == '=' && is_quote(name[i + 1])) return true;
  }
  return false;
}

std::optional<std::string> take_name(std::string_view s) {
  const char quote = take_opening(s, "name");
  if (quote == 0 || s.empty() || s.back() != quote) return std::nullopt;
  s.remove_suffix(1);
  if (holds_attribute(s, quote)) return std::nullopt;
  return std::string(s);
}

std::optional<bool> flag_of(std::string_view s) {
  std::string lower(s);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "true") return true;
  if (lower == "false") return false;
  return std::nullopt;
}

}  // namespace

std::string read_invoke_tag(std::string_view attributes) {
  return take_name(trimmed(attributes)).value_or("");
}

std::optional<ParameterTag> read_parameter_tag(std::string_view attributes) {
  std::string_view s = trimmed(attributes);
  std::optional<bool> flag;
  std::string_view name = s;
  if (std::string_view rest = s; const char quote = take_opening(rest, "string")) {
    const size_t close = rest.find(quote);
    if (close == rest.npos || close + 1 >= rest.size() || !is_space(rest[close + 1])) return std::nullopt;
    flag = flag_of(rest.substr(0, close));
    name = trimmed(rest.substr(close + 1));
  } else {
    const size_t word = s.rfind("string=");
    if (word == s.npos || word == 0 || !is_space(s[word - 1])) return std::nullopt;
    std::string_view last = s.substr(word);
    const char end = take_opening(last, "string");
    if (end == 0 || last.empty() || last.back() != end) return std::nullopt;
    flag = flag_of(last.substr(0, last.size() - 1));
    name = trimmed(s.substr(0, word));
  }
  const std::optional<std::string> text = take_name(name);
  if (!flag || !text) return std::nullopt;
  return ParameterTag{*text, *flag};
}

}  // namespace fathom::text

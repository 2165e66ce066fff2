#include "trace/categories.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/threads.h"
#include "trace/embedded.h"

namespace fathom::trace {
namespace {

char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
}

std::string lowered(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), lower);
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && static_cast<unsigned char>(text.front()) <= ' ') text.remove_prefix(1);
  while (!text.empty() && static_cast<unsigned char>(text.back()) <= ' ') text.remove_suffix(1);
  return text;
}

/// The categories that the built-in rules and the findings speak of, in the order of their first mention in reports.
std::vector<Category> known_categories() {
  return {{"attention", "Attention", false},
          {"moe_gemm", "MoE GEMM", false},
          {"dense_gemm", "Dense GEMM", false},
          {"moe_routing", "MoE routing", false},
          {"indexer", "Indexer, top-k", false},
          {"norm", "Norm", true},
          {"rope", "RoPE", true},
          {"quant", "Quantisation", true},
          {"activation", "Activation", true},
          {"kv_cache", "KV cache", true},
          {"elementwise", "Elementwise, copy", true},
          {"reduce", "Reduction, scan", true},
          {"sampling", "Sampling", false},
          {"communication", "Communication", false},
          {"memcpy", "Memcpy, memset", false},
          {"other", "Other", false}};
}

}  // namespace

CategoryRules CategoryRules::built_in() {
  CategoryRules rules;
  rules.categories_ = known_categories();
  rules.prepend(embedded::category_rules(), "categories.rules");
  return rules;
}

void CategoryRules::prepend(std::string_view text, const std::string& source) {
  std::vector<Rule> added;
  size_t category = SIZE_MAX, number = 0;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    ++number;
    if (line.empty() || line.front() == '#') continue;
    if (line.front() == '[') {
      if (line.back() != ']' || trimmed(line.substr(1, line.size() - 2)).empty())
        fail("{} line {}: a category is written [name] or [name: label], not \"{}\"", source, number, printable(line));
      category = category_of(trimmed(line.substr(1, line.size() - 2)));
      continue;
    }
    if (category == SIZE_MAX) fail("{} line {}: a [category] must come before the first pattern", source, number);
    added.push_back(parse_rule(line, category, fmt::format("{} line {}", source, number)));
  }
  rules_.insert(rules_.begin(), std::make_move_iterator(added.begin()), std::make_move_iterator(added.end()));
}

size_t CategoryRules::category_of(std::string_view header) {
  const size_t colon = header.find(':');
  const std::string id = lowered(trimmed(header.substr(0, colon)));
  for (size_t i = 0; i < categories_.size(); ++i)
    if (categories_[i].id == id) return i;
  const std::string_view label =
      colon == std::string_view::npos ? std::string_view(id) : trimmed(header.substr(colon + 1));
  categories_.push_back({id, printable(label, 60), false});  // a group of the user's own
  return categories_.size() - 1;
}

CategoryRules::Rule CategoryRules::parse_rule(std::string_view line, size_t category, const std::string& where) {
  Rule rule;
  rule.category = category;
  rule.where = where;
  bool first = true;
  for (std::string_view rest = line; !(rest = trimmed(rest)).empty();) {
    size_t end = 0;
    while (end < rest.size() && static_cast<unsigned char>(rest[end]) > ' ') ++end;
    std::string word = lowered(rest.substr(0, end));
    rest.remove_prefix(end);
    if (!first) {
      if (word.size() < 2 || word[0] != '!')
        fail("{}: only !words may follow a pattern, not \"{}\" (write * for a space)", where, printable(word));
      rule.none_of.push_back(word.substr(1));
      continue;
    }
    first = false;
    rule.text = word;
    if (word.starts_with('^')) rule.at_start = true, word.erase(0, 1);
    if (word.ends_with('$')) rule.at_end = true, word.pop_back();
    for (size_t at = 0; at <= word.size();) {
      const size_t star = std::min(word.find('*', at), word.size());
      if (star > at) rule.all_of.push_back(word.substr(at, star - at));
      at = star + 1;
    }
    if (rule.all_of.empty()) fail("{}: the pattern \"{}\" would match every name", where, printable(rule.text));
  }
  return rule;
}

bool CategoryRules::Rule::matches(std::string_view name) const {
  size_t at = 0;
  for (size_t i = 0; i < all_of.size(); ++i) {
    const std::string& part = all_of[i];
    if (i + 1 == all_of.size() && at_end) {
      if (name.size() < at + part.size() || !name.ends_with(part)) return false;
      if (i == 0 && at_start && name.size() != part.size()) return false;
      continue;
    }
    if (i == 0 && at_start) {
      if (!name.starts_with(part)) return false;
      at = part.size();
      continue;
    }
    const size_t found = name.find(part, at);
    if (found == std::string_view::npos) return false;
    at = found + part.size();
  }
  return std::none_of(none_of.begin(), none_of.end(),
                      [&](const std::string& word) { return name.find(word) != std::string_view::npos; });
}

const CategoryRules::Rule* CategoryRules::match(std::string_view name) const {
  const std::string low = lowered(name);
  for (const Rule& rule : rules_)
    if (rule.matches(low)) return &rule;
  return nullptr;
}

size_t CategoryRules::find(std::string_view id) const {
  for (size_t i = 0; i < categories_.size(); ++i)
    if (categories_[i].id == id) return i;
  throw std::logic_error(fmt::format("no category {}", id));
}

size_t CategoryRules::classify(std::string_view name, WorkKind kind) const {
  if (kind != WorkKind::kernel) return find("memcpy");
  const Rule* rule = match(name);
  return rule ? rule->category : find("other");
}

std::string CategoryRules::reason(std::string_view name, WorkKind kind) const {
  if (kind != WorkKind::kernel) return "copies and fills are told by their kind";
  const Rule* rule = match(name);
  return rule ? fmt::format("{}: {}", rule->where, rule->text) : std::string();
}

CategoryTable categorise(const Trace& trace, Ranking& ranking, const CategoryRules& rules) {
  parallel_for(static_cast<int64_t>(ranking.rows.size()), 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      KernelRow& row = ranking.rows[static_cast<size_t>(i)];
      row.category = rules.classify(trace.names.text(row.name), row.kind);
    }
  });
  CategoryTable out;
  out.categories = rules.categories();
  std::map<size_t, CategoryRow> rows;
  Ns all = 0, kernels = 0;
  for (const KernelRow& row : ranking.rows) {
    CategoryRow& r = rows[row.category];
    r.category = row.category;
    r.calls += row.calls;
    ++r.names;
    r.total += row.total;
    all += row.total;
    if (row.kind == WorkKind::kernel) kernels += row.total;
  }
  const size_t other = rules.find("other");
  for (auto& [category, row] : rows) {
    row.share = all > 0 ? static_cast<double>(row.total) / static_cast<double>(all) : 0;
    if (category == other) out.other = row.total;
    out.rows.push_back(row);
  }
  std::stable_sort(out.rows.begin(), out.rows.end(),
                   [](const CategoryRow& a, const CategoryRow& b) { return a.total > b.total; });
  out.other_share = kernels > 0 ? static_cast<double>(out.other) / static_cast<double>(kernels) : 0;
  return out;
}

}  // namespace fathom::trace

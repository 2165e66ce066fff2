// What a kernel is for: attention, MoE GEMM, communication, ... decided by an ordered list of rules over its name.
//
// The rules are one readable file (categories.rules, built into the binary; it explains its own form): the first
// matching line wins, and a user's file is tried before the built-in one. A user's file may open categories of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trace/model.h"
#include "trace/ranking.h"

namespace fathom::trace {

struct Category {
  std::string id;     // "moe_gemm"
  std::string label;  // "MoE GEMM"
  bool glue = false;  // small memory-bound work that a fused kernel would absorb
};

class CategoryRules {
 public:
  /// The rules built into the binary.
  static CategoryRules built_in();
  /// Puts the rules of `text` before the present ones. `source` names it in messages. Throws Error with the line
  /// number on a pattern outside a category, or one that would match everything.
  void prepend(std::string_view text, const std::string& source);

  /// Index in categories() for a kernel of this name (the whole name: what decides is often far behind).
  size_t classify(std::string_view name, WorkKind kind) const;
  const std::vector<Category>& categories() const { return categories_; }
  size_t find(std::string_view id) const;  // one of the built-in ones
  /// The rule that decided, for `--explain`: "categories.rules line 41: deep_ep". Empty for "other".
  std::string reason(std::string_view name, WorkKind kind) const;

 private:
  struct Rule {
    size_t category = 0;
    std::vector<std::string> all_of;   // lower case; every part must occur, in this order
    std::vector<std::string> none_of;  // and none of these
    bool at_start = false, at_end = false;
    std::string text, where;
    bool matches(std::string_view lower_name) const;
  };
  const Rule* match(std::string_view name) const;
  size_t category_of(std::string_view header);
  static Rule parse_rule(std::string_view line, size_t category, const std::string& where);
  std::vector<Category> categories_;
  std::vector<Rule> rules_;
};

struct CategoryRow {
  size_t category = 0;
  int64_t calls = 0;
  size_t names = 0;
  Ns total = 0;
  double share = 0;  // of all GPU work
};

struct CategoryTable {
  std::vector<Category> categories;
  std::vector<CategoryRow> rows;  // longest first, only those that occur
  Ns other = 0;                   // time that no rule matched
  double other_share = 0;         // of kernel time
};

/// Sets KernelRow::category and sums.
CategoryTable categorise(const Trace& trace, Ranking& ranking, const CategoryRules& rules);

}  // namespace fathom::trace

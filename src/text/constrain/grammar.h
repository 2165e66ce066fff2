// Context-free grammars over bytes, small enough to be built from a JSON schema for each request.
//
// A grammar is a list of rules; a rule has alternatives; an alternative is a sequence of byte sets and rules. Rules
// must not be left-recursive (a rule that can begin with itself); repetition is written right-recursively, by repeat().
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace fathom::text {

using ByteSet = std::bitset<256>;
/// The bytes of [low, high].
ByteSet byte_range(int low, int high);
/// The bytes that `text` consists of.
ByteSet bytes_of(std::string_view text);

class Grammar {
 public:
  /// A byte set (`rule` false) or a rule.
  struct Symbol {
    bool rule = false;
    uint32_t index = 0;
    friend bool operator==(const Symbol&, const Symbol&) = default;
  };
  using Sequence = std::vector<Symbol>;

  /// A new rule without alternatives; it matches nothing until some are added.
  Symbol add_rule();
  void add_alternative(Symbol rule, Sequence sequence);
  /// A rule of these alternatives.
  Symbol choice(std::vector<Sequence> alternatives);
  Symbol set(const ByteSet& bytes);
  /// The bytes of `text` one after the other.
  Sequence literal(std::string_view text);

  Symbol optional(Sequence s);
  /// Any number of times; `s` must not match the empty text.
  Symbol repeat(Sequence s);
  /// From `least` to `most` times; most < 0: no upper bound. Throws Error beyond 65,536 repetitions.
  Symbol repeat(Sequence s, int64_t least, int64_t most);

  void set_start(Symbol rule) { start_ = rule.index; }
  uint32_t start() const { return start_; }
  size_t rule_count() const { return rules_.size(); }
  std::span<const Sequence> alternatives(uint32_t rule) const { return rules_[rule]; }
  const ByteSet& bytes(uint32_t set) const { return sets_[set]; }

 private:
  std::vector<std::vector<Sequence>> rules_;
  std::vector<ByteSet> sets_;
  uint32_t start_ = 0;
};

/// `a` followed by `b`.
Grammar::Sequence operator+(Grammar::Sequence a, const Grammar::Sequence& b);

/// A part of a list; one that is not needed may be left out.
struct Part {
  Grammar::Symbol symbol;
  bool needed = false;
};
/// The parts in their order: `before` stands before the first that comes, `between` before every other; then `end[1]`,
/// or `end[0]` when none came.
Grammar::Symbol in_order(Grammar& g, std::span<const Part> parts, Grammar::Symbol before, Grammar::Symbol between,
                         const std::array<Grammar::Symbol, 2>& end);

/// One character in UTF-8, without the ASCII characters of `without`.
Grammar::Symbol utf8_character(Grammar& g, const ByteSet& without);

/// Any UTF-8 text, the empty one too, in which `pattern` does not occur. `pattern` is not empty.
Grammar::Symbol text_without(Grammar& g, std::string_view pattern);

}  // namespace fathom::text

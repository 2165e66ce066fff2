// Output that must follow a grammar: which tokens may come next.
//
// One TokenTable for a model, one Constraint for each grammar, one ConstraintMatcher for each output. A matcher is a
// few bytes and may be copied, to try drafted tokens and go back.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/constrain/automaton.h"
#include "text/tokenizer.h"

namespace fathom::text {

/// The tokens of a vocabulary in the order of their bytes. Special tokens are not in it: a grammar can never ask for
/// control tokens. Other added tokens (tags of tool calls) are their text. Sorted when it is first asked for; from any
/// thread.
class TokenTable {
 public:
  /// `tokenizer` outlives the table, which refers to its bytes.
  explicit TokenTable(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  struct Entry {
    std::string_view bytes;
    int32_t id;
    uint32_t common;  // bytes that it begins with as the entry before does
  };
  std::span<const Entry> entries() const;
  int64_t vocab_size() const { return tokenizer_.vocab_size(); }
  /// Bytes of a token; empty for those that are not in the table.
  std::string_view bytes(int32_t id) const;

 private:
  const Tokenizer& tokenizer_;
  mutable std::once_flag sorted_;
  mutable std::vector<Entry> entries_;
};

/// A set of token ids: bit id % 64 of word id / 64.
using TokenSet = std::vector<uint64_t>;

/// For one thread (the engine's); shared by all outputs of a request. Remembers the sets of the states it has met.
class Constraint {
 public:
  /// `before`: the grammar applies behind this token (the end of thinking); none: from the first token on. `end_ids`
  /// may come where the text is complete. Throws Error for a grammar that no text follows.
  Constraint(const Grammar& grammar, std::shared_ptr<const TokenTable> tokens, std::vector<int32_t> end_ids,
             std::optional<int32_t> before = {});

 private:
  friend class ConstraintMatcher;
  const TokenSet& allowed(GrammarAutomaton::State state);

  GrammarAutomaton automaton_;
  std::shared_ptr<const TokenTable> tokens_;
  std::vector<int32_t> end_ids_;
  std::optional<int32_t> before_;
  GrammarAutomaton::State start_;
  std::unordered_map<GrammarAutomaton::State, TokenSet> sets_;
};

class ConstraintMatcher {
 public:
  explicit ConstraintMatcher(std::shared_ptr<Constraint> constraint);

  /// The tokens that may come next; null: all of them (the thinking has not ended).
  const TokenSet* allowed();
  /// Takes the next token of the output. False, and no change, when it may not come here.
  bool accept(int32_t token);
  /// The output is complete; only an end token may follow, or more text where the grammar has it.
  bool complete() const;
  /// Nothing but an end token may follow.
  bool must_end() const;

 private:
  std::shared_ptr<Constraint> constraint_;
  GrammarAutomaton::State state_;
  bool active_, ended_ = false;
};

}  // namespace fathom::text

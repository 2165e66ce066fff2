// A grammar as an automaton that reads bytes: states are made when they are first met.
//
// A state is the set of places in the grammar where reading may stand, each with the rules it has to return to. Places
// with the same returns are the same state, so the inside of a JSON string is one state however long the string gets.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "text/constrain/grammar.h"

namespace fathom::text {

/// Not for several threads at a time.
class GrammarAutomaton {
 public:
  using State = uint32_t;
  static constexpr State dead = 0;  // no text can follow, not even the empty one

  explicit GrammarAutomaton(const Grammar& grammar);

  State start();
  State next(State state, uint8_t byte) {
    const auto& t = states_[state].transitions;
    return !t.empty() && t[byte] != unknown ? t[byte] : find_next(state, byte);
  }
  /// The text read so far is complete.
  bool accepts(State state) const { return states_[state].accepts; }
  /// Nothing but the end may follow.
  bool must_end(State state) const { return states_[state].tops.empty(); }
  size_t state_count() const { return states_.size(); }

 private:
  static constexpr uint32_t unknown = 0xFFFFFFFF;
  static constexpr uint32_t end_mark = 0xFFFFFFFF;  // in elements_
  static constexpr uint32_t rule_bit = 0x80000000;

  /// A place and what to return to behind its alternative; 0: nothing.
  struct Top {
    uint32_t place, parent;
    friend auto operator<=>(const Top&, const Top&) = default;
  };
  struct Node {
    Top top;
    uint32_t depth;
  };
  struct StateData {
    std::vector<Top> tops;
    bool accepts = false;
    std::vector<uint32_t> transitions;
  };

  State find_next(State state, uint8_t byte);
  void expand(Top top, std::vector<Top>& tops, bool& accepts);
  uint32_t node(Top top);
  State intern(std::vector<Top> tops, bool accepts);

  std::vector<uint32_t> elements_;             // all alternatives, each closed by end_mark
  std::vector<std::vector<uint32_t>> starts_;  // of the alternatives of each rule
  std::vector<ByteSet> sets_;
  uint32_t start_rule_;
  std::vector<Node> nodes_;
  std::unordered_map<uint64_t, uint32_t> node_ids_;
  std::vector<StateData> states_;
  std::unordered_multimap<uint64_t, State> state_ids_;
  std::vector<Top> visited_;
};

}  // namespace fathom::text

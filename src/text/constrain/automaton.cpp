#include "text/constrain/automaton.h"

#include <algorithm>

#include "base/error.h"

namespace fathom::text {
namespace {

constexpr uint32_t most_depth = 512;  // of returns: nesting of objects and lists
constexpr size_t most_nodes = 4'000'000;
constexpr size_t most_states = 200'000;  // a state that was left by some byte takes a kilobyte
constexpr size_t most_places = 20'000;   // of one state

uint64_t mix(uint64_t h, uint64_t v) {
  h ^= v + 0x9E3779B97F4A7C15u + (h << 6) + (h >> 2);
  return h * 0xBF58476D1CE4E5B9u;
}

}  // namespace

GrammarAutomaton::GrammarAutomaton(const Grammar& grammar) : start_rule_(grammar.start()) {
  starts_.resize(grammar.rule_count());
  for (uint32_t rule = 0; rule < grammar.rule_count(); ++rule) {
    for (const Grammar::Sequence& sequence : grammar.alternatives(rule)) {
      starts_[rule].push_back(static_cast<uint32_t>(elements_.size()));
      for (const Grammar::Symbol& s : sequence) {
        elements_.push_back(s.rule ? s.index | rule_bit : s.index);
        if (!s.rule && s.index >= sets_.size()) sets_.resize(s.index + 1);
        if (!s.rule) sets_[s.index] = grammar.bytes(s.index);
      }
      elements_.push_back(end_mark);
    }
  }
  nodes_.push_back({{0, 0}, 0});  // 0: nothing to return to
  states_.push_back({{}, false, std::vector<uint32_t>(256, dead)});
}

GrammarAutomaton::State GrammarAutomaton::start() {
  std::vector<Top> tops;
  bool accepts = false;
  visited_.clear();
  for (const uint32_t place : starts_[start_rule_]) expand({place, 0}, tops, accepts);
  return intern(std::move(tops), accepts);
}

GrammarAutomaton::State GrammarAutomaton::find_next(State state, uint8_t byte) {
  std::vector<Top> tops;
  bool accepts = false;
  visited_.clear();
  const size_t count = states_[state].tops.size();
  for (size_t i = 0; i < count; ++i) {
    const Top top = states_[state].tops[i];
    if (sets_[elements_[top.place]].test(byte)) expand({top.place + 1, top.parent}, tops, accepts);
  }
  const State to = intern(std::move(tops), accepts);
  auto& transitions = states_[state].transitions;
  if (transitions.empty()) transitions.assign(256, unknown);
  transitions[byte] = to;
  return to;
}

/// Adds every byte set that can come next at `top`.
void GrammarAutomaton::expand(Top top, std::vector<Top>& tops, bool& accepts) {
  std::vector<Top> work = {top};
  while (!work.empty()) {
    Top at = work.back();
    work.pop_back();
    while (elements_[at.place] == end_mark && at.parent != 0) at = nodes_[at.parent].top;
    const uint32_t element = elements_[at.place];
    if (element == end_mark) {
      accepts = true;
      continue;
    }
    if (!(element & rule_bit)) {
      tops.push_back(at);
      continue;
    }
    if (std::find(visited_.begin(), visited_.end(), at) != visited_.end()) continue;
    visited_.push_back(at);
    if (visited_.size() > most_places) fail("the grammar is too ambiguous");
    // The last symbol of an alternative needs no return of its own, so that repetition does not grow the returns.
    const bool last = elements_[at.place + 1] == end_mark;
    if (!last && nodes_[at.parent].depth >= most_depth) continue;  // too deep: this way is closed
    const uint32_t parent = last ? at.parent : node({at.place + 1, at.parent});
    for (const uint32_t start : starts_[element & ~rule_bit]) work.push_back({start, parent});
  }
}

uint32_t GrammarAutomaton::node(Top top) {
  const uint64_t key = uint64_t{top.place} << 32 | top.parent;
  const auto [at, fresh] = node_ids_.try_emplace(key, static_cast<uint32_t>(nodes_.size()));
  if (!fresh) return at->second;
  if (nodes_.size() >= most_nodes) fail("the output is too complex for its grammar");
  nodes_.push_back({top, nodes_[top.parent].depth + 1});
  return at->second;
}

GrammarAutomaton::State GrammarAutomaton::intern(std::vector<Top> tops, bool accepts) {
  if (tops.empty() && !accepts) return dead;
  std::sort(tops.begin(), tops.end());
  tops.erase(std::unique(tops.begin(), tops.end()), tops.end());
  uint64_t hash = accepts;
  for (const Top& t : tops) hash = mix(hash, uint64_t{t.place} << 32 | t.parent);
  const auto [begin, end] = state_ids_.equal_range(hash);
  for (auto at = begin; at != end; ++at)
    if (states_[at->second].accepts == accepts && states_[at->second].tops == tops) return at->second;
  if (states_.size() >= most_states) fail("the output is too complex for its grammar");
  states_.push_back({std::move(tops), accepts, {}});
  const auto id = static_cast<State>(states_.size() - 1);
  state_ids_.emplace(hash, id);
  return id;
}

}  // namespace fathom::text

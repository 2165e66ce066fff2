#include "text/constrain/grammar.h"

#include <algorithm>
#include <array>
#include <map>

#include "base/error.h"

namespace fathom::text {
namespace {

constexpr int64_t most_repetitions = 65536;
constexpr size_t most_rules = 1 << 20;

/// What may follow inside a UTF-8 character: ranges of the next byte and the state behind it. State 0 is between
/// characters; the numbers of the others have no meaning of their own.
struct Utf8Step {
  int state, low, high, next;
};
constexpr Utf8Step utf8_steps[] = {{0, 0x00, 0x7F, 0}, {0, 0xC2, 0xDF, 1}, {0, 0xE0, 0xE0, 2}, {0, 0xE1, 0xEC, 3},
                                   {0, 0xED, 0xED, 4}, {0, 0xEE, 0xEF, 3}, {0, 0xF0, 0xF0, 5}, {0, 0xF1, 0xF3, 6},
                                   {0, 0xF4, 0xF4, 7}, {1, 0x80, 0xBF, 0}, {2, 0xA0, 0xBF, 1}, {3, 0x80, 0xBF, 1},
                                   {4, 0x80, 0x9F, 1}, {5, 0x90, 0xBF, 3}, {6, 0x80, 0xBF, 3}, {7, 0x80, 0x8F, 3}};
constexpr int utf8_states = 8;

}  // namespace

ByteSet byte_range(int low, int high) {
  ByteSet s;
  for (int b = low; b <= high; ++b) s.set(static_cast<size_t>(b));
  return s;
}

ByteSet bytes_of(std::string_view text) {
  ByteSet s;
  for (const char c : text) s.set(static_cast<uint8_t>(c));
  return s;
}

Grammar::Sequence operator+(Grammar::Sequence a, const Grammar::Sequence& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Grammar::Symbol Grammar::add_rule() {
  if (rules_.size() >= most_rules) fail("the grammar has more than {} rules: the schema is too large", most_rules);
  rules_.emplace_back();
  return {true, static_cast<uint32_t>(rules_.size() - 1)};
}

void Grammar::add_alternative(Symbol rule, Sequence sequence) {
  rules_[rule.index].push_back(std::move(sequence));
}

Grammar::Symbol Grammar::choice(std::vector<Sequence> alternatives) {
  const Symbol rule = add_rule();
  rules_[rule.index] = std::move(alternatives);
  return rule;
}

Grammar::Symbol Grammar::set(const ByteSet& bytes) {
  const auto at = std::find(sets_.begin(), sets_.end(), bytes);
  if (at != sets_.end()) return {false, static_cast<uint32_t>(at - sets_.begin())};
  sets_.push_back(bytes);
  return {false, static_cast<uint32_t>(sets_.size() - 1)};
}

Grammar::Sequence Grammar::literal(std::string_view text) {
  Sequence s;
  for (size_t i = 0; i < text.size(); ++i) s.push_back(set(bytes_of(text.substr(i, 1))));
  return s;
}

Grammar::Symbol Grammar::optional(Sequence s) {
  return choice({{}, std::move(s)});
}

Grammar::Symbol Grammar::repeat(Sequence s) {
  const Symbol rule = add_rule();
  s.push_back(rule);
  rules_[rule.index] = {{}, std::move(s)};
  return rule;
}

Grammar::Symbol Grammar::repeat(Sequence s, int64_t least, int64_t most) {
  if (least > most_repetitions || most > most_repetitions)
    fail("a repetition of {} times is more than the {} supported", std::max(least, most), most_repetitions);
  const Symbol unit = choice({std::move(s)});
  // From the end: what may follow when `k` have been seen.
  Symbol rest = most < 0 ? repeat({unit}) : choice({{}});
  for (int64_t k = (most < 0 ? least : most) - 1; k >= 0; --k) {
    std::vector<Sequence> alternatives = {{unit, rest}};
    if (k >= least) alternatives.push_back({});
    rest = choice(std::move(alternatives));
  }
  return rest;
}

Grammar::Symbol in_order(Grammar& g, std::span<const Part> parts, Grammar::Symbol before, Grammar::Symbol between,
                         const std::array<Grammar::Symbol, 2>& end) {
  // From the end: what may follow at part k, when nothing (0) or something (1) stands before it.
  std::array<Grammar::Symbol, 2> rest = end;
  for (size_t k = parts.size(); k-- > 0;) {
    std::array<Grammar::Symbol, 2> now;
    for (size_t some = 0; some < 2; ++some) {
      std::vector<Grammar::Sequence> ways = {{some ? between : before, parts[k].symbol, rest[1]}};
      if (!parts[k].needed) ways.push_back({rest[some]});
      now[some] = g.choice(std::move(ways));
    }
    rest = now;
  }
  return rest[0];
}

Grammar::Symbol utf8_character(Grammar& g, const ByteSet& without) {
  std::array<Grammar::Symbol, utf8_states> states;
  for (int i = 1; i < utf8_states; ++i) states[static_cast<size_t>(i)] = g.add_rule();
  states[0] = g.choice({{}});  // the character is complete
  const Grammar::Symbol start = g.add_rule();
  for (const Utf8Step& step : utf8_steps) {
    const ByteSet bytes = byte_range(step.low, step.high) & ~(step.state == 0 ? without : ByteSet());
    const Grammar::Symbol from = step.state == 0 ? start : states[static_cast<size_t>(step.state)];
    if (bytes.any()) g.add_alternative(from, {g.set(bytes), states[static_cast<size_t>(step.next)]});
  }
  return start;
}

Grammar::Symbol text_without(Grammar& g, std::string_view pattern) {
  // The automaton of Knuth, Morris and Pratt: state k = the last k bytes are the first k of the pattern.
  const size_t n = pattern.size();
  std::vector<size_t> border(n + 1, 0);
  for (size_t i = 1, k = 0; i < n; ++i) {
    while (k > 0 && pattern[i] != pattern[k]) k = border[k];
    if (pattern[i] == pattern[k]) ++k;
    border[i + 1] = k;
  }
  const auto next = [&](size_t k, uint8_t byte) {
    while (k > 0 && static_cast<uint8_t>(pattern[k]) != byte) k = border[k];
    return static_cast<uint8_t>(pattern[k]) == byte ? k + 1 : k;
  };
  std::vector<Grammar::Symbol> states(n * utf8_states);
  for (auto& s : states) s = g.add_rule();
  for (size_t k = 0; k < n; ++k) {
    for (int u = 0; u < utf8_states; ++u) {
      std::map<std::pair<size_t, int>, ByteSet> moves;
      for (const Utf8Step& step : utf8_steps) {
        if (step.state != u) continue;
        for (int b = step.low; b <= step.high; ++b) {
          const size_t to = next(k, static_cast<uint8_t>(b));
          if (to < n) moves[{to, step.next}].set(static_cast<size_t>(b));
        }
      }
      const Grammar::Symbol from = states[k * utf8_states + static_cast<size_t>(u)];
      if (u == 0) g.add_alternative(from, {});
      for (const auto& [to, bytes] : moves)
        g.add_alternative(from, {g.set(bytes), states[to.first * utf8_states + static_cast<size_t>(to.second)]});
    }
  }
  return states[0];
}

}  // namespace fathom::text

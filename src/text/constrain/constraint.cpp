#include "text/constrain/constraint.h"

#include <algorithm>

#include "base/error.h"

namespace fathom::text {
namespace {

constexpr size_t most_sets = 512;  // kept for one constraint: 16 KB each for a vocabulary of 129,280

uint32_t common_bytes(std::string_view a, std::string_view b) {
  const auto [at, other] =
      std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
  static_cast<void>(other);
  return static_cast<uint32_t>(at - a.begin());
}

void add(TokenSet& set, int32_t id) {
  set[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
}

}  // namespace

std::span<const TokenTable::Entry> TokenTable::entries() const {
  std::call_once(sorted_, [this] {
    for (int32_t id = 0; id < vocab_size(); ++id)
      if (!bytes(id).empty()) entries_.push_back({bytes(id), id, 0});
    std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) { return a.bytes < b.bytes; });
    for (size_t i = 1; i < entries_.size(); ++i)
      entries_[i].common = common_bytes(entries_[i - 1].bytes, entries_[i].bytes);
  });
  return entries_;
}

std::string_view TokenTable::bytes(int32_t id) const {
  const bool known = id >= 0 && id < vocab_size() && tokenizer_.has(id) && !tokenizer_.is_special(id);
  return known ? tokenizer_.bytes(id) : std::string_view();
}

Constraint::Constraint(const Grammar& grammar, std::shared_ptr<const TokenTable> tokens, std::vector<int32_t> end_ids,
                       std::optional<int32_t> before)
    : automaton_(grammar),
      tokens_(std::move(tokens)),
      end_ids_(std::move(end_ids)),
      before_(before),
      start_(automaton_.start()) {
  if (start_ == GrammarAutomaton::dead) fail("no output can follow this grammar");
}

const TokenSet& Constraint::allowed(GrammarAutomaton::State state) {
  if (const auto at = sets_.find(state); at != sets_.end()) return at->second;
  if (sets_.size() >= most_sets) sets_.clear();
  TokenSet set(static_cast<size_t>(tokens_->vocab_size() + 63) / 64, 0);
  const auto entries = tokens_->entries();
  // path[k]: the state behind the first k bytes of the current entry.
  std::vector<GrammarAutomaton::State> path = {state};
  for (size_t i = 0; i < entries.size();) {
    const std::string_view bytes = entries[i].bytes;
    path.resize(std::min<size_t>(path.size(), entries[i].common + 1));
    while (path.size() <= bytes.size()) {
      const auto next = automaton_.next(path.back(), static_cast<uint8_t>(bytes[path.size() - 1]));
      if (next == GrammarAutomaton::dead) break;
      path.push_back(next);
    }
    const size_t read = path.size() - 1;
    ++i;
    if (read == bytes.size()) {
      add(set, entries[i - 1].id);
    } else {
      // Byte number `read` cannot come: nor can it in the entries behind that begin alike up to it.
      while (i < entries.size() && entries[i].common > read) ++i;
    }
  }
  if (automaton_.accepts(state))
    for (const int32_t id : end_ids_)
      if (id >= 0 && id < tokens_->vocab_size()) add(set, id);
  return sets_.emplace(state, std::move(set)).first->second;
}

ConstraintMatcher::ConstraintMatcher(std::shared_ptr<Constraint> constraint)
    : constraint_(std::move(constraint)), state_(constraint_->start_), active_(!constraint_->before_) {}

const TokenSet* ConstraintMatcher::allowed() {
  return active_ ? &constraint_->allowed(state_) : nullptr;
}

bool ConstraintMatcher::accept(int32_t token) {
  if (ended_) return false;
  if (!active_) {
    active_ = token == *constraint_->before_;
    return true;
  }
  const auto& ends = constraint_->end_ids_;
  if (std::find(ends.begin(), ends.end(), token) != ends.end()) {
    if (!constraint_->automaton_.accepts(state_)) return false;
    return ended_ = true;
  }
  const std::string_view bytes = constraint_->tokens_->bytes(token);
  if (bytes.empty()) return false;
  auto state = state_;
  for (const char c : bytes) state = constraint_->automaton_.next(state, static_cast<uint8_t>(c));
  if (state == GrammarAutomaton::dead) return false;
  state_ = state;
  return true;
}

bool ConstraintMatcher::complete() const {
  return active_ && constraint_->automaton_.accepts(state_);
}

bool ConstraintMatcher::must_end() const {
  return active_ && constraint_->automaton_.must_end(state_);
}

}  // namespace fathom::text

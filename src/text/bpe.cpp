#include "text/bpe.h"

#include <bit>
#include <limits>
#include <queue>

#include "base/error.h"

namespace fathom::text {
namespace {

// Up to here looking at every pair each time is faster than a queue.
constexpr size_t kShortPiece = 48;

}  // namespace

Bpe::Bpe(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges) : bytes_(bytes) {
  const size_t size = std::bit_ceil(std::max<size_t>(merges.size() * 2, 2));
  table_.resize(size);
  mask_ = size - 1;
  shift_ = 64 - std::countr_zero(size);
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t pair = key(merges[rank].left, merges[rank].right);
    size_t at = slot_of(pair);
    while (table_[at].pair != kEmpty && table_[at].pair != pair) at = (at + 1) & mask_;
    table_[at] = {pair, static_cast<uint32_t>(rank), merges[rank].merged};
  }
}

const Bpe::Slot* Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = key(left, right);
  for (size_t at = slot_of(pair);; at = (at + 1) & mask_) {
    if (table_[at].pair == pair) return &table_[at];
    if (table_[at].pair == kEmpty) return nullptr;
  }
}

void Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() == 1) {
    ids.push_back(bytes_[static_cast<unsigned char>(piece[0])]);
  } else if (piece.size() <= kShortPiece) {
    encode_short(piece, ids);
  } else {
    encode_long(piece, ids);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<int32_t>& ids) const {
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  int32_t id[kShortPiece], merged[kShortPiece];  // merged[i], rank[i]: of the pair (i, i + 1)
  uint32_t rank[kShortPiece];
  size_t n = piece.size();
  const auto look_up = [&](size_t i) {
    const Slot* slot = i + 1 < n ? find(id[i], id[i + 1]) : nullptr;
    rank[i] = slot ? slot->rank : kNone;
    merged[i] = slot ? slot->merged : 0;
  };
  for (size_t i = 0; i < n; ++i) id[i] = bytes_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i < n; ++i) look_up(i);
  for (;;) {
    size_t best = 0;
    for (size_t i = 1; i < n; ++i)
      if (rank[i] < rank[best]) best = i;
    if (n == 0 || rank[best] == kNone) break;
    id[best] = merged[best];
    --n;
    for (size_t i = best + 1; i < n; ++i) id[i] = id[i + 1], rank[i] = rank[i + 1], merged[i] = merged[i + 1];
    look_up(best);
    if (best > 0) look_up(best - 1);
  }
  ids.insert(ids.end(), id, id + n);
}

void Bpe::encode_long(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() > std::numeric_limits<uint32_t>::max() / 2)
    fail("text has one word of {} bytes; cut it below 2 GiB", piece.size());
  // Symbols form a doubly linked list over the bytes; the queue holds candidate pairs as rank * 2^32 + position and may
  // hold outdated ones, which are recognised by looking the pair up again.
  const auto n = static_cast<uint32_t>(piece.size());
  constexpr uint32_t kEnd = std::numeric_limits<uint32_t>::max();
  constexpr int32_t kGone = -1;
  std::vector<int32_t> id(n);
  std::vector<uint32_t> next(n), previous(n);
  for (uint32_t i = 0; i < n; ++i) {
    id[i] = bytes_[static_cast<unsigned char>(piece[i])];
    next[i] = i + 1 < n ? i + 1 : kEnd;
    previous[i] = i > 0 ? i - 1 : kEnd;
  }
  std::vector<uint64_t> candidates;
  for (uint32_t i = 0; i + 1 < n; ++i)
    if (const Slot* slot = find(id[i], id[i + 1])) candidates.push_back(uint64_t{slot->rank} << 32 | i);
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue(std::greater<>{}, std::move(candidates));
  const auto offer = [&](uint32_t i) {
    if (i == kEnd || next[i] == kEnd) return;
    if (const Slot* slot = find(id[i], id[next[i]])) queue.push(uint64_t{slot->rank} << 32 | i);
  };
  while (!queue.empty()) {
    const uint64_t top = queue.top();
    queue.pop();
    const auto at = static_cast<uint32_t>(top);
    if (id[at] == kGone || next[at] == kEnd) continue;
    const uint32_t right = next[at];
    const Slot* slot = find(id[at], id[right]);
    if (!slot || slot->rank != top >> 32) continue;
    id[at] = slot->merged;
    id[right] = kGone;
    next[at] = next[right];
    if (next[at] != kEnd) previous[next[at]] = at;
    offer(at);
    offer(previous[at]);
  }
  for (uint32_t i = 0; i != kEnd; i = next[i]) ids.push_back(id[i]);
}

}  // namespace fathom::text

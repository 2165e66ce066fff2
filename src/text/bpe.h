// Byte-level byte-pair encoding: bytes of one piece -> ids, by a ranked list of merges.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace fathom::text {

/// The merge rules, over ids. Immutable after building; safe to share between threads.
class Bpe {
 public:
  /// `bytes`: the id of each single byte. `merges` in order of rank: left and right become `merged`; of two rules for
  /// the same pair the later one holds.
  struct Merge {
    int32_t left, right, merged;
  };
  Bpe() = default;
  Bpe(const std::array<int32_t, 256>& bytes, const std::vector<Merge>& merges);

  /// Appends the ids of `piece`: of all pairs that stand side by side the one of lowest rank is merged, the leftmost
  /// of equals, until none is left. O(n log n) in the length of the piece. Throws Error past 4 GiB.
  void encode(std::string_view piece, std::vector<int32_t>& ids) const;

 private:
  struct Slot {
    uint64_t pair = kEmpty;
    uint32_t rank = 0;
    int32_t merged = 0;
  };
  static constexpr uint64_t kEmpty = ~uint64_t{0};
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t slot_of(uint64_t pair) const { return (pair * 0x9E3779B97F4A7C15u) >> shift_; }
  const Slot* find(int32_t left, int32_t right) const;
  void encode_short(std::string_view piece, std::vector<int32_t>& ids) const;
  void encode_long(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> bytes_{};
  std::vector<Slot> table_;  // open addressing, at most half full
  size_t mask_ = 0;
  int shift_ = 63;
};

}  // namespace fathom::text

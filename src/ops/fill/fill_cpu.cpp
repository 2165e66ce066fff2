#include <cstring>

#include "base/threads.h"
#include "ops/fill/fill_word.h"

namespace fathom::ops {

void fill_ref(const FillArgs& a, const Launch&) {
  for (int64_t at = 0; at < a.bytes; at += 8) {
    const uint64_t word = fill_words::word_at(a, at / 8);
    std::memcpy(a.to + at, &word, static_cast<size_t>(std::min<int64_t>(8, a.bytes - at)));
  }
}

void fill_cpu(const FillArgs& a, const Launch&) {
  constexpr int64_t kPiece = 1 << 16;
  parallel_for((a.bytes + 7) / 8, kPiece, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint64_t word = fill_words::word_at(a, i);
      std::memcpy(a.to + 8 * i, &word, static_cast<size_t>(std::min<int64_t>(8, a.bytes - 8 * i)));
    }
  });
}

}  // namespace fathom::ops

// The in-box model, loaded once, and helpers that feed token ids through model and cache.
#pragma once

#include <filesystem>
#include <vector>

#include "cache/step_plan.h"
#include "formats/checkpoint.h"
#include "model/transformer.h"

namespace fathom::test {

inline std::filesystem::path source_dir() {
  return FATHOM_SOURCE_DIR;
}

// Sanitizers make the model about twenty times slower: tests of it take fewer cases then.
#ifdef FATHOM_SANITIZED
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

/// Numbers of tokens at and beside the borders of blocks (128) and pages (64, 256).
inline std::vector<size_t> lengths_around_pages() {
  if (kSanitized) return {60, 128, 257};
  return {1, 60, 127, 128, 129, 132, 255, 256, 257, 384, 385, 511, 513};
}

struct Fairy {
  Checkpoint checkpoint{source_dir() / "models/fairy"};
  Weights weights = load_weights(checkpoint, make_host_memory(), LoadOptions{true, {}});
  static Fairy& get() {
    static Fairy instance;
    return instance;
  }
};

/// A model on one op table with a cache of its own.
struct Runner {
  explicit Runner(const char* ops, int64_t tokens = 4096, int sequences = 4, int64_t keep_window = -1)
      : model(Fairy::get().checkpoint.config(), Fairy::get().weights, ops::op_table(ops)),
        cache(model.config(), CacheBudget{tokens, sequences, keep_window, 0}) {}

  /// Feeds tokens to one sequence and returns the logits of the wanted rows.
  std::vector<std::vector<float>> feed(SequenceId id, std::span<const int32_t> tokens,
                                       WantLogits want = WantLogits::last) {
    if (!cache.reserve(id, static_cast<int64_t>(tokens.size()))) throw std::runtime_error("cache full");
    const SegmentRequest request{id, tokens, want};
    const auto& out = model.step(plan.build(model.config(), cache, {&request, 1}), cache.layers());
    cache.commit(id, static_cast<int64_t>(tokens.size()));
    cache.check();
    std::vector<std::vector<float>> rows;
    if (want == WantLogits::none) return rows;
    for (int64_t r = 0; r < out.logits.size[0]; ++r)
      rows.emplace_back(&out.logits(r, 0), &out.logits(r, 0) + out.logits.size[1]);
    return rows;
  }

  Transformer model;
  Cache cache;
  StepPlan plan;
};

inline int32_t argmax(const std::vector<float>& v) {
  return static_cast<int32_t>(std::max_element(v.begin(), v.end()) - v.begin());
}

}  // namespace fathom::test

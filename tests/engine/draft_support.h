// What tests of drafts need: what is in the cache, row by row, and the draft of the in-box model with a hand on it.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string_view>
#include <thread>
#include <vector>

#include "cache/model_support.h"
#include "engine/engine_support.h"
#include "model/dspark.h"

namespace fathom::test {

inline std::vector<int32_t> random_ids(std::mt19937& rng, size_t n) {
  std::vector<int32_t> out(n);
  for (auto& t : out) t = static_cast<int32_t>(rng() % 2000) + 3;
  return out;
}

inline uint64_t hash_of(const void* data, size_t bytes) {
  return std::hash<std::string_view>()({static_cast<const char*>(data), bytes});
}

/// Window row `row` of a layer or stage.
inline uint64_t row_hash(const LayerCache& l, int64_t row) {
  return hash_of(l.window.row_data(l.format, row), ops::kV4DataBytes) * 31 +
         hash_of(l.window.row_scales(row), ops::kKvScales);
}

/// Hashes of everything a sequence has in the cache, by kind of state, layer and token (or entry). What is not known
/// is 0.
class CacheImage {
 public:
  enum Kind { window, entry, index_key, state_k, state_g, index_state_k, index_state_g, kKinds };

  /// Looks at what a sequence of this length needs to go on, and says where it differs from what was there before.
  void look(const ModelConfig& config, const Cache& cache, SequenceId id) {
    const int64_t length = cache.length(id);
    const auto layers = cache.layers();
    rows_.resize(layers.size() * kKinds);
    for (size_t i = 0; i < layers.size(); ++i) {
      const bool draft = i >= static_cast<size_t>(config.num_layers);
      for (int64_t p = std::max<int64_t>(0, length - config.window); p < length; ++p) {
        const int32_t row = cache.window_row(id, p);
        if (!draft || cache.draft_row(row)) see(window, i, p, row_hash(layers[i], row));
      }
      const int ratio = draft ? 0 : config.ratio(static_cast<int>(i));
      if (ratio > 0) look_at_compressed(cache, id, i, ratio);
    }
  }

  uint64_t at(Kind kind, size_t layer, int64_t place) const {
    const auto& r = rows_[layer * kKinds + kind];
    return static_cast<size_t>(place) < r.size() ? r[static_cast<size_t>(place)] : 0;
  }

  /// All that was seen is in `whole`, and the same there.
  void expect_part_of(const CacheImage& whole) const {
    ASSERT_LE(rows_.size(), whole.rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      for (size_t p = 0; p < rows_[i].size(); ++p) {
        if (rows_[i][p] == 0) continue;
        ASSERT_LT(p, whole.rows_[i].size());
        ASSERT_EQ(rows_[i][p], whole.rows_[i][p]) << "layer " << i / kKinds << " kind " << i % kKinds << " place " << p;
      }
    }
  }
  size_t seen() const {
    size_t n = 0;
    for (const auto& r : rows_) n += static_cast<size_t>(std::count_if(r.begin(), r.end(), [](auto h) { return h; }));
    return n;
  }

 private:
  void look_at_compressed(const Cache& cache, SequenceId id, size_t layer, int ratio) {
    const int64_t length = cache.length(id);
    const LayerCache& l = cache.layers()[layer];
    for (int64_t e = 0; e < length / ratio; ++e) {
      const int32_t row = cache.entry_row(id, ratio, e);
      see(entry, layer, e,
          hash_of(l.entries.row_data(l.format, row), ops::kV4DataBytes) * 31 +
              hash_of(l.entries.row_scales(row), ops::kKvScales));
      if (ratio == 4)
        see(index_key, layer, e,
            hash_of(l.index.row_codes(row), ops::kIndexCodeBytes) * 31 +
                hash_of(l.index.row_scales(row), ops::kIndexScaleBytes));
    }
    // Entries of ratio 4 overlap: the projections of the block before the open one are needed too.
    const int64_t from = ratio == 4 ? std::max<int64_t>(0, length / 4 * 4 - 4) : length / 128 * 128;
    const auto ring = [&](Kind kind, const View<float, 3>& v) {
      for (int64_t p = from; v.data && p < length; ++p)
        see(kind, layer, p,
            hash_of(&v(cache.state_slot(id), p % v.size[1], 0), static_cast<size_t>(v.size[2]) * sizeof(float)));
    };
    ring(state_k, l.state_k), ring(state_g, l.state_g);
    ring(index_state_k, l.index_state_k), ring(index_state_g, l.index_state_g);
  }
  void see(Kind kind, size_t layer, int64_t place, uint64_t hash) {
    auto& r = rows_[layer * kKinds + kind];
    if (r.size() <= static_cast<size_t>(place)) r.resize(static_cast<size_t>(place) + 1, 0);
    uint64_t& known = r[static_cast<size_t>(place)];
    if (known) {
      EXPECT_EQ(known, hash) << "changed: layer " << layer << " kind " << kind << " place " << place;
    }
    known = hash;
  }

  std::vector<std::vector<uint64_t>> rows_;  // by layer and kind, then place
};

/// What feeding these tokens leaves where there are no drafts and nobody else: the rows of the draft's stages too.
inline CacheImage image_of(std::span<const int32_t> tokens) {
  const auto& config = Fairy::get().checkpoint.config();
  const auto& weights = Fairy::get().weights;
  const auto stages = static_cast<int>(weights.dspark->stages.size());
  Transformer model(config, weights, ops::op_table("cpu"), true);
  Dspark draft(config, weights, ops::op_table("cpu"));
  Cache cache(config, CacheBudget{static_cast<int64_t>(tokens.size()), 1, -1, stages});
  const SequenceId id = cache.create();
  CacheImage image;
  StepPlan plan;
  constexpr size_t kChunk = 9;  // the rings have them all, and the 7 before
  for (size_t at = 0; at < tokens.size(); at += kChunk) {
    const auto part = tokens.subspan(at, std::min(kChunk, tokens.size() - at));
    if (!cache.reserve(id, static_cast<int64_t>(part.size()))) throw std::runtime_error("cache full");
    const SegmentRequest request{id, part, WantLogits::none};
    const StepBatch& batch = plan.build(config, cache, {&request, 1});
    const auto& out = model.step(batch, cache.layers());
    draft.push(out.features, batch.position, batch.window_slot,
               cache.layers().subspan(static_cast<size_t>(config.num_layers)));
    cache.set_draft_rows(batch.window_slot, true);
    for (size_t i = 0; i < part.size(); ++i) cache.commit(id, 1), image.look(config, cache, id);
  }
  return image;
}

/// The draft of the in-box model; tests may replace what it says, make it slow, and see what it was asked.
class HandledDraft : public DraftSource {
 public:
  struct Asked {
    int32_t token, position;
    std::vector<std::vector<uint64_t>> rows;  // hashes of what it may see, by stage
    Draft draft;                              // as the model made it
  };

  HandledDraft() : own_(dspark_source(Fairy::get().checkpoint.config(), Fairy::get().weights, ops::op_table("cpu"))) {}

  int64_t most = 5;                                       // depth
  std::function<void(const DraftStart&, Draft&)> change;  // what is proposed
  std::chrono::milliseconds delay{0};                     // of each proposal
  std::vector<Asked>* record = nullptr;                   // may be null
  int64_t pushed = 0;                                     // tokens

  int64_t depth() const override { return most; }
  int rings() const override { return own_->rings(); }
  void push(const StepBatch& batch, const Activations& out, std::span<const LayerCache> rings) override {
    pushed += batch.ids.size[0];
    own_->push(batch, out, rings);
  }
  std::vector<Draft> propose(std::span<const DraftStart> starts, std::span<const LayerCache> rings,
                             const Choose& choose) override {
    std::this_thread::sleep_for(delay);
    auto drafts = own_->propose(starts, rings, choose);
    for (size_t i = 0; i < starts.size(); ++i) {
      if (record) {
        record->push_back({starts[i].token, starts[i].position, {}, drafts[i]});
        for (const LayerCache& stage : rings) {
          auto& rows = record->back().rows.emplace_back();
          for (const int32_t row : starts[i].window_rows) rows.push_back(row_hash(stage, row));
        }
      }
      if (change) change(starts[i], drafts[i]);
    }
    return drafts;
  }
  void set_recorder(Recorder* recorder) override { own_->set_recorder(recorder); }

 private:
  std::unique_ptr<DraftSource> own_;
};

}  // namespace fathom::test

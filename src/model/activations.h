// Scratch memory of a step: every intermediate result of the forward pass, allocated once for a largest step and reused
// by all layers.
#pragma once

#include <memory>

#include "base/view.h"
#include "formats/config.h"
#include "model/weights.h"

namespace fathom {

/// An act_quant result: codes [T, K] and scales [T, K / 128].
struct Quantized {
  View<e4m3, 2> codes;
  View<e8m0, 2> scale;
};

/// Views for exactly `tokens` tokens and `rows` logit rows. Shapes: T tokens, d hidden, H heads (and groups): a rank's
/// own.
struct Activations {
  View<bf16, 3> streams;  // [T, 4, d]
  View<float, 2> post;    // [T, 4] of the half in progress
  View<float, 3> comb;    // [T, 4, 4]
  View<bf16, 2> x;        // [T, d] input of the half
  Quantized xq;
  View<bf16, 2> y;       // [T, d] output of the half
  View<bf16, 2> latent;  // [T, q_lora]
  Quantized latent_q;
  View<bf16, 3> q, o;                // [T, H, 512]
  View<bf16, 2> kv;                  // [T, 512]
  View<float, 2> k, g;               // [T, 1024] compressor projections (ratio 128 uses [T, 512])
  View<float, 2> index_k, index_g;   // [T, 256]
  View<bf16, 3> index_q;             // [T, index heads, 128]
  View<e2m1x2, 3> index_codes;       // [T, index heads, 64]
  View<e8m0, 3> index_scale;         // [T, index heads, 4]
  View<bf16, 2> index_weight;        // [T, index heads]
  View<int32_t, 2> selected;         // [T, topk]
  View<int32_t, 1> selected_length;  // [T]
  View<bf16, 2> z;                   // [T, groups * o_lora]
  Quantized zq;
  View<float, 2> scores;         // [T, E]
  View<int32_t, 2> expert;       // [T, k]
  View<float, 2> weight;         // [T, k]
  View<float, 2> part;           // [T, d] sum over the experts of a rank; empty on one rank
  View<bf16, 2> hidden, normed;  // [R, d]
  View<float, 2> logits;         // [R, V]
  View<float, 2> logits_part;    // [R, V / ranks] of this rank; empty on one rank
  View<int32_t, 1> token;        // [R] as StepBatch::sampling says; only on a device with memory of its own
  View<bf16, 2> features;        // [T, targets * d] draft features; empty without a draft
};

/// Owns the memory and grows it when a larger step comes. Allocation happens only then.
class ActivationMemory {
 public:
  ActivationMemory(const ModelConfig& config, bool draft_features, ops::ComputeDevice& device, Shard shard = {})
      : config_(config), features_(draft_features), device_(device), shard_(shard) {}
  Activations get(int64_t tokens, int64_t rows);
  size_t bytes() const { return memory_.size(); }
  /// Changes whenever the memory has moved.
  int64_t generation() const { return generation_; }

 private:
  const ModelConfig& config_;
  bool features_;
  ops::ComputeDevice& device_;
  const Shard shard_;
  ops::DeviceBuffer memory_;
  int64_t generation_ = 0;
};

}  // namespace fathom

// A step's batch in the memory of the device that runs it, and batches of a fixed size for recorded steps.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "model/step.h"
#include "model/upload_pack.h"
#include "ops/compute_device.h"

namespace fathom {

/// Sizes of a decode batch whose step can be recorded: everything a launch depends on but the data.
struct BatchShape {
  int64_t tokens = 0, pages = 0, entries128 = 0;  // T = S = R; width of `pages`; width of `index128`
  friend bool operator==(const BatchShape&, const BatchShape&) = default;
};

/// The shape that a batch of single tokens with logits for each fits in: tokens rounded up to one of few sizes, widths
/// to powers of two. Nothing for other batches.
std::optional<BatchShape> decode_shape(const StepBatch& batch);

/// Numbers of tokens that decode batches are filled up to, rising; larger ones are not.
std::span<const int64_t> decode_sizes();

/// The shapes of all decode batches of up to `sequences` sequences and contexts of up to `context` tokens.
std::vector<BatchShape> decode_shapes(int64_t sequences, int64_t context);

/// Shapes of up to `tokens` tokens for which some ops want more scratch memory than for more tokens or a longer
/// context: where the blocks that share a token's work just fill the device, and where what they write for an entry is
/// most.
std::vector<BatchShape> fullest_shapes(int64_t tokens, int64_t context, int processors);

/// A batch of `tokens` single tokens that see nothing and write nothing, for a dry run.
struct IdleBatch {
  IdleBatch(const ModelConfig& config, int64_t tokens, int64_t rows, int64_t context);
  StepBatch batch;

 private:
  std::vector<int32_t> zeros_, rows_, nothing_;
  std::vector<ops::Segment> segments_;
  std::vector<ops::CompressEntry> entries_;
};

class BatchMemory {
 public:
  explicit BatchMemory(ops::ComputeDevice& device) : device_(device), pack_(device, UploadPack::always) {}

  /// The batch on the device: itself where the host's memory is the device's.
  const StepBatch& place(const StepBatch& batch);
  /// The batch filled up to `shape`, always at the same addresses while generation() stays. Tokens that fill up repeat
  /// the first one and write nothing.
  const StepBatch& place(const StepBatch& batch, const BatchShape& shape);
  int64_t generation() const { return pack_.generation(); }

 private:
  template <typename Visit>
  void each_array(StepBatch& b, const Visit& visit);
  void send(StepBatch& b);

  ops::ComputeDevice& device_;
  StepBatch placed_;
  UploadPack pack_;

  // Arrays of a batch that is filled up.
  std::vector<int32_t> ids_, position_, window_slot_, window_index_, window_length_, index128_, length128_, pages_,
      sequence_, visible4_, logit_rows_;
  std::vector<ops::Segment> segments_;
  std::vector<ops::CompressEntry> entries4_, entries128_;
  std::vector<ops::RowSampling> sampling_;
};

}  // namespace fathom

// The MTP block of preview checkpoints: drafts the token behind the next one from the backbone's last streams.
// Spec 2.8.
//
// For a position p whose next token is known, streams x[k] = e_proj(norm(embed(token p + 1))) + h_proj(norm(X_p[k]))
// run through one block of ratio 0 with a window of its own and through the shared head: logits for p + 2. push()
// writes the window rows of positions (those need no more than x and the block's KV projection); propose() runs the
// whole block for the last position of each sequence. Positions of the block are those of X.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/block_ops.h"
#include "model/upload_pack.h"

namespace fathom {

class Mtp {
 public:
  /// weights.mtp must be there; all outlive the object.
  Mtp(const ModelConfig& config, const Weights& weights, const ops::OpTable& ops);

  /// Tokens whose next one is known. T tokens; arrays but `streams` are the host's.
  struct Batch {
    View<const bf16, 3> streams;      // [T, 4, d] the backbone's last ones, in the device's memory
    View<const int32_t, 1> next;      // [T] the token behind each; -1: none, such rows are left out
    View<const int32_t, 1> position;  // [T]
    View<const int32_t, 1> slot;      // [T] window row of each
    View<const int32_t, 1> ends;      // [R] rows that propose() may start from, rising, with a next token
  };
  /// Writes the window rows of the block and keeps the block's input at `ends` until the next push. Does not wait for
  /// the device.
  void push(const Batch& batch, const LayerCache& ring);

  struct Start {
    int64_t end = 0;                       // number of the row among the last push's ends
    int32_t token = 0, position = 0;       // the row's next token; its position
    std::span<const int32_t> window_rows;  // rows that it may see, oldest first, its own last
    ops::RowSampling draw;                 // where the device draws
  };
  /// Chooses a token from the logits [V] of a start; not called where the device draws.
  using Choose = std::function<int32_t(size_t start, std::span<const float> logits)>;
  /// The drafted token of each start; -1: none could be drawn. A start's is the same with any others.
  std::vector<int32_t> propose(std::span<const Start> starts, const LayerCache& ring, const Choose& choose);

  /// Makes the scratch memory for proposals of up to `sequences` sequences. Does nothing on the host.
  void prepare(int64_t sequences, const LayerCache& ring);

  void set_recorder(Recorder* recorder) { block_.set_recorder(recorder, true); }

 private:
  void run(std::span<const Start> starts, const LayerCache& ring);
  void push_part(const Batch& batch, int64_t from, int64_t count, const LayerCache& ring);
  void join(View<const int32_t, 1> rows, View<bf16, 3> streams);
  View<bf16, 3> kept(int64_t from, int64_t count) const;

  const MtpWeights& weights_;
  View<const bf16, 2> embed_, head_;
  ActivationMemory memory_;
  BlockOps block_;
  UploadPack pushed_, started_;
  ops::DeviceBuffer inputs_;   // of a part of a push: embeddings and streams, as they are, quantised and projected
  ops::DeviceBuffer kept_;     // x of the ends [R, 4, d]
  ops::DeviceBuffer fetched_;  // tokens in host memory
  View<bf16, 2> token_;        // [n, d] of inputs_: projected embeddings
  View<bf16, 3> stream_;       // [n, 4, d] projected streams
  std::vector<int32_t> ids_, slots_, identity_, part_ends_, positions_, nowhere_, window_index_, window_length_;
  std::vector<ops::RowSampling> draws_;
};

}  // namespace fathom

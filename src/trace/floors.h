// How fast a call could be at best: its bytes over the memory bandwidth, its operations over the tensor cores.
//
// The model built in is DeepSeek-V4-Flash: one decode call of its sparse attention reads 640 rows (128 of the window,
// 512 selected) of 584 bytes for each sequence, shared by 64 heads of 512 channels; a layer's experts are 6 of 256 for
// each token, 13,369,344 bytes each.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trace/model.h"

namespace fathom::trace {

/// Data-sheet figures: memory bandwidth in GB/s, dense BF16 tensor-core rate in TFLOP/s.
struct GpuFigures {
  std::string_view name;
  double bandwidth, tensor_rate;
};

/// The GPU whose name occurs in `text` ("NVIDIA H200", "rtx 5090"; letter case and blanks do not matter).
std::optional<GpuFigures> find_gpu(std::string_view text);
/// Names that find_gpu knows, for messages.
std::string known_gpus();

struct Floor {
  double bytes = 0, flops = 0;
  Ns time = 0;           // the larger of both times, at least 1 ns
  bool by_bytes = true;  // which one it is
};

/// One decode call of V4-Flash's sparse attention for `batch` sequences, all heads on this GPU divided over `ranks`.
Floor attention_floor(const GpuFigures& gpu, int64_t batch, int ranks);
/// The experts of one layer for `batch` tokens: weights of the distinct experts that uniform routing meets, over
/// `ranks`.
Floor experts_floor(const GpuFigures& gpu, int64_t batch, int ranks);

}  // namespace fathom::trace

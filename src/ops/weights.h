// Weight matrices as ops see them: row-major [N, K] codes in checkpoint precision plus scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/view.h"

namespace fathom::ops {

/// e4m3 codes [N, K] with one e8m0 scale for each 128x128 block: value = code * 2^(scale-127).
struct Fp8Weight {
  View<const e4m3, 2> codes;  // [N, K]
  View<const e8m0, 2> scale;  // [ceil(N/128), ceil(K/128)]
};

enum class ExpertFormat : int32_t {
  mxfp4,  // two e2m1 codes a byte (low nibble = even column), e8m0 scale for each 32 columns of a row
  nvfp4,  // the same codes, e4m3 scale for each 16 columns, times one fp32 for each expert
  fp8,    // e4m3 codes, e8m0 scale for each 128x128 block
};

/// Where the bits of fp4 codes lie: as in a checkpoint, or as GPUs keep them (fp4_order.h), in the order of halves
/// (bf16) or of bytes (e5m2).
enum class CodeOrder : int32_t { checkpoint, halves, bytes };

/// The same matrix [N, K] of every routed expert, stacked.
struct ExpertWeight {
  ExpertFormat format = ExpertFormat::mxfp4;
  const std::byte* codes = nullptr;            // expert e at codes + e * codes_stride
  const std::byte* scale = nullptr;            // expert e at scale + e * scale_stride, row-major
  const float* global_scale = nullptr;         // [E], nvfp4 only
  int64_t codes_stride = 0, scale_stride = 0;  // bytes
  int64_t rows = 0, columns = 0;               // N, K
  CodeOrder order = CodeOrder::checkpoint;     // of fp4 codes

  FATHOM_HOST_DEVICE int64_t code_row_bytes() const { return format == ExpertFormat::fp8 ? columns : columns / 2; }
  FATHOM_HOST_DEVICE int64_t scale_columns() const {
    if (format == ExpertFormat::fp8) return (columns + 127) / 128;
    return columns / (format == ExpertFormat::mxfp4 ? 32 : 16);
  }
};

}  // namespace fathom::ops

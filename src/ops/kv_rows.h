// Rows of the KV cache and where they lie: formats, pools of pages, addresses.
//
// V4 row ("fp8_ds_mla", 584 bytes): 448 e4m3 codes, then 64 bf16 RoPE channels (together 576 bytes of data), and 8
// bytes of scales kept apart: 7 e8m0 codes, one for each 64 channels, and one pad byte. A page of n rows is n * 576
// data bytes followed by n * 8 scale bytes, padded up to a multiple of 576 (spec 3.3). Row addresses are 32-byte
// aligned. bf16 row (1024 bytes): 512 bf16 channels; a page of n rows is n * 1024 bytes.
//
// A row is named by one global number: slot = page * page_rows + row_in_page. -1 names no row.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/small_floats.h"

namespace fathom::ops {

inline constexpr int kHeadDim = 512;  // channels of a latent KV row, K and V at once
inline constexpr int kRopeDim = 64;   // the last 64 of them carry RoPE
inline constexpr int kNopeDim = kHeadDim - kRopeDim;
inline constexpr int kKvGroup = 64;  // channels under one KV scale
inline constexpr int kKvScales = kNopeDim / kKvGroup;
inline constexpr int kV4DataBytes = kNopeDim + 2 * kRopeDim;  // 576
inline constexpr int kV4ScaleBytes = 8;

enum class RowFormat : int32_t { v4, bf16 };

/// Bytes of a page of `rows` rows.
FATHOM_HOST_DEVICE constexpr int64_t page_bytes(RowFormat format, int64_t rows) {
  if (format == RowFormat::bf16) return rows * kHeadDim * 2;
  const int64_t bytes = rows * (kV4DataBytes + kV4ScaleBytes);
  return (bytes + kV4DataBytes - 1) / kV4DataBytes * kV4DataBytes;
}

/// Pages of KV rows of one layer. `stride` may exceed page_bytes() when pages of several layers are interleaved.
struct KvPool {
  std::byte* data = nullptr;
  int64_t stride = 0;     // bytes from one page to the next
  int32_t page_rows = 1;  // rows in a page: 256, 64, 2, any

  FATHOM_HOST_DEVICE std::byte* row_data(RowFormat format, int64_t slot) const {
    const int64_t width = format == RowFormat::bf16 ? kHeadDim * 2 : kV4DataBytes;
    return data + slot / page_rows * stride + slot % page_rows * width;
  }
  /// V4 only.
  FATHOM_HOST_DEVICE std::byte* row_scales(int64_t slot) const {
    return data + slot / page_rows * stride + int64_t{page_rows} * kV4DataBytes + slot % page_rows * kV4ScaleBytes;
  }
};

}  // namespace fathom::ops

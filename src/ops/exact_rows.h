// Reference encoders and decoders of cache rows (kv_rows.h, index_rows.h).
#pragma once

#include <cstring>
#include <span>
#include <vector>

#include "ops/exact.h"
#include "ops/index_rows.h"
#include "ops/kv_rows.h"

namespace fathom::ops::exact {

/// Writes 512 bf16-grid values as a KV row; the first 448 are rounded to e4m3 per 64 channels in both formats.
inline void write_kv_row(const KvPool& pool, RowFormat format, int64_t slot, std::span<const float> kv) {
  e4m3 codes[kNopeDim];
  uint8_t scales[kV4ScaleBytes] = {};
  bf16 rounded[kHeadDim];
  for (int g = 0; g < kKvScales; ++g) {
    const e8m0 scale = quantize_group(kv.subspan(static_cast<size_t>(g * kKvGroup), kKvGroup), codes + g * kKvGroup);
    scales[g] = scale.bits;
    for (int i = g * kKvGroup; i < (g + 1) * kKvGroup; ++i) rounded[i] = to_bf16(to_float(codes[i]) * to_float(scale));
  }
  for (int i = kNopeDim; i < kHeadDim; ++i) rounded[i] = to_bf16(kv[static_cast<size_t>(i)]);
  std::byte* data = pool.row_data(format, slot);
  if (format == RowFormat::bf16) {
    std::memcpy(data, rounded, sizeof rounded);
    return;
  }
  std::memcpy(data, codes, kNopeDim);
  std::memcpy(data + kNopeDim, rounded + kNopeDim, 2 * kRopeDim);
  std::memcpy(pool.row_scales(slot), scales, kV4ScaleBytes);
}

/// The 512 values of a KV row.
inline void read_kv_row(const KvPool& pool, RowFormat format, int64_t slot, float* out) {
  const std::byte* data = pool.row_data(format, slot);
  const auto bf16_at = [&](int64_t offset) {
    bf16 v;
    std::memcpy(&v, data + offset, 2);
    return to_float(v);
  };
  if (format == RowFormat::bf16) {
    for (int i = 0; i < kHeadDim; ++i) out[i] = bf16_at(2 * i);
    return;
  }
  const std::byte* scales = pool.row_scales(slot);
  for (int i = 0; i < kNopeDim; ++i)
    out[i] = to_float(e4m3{static_cast<uint8_t>(data[i])}) * to_float(e8m0{static_cast<uint8_t>(scales[i / kKvGroup])});
  for (int i = 0; i < kRopeDim; ++i) out[kNopeDim + i] = bf16_at(kNopeDim + 2 * i);
}

/// Quantises 128 bf16-grid values into an index row.
inline void write_index_row(const IndexPool& pool, int64_t slot, std::span<const float> key) {
  uint8_t codes[kIndexCodeBytes], scales[kIndexScaleBytes];
  for (int g = 0; g < kIndexScaleBytes; ++g)
    scales[g] =
        fp4_group(key.subspan(static_cast<size_t>(g * kIndexGroup), kIndexGroup), codes + g * kIndexGroup / 2).bits;
  std::memcpy(pool.row_codes(slot), codes, sizeof codes);
  std::memcpy(pool.row_scales(slot), scales, sizeof scales);
}

/// The 128 values behind packed e2m1 codes and their scales.
inline void read_fp4(const uint8_t* codes, const uint8_t* scales, float* out) {
  for (int i = 0; i < kIndexDim; ++i)
    out[i] = e2m1_to_float(codes[i / 2] >> (i % 2 * 4) & 15) * to_float(e8m0{scales[i / kIndexGroup]});
}

}  // namespace fathom::ops::exact

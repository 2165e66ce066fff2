// Weight matrices as the CPU products read them: rows of codes, wherever they lie, and their scales.
#pragma once

#include <cstdint>

#include "ops/weights.h"

namespace fathom::ops::cpu {

enum class Codec : int32_t {
  f32,
  bf16,
  fp8,    // e8m0 scale for each 128 columns of a row
  mxfp4,  // e8m0 scale for each 32
  nvfp4,  // e4m3 scale for each 16 columns times `global`
};

/// Rows [0, rows) of N x K codes. Row n starts at codes + n * row_bytes, its scales at
/// scale + ((n + scale_offset) >> scale_shift) * scale_bytes.
struct Matrix {
  Codec codec = Codec::bf16;
  const uint8_t* codes = nullptr;
  int64_t row_bytes = 0;
  const uint8_t* scale = nullptr;
  int64_t scale_bytes = 0;
  int64_t scale_shift = 0, scale_offset = 0;
  float global = 1;
  int64_t rows = 0, columns = 0;
};

inline Matrix matrix(View<const bf16, 2> w) {
  Matrix m;
  m.codec = Codec::bf16;
  m.codes = reinterpret_cast<const uint8_t*>(w.data);
  m.row_bytes = 2 * w.stride[0];
  m.rows = w.size[0], m.columns = w.size[1];
  return m;
}

inline Matrix matrix(View<const float, 2> w) {
  Matrix m;
  m.codec = Codec::f32;
  m.codes = reinterpret_cast<const uint8_t*>(w.data);
  m.row_bytes = 4 * w.stride[0];
  m.rows = w.size[0], m.columns = w.size[1];
  return m;
}

/// `rows` rows from `first`, which may lie inside a scale block.
inline Matrix matrix(const Fp8Weight& w, int64_t first = 0, int64_t rows = -1) {
  Matrix m;
  m.codec = Codec::fp8;
  m.codes = reinterpret_cast<const uint8_t*>(w.codes.data + first * w.codes.stride[0]);
  m.row_bytes = w.codes.stride[0];
  m.scale = reinterpret_cast<const uint8_t*>(w.scale.data);
  m.scale_bytes = w.scale.stride[0];
  m.scale_shift = 7, m.scale_offset = first;
  m.rows = rows < 0 ? w.codes.size[0] - first : rows, m.columns = w.codes.size[1];
  return m;
}

inline Matrix matrix(const ExpertWeight& w, int64_t expert) {
  Matrix m;
  m.codec = w.format == ExpertFormat::fp8 ? Codec::fp8 : w.format == ExpertFormat::mxfp4 ? Codec::mxfp4 : Codec::nvfp4;
  m.codes = reinterpret_cast<const uint8_t*>(w.codes + expert * w.codes_stride);
  m.row_bytes = w.code_row_bytes();
  m.scale = reinterpret_cast<const uint8_t*>(w.scale + expert * w.scale_stride);
  m.scale_bytes = w.scale_columns();
  m.scale_shift = w.format == ExpertFormat::fp8 ? 7 : 0;
  m.global = w.format == ExpertFormat::nvfp4 ? w.global_scale[expert] : 1.0f;
  m.rows = w.rows, m.columns = w.columns;
  return m;
}

}  // namespace fathom::ops::cpu

// Rows in global memory as the copy unit of sm_90 knows them: boxes of 128 bytes x 16 rows (or as many as the
// description says) of one plane come to shared memory by one instruction (copy_box in gpu.cuh).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/small_floats.h"

namespace fathom::ops::device {

inline constexpr int kBoxBytes = 128, kBoxRows = 16;

/// Planes of rows: [planes][rows][row_bytes]. Address and distances are multiples of 16 bytes.
/// `row_stride`: from one row to the next; 0 where rows follow each other. `box_rows`: at most 256, a multiple of 8.
struct Planes {
  const std::byte* base;
  int64_t row_bytes, plane_stride;  // bytes of a row; from one plane to the next
  int32_t rows, planes;
  int64_t row_stride = 0;
  int32_t box_rows = kBoxRows;

  FATHOM_HOST_DEVICE int64_t row_distance() const { return row_stride ? row_stride : row_bytes; }
};

/// The description that the hardware reads (CUtensorMap), passed to kernels by value.
struct alignas(64) TensorMap {
  uint64_t word[16];
};

/// Throws Error where the driver refuses. What lies outside rows reads as 0.
TensorMap describe_planes(const Planes& p);

/// Where 16 bytes of a row of a box lie in shared memory, 1024-byte aligned: rows meet in no bank.
constexpr int box_place(int row, int piece) {
  return row * kBoxBytes + (piece ^ (row & 7)) * 16;
}

}  // namespace fathom::ops::device

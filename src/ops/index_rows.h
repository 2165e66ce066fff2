// Rows of the index cache: 128 channels on the e2m1 grid with one e8m0 scale for each 32.
//
// 68 bytes a row: 64 bytes of codes (low nibble = even channel) and 4 scale codes kept apart. A page of n rows is n *
// 64 code bytes followed by n * 4 scale bytes. Pages and rows are numbered like those of the ratio-4 KV pool, so one
// slot number names both.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/small_floats.h"

namespace fathom::ops {

inline constexpr int kIndexDim = 128;
inline constexpr int kIndexGroup = 32;
inline constexpr int kIndexCodeBytes = kIndexDim / 2;
inline constexpr int kIndexScaleBytes = kIndexDim / kIndexGroup;

FATHOM_HOST_DEVICE constexpr int64_t index_page_bytes(int64_t rows) {
  return rows * (kIndexCodeBytes + kIndexScaleBytes);
}

struct IndexPool {
  std::byte* data = nullptr;
  int64_t stride = 0;  // bytes from one page to the next
  int32_t page_rows = 1;

  FATHOM_HOST_DEVICE std::byte* row_codes(int64_t slot) const {
    return data + slot / page_rows * stride + slot % page_rows * kIndexCodeBytes;
  }
  FATHOM_HOST_DEVICE std::byte* row_scales(int64_t slot) const {
    return data + slot / page_rows * stride + int64_t{page_rows} * kIndexCodeBytes +
           slot % page_rows * kIndexScaleBytes;
  }
};

}  // namespace fathom::ops

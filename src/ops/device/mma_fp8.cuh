// Products of e4m3 codes on tensor cores (sm_89 and later), beside the instructions of gpu.cuh.
#pragma once

#include "base/small_floats.h"
#include "ops/device/gpu.cuh"

namespace fathom::ops::device {

/// d[16 x 8] += a[16 x 32] * b[32 x 8], e4m3 in, fp32 out. With g = lane / 4, t = lane % 4, a thread holds
///   a: rows g, g+8, g, g+8 of columns 4t..4t+3 (a[0], a[1]) and 4t+16..4t+19 (a[2], a[3])
///   b: column g of rows 4t..4t+3 (b0) and 4t+16..4t+19 (b1);   d as in mma_bf16
/// The hardware aligns the 32 products and d to the largest of them and drops bits below about 2^-13 of it.
FATHOM_DEVICE void mma_e4m3(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
#ifdef FATHOM_GPU_EMULATOR
  const uint64_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto& all = emulator::exchange(mine, 6);
  const auto code = [](uint64_t word, int k) { return to_float(e4m3{static_cast<uint8_t>(word >> 8 * (k % 4))}); };
  const int g = thread_index() % 32 / 4, t = thread_index() % 4;
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 32; ++k) {
      const int lane = k % 16 / 4, half = k / 16;
      d[i] += code(all[4 * g + lane][(i >> 1) + 2 * half], k) * code(all[4 * (2 * t + (i & 1)) + lane][4 + half], k);
    }
#elif __CUDA_ARCH__ >= 890
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

}  // namespace fathom::ops::device

// Products of e4m3 codes on tensor cores (sm_89 and later), beside the instructions of gpu.cuh.
#pragma once

#ifdef FATHOM_GPU_EMULATOR
#include <map>
#endif

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

/// By a warpgroup: d[64 x 8 kTiles] (+)= a[64 x 16] b. b is stored [n][k] in 128-byte swizzle (describe_matrix), and so
/// is a [64][k], or warp w holds rows 16 w .. of it in registers as in mma_f16. Register 4 j + i of column tile j of d
/// as in mma_bf16. Asynchronous: between multiply_begin and multiply_end. For e4m3, a is [64 x 32] and rows of 128
/// bytes hold 128 codes; the hardware drops bits as in mma_e4m3.
#ifdef FATHOM_GPU_EMULATOR
inline uint32_t swizzled_pair(MatrixDescriptor m, int row, int k) {
  const auto address = reinterpret_cast<uintptr_t>(m.start + row / 8 * m.stride + row % 8 * 128) + 2 * k;
  return *reinterpret_cast<const uint32_t*>(address ^ ((address >> 7 & 7) << 4));
}
template <int kTiles>
void multiply_rows_f16(float (&d)[4 * kTiles], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
  const int g = thread_index() % 32 / 4, t = thread_index() % 4;
  for (int j = 0; j < kTiles; ++j) {
    float tile[4];
    for (int i = 0; i < 4; ++i) tile[i] = add ? d[4 * j + i] : 0;
    mma_f16(tile, a, swizzled_pair(b, 8 * j + g, 2 * t), swizzled_pair(b, 8 * j + g, 2 * t + 8));
    for (int i = 0; i < 4; ++i) d[4 * j + i] = tile[i];
  }
}
template <int kTiles>
void multiply_rows_bf16(float (&d)[4 * kTiles], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
  const int g = thread_index() % 32 / 4, t = thread_index() % 4;
  for (int j = 0; j < kTiles; ++j) {
    float tile[4];
    for (int i = 0; i < 4; ++i) tile[i] = add ? d[4 * j + i] : 0;
    mma_bf16(tile, a, swizzled_pair(b, 8 * j + g, 2 * t), swizzled_pair(b, 8 * j + g, 2 * t + 8));
    for (int i = 0; i < 4; ++i) d[4 * j + i] = tile[i];
  }
}
template <int kTiles>
void multiply_64_rows_bf16(float (&d)[4 * kTiles], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  const int thread = thread_index() % kWarpgroup, row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4;
  const uint32_t mine[4] = {swizzled_pair(a, row, 2 * t), swizzled_pair(a, row + 8, 2 * t),
                            swizzled_pair(a, row, 2 * t + 8), swizzled_pair(a, row + 8, 2 * t + 8)};
  for (int j = 0; j < kTiles; ++j) {
    float tile[4];
    for (int i = 0; i < 4; ++i) tile[i] = add ? d[4 * j + i] : 0;
    const int n = 8 * j + thread % 32 / 4;
    mma_bf16(tile, mine, swizzled_pair(b, n, 2 * t), swizzled_pair(b, n, 2 * t + 8));
    for (int i = 0; i < 4; ++i) d[4 * j + i] = tile[i];
  }
}
/// The matrix that begins `bytes` behind another (a multiple of 16).
inline MatrixDescriptor behind(MatrixDescriptor m, int bytes) {
  return {m.start + bytes, m.leading, m.stride, m.swizzled};
}
using MatrixStart = const std::byte*;
inline MatrixStart matrix_start(const void* p) {
  return static_cast<const std::byte*>(p);
}
template <int kLeading, int kStride>
MatrixDescriptor describe_matrix_behind(MatrixStart start, int bytes) {
  return describe_matrix(start + bytes, kLeading, kStride);
}
/// Byte k of a row of at most 128.
inline uint8_t matrix_byte(MatrixDescriptor m, int row, int k) {
  if (m.swizzled) return static_cast<uint8_t>(swizzled_pair(m, row, k / 4 * 2) >> 8 * (k % 4));
  return static_cast<uint8_t>(m.start[row / 8 * m.stride + k / 16 * m.leading + row % 8 * 16 + k % 16]);
}
template <int kTiles>
void multiply_64_rows_e4m3(float (&d)[4 * kTiles], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  const int thread = thread_index() % kWarpgroup, row = thread / 32 * 16 + thread % 32 / 4, t = thread % 4;
  const auto code = [](MatrixDescriptor m, int r, int k) { return to_float(e4m3{matrix_byte(m, r, k)}); };
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int r = row + i % 4 / 2 * 8, n = i / 4 * 8 + 2 * t + i % 2;
    float sum = add ? d[i] : 0;
    for (int k = 0; k < 32; ++k) sum += code(a, r, k) * code(b, n, k);
    d[i] = sum;
  }
}
/// d[64 x 8 kTiles] = a[64 x 32] b: a e5m2 in registers as in mma_e4m3, b e4m3 as described. What d held does not
/// count.
template <int kTiles>
void multiply_rows_e5m2(float (&d)[4 * kTiles], const uint32_t (&a)[4], MatrixDescriptor b) {
  const uint64_t mine[4] = {a[0], a[1], a[2], a[3]};
  const auto& all = emulator::exchange(mine, 4);
  const auto value = [](uint64_t word, int k) {
    const int code = static_cast<int>(word >> 8 * (k % 4) & 0xFF), power = code >> 2 & 31;
    const auto rest = static_cast<float>(code & 3);
    const float size = power ? std::ldexp(4.0f + rest, power - 17) : std::ldexp(rest, -16);
    return code & 0x80 ? -size : size;
  };
  const int g = thread_index() % 32 / 4, t = thread_index() % 4;
  for (int i = 0; i < 4 * kTiles; ++i) {
    const int column = i / 4 * 8 + 2 * t + i % 2;
    d[i] = 0;
    for (int k = 0; k < 32; ++k)
      d[i] += value(all[4 * g + k % 16 / 4][i % 4 / 2 + k / 16 * 2], k) * to_float(e4m3{matrix_byte(b, column, k)});
  }
}
inline void multiply_commit() {}
template <int kPending>
void multiply_wait() {}
/// Waits until no block of the cluster reads memory of others any more, given that nobody reads after it.
inline void leave_cluster() {
  sync_cluster();
}
/// A barrier of the 4 warps of warpgroup `group`.
inline void sync_warpgroup(int group) {
  static std::map<std::pair<const emulator::Block*, int>, emulator::Barrier> barriers;
  emulator::arrive_and_wait(barriers[{emulator::self().block, group}], kWarpgroup);
}
/// A barrier of kCount threads (whole warps), one of two that a block may use so.
template <int kCount>
void sync_half(int half) {
  static std::map<std::pair<const emulator::Block*, int>, emulator::Barrier> barriers;
  emulator::arrive_and_wait(barriers[{emulator::self().block, half}], kCount);
}
#else
FATHOM_DEVICE void leave_cluster() {
#if __CUDA_ARCH__ >= 900
  __syncwarp();
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
/// describe_matrix() without swizzle: blocks of 8 rows x 16 bytes lie as 128 bytes; `leading` is the distance between
/// blocks of 16 bytes of a row, `stride` between those of 8 rows.
FATHOM_DEVICE MatrixDescriptor describe_plain_matrix(const void* p, int leading, int stride) {
  return {static_cast<uint64_t>((shared_address(p) & 0x3FFFF) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
          static_cast<uint64_t>(stride >> 4) << 32};
}
FATHOM_DEVICE MatrixDescriptor behind(MatrixDescriptor m, int bytes) {
  return {m.bits + static_cast<uint64_t>(bytes >> 4)};
}
/// describe_matrix() of what begins `bytes` behind a start, with nothing but 32-bit arithmetic for each.
using MatrixStart = uint32_t;
FATHOM_DEVICE MatrixStart matrix_start(const void* p) {
  return (shared_address(p) & 0x3FFFF) >> 4;
}
template <int kLeading, int kStride>
FATHOM_DEVICE MatrixDescriptor describe_matrix_behind(MatrixStart start, int bytes) {
  MatrixDescriptor d;
  asm volatile("mov.b64 %0, {%1, %2};"
               : "=l"(d.bits)
               : "r"(start + static_cast<uint32_t>(bytes >> 4 | kLeading >> 4 << 16)), "n"(kStride >> 4 | 1 << 30));
  return d;
}
/// multiply_end in two steps: closes a group of products; waits until at most kPending groups are under way.
FATHOM_DEVICE void multiply_commit() {
#ifdef FATHOM_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
template <int kPending>
FATHOM_DEVICE void multiply_wait() {
#ifdef FATHOM_WGMMA
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
#endif
}
FATHOM_DEVICE void sync_warpgroup(int group) {
  if (group == 0) asm volatile("bar.sync 1, 128;" ::: "memory");
  if (group == 1) asm volatile("bar.sync 2, 128;" ::: "memory");
  if (group == 2) asm volatile("bar.sync 3, 128;" ::: "memory");
  if (group == 3) asm volatile("bar.sync 4, 128;" ::: "memory");
}
template <int kCount>
FATHOM_DEVICE void sync_half(int half) {
  if (half == 0)
    asm volatile("bar.sync 1, %0;" ::"n"(kCount) : "memory");
  else
    asm volatile("bar.sync 2, %0;" ::"n"(kCount) : "memory");
}
template <int kTiles>
FATHOM_DEVICE void multiply_rows_f16(float (&d)[4 * kTiles], const uint32_t (&a)[4], MatrixDescriptor b, bool add);
template <int kTiles>
FATHOM_DEVICE void multiply_rows_bf16(float (&d)[4 * kTiles], const uint32_t (&a)[4], MatrixDescriptor b, bool add);
template <int kTiles>
FATHOM_DEVICE void multiply_64_rows_bf16(float (&d)[4 * kTiles], MatrixDescriptor a, MatrixDescriptor b, bool add);
template <>
FATHOM_DEVICE void multiply_rows_f16<1>(float (&d)[4], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_rows_f16<2>(float (&d)[8], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, "
      "p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_rows_f16<4>(float (&d)[16], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_rows_f16<8>(float (&d)[32], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, "
      "%35}, %36, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_rows_bf16<1>(float (&d)[4], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_rows_bf16<2>(float (&d)[8], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %13, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, "
      "p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_rows_bf16<4>(float (&d)[16], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %21, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, "
      "%14, %15}, {%16, %17, %18, %19}, %20, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_rows_bf16<8>(float (&d)[32], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, "
      "%35}, %36, p, 1, 1, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_64_rows_bf16<1>(float (&d)[4], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_64_rows_bf16<2>(float (&d)[8], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_64_rows_bf16<4>(float (&d)[16], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, %16, %17, p, 1, 1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_64_rows_bf16<8>(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, "
      "1, 0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <int kTiles>
FATHOM_DEVICE void multiply_64_rows_e4m3(float (&d)[4 * kTiles], MatrixDescriptor a, MatrixDescriptor b, bool add);
template <>
FATHOM_DEVICE void multiply_64_rows_e4m3<1>(float (&d)[4], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, p, 1, 1; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_64_rows_e4m3<2>(float (&d)[8], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %10, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, %8, %9, p, 1, 1; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <>
FATHOM_DEVICE void multiply_64_rows_e4m3<4>(float (&d)[16], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %18, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15}, %16, %17, p, 1, 1; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
template <int kTiles>
FATHOM_DEVICE void multiply_rows_e5m2(float (&d)[4 * kTiles], const uint32_t (&a)[4], MatrixDescriptor b);
template <>
FATHOM_DEVICE void multiply_rows_e5m2<1>(float (&d)[4], const uint32_t (&a)[4], MatrixDescriptor b) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e5m2.e4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits));
#endif
}
template <>
FATHOM_DEVICE void multiply_rows_e5m2<2>(float (&d)[8], const uint32_t (&a)[4], MatrixDescriptor b) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, 0, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n16k32.f32.e5m2.e4m3 {%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9, %10, %11}, %12, "
      "p, 1, 1; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b.bits));
#endif
}
#endif

}  // namespace fathom::ops::device

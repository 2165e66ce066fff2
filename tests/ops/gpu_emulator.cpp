#define FATHOM_GPU_EMULATOR
#include "ops/gpu_emulator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/small_floats.h"

namespace fathom::ops::device {
namespace {

float half_of(uint32_t word, int half) {
  return to_float(bf16{static_cast<uint16_t>(word >> 16 * half)});
}

/// Values of all fp16 codes: not every compiler has the type.
std::vector<float> f16_values() {
  std::vector<float> values(1 << 16);
  for (int code = 0; code < 1 << 16; ++code) {
    const int exponent = code >> 10 & 31, mantissa = code & 1023;
    float v = exponent == 0 ? std::ldexp(float(mantissa), -24) : std::ldexp(float(1024 + mantissa), exponent - 25);
    if (exponent == 31) v = mantissa ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
    values[static_cast<size_t>(code)] = code >> 15 ? -v : v;
  }
  return values;
}

float f16_of(uint32_t word, int half) {
  static const std::vector<float> values = f16_values();
  return values[static_cast<uint16_t>(word >> 16 * half)];
}

/// Rounds to nearest, ties to even.
uint32_t f16_bits(float v) {
  const uint32_t sign = std::signbit(v) ? 0x8000 : 0;
  const float size = std::fabs(v);
  if (std::isnan(v)) return sign | 0x7e00;
  if (size >= 65520.0f) return sign | 0x7c00;
  if (size < 0x1p-14f) return sign | static_cast<uint32_t>(std::nearbyint(size * 0x1p24f));
  const int exponent = std::ilogb(size);
  const auto mantissa = static_cast<uint32_t>(std::nearbyint(std::ldexp(size, 10 - exponent)));
  return sign | ((static_cast<uint32_t>(exponent + 14) << 10) + mantissa);  // 2048 carries into the exponent
}

template <float (*kHalf)(uint32_t, int)>
void multiply_matrices(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint64_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto& all = emulator::exchange(mine, 6);
  const int g = thread_index() % 32 / 4, t = thread_index() % 4;
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * t + (i & 1);
    float sum = d[i];
    for (int k = 0; k < 16; ++k) {
      const int lane = k % 8 / 2;
      const auto x = static_cast<uint32_t>(all[4 * g + lane][(i >> 1) + 2 * (k / 8)]);
      const auto y = static_cast<uint32_t>(all[4 * column + lane][4 + k / 8]);
      sum += kHalf(x, k & 1) * kHalf(y, k & 1);
    }
    d[i] = sum;
  }
}

uint16_t matrix_value(const uint64_t (&rows)[32][8], int matrix, int row, int column) {
  uint16_t v;
  std::memcpy(&v, reinterpret_cast<const std::byte*>(rows[8 * matrix + row][0]) + 2 * column, 2);
  return v;
}

const uint64_t (&matrix_rows(const void* row))[32][8] {
  const auto word = reinterpret_cast<uint64_t>(row);
  if (word % 16) throw std::runtime_error("misaligned matrix row");
  return emulator::exchange(&word, 1);
}

}  // namespace

uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t out = 0;
  for (int half = 0; half < 2; ++half)
    out |= static_cast<uint32_t>(to_bf16(half_of(a, half) * half_of(b, half)).bits) << 16 * half;
  return out;
}

uint32_t pack_bf16x2(float low, float high) {
  return to_bf16(low).bits | static_cast<uint32_t>(to_bf16(high).bits) << 16;
}

uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  return f16_bits(f16_of(a, 0) * f16_of(b, 0)) | f16_bits(f16_of(a, 1) * f16_of(b, 1)) << 16;
}

uint32_t pack_f16x2(float low, float high) {
  return f16_bits(low) | f16_bits(high) << 16;
}

void unpack_f16x2(uint32_t v, float* low, float* high) {
  *low = f16_of(v, 0), *high = f16_of(v, 1);
}

void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_matrices<half_of>(d, a, b0, b1);
}

void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  multiply_matrices<f16_of>(d, a, b0, b1);
}

void load_matrices(uint32_t (&r)[4], const void* row) {
  const auto& rows = matrix_rows(row);
  const int g = thread_index() % 32 / 4, t = thread_index() % 4;
  for (int i = 0; i < 4; ++i)
    r[i] = matrix_value(rows, i, g, 2 * t) | static_cast<uint32_t>(matrix_value(rows, i, g, 2 * t + 1)) << 16;
}

void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  const auto& rows = matrix_rows(row);
  const int g = thread_index() % 32 / 4, t = thread_index() % 4;
  for (int i = 0; i < 4; ++i)
    r[i] = matrix_value(rows, i, 2 * t, g) | static_cast<uint32_t>(matrix_value(rows, i, 2 * t + 1, g)) << 16;
}

namespace {

uint16_t swizzled(const std::byte* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  uint16_t v;
  std::memcpy(&v, reinterpret_cast<const std::byte*>(address ^ ((address >> 7 & 7) << 4)), 2);
  return v;
}

template <float (*kHalf)(uint32_t, int), bool kColumnsLong, int kCount>
void multiply_warpgroup(float (&d)[kCount], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  const int thread = thread_index() % kWarpgroup, g = thread % 32 / 4, t = thread % 4;
  for (int i = 0; i < kCount; ++i) {
    const int row = thread / 32 * 16 + g + (i & 2) * 4, column = i / 4 * 8 + 2 * t + (i & 1);
    float sum = add ? d[i] : 0;
    for (int k = 0; k < 16; ++k) {
      const uint32_t x = swizzled(a.start + row / 8 * a.stride + row % 8 * 128 + 2 * k);
      const uint32_t y =
          kColumnsLong ? swizzled(b.start + column / 64 * b.leading + k / 8 * b.stride + k % 8 * 128 + column % 64 * 2)
                       : swizzled(b.start + column / 8 * b.stride + column % 8 * 128 + 2 * k);
      sum += kHalf(x, 0) * kHalf(y, 0);
    }
    d[i] = sum;
  }
}

}  // namespace

void multiply_64_f16(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  multiply_warpgroup<f16_of, false>(d, a, b, add);
}
void multiply_64_bf16(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  multiply_warpgroup<half_of, false>(d, a, b, add);
}
void multiply_256_f16(float (&d)[128], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  multiply_warpgroup<f16_of, true>(d, a, b, add);
}
void multiply_256_bf16(float (&d)[128], MatrixDescriptor a, MatrixDescriptor b, bool add) {
  multiply_warpgroup<half_of, true>(d, a, b, add);
}
template <float (*kHalf)(uint32_t, int), int kCount>
void multiply_registers(float (&d)[kCount], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
  const uint64_t mine[4] = {a[0], a[1], a[2], a[3]};
  const auto& all = emulator::exchange(mine, 4);
  const int g = thread_index() % 32 / 4, t = thread_index() % 4;
  for (int i = 0; i < kCount; ++i) {
    const int column = i / 4 * 8 + 2 * t + (i & 1);
    float sum = add ? d[i] : 0;
    for (int k = 0; k < 16; ++k) {
      const auto x = static_cast<uint32_t>(all[4 * g + k % 8 / 2][(i >> 1 & 1) + 2 * (k / 8)]);
      const uint32_t y = swizzled(b.start + column / 8 * b.stride + column % 8 * 128 + 2 * k);
      sum += kHalf(x, k & 1) * kHalf(y, 0);
    }
    d[i] = sum;
  }
}
template <int kCount>
void multiply_columns_f16(float (&d)[kCount], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
  multiply_registers<f16_of>(d, a, b, add);
}
template <int kCount>
void multiply_columns_bf16(float (&d)[kCount], const uint32_t (&a)[4], MatrixDescriptor b, bool add) {
  multiply_registers<half_of>(d, a, b, add);
}
template void multiply_columns_f16(float (&)[16], const uint32_t (&)[4], MatrixDescriptor, bool);
template void multiply_columns_f16(float (&)[24], const uint32_t (&)[4], MatrixDescriptor, bool);
template void multiply_columns_f16(float (&)[40], const uint32_t (&)[4], MatrixDescriptor, bool);
template void multiply_columns_f16(float (&)[80], const uint32_t (&)[4], MatrixDescriptor, bool);
template void multiply_columns_bf16(float (&)[16], const uint32_t (&)[4], MatrixDescriptor, bool);
template void multiply_columns_bf16(float (&)[24], const uint32_t (&)[4], MatrixDescriptor, bool);
template void multiply_columns_bf16(float (&)[40], const uint32_t (&)[4], MatrixDescriptor, bool);
template void multiply_columns_bf16(float (&)[80], const uint32_t (&)[4], MatrixDescriptor, bool);
uint32_t e4m3_pair_to_f16x2(uint32_t codes) {
  return f16_bits(to_float(e4m3{static_cast<uint8_t>(codes)})) |
         f16_bits(to_float(e4m3{static_cast<uint8_t>(codes >> 8)})) << 16;
}

namespace emulator {
namespace {

constexpr size_t kStackBytes = 256 << 10;

/// Stacks are taken in turn and go on from grid to grid: fresh ones cost more than most kernels. A thread that has
/// ended leaves nothing of itself there.
class Stacks {
 public:
  char* next() {
    if (used_ == stacks_.size()) stacks_.emplace_back(new char[kStackBytes]);
    return stacks_[used_++].get();
  }
  void reuse() { used_ = 0; }
  void drop() { stacks_.clear(), used_ = 0; }

 private:
  std::vector<std::unique_ptr<char[]>> stacks_;
  size_t used_ = 0;
};
Stacks& stacks() {
  static Stacks all;
  return all;
}

std::vector<std::unique_ptr<Block>> make_blocks(int x, int y, int z, int threads, size_t shared_bytes, bool cluster,
                                                std::vector<std::unique_ptr<Cluster>>& clusters) {
  std::vector<std::unique_ptr<Block>> blocks;
  for (int i = 0; i < x * y * z; ++i) {
    auto b = std::make_unique<Block>();
    b->x = i % x, b->y = i / x % y, b->z = i / x / y;
    b->memory.assign(shared_bytes + 1024, std::byte{0xFF});
    const auto start = reinterpret_cast<uintptr_t>(b->memory.data());
    b->shared = b->memory.data() + ((start + 1023) / 1024 * 1024 - start);
    b->fibers = std::vector<Fiber>(threads);
    b->warps.resize(threads / 32);
    if (cluster) {
      if (b->x == 0) clusters.push_back(std::make_unique<Cluster>());
      b->cluster = clusters.back().get();
      b->cluster->blocks.push_back(b.get());
    }
    for (int t = 0; t < threads; ++t) {
      Fiber& f = b->fibers[t];
      f.block = b.get(), f.thread = t;
      start_context(f.context, stacks().next(), kStackBytes, entry);
    }
    blocks.push_back(std::move(b));
  }
  return blocks;
}

/// Runs the lanes of one warp until each waits. Says whether any ran.
bool run_warp(Block& block, int warp, std::mt19937& random) {
  bool ran_any = false;
  int order[32];
  uint32_t rests = 0;  // lanes that poll: other warps run before they look again
  std::iota(order, order + 32, 0);
  for (bool ran = true; ran;) {
    ran = false;
    std::shuffle(order, order + 32, random);
    for (int lane : order) {
      Fiber& f = block.fibers[warp * 32 + lane];
      if (f.done || rests >> lane & 1 || (f.waits_on && *f.waits_on == f.waits_for)) continue;
      f.waits_on = nullptr;
      machine().current = &f;
      switch_context(machine().scheduler, f.context);
      ran = ran_any = true;
      if (!f.waits_on) rests |= 1u << lane;
    }
  }
  return ran_any;
}

}  // namespace

void run_grid(int x, int y, int z, int threads, size_t shared_bytes, bool cluster, unsigned seed,
              std::function<void(std::byte*)> program) {
  std::vector<std::unique_ptr<Cluster>> clusters;
  stacks().reuse();
  auto blocks = make_blocks(x, y, z, threads, shared_bytes, cluster, clusters);
  machine().grid_x = x, machine().grid_y = y, machine().threads = threads;
  machine().program = std::move(program);
  std::mt19937 random(seed);
  std::vector<std::pair<Block*, int>> warps;
  for (auto& b : blocks)
    for (int w = 0; w < threads / 32; ++w) warps.push_back({b.get(), w});
  for (bool ran = true; ran;) {
    ran = false;
    std::shuffle(warps.begin(), warps.end(), random);
    for (auto [block, warp] : warps) ran |= run_warp(*block, warp, random);
  }
  for (auto& b : blocks)
    for (auto& f : b->fibers)
      if (!f.done) {
        stacks().drop();
        throw std::runtime_error("emulated grid: threads wait for ever");
      }
}

}  // namespace emulator
}  // namespace fathom::ops::device

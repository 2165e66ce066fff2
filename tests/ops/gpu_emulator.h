// Runs device code on the host: a grid of threads as fibers, with warp collectives, barriers, asynchronous copies and
// clusters as the hardware defines them. It stands in for ops/device/gpu.cuh when FATHOM_GPU_EMULATOR is defined, so
// that kernels are tested on machines without a GPU.
//
// Fibers switch only where a thread waits, and warps run in a random order as far as they can: a missing barrier shows
// as a wrong result. Asynchronous copies happen as late as the program allows, so a missing wait shows too. Shared
// memory starts filled with NaN.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "ops/context.h"
#include "ops/device/tensor_map.h"

#define FATHOM_DEVICE inline
#define FATHOM_UNROLL
#define FATHOM_UNROLL_8
#define FATHOM_UNROLL_4
#define FATHOM_UNROLL_1

namespace fathom::ops::device {

struct alignas(16) Float4 {
  float x, y, z, w;
};

namespace emulator {

struct Barrier {
  int arrived = 0, generation = 0;
};

struct WarpExchange {
  Barrier barrier;
  uint64_t word[2][32][8];  // by parity of the generation: a fast lane may be one collective ahead
};

struct Copy {
  void* to;
  const void* from;
  int bytes;
  bool present;
};

struct Block;

struct Fiber {
  Context context;
  Block* block = nullptr;
  int thread = 0;
  bool done = false;
  int cluster_generation = 0;
  const int* waits_on = nullptr;  // runs again when *waits_on != waits_for
  int waits_for = 0;
  std::deque<std::vector<Copy>> groups{1};
};

struct Block {
  int x = 0, y = 0, z = 0;
  std::vector<Fiber> fibers;
  std::vector<WarpExchange> warps;
  Barrier barrier, first_barrier;
  bool vote = false;
  std::vector<std::byte> memory;
  std::byte* shared = nullptr;  // 1024-byte aligned, inside `memory`
  struct Cluster* cluster = nullptr;
};

struct Cluster {
  Barrier barrier;
  std::vector<Block*> blocks;
};

struct Machine {
  int grid_x = 1, grid_y = 1, threads = 0;
  Context scheduler;
  Fiber* current = nullptr;
  std::function<void(std::byte*)> program;
  int64_t clock = 0;
};
inline Machine& machine() {
  static Machine m;
  return m;
}
inline Fiber& self() {
  return *machine().current;
}
inline void yield() {
  switch_context(self().context, machine().scheduler);
}

inline void arrive_and_wait(Barrier& b, int expected) {
  const int generation = b.generation;
  if (++b.arrived == expected) {
    b.arrived = 0;
    ++b.generation;
    return;
  }
  self().waits_on = &b.generation;
  self().waits_for = generation;
  yield();
}

/// All lanes of a warp hand in words; returns everybody's.
inline const uint64_t (&exchange(const uint64_t* words, int count))[32][8] {
  WarpExchange& w = self().block->warps[self().thread / 32];
  const int parity = w.barrier.generation & 1;
  std::memcpy(w.word[parity][self().thread % 32], words, count * sizeof(uint64_t));
  arrive_and_wait(w.barrier, 32);
  return w.word[parity];
}

inline void entry() {
  machine().program(self().block->shared);
  self().done = true;
  yield();
}

/// Runs `program(shared memory)` on every thread of the grid; all blocks are resident. `cluster` groups the blocks of a
/// grid row. Throws when nobody can run any more.
void run_grid(int x, int y, int z, int threads, size_t shared_bytes, bool cluster, unsigned seed,
              std::function<void(std::byte*)> program);

}  // namespace emulator

inline int thread_index() {
  return emulator::self().thread;
}
inline int block_x() {
  return emulator::self().block->x;
}
inline int block_y() {
  return emulator::self().block->y;
}
inline int block_z() {
  return emulator::self().block->z;
}
inline int grid_x() {
  return emulator::machine().grid_x;
}
inline int grid_y() {
  return emulator::machine().grid_y;
}
inline void sync_block() {
  emulator::arrive_and_wait(emulator::self().block->barrier, emulator::machine().threads);
}

inline bool any_thread(bool v) {
  bool& vote = emulator::self().block->vote;
  if (v) vote = true;
  sync_block();
  const bool any = vote;
  sync_block();
  vote = false;
  sync_block();
  return any;
}
template <int kCount>
void sync_first() {
  emulator::arrive_and_wait(emulator::self().block->first_barrier, kCount);
}
inline void sync_warp() {
  const uint64_t nothing = 0;
  emulator::exchange(&nothing, 1);
}
inline float shuffle_xor(float v, int mask) {
  const uint64_t word = std::bit_cast<uint32_t>(v);
  const auto& all = emulator::exchange(&word, 1);
  return std::bit_cast<float>(static_cast<uint32_t>(all[thread_index() % 32 ^ mask][0]));
}
inline float shuffle_from(float v, int lane) {
  const uint64_t word = std::bit_cast<uint32_t>(v);
  return std::bit_cast<float>(static_cast<uint32_t>(emulator::exchange(&word, 1)[lane][0]));
}
inline int shuffle_from(int v, int lane) {
  const uint64_t word = static_cast<uint32_t>(v);
  return static_cast<int>(static_cast<uint32_t>(emulator::exchange(&word, 1)[lane][0]));
}
inline uint64_t shuffle_from(uint64_t v, int lane) {
  return emulator::exchange(&v, 1)[lane][0];
}
inline uint32_t largest_of_warp(uint32_t v) {
  const uint64_t word = v;
  const auto& all = emulator::exchange(&word, 1);
  for (const auto& w : all) v = std::max(v, static_cast<uint32_t>(w[0]));
  return v;
}
inline uint32_t smallest_of_warp(uint32_t v) {
  const uint64_t word = v;
  const auto& all = emulator::exchange(&word, 1);
  for (const auto& w : all) v = std::min(v, static_cast<uint32_t>(w[0]));
  return v;
}
inline int shuffle_xor(int v, int mask) {
  const uint64_t word = static_cast<uint32_t>(v);
  const auto& all = emulator::exchange(&word, 1);
  return static_cast<int>(static_cast<uint32_t>(all[thread_index() % 32 ^ mask][0]));
}
inline bool any_lane(bool v) {
  const uint64_t word = v;
  const auto& all = emulator::exchange(&word, 1);
  bool any = false;
  for (int i = 0; i < 32; ++i) any |= all[i][0] != 0;
  return any;
}

inline int uniform(int v) {
  return v;
}
inline void prefetch(const void*) {}
template <int kBytes>
void prefetch_block(const void*) {}

inline uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t out = 0;
  for (int i = 0; i < 4; ++i) out |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return out;
}
inline float exp2_fast(float x) {
  return std::exp2(x);
}
inline float reciprocal_approx(float x) {
  return 1.0f / x;
}
inline uint32_t largest_halves(uint32_t a, uint32_t b) {
  return std::max(a & 0xFFFFu, b & 0xFFFFu) | std::max(a & 0xFFFF0000u, b & 0xFFFF0000u);
}
inline float log2_exact(float x) {
  return std::log2(x);
}
inline void sincos_pi(float x, float* s, float* c) {
  *s = static_cast<float>(std::sin(M_PI * x)), *c = static_cast<float>(std::cos(M_PI * x));
}

uint32_t multiply_bf16x2(uint32_t a, uint32_t b);
uint32_t multiply_f16x2(uint32_t a, uint32_t b);
uint32_t pack_bf16x2(float low, float high);
uint32_t pack_f16x2(float low, float high);
void unpack_f16x2(uint32_t v, float* low, float* high);
void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
inline void mma_bf16_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  d[0] = d[1] = d[2] = d[3] = 0;
  mma_bf16(d, a, b0, b1);
}
void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
inline void mma_f16_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  d[0] = d[1] = d[2] = d[3] = 0;
  mma_f16(d, a, b0, b1);
}
void load_matrices(uint32_t (&r)[4], const void* row);
void load_matrices_transposed(uint32_t (&r)[4], const void* row);

inline void copy_async(void* shared, const void* global, int bytes, bool present) {
  if (reinterpret_cast<uintptr_t>(shared) % bytes || reinterpret_cast<uintptr_t>(global) % bytes)
    throw std::runtime_error("misaligned asynchronous copy");
  emulator::self().groups.back().push_back({shared, global, bytes, present});
}
inline void copy_async_16(void* shared, const void* global, bool present) {
  copy_async(shared, global, 16, present);
}
inline void copy_async_8(void* shared, const void* global, bool present) {
  copy_async(shared, global, 8, present);
}
inline void copy_async_4(void* shared, const void* global, bool present) {
  copy_async(shared, global, 4, present);
}
inline void copy_async_commit() {
  emulator::self().groups.emplace_back();
}
template <int kPending>
void copy_async_wait() {
  auto& groups = emulator::self().groups;  // the last one is open
  for (; groups.size() > kPending + 1; groups.pop_front())
    for (const auto& c : groups.front()) {
      if (c.present)
        std::memcpy(c.to, c.from, c.bytes);
      else
        std::memset(c.to, 0, c.bytes);
    }
}

inline Float4 load_once(const Float4* p) {
  return *p;
}
inline Float4 load_l2(const Float4* p) {
  return *p;
}
inline float load_l2(const float* p) {
  return *p;
}
inline uint64_t load_l2(const uint64_t* p) {
  return *p;
}
inline void load_l2_pair(const float* p, float* a, float* b) {
  *a = p[0], *b = p[1];
}
inline uint64_t load_relaxed(const uint64_t* p) {
  return *p;
}
inline uint64_t load_acquire(const uint64_t* p) {
  return *p;
}
inline uint64_t atomic_add(uint64_t* p, uint64_t v) {
  const uint64_t old = *p;
  *p += v;
  return old;
}
inline uint64_t atomic_or(uint64_t* p, uint64_t v) {
  const uint64_t old = *p;
  *p |= v;
  return old;
}
inline void atomic_and(uint64_t* p, uint64_t v) {
  *p &= v;
}
inline void fence() {}
inline int lowest_bit(uint32_t v) {
  return std::countr_zero(v);
}
inline int64_t cycles() {
  return ++emulator::machine().clock;
}
inline void rest() {
  emulator::yield();
}
inline void trap() {
  throw std::runtime_error("trap");
}

template <typename T>
T* in_cluster_block(T* p, int rank) {
  emulator::Block& own = *emulator::self().block;
  const auto offset = reinterpret_cast<std::byte*>(p) - own.shared;
  return reinterpret_cast<T*>(own.cluster->blocks[rank]->shared + offset);
}
inline void arrive_cluster() {
  auto& c = *emulator::self().block->cluster;
  emulator::self().cluster_generation = c.barrier.generation;
  if (++c.barrier.arrived == static_cast<int>(c.blocks.size()) * emulator::machine().threads)
    c.barrier.arrived = 0, ++c.barrier.generation;
}
inline void arrive_cluster_relaxed() {
  arrive_cluster();
}
inline void await_cluster() {
  auto& c = *emulator::self().block->cluster;
  if (c.barrier.generation != emulator::self().cluster_generation) return;
  emulator::self().waits_on = &c.barrier.generation;
  emulator::self().waits_for = emulator::self().cluster_generation;
  emulator::yield();
}
inline void sync_cluster() {
  arrive_cluster();
  await_cluster();
}
/// Descriptors hold a host address here; products run at once, each thread computing its own part.
inline constexpr int kWarpgroup = 128;
struct MatrixDescriptor {
  const std::byte* start;
  int leading, stride;
  bool swizzled = true;
};
inline MatrixDescriptor describe_matrix(const void* p, int leading, int stride) {
  return {static_cast<const std::byte*>(p), leading, stride};
}
inline MatrixDescriptor describe_plain_matrix(const void* p, int leading, int stride) {
  return {static_cast<const std::byte*>(p), leading, stride, false};
}
void multiply_64_f16(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b, bool add);
void multiply_64_bf16(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b, bool add);
void multiply_256_f16(float (&d)[128], MatrixDescriptor a, MatrixDescriptor b, bool add);
void multiply_256_bf16(float (&d)[128], MatrixDescriptor a, MatrixDescriptor b, bool add);
template <int kCount>
void multiply_columns_f16(float (&d)[kCount], const uint32_t (&a)[4], MatrixDescriptor b, bool add);
template <int kCount>
void multiply_columns_bf16(float (&d)[kCount], const uint32_t (&a)[4], MatrixDescriptor b, bool add);
inline void multiply_begin() {}
inline void multiply_end() {}
inline void publish_to_products() {}
template <int kRegisters>
void take_registers() {}
template <int kRegisters>
void give_registers() {}

struct Phases {
  int16_t count, pending, phase, pieces;  // pieces: 16-byte pieces that copies still owe
};
inline void init_phases(Phases* b, int arrivals) {
  *b = {static_cast<int16_t>(arrivals), static_cast<int16_t>(arrivals), 0, 0};
}
inline void settle(Phases* b) {
  if (b->pending == 0 && b->pieces == 0) b->pending = b->count, ++b->phase;
}
inline void arrive(Phases* b) {
  --b->pending;
  settle(b);
}
inline void arrive_and_expect(Phases* b, int bytes) {
  b->pieces = static_cast<int16_t>(b->pieces + bytes / 16);
  arrive(b);
}
inline void publish_phases() {}
inline void copy_to_cluster(void* to, int rank, const void* from, int bytes, Phases* b) {
  if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16 || bytes % 16)
    throw std::runtime_error("misaligned copy to the cluster");
  std::memcpy(in_cluster_block(static_cast<std::byte*>(to), rank), from, bytes);
  Phases* there = in_cluster_block(b, rank);
  there->pieces = static_cast<int16_t>(there->pieces - bytes / 16);
  settle(there);
}
inline void copy_block(void* shared, const void* global, int bytes, Phases* b) {
  if (reinterpret_cast<uintptr_t>(shared) % 16 || reinterpret_cast<uintptr_t>(global) % 16 || bytes % 16)
    throw std::runtime_error("misaligned copy of a block");
  std::memcpy(shared, global, bytes);
  b->pieces = static_cast<int16_t>(b->pieces - bytes / 16);
  settle(b);
}
inline TensorMap emulated_map(const Planes& p) {
  static_assert(sizeof(Planes) <= sizeof(TensorMap));
  TensorMap map = {};
  std::memcpy(&map, &p, sizeof p);
  return map;
}
inline void copy_box(void* shared, const TensorMap* map, int column, int row, int plane, Phases* b) {
  Planes p;
  std::memcpy(static_cast<void*>(&p), map, sizeof p);
  if (reinterpret_cast<uintptr_t>(shared) % 1024 || reinterpret_cast<uintptr_t>(p.base) % 16 || p.row_distance() % 16)
    throw std::runtime_error("misaligned copy of a box");
  for (int i = 0; i < p.box_rows * kBoxBytes / 16; ++i) {
    const int r = row + i / 8, at = column + i % 8 * 16;
    auto* to = static_cast<std::byte*>(shared) + box_place(i / 8, i % 8);
    if (r >= 0 && r < p.rows && at >= 0 && at < p.row_bytes && plane >= 0 && plane < p.planes)
      std::memcpy(to, p.base + plane * p.plane_stride + r * p.row_distance() + at, 16);
    else
      std::memset(to, 0, 16);
  }
  b->pieces = static_cast<int16_t>(b->pieces - p.box_rows * kBoxBytes / 16);
  settle(b);
}
inline void copy_weight_box(void* shared, const TensorMap* map, int column, int row, int plane, Phases* b) {
  copy_box(shared, map, column, row, plane, b);
}
inline void await(Phases* b, int phase) {
  while ((b->phase & 1) == (phase & 1)) emulator::yield();
}
uint32_t e4m3_pair_to_f16x2(uint32_t codes);
inline constexpr int kDecodedUnit = 0;
template <int kHalf>
uint32_t decode_codes(uint32_t word) {
  return e4m3_pair_to_f16x2(word >> 16 * kHalf);
}

inline void wait_for_previous_kernel() {}
inline void let_next_kernel_start() {}

}  // namespace fathom::ops::device

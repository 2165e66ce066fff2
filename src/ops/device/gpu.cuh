// The device instructions that the kernels use, each behind a function with a plain name.
//
// This file holds all inline PTX of the project. Kernels include it and nothing else of CUDA, so that the same source
// also compiles for the host against tests/ops/gpu_emulator.h (FATHOM_GPU_EMULATOR), which runs a grid of threads with
// the lanes in a random order. Everything here exists on sm_80 and later unless a comment says otherwise.
#pragma once

#ifdef FATHOM_GPU_EMULATOR
#include "ops/gpu_emulator.h"
#else

#include <cuda_runtime.h>

#include <cstdint>

#define FATHOM_DEVICE __device__ __forceinline__
#define FATHOM_UNROLL _Pragma("unroll")
#define FATHOM_UNROLL_8 _Pragma("unroll 8")
#define FATHOM_UNROLL_1 _Pragma("unroll 1")

namespace fathom::ops::device {

struct alignas(16) Float4 {
  float x, y, z, w;
};

FATHOM_DEVICE int thread_index() {
  return static_cast<int>(threadIdx.x);
}
FATHOM_DEVICE int block_x() {
  return static_cast<int>(blockIdx.x);
}
FATHOM_DEVICE int block_y() {
  return static_cast<int>(blockIdx.y);
}
FATHOM_DEVICE int block_z() {
  return static_cast<int>(blockIdx.z);
}
FATHOM_DEVICE int grid_x() {
  return static_cast<int>(gridDim.x);
}
FATHOM_DEVICE int grid_y() {
  return static_cast<int>(gridDim.y);
}

FATHOM_DEVICE void sync_block() {
  __syncthreads();
}
FATHOM_DEVICE void sync_warp() {
  __syncwarp();
}
FATHOM_DEVICE float shuffle_xor(float v, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
}
FATHOM_DEVICE float shuffle_from(float v, int lane) { return __shfl_sync(0xFFFFFFFFu, v, lane); }
FATHOM_DEVICE int shuffle_xor(int v, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
}
/// A value that is the same in all lanes, told to the compiler: branches on it become uniform.
FATHOM_DEVICE int uniform(int v) { return __shfl_sync(0xFFFFFFFFu, v, 0); }
FATHOM_DEVICE bool any_lane(bool v) {
  return __any_sync(0xFFFFFFFFu, v);
}

FATHOM_DEVICE uint32_t byte_permute(uint32_t a, uint32_t b, uint32_t selector) {
  return __byte_perm(a, b, selector);
}

/// 2^x to 2 ulp; 2^-inf = 0.
FATHOM_DEVICE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
FATHOM_DEVICE float log2_exact(float x) {
  return log2f(x);
}
/// sin and cos of pi * x, any |x| below 2^23.
FATHOM_DEVICE void sincos_pi(float x, float* s, float* c) {
  sincospif(x, s, c);
}

/// Two bf16 products, rounded to nearest; subnormals kept. Written as a fused multiply-add of -0 because the plain
/// product needs sm_90.
FATHOM_DEVICE uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(0x80008000u));
  return d;
}

/// Two fp16 products, rounded to nearest; subnormals kept.
FATHOM_DEVICE uint32_t multiply_f16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

/// {low, high} rounded to nearest even.
FATHOM_DEVICE uint32_t pack_f16x2(float low, float high) {
  uint32_t d;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}
FATHOM_DEVICE void unpack_f16x2(uint32_t v, float* low, float* high) {
  asm("{.reg .f16 l, h;\n mov.b32 {l, h}, %2;\n cvt.f32.f16 %0, l;\n cvt.f32.f16 %1, h;}"
      : "=f"(*low), "=f"(*high)
      : "r"(v));
}

/// {low, high} rounded to nearest even.
FATHOM_DEVICE uint32_t pack_bf16x2(float low, float high) {
  uint32_t d;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(d) : "f"(high), "f"(low));
  return d;
}

/// d[16 x 8] += a[16 x 16] * b[16 x 8], bf16 in, fp32 sums. With g = lane / 4, t = lane % 4, a thread holds
///   a: rows g, g+8, g, g+8 of columns 2t,2t+1 (a[0], a[1]) and 2t+8,2t+9 (a[2], a[3])
///   b: column g of rows 2t,2t+1 (b0) and 2t+8,2t+9 (b1)
///   d: row g columns 2t,2t+1 (d[0], d[1]), row g+8 the same columns (d[2], d[3])
FATHOM_DEVICE void mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same with fp16 factors.
FATHOM_DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

FATHOM_DEVICE uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

/// Four 8 x 8 matrices of 16-bit values; lane l gives the address of row l % 8 of matrix l / 8, and receives from each
/// matrix the values (row g, columns 2t,2t+1).
FATHOM_DEVICE void load_matrices(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}
/// The same, transposed: (rows 2t,2t+1, column g).
FATHOM_DEVICE void load_matrices_transposed(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// Asynchronous global -> shared copies; without `present` nothing is read and zeros are written.
FATHOM_DEVICE void copy_async_16(void* shared, const void* global, bool present) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(present ? 16 : 0)
               : "memory");
}
FATHOM_DEVICE void copy_async_8(void* shared, const void* global, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(present ? 8 : 0)
               : "memory");
}
FATHOM_DEVICE void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
FATHOM_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// Loads of memory that other blocks wrote in this launch: through L2.
FATHOM_DEVICE Float4 load_l2(const Float4* p) {
  const float4 v = __ldcg(reinterpret_cast<const float4*>(p));
  return {v.x, v.y, v.z, v.w};
}
FATHOM_DEVICE float load_l2(const float* p) {
  return __ldcg(p);
}

/// Two floats through L2.
FATHOM_DEVICE void load_l2_pair(const float* p, float* a, float* b) {
  const float2 v = __ldcg(reinterpret_cast<const float2*>(p));
  *a = v.x, *b = v.y;
}
FATHOM_DEVICE uint64_t load_relaxed(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
FATHOM_DEVICE uint64_t load_acquire(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
FATHOM_DEVICE uint64_t atomic_add(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}
FATHOM_DEVICE uint64_t atomic_or(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.acq_rel.gpu.global.or.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}
FATHOM_DEVICE void atomic_and(uint64_t* p, uint64_t v) {
  asm volatile("red.relaxed.gpu.global.and.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/// Brings the line of `p` into L2.
FATHOM_DEVICE void prefetch(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }
FATHOM_DEVICE void fence() {
  __threadfence();
}
FATHOM_DEVICE int64_t cycles() {
  return clock64();
}
/// A short rest inside a loop that polls memory.
FATHOM_DEVICE void rest() {
  __nanosleep(20);
}

/// Clusters: the blocks of one grid row (sm_90 and later).
FATHOM_DEVICE void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
/// The address, in the shared memory of block `rank` of the cluster, of what lies at `p` in ours.
template <typename T>
FATHOM_DEVICE T* in_cluster_block(T* p, int rank) {
#if __CUDA_ARCH__ >= 900
  uint64_t remote;
  asm("mapa.u64 %0, %1, %2;" : "=l"(remote) : "l"(p), "r"(rank));
  return reinterpret_cast<T*>(remote);
#else
  return p;
#endif
}

/// Programmatic dependent launch: wait until what the previous kernel of the stream wrote is visible; let the next one
/// start its own prologue. Without the launch attribute both do nothing.
FATHOM_DEVICE void wait_for_previous_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
FATHOM_DEVICE void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace fathom::ops::device

#endif

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

#include "ops/device/e4m3_decode.h"
#include "ops/device/tensor_map.h"

#define FATHOM_DEVICE __device__ __forceinline__
#define FATHOM_UNROLL _Pragma("unroll")
#define FATHOM_UNROLL_8 _Pragma("unroll 8")
#define FATHOM_UNROLL_4 _Pragma("unroll 4")
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
/// A barrier of the block that tells whether any thread handed in true.
FATHOM_DEVICE bool any_thread(bool v) {
  return __syncthreads_or(v) != 0;
}
FATHOM_DEVICE void sync_warp() {
  __syncwarp();
}
/// A barrier of the block's first kCount threads (whole warps).
template <int kCount>
FATHOM_DEVICE void sync_first() {
  asm volatile("bar.sync 1, %0;" ::"n"(kCount) : "memory");
}
FATHOM_DEVICE float shuffle_xor(float v, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
}
FATHOM_DEVICE float shuffle_from(float v, int lane) {
  return __shfl_sync(0xFFFFFFFFu, v, lane);
}
FATHOM_DEVICE int shuffle_xor(int v, int mask) {
  return __shfl_xor_sync(0xFFFFFFFFu, v, mask);
}
FATHOM_DEVICE int shuffle_from(int v, int lane) {
  return __shfl_sync(0xFFFFFFFFu, v, lane);
}
FATHOM_DEVICE uint64_t shuffle_from(uint64_t v, int lane) {
  return __shfl_sync(0xFFFFFFFFu, v, lane);
}
/// The largest or smallest value of the warp.
FATHOM_DEVICE uint32_t largest_of_warp(uint32_t v) {
  return __reduce_max_sync(0xFFFFFFFFu, v);
}
FATHOM_DEVICE uint32_t smallest_of_warp(uint32_t v) {
  return __reduce_min_sync(0xFFFFFFFFu, v);
}
/// A value that is the same in all lanes, told to the compiler: branches on it become uniform.
FATHOM_DEVICE int uniform(int v) {
  return __shfl_sync(0xFFFFFFFFu, v, 0);
}
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
/// 1 / x to 1 ulp.
FATHOM_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// The larger of each pair of unsigned 16-bit halves.
FATHOM_DEVICE uint32_t largest_halves(uint32_t a, uint32_t b) {
  return __vmaxu2(a, b);
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

/// The same without what d held before.
FATHOM_DEVICE void mma_bf16_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
}

/// The same with fp16 factors.
FATHOM_DEVICE void mma_f16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The same without what d held before.
FATHOM_DEVICE void mma_f16_first(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.0f));
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
FATHOM_DEVICE void copy_async_4(void* shared, const void* global, bool present) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(present ? 4 : 0)
               : "memory");
}
FATHOM_DEVICE void copy_async_commit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
FATHOM_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

/// 16 bytes that are read once and written by nobody during the launch.
FATHOM_DEVICE Float4 load_once(const Float4* p) {
  Float4 v;
  asm("ld.global.nc.L1::no_allocate.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p));
  return v;
}

/// Loads of memory that other blocks wrote in this launch: through L2.
FATHOM_DEVICE Float4 load_l2(const Float4* p) {
  const float4 v = __ldcg(reinterpret_cast<const float4*>(p));
  return {v.x, v.y, v.z, v.w};
}
FATHOM_DEVICE float load_l2(const float* p) {
  return __ldcg(p);
}
FATHOM_DEVICE uint64_t load_l2(const uint64_t* p) {
  return __ldcg(reinterpret_cast<const unsigned long long*>(p));
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
FATHOM_DEVICE uint64_t atomic_add(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.relaxed.gpu.global.add.u64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}
FATHOM_DEVICE uint64_t atomic_or(uint64_t* p, uint64_t v) {
  uint64_t old;
  asm volatile("atom.relaxed.gpu.global.or.b64 %0, [%1], %2;" : "=l"(old) : "l"(p), "l"(v) : "memory");
  return old;
}
FATHOM_DEVICE void atomic_and(uint64_t* p, uint64_t v) {
  asm volatile("red.relaxed.gpu.global.and.b64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}
/// Brings the line of `p` into L2.
FATHOM_DEVICE void prefetch(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}
/// Brings a block of memory (16-byte aligned, a multiple of 16 bytes) into L2 (sm_90 and later).
template <int kBytes>
FATHOM_DEVICE void prefetch_block(const void* p) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "n"(kBytes));
#endif
}
FATHOM_DEVICE void fence() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}
/// Number of the lowest bit that is set; v is not 0.
FATHOM_DEVICE int lowest_bit(uint32_t v) {
  return __ffs(static_cast<int>(v)) - 1;
}
FATHOM_DEVICE int64_t cycles() {
  return clock64();
}
/// Called in a loop that polls memory.
FATHOM_DEVICE void rest() {}
/// Ends all work of the process on this GPU with an error.
FATHOM_DEVICE void trap() {
  asm volatile("trap;");
}

/// Clusters: the blocks of one grid row (sm_90 and later). Every thread arrives, then waits; a thread that has left
/// counts as arrived.
FATHOM_DEVICE void arrive_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#endif
}
/// The same without publishing what the thread wrote: no fence, which costs half a microsecond.
FATHOM_DEVICE void arrive_cluster_relaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
FATHOM_DEVICE void await_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}
FATHOM_DEVICE void sync_cluster() {
  arrive_cluster();
  await_cluster();
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

/// sm_90a: products by a warpgroup (4 warps) out of shared memory.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FATHOM_WGMMA 1
#endif
inline constexpr int kWarpgroup = 128;

/// A matrix in shared memory in 128-byte swizzle: rows of 128 bytes (64 values), 8 of them an atom of 1024 bytes whose
/// 16-byte pieces are permuted by piece ^= row % 8. `stride` is the distance between atoms of 8 rows; `leading` the
/// distance between blocks of 64 columns, used only where columns are the long way (B stored [k][n]).
struct MatrixDescriptor {
  uint64_t bits;
};
FATHOM_DEVICE MatrixDescriptor describe_matrix(const void* p, int leading, int stride) {
  return {static_cast<uint64_t>((shared_address(p) & 0x3FFFF) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
          static_cast<uint64_t>(stride >> 4) << 32 | uint64_t{1} << 62};
}

/// d[64 x n] (+)= a[64 x 16] b: a stored [64][k], b stored [n][k] for n = 64 and [k][n] for n = 256. Warp w of the
/// group holds rows 16 w ..; register 4 j + i of column tile j as in mma_bf16.
FATHOM_DEVICE void multiply_64_f16(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, "
      "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, 1, 1, "
      "0, 0; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
FATHOM_DEVICE void multiply_64_bf16(float (&d)[32], MatrixDescriptor a, MatrixDescriptor b, bool add) {
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
FATHOM_DEVICE void multiply_256_f16(float (&d)[128], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "
      "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "
      "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
      "%119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, p, 1, 1, 0, 1; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
        "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),
        "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),
        "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]),
        "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),
        "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]),
        "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]),
        "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),
        "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
FATHOM_DEVICE void multiply_256_bf16(float (&d)[128], MatrixDescriptor a, MatrixDescriptor b, bool add) {
#ifdef FATHOM_WGMMA
  asm volatile(
      "{ .reg .pred p; setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "
      "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, "
      "%57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, "
      "%79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, "
      "%101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, "
      "%119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, p, 1, 1, 0, 1; }"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
        "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
        "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]),
        "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
        "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), "+f"(d[56]),
        "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]), "+f"(d[64]),
        "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), "+f"(d[72]),
        "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), "+f"(d[80]),
        "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), "+f"(d[88]),
        "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), "+f"(d[96]),
        "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), "+f"(d[104]),
        "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), "+f"(d[112]),
        "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), "+f"(d[120]),
        "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "l"(a.bits), "l"(b.bits), "r"(static_cast<int>(add)));
#endif
}
FATHOM_DEVICE void multiply_begin() {
#ifdef FATHOM_WGMMA
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
FATHOM_DEVICE void multiply_end() {
#ifdef FATHOM_WGMMA
  asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;" ::: "memory");
#endif
}
/// Makes this thread's ordinary writes to shared memory visible to the products of others, before a barrier.
FATHOM_DEVICE void publish_to_products() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
template <int kRegisters>
FATHOM_DEVICE void take_registers() {
#ifdef FATHOM_WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}
template <int kRegisters>
FATHOM_DEVICE void give_registers() {
#ifdef FATHOM_WGMMA
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
#endif
}

/// A barrier in shared memory that counts arrivals; phases complete one after the other (sm_90 and later).
struct Phases {
  uint64_t word;
};
FATHOM_DEVICE void init_phases(Phases* b, int arrivals) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(b)), "r"(arrivals) : "memory");
#endif
}
FATHOM_DEVICE void arrive(Phases* b) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(b)) : "memory");
#endif
}
/// Arrives, and makes the phase wait for `bytes` that copy_to_cluster() brings.
FATHOM_DEVICE void arrive_and_expect(Phases* b, int bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(b)), "r"(bytes) : "memory");
#endif
}
/// Makes initialised barriers visible to the cluster, before arrive_cluster().
FATHOM_DEVICE void publish_phases() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}
/// Starts a copy of `bytes` (16-byte aligned, a multiple of 16) of our shared memory to where `to` lies in block `rank`
/// of the cluster; it counts at barrier `b` of that block. What was written by ordinary stores must be published by
/// publish_to_products() first, and must stay until the copy is through.
FATHOM_DEVICE void copy_to_cluster(void* to, int rank, const void* from, int bytes, Phases* b) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .b32 d, m;\n mapa.shared::cluster.u32 d, %0, %4;\n mapa.shared::cluster.u32 m, %3, %4;\n"
      "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [d], [%1], %2, [m]; }" ::"r"(
          shared_address(to)),
      "r"(shared_address(from)), "r"(bytes), "r"(shared_address(b)), "r"(rank)
      : "memory");
#endif
}
/// Starts a copy of `bytes` (16-byte aligned, a multiple of 16) of global memory into our shared memory that counts at
/// barrier `b`: one request for a whole row, where loads are one for each instruction.
FATHOM_DEVICE void copy_block(void* shared, const void* global, int bytes, Phases* b) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(shared)),
               "l"(global), "r"(bytes), "r"(shared_address(b))
               : "memory");
#endif
}
/// Starts a copy of a box: 128 bytes from `column` on of rows `row` ... of plane `plane`, to 1024-byte aligned shared
/// memory, pieces of 16 bytes at box_place(); it counts kBoxBytes * kBoxRows at barrier `b`, zeros included.
FATHOM_DEVICE void copy_box(void* shared, const TensorMap* map, int column, int row, int plane, Phases* b) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(row), "r"(plane), "r"(shared_address(b))
      : "memory");
#endif
}
/// The same for weights, of which a decode step reads more than the L2 holds: they leave it before anything else does,
/// so that what is read again (activations, code) stays there.
FATHOM_DEVICE void copy_weight_box(void* shared, const TensorMap* map, int column, int row, int plane, Phases* b) {
#if __CUDA_ARCH__ >= 900
  constexpr uint64_t kEvictFirst = 0x12F0000000000000;  // what createpolicy.fractional.L2::evict_first makes for 1.0
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(shared)),
      "l"(map), "r"(column), "r"(row), "r"(plane), "r"(shared_address(b)), "l"(kEvictFirst)
      : "memory");
#endif
}
/// Waits until phase number `phase` (its parity counts) is complete.
FATHOM_DEVICE void await(Phases* b, int phase) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{ .reg .pred p;\n again_%=: mbarrier.try_wait.parity.shared.b64 p, [%0], %1;\n @!p bra again_%=; }" ::"r"(
          shared_address(b)),
      "r"(phase & 1)
      : "memory");
#endif
}
/// Two e4m3 codes -> fp16, exact (sm_89 and later).
FATHOM_DEVICE uint32_t e4m3_pair_to_f16x2(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t d;
  asm("{ .reg .b16 c; cvt.u16.u32 c, %1; cvt.rn.f16x2.e4m3x2 %0, c; }" : "=r"(d) : "r"(codes));
  return d;
#else
  return codes;
#endif
}

/// The codes in bytes 0, 1 (kHalf 0) or 2, 3 of a word -> fp16, exact, in units of 2^kDecodedUnit.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 890
inline constexpr int kDecodedUnit = -8;
template <int kHalf>
FATHOM_DEVICE uint32_t decode_codes(uint32_t word) {
  return codes_to_f16_fields(word, kHalf);
}
#else
inline constexpr int kDecodedUnit = 0;
template <int kHalf>
FATHOM_DEVICE uint32_t decode_codes(uint32_t word) {
  return e4m3_pair_to_f16x2(word >> 16 * kHalf);
}
#endif

}  // namespace fathom::ops::device

#endif

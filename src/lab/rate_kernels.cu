// Kernels that show what a GPU can do: a copy, and products in registers.
//
// The rates are those of products whose operands already lie in registers (mma) or shared memory (wgmma): no kernel of
// that instruction can be faster. Operands are random, never zero: a chip draws less power on zeros and runs faster.
#include "lab/rate_kernels.h"

#include <cuda_runtime.h>

namespace fathom::lab::gpu {

namespace {

constexpr int rounds = 2048;

__global__ void copy_kernel(const uint4* __restrict__ from, uint4* __restrict__ to, int64_t n) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  for (; i + 3 * step < n; i += 4 * step) {
    uint4 v[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) v[k] = from[i + k * step];
#pragma unroll
    for (int k = 0; k < 4; ++k) to[i + k * step] = v[k];
  }
  for (; i < n; i += step) to[i] = from[i];
}

__device__ uint32_t hash(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x7FEB352Du;
  x = (x ^ (x >> 15)) * 0x846CA68Bu;
  return x ^ (x >> 16);
}

__device__ void mma_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ void mma_fp8(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
#if __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

/// Eight independent accumulators a warp, so that the latency of one product hides behind seven others.
template <bool fp8>
__global__ void mma_kernel(float* out) {
  uint32_t a[4], b[2];
  // bf16: exponent bits kept at 0x3F.. (values of 0.5 to 2, random sign and mantissa); e4m3: codes of moderate size.
  const uint32_t keep = fp8 ? 0xB7B7B7B7u : 0x80FF80FFu, set = fp8 ? 0x30303030u : 0x3F003F00u;
  for (int i = 0; i < 4; ++i) a[i] = (hash(threadIdx.x * 8 + i + blockIdx.x * 977) & keep) | set;
  for (int i = 0; i < 2; ++i) b[i] = (hash(threadIdx.x * 8 + 4 + i) & keep) | set;
  float d[8][4] = {};
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      if constexpr (fp8)
        mma_fp8(d[k], a, b);
      else
        mma_bf16(d[k], a, b);
    }
  }
  float sum = 0;
  for (int k = 0; k < 8; ++k) sum += d[k][0] + d[k][1] + d[k][2] + d[k][3];
  if (sum == 12345.678f) out[threadIdx.x] = sum;
}

__global__ void fma_kernel(float* out) {
  float d[16];
  const float a = 0.5f + static_cast<float>(hash(threadIdx.x) & 0xFFFF) * 1e-6f;
  for (int k = 0; k < 16; ++k) d[k] = static_cast<float>(hash(threadIdx.x + k) & 0xFFFF);
  for (int r = 0; r < rounds; ++r) {
#pragma unroll
    for (int k = 0; k < 16; ++k) d[k] = fmaf(d[k], a, a);
  }
  float sum = 0;
  for (int k = 0; k < 16; ++k) sum += d[k];
  if (sum == 12345.678f) out[threadIdx.x] = sum;
}

/// Hopper only: a warpgroup multiplies 64x16 by 16x256 tiles out of shared memory. Does nothing elsewhere.
__global__ void __launch_bounds__(128, 1) wgmma_kernel(float* out) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  __shared__ alignas(1024) uint32_t tile[(64 + 256) * 16 / 2];
  for (int i = static_cast<int>(threadIdx.x); i < (64 + 256) * 16 / 2; i += 128)
    tile[i] = (hash(i) & 0x80FF80FFu) | 0x3F003F00u;
  __syncthreads();
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  // Without swizzle, 8x8 cores of 128 contiguous bytes: neighbours along K 128 bytes apart, along M or N 256.
  const auto descriptor = [](const void* p) {
    const uint64_t at = static_cast<uint32_t>(__cvta_generic_to_shared(p));
    return (at & 0x3FFFF) >> 4 | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32;
  };
  const uint64_t a = descriptor(tile), b = descriptor(tile + 64 * 16 / 2);
  float d[128];
#pragma unroll
  for (int i = 0; i < 128; ++i) d[i] = 0;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int r = 0; r < rounds; ++r) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%"
        "43,"
        "%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%"
        "71,"
        "%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%"
        "99,"
        "%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,"
        "%122,%123,%124,%125,%126,%127}, %128, %129, p, 1, 1, 0, 0;\n}\n"
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
          "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
          "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]),
          "+f"(d[119]), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]),
          "+f"(d[126]), "+f"(d[127])
        : "l"(a), "l"(b), "r"(1));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 128; ++i) sum += d[i];
  if (sum == 12345.678f) out[threadIdx.x] = sum;
#endif
}

}  // namespace

void launch_copy(const void* from, void* to, int64_t n, int sms, void* stream) {
  copy_kernel<<<sms * 16, 256, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<const uint4*>(from),
                                                                       static_cast<uint4*>(to), n);
}

double launch_rate(RateKernel kernel, float* out, int sms, void* stream) {
  const auto s = static_cast<cudaStream_t>(stream);
  const double products = sms * 8.0 * rounds * 8 * 16 * 8 * 2;  // 8 warps of m16n8 accumulators, a multiply and an add
  switch (kernel) {
    case RateKernel::fp32_fma:
      fma_kernel<<<sms, 1024, 0, s>>>(out);
      return sms * 1024.0 * rounds * 16 * 2;
    case RateKernel::bf16_mma:
      mma_kernel<false><<<sms, 256, 0, s>>>(out);
      return products * 16;
    case RateKernel::fp8_mma:
      mma_kernel<true><<<sms, 256, 0, s>>>(out);
      return products * 32;
    case RateKernel::bf16_wgmma:
      wgmma_kernel<<<sms, 128, 0, s>>>(out);
      return sms * static_cast<double>(rounds) * 64 * 256 * 16 * 2;
  }
  return 0;
}

}  // namespace fathom::lab::gpu

#include "ops/device/launch.cuh"
#include "ops/residual_mix/many_kernel.cuh"

namespace fathom::ops::mix {
namespace {

template <int kMixes>
__global__ void __launch_bounds__(32 * kPartialWarps, 1) mix_partial(const __grid_constant__ Params p) {
  partial_block<kMixes>(p);
}
__global__ void __launch_bounds__(32 * kFewWarps, 8) mix_few_partial(const __grid_constant__ Params p) {
  few_partial_block(p);
}
// Registers so that a block of mix_finish finds its place beside one of these.
__global__ void __maxnreg__(160) mix_many_partial(const __grid_constant__ Params p) {
  __shared__ __align__(16) float shared[kManyFloats];
  many_partial_block(p, shared);
}
template <int kMixes, int kPieces, bool kRehearse>
__global__ void __launch_bounds__(kFinishThreads, 1) mix_finish(const __grid_constant__ Params p) {
  __shared__ __align__(16) float shared[kFinishFloats];
  finish_block<kMixes, kPieces, kRehearse>(p, shared);
}

int slices_of(int64_t channels) {
  return static_cast<int>((channels + kSliceChannels - 1) / kSliceChannels);
}

}  // namespace

size_t partial_bytes(int64_t tokens, int64_t channels, int mixes) {
  const int64_t pitch = mixes == kGates ? kPitch<kGates> : kPitch<24>;
  return static_cast<size_t>((tokens < kPassTokens ? tokens : kPassTokens) * slices_of(channels) * pitch) *
         sizeof(float);
}

namespace {

template <int kMixes, bool kRehearse = false>
void finish(const char* op, const Params& p, const Launch& l, bool early) {
  const dim3 rows(p.next_post.data ? 2 : 1, static_cast<unsigned>(p.tokens));
  if (p.streams.size[2] <= 8 * kFinishThreads)
    device::launch(op, mix_finish<kMixes, 1, kRehearse>, {rows, kFinishThreads, 0, early, true}, l.stream, p);
  else
    device::launch(op, mix_finish<kMixes, 2, kRehearse>, {rows, kFinishThreads, 0, early, true}, l.stream, p);
}

/// The next pass of tokens: which, and whether there is one.
bool take_pass(Params& p, int64_t first, int64_t tokens) {
  p.first = static_cast<int32_t>(first);
  p.tokens = static_cast<int32_t>(tokens - first < kPassTokens ? tokens - first : kPassTokens);
  return first < tokens;
}

void run_many(const char* op, Params p, int64_t tokens, const Launch& l) {
  const bool early = l.device.compute_capability >= 90;
  p.slices = static_cast<int>(p.streams.size[2] / kManyChannels);
  p.partial = static_cast<float*>(l.workspace);
  for (int64_t first = 0; take_pass(p, first, tokens); first += kPassTokens) {
    const dim3 grid(static_cast<unsigned>(p.slices), device::blocks_for(p.tokens, kManyTokens));
    device::launch(op, mix_many_partial, {grid, 32 * kManyWarps, 0, early, true}, l.stream, p);
    finish<kMixes>(op, p, l, early);
  }
}

/// The sums are there.
void run_finish(const char* op, const ResidualMixArgs& a, const Launch& l) {
  Params p = params(a);
  p.tokens = static_cast<int32_t>(a.streams.size[0]), p.slices = static_cast<int32_t>(a.sums.size[1]);
  p.partial = const_cast<float*>(a.sums.data);  // read
  if (p.tokens > 0) finish<kMixes, true>(op, p, l, l.device.compute_capability >= 90);
}

}  // namespace

template <int kMixes>
void run(const char* op, Params p, int64_t tokens, const Launch& l) {
  const bool early = l.device.compute_capability >= 90;
  const int64_t d = p.streams.size[2];
  p.slices = slices_of(d);
  p.partial = static_cast<float*>(l.workspace);
  for (int64_t first = 0; take_pass(p, first, tokens); first += kPassTokens) {
    p.block_tokens = block_tokens(p.tokens);
    const int warps = p.tokens < kPartialWarps ? p.tokens : kPartialWarps;
    const dim3 grid(static_cast<unsigned>(p.slices), device::blocks_for(p.tokens, p.block_tokens));
    if (kMixes != kGates && p.fn.data && p.tokens <= kFewTokens && d % kSliceChannels == 0)
      device::launch(
          op, mix_few_partial,
          {dim3(static_cast<unsigned>(p.slices), static_cast<unsigned>(p.tokens)), 32 * kFewWarps, 0, early, true},
          l.stream, p);
    else
      device::launch(op, mix_partial<kMixes>, {grid, 32 * warps, 0, early, true}, l.stream, p);
    if (p.fn.data) finish<kMixes>(op, p, l, early);
  }
}
template void run<kGates>(const char* op, Params p, int64_t tokens, const Launch& l);

}  // namespace fathom::ops::mix

namespace fathom::ops {

size_t residual_mix_sm80_workspace(const ResidualMixArgs& a, const DeviceInfo&) {
  return a.fn.data && !a.sums.data ? mix::partial_bytes(a.streams.size[0], a.streams.size[2], kMixes) : 0;
}

void residual_mix_sm80(const ResidualMixArgs& a, const Launch& l) {
  if (a.sums.data) return mix::run_finish("residual_mix", a, l);
  mix::run<kMixes>("residual_mix", mix::params(a), a.streams.size[0], l);
}

void residual_mix_sm90_fast(const ResidualMixArgs& a, const Launch& l) {
  if (!a.fn.data || a.sums.data || a.streams.size[0] < mix::kLeastMany) return residual_mix_sm80(a, l);
  mix::run_many("residual_mix", mix::params(a), a.streams.size[0], l);
}

}  // namespace fathom::ops

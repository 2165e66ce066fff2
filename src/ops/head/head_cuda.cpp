// The head on CUDA: the stream mix of the wanted rows, then the fp32-accurate product with the head matrix.
#ifdef FATHOM_HAVE_CUDA
#include "ops/head/head.h"
#include "ops/linear/linear.h"
#include "ops/residual_mix/mix_plan.h"

namespace fathom::ops {
namespace {

LinearF32Args product(const HeadArgs& a) {
  LinearF32Args p;
  p.x = a.normed;
  p.part[p.parts++] = {a.weight, a.logits};
  return p;
}

mix::Params stream_mix(const HeadArgs& a) {
  mix::Params p;
  p.streams.data = const_cast<bf16*>(a.streams.data);  // read only: there is no y
  for (int i = 0; i < 3; ++i) p.streams.size[i] = a.streams.size[i], p.streams.stride[i] = a.streams.stride[i];
  p.rows = a.rows, p.fn = a.fn, p.scale = a.scale, p.base = a.base, p.norm = a.norm;
  p.hc_eps = a.hc_eps, p.rms_eps = a.rms_eps;
  p.mixed = a.hidden, p.x = a.normed;
  return p;
}

}  // namespace

/// `name`: the variant of linear_f32 that makes the product.
bool head_cuda_can_run(const HeadArgs& a, const DeviceInfo& d, const char* name) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.streams.size[1] == kStreams &&
         a.streams.size[2] % 8 == 0 && a.streams.size[2] <= mix::kMostChannels && a.streams.stride[0] % 8 == 0 &&
         a.streams.stride[1] % 8 == 0 && a.hidden.stride[0] % 8 == 0 && a.normed.stride[0] % 8 == 0 &&
         find_variant(linear_f32_variants(), name)->can_run(product(a), d);
}

size_t head_cuda_workspace(const HeadArgs& a, const DeviceInfo&) {
  return mix::partial_bytes(a.rows.size[0], a.streams.size[2], mix::kGates);
}

void head_cuda(const HeadArgs& a, const Launch& l, const char* name) {
  if (a.rows.size[0] == 0) return;
  mix::run<mix::kGates>("head", stream_mix(a), a.rows.size[0], l);
  find_variant(linear_f32_variants(), name)->run(product(a), l);
}

}  // namespace fathom::ops
#endif

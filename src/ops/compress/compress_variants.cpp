// The variants of compress. sm80 wants rows of k, g, ape and the state at multiples of 8 bytes and KV pages at
// multiples of 32.
#include "ops/compress/compress.h"

namespace fathom::ops {

void compress_ref(const CompressArgs& a, const Launch&);
void compress_cpu(const CompressArgs& a, const Launch& l);
bool compress_cpu_can_run(const CompressArgs& a, const DeviceInfo&);

#ifdef FATHOM_HAVE_CUDA
void compress_sm80(const CompressArgs& a, const Launch& l);

/// Entries of a segment that begins at p read the ring from token p - 7 on, and its tokens write up to p + count - 1:
/// no row is both read and written when count + 6 is less than the ring. Where every segment has a token, none has more
/// than tokens - segments + 1; where steps are filled up with empty ones, none has more than a token and 8 drafts.
bool compress_fits_one_launch(const CompressArgs& a) {
  const int64_t longest = a.k.size[0] - a.segments.size[0] + 1;
  return a.ratio == 4 && longest + 6 < a.state_k.size[1];
}

namespace {

bool sm80_can_run(const CompressArgs& a, const DeviceInfo& d) {
  const int64_t width = a.index ? kIndexDim : kHeadDim, channels = width * (a.ratio == 4 ? 2 : 1);
  return d.backend == Backend::cuda && d.compute_capability >= 80 && (a.ratio == 4 || a.ratio == 128) &&
         a.norm.size[0] == width && a.k.size[1] == channels && a.rope_freq.size[0] == 32 && a.k.stride[0] % 2 == 0 &&
         a.g.stride[0] % 2 == 0 && a.ape.stride[0] % 2 == 0 && a.state_k.stride[1] % 2 == 0 &&
         a.state_g.stride[1] % 2 == 0 && a.entries.size[0] < 65536 &&
         (a.index ? a.index_pool.stride % 4 == 0 : a.pool.stride % 32 == 0);
}

size_t sm80_workspace(const CompressArgs& a, const DeviceInfo&) {
  if (compress_fits_one_launch(a)) return 0;
  return static_cast<size_t>(a.entries.size[0] * a.norm.size[0]) * sizeof(float);
}

}  // namespace
#endif

Variants<CompressArgs> compress_variants() {
  static constexpr Variant<CompressArgs> all[] = {
      {"ref", Backend::cpu, always<CompressArgs>, nullptr, compress_ref},
      {"cpu", Backend::cpu, compress_cpu_can_run, nullptr, compress_cpu},
#ifdef FATHOM_HAVE_CUDA
      {"sm80", Backend::cuda, sm80_can_run, sm80_workspace, compress_sm80},
#endif
  };
  return all;
}
}  // namespace fathom::ops

// Markov head on CUDA: rows of w1 gathered, the fp32-accurate product with w2, then the sum and the confidence.
#ifdef FATHOM_HAVE_CUDA
#include "ops/draft/draft.h"
#include "ops/linear/linear.h"

namespace fathom::ops {

void launch_markov_rows(const MarkovArgs& a, const Launch& l, bf16* rows);
void launch_markov_add(const MarkovArgs& a, const Launch& l, const float* product);

namespace {

struct Parts {
  LinearF32Args product;
  bf16* rows;
  float* sums;
  size_t bytes;
};

Parts lay_out(const MarkovArgs& a, std::byte* base) {
  const int64_t batch = a.token.size[0], rank = a.w1.size[1], vocabulary = a.w2.size[0];
  const auto rows_bytes = static_cast<size_t>((batch * rank * 2 + 255) / 256 * 256);
  Parts p;
  p.rows = reinterpret_cast<bf16*>(base), p.sums = reinterpret_cast<float*>(base + rows_bytes);
  p.bytes = rows_bytes + static_cast<size_t>(batch * vocabulary) * sizeof(float);
  p.product.x = View<const bf16, 2>(p.rows, batch, rank);
  p.product.part[p.product.parts++] = {a.w2, View<float, 2>(p.sums, batch, vocabulary)};
  return p;
}

}  // namespace

bool stream_mean_sm80_can_run(const StreamMeanArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.streams.size[2] % 8 == 0 &&
         a.streams.stride[0] % 8 == 0 && a.streams.stride[1] % 8 == 0 && a.mean.stride[0] % 8 == 0 &&
         a.streams.size[0] < 65536;
}

bool stream_join_sm80_can_run(const StreamJoinArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && d.compute_capability >= 80 && a.stream.size[2] % 8 == 0 &&
         a.token.stride[0] % 8 == 0 && a.stream.stride[0] % 8 == 0 && a.stream.stride[1] % 8 == 0 &&
         a.streams.stride[0] % 8 == 0 && a.streams.stride[1] % 8 == 0 && a.rows.size[0] < 65536;
}

bool markov_sm80_can_run(const MarkovArgs& a, const DeviceInfo& d) {
  return d.backend == Backend::cuda && a.w1.size[1] % 8 == 0 && a.w1.stride[0] % 8 == 0 && a.token.size[0] < 65536 &&
         find_variant(linear_f32_variants(), "sm80")->can_run(lay_out(a, nullptr).product, d);
}

size_t markov_sm80_workspace(const MarkovArgs& a, const DeviceInfo&) {
  return lay_out(a, nullptr).bytes;
}

void markov_sm80(const MarkovArgs& a, const Launch& l) {
  const Parts p = lay_out(a, static_cast<std::byte*>(l.workspace));
  launch_markov_rows(a, l, p.rows);
  find_variant(linear_f32_variants(), "sm80")->run(p.product, l);
  launch_markov_add(a, l, p.sums);
}

}  // namespace fathom::ops
#endif

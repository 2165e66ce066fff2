// The CUDA variants of the experts: conditions, workspace and launches. FP4 codes lie in an order of fp4_order.h.
//
//   sm80   mma.sync bf16, any GPU since the A100
//   sm90   the same kernels, each starting while the one before it ends (programmatic launch)
//   sm90_fast  on sm_90 with MXFP4 codes in the order of bytes: sums in groups of 32 columns, by fp8 products of
//              warpgroups from 5 tokens on; in the order of halves: such sums with 12 tokens and more
// The first two want codes in the order of halves, and give a token the same bits in every batch. Pointers of codes, x
// and y must be multiples of 16 bytes, those of fp4 scales of 8, and so must the distances between experts and rows.
// "sm90" reads weights before the previous kernel of the stream has ended: it must not write them; where x_is_old
// promises it, x too (few tokens).
#ifdef FATHOM_HAVE_CUDA
#include "ops/experts/moe_params.h"
#include "ops/order/order.h"

namespace fathom::ops {
namespace {

bool whole(int64_t n) {
  return n > 0 && n % moe::kBlock == 0 && n < int64_t{1} << 20;
}

bool fits(const ExpertWeight& w, int64_t rows, int64_t columns, ExpertFormat format, CodeOrder order) {
  return w.format == format && (w.order == order || format == ExpertFormat::fp8) && w.rows == rows &&
         w.columns == columns && w.codes_stride % 16 == 0 && (format == ExpertFormat::fp8 || w.scale_stride % 8 == 0);
}

bool fits(const Fp8Weight& w, int64_t rows, int64_t columns) {
  return w.codes.size[0] == rows && w.codes.size[1] == columns && w.codes.stride[0] % 16 == 0 &&
         w.codes.stride[0] < int64_t{1} << 24;
}

bool shared_fits(const ExpertsArgs& a) {
  if (!a.shared_w1.codes.data) return true;
  const int64_t d = a.x.size[1], inner = a.shared_w1.codes.size[0];
  return whole(inner) && fits(a.shared_w1, inner, d) && fits(a.shared_w3, inner, d) && fits(a.shared_w2, d, inner) &&
         a.shared_w1.codes.stride[0] == a.shared_w3.codes.stride[0];
}

/// With fewer, pieces are so few that a warp's own speed counts, and sums in slices are faster.
constexpr int kFewestInGroups = 12;

void run(const ExpertsArgs& a, const Launch& l, bool early, bool groups = false) {
  if (a.x.size[0] == 0) return;
  const moe::Plan plan = moe::make_plan(a, moe::most_tiles_of(l.device), early ? moe::stream_blocks_of(l.device) : 0);
  moe::Params p = moe::pack(a, plan);
  p.groups = groups && plan.stream_blocks > 0 && !plan.teams && p.tokens >= kFewestInGroups;
  moe::carve(a, plan, l.workspace, p);
  switch (a.w1.format) {
    case ExpertFormat::mxfp4:
      return moe::launch_mxfp4(p, plan, early, l.stream);
    case ExpertFormat::nvfp4:
      return moe::launch_nvfp4(p, plan, early, l.stream);
    case ExpertFormat::fp8:
      return moe::launch_fp8(p, plan, early, l.stream);
  }
}

/// Whether the half that y ends can be ended there, if it is wanted.
bool can_end(const ExpertsArgs& a, const DeviceInfo& device) {
  return !a.end.streams.data || (!a.sum.data && mix::end_fits(a.end, a.x.size[0], a.x.size[1]) &&
                                 moe::make_plan(a, moe::most_tiles_of(device), moe::stream_blocks_of(device)).ends);
}

bool can_run(const ExpertsArgs& a, const DeviceInfo& device, CodeOrder order) {
  const int64_t tokens = a.x.size[0], d = a.x.size[1], inner = a.w1.rows;
  // Offsets of activations are 32 bits wide, and so is the height of a grid limited.
  const int64_t slots = tokens * (a.expert.size[1] + 1);
  return device.backend == Backend::cuda && device.compute_capability >= 80 && whole(d) && whole(inner) &&
         a.expert.size[1] > 0 && a.experts > 0 && a.experts <= moe::kMostExperts &&
         fits(a.w1, inner, d, a.w1.format, order) && fits(a.w3, inner, d, a.w1.format, order) &&
         fits(a.w2, d, inner, a.w1.format, order) && shared_fits(a) && a.x.stride[0] % 8 == 0 &&
         a.y.stride[0] % 8 == 0 && slots < 60000 && slots * inner < int64_t{1} << 31 && tokens * d < int64_t{1} << 31;
}

}  // namespace

bool experts_sm80_can_run(const ExpertsArgs& a, const DeviceInfo& device) {
  return !a.end.streams.data && can_run(a, device, CodeOrder::halves);
}

bool experts_sm90_can_run(const ExpertsArgs& a, const DeviceInfo& device) {
  return device.compute_capability >= 90 && can_run(a, device, CodeOrder::halves) && can_end(a, device);
}

bool experts_sm90_fast_can_run(const ExpertsArgs& a, const DeviceInfo& device) {
  if (a.w1.order != CodeOrder::bytes) return experts_sm90_can_run(a, device);
  return bytes_suit(a.w1.format, a.w1.rows, a.w1.columns, device) && can_run(a, device, CodeOrder::bytes) &&
         can_end(a, device);
}

size_t experts_cuda_workspace(const ExpertsArgs& a, const DeviceInfo& device) {
  moe::Params p;
  return moe::carve(a, moe::make_plan(a, moe::most_tiles_of(device), moe::stream_blocks_of(device)), nullptr, p);
}

void experts_sm80(const ExpertsArgs& a, const Launch& l) {
  run(a, l, false);
}
void experts_sm90(const ExpertsArgs& a, const Launch& l) {
  run(a, l, true);
}
void experts_sm90_fast(const ExpertsArgs& a, const Launch& l) {
  run(a, l, true, true);
}

}  // namespace fathom::ops
#endif

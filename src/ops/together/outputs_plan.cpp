#include "ops/together/outputs_plan.h"

#include <algorithm>

namespace fathom::ops::together {
namespace {

moe::Weight pack(const Fp8Weight& w) {
  moe::Weight to;
  to.codes = reinterpret_cast<const std::byte*>(w.codes.data);
  to.scale = reinterpret_cast<const uint8_t*>(w.scale.data);
  to.row_bytes = static_cast<int32_t>(w.codes.stride[0]), to.scale_row = static_cast<int32_t>(w.scale.stride[0]);
  to.rows = static_cast<int32_t>(w.codes.size[0]), to.blocks = static_cast<int32_t>(w.codes.size[1] / moe::kBlock);
  return to;
}

/// Rings of as many stages as there is place for; false where that is less than two.
bool place(OutputParams& p, int64_t columns, bool ends) {
  constexpr int64_t kStage = kOutputWarps * (moe::kFewStage + int64_t{sizeof(uint64_t)});
  constexpr int64_t kSums = int64_t{kOutputWarps} * moe::kGroupRows * sizeof(float);  // of a token
  p.x_pitch = p.a.blocks * moe::kBlockBytes + 64, p.z_pitch = p.b.blocks * moe::kBlockBytes + 64;
  const int64_t rows = int64_t{p.tokens} * std::max(p.x_pitch, p.z_pitch), sums = p.tokens * kSums;
  const int64_t scales = columns / moe::kBlock * kScaledTokens * int64_t{sizeof(float)};
  const int64_t fixed = rows + sums + scales + (ends ? mix::kEndRoom : 0);
  if (fixed + 2 * kStage > moe::kFewShared) return false;
  moe::FewLayout& l = p.layout;
  l.warps = kOutputWarps;
  l.stages = static_cast<int32_t>(std::min<int64_t>(moe::kFewMostStages, (moe::kFewShared - fixed) / kStage));
  l.barriers = l.scales = l.stages * kOutputWarps * moe::kFewStage;
  l.rows = l.barriers + l.stages * kOutputWarps * static_cast<int32_t>(sizeof(uint64_t));
  l.sums = static_cast<int32_t>(l.rows + rows);
  p.scales = static_cast<int32_t>(l.sums + sums);
  l.bytes = static_cast<int32_t>(p.scales + scales);
  if (ends) l.place_end();
  return true;
}

}  // namespace

OutputParams lay_out(const OutputProductsArgs& a, const DeviceInfo& device) {
  OutputParams p;
  const OutputProjectArgs& h = a.heads;
  const int64_t rows = h.wo_a.codes.size[0], columns = h.wo_a.codes.size[1], out = a.wo_b.codes.size[0];
  if (device.compute_capability != 90 || device.shared_bytes < moe::kFewShared) return p;
  if (h.o.size[0] == 0 || h.o.size[0] > kMostOutputTokens || h.groups <= 0 || a.wo_b.codes.size[1] != rows) return p;
  p.blocks = static_cast<int32_t>(out / kOutputRows);
  if (p.blocks == 0 || out % kOutputRows != 0 || p.blocks > device.sm_count) return p;
  const int64_t tiles = rows / moe::kGroupRows / p.blocks, rank = rows / h.groups;
  while (1 << p.log2_tiles < tiles) ++p.log2_tiles;
  const bool even = tiles * moe::kGroupRows * p.blocks == rows && 1 << p.log2_tiles == tiles && tiles <= kOutputWarps;
  const bool dense = h.wo_a.codes.stride[0] == columns && a.wo_b.codes.stride[0] == rows && h.o.stride[0] % 8 == 0 &&
                     h.o.stride[1] % 8 == 0 && h.z.stride[0] % 8 == 0;
  if (!even || !dense || h.o.size[2] != 512 || rank * h.groups != rows || rank % (tiles * moe::kGroupRows) != 0 ||
      columns % moe::kBlock != 0 || rows % moe::kBlock != 0 || columns != h.o.size[1] / h.groups * 512)
    return p;
  p.a = pack(h.wo_a), p.b = pack(a.wo_b);
  // Every slice has blocks, and a lane has the scale of one.
  const auto divides = [](int blocks, int slices) { return blocks >= slices && blocks <= 32 * slices; };
  if (!divides(p.a.blocks, kOutputWarps >> p.log2_tiles) || !divides(p.b.blocks, kOutputWarps / 2)) return p;
  p.o = reinterpret_cast<const std::byte*>(h.o.data);
  p.token_bytes = 2 * h.o.stride[0], p.head_bytes = 2 * h.o.stride[1];
  p.z = h.z.data, p.z_stride = h.z.stride[0], p.y = a.y.data, p.y_stride = a.y.stride[0];
  p.tokens = static_cast<int32_t>(h.o.size[0]), p.rank = static_cast<int32_t>(rank);
  p.group_heads = static_cast<int32_t>(h.o.size[1] / h.groups);
  const bool ends = a.end.streams.data != nullptr;
  if (ends && !mix::end_fits(a.end, p.tokens, out)) return p;
  if (ends) p.end = mix::pack_end(a.end);
  p.fits = place(p, std::max(rows, columns), ends);
  return p;
}

}  // namespace fathom::ops::together

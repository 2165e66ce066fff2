// Plan, workspace and parameters of the expert kernels.
#include <algorithm>
#include <bit>

#include "ops/experts/moe_params.h"

namespace fathom::ops::moe {
namespace {

/// Slices of 8 blocks or more, so that a warp has enough to do between its first load and its last sum.
int log2_slices_for(int64_t columns) {
  const auto most = static_cast<unsigned>(std::max<int64_t>(1, columns / kBlock / 8));
  return std::min(std::bit_width(most) - 1, std::bit_width(static_cast<unsigned>(kMaxSlices)) - 1);
}

int64_t shared_rows(const ExpertsArgs& a) {
  return a.shared_w1.codes.data ? a.shared_w1.codes.size[0] : 0;
}

/// Partial sums of a block, [slice][set][2][token][row] with rows padded; before them, the ring of activations or those
/// of weights.
size_t shared_bytes(int warps, int tiles) {
  const size_t sums = static_cast<size_t>(2 * warps * 8 * tiles) * (kGroupRows + 4) * sizeof(float);
  return std::max<size_t>(sums, tiles > 2 ? kRingBytes : uses_ring(tiles) ? warps * kWeightRing : 0);
}

/// With codes in the order of bytes teams are faster from one token more on.
inline constexpr int64_t kMostFewBytes = 4;

inline constexpr int64_t kFewWarpStage = kFewStage + kFewScaleBytes + 8, kFewMeeting = 4 * 8;  // bytes

/// `l` with rings of `stages` stages, `groups` barriers of groups of warps and `rows` bytes of activations.
void place_few(FewLayout& l, int warps, int64_t stages, int64_t groups, int64_t rows, int64_t sums) {
  l.warps = warps, l.stages = static_cast<int32_t>(std::min<int64_t>(kFewMostStages, stages));
  l.scales = l.stages * warps * kFewStage;
  l.barriers = l.scales + l.stages * warps * kFewScaleBytes;
  l.meeting = l.barriers + l.stages * warps * 8;
  l.rows = static_cast<int32_t>(l.meeting + groups * kFewMeeting);
  l.sums = static_cast<int32_t>(l.rows + rows);
  l.bytes = static_cast<int32_t>(l.sums + sums * 4);
}

/// `rows` of activations of `width` columns; `sums` in fp32 of a block, and of each four warps and the shared expert.
/// `scales`: of the rows' blocks lie behind each. Takes the most warps, at most `most_warps`, whose rings have two
/// stages, and then the most stages.
FewLayout few_layout(int64_t rows, int64_t width, int64_t sums, int64_t sums_of_four, int most_warps, bool scales) {
  FewLayout l;
  // Neighbouring rows meet in no bank.
  const int64_t behind = scales ? 64 + (width / kBlock * 4 + 63) / 128 * 128 : 64;
  l.row_pitch = static_cast<int32_t>(2 * width + behind);
  for (int warps = most_warps; warps >= 2 * kMaxSlices; warps -= kMaxSlices) {
    const int64_t groups = warps / kMaxSlices + 1, all_sums = sums + groups * sums_of_four;
    const int64_t fixed = rows * l.row_pitch + all_sums * 4 + groups * kFewMeeting;
    const int64_t stages = fixed < kFewShared ? (kFewShared - fixed) / (warps * kFewWarpStage) : 0;
    if (stages < 2) continue;
    place_few(l, warps, stages, groups, rows * l.row_pitch, all_sums);
    break;
  }
  return l;
}

/// One launch for both products where the rings have place beside the rows of either, and beside what the end of the
/// half needs where that is wanted.
void plan_both(Plan& p, int64_t tokens, int64_t slots, int64_t sums, int64_t sums_of_four, int64_t blocks, int sms,
               bool ends) {
  static_assert(kFewUpWarps == kFewDownWarps);
  constexpr int64_t kGroups = kFewUpWarps / kMaxSlices + 1;
  const int64_t rows = std::max(tokens * p.few_up.row_pitch, slots * p.few_down.row_pitch);
  const int64_t all_sums = std::max(sums, kGroups * sums_of_four);
  const int64_t fixed = rows + all_sums * 4 + kGroups * kFewMeeting + (ends ? mix::kEndRoom : 0);
  const int64_t stages = fixed < kFewShared ? (kFewShared - fixed) / (kFewUpWarps * kFewWarpStage) : 0;
  p.both = stages >= 2 && blocks <= sms;
  if (!p.both) return;
  place_few(p.few_up, kFewUpWarps, stages, kGroups, rows, all_sums);
  place_few(p.few_down, kFewUpWarps, stages, kGroups, rows, all_sums);
  p.ends = ends;
  if (ends) p.few_up.place_end();
}

/// The plan of moe_few.cuh, where its conditions hold.
void plan_few(Plan& p, const ExpertsArgs& a, int64_t inner, int sms) {
  const int64_t tokens = a.x.size[0], routed = tokens * a.expert.size[1], d = a.x.size[1];
  if (a.w1.format != ExpertFormat::mxfp4 || tokens > kFewTokens || routed > kFewSlots) return;
  const bool bytes = a.w1.order == CodeOrder::bytes;
  const int64_t sums_of_four = 2 * 2 * tokens * kGroupRows << p.log2_up_slices;
  p.few_up = few_layout(tokens, d, 0, sums_of_four, kFewUpWarps, bytes);
  const int64_t slots = routed + (a.shared_w1.codes.data ? tokens : 0);
  const int64_t sums = slots * 2 * kGroupRows << p.log2_down_slices;
  p.few_down = few_layout(slots, inner, sums, 0, kFewDownWarps, bytes);
  const int64_t widest = std::max(d >> p.log2_up_slices, inner >> p.log2_down_slices) / kBlock + 1;
  p.few = p.few_up.stages > 0 && p.few_down.stages > 0 && widest <= 32;  // a lane has the scale of a block
  if (!p.few) return;
  p.log2_up_sets = p.log2_down_sets = 0, p.stream_blocks = p.many_blocks = 0;
  constexpr int64_t kMostShares = 4;  // as many as there are tiles for with one token
  p.few_shares = static_cast<int>(std::clamp<int64_t>(sms / (inner / kGroupRows), 1, kMostShares));
  plan_both(p, tokens, slots, sums, sums_of_four, std::max(inner / kGroupRows * p.few_shares, d / (2 * kGroupRows)),
            sms, a.end.streams.data != nullptr);
}

Weight pack(const ExpertWeight& w) {
  Weight to;
  to.codes = w.codes, to.scale = reinterpret_cast<const uint8_t*>(w.scale), to.global = w.global_scale;
  to.expert_codes = w.codes_stride, to.expert_scale = w.scale_stride;
  to.row_bytes = static_cast<int32_t>(w.code_row_bytes()), to.scale_row = static_cast<int32_t>(w.scale_columns());
  to.rows = static_cast<int32_t>(w.rows), to.blocks = static_cast<int32_t>(w.columns / kBlock);
  return to;
}

Weight pack(const Fp8Weight& w) {
  Weight to;
  to.codes = reinterpret_cast<const std::byte*>(w.codes.data);
  to.scale = reinterpret_cast<const uint8_t*>(w.scale.data);
  to.row_bytes = static_cast<int32_t>(w.codes.stride[0]), to.scale_row = static_cast<int32_t>(w.scale.stride[0]);
  to.rows = static_cast<int32_t>(w.codes.size[0]), to.blocks = static_cast<int32_t>(w.codes.size[1] / kBlock);
  return to;
}

}  // namespace

Plan make_plan(const ExpertsArgs& a, int most_tiles, int stream_blocks) {
  Plan p;
  const int64_t tokens = a.x.size[0], slots = tokens * a.expert.size[1], d = a.x.size[1];
  const int64_t inner = std::max(a.w1.rows, shared_rows(a));
  const int64_t least = shared_rows(a) ? std::min(a.w1.rows, shared_rows(a)) : a.w1.rows;
  // Most experts have few tokens: T k / E on average.
  const int64_t each = slots / std::max<int64_t>(1, a.experts);
  p.tiles = tokens <= 4                          ? 1
            : each <= 12                         ? 2
            : a.w1.format == ExpertFormat::nvfp4 ? 6
            : a.w1.format == ExpertFormat::mxfp4 ? most_tiles
                                                 : 8;
  p.log2_up_slices = log2_slices_for(d), p.log2_down_slices = log2_slices_for(least);
  // Small blocks spread few experts over the GPU; larger ones share activations.
  p.log2_up_sets = p.tiles > 2 ? 3 : tokens <= 4 ? 0 : 2 - p.log2_up_slices;
  p.log2_down_sets = p.tiles <= 2 ? (tokens <= 4 ? 0 : 2 - p.log2_down_slices) : d % 256 == 0 ? 3 : 2;
  // Warps that stream take 8 tokens of an expert; with many more on average its weights would be read twice.
  const bool bytes = a.w1.order == CodeOrder::bytes;
  if (p.tiles == 2 && each <= 4 && a.w1.format == ExpertFormat::mxfp4)
    p.stream_blocks = stream_blocks;
  else if (p.tiles >= 2 && each > 8 && a.w1.format == ExpertFormat::mxfp4 && !bytes && d % (2 * kManyRows) == 0)
    p.many_blocks = stream_blocks, p.many_tokens = each > 24 ? kManyTokens : kManyTokens / 2;
  if (stream_blocks > 0 && (!bytes || tokens <= kMostFewBytes)) plan_few(p, a, inner, stream_blocks);
  p.teams = bytes && !p.few;
  // Tiles of 16 where many experts have more than 8.
  if (p.teams) p.tiles = 2, p.stream_blocks = stream_blocks, p.team_tokens = each >= 6 ? 16 : 8;
  const int64_t tile = p.tile_tokens(), shared = p.shared_tokens();
  p.shared_tiles = a.shared_w1.codes.data ? static_cast<int>((tokens + shared - 1) / shared) : 0;
  const int64_t touched = std::min<int64_t>(a.experts, slots);
  p.most_tiles = p.shared_tiles + static_cast<int>((slots + touched * (tile - 1)) / tile);
  p.up_blocks = static_cast<int>(inner / (kGroupRows << p.log2_up_sets)) * p.few_shares;
  p.down_blocks = static_cast<int>(d / (2 * kGroupRows << p.log2_down_sets));
  p.up_shared = shared_bytes(p.up_threads() / 32, p.tiles);
  p.down_shared = shared_bytes(p.down_threads() / 32, p.tiles);
  p.prepare_shared = 4 * sizeof(uint32_t) * static_cast<size_t>(std::max<int64_t>(a.experts, 1) + a.expert.size[1]);
  return p;
}

size_t carve(const ExpertsArgs& a, const Plan& plan, void* memory, Params& p) {
  auto* base = static_cast<std::byte*>(memory);
  size_t used = 0;
  const auto take = [&]<typename T>(T*& to, int64_t count) {
    to = base ? reinterpret_cast<T*>(base + used) : nullptr;
    used += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
  };
  const int64_t tokens = a.x.size[0], d = a.x.size[1], routed = tokens * a.expert.size[1];
  const int64_t slots = routed + (plan.shared_tiles ? tokens : 0), pitch = std::max(a.w1.rows, shared_rows(a));
  p.hidden_pitch = static_cast<int32_t>(pitch);
  p.row_arrivals = static_cast<int32_t>(plan.most_tiles * (pitch / kBlock));
  const auto row_groups = plan.stream_blocks ? static_cast<int32_t>(d / (2 * kGroupRows)) : plan.down_blocks;
  p.counters = p.row_arrivals + row_groups + (plan.stream_blocks ? 2 : 0);
  take(p.gate, 1), take(p.tile, plan.most_tiles), take(p.tile_count, 1), take(p.sorted, routed),
      take(p.arrivals, p.counters);
  take(p.x_wide, plan.teams ? 0 : tokens * d * (plan.many_blocks && plan.shared_tiles ? 2 : 1));
  take(p.hidden, slots * pitch), take(p.part, slots * d);
  const auto tiles = [&](int64_t routed_columns, int64_t shared_columns) {
    return (plan.most_tiles - plan.shared_tiles) * routed_columns / (2 * kBlock) * team_x_bytes(plan.team_tokens) +
           plan.shared_tiles * shared_columns / kBlock * kSharedXBytes;
  };
  if (plan.teams) take(p.x_tiles, tiles(d, d)), take(p.hidden_tiles, tiles(a.w1.rows, shared_rows(a)));
  return used;
}

Params pack(const ExpertsArgs& a, const Plan& plan) {
  Params p;
  p.w1 = pack(a.w1), p.w3 = pack(a.w3), p.w2 = pack(a.w2);
  if (plan.shared_tiles) p.s1 = pack(a.shared_w1), p.s3 = pack(a.shared_w3), p.s2 = pack(a.shared_w2);
  p.x = a.x.data, p.x_stride = a.x.stride[0];
  p.x_scale = a.x_scale.data, p.x_scale_stride = a.x_scale.stride[0];
  p.expert = a.expert.data, p.expert_stride = a.expert.stride[0];
  p.weight = a.weight.data, p.weight_stride = a.weight.stride[0];
  p.y = a.y.data, p.y_stride = a.y.stride[0];
  p.sum = a.sum.data, p.sum_stride = a.sum.stride[0];
  p.tokens = static_cast<int32_t>(a.x.size[0]), p.choices = static_cast<int32_t>(a.expert.size[1]);
  p.experts = a.experts, p.first_expert = a.first_expert;
  p.d = static_cast<int32_t>(a.x.size[1]), p.limit = a.limit;
  if (plan.ends) p.end = mix::pack_end(a.end);
  p.tile_tokens = plan.tile_tokens(), p.shared_tokens = plan.shared_tokens(), p.shared_tiles = plan.shared_tiles;
  p.few = p.tokens <= p.tile_tokens && p.tokens * p.choices <= 32;
  p.log2_up_slices = plan.log2_up_slices, p.log2_down_slices = plan.log2_down_slices;
  p.x_is_old = a.x_is_old, p.many = plan.many_blocks > 0, p.few_up = plan.few_up, p.few_down = plan.few_down;
  p.few_shares = plan.few_shares;
  p.teams = plan.teams, p.bytes = a.w1.order == CodeOrder::bytes;
  p.log2_up_sets = plan.log2_up_sets, p.log2_down_sets = plan.log2_down_sets;
  return p;
}

}  // namespace fathom::ops::moe

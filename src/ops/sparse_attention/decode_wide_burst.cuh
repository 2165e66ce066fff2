// The sm_90a kernel for few rows a block: 64 heads, V4 rows, at most kTiles tiles of 16, products by two warpgroups.
//
// What decode_burst.cuh is beside decode_kernel.cuh, this is beside decode_wide.cuh: no pipeline, since a block has all
// its rows at once. Every warp fetches its eighth of the rows into registers and leaves them, decoded once to fp16, in
// the swizzle that serves both products; the queries come in beside them and are converted while the rows are on their
// way. Then each warpgroup computes the scores of half of the rows, both agree on the heads' largest scores, and each
// computes half of the channels of the output. Values that fp16 cannot hold send the block through all of it again in
// bf16.
#pragma once

#include "ops/device/gpu_columns.cuh"
#include "ops/sparse_attention/decode_burst.cuh"
#include "ops/sparse_attention/decode_wide_common.cuh"

namespace fathom::ops::sparse_decode::wide {

/// Shared memory of a block with kTiles tiles of 16 rows. Probabilities take the queries' place.
template <int kTiles_>
struct BurstLayout {
  static constexpr RowFormat kFormat = RowFormat::bf16;  // the layout of output fragments: no slice holds codes
  static constexpr int kMTiles = 4, kHeads = kHeadsOfBlock;
  static constexpr int kQuads = kMTiles * kWarps * 8 * 32, kSumAhead = 4;
  static constexpr int kTiles = kTiles_, kTileRows = 16, kRows = kTiles * kTileRows;
  static constexpr int kEach = kRows / kWarps;     // rows that a warp fetches
  static constexpr int kColumns = kRows / 2;       // rows whose scores a warpgroup computes
  static constexpr int kChunkBytes = kRows * 128;  // all rows x 64 channels
  static constexpr int kQueryAt = 0, kProbabilityAt = 0;
  static constexpr int kTileAt = kQueryAt + 8 * kQueryChunkBytes;
  static constexpr int kRowBiasAt = kTileAt + 8 * kChunkBytes;  // float [rows]: 0 or -inf
  static constexpr int kMostAt = kRowBiasAt + kRows * 4;    // float [2][64]: largest scores of each warpgroup's rows
  static constexpr int kSumAt = kMostAt + 2 * kHeads * 4;   // float [2][64]
  static constexpr int kStateAt = kSumAt + 2 * kHeads * 4;  // float2 [64]
  static constexpr int kSinkAt = kStateAt + kHeads * 8;     // float [64]
  static constexpr int kRotationAt = kSinkAt + kHeads * 4;
  static constexpr int kFlagAt = kRotationAt + 32 * 8;
  static constexpr int kSharedBytes = kFlagAt + 16;
  static constexpr int kGroupRowsAt = 0;
  static constexpr int kWeightsAt = kWarps * 8 * (256 + 16);
  static constexpr int kFactorsAt = kWeightsAt + kMostSplits * kHeads * 4;
  static_assert(kFactorsAt + kMostSplits * kMTiles * kWarps * 4 <= kTileAt && kHeads * kRowBytes <= kRowBiasAt);
  static_assert(kEach <= 32 && kColumns % 8 == 0 && (kRows + 63) / 64 * kQueryChunkBytes <= kTileAt);
};

/// One block's work.
template <typename L>
struct BurstBlock {
  Shared<L> shared;
  const Params& p;
  int token, first_head;

  FATHOM_DEVICE std::byte* queries() const { return shared.base + L::kQueryAt; }
  FATHOM_DEVICE std::byte* tile() const { return shared.base + L::kTileAt; }
  FATHOM_DEVICE float* most(int group) const {
    return reinterpret_cast<float*>(shared.base + L::kMostAt) + group * L::kHeads;
  }
  FATHOM_DEVICE float* sums(int group) const {
    return reinterpret_cast<float*>(shared.base + L::kSumAt) + group * L::kHeads;
  }
};

/// Reads lengths and indices as find_rows() does for the other kernel; lane i < kEach of warp w has row kEach w + i.
template <typename L>
FATHOM_DEVICE RowPlace find_burst_rows(const BurstBlock<L>& b, const Place& at, Share& share) {
  const Params& p = b.p;
  const int split = device::block_x(), splits = device::grid_x(), row = L::kEach * at.warp + at.lane;
  const RowCounts all{p.window.most, p.extra.most};
  const Share guess = share_of_token(p, all, L::kTileRows, splits, split);
  const auto slot_of = [&](RowCounts counts, const Share& s) {
    return at.lane < L::kEach && row < s.tiles * L::kTileRows
               ? load_slot(p, b.token, counts, s.first_tile * L::kTileRows + row)
               : -1;
  };
  int slot = slot_of(all, guess);
  const RowCounts counts{clamp_length(p.window, b.token), clamp_length(p.extra, b.token)};
  share = share_of_token(p, counts, L::kTileRows, splits, split);
  if (counts.window != all.window || counts.extra != all.extra) slot = slot_of(counts, share);
  return place_of(share.first_tile * L::kTileRows + row < counts.window ? p.window : p.extra, slot);
}

/// A warp's rows in registers: of row i the lane's 16 codes (lanes 0..27) and their scale byte; of RoPE channels 8 of
/// row 4 k + lane / 8.
template <typename L>
struct WarpRows {
  static constexpr int kRopes = (L::kEach + 3) / 4;
  device::Float4 codes[L::kEach], rope[kRopes];
  uint8_t scale[L::kEach];
  uint32_t present;  // bit i: row i is there
};

template <typename L>
FATHOM_DEVICE void load_rows(const Place& at, RowPlace mine, WarpRows<L>& rows) {
  const auto address = reinterpret_cast<uint64_t>(mine.data);
  const bool codes = at.lane < 28;
  rows.present = 0;
  FATHOM_UNROLL
  for (int i = 0; i < L::kEach; ++i) {
    const auto* data = reinterpret_cast<const std::byte*>(device::shuffle_from(address, i));
    const int to_scales = device::shuffle_from(mine.to_scales, i);
    rows.present |= data ? 1u << i : 0;
    rows.codes[i] = {0, 0, 0, 0}, rows.scale[i] = kUnit;
    if (!data || !codes) continue;
    rows.codes[i] = device::load_once(reinterpret_cast<const device::Float4*>(data) + at.lane);
    rows.scale[i] = static_cast<uint8_t>(data[to_scales + at.lane / 4]);
  }
  FATHOM_UNROLL
  for (int k = 0; k < WarpRows<L>::kRopes; ++k) {
    const int row = 4 * k + at.lane / 8;
    const auto* data = reinterpret_cast<const std::byte*>(device::shuffle_from(address, row < L::kEach ? row : 31));
    rows.rope[k] = {0, 0, 0, 0};
    if (data && row < L::kEach)
      rows.rope[k] = device::load_once(reinterpret_cast<const device::Float4*>(data + kNopeDim) + at.lane % 8);
  }
}

/// Leaves the warp's rows decoded in the tile. Returns whether fp16 could not hold something.
template <bool kHalf, typename L>
FATHOM_DEVICE bool store_rows(const BurstBlock<L>& b, const Place& at, const WarpRows<L>& rows) {
  bool bad = false;
  const int first = L::kEach * at.warp;
  if (at.lane < L::kEach)
    b.shared.row_bias()[first + at.lane] = rows.present >> at.lane & 1 ? 0.0f : -__builtin_huge_valf();
  // Lanes of odd chunks store their upper half first: eight lanes then touch all banks.
  const int chunk = at.lane / 4, upper = chunk & 1;
  std::byte* to = b.tile() + chunk * L::kChunkBytes;
  FATHOM_UNROLL
  for (int i = 0; i < L::kEach; ++i) {
    uint32_t word[4], out[8];
    __builtin_memcpy(word, &rows.codes[i], sizeof(word));
    const uint32_t code[4] = {upper ? word[2] : word[0], upper ? word[3] : word[1], upper ? word[0] : word[2],
                              upper ? word[1] : word[3]};
    const int scale = rows.scale[i];
    bad |= kHalf && (scale > kHighestScale || scale < kLowestScale);
    decode_piece<kHalf>(code, scale, out);
    device::Float4 v[2];
    __builtin_memcpy(v, out, sizeof(v));
    if (at.lane >= 28) continue;
    *reinterpret_cast<device::Float4*>(to + swizzle(first + i, 2 * at.t + upper)) = v[0];
    *reinterpret_cast<device::Float4*>(to + swizzle(first + i, 2 * at.t + 1 - upper)) = v[1];
  }
  FATHOM_UNROLL
  for (int k = 0; k < WarpRows<L>::kRopes; ++k) {
    const int row = 4 * k + at.lane / 8;
    uint32_t word[4];
    device::Float4 v = rows.rope[k];
    __builtin_memcpy(word, &v, sizeof(word));
    bad |= decode_rope_piece<kHalf>(word);
    __builtin_memcpy(&v, word, sizeof(v));
    if (row < L::kEach)
      *reinterpret_cast<device::Float4*>(b.tile() + kRopeGroup * L::kChunkBytes + swizzle(first + row, at.lane % 8)) =
          v;
  }
  return bad;
}

/// Scores of the warpgroup's rows, in powers of two, masked: register 4 j + i holds row 8 j + 2 t + (i & 1) of them.
template <bool kHalf, typename L>
FATHOM_DEVICE void burst_scores(const BurstBlock<L>& b, const Place& at, int group, float (&score)[L::kColumns / 2]) {
  const std::byte* rows = b.tile() + group * L::kColumns * 128;
  device::multiply_begin();
  FATHOM_UNROLL
  for (int step = 0; step < 32; ++step) {
    const auto q = device::describe_matrix(b.queries() + step / 4 * kQueryChunkBytes + step % 4 * 32, 16, 1024);
    const auto k = device::describe_matrix(rows + step / 4 * L::kChunkBytes + step % 4 * 32, 16, 1024);
    if (kHalf)
      device::multiply_columns_f16(score, q, k, step > 0);
    else
      device::multiply_columns_bf16(score, q, k, step > 0);
  }
  device::multiply_end();
  const float scale = kHalf ? b.p.score_scale * kUnitValue : b.p.score_scale;
  const float* bias = b.shared.row_bias() + group * L::kColumns + 2 * at.t;
  FATHOM_UNROLL
  for (int j = 0; j < L::kColumns / 8; ++j) {
    const FloatVector<2> mask = *reinterpret_cast<const FloatVector<2>*>(bias + 8 * j);
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) score[4 * j + i] = score[4 * j + i] * scale + mask.v[i % 2];
  }
}

/// Scores -> probabilities in shared memory, the heads' references and sums.
template <bool kHalf, typename L>
FATHOM_DEVICE void burst_softmax(const BurstBlock<L>& b, const Place& at, int group,
                                 const float (&score)[L::kColumns / 2]) {
  const int head = at.warp % 4 * 16 + at.g;
  FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    float most = -__builtin_huge_valf();
    FATHOM_UNROLL
    for (int j = 0; j < L::kColumns / 4; ++j) {
      const float v = score[4 * (j / 2) + 2 * half + j % 2];
      most = v > most ? v : most;
    }
    most = largest_of_head(most);
    if (at.t == 0) b.most(group)[head + 8 * half] = most;
  }
  device::sync_block();  // also: nobody needs the queries any more
  FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int local = head + 8 * half;
    const float one = b.most(0)[local], other = b.most(1)[local], most = one > other ? one : other;
    const float reference = most == -__builtin_huge_valf() ? 0.0f : most;
    float sum = 0;
    FATHOM_UNROLL
    for (int j = 0; j < L::kColumns / 8; ++j) {
      const float a = device::exp2_fast(score[4 * j + 2 * half] - reference);
      const float c = device::exp2_fast(score[4 * j + 2 * half + 1] - reference);
      sum += a + c;
      const int piece = group * (L::kColumns / 8) + j;
      std::byte* to = b.shared.base + L::kProbabilityAt + piece / 8 * kQueryChunkBytes + swizzle(local, piece % 8);
      *reinterpret_cast<uint32_t*>(to + 4 * at.t) = kHalf ? device::pack_f16x2(a, c) : device::pack_bf16x2(a, c);
    }
    sum += device::shuffle_xor(sum, 1);
    sum += device::shuffle_xor(sum, 2);
    if (at.t == 0) b.sums(group)[local] = sum;
    if (at.t == 0 && group == 0) b.shared.state()[2 * local] = most;
  }
  device::publish_to_products();
  device::sync_block();
  if (at.thread < L::kHeads) b.shared.state()[2 * at.thread + 1] = b.sums(0)[at.thread] + b.sums(1)[at.thread];
}

/// Half of the channels of P V.
template <bool kHalf, typename L>
FATHOM_DEVICE void burst_values(const BurstBlock<L>& b, int group, WideOutput& output) {
  device::multiply_begin();
  FATHOM_UNROLL
  for (int step = 0; step < L::kTiles; ++step) {
    const auto p = device::describe_matrix(
        b.shared.base + L::kProbabilityAt + step / 4 * kQueryChunkBytes + step % 4 * 32, 16, 1024);
    const auto v = device::describe_matrix(b.tile() + 4 * group * L::kChunkBytes + 2048 * step, L::kChunkBytes, 1024);
    if (kHalf)
      device::multiply_256_f16(output.sum, p, v, step > 0);
    else
      device::multiply_256_bf16(output.sum, p, v, step > 0);
  }
  device::multiply_end();
}

/// Scores, softmax, output, and what the block leaves: rounded rows (alone) or a partial result.
template <bool kHalf, typename L>
FATHOM_DEVICE void burst_attend(const BurstBlock<L>& b, const Place& at, int blocks) {
  const int group = device::uniform(at.warp / 4);
  {
    float score[L::kColumns / 2];
    burst_scores<kHalf>(b, at, group, score);
    burst_softmax<kHalf>(b, at, group, score);
  }
  WideOutput output;
  burst_values<kHalf>(b, group, output);
  device::sync_block();  // states are written; rows and probabilities have been read
  const float* states = b.shared.state();
  if (blocks == 1) {
    round_output<kHalf>(b.shared, b.p, states, output);
    return;
  }
  const Partials<L> partials{b.p, this_unit()};
  if (at.thread < 2 * L::kHeads) partials.state(device::block_x())[at.thread] = states[at.thread];
  leave_quads<kHalf>(partials, device::block_x(), states, output);
}

/// The block's whole work; the grid is (splits, groups of 64 heads, tokens), a block has two warpgroups.
template <typename L>
FATHOM_DEVICE void wide_burst_block(const Params& p, std::byte* shared_base) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const Place place;
  const BurstBlock<L> b{{shared_base}, p, device::block_z(), device::block_y() * L::kHeads};
  Share share;
  const RowPlace mine = find_burst_rows<L>(b, place, share);
  const int blocks = share.blocks;
  if (static_cast<int>(device::block_x()) >= blocks) return;
  ask_for_sinks<L>(b.shared, p, b.first_head);
  ask_for_queries(b.queries(), p, b.token, b.first_head);
  bool bad;
  {
    WarpRows<L> rows;
    load_rows<L>(place, mine, rows);
    if (blocks > 1 && place.thread == 0) remember_arrivals<L>(b.shared, p);
    if (p.position && place.warp == 4) prepare_rotations<L>(b.shared, p, b.token, place.lane);
    bad = convert_queries<true>(b.queries());
    bad |= store_rows<true>(b, place, rows);
  }
  device::publish_to_products();
  if (!device::any_thread(bad)) {
    burst_attend<true>(b, place, blocks);
  } else {
    ask_for_queries(b.queries(), p, b.token, b.first_head);
    WarpRows<L> rows;
    load_rows<L>(place, mine, rows);
    convert_queries<false>(b.queries());
    store_rows<false>(b, place, rows);
    device::publish_to_products();
    device::sync_block();
    burst_attend<false>(b, place, blocks);
  }
  if (blocks > 1) {
    meet<L>(b.shared, Partials<L>{p, this_unit()}, b.token, b.first_head, blocks);
  } else {
    device::sync_block();
    finish_rows<L>(b.shared, p, b.token, b.first_head);
  }
}

}  // namespace fathom::ops::sparse_decode::wide

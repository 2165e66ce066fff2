// The sm_90a kernel for many tokens: 64 heads, V4 rows, products by warpgroups out of shared memory.
//
// Three warpgroups. The producers (third) read 64 rows at a time, decode each code once to fp16 and leave the tile in
// the swizzle that serves both products: rows x channels for Q K^T, channels x rows for P V. The first warpgroup
// computes scores and softmax and the output's channels 0..255, the second the other 256. Two tiles and two sets of
// probabilities are in flight; mbarriers hand them over.
#pragma once

#include "ops/sparse_attention/decode_wide_common.cuh"

namespace fathom::ops::sparse_decode::wide {

inline constexpr int kBlockThreads = 3 * device::kWarpgroup;
inline constexpr int kRows = 64;
inline constexpr int kChunkBytes = kRows * 128;  // 64 rows (or heads) x 64 channels
inline constexpr int kTileBytes = 8 * kChunkBytes;

/// Shared memory, and the layout of output fragments: that of bf16 rows of the other kernel.
struct Layout {
  static constexpr RowFormat kFormat = RowFormat::bf16;
  static constexpr int kMTiles = 4, kHeads = 64;
  static constexpr int kQuads = kMTiles * kWarps * 8 * 32, kSumAhead = 12;
  static constexpr int kQueryAt = 0;
  static constexpr int kTileAt = kQueryAt + kTileBytes;                   // two
  static constexpr int kProbabilityAt = kTileAt + 2 * kTileBytes;         // two of [64 heads][64 rows]
  static constexpr int kCorrectionAt = kProbabilityAt + 2 * kChunkBytes;  // float [2][64]
  static constexpr int kBiasAt = kCorrectionAt + 2 * 64 * 4;              // float [2][64]
  static constexpr int kStateAt = kBiasAt + 2 * 64 * 4;                   // float2 [64]
  static constexpr int kSinkAt = kStateAt + 64 * 8;                       // float [64]
  static constexpr int kRotationAt = kSinkAt + 64 * 4;
  static constexpr int kChangedAt = kRotationAt + 32 * 8;  // byte [2][4]
  static constexpr int kFlagAt = kChangedAt + 16;          // [0] parts of the final sum, [1] a value did not fit
  static constexpr int kPhasesAt = kFlagAt + 16;
  static constexpr int kSharedBytes = kPhasesAt + 10 * 8;
  static constexpr int kGroupRowsAt = kTileAt;
  static constexpr int kWeightsAt = kTileAt + kWarps * 8 * (256 + 16);
  static constexpr int kFactorsAt = kWeightsAt + kMostSplits * kHeads * 4;
  static constexpr int kIncomingAt = kFactorsAt + kMostSplits * kMTiles * kWarps * 4;
  static_assert(kIncomingAt + incoming_bytes(kMTiles, kSumAhead) <= kProbabilityAt);
};

/// Barriers: `full` and `empty` tiles, `ready` and `free` probabilities, the queries, the end of the walk.
struct Barriers {
  device::Phases full[2], empty[2], ready[2], free[2], queries, done;
};

struct Block {
  Shared<Layout> shared;
  const Params& p;
  RowCounts counts;
  Share share;

  FATHOM_DEVICE static int token() { return device::block_z(); }
  FATHOM_DEVICE static int first_head() { return device::block_y() * Layout::kHeads; }
  FATHOM_DEVICE Barriers& barriers() const { return *reinterpret_cast<Barriers*>(shared.base + Layout::kPhasesAt); }
  FATHOM_DEVICE std::byte* tile(int n) const { return shared.base + Layout::kTileAt + (n & 1) * kTileBytes; }
  FATHOM_DEVICE std::byte* probabilities(int n) const {
    return shared.base + Layout::kProbabilityAt + (n & 1) * kChunkBytes;
  }
  FATHOM_DEVICE float* correction(int n) const {
    return reinterpret_cast<float*>(shared.base + Layout::kCorrectionAt) + (n & 1) * 64;
  }
  FATHOM_DEVICE float* bias(int n) const {
    return reinterpret_cast<float*>(shared.base + Layout::kBiasAt) + (n & 1) * 64;
  }
  FATHOM_DEVICE uint8_t* changed(int n) const {
    return reinterpret_cast<uint8_t*>(shared.base + Layout::kChangedAt) + (n & 1) * 4;
  }
};

// ---- producers ----

/// Where a row lies: data, and from there to its scale bytes. No data: a masked row of zeros.
struct RowAddress {
  const std::byte* data;
  int to_scales;
};

FATHOM_DEVICE RowAddress address_of(const Block& b, int slot, int row) {
  if (slot < 0) return {nullptr, 0};
  const Rows& rows = row < b.counts.window ? b.p.window : b.p.extra;
  const KvPool& pool = rows.pool;
  const auto page_rows = static_cast<uint32_t>(pool.page_rows);
  const uint32_t page = rows.pages.page_of(slot), in_page = static_cast<uint32_t>(slot) - page * page_rows;
  const std::byte* data = pool.data + static_cast<int64_t>(page) * pool.stride + in_page * kV4DataBytes;
  return {data, static_cast<int>((page_rows - in_page) * kV4DataBytes + in_page * kV4ScaleBytes)};
}

/// A lane's quarter of one row: pieces 4 i + q of its 36, and the row's scale bytes.
struct RowQuarter {
  device::Float4 piece[9];
  uint64_t scales;
  bool present;
};

FATHOM_DEVICE void load_row(RowAddress at, int q, RowQuarter& r) {
  r.present = at.data != nullptr;
  if (!r.present) {
    FATHOM_UNROLL
    for (int i = 0; i < 9; ++i) r.piece[i] = {0, 0, 0, 0};
    r.scales = 0;
    return;
  }
  const auto* data = reinterpret_cast<const device::Float4*>(at.data) + q;
  FATHOM_UNROLL
  for (int i = 0; i < 9; ++i) r.piece[i] = device::load_once(data + 4 * i);
  r.scales = *reinterpret_cast<const uint64_t*>(at.data + at.to_scales);
}

/// One lane of a row asks for it ahead of the loads.
FATHOM_DEVICE void prefetch_row(RowAddress at, int q) {
  if (!at.data) return;
  if (q == 0) device::prefetch_block<kV4DataBytes>(at.data);
  if (q == 1) device::prefetch(at.data + at.to_scales);
}

/// Decodes a quarter row into row `row` of a tile. Returns whether fp16 could not hold something.
template <bool kHalf>
FATHOM_DEVICE bool store_row(std::byte* tile, int row, int q, const RowQuarter& r) {
  bool bad = false;
  FATHOM_UNROLL
  for (int i = 0; i < 7; ++i) {
    const int scale = static_cast<int>(r.scales >> 8 * i & 255);
    uint32_t code[4], out[8];
    __builtin_memcpy(code, &r.piece[i], sizeof(code));
    bad |= kHalf && r.present && (scale > kHighestScale || scale < kLowestScale);
    uint32_t pair[8];
    FATHOM_UNROLL
    for (int k = 0; k < 8; ++k) pair[k] = code[k / 2] >> 16 * (k & 1);
    decode_pairs<kHalf>(pair, scale, half_factor(scale), out);
    device::Float4 v[2];
    __builtin_memcpy(v, out, sizeof(v));
    *reinterpret_cast<device::Float4*>(tile + i * kChunkBytes + swizzle(row, 2 * q)) = v[0];
    *reinterpret_cast<device::Float4*>(tile + i * kChunkBytes + swizzle(row, 2 * q + 1)) = v[1];
  }
  FATHOM_UNROLL
  for (int i = 0; i < 2; ++i) {
    uint32_t word[4];
    __builtin_memcpy(word, &r.piece[7 + i], sizeof(word));
    bad |= decode_rope_piece<kHalf>(word);
    device::Float4 v;
    __builtin_memcpy(&v, word, sizeof(v));
    *reinterpret_cast<device::Float4*>(tile + 7 * kChunkBytes + swizzle(row, 4 * i + q)) = v;
  }
  return bad;
}

/// Decodes all tiles. `first` numbers them through the block's life, which may walk twice.
template <bool kHalf>
FATHOM_DEVICE void produce(const Block& b, int first) {
  const int thread = device::thread_index() - 2 * device::kWarpgroup, q = thread % 4, row = thread / 4;
  const auto row_of = [&](int tile, int part) { return (b.share.first_tile + tile) * kRows + 32 * part + row; };
  const auto slot_of = [&](int tile, int part) {
    return tile < b.share.tiles ? load_slot(b.p, b.token(), b.counts, row_of(tile, part)) : -1;
  };
  bool bad = false;
  int upper_slot = slot_of(0, 0), lower_slot = slot_of(0, 1);
  int next_upper = slot_of(1, 0), next_lower = slot_of(1, 1);
  RowAddress upper_at = address_of(b, upper_slot, row_of(0, 0)), lower_at = address_of(b, lower_slot, row_of(0, 1));
  RowQuarter upper, lower;
  load_row(upper_at, q, upper);
  FATHOM_UNROLL_1
  for (int i = 0; i < b.share.tiles; ++i) {
    const int n = first + i;
    std::byte* tile = b.tile(n);
    load_row(lower_at, q, lower);
    upper_at = address_of(b, next_upper, row_of(i + 1, 0));
    lower_at = address_of(b, next_lower, row_of(i + 1, 1));
    prefetch_row(upper_at, q);
    prefetch_row(lower_at, q);
    next_upper = slot_of(i + 2, 0), next_lower = slot_of(i + 2, 1);
    if (n >= 2) device::await(&b.barriers().empty[n & 1], (n >> 1) - 1);
    if (q == 0) b.bias(n)[row] = upper.present ? 0.0f : -__builtin_huge_valf();
    bad |= store_row<kHalf>(tile, row, q, upper);
    load_row(upper_at, q, upper);
    if (q == 0) b.bias(n)[32 + row] = lower.present ? 0.0f : -__builtin_huge_valf();
    bad |= store_row<kHalf>(tile, 32 + row, q, lower);
    device::publish_to_products();
    device::arrive(&b.barriers().full[n & 1]);
  }
  if (kHalf && bad) b.shared.flags()[1] = 1;
}

// ---- consumers ----

/// Hands the queries over that this thread asked for.
template <bool kHalf>
FATHOM_DEVICE void stage_queries(const Block& b) {
  if (convert_queries<kHalf>(b.shared.base + Layout::kQueryAt)) b.shared.flags()[1] = 1;
  device::publish_to_products();
  device::arrive(&b.barriers().queries);
}

/// sum += P V for one tile and the warpgroup's half of the channels.
template <bool kHalf>
FATHOM_DEVICE void add_values(const Block& b, int n, int group, WideOutput& output) {
  const auto probabilities = device::describe_matrix(b.probabilities(n), 16, 1024);
  const auto values = device::describe_matrix(b.tile(n) + 4 * group * kChunkBytes, kChunkBytes, 1024);
  device::multiply_begin();
  FATHOM_UNROLL
  for (int step = 0; step < 4; ++step) {
    const auto p = device::behind(probabilities, 32 * step), v = device::behind(values, 2048 * step);
    if (kHalf)
      device::multiply_256_f16(output.sum, p, v, true);
    else
      device::multiply_256_bf16(output.sum, p, v, true);
  }
  device::multiply_end();
}

/// Scores of one tile: register 4 j + i holds rows 8 j + 2 t + (i & 1) of the tile.
template <bool kHalf>
FATHOM_DEVICE void compute_scores(const Block& b, int n, float (&score)[32]) {
  const auto queries = device::describe_matrix(b.shared.base + Layout::kQueryAt, 16, 1024);
  const auto keys = device::describe_matrix(b.tile(n), 16, 1024);
  device::multiply_begin();
  FATHOM_UNROLL
  for (int step = 0; step < 32; ++step) {
    const int at = step / 4 * kChunkBytes + step % 4 * 32;
    const auto q = device::behind(queries, at), k = device::behind(keys, at);
    if (kHalf)
      device::multiply_64_f16(score, q, k, step > 0);
    else
      device::multiply_64_bf16(score, q, k, step > 0);
  }
  device::multiply_end();
}

/// Scores in powers of two, masked.
FATHOM_DEVICE void scale_scores(float (&score)[32], const float* bias, float scale) {
  FATHOM_UNROLL
  for (int j = 0; j < 8; ++j) {
    const FloatVector<2> mask = *reinterpret_cast<const FloatVector<2>*>(bias + 8 * j);
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) score[4 * j + i] = score[4 * j + i] * scale + mask.v[i % 2];
  }
}

/// Softmax of one half (heads g or g + 8 of the warp) of a tile's scores. Returns the correction of older output. `to`:
/// where in shared memory piece 0 of the head's probabilities lies; piece j lies at to ^ 16 j.
template <bool kHalf>
FATHOM_DEVICE float soften(const float (&score)[32], int half, std::byte* shared, int to, SoftmaxState& state) {
  float most = -__builtin_huge_valf();
  FATHOM_UNROLL
  for (int j = 0; j < 16; ++j) {
    const float v = score[4 * (j / 2) + 2 * half + j % 2];
    most = v > most ? v : most;
  }
  most = largest_of_head(most);
  float correction = 1;
  if (most > state.reference + kReferenceSlack) {
    correction = device::exp2_fast(state.reference - most);
    state.reference = most;
    state.sum *= correction;
  }
  const float reference = state.reference == -__builtin_huge_valf() ? 0.0f : state.reference;
  FATHOM_UNROLL
  for (int j = 0; j < 8; ++j) {
    const float a = device::exp2_fast(score[4 * j + 2 * half] - reference);
    const float c = device::exp2_fast(score[4 * j + 2 * half + 1] - reference);
    state.sum += a + c;
    *reinterpret_cast<uint32_t*>(shared + (to ^ (j << 4))) =
        kHalf ? device::pack_f16x2(a, c) : device::pack_bf16x2(a, c);
  }
  return correction;
}

/// First warpgroup: scores, softmax, channels 0..255.
template <bool kHalf>
FATHOM_DEVICE void lead(const Block& b, int first, SoftmaxState (&state)[2], WideOutput& output) {
  const int warp = device::uniform(device::thread_index() / 32), lane = device::thread_index() % 32;
  const int g = lane / 4, t = lane % 4;
  const float scale = kHalf ? b.p.score_scale * kUnitValue : b.p.score_scale;
  Barriers& barriers = b.barriers();
  FATHOM_UNROLL_1
  for (int i = 0; i < b.share.tiles; ++i) {
    const int n = first + i, buffer = n & 1, phase = n >> 1;
    device::await(&barriers.full[buffer], phase);
    float score[32];
    compute_scores<kHalf>(b, n, score);
    if (n >= 2) device::await(&barriers.free[buffer], phase - 1);
    scale_scores(score, b.bias(n) + 2 * t, scale);
    float correction[2];
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int head = 16 * warp + 8 * half + g;
      const int to = Layout::kProbabilityAt + (n & 1) * kChunkBytes + swizzle(head, 0) + 4 * t;
      correction[half] = soften<kHalf>(score, half, b.shared.base, to, state[half]);
      if (t == 0) b.correction(n)[head] = correction[half];
    }
    const bool changes = device::any_lane(correction[0] != 1 || correction[1] != 1);
    if (lane == 0) b.changed(n)[warp] = changes;
    device::publish_to_products();
    device::arrive(&barriers.ready[buffer]);
    if (changes) output.scale_by(correction[0], correction[1]);
    device::await(&barriers.ready[buffer], phase);
    add_values<kHalf>(b, n, 0, output);
    device::arrive(&barriers.empty[buffer]);
  }
}

/// Second warpgroup: channels 256..511.
template <bool kHalf>
FATHOM_DEVICE void follow(const Block& b, int first, WideOutput& output) {
  const int warp = device::uniform(device::thread_index() / 32) - 4, g = device::thread_index() % 32 / 4;
  Barriers& barriers = b.barriers();
  FATHOM_UNROLL_1
  for (int i = 0; i < b.share.tiles; ++i) {
    const int n = first + i, buffer = n & 1, phase = n >> 1;
    device::await(&barriers.full[buffer], phase);
    device::await(&barriers.ready[buffer], phase);
    if (b.changed(n)[warp]) output.scale_by(b.correction(n)[16 * warp + g], b.correction(n)[16 * warp + 8 + g]);
    add_values<kHalf>(b, n, 1, output);
    device::arrive(&barriers.free[buffer]);
    device::arrive(&barriers.empty[buffer]);
  }
}

/// Consumers: states and output of the walk -> rounded rows in shared memory (alone), or a partial result.
template <bool kHalf>
FATHOM_DEVICE void leave_output(const Block& b, const Partials<Layout>& partials, int split, SoftmaxState (&state)[2],
                                const WideOutput& output) {
  const int thread = device::thread_index(), warp = device::uniform(thread / 32), lane = thread % 32, g = lane / 4,
            t = lane % 4;
  const int group = warp / 4, m = warp % 4;
  float* states = b.shared.state();
  if (group == 0) {
    FATHOM_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = state[half].sum;
      sum += device::shuffle_xor(sum, 1);
      sum += device::shuffle_xor(sum, 2);
      const int head = 16 * m + 8 * half + g;
      if (t == 0) states[2 * head] = state[half].reference, states[2 * head + 1] = sum;
    }
  }
  device::arrive(&b.barriers().done);
  device::await(&b.barriers().done, 0);  // both warpgroups are through, states are written
  if (b.share.blocks > 1) {
    if (thread < 2 * Layout::kHeads) partials.state(split)[thread] = states[thread];
    leave_quads<kHalf>(partials, split, states, output);
    return;
  }
  round_output<kHalf>(b.shared, b.p, states, output);
}

/// One walk over the block's rows by the consumers.
template <bool kHalf>
FATHOM_DEVICE void consume(const Block& b, int first, SoftmaxState (&state)[2], WideOutput& output) {
  output.clear();
  state[0] = state[1] = SoftmaxState{};
  if (device::thread_index() < device::kWarpgroup) {
    device::await(&b.barriers().queries, kHalf ? 0 : 1);
    lead<kHalf>(b, first, state, output);
  } else {
    follow<kHalf>(b, first, output);
  }
}

FATHOM_DEVICE void init_barriers(const Block& b) {
  Barriers& barriers = b.barriers();
  for (int i = 0; i < 2; ++i) {
    device::init_phases(&barriers.full[i], device::kWarpgroup);
    device::init_phases(&barriers.empty[i], 2 * device::kWarpgroup);
    device::init_phases(&barriers.ready[i], device::kWarpgroup);
    device::init_phases(&barriers.free[i], device::kWarpgroup);
  }
  device::init_phases(&barriers.queries, 2 * device::kWarpgroup);
  device::init_phases(&barriers.done, 2 * device::kWarpgroup);
  b.shared.flags()[1] = 0;
  device::publish_to_products();
}

/// The block's whole work; the grid is (splits, groups of 64 heads, tokens).
FATHOM_DEVICE void wide_block(const Params& p, std::byte* shared_base) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const Shared<Layout> shared{shared_base};
  const int thread = device::thread_index(), split = device::block_x(), token = device::block_z();
  Block b{shared, p, {clamp_length(p.window, token), clamp_length(p.extra, token)}, {}};
  b.share = share_of_token(p, b.counts, kRows, device::grid_x(), split);
  if (split >= b.share.blocks) return;
  if (thread == 0) {
    init_barriers(b);
    if (b.share.blocks > 1) remember_arrivals(shared, arrivals_before(p));
  }
  device::sync_block();
  if (device::uniform(thread / device::kWarpgroup) == 2) {
    device::give_registers<120>();
    produce<true>(b, 0);
    device::sync_block();
    if (shared.flags()[1]) {
      produce<false>(b, b.share.tiles);
      device::sync_block();
    }
    device::sync_block();  // the two barriers of the consumers' end
    if (b.share.blocks > 1) device::sync_block();
  } else {
    device::take_registers<192>();
    ask_for_sinks<Layout>(shared, p, b.first_head());
    ask_for_queries(shared.base + Layout::kQueryAt, p, token, b.first_head());
    stage_queries<true>(b);
    if (p.position && device::uniform(thread / 32) == 4) prepare_rotations<Layout>(shared, p, token, thread % 32);
    SoftmaxState state[2];
    WideOutput output;
    consume<true>(b, 0, state, output);
    device::sync_block();
    const Partials<Layout> partials{p, this_unit()};
    if (!shared.flags()[1]) {
      leave_output<true>(b, partials, device::block_x(), state, output);
    } else {
      ask_for_queries(shared.base + Layout::kQueryAt, p, token, b.first_head());
      stage_queries<false>(b);
      consume<false>(b, b.share.tiles, state, output);
      device::sync_block();
      leave_output<false>(b, partials, device::block_x(), state, output);
    }
    if (b.share.blocks > 1) {
      meet<Layout>(shared, partials, b.token(), b.first_head(), b.share.blocks);
    } else {
      device::sync_block();
      finish_rows<Layout>(shared, p, b.token(), b.first_head());
    }
  }
}

}  // namespace fathom::ops::sparse_decode::wide

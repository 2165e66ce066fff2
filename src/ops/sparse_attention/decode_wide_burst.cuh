// The sm_90a kernel for few rows a block: 64 heads, V4 rows, at most kTiles tiles of 16, products by two warpgroups.
//
// What decode_burst.cuh is beside decode_kernel.cuh, this is beside decode_wide.cuh: no pipeline, since a block has all
// its rows at once. Every warp asks for its eighth of the rows, each by one request to the copy engine (loads by
// instructions would translate a row's address many times; the scale bytes of all come by one), and leaves them,
// decoded once to fp16, in the swizzle that serves both products. A warpgroup takes half of the channels: its queries
// stay in registers, its partial scores meet the other's in shared memory, each then does the softmax of half of the
// rows, and its half of the output's channels. Values that fp16 cannot hold send the block through all of it again in
// bf16.
//
// The order of channels inside both products is free: channel 8 t + 2 p + e of 32 lies at position 8 p + 2 t + e, so
// that a thread's piece of the queries, and of the output, is 16 neighbouring bytes.
#pragma once

#include <type_traits>

#include "ops/device/gpu_columns.cuh"
#include "ops/sparse_attention/decode_burst.cuh"
#include "ops/sparse_attention/decode_wide_common.cuh"

namespace fathom::ops::sparse_decode::wide {

/// Shared memory of a block with kTiles tiles of 16 rows.
template <int kTiles_>
struct BurstLayout {
  static constexpr RowFormat kFormat = RowFormat::bf16;  // output fragments: no slice holds codes
  static constexpr bool kPermutedChannels = true;
  static constexpr int kMTiles = 4, kHeads = kHeadsOfBlock;
  static constexpr int kQuads = kMTiles * kWarps * 8 * 32, kSumAhead = 8;
  static constexpr int kFewSplits = 8;
  static constexpr int kSlicesAWarp = 4;
  static constexpr int kTiles = kTiles_, kTileRows = 16, kRows = kTiles * kTileRows;
  static constexpr int kEach = kRows / kWarps;     // rows that a warp fetches
  static constexpr int kColumnTiles = kRows / 16;  // of 8 rows, whose softmax a warpgroup does
  static constexpr int kChunkBytes = kRows * 128;  // all rows x 64 channels
  static constexpr int kTileAt = 0;
  static constexpr int kExchangeAt = kTileAt + 8 * kChunkBytes;  // Float4 [warps][column tiles][32]: partial scores
  static constexpr int kProbabilityAt = kExchangeAt;             // [rows / 64][64 heads][64 rows], after them
  static constexpr int kRawAt = kExchangeAt, kRawBytes = 592;    // [rows], before them: a row as it is in the pool, and
  static constexpr int kRawScaleAt = 576;                        // its 8 scale bytes
  static constexpr int kRawEnd = kRawAt + kRows * kRawBytes, kRoundedEnd = kHeads * kRowBytes;
  static constexpr int kRowBiasAt = kRawEnd > kRoundedEnd ? kRawEnd : kRoundedEnd;  // float [rows]: 0 or -inf
  static constexpr int kMostAt = kRowBiasAt + kRows * 4;    // float [2][64]: largest scores of each warpgroup's rows
  static constexpr int kSumAt = kMostAt + 2 * kHeads * 4;   // float [2][64]
  static constexpr int kStateAt = kSumAt + 2 * kHeads * 4;  // float2 [64]
  static constexpr int kSinkAt = kStateAt + kHeads * 8;     // float [64]
  static constexpr int kRotationAt = kSinkAt + kHeads * 4;
  static constexpr int kFlagAt = kRotationAt + 32 * 8;
  static constexpr int kArrivedAt = kFlagAt + 16;  // Phases [warps]: of the warps' rows
  static constexpr int kSharedBytes = kArrivedAt + kWarps * 8;
  static constexpr int kGroupRowsAt = 0;
  static constexpr int kWeightsAt = kWarps * 8 * (256 + 16);
  static constexpr int kFactorsAt = kWeightsAt + kMostSplits * kHeads * 4;
  static_assert(kFactorsAt + kMostSplits * kMTiles * kWarps * 4 <= kRowBiasAt);
  static_assert(kEach % 2 == 0 && kEach <= 32 && (kRows + 63) / 64 * kQueryChunkBytes <= kRows * kRawBytes);
};

/// One block's work.
template <typename L>
struct BurstBlock {
  Shared<L> shared;
  const Params& p;
  int token, first_head;

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

/// A warp's queries: 16 heads x the 256 channels of its warpgroup, as factors of 16 steps.
struct WideQuery {
  uint32_t fragment[16][4];
};

template <typename L>
FATHOM_DEVICE void load_wide_query(const BurstBlock<L>& b, const Place& at, WideQuery& query) {
  FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int head = b.first_head + at.warp % 4 * 16 + 8 * half + at.g;
    // Beyond the last head: that one again, for results that nobody takes.
    const uint16_t* row = b.p.q + b.token * b.p.q_token_stride +
                          (head < b.p.heads ? head : b.p.heads - 1) * b.p.q_head_stride + at.warp / 4 * 256 + 8 * at.t;
    FATHOM_UNROLL
    for (int block = 0; block < 8; ++block) {
      const device::Float4 v = device::load_once(reinterpret_cast<const device::Float4*>(row + 32 * block));
      uint32_t word[4];
      __builtin_memcpy(word, &v, sizeof(word));
      FATHOM_UNROLL
      for (int i = 0; i < 4; ++i) query.fragment[2 * block + i / 2][half + i % 2 * 2] = word[i];
    }
  }
}

/// bf16 -> fp16. Returns whether fp16 could not hold something.
FATHOM_DEVICE bool convert_wide_query(WideQuery& query) {
  uint32_t most = 0;
  FATHOM_UNROLL
  for (int i = 0; i < 64; ++i) {
    uint32_t& word = query.fragment[i / 4][i % 4];
    most = device::largest_halves(most, word & 0x7FFF7FFFu);
    word = device::pack_f16x2(low_channel(word), high_channel(word));
  }
  constexpr uint32_t kLimit = 0x4700;  // 2^15 as bf16
  return (most & 0xFFFF) >= kLimit || most >> 16 >= kLimit;
}

template <typename L>
FATHOM_DEVICE device::Phases* rows_barrier(const BurstBlock<L>& b, const Place& at) {
  return reinterpret_cast<device::Phases*>(b.shared.base + L::kArrivedAt) + at.warp;
}
template <typename L>
FATHOM_DEVICE std::byte* raw_row(const BurstBlock<L>& b, const Place& at, int i) {
  return b.shared.base + L::kRawAt + (L::kEach * at.warp + i) * L::kRawBytes;
}

/// Makes the warp's barrier ready.
template <typename L>
FATHOM_DEVICE void open_rows(const BurstBlock<L>& b, const Place& at) {
  if (at.lane == 0) {
    device::init_phases(rows_barrier(b, at), L::kEach);
    device::publish_to_products();
  }
  device::sync_warp();
}

/// Lane i < kEach asks for row i of the warp. A row that is not there becomes zeros, of a scale that fp16 holds.
template <typename L>
FATHOM_DEVICE void ask_for_rows(const BurstBlock<L>& b, const Place& at, RowPlace mine) {
  const bool mine_lacks = at.lane < L::kEach && !mine.data;
  if (at.lane < L::kEach) {
    std::byte* to = raw_row(b, at, at.lane);
    device::Phases* arrived = rows_barrier(b, at);
    b.shared.row_bias()[L::kEach * at.warp + at.lane] = mine.data ? 0.0f : -__builtin_huge_valf();
    device::arrive_and_expect(arrived, mine.data ? kV4DataBytes : 0);
    if (mine.data) {
      device::copy_async_8(to + L::kRawScaleAt, mine.data + mine.to_scales, true);
      device::copy_block(to, mine.data, kV4DataBytes, arrived);
    }
  }
  device::copy_async_commit();
  if (!device::any_lane(mine_lacks)) return;
  FATHOM_UNROLL_1
  for (int i = 0; i < L::kEach; ++i) {
    if (!device::shuffle_from(static_cast<int>(mine_lacks), i)) continue;
    std::byte* row = raw_row(b, at, i);
    for (int piece = at.lane; piece < L::kRawScaleAt / 16; piece += 32)
      *reinterpret_cast<device::Float4*>(row + 16 * piece) = {0, 0, 0, 0};
    if (at.lane < 8) row[L::kRawScaleAt + at.lane] = std::byte{kUnit};
  }
}

/// 32 codes (words 0..3: the first 16) of one scale -> 16-bit values in four pieces of the tile: piece k is the
/// channels 8 t + 2 k, 8 t + 2 k + 1. `to`: where piece 0 would lie without the swizzle, `row` the row's number in the
/// tile.
template <bool kHalf>
FATHOM_DEVICE void decode_block(const uint32_t (&code)[8], int scale, int turn, std::byte* to, int row, int first) {
  const float factor = to_float(e8m0{static_cast<uint8_t>(scale)}) / kUnitValue;
  const uint32_t half = device::pack_f16x2(factor, factor);
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k) {  // each lane of eight begins elsewhere: together they touch all banks
    const int piece = k ^ turn;
    const uint32_t selector = (2 * piece + 1) << 4 | 2 * piece;
    uint32_t pair[4], out[4];
    FATHOM_UNROLL
    for (int t = 0; t < 4; ++t) pair[t] = device::byte_permute(code[2 * t], code[2 * t + 1], selector);
    decode_pairs<kHalf>(pair, scale, half, out);
    device::Float4 v;
    __builtin_memcpy(&v, out, sizeof(v));
    *reinterpret_cast<device::Float4*>(to + swizzle(row, first + piece)) = v;
  }
}

/// Leaves the warp's rows, which have arrived, decoded in the tile. Returns whether fp16 could not hold something.
/// Lanes 0..27 take 32 codes of row 2 i + lane / 14.
template <bool kHalf, typename L>
FATHOM_DEVICE bool decode_rows(const BurstBlock<L>& b, const Place& at) {
  const int upper = at.lane >= 14, block = at.lane - 14 * upper, turn = block / 2 % 4;
  const int first = L::kEach * at.warp;
  uint32_t beyond = 0;
  if (at.lane < 28) {
    std::byte* to = b.tile() + block / 2 * L::kChunkBytes;
    const std::byte* raw = raw_row(b, at, upper);
    FATHOM_UNROLL_1
    for (int row = first + upper; row < first + L::kEach; row += 2, raw += 2 * L::kRawBytes) {
      const auto* from = reinterpret_cast<const device::Float4*>(raw + 32 * block);
      const device::Float4 v[2] = {from[0], from[1]};
      uint32_t code[8];
      __builtin_memcpy(code, v, sizeof(code));
      const auto scale = static_cast<uint32_t>(raw[L::kRawScaleAt + block / 2]);
      const uint32_t above = scale - kLowestScale;
      beyond = above > beyond ? above : beyond;
      decode_block<kHalf>(code, static_cast<int>(scale), turn, to, row, block % 2 * 4);
    }
  }
  device::sync_warp();
  bool bad = kHalf && beyond > kHighestScale - kLowestScale;
  const std::byte* rope = raw_row(b, at, at.lane / 8) + kNopeDim + at.lane % 8 / 4 * 64 + at.lane % 4 * 4;
  FATHOM_UNROLL_1
  for (int k = at.lane / 8; k < L::kEach; k += 4, rope += 4 * L::kRawBytes) {  // RoPE: the pairs of one piece of row k
    uint32_t word[4];
    FATHOM_UNROLL
    for (int t = 0; t < 4; ++t) word[t] = *reinterpret_cast<const uint32_t*>(rope + 16 * t);
    bad |= decode_rope_piece<kHalf>(word);
    device::Float4 v;
    __builtin_memcpy(&v, word, sizeof(v));
    *reinterpret_cast<device::Float4*>(b.tile() + kRopeGroup * L::kChunkBytes + swizzle(first + k, at.lane % 8)) = v;
  }
  return bad;
}

/// Scores of the warpgroup's half of the rows, in powers of two, masked: register 4 j + i holds row 8 j + 2 t + (i & 1)
/// of them. Each warpgroup has summed half of the channels over all rows, and gives the other what it needs.
template <bool kHalf, typename L>
FATHOM_DEVICE void burst_scores(const BurstBlock<L>& b, const Place& at, int group, const WideQuery& query,
                                float (&score)[4 * L::kColumnTiles]) {
  constexpr int kCount = 4 * L::kColumnTiles;
  float sum[2 * kCount];
  const auto keys = device::describe_matrix(b.tile() + 4 * group * L::kChunkBytes, 16, 1024);
  device::multiply_begin();
  FATHOM_UNROLL
  for (int step = 0; step < 16; ++step) {
    const auto k = device::behind(keys, step / 4 * L::kChunkBytes + step % 4 * 32);
    if (kHalf)
      device::multiply_columns_f16(sum, query.fragment[step], k, step > 0);
    else
      device::multiply_columns_bf16(sum, query.fragment[step], k, step > 0);
  }
  device::multiply_end();
  auto* exchange = reinterpret_cast<device::Float4*>(b.shared.base + L::kExchangeAt) + at.lane;
  FATHOM_UNROLL
  for (int j = 0; j < L::kColumnTiles; ++j) {
    float v[4];
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float lower = sum[4 * j + i], upper = sum[kCount + 4 * j + i];
      score[4 * j + i] = group ? upper : lower, v[i] = group ? lower : upper;
    }
    device::Float4 given;
    __builtin_memcpy(&given, v, sizeof(given));
    exchange[(at.warp * L::kColumnTiles + j) * 32] = given;
  }
  device::sync_block();
  const float scale = kHalf ? b.p.score_scale * kUnitValue : b.p.score_scale;
  const float* bias = b.shared.row_bias() + group * (8 * L::kColumnTiles) + 2 * at.t;
  FATHOM_UNROLL
  for (int j = 0; j < L::kColumnTiles; ++j) {
    const device::Float4 taken = exchange[((at.warp ^ 4) * L::kColumnTiles + j) * 32];
    const FloatVector<2> mask = *reinterpret_cast<const FloatVector<2>*>(bias + 8 * j);
    float v[4];
    __builtin_memcpy(v, &taken, sizeof(v));
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) score[4 * j + i] = (score[4 * j + i] + v[i]) * scale + mask.v[i % 2];
  }
}

/// Scores -> probabilities in shared memory, the heads' references and sums.
template <bool kHalf, typename L>
FATHOM_DEVICE void burst_softmax(const BurstBlock<L>& b, const Place& at, int group,
                                 const float (&score)[4 * L::kColumnTiles]) {
  const int head = at.warp % 4 * 16 + at.g;
  FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    float most = -__builtin_huge_valf();
    FATHOM_UNROLL
    for (int j = 0; j < 2 * L::kColumnTiles; ++j) {
      const float v = score[4 * (j / 2) + 2 * half + j % 2];
      most = v > most ? v : most;
    }
    most = largest_of_head(most);
    if (at.t == 0) b.most(group)[head + 8 * half] = most;
  }
  device::sync_block();  // also: the partial scores have been read
  FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int local = head + 8 * half;
    const float one = b.most(0)[local], other = b.most(1)[local], most = one > other ? one : other;
    const float reference = most == -__builtin_huge_valf() ? 0.0f : most;
    float sum = 0;
    FATHOM_UNROLL
    for (int j = 0; j < L::kColumnTiles; ++j) {
      const float a = device::exp2_fast(score[4 * j + 2 * half] - reference);
      const float c = device::exp2_fast(score[4 * j + 2 * half + 1] - reference);
      sum += a + c;
      const int piece = group * L::kColumnTiles + j;
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
  const auto probabilities = device::describe_matrix(b.shared.base + L::kProbabilityAt, 16, 1024);
  const auto values = device::describe_matrix(b.tile() + 4 * group * L::kChunkBytes, L::kChunkBytes, 1024);
  device::multiply_begin();
  FATHOM_UNROLL
  for (int step = 0; step < L::kTiles; ++step) {
    const auto p = device::behind(probabilities, step / 4 * kQueryChunkBytes + step % 4 * 32);
    const auto v = device::behind(values, 2048 * step);
    if (kHalf)
      device::multiply_256_f16(output.sum, p, v, step > 0);
    else
      device::multiply_256_bf16(output.sum, p, v, step > 0);
  }
  device::multiply_end();
}

/// Scores, softmax, output.
template <bool kHalf, typename L>
FATHOM_DEVICE void burst_attend(const BurstBlock<L>& b, const Place& at, const WideQuery& query, WideOutput& output) {
  const int group = device::uniform(at.warp / 4);
  float score[4 * L::kColumnTiles];
  burst_scores<kHalf>(b, at, group, query, score);
  burst_softmax<kHalf>(b, at, group, score);
  burst_values<kHalf>(b, group, output);
  device::sync_block();  // states are written; rows and probabilities have been read
}

/// What a block leaves: rounded rows (alone) or a partial result.
template <bool kHalf, typename L>
FATHOM_DEVICE void burst_leave(const BurstBlock<L>& b, const Place& at, const MailTurn& turn, int blocks,
                               const WideOutput& output) {
  const float* states = b.shared.state();
  if (blocks == 1) {
    round_output<kHalf>(b.shared, b.p, states, output);
    return;
  }
  if (b.p.mail) {
    post_quads<kHalf>(Mail<L>(b.p, turn, this_unit()), states, output);
    return;
  }
  const Partials<L> partials{b.p, this_unit()};
  if (at.thread < 2 * L::kHeads) partials.state(device::block_x())[at.thread] = states[at.thread];
  leave_quads<kHalf>(partials, device::block_x(), states, output);
}

/// Rows and queries to partial output, in fp16 or, when something does not fit, in bf16; `leave(kHalf, output)` takes
/// it. The queries have been asked for.
template <typename L, typename F>
FATHOM_DEVICE void burst_work(const BurstBlock<L>& b, const Place& at, Angle angle, WideQuery& query, F leave) {
  if (b.p.position && at.warp == 4) prepare_rotation(b.shared, angle, at.lane);
  bool bad = convert_wide_query(query);
  device::copy_async_wait<0>();  // the sinks, the rows' scales
  device::await(rows_barrier(b, at), 0);
  device::sync_warp();
  bad |= decode_rows<true>(b, at);
  device::publish_to_products();
  WideOutput output;
  if (!device::any_thread(bad)) {
    burst_attend<true>(b, at, query, output);
    leave(std::true_type{}, output);
  } else {
    load_wide_query<L>(b, at, query);
    decode_rows<false>(b, at);
    device::publish_to_products();
    device::sync_block();
    burst_attend<false>(b, at, query, output);
    leave(std::false_type{}, output);
  }
}

/// The block's whole work; the grid is (splits, groups of 64 heads, tokens), a block has two warpgroups.
template <typename L>
FATHOM_DEVICE void wide_burst_block(const Params& p, std::byte* shared_base) {
  const Place place;
  const BurstBlock<L> b{{shared_base}, p, device::block_z(), device::block_y() * L::kHeads};
  open_rows(b, place);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  ask_for_sinks<L>(b.shared, p, b.first_head);
  device::copy_async_commit();
  Angle angle;
  if (p.position && place.warp == 4) angle = Angle::load(p, b.token, place.lane);
  MailTurn turn;
  if (p.mail) turn = MailTurn::load(p);
  Share share;
  const RowPlace mine = find_burst_rows<L>(b, place, share);
  const int blocks = share.blocks;
  if (static_cast<int>(device::block_x()) >= blocks) {
    device::copy_async_wait<0>();
    if (p.mail) skip_mail<L>(p, turn);
    return;
  }
  WideQuery query;
  load_wide_query<L>(b, place, query);
  ask_for_rows(b, place, mine);
  uint64_t before = 0;
  if (p.mail)
    turn.clear(p);
  else if (blocks > 1 && place.thread == 0)
    before = arrivals_before(p);
  burst_work<L>(b, place, angle, query, [&](auto half, const WideOutput& output) {
    if (place.thread == 0) {
      if (p.mail)
        turn.count(p, Mail<L>::kBytes);
      else
        remember_arrivals(b.shared, before);
    }
    burst_leave<half>(b, place, turn, blocks, output);
  });
  if (p.mail && blocks > 1) {
    collect<L>(b.shared, p, Mail<L>(p, turn, this_unit()), b.token, b.first_head, blocks);
  } else if (blocks > 1) {
    meet<L>(b.shared, Partials<L>{p, this_unit()}, b.token, b.first_head, blocks);
  } else {
    device::sync_block();
    finish_rows<L>(b.shared, p, b.token, b.first_head);
  }
}

}  // namespace fathom::ops::sparse_decode::wide

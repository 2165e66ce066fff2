// The decode kernel for few rows a block: all its rows at once, in three phases with one barrier between two of them.
//
// Where a token's rows are spread over so many blocks that each has at most kTiles tiles of 16, a pipeline has nothing
// to overlap, and every interval of it costs a barrier and the latency of a dependent chain. Here all rows are asked
// for together, each warp by itself; then come the scores of all rows, one softmax, and the output. A grid of clusters
// exchanges partial outputs through shared memory (decode_exchange.cuh), any other grid through the meeting of
// decode_combine.cuh.
#pragma once

#include "ops/device/gpu.cuh"
#include "ops/sparse_attention/decode_combine.cuh"
#include "ops/sparse_attention/decode_exchange.cuh"
#include "ops/sparse_attention/decode_kernel.cuh"
#include "ops/sparse_attention/decode_mail.cuh"

namespace fathom::ops::sparse_decode {

/// A lane's knowledge of one row: where it lies (null: no row, or masked), and from there to its scale bytes.
struct RowPlace {
  const std::byte* data = nullptr;
  int to_scales = 0;
};

FATHOM_DEVICE RowPlace place_of(const Rows& rows, int slot) {
  if (slot < 0) return {};
  const auto page_rows = static_cast<uint32_t>(rows.pool.page_rows);
  const uint32_t page = rows.pages.page_of(slot), row = static_cast<uint32_t>(slot) - page * page_rows;
  return {rows.pool.data + static_cast<int64_t>(page) * rows.pool.stride + row * kV4DataBytes,
          static_cast<int>((page_rows - row) * kV4DataBytes + row * kV4ScaleBytes)};
}

/// Reads lengths and indices, the indices as if the token had all its rows, so that the common case does not wait for
/// the lengths. Lane i < 2 kTiles of warp w has row 2 kTiles w + i of the block.
template <typename G>
FATHOM_DEVICE RowPlace find_rows(const Params& p, const Place& at, int token, int first_head, RawQuery<G>& query,
                                 Share& share) {
  constexpr int kEach = 2 * G::kTiles;
  const int split = device::block_x(), splits = device::grid_x(), row = kEach * at.warp + at.lane;
  const RowCounts all{p.window.most, p.extra.most};
  const Share guess = share_of_token(p, all, G::kTileRows, splits, split);
  const auto slot_of = [&](RowCounts counts, const Share& s) {
    return at.lane < kEach && row < s.tiles * G::kTileRows
               ? load_slot(p, token, counts, s.first_tile * G::kTileRows + row)
               : -1;
  };
  int slot = slot_of(all, guess);
  const RowCounts counts{clamp_length(p.window, token), clamp_length(p.extra, token)};
  if (G::kMTiles > 1) load_query<G>(p, at, token, first_head, 0, query);
  share = share_of_token(p, counts, G::kTileRows, splits, split);
  if (counts.window != all.window || counts.extra != all.extra) slot = slot_of(counts, share);
  const bool windowed = share.first_tile * G::kTileRows + row < counts.window;
  return place_of(windowed ? p.window : p.extra, slot);
}

/// Starts the copies of the warp's rows; rows that are not there become zeros and are masked.
template <typename G>
FATHOM_DEVICE void gather_rows(const Shared<G>& shared, const void* any_address, const Place& at, RowPlace mine) {
  constexpr int kEach = 2 * G::kTiles;
  if (at.lane < kEach) shared.row_bias()[kEach * at.warp + at.lane] = mine.data ? 0.0f : -__builtin_huge_valf();
  const auto address = reinterpret_cast<uint64_t>(mine.data);
  const auto stored_at = [&](int i) {
    const int row = kEach * at.warp + i;
    return shared.stage(row / G::kTileRows) + physical_row(row % G::kTileRows) * G::kRowStride;
  };
  FATHOM_UNROLL
  for (int i = 0; i < kEach; ++i) {  // the first 512 bytes of a row
    const auto* from = reinterpret_cast<const std::byte*>(device::shuffle_from(address, i));
    device::copy_async_16(stored_at(i) + 16 * at.lane,
                          (from ? from : static_cast<const std::byte*>(any_address)) + 16 * at.lane, from != nullptr);
  }
  FATHOM_UNROLL
  for (int first = 0; first < 5 * kEach; first += 32) {  // the other 64 and the scale bytes
    const int item = first + at.lane, i = item / 5, piece = item % 5;
    const auto* data = reinterpret_cast<const std::byte*>(device::shuffle_from(address, i % 32));
    const int to_scales = device::shuffle_from(mine.to_scales, i % 32);
    const std::byte* from =
        data ? data + (piece < 4 ? 512 + 16 * piece : to_scales) : static_cast<const std::byte*>(any_address);
    if (item >= 5 * kEach) continue;
    if (piece < 4)
      device::copy_async_16(stored_at(i) + 512 + 16 * piece, from, data != nullptr);
    else
      device::copy_async_8(stored_at(i) + G::kScaleOffset, from, data != nullptr);
  }
  device::copy_async_commit();
}

/// Calls f(0) .. f(kTiles - 1): written out where registers allow it (one m-tile or two), so that loads of the next
/// overlap products of the last; as a loop elsewhere.
template <typename G, typename F>
FATHOM_DEVICE void for_tiles(F f) {
  if constexpr (G::kMTiles <= 2) {
    FATHOM_UNROLL
    for (int tile = 0; tile < G::kTiles; ++tile) f(tile);
  } else {
    FATHOM_UNROLL_1
    for (int tile = 0; tile < G::kTiles; ++tile) f(tile);
  }
}

/// Query fragments of a warp: fp16 in units of 2^exponent against codes, bf16 against RoPE channels.
template <typename G>
struct BurstQuery {
  uint32_t fragment[G::kGroupsPerWarp][G::kScoreMTiles][4][4];
  float unit;  // what a product of 1 (query) and 1 (code as decoded) stands for
};

/// bf16 queries -> fp16, the warp's largest brought to 2^14, so that only what is 2^28 times smaller is rounded.
template <typename G>
FATHOM_DEVICE void arrange_burst_query(const Place& at, const RawQuery<G>& raw, BurstQuery<G>& query) {
  const ScorePart<G> part(at.warp);
  uint32_t most = 0;
  FATHOM_UNROLL
  for (int j = 0; j < G::kGroupsPerWarp; ++j) {
    if (part.group(j) == kRopeGroup) continue;
    FATHOM_UNROLL
    for (int i = 0; i < 16 * G::kScoreMTiles; ++i)
      most = device::largest_halves(most, raw.word[i / 16][j][i / 8 % 2][i % 8] & 0x7FFF7FFFu);
  }
  most = device::largest_of_warp(most >> 16 > (most & 0xFFFF) ? most >> 16 : most & 0xFFFF);
  const int exponent = 141 - (most >> 7 < 16 ? 16 : static_cast<int>(most >> 7));
  const float factor = power_of_two(exponent);
  query.unit = power_of_two(-exponent - device::kDecodedUnit);
  FATHOM_UNROLL
  for (int j = 0; j < G::kGroupsPerWarp; ++j) {
    const auto arrange = [&](auto convert) {
      FATHOM_UNROLL
      for (int i = 0; i < 16 * G::kScoreMTiles; ++i)
        query.fragment[j][i / 16][i % 8 / 2][i / 8 % 2 + i % 2 * 2] = convert(raw.word[i / 16][j][i / 8 % 2][i % 8]);
    };
    if (part.group(j) != kRopeGroup)
      arrange([&](uint32_t v) { return device::pack_f16x2(low_channel(v) * factor, high_channel(v) * factor); });
    else
      arrange([](uint32_t v) { return v; });
  }
}

/// Partial scores of a tile's 16 rows.
template <typename G>
struct TileScores {
  float sum[2][G::kScoreMTiles][4] = {};
};

/// Adds the products with one group of 64 channels of codes, times the rows' scales.
template <typename G>
FATHOM_DEVICE void score_codes(const std::byte* stage, const Offsets<G>& at, int j, const BurstQuery<G>& query,
                               TileScores<G>& scores) {
  uint32_t word[2][4];
  float scale[2][2];
  FATHOM_UNROLL
  for (int n = 0; n < 2; ++n) {
    const std::byte* from = stage + 8 * n * G::kRowStride;
    const device::Float4 v = *reinterpret_cast<const device::Float4*>(from + at.key[j]);
    __builtin_memcpy(word[n], &v, sizeof(v));
    scale[n][0] = std::bit_cast<float>(static_cast<uint32_t>(from[at.score_scale + j]) << 23);
    scale[n][1] = std::bit_cast<float>(static_cast<uint32_t>(from[at.odd_score_scale + j]) << 23);
  }
  float part[2][2][G::kScoreMTiles][4] = {};
  FATHOM_UNROLL
  for (int step = 0; step < 4; ++step) FATHOM_UNROLL
  for (int n = 0; n < 2; ++n) {
    const uint32_t b0 = device::decode_codes<0>(word[n][step]), b1 = device::decode_codes<1>(word[n][step]);
    FATHOM_UNROLL
    for (int m = 0; m < G::kScoreMTiles; ++m)
      device::mma_f16(part[G::kMTiles == 1 ? step % 2 : 0][n][m], query.fragment[j][m][step], b0, b1);
  }
  FATHOM_UNROLL
  for (int n = 0; n < 2; ++n) FATHOM_UNROLL
  for (int m = 0; m < G::kScoreMTiles; ++m) FATHOM_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float both = G::kMTiles == 1 ? part[0][n][m][i] + part[1][n][m][i] : part[0][n][m][i];
    scores.sum[n][m][i] += both * (scale[n][i % 2] * query.unit);
  }
}

/// Adds the products with the RoPE channels.
template <typename G>
FATHOM_DEVICE void score_rope(const std::byte* stage, const Offsets<G>& at, int j, const BurstQuery<G>& query,
                              TileScores<G>& scores) {
  FATHOM_UNROLL
  for (int n = 0; n < 2; ++n) {
    uint32_t b[8];
    load_keys<G>(stage + at.key[j] + 8 * n * G::kRowStride, false, 0, false, b);
    FATHOM_UNROLL
    for (int step = 0; step < 4; ++step) FATHOM_UNROLL
    for (int m = 0; m < G::kScoreMTiles; ++m)
      device::mma_bf16(scores.sum[n][m], query.fragment[j][m][step], b[2 * step], b[2 * step + 1]);
  }
}

template <typename G>
FATHOM_DEVICE void store_scores(std::byte* out, const Offsets<G>& at, const TileScores<G>& scores) {
  FATHOM_UNROLL
  for (int n = 0; n < 2; ++n) FATHOM_UNROLL
  for (int m = 0; m < G::kScoreMTiles; ++m) FATHOM_UNROLL
  for (int half = 0; half < 2; ++half) {
    // Heads 16 m + 8 half away have the same swizzle, and column tile n flips bits of it.
    auto* to = reinterpret_cast<float*>(out + ((at.score_store ^ n << 5) + (16 * m + 8 * half) * G::kTileRows * 4));
    to[0] = scores.sum[n][m][2 * half], to[1] = scores.sum[n][m][2 * half + 1];
  }
}

/// Partial scores of all rows over this warp's channels -> shared memory.
template <typename G>
FATHOM_DEVICE void score_rows(const Shared<G>& shared, const Place& place, const Offsets<G>& at,
                              const BurstQuery<G>& query) {
  constexpr int kLast = G::kGroupsPerWarp - 1;
  const ScorePart<G> part(place.warp);
  const auto score = [&](int tile, auto last_group) {
    TileScores<G> scores;
    FATHOM_UNROLL
    for (int j = 0; j < kLast; ++j) score_codes<G>(shared.stage(tile), at, j, query, scores);
    last_group(shared.stage(tile), scores);
    store_scores<G>(shared.scores(tile), at, scores);
  };
  if (part.group(kLast) != kRopeGroup)
    for_tiles<G>([&](int tile) {
      score(tile,
            [&](const std::byte* stage, TileScores<G>& scores) { score_codes<G>(stage, at, kLast, query, scores); });
    });
  else
    for_tiles<G>([&](int tile) {
      score(tile,
            [&](const std::byte* stage, TileScores<G>& scores) { score_rope<G>(stage, at, kLast, query, scores); });
    });
}

/// Softmax over all rows of the block: probabilities as fp16, (reference, sum) of each head into shared memory. A
/// thread has kScoresPerThread neighbouring rows of one head in each tile.
template <typename G>
FATHOM_DEVICE void softmax_rows(const Shared<G>& shared, const Place& place, const Offsets<G>& at, const Params& p) {
  constexpr int kCount = G::kScoresPerThread, kLanes = G::kLanesPerHead;
  using Vector = FloatVector<kCount>;
  float score[G::kTiles][kCount], most = -__builtin_huge_valf();
  FATHOM_UNROLL
  for (int tile = 0; tile < G::kTiles; ++tile) {
    const std::byte* scores = shared.scores(tile) + at.score_load;
    Vector part[G::kSlices];
    FATHOM_UNROLL
    for (int s = 0; s < G::kSlices; ++s) part[s] = *reinterpret_cast<const Vector*>(scores + s * G::kScoreBytes);
    const Vector bias =
        *reinterpret_cast<const Vector*>(shared.row_bias() + tile * G::kTileRows + place.thread % kLanes * kCount);
    FATHOM_UNROLL
    for (int i = 0; i < kCount; ++i) {
      float even = part[0].v[i], odd = part[1].v[i];
      FATHOM_UNROLL
      for (int s = 2; s < G::kSlices; s += 2) even += part[s].v[i], odd += part[s + 1].v[i];
      score[tile][i] = (even + odd) * p.score_scale + bias.v[i];
      most = score[tile][i] > most ? score[tile][i] : most;
    }
  }
  FATHOM_UNROLL
  for (int mask = 1; mask < kLanes; mask *= 2) {
    const float other = device::shuffle_xor(most, mask);
    most = other > most ? other : most;
  }
  const float reference = most == -__builtin_huge_valf() ? 0.0f : most;
  float sum = 0;
  FATHOM_UNROLL
  for (int tile = 0; tile < G::kTiles; ++tile) {
    HalfVector<kCount> rounded;
    FATHOM_UNROLL
    for (int i = 0; i < kCount; ++i) {
      const float probability = device::exp2_fast(score[tile][i] - reference);
      sum += probability;
      rounded.v[i] = static_cast<uint16_t>(device::pack_f16x2(probability * (1 << G::kProbabilityExponent), 0.0f));
    }
    *reinterpret_cast<HalfVector<kCount>*>(shared.probabilities(tile) + at.probability_store) = rounded;
  }
  store_state<G>({most, sum}, shared.state());
}

/// Largest and smallest scale byte of the warp's slice over the rows that are there (255 as smallest without any).
struct ScaleRange {
  int largest, smallest;

  template <typename G>
  FATHOM_DEVICE static ScaleRange of(const Shared<G>& shared, const Place& at) {
    uint32_t most = 0, least = 255;
    FATHOM_UNROLL
    for (int i = 0; i < (G::kTiles * G::kTileRows + 31) / 32; ++i) {
      const int row = 32 * i + at.lane;
      if (row >= G::kTiles * G::kTileRows || shared.row_bias()[row] != 0.0f) continue;
      const std::byte* start = shared.stage(row / G::kTileRows) + physical_row(row % G::kTileRows) * G::kRowStride;
      const auto scale = static_cast<uint32_t>(start[G::kScaleOffset + at.warp]);
      most = scale > most ? scale : most, least = scale < least ? scale : least;
    }
    return {static_cast<int>(device::largest_of_warp(most)), static_cast<int>(device::smallest_of_warp(least))};
  }
};

/// Products with the codes of one tile; the rows' scales, relative to the output's unit, go into the probabilities.
template <typename G>
FATHOM_DEVICE void add_codes(const std::byte* stage, const std::byte* probabilities, const Offsets<G>& at,
                             Output<G>& output) {
  const ValueCodes codes = ValueCodes::load<G>(stage, at);
  uint32_t factor[2], value[16];
  FATHOM_UNROLL
  for (int k = 0; k < 2; ++k) {  // 2^shift as fp16, twice
    factor[k] = static_cast<uint32_t>(15 + ValueCodes::shift(codes.scale[2 * k], output.unit)) << 10 |
                static_cast<uint32_t>(15 + ValueCodes::shift(codes.scale[2 * k + 1], output.unit)) << 26;
    FATHOM_UNROLL
    for (int i = 0; i < 2; ++i) {  // channels 4 i .. 4 i + 3 of two rows, pairs of rows
      const uint32_t low = device::byte_permute(codes.word[2 * k][i], codes.word[2 * k + 1][i], 0x5140);
      const uint32_t high = device::byte_permute(codes.word[2 * k][i], codes.word[2 * k + 1][i], 0x7362);
      value[2 * (4 * i) + k] = device::decode_codes<0>(low);
      value[2 * (4 * i + 1) + k] = device::decode_codes<1>(low);
      value[2 * (4 * i + 2) + k] = device::decode_codes<0>(high);
      value[2 * (4 * i + 3) + k] = device::decode_codes<1>(high);
    }
  }
  FATHOM_UNROLL
  for (int m = 0; m < G::kMTiles; ++m) {
    uint32_t probability[4];
    device::load_matrices(probability, probabilities + 16 * m * G::kTileRows * 2);
    FATHOM_UNROLL
    for (int i = 0; i < 4; ++i) probability[i] = device::multiply_f16x2(probability[i], factor[i / 2]);
    FATHOM_UNROLL
    for (int n = 0; n < 8; ++n) device::mma_f16(output.sum[m][n], probability, value[2 * n], value[2 * n + 1]);
  }
}

/// O = P V over all rows of the block, by the warp that owns the slice.
template <typename G>
FATHOM_DEVICE void value_rows(const Shared<G>& shared, const Place& place, const Offsets<G>& at, Output<G>& output) {
  const auto probabilities = [&](int tile) { return shared.probabilities(tile) + at.probability_load; };
  if (!slice_is_fp8(G::kFormat, place.warp)) {
    output.unit = kBf16Unit;
    FATHOM_UNROLL_1
    for (int tile = 0; tile < G::kTiles; ++tile) {
      uint32_t value[16];
      const bool f16 = load_bf16_values<G>(shared.stage(tile) + at.value, value);
      add_values<G>(probabilities(tile), f16, value, output);
    }
    return;
  }
  const ScaleRange range = ScaleRange::of<G>(shared, place);
  output.unit = range.largest;
  if (range.smallest >= range.largest + device::kLowestShiftF16) {
    for_tiles<G>([&](int tile) { add_codes<G>(shared.stage(tile), probabilities(tile), at, output); });
    output.unit -= device::kDecodedUnit;
  } else {
    FATHOM_UNROLL_1
    for (int tile = 0; tile < G::kTiles; ++tile) {
      uint32_t value[16];
      const bool f16 = load_fp8_values<G>(shared.stage(tile), at, output, value);
      add_values<G>(probabilities(tile), f16, value, output);
    }
  }
}

/// The block's whole work. The grid is (splits, groups of heads, tokens); with kCluster, the splits are one cluster.
template <typename G>
FATHOM_DEVICE void burst_block(const Params& p, std::byte* shared_base) {
  const Shared<G> shared{shared_base};
  const Place place;
  if constexpr (G::kCluster > 0) open_inbox<G>(shared, place);
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const int token = device::block_z(), first_head = device::block_y() * G::kHeads;

  ask_for_sinks<G>(shared, p, first_head);  // part of the group of the rows
  const bool by_mail = G::kCluster == 0 && p.mail;
  MailTurn turn;
  if (by_mail) turn = MailTurn::load(p);
  const bool turns = p.position && place.warp == 1;
  Angle angle;
  if (turns) angle = Angle::load(p, token, place.lane);
  // Queries are asked for once the rows are on their way; of several m-tiles a half while the indices are.
  RawQuery<G> raw;
  Share share;
  const RowPlace mine = find_rows<G>(p, place, token, first_head, raw, share);
  if (G::kCluster == 0 && static_cast<int>(device::block_x()) >= share.blocks) {
    device::copy_async_commit();
    device::copy_async_wait<0>();
    if (by_mail) skip_mail<G>(p, turn);
    return;
  }
  gather_rows<G>(shared, p.q, place, mine);
  if (G::kMTiles == 1) load_query<G>(p, place, token, first_head, 0, raw);
  load_query<G>(p, place, token, first_head, 1, raw);
  if constexpr (G::kCluster > 0) {
    if (place.thread == 0) expect_messages<G>(shared, share.blocks);
  } else {
    if (by_mail)
      turn.clear(p);
    else if (share.blocks > 1 && place.thread == 0)
      remember_arrivals(shared, arrivals_before(p));
  }
  if (turns) prepare_rotation(shared, angle, place.lane);
  const Offsets<G> at(place);
  Output<G> output;
  if (device::block_x() < share.blocks) {
    BurstQuery<G> query;
    arrange_burst_query<G>(place, raw, query);
    device::copy_async_wait<0>();
    device::sync_block();
    if (by_mail && place.thread == 0) turn.count(p, Mail<G>::kBytes);
    score_rows<G>(shared, place, at, query);
    device::sync_block();
    softmax_rows<G>(shared, place, at, p);
    device::sync_block();
    value_rows<G>(shared, place, at, output);
  } else {
    device::copy_async_wait<0>();  // the sinks
  }
  if constexpr (G::kCluster > 0) {
    exchange<G>(shared, p, place, token, first_head, share.blocks, output);
  } else {
    if (by_mail && share.blocks > 1) {
      const Mail<G> mail(p, turn, this_unit());
      post<G>(shared, mail, output);
      collect<G>(shared, p, mail, token, first_head, share.blocks);
      return;
    }
    if (share.blocks == 1) device::sync_block();  // the rows' memory takes the rounded output
    finish<G>(shared, p, share.blocks, output);
  }
}

}  // namespace fathom::ops::sparse_decode

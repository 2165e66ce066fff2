// The CUDA decode kernel itself, run on the host by the emulator and compared with a float64 reference.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <numeric>

#include "ops/device/e4m3_decode.h"
#include "ops/gpu_emulator.h"
#include "ops/sparse_attention/decode_burst.cuh"
#include "ops/sparse_attention/decode_kernel.cuh"
#include "ops/sparse_attention/decode_pack.h"
#include "ops/sparse_attention/decode_wide.cuh"
#include "ops/sparse_attention/decode_wide_burst.cuh"
#include "ops/sparse_attention_case.h"

namespace fathom::ops {
namespace {

using sparse_decode::Geometry;
using sparse_decode::Params;

/// Relative L2 against float64. Rounding the output to bf16 alone costs 1.6e-3; inverse RoPE rounds 64 of 512 channels
/// twice, which makes it 1.77e-3.
constexpr double kTolerance = 1.75e-3, kToleranceWithRope = 1.9e-3;

struct Run {
  int splits = 1;
  int64_t patience = 1000000;
  unsigned seed = 1;
  bool mail = false;
};

/// What launches leave for the next one, of any shape.
struct Memory {
  static constexpr int64_t kPlaceBytes = 2 << 20;
  std::vector<uint64_t> arrivals;
  sparse_decode::MailCount mail;
  std::vector<device::Packet> places;
  uint64_t launches = 0;

  void lend(Params& p, int blocks) {
    places.resize(2 * kPlaceBytes / sizeof(places[0]));
    p.mail = &mail, p.places = reinterpret_cast<std::byte*>(places.data()), p.place_bytes = kPlaceBytes;
    p.all_blocks = blocks;
  }
  /// After a launch whose blocks had room for `bytes` of mail: counted, and nothing lies in the place of the next one.
  void expect_ready(size_t bytes) {
    ASSERT_LE(bytes, static_cast<size_t>(kPlaceBytes));
    EXPECT_EQ(mail.launches, ++launches << sparse_decode::kMailShift);
    EXPECT_EQ(mail.used[(launches - 1) % 2], bytes);
    const auto* next = reinterpret_cast<const std::byte*>(places.data()) + launches % 2 * kPlaceBytes;
    EXPECT_TRUE(std::all_of(next, next + kPlaceBytes, [](std::byte b) { return b == std::byte{0}; }));
  }
};

/// The warpgroup kernel.
struct Wide : sparse_decode::wide::Layout {};

template <typename G>
inline constexpr bool kIsBurst = false;
template <int kMTiles, int kHeadGroups, int kTiles, int kCluster>
inline constexpr bool kIsBurst<sparse_decode::Burst<kMTiles, kHeadGroups, kTiles, kCluster>> = true;

template <typename G>
inline constexpr bool kIsWideBurst = false;
template <int kTiles>
inline constexpr bool kIsWideBurst<sparse_decode::wide::BurstLayout<kTiles>> = true;

template <typename G>
void run_emulated(SparseCase& c, const Run& run, Memory& memory) {
  Params p = sparse_decode::pack(c.args());
  int tokens = c.shape.tokens;
  if constexpr (sparse_decode::kTakesRequests<G>) {
    ASSERT_TRUE(sparse_decode::packs(c.args(), c.shape.queries_per_request));
    sparse_decode::pack_requests(p, c.shape.queries_per_request);
    tokens /= c.shape.queries_per_request;
  }
  const int groups = (p.heads + G::kHeads - 1) / G::kHeads;
  const size_t units = static_cast<size_t>(tokens) * groups;
  memory.arrivals.resize(std::max(units, memory.arrivals.size()));
  std::vector<float> state(units * run.splits * sparse_decode::Partials<G>::kStateFloats, NAN);
  std::vector<uint64_t> partial(units * run.splits * G::kQuads, ~uint64_t{0});
  if (run.mail) memory.lend(p, static_cast<int>(units) * run.splits);
  p.arrivals = memory.arrivals.data(), p.state = state.data(), p.partial = partial.data(), p.patience = run.patience;
  sparse_decode::divide(p, std::is_same_v<G, Wide> ? 64 : 16, run.splits);
  const auto grid = [&](int threads, bool cluster, auto block) {
    device::emulator::run_grid(run.splits, groups, tokens, threads, G::kSharedBytes, cluster, run.seed, block);
  };
  if constexpr (std::is_same_v<G, Wide>)
    grid(sparse_decode::wide::kBlockThreads, false,
         [&](std::byte* shared) { sparse_decode::wide::wide_block(p, shared); });
  else if constexpr (kIsWideBurst<G>)
    grid(sparse_decode::kThreads, false,
         [&](std::byte* shared) { sparse_decode::wide::wide_burst_block<G>(p, shared); });
  else if constexpr (kIsBurst<G>)
    grid(sparse_decode::kThreads, G::kCluster > 0,
         [&](std::byte* shared) { sparse_decode::burst_block<G>(p, shared); });
  else
    grid(sparse_decode::kThreads, false, [&](std::byte* shared) { sparse_decode::decode_block<G>(p, shared); });
  if constexpr (kIsBurst<G> || kIsWideBurst<G>)
    if (run.mail) memory.expect_ready(units * run.splits * sparse_decode::Mail<G>::kBytes);
}

template <typename G>
void expect_right(const SparseCaseShape& shape, const Run& run, const std::string& what, Memory& memory) {
  SparseCase c = make_sparse_case(shape);
  for (int launch = 0; launch < 2; ++launch) {  // the second on the counters that the first left
    c.poison();
    run_emulated<G>(c, run, memory);
    const SparseComparison got = compare_sparse(c);
    EXPECT_EQ(got.failure, "") << what;
    // Few rows may sit where even the exact output rounds badly.
    EXPECT_LE(got.relative_l2, std::max(shape.rotate ? kToleranceWithRope : kTolerance, 1.06 * got.rounding_l2))
        << what;
    if (std::getenv("FATHOM_TEST_VERBOSE"))
      printf("%s: %.3g, lse %.2g\n", what.c_str(), got.relative_l2, got.worst_lse);
  }
}

template <typename G>
void expect_right(const SparseCaseShape& shape, const Run& run, const std::string& what) {
  Memory memory;
  expect_right<G>(shape, run, what, memory);
}

using V4Small = Geometry<RowFormat::v4, 1, 1, 8>;
using V4Middle = Geometry<RowFormat::v4, 2, 1, 6>;
using V4Wide = Geometry<RowFormat::v4, 4, 2, 6>;
using Bf16Small = Geometry<RowFormat::bf16, 1, 1, 4>;
using Bf16Middle = Geometry<RowFormat::bf16, 2, 2, 4>;

TEST(SparseDecodeEmulated, DecodesEveryCodeExactlyForEveryScaleByte) {
  for (uint32_t scale = 0; scale < 255; ++scale)
    for (uint32_t code = 0; code < 256; ++code) {
      if ((code & 0x7F) == 0x7F) continue;
      const double exact = std::ldexp(to_float(e4m3{static_cast<uint8_t>(code)}), static_cast<int>(scale) - 127);
      const float want = round_bf16(static_cast<float>(exact));
      for (int odd = 0; odd < 2; ++odd) {
        const uint32_t word = code << 8 * odd | code << (16 + 8 * odd);
        uint32_t b = odd ? device::spread_odd_codes(word) : device::spread_even_codes(word);
        b = device::multiply_bf16x2(b, scale & 1 ? device::decode_factor(scale) : device::decode_factor(scale, scale));
        b = device::multiply_bf16x2(b, device::second_decode_factor(scale));
        if (scale > 3) {
          ASSERT_EQ(static_cast<double>(want), exact);  // nothing rounded at all
        }
        ASSERT_EQ(std::bit_cast<float>(b << 16), want) << code << " " << scale;
        ASSERT_EQ(b & 0xFFFF, b >> 16);
      }
    }
}

TEST(SparseDecodeEmulated, SpreadsEveryPairOfCodesToFp16) {
  for (uint32_t low = 0; low < 256; ++low)
    for (uint32_t high = 0; high < 256; ++high) {
      if ((low & 0x7F) == 0x7F || (high & 0x7F) == 0x7F) continue;
      for (int half = 0; half < 2; ++half) {
        const uint32_t fields = device::codes_to_f16_fields((low | high << 8) << 16 * half, half);
        float a, b;
        device::unpack_f16x2(fields, &a, &b);
        ASSERT_EQ(a * 256, to_float(e4m3{static_cast<uint8_t>(low)}));
        ASSERT_EQ(b * 256, to_float(e4m3{static_cast<uint8_t>(high)}));
      }
    }
}

TEST(SparseDecodeEmulated, PlacesRowsWithoutBankConflicts) {
  bool used[16] = {};
  for (int p = 0; p < 16; ++p) used[sparse_decode::physical_row(p)] = true;
  EXPECT_EQ(std::accumulate(used, used + 16, 0), 16);
  const auto residue = [](int p) { return sparse_decode::physical_row(p) * V4Small::kRowStride % 128; };
  for (int p = 0; p < 16; p += 2) EXPECT_EQ((residue(p) - residue(p + 1) + 128) % 128, 64);
  for (int first : {0, 1, 8, 9}) {
    bool bank[4] = {};
    for (int t = 0; t < 4; ++t) bank[residue(first + 2 * t) / 32] = true;
    EXPECT_TRUE(bank[0] && bank[1] && bank[2] && bank[3]);
  }
}

TEST(SparseDecodeEmulated, DividesEveryRowOnceAmongSplits) {
  for (int rows = 0; rows < 700; ++rows)
    for (int splits = 1; splits <= 32; ++splits) {
      int next = 0, busy = 0;
      for (int s = 0; s < splits; ++s) {
        const auto share = sparse_decode::share_of(rows, 16, splits, s);
        if (share.tiles) {
          ASSERT_EQ(share.first_tile, next);
          ++busy;
        }
        next += share.tiles;
      }
      ASSERT_EQ(next, (rows + 15) / 16);
      ASSERT_EQ(sparse_decode::share_of(rows, 16, splits, 0).blocks, std::max(1, busy));
    }
}

TEST(SparseDecodeEmulated, AllInstancesMatchFloat64) {
  SparseCaseShape s;
  s.tokens = 1, s.window_most = 40, s.extra_most = 200, s.masked = 0.1, s.rotate = false;
  s.heads = 16;
  expect_right<V4Small>(s, {1}, "16 heads");
  s.heads = 32;
  expect_right<V4Middle>(s, {1}, "32 heads");
  s.heads = 64;
  expect_right<V4Wide>(s, {1}, "64 heads");
  s.format = RowFormat::bf16, s.heads = 32;
  expect_right<Bf16Small>(s, {1}, "bf16, 16 heads a block");
  expect_right<Bf16Middle>(s, {1}, "bf16, 32 heads a block");
}

TEST(SparseDecodeEmulated, SplitsCombineThroughMemory) {
  SparseCaseShape s;
  s.tokens = 2, s.heads = 24, s.window_most = 24, s.extra_most = 60, s.window_page = 2, s.extra_page = 3, s.padding = 1;
  s.window_length = {24, 5}, s.extra_length = {60, 30}, s.codes = true;
  for (bool codes : {false, true}) {
    s.codes = codes;
    expect_right<V4Small>(s, {5, 1 << 30, 3}, "memory");
    expect_right<V4Small>(s, {5, 0, 4}, "memory, no patience");
    expect_right<V4Small>(s, {5, 40, 5}, "memory, little patience");
    expect_right<V4Wide>(s, {3, 1 << 30, 8}, "memory, 64 heads");
    expect_right<V4Wide>(s, {1, 1 << 30, 8}, "alone, 64 heads");
  }
}

TEST(SparseDecodeEmulated, DefinesEmptyMaskedAndSingleRows) {
  SparseCaseShape s;
  s.tokens = 5, s.heads = 4, s.window_most = 20, s.extra_most = 40;
  s.window_length = {0, 1, 0, 20, 17}, s.extra_length = {0, 0, 1, 40, 0};
  expect_right<V4Small>(s, {4, 1 << 30, 9}, "short");
  expect_right<V4Small>(s, {1}, "short, alone");
  s.masked = 1;
  expect_right<V4Small>(s, {4, 1 << 30, 10}, "all masked");
  s.masked = 0.95, s.codes = true;
  expect_right<V4Small>(s, {4, 0, 11}, "nearly all masked");
}

using sparse_decode::Burst;

TEST(SparseDecodeEmulated, KernelForFewRowsMatchesFloat64) {
  SparseCaseShape s;
  s.heads = 16, s.window_most = 16, s.extra_most = 60, s.masked = 0.1, s.rotate = false;
  expect_right<Burst<1, 1, 5, 0>>(s, {1}, "16 heads alone");
  s.rotate = true, s.codes = true, s.tokens = 2, s.window_length = {16, 9}, s.extra_length = {60, 11};
  expect_right<Burst<1, 1, 2, 0>>(s, {3, 1 << 30, 31}, "16 heads, 3 splits");
  s.heads = 40;
  expect_right<Burst<2, 1, 3, 0>>(s, {2, 1 << 30, 32}, "32 heads a block");
  expect_right<Burst<2, 2, 5, 0>>(s, {1, 0, 33}, "32 heads a block alone");
  s.heads = 64, s.codes = false;
  expect_right<Burst<4, 2, 3, 0>>(s, {2, 0, 34}, "64 heads a block");
  expect_right<Burst<4, 2, 5, 0>>(s, {1, 0, 35}, "64 heads a block alone");
}

TEST(SparseDecodeEmulated, KernelForFewRowsTakesLargeScalesAndNoRows) {
  SparseCaseShape s;
  s.heads = 16, s.window_most = 0, s.extra_most = 150, s.query_scale = 1e-2, s.largest_scale = 140;
  expect_right<Burst<1, 1, 5, 0>>(s, {2, 1 << 30, 36}, "large scales");
  expect_right<Burst<1, 1, 5, 8>>(s, {8, 0, 37}, "large scales, cluster");
  s.largest_scale = 0, s.query_scale = 1, s.tokens = 4, s.extra_length = {0, 1, 40, 150}, s.masked = 0.5;
  expect_right<Burst<1, 1, 5, 0>>(s, {3, 0, 38}, "short");
  s.masked = 1;
  expect_right<Burst<1, 1, 5, 0>>(s, {3, 0, 39}, "masked");
  expect_right<Burst<1, 1, 5, 8>>(s, {8, 0, 40}, "masked, cluster");
}

TEST(SparseDecodeEmulated, SplitsCombineThroughTheMemoryOfACluster) {
  SparseCaseShape s;
  s.tokens = 2, s.heads = 24, s.window_most = 40, s.extra_most = 200, s.window_page = 2, s.extra_page = 3,
  s.padding = 1;
  s.window_length = {40, 5}, s.extra_length = {200, 30};
  expect_right<Burst<1, 1, 5, 8>>(s, {8, 0, 41}, "cluster of 8");
  s.heads = 9, s.window_length = {40, 0}, s.extra_length = {200, 33};
  expect_right<Burst<1, 1, 3, 16>>(s, {16, 0, 42}, "cluster of 16");
  s.window_length = {0, 1}, s.extra_length = {0, 0}, s.rotate = false;
  expect_right<Burst<1, 1, 3, 16>>(s, {16, 0, 43}, "no row, one row");
}

TEST(SparseDecodeEmulated, WarpgroupKernelMatchesFloat64) {
  SparseCaseShape s;
  s.heads = 64, s.window_most = 40, s.extra_most = 200, s.masked = 0.1, s.rotate = false;
  expect_right<Wide>(s, {1}, "alone");
  s.rotate = true, s.codes = true;
  expect_right<Wide>(s, {3, 1 << 30, 21}, "memory");
  s.tokens = 3, s.heads = 72, s.window_length = {0, 1, 40}, s.extra_length = {0, 0, 130};
  expect_right<Wide>(s, {2, 0, 22}, "ragged");
}

TEST(SparseDecodeEmulated, WarpgroupKernelFallsBackToBf16) {
  SparseCaseShape s;
  s.heads = 64, s.window_most = 40, s.extra_most = 150, s.query_scale = 1e-2, s.largest_scale = 140;
  expect_right<Wide>(s, {2, 1 << 30, 23}, "large scales");
}

TEST(SparseDecodeEmulated, WarpgroupKernelForFewRowsMatchesFloat64) {
  using sparse_decode::wide::BurstLayout;
  SparseCaseShape s;
  s.heads = 64, s.window_most = 20, s.extra_most = 55, s.masked = 0.1, s.rotate = false;
  expect_right<BurstLayout<5>>(s, {1}, "5 tiles alone");
  s.rotate = true, s.codes = true, s.extra_most = 120, s.window_page = 7, s.extra_page = 1;
  expect_right<BurstLayout<5>>(s, {2, 1 << 30, 51}, "5 tiles, codes");
  expect_right<BurstLayout<3>>(s, {3, 1 << 30, 52}, "3 tiles");
  s.codes = false, s.tokens = 2, s.heads = 72, s.window_length = {0, 20}, s.extra_length = {1, 30};
  expect_right<BurstLayout<2>>(s, {5, 0, 54}, "ragged, 2 tiles, no patience");
  s.masked = 1;
  expect_right<BurstLayout<2>>(s, {5, 1 << 30, 55}, "masked");
}

TEST(SparseDecodeEmulated, WarpgroupKernelForFewRowsFallsBackToBf16) {
  SparseCaseShape s;
  s.heads = 64, s.window_most = 20, s.extra_most = 60, s.query_scale = 1e-2, s.largest_scale = 140;
  expect_right<sparse_decode::wide::BurstLayout<5>>(s, {1}, "large scales alone");
  expect_right<sparse_decode::wide::BurstLayout<3>>(s, {2, 1 << 30, 56}, "large scales");
}

TEST(SparseDecodeEmulated, SplitsCombineByMailWhateverTheLaunchBeforeLeft) {
  using sparse_decode::wide::BurstLayout;
  Memory memory;
  SparseCaseShape s;
  s.tokens = 2, s.heads = 72, s.window_most = 20, s.extra_most = 55, s.window_length = {20, 3},
  s.extra_length = {55, 40};
  expect_right<BurstLayout<2>>(s, {3, 1, 61, true}, "wide, 2 tiles", memory);
  s.heads = 40, s.window_length = {0, 20}, s.extra_length = {9, 30};
  expect_right<Burst<2, 1, 3, 0>>(s, {4, 1, 62, true}, "32 heads, a token alone", memory);
  s.tokens = 1, s.heads = 64, s.extra_most = 220, s.window_length = s.extra_length = {};
  expect_right<BurstLayout<2>>(s, {9, 1, 63, true}, "wide, more than 8 splits", memory);
  s.heads = 16, s.masked = 0.9;
  expect_right<Burst<1, 1, 2, 0>>(s, {12, 1, 64, true}, "16 heads, 12 splits", memory);
  s.masked = 1;
  expect_right<Burst<1, 1, 5, 0>>(s, {3, 1, 65, true}, "masked", memory);
  s.masked = 0, s.extra_most = 60, s.query_scale = 1e-2, s.largest_scale = 140;
  expect_right<Burst<4, 2, 3, 0>>(s, {2, 1, 66, true}, "64 heads a block, large scales", memory);
  s.heads = 64;
  expect_right<BurstLayout<3>>(s, {2, 1, 67, true}, "wide, large scales", memory);
}

TEST(SparseDecodeEmulated, MailGivesTheBitsOfAMeeting) {
  SparseCaseShape s;
  s.heads = 32, s.window_most = 20, s.extra_most = 100;
  SparseCase met = make_sparse_case(s), mailed = met;
  Memory memory;
  run_emulated<Burst<2, 1, 3, 0>>(met, {3, 1 << 30, 68}, memory);
  run_emulated<Burst<2, 1, 3, 0>>(mailed, {3, 1, 69, true}, memory);
  EXPECT_TRUE(std::equal(met.out.begin(), met.out.end(), mailed.out.begin()));
  EXPECT_TRUE(std::equal(met.lse.begin(), met.lse.end(), mailed.lse.begin()));
}

/// The tokens of a request see the rows of its first token, but for every `nth` column.
void share_rows(SparseCase& c, int nth) {
  const auto share = [&](std::vector<int32_t>& index, int most) {
    for (int t = 0; t < c.shape.tokens; ++t)
      for (int i = 0; i < most; ++i)
        if (i % nth)
          index[static_cast<size_t>(t * most + i)] =
              index[static_cast<size_t>(t / c.shape.queries_per_request * c.shape.queries_per_request * most + i)];
  };
  share(c.window_index, c.shape.window_most), share(c.extra_index, c.shape.extra_most);
}

template <typename G>
void expect_packed_right(const SparseCaseShape& shape, const Run& run, int nth, const std::string& what) {
  SparseCase c = make_sparse_case(shape);
  share_rows(c, nth);
  Memory memory;
  for (int launch = 0; launch < 2; ++launch) {
    c.poison();
    run_emulated<G>(c, run, memory);
    const SparseComparison got = compare_sparse(c);
    EXPECT_EQ(got.failure, "") << what;
    EXPECT_LE(got.relative_l2, std::max(kToleranceWithRope, 1.06 * got.rounding_l2)) << what;
  }
}

TEST(SparseDecodeEmulated, TokensOfARequestShareRows) {
  SparseCaseShape s;
  s.tokens = 6, s.queries_per_request = 6, s.heads = 8, s.window_most = 20, s.extra_most = 100, s.masked = 0.05;
  expect_packed_right<sparse_decode::V4Packed32>(s, {1}, 1 << 30, "the same rows");
  expect_packed_right<sparse_decode::V4Packed32>(s, {3, 1 << 30, 71}, 16, "most rows");
  s.window_length = {20, 20, 19, 0, 1, 20}, s.extra_length = {90, 100, 100, 7, 0, 0}, s.codes = true;
  expect_packed_right<sparse_decode::V4Packed32>(s, {2, 1 << 30, 72}, 5, "ragged, blocks that end inside a token");
  s.tokens = 4, s.queries_per_request = 2, s.heads = 12, s.window_length = {3, 20, 20, 20}, s.codes = false,
  s.extra_length = {100, 60, 0, 100}, s.sink = false;
  expect_packed_right<sparse_decode::V4Packed32>(s, {4, 0, 73}, 1, "nothing in common, no patience");
  s.heads = 4, s.window_length = s.extra_length = {}, s.extra_most = 20, s.codes = true;
  expect_packed_right<sparse_decode::V4Packed32>(s, {2, 0, 74}, 16, "most of a block without heads");
}

TEST(SparseDecodeEmulated, HandlesPeakedScoresAndLargeScales) {
  SparseCaseShape s;
  s.heads = 16, s.window_most = 0, s.extra_most = 300, s.query_scale = 8, s.sink = false, s.rotate = false;
  expect_right<V4Small>(s, {1}, "peaked");
  s.query_scale = 1e-2, s.largest_scale = 140;
  expect_right<V4Small>(s, {2, 1 << 30, 12}, "large scales");
}

TEST(SparseDecodeEmulated, GivesTheSameBitsAloneAndInABatch) {
  SparseCaseShape s;
  s.tokens = 3, s.heads = 16, s.window_most = 16, s.extra_most = 90, s.extra_length = {90, 33, 70},
  s.window_length = {16, 16, 9};
  SparseCase batch = make_sparse_case(s);
  Memory memory, fresh;
  run_emulated<V4Small>(batch, {4, 1 << 30, 13}, memory);
  SparseCase alone = batch;
  alone.shape.tokens = 1;
  const size_t width = 16 * kHeadDim;
  std::copy(batch.q.begin() + 2 * width, batch.q.begin() + 3 * width, alone.q.begin());
  std::copy(batch.window_index.begin() + 32, batch.window_index.end(), alone.window_index.begin());
  std::copy(batch.extra_index.begin() + 180, batch.extra_index.end(), alone.extra_index.begin());
  alone.window_length = {9}, alone.extra_length = {70}, alone.position = {batch.position[2]};
  alone.poison();
  run_emulated<V4Small>(alone, {4, 0, 14}, fresh);
  EXPECT_TRUE(std::equal(alone.out.begin(), alone.out.begin() + width, batch.out.begin() + 2 * width));
  EXPECT_TRUE(std::equal(alone.lse.begin(), alone.lse.begin() + 16, batch.lse.begin() + 32));
}

TEST(SparseDecodeEmulated, MoreSplitsCombineThanAreAskedForAtOnce) {
  SparseCaseShape s;
  s.heads = 9, s.window_most = 20, s.extra_most = 76;
  expect_right<V4Wide>(s, {6, 1 << 30, 81}, "6 splits, 4 at once");
  s.extra_most = 124;
  expect_right<sparse_decode::wide::BurstLayout<2>>(s, {9, 1 << 30, 83}, "few rows, 9 splits, 8 at once");
#ifndef FATHOM_SANITIZED  // emulated threads are slower still
  s.extra_most = 64 * 12 - 10;
  expect_right<Wide>(s, {13, 1 << 30, 84}, "13 splits, 12 at once");
#endif
}

}  // namespace
}  // namespace fathom::ops

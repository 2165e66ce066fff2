// The kernels of the small operations, run on the host by the emulator on the lab's random ragged cases and judged as
// the lab judges every variant: tolerances and properties, poisoned outputs, guard zones, the same bits twice.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "lab/check.h"
#include "ops/gpu_emulator.h"

#include "ops/compress/compress_kernel.cuh"
#include "ops/draft/draft_kernel.cuh"
#include "ops/embed/embed_kernel.cuh"
#include "ops/head/head.h"
#include "ops/index_select/query_kernel.cuh"
#include "ops/index_select/select_kernel.cuh"
#include "ops/index_select/warp_scan.cuh"
#include "ops/index_select/wide_scan.cuh"
#include "ops/linear/linear.h"
#include "ops/query/query_kernel.cuh"
#include "ops/residual_mix/end_params.h"
#include "ops/residual_mix/many_kernel.cuh"
#include "ops/route/route_kernel.cuh"
#include "ops/together/together_kernel.cuh"
#include "ops/window_write/window_write_kernel.cuh"

namespace fathom::ops {

void linear_f32_ref(const LinearF32Args& a, const Launch&);

namespace {

#ifdef FATHOM_SANITIZED
constexpr bool kSanitized = true;  // emulated threads are slower still
#else
constexpr bool kSanitized = false;
#endif

int groups(int64_t n, int64_t each) {
  return static_cast<int>((n + each - 1) / each);
}

template <typename Program>
void grid(int64_t x, int64_t y, int threads, size_t shared_bytes, const Program& program) {
  if (x == 0 || y == 0) return;
  device::emulator::run_grid(static_cast<int>(x), static_cast<int>(y), 1, threads, shared_bytes, false, 7, program);
}

/// The lab's cases of an operation with fewest tokens among a few seeds, and `run` as one more variant.
template <typename Args>
void check(std::string_view op, int cases, const std::function<void(const Args&)>& run) {
  const lab::OpCases& generator = lab::find_op(op);
  int ran = 0;
  for (uint64_t seed = 1; ran < cases && seed <= 400; ++seed) {
    const lab::Case c = generator.random(seed);
    const auto build = std::any_cast<std::function<Args(const lab::Addresses&)>>(c.arguments);
    size_t bytes = 0;
    for (const auto& b : c.buffers) bytes += b.role == lab::Role::in ? 0 : b.bytes.size();
    if (bytes > 1 << 16) continue;  // emulated threads are slow
    ++ran;
    lab::Implementation emulated{"emulated", Backend::cpu, {}, {}, {}, {}};
    emulated.workspace = [](const lab::Addresses&, const DeviceInfo&) -> size_t { return 0; };
    emulated.run = [&](const lab::Addresses& a, const Launch&) { run(build(a)); };
    const lab::Verdict v = lab::check(c, emulated, lab::expect(c), lab::cpu_target());
    EXPECT_TRUE(v.ok) << op << ", seed " << seed << ", " << c.shape << ": " << v.message;
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(ran, cases);
}

TEST(SmallOpsEmulated, EmbedCopiesRows) {
  check<EmbedArgs>("embed", 20, [](const EmbedArgs& a) {
    grid(groups(a.streams.size[2], embed::kBlockChannels), a.ids.size[0], embed::kThreads, 0,
         [&](std::byte*) { embed::embed_block(a); });
  });
}

TEST(SmallOpsEmulated, QueryNormalisesAndTurns) {
  check<QueryArgs>("query", 20, [](const QueryArgs& a) {
    grid(groups(a.q.size[1], query::kWarps), a.q.size[0], 32 * query::kWarps, 0,
         [&](std::byte*) { query::query_block(a, device::block_x(), device::block_y()); });
  });
}

TEST(SmallOpsEmulated, WindowWriteWritesRowsOfBothFormats) {
  check<WindowWriteArgs>("window_write", 30, [](const WindowWriteArgs& a) {
    grid(a.kv.size[0], 1, 32, 0, [&](std::byte*) { window_write::write_block(a, device::block_x()); });
  });
}

TEST(SmallOpsEmulated, StreamMean) {
  check<StreamMeanArgs>("stream_mean", 20, [](const StreamMeanArgs& a) {
    grid(groups(a.streams.size[2], draft::kBlockChannels), a.streams.size[0], draft::kThreads, 0,
         [&](std::byte*) { draft::mean_block(a); });
  });
}

TEST(SmallOpsEmulated, MarkovAddsToLogits) {
  check<MarkovArgs>("markov", 10, [](const MarkovArgs& a) {
    const int64_t batch = a.token.size[0], rank = a.w1.size[1], vocabulary = a.w2.size[0];
    std::vector<device::Words4> rows(static_cast<size_t>(batch * rank / 8));
    std::vector<float> product(static_cast<size_t>(batch * vocabulary));
    auto* x = reinterpret_cast<bf16*>(rows.data());
    grid(batch, 1, draft::kThreads, 0, [&](std::byte*) { draft::gather_block(a, x); });
    LinearF32Args p;
    p.x = View<const bf16, 2>(x, batch, rank);
    p.part[p.parts++] = {a.w2, View<float, 2>(product.data(), batch, vocabulary)};
    linear_f32_ref(p, {});
    grid(groups(vocabulary, draft::kThreads) + 1, batch, draft::kThreads, 64,
         [&](std::byte* shared) { draft::add_block(a, product.data(), reinterpret_cast<double*>(shared)); });
  });
}

template <int kMixes>
void emulate_partial(const mix::Params& p, int64_t tokens) {
  grid(p.slices, groups(tokens, p.block_tokens), 32 * static_cast<int>(std::min<int64_t>(tokens, mix::kPartialWarps)),
       0, [&](std::byte*) { mix::partial_block<kMixes>(p); });
}

template <int kMixes>
void emulate_finish(const mix::Params& p, int64_t tokens) {
  const auto finish = [&]<bool kRehearse>(float* shared) {
    if (p.streams.size[2] <= 8 * mix::kFinishThreads)
      mix::finish_block<kMixes, 1, kRehearse>(p, shared);
    else
      mix::finish_block<kMixes, 2, kRehearse>(p, shared);
  };
  const auto run = [&](std::byte* shared) {  // as behind a HalfEnd where there is an odd number of them
    auto* floats = reinterpret_cast<float*>(shared);
    tokens % 2 && tokens <= kEndTokens ? finish.template operator()<true>(floats)
                                       : finish.template operator()<false>(floats);
  };
  grid(p.next_post.data ? 2 : 1, tokens, mix::kFinishThreads, mix::kFinishFloats * sizeof(float), run);
}

template <int kMixes>
void emulate_mix(mix::Params p, int64_t tokens) {
  const int64_t d = p.streams.size[2];
  p.slices = groups(d, mix::kSliceChannels), p.tokens = static_cast<int32_t>(tokens);
  p.block_tokens = mix::block_tokens(tokens);
  std::vector<float> partial(static_cast<size_t>(tokens * p.slices * mix::kPitch<kMixes>), NAN);
  p.partial = partial.data();
  if (kMixes != mix::kGates && p.fn.data && tokens <= mix::kFewTokens)
    grid(p.slices, tokens, 32 * mix::kFewWarps, 0, [&](std::byte*) { mix::few_partial_block(p); });
  else
    emulate_partial<kMixes>(p, tokens);
  if (!p.fn.data) return;
  emulate_finish<kMixes>(p, tokens);
}

TEST(SmallOpsEmulated, ResidualMixEndsAndBeginsHalves) {
  check<ResidualMixArgs>("residual_mix", 8,
                         [](const ResidualMixArgs& a) { emulate_mix<kMixes>(mix::params(a), a.streams.size[0]); });
}

/// By tensor cores.
void emulate_many_partial(const mix::Params& p, int64_t tokens) {
  grid(p.slices, groups(tokens, mix::kManyTokens), 32 * mix::kManyWarps, mix::kManyFloats * sizeof(float),
       [&](std::byte* shared) { mix::many_partial_block(p, reinterpret_cast<float*>(shared)); });
}
void emulate_many(mix::Params p, int64_t tokens) {
  p.slices = groups(p.streams.size[2], mix::kManyChannels), p.tokens = static_cast<int32_t>(tokens);
  std::vector<float> partial(static_cast<size_t>(tokens * p.slices * mix::kPitch<kMixes>), NAN);
  p.partial = partial.data();
  emulate_many_partial(p, tokens);
  emulate_finish<kMixes>(p, tokens);
}

TEST(SmallOpsEmulated, ResidualMixOfManyTokensEndsAndBeginsHalves) {
  check<ResidualMixArgs>("residual_mix", 12, [](const ResidualMixArgs& a) {
    if (a.fn.data)
      emulate_many(mix::params(a), a.streams.size[0]);
    else
      emulate_mix<kMixes>(mix::params(a), a.streams.size[0]);
  });
}

TEST(SmallOpsEmulated, PartialSumsInAllWaysHaveTheSameStreamsAndThoseInSlicesOf32TheSameBits) {
  constexpr int64_t kTokens = 19, kWidth = 256;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  const auto numbers = [&](int64_t n) {
    std::vector<device::Float4> v(static_cast<size_t>(n / 4));
    for (auto& e : v) e = {normal(random), normal(random), normal(random), normal(random)};
    return v;
  };
  std::vector<bf16> streams, y;
  for (int64_t i = 0; i < kTokens * kStreams * kWidth; ++i)
    streams.push_back(to_bf16(std::ldexp(normal(random), static_cast<int>(random() % 16) - 8)));
  for (int64_t i = 0; i < kTokens * kWidth; ++i) y.push_back(to_bf16(normal(random)));
  const auto post = numbers(kTokens * kStreams), comb = numbers(kTokens * 16), fn = numbers(kMixes * kStreams * kWidth);
  for (const bool ends : {true, false}) {
    enum { kPlain, kFew, kMany, kWays };
    std::vector<float> partial[kWays];
    std::vector<bf16> now[kWays] = {streams, streams, streams};
    for (int way = 0; way < kWays; ++way) {
      mix::Params p;
      p.streams = View<bf16, 3>(now[way].data(), kTokens, int64_t{kStreams}, kWidth);
      if (ends) p.y = View<const bf16, 2>(y.data(), kTokens, kWidth);
      p.post = &post[0].x, p.comb = &comb[0].x, p.post_stride = kStreams, p.comb_stride = 16;
      p.fn = View<const float, 2>(&fn[0].x, int64_t{kMixes}, kStreams * kWidth);
      p.tokens = kTokens, p.block_tokens = mix::block_tokens(kTokens);
      p.slices = kWidth / (way == kMany ? mix::kManyChannels : mix::kSliceChannels);
      partial[way].assign(static_cast<size_t>(kTokens * p.slices * mix::kPitch<kMixes>), 0);
      p.partial = partial[way].data();
      if (way == kFew)
        grid(p.slices, kTokens, 32 * mix::kFewWarps, 0, [&](std::byte*) { mix::few_partial_block(p); });
      else if (way == kMany)
        emulate_many_partial(p, kTokens);
      else
        emulate_partial<kMixes>(p, kTokens);
    }
    for (int way = 1; way < kWays; ++way)
      EXPECT_EQ(std::memcmp(now[kPlain].data(), now[way].data(), streams.size() * sizeof(bf16)), 0) << way;
    EXPECT_EQ(std::memcmp(partial[kPlain].data(), partial[kFew].data(), partial[kPlain].size() * sizeof(float)), 0);
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto total = [&](int way, int64_t value) {
        const int64_t slices = static_cast<int64_t>(partial[way].size()) / kTokens / mix::kPitch<kMixes>;
        double sum = 0;
        for (int64_t s = 0; s < slices; ++s)
          sum += partial[way][static_cast<size_t>((t * slices + s) * mix::kPitch<kMixes> + value)];
        return sum;
      };
      const double squares = total(kPlain, kMixes);  // a mix has about their root: weights are of order one
      EXPECT_NEAR(total(kMany, kMixes), squares, 1e-6 * squares) << t;
      for (int m = 0; m < kMixes; ++m)
        EXPECT_NEAR(total(kMany, m), total(kPlain, m), 2e-6 * std::sqrt(squares)) << t << ", " << m;
    }
  }
}

TEST(SmallOpsEmulated, WhatStreamsCarryHasTheSameBitsForManyTokensAsForFew) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  for (int round = 0; round < 500; ++round) {
    device::Float4 post = {1, 1, 1, 1}, comb[kStreams];
    for (auto& e : comb) e = {normal(random), normal(random), normal(random), normal(random)};
    mix::Params p;
    p.post = &post.x, p.comb = &comb[0].x;
    device::Words2 x[kStreams];
    mix::Inputs channels[4] = {};
    for (int k = 0; k < kStreams; ++k) {
      for (auto& channel : channels)
        channel.x[k] = to_bf16(round == 0 ? 0.0f : std::ldexp(normal(random), static_cast<int>(random() % 24) - 12));
      for (int i = 0; i < 2; ++i)
        x[k].word[i] = channels[2 * i].x[k].bits | static_cast<uint32_t>(channels[2 * i + 1].x[k].bits) << 16;
    }
    float sum[kStreams][4];
    mix::carry_channels(p, 0, x, sum);
    for (int i = 0; i < 4; ++i) {
      const mix::Carried want = mix::carry(p, 0, channels[i]);
      for (int k = 0; k < kStreams; ++k) EXPECT_EQ(sum[k][i], want.sum[k]) << round << ", " << i << ", " << k;
    }
  }
}

TEST(SmallOpsEmulated, HeadMixesTheWantedRows) {
  check<HeadArgs>("head", 12, [](const HeadArgs& a) {
    mix::Params p;
    p.streams.data = const_cast<bf16*>(a.streams.data);
    for (int i = 0; i < 3; ++i) p.streams.size[i] = a.streams.size[i], p.streams.stride[i] = a.streams.stride[i];
    p.rows = a.rows, p.fn = a.fn, p.scale = a.scale, p.base = a.base, p.norm = a.norm;
    p.hc_eps = a.hc_eps, p.rms_eps = a.rms_eps, p.mixed = a.hidden, p.x = a.normed;
    emulate_mix<mix::kGates>(p, a.rows.size[0]);
    LinearF32Args product;
    product.x = a.normed;
    product.part[product.parts++] = {a.weight, a.logits};
    linear_f32_ref(product, {});
  });
}

TEST(SmallOpsEmulated, RouteChoosesAndWeighs) {
  check<RouteArgs>("route", kSanitized ? 10 : 40, [](const RouteArgs& a) {
    LinearF32Args product;
    product.x = a.x;
    product.part[product.parts++] = {a.gate, a.scores};
    linear_f32_ref(product, {});
    grid(a.x.size[0], 1, route::kThreads, sizeof(route::Shared),
         [&](std::byte* shared) { route::route_block(a, *reinterpret_cast<route::Shared*>(shared)); });
  });
}

void emulate_compress(const CompressArgs& a, bool one_launch) {
  using namespace compress;
  const int64_t entries = a.entries.size[0], segments = a.segments.size[0];
  if (one_launch)
    return grid(entries + segments, 1, kThreads, kHeadDim * sizeof(float),
                [&](std::byte* shared) { fused_block(a, device::block_x(), reinterpret_cast<float*>(shared)); });
  std::vector<float> pooled(static_cast<size_t>(entries * a.norm.size[0]), NAN);
  grid(a.norm.size[0] / kPoolChannels, entries, kThreads, kPooledFloats * sizeof(float),
       [&](std::byte* shared) { pool_block(a, pooled.data(), reinterpret_cast<float*>(shared)); });
  grid(groups(entries, kWarps) + segments * kStateStripes, 1, kThreads, 0,
       [&](std::byte*) { finish_block(a, pooled.data()); });
}

bool fits_one_launch(const CompressArgs& a) {
  return a.ratio == 4 && a.k.size[0] - a.segments.size[0] + 1 + 6 < a.state_k.size[1];
}

TEST(SmallOpsEmulated, CompressInTwoLaunches) {
  check<CompressArgs>("compress", 8, [](const CompressArgs& a) { emulate_compress(a, false); });
}

TEST(SmallOpsEmulated, CompressInOneLaunchWhereNothingIsReadAndWritten) {
  int one = 0;
  check<CompressArgs>("compress", 12, [&](const CompressArgs& a) {
    one += fits_one_launch(a);
    emulate_compress(a, fits_one_launch(a));
  });
  EXPECT_GT(one, 2);
}

/// Memory of all outputs of one side, filled with a pattern first.
struct InputRows {
  std::vector<device::Words4> pages, codes;
  std::vector<e8m0> scale;
  void point(AttentionInputsArgs& a, int64_t tokens, int64_t heads) {
    pages.assign(static_cast<size_t>(page_bytes(RowFormat::v4, 64)) / 16, device::Words4{{~0u, 7, 7, 7}});
    codes.assign(static_cast<size_t>(tokens * heads * 4), device::Words4{{~0u, 7, 7, 7}});
    scale.assign(static_cast<size_t>(tokens * heads * 4), e8m0{99});
    a.window.pool = {reinterpret_cast<std::byte*>(pages.data()), page_bytes(RowFormat::v4, 64), 64};
    a.index.codes = View<e2m1x2, 3>(reinterpret_cast<e2m1x2*>(codes.data()), tokens, heads, int64_t{64});
    a.index.scale = View<e8m0, 3>(scale.data(), tokens, heads, int64_t{4});
  }
  bool operator==(const InputRows& o) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && (a.empty() || !std::memcmp(a.data(), b.data(), a.size() * 16));
    };
    return same(pages, o.pages) && same(codes, o.codes) &&
           std::ranges::equal(scale, o.scale, {}, &e8m0::bits, &e8m0::bits);
  }
};

TEST(SmallOpsEmulated, AttentionInputsTogetherHaveTheBitsOfEachAlone) {
  int with_index = 0;
  check<QueryArgs>("query", 8, [&](const QueryArgs& query) {
    const int64_t tokens = query.q.size[0], heads = tokens % 2 ? 6 : 0;
    with_index += heads > 0;
    std::vector<bf16> values(static_cast<size_t>(512 * (tokens + 1) + 128 * tokens * heads));
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_bf16(static_cast<float>(i * 7919 % 1001) - 500);
    std::vector<int32_t> slot(static_cast<size_t>(tokens));
    for (size_t t = 0; t < slot.size(); ++t) slot[t] = t == 1 ? -1 : static_cast<int32_t>(t * 5 % 64);
    AttentionInputsArgs a;
    a.query = query;
    a.window.kv = View<const bf16, 2>(values.data() + 512, tokens, 512);
    a.window.norm = View<const bf16, 1>(values.data(), 512);
    a.window.position = a.index.position = query.position, a.window.rope_freq = a.index.rope_freq = query.rope_freq;
    a.window.slot = View<const int32_t, 1>(slot.data(), tokens);
    if (heads > 0) a.index.q = View<const bf16, 3>(values.data() + 512 * (tokens + 1), tokens, heads, 128);
    InputRows alone, together;
    alone.point(a, tokens, heads);
    grid(tokens, 1, 32, 0, [&](std::byte*) { window_write::write_block(a.window, device::block_x()); });
    grid(groups(heads, index_query::kWarps), tokens, 32 * index_query::kWarps, 0,
         [&](std::byte*) { index_query::query_block(a.index, device::block_x(), device::block_y()); });
    together.point(a, tokens, heads);
    grid(together::input_blocks(a), tokens, together::kInputThreads, 0, [&](std::byte*) { together::inputs_block(a); });
    EXPECT_EQ(alone, together);
  });
  EXPECT_GT(with_index, 1);
}

TEST(SmallOpsEmulated, BothCompressionsTogetherHaveTheBitsOfEachAlone) {
  int ran = 0;
  check<CompressArgs>("compress", kSanitized ? 5 : 12, [&](const CompressArgs& a) {
    if (!fits_one_launch(a)) return emulate_compress(a, false);
    ++ran;
    // The same rows twice: the second time into memory of its own.
    std::vector<float> state_k(a.state_k.data, a.state_k.data + a.state_k.size[0] * a.state_k.stride[0]);
    std::vector<float> state_g(a.state_g.data, a.state_g.data + a.state_g.size[0] * a.state_g.stride[0]);
    const int64_t stride = a.index ? a.index_pool.stride : a.pool.stride;
    const int64_t page_rows = a.index ? a.index_pool.page_rows : a.pool.page_rows;
    int64_t pages = 1;
    for (int64_t e = 0; e < a.entries.size[0]; ++e) pages = std::max(pages, a.entries(e).slot / page_rows + 1);
    std::vector<device::Words4> rows(static_cast<size_t>((pages * stride + 15) / 16));
    CompressBothArgs both{a, a};
    CompressArgs& copy = both.index;
    copy.state_k.data = state_k.data(), copy.state_g.data = state_g.data();
    copy.pool.data = copy.index_pool.data = reinterpret_cast<std::byte*>(rows.data());
    grid(2 * (a.entries.size[0] + a.segments.size[0]), 1, compress::kThreads, kHeadDim * sizeof(float),
         [&](std::byte* shared) { together::compress_block(both, reinterpret_cast<float*>(shared)); });
    for (int64_t s = 0; s < a.state_k.size[0]; ++s)
      for (int64_t r = 0; r < a.state_k.size[1]; ++r)
        EXPECT_FALSE(std::memcmp(&a.state_k(s, r, 0), &copy.state_k(s, r, 0), 4 * static_cast<size_t>(a.k.size[1])) ||
                     std::memcmp(&a.state_g(s, r, 0), &copy.state_g(s, r, 0), 4 * static_cast<size_t>(a.k.size[1])));
    for (int64_t e = 0; a.index && e < a.entries.size[0]; ++e) {
      const int32_t slot = a.entries(e).slot;
      if (slot < 0) continue;
      EXPECT_FALSE(std::memcmp(a.index_pool.row_codes(slot), copy.index_pool.row_codes(slot), kIndexCodeBytes));
      EXPECT_FALSE(std::memcmp(a.index_pool.row_scales(slot), copy.index_pool.row_scales(slot), kIndexScaleBytes));
    }
  });
  EXPECT_GT(ran, kSanitized ? 0 : 2);
}

TEST(SmallOpsEmulated, IndexQueryQuantises) {
  check<IndexQueryArgs>("index_query", 8, [](const IndexQueryArgs& a) {
    grid(groups(a.q.size[1], index_query::kWarps), a.q.size[0], 32 * index_query::kWarps, 0,
         [&](std::byte*) { index_query::query_block(a, device::block_x(), device::block_y()); });
  });
}

enum class Keys { written, streamed };

template <typename Scan = index_select::WarpScan>
void emulate_select(const IndexSelectArgs& a, int splits, int64_t patience, Keys how = Keys::streamed) {
  using namespace index_select;
  Params p;
  p.a = a, p.splits = splits, p.patience = patience, p.page_rows = divisor_of(a.keys.page_rows);
  p.rank = rank_for(a.topk, splits);
  const size_t tokens = static_cast<size_t>(a.q.size[0]), parts = tokens * static_cast<size_t>(splits);
  std::vector<Exchange> exchange(tokens, Exchange{});
  std::vector<uint32_t> counts(parts, 0xDEADBEEF);
  std::vector<Candidate> candidates(parts * static_cast<size_t>(a.topk), Candidate{0xDEADBEEF, 0xDEADBEEF});
  p.exchange = exchange.data(), p.counts = counts.data(), p.candidates = candidates.data();
  std::vector<device::Words4> keys;
  if (how == Keys::written) {
    p.keys_each = (a.pages.size[1] * a.keys.page_rows + 127) / 128 * 128;
    const size_t words = tokens * static_cast<size_t>(p.keys_each) / 8;
    keys.resize(words + words / 16 + 1, device::Words4{{~0u, ~0u, ~0u, ~0u}});
    p.keys = reinterpret_cast<uint16_t*>(keys.data());
    p.largest = reinterpret_cast<uint16_t*>(keys.data() + words);
  }
  constexpr bool kStream = !std::is_same_v<Scan, FewScan>;
  grid(splits, a.q.size[0], kThreads, sizeof(Scan),
       [&](std::byte* shared) { select_block<true, kStream>(p, *reinterpret_cast<Scan*>(shared)); });
  for (const Exchange& e : exchange) {  // left as it was
    EXPECT_EQ(e.written, 0u);
    EXPECT_TRUE(std::ranges::all_of(e.reached, [](uint32_t n) { return n == 0; }));
  }
}

TEST(SmallOpsEmulated, IndexSelectOfFewEntries) {
  int few = 0;
  check<IndexSelectArgs>("index_select", 16, [&](const IndexSelectArgs& a) {
    const bool aligned = (reinterpret_cast<uintptr_t>(a.keys.data) | static_cast<uintptr_t>(a.keys.stride)) % 16 == 0;
    few += aligned;
    if (index_select::is_wide(a))
      emulate_select<index_select::WideScan>(a, 3, 0, Keys::written);
    else if (aligned && few % 2 == 0)
      emulate_select<index_select::FewScan>(a, 3, 0, Keys::written);
    else
      emulate_select(a, 3, 0, aligned ? Keys::written : Keys::streamed);
  });
  EXPECT_GT(few, 4);
}

TEST(SmallOpsEmulated, IndexSelectByOneBlock) {
  check<IndexSelectArgs>("index_select", 6, [](const IndexSelectArgs& a) { emulate_select(a, 1, 0); });
}

TEST(SmallOpsEmulated, IndexSelectByWarpgroups) {
  int wide = 0;
  check<IndexSelectArgs>("index_select", 16, [&](const IndexSelectArgs& a) {
    wide += index_select::is_wide(a);
    if (index_select::is_wide(a))
      emulate_select<index_select::WideScan>(a, 1 + wide % 3, wide % 2 << 20);
    else
      emulate_select(a, 1, 0);
  });
  EXPECT_GE(wide, 2);
}

TEST(SmallOpsEmulated, DivisionByProductsIsExact) {
  for (int32_t d : {1, 2, 3, 7, 64, 100, 255, 256, 4097, 2'147'483'647}) {
    const index_select::Divisor by = index_select::divisor_of(d);
    for (int64_t n : {int64_t{0}, int64_t{1}, int64_t{d} - 1, int64_t{d}, int64_t{d} + 1, int64_t{1'000'000'007},
                      int64_t{2'147'483'647} / d * d - 1, int64_t{2'147'483'646}, int64_t{2'147'483'647}})
      if (n >= 0 && n <= 2'147'483'647) {
        EXPECT_EQ(static_cast<int64_t>(static_cast<uint64_t>(n) * by.factor >> by.shift), n / d) << n << " / " << d;
      }
  }
}

TEST(SmallOpsEmulated, IndexSelectByBlocksThatWaitForEachOther) {
  check<IndexSelectArgs>("index_select", 6, [](const IndexSelectArgs& a) { emulate_select(a, 5, 1 << 20); });
}

TEST(SmallOpsEmulated, IndexSelectByBlocksThatDoNotWait) {
  check<IndexSelectArgs>("index_select", 6, [](const IndexSelectArgs& a) { emulate_select(a, 3, 0); });
}

/// Many entries of few different scores: ties go to the earlier entry, buffers overflow, candidates fill many rounds.
TEST(SmallOpsEmulated, IndexSelectIsExactWithTiesAndLongStreams) {
  constexpr int32_t kTopk = 300, kPageRows = 64;
  struct Way {
    int splits;
    bool wide;
    Keys keys;
    int32_t visible;
    int levels = 5, lowest = 0;  // of scores
  };
  for (const Way way :
       {Way{1, false, Keys::streamed, 5000}, Way{7, false, Keys::streamed, 5000}, Way{1, true, Keys::streamed, 5000},
        Way{7, true, Keys::streamed, 5000}, Way{9, false, Keys::written, 4096}, Way{4, true, Keys::written, 4091},
        Way{3, false, Keys::written, 5000}, Way{3, true, Keys::written, 5000}, Way{9, false, Keys::written, 4096, 5, 1},
        Way{9, true, Keys::written, 4096, 1, 2}, Way{2, false, Keys::streamed, 4096, 1, 2},
        Way{3, true, Keys::written, 5000, 1, 2}, Way{5, true, Keys::written, 16'650, 147},
        Way{3, true, Keys::written, 16'400, 2}, Way{3, true, Keys::streamed, 5000, 147}}) {
    const int32_t kVisible = way.visible;
    const int32_t kPages = (kVisible + kPageRows - 1) / kPageRows;
    std::vector<device::Words4> keys(static_cast<size_t>(index_page_bytes(kPageRows) * kPages) / 16);
    IndexSelectArgs a;
    a.keys = {reinterpret_cast<std::byte*>(keys.data()), index_page_bytes(kPageRows), kPageRows};
    std::vector<int32_t> pages(static_cast<size_t>(kPages)), sequence(1), visible(1, kVisible), index(kTopk), length(1);
    for (int i = 0; i < kPages; ++i) pages[static_cast<size_t>(i)] = kPages - 1 - i;
    std::vector<e2m1x2> q(64, e2m1x2{0x22});
    std::vector<e8m0> scale(4, e8m0{127});
    std::vector<bf16> weight(1, to_bf16(1.0f));
    a.pages = View<const int32_t, 2>(pages.data(), 1, kPages);
    const auto slot = [&](int32_t e) { return pages[static_cast<size_t>(e / kPageRows)] * kPageRows + e % kPageRows; };
    std::vector<std::pair<float, int32_t>> order;
    for (int32_t e = 0; e < kVisible; ++e) {
      // Of 5 levels 1000 entries each; of one all are equal.
      const int level = way.lowest + e * 7919 % way.levels, code = level % 7, power = level / 7;
      for (int i = 0; i < 64; ++i) a.keys.row_codes(slot(e))[i] = static_cast<std::byte>(code * 0x11);
      for (int i = 0; i < 4; ++i) a.keys.row_scales(slot(e))[i] = static_cast<std::byte>(127 + power);
      order.emplace_back(-std::ldexp(e2m1_to_float(static_cast<uint8_t>(code)), power), e);
    }
    std::sort(order.begin(), order.end());
    std::vector<int32_t> want;
    for (int i = 0; i < kTopk; ++i) want.push_back(order[static_cast<size_t>(i)].second);
    std::sort(want.begin(), want.end());
    for (int32_t& e : want) e = slot(e);
    a.q = View<const e2m1x2, 3>(q.data(), 1, 1, 64), a.q_scale = View<const e8m0, 3>(scale.data(), 1, 1, 4);
    a.head_weight = View<const bf16, 2>(weight.data(), 1, 1);
    a.sequence = View<const int32_t, 1>(sequence.data(), 1), a.visible = View<const int32_t, 1>(visible.data(), 1);
    a.topk = kTopk, a.index = View<int32_t, 2>(index.data(), 1, kTopk), a.length = View<int32_t, 1>(length.data(), 1);
    if (way.wide)
      emulate_select<index_select::WideScan>(a, way.splits, 0, way.keys);
    else
      emulate_select(a, way.splits, 0, way.keys);
    EXPECT_EQ(index, want) << way.splits << (way.wide ? " wide" : "") << " blocks, " << way.visible;
    EXPECT_EQ(length[0], kTopk);
  }
}

}  // namespace
}  // namespace fathom::ops

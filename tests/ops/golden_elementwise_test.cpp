// Golden vectors of quantisers, norms, RoPE, residual mixing, query, head pieces: every CPU variant against ref.py.
#include "ops/exact_rows.h"
#include "ops/golden.h"
#include "ops/ops.h"

namespace fathom::test {
namespace {

using namespace ops;  // NOLINT: test code speaks of nothing else

std::vector<float> fairy_frequencies(const char* table) {
  return Golden("unit_rope").t.get<float>(std::string(table) + ".freqs");
}

TEST(Golden, QuantiseGivesTheCodesAndScales) {
  Golden g("unit_act_quant");
  const auto x = g.t.mat<bf16>("x");
  for (const auto* v : cpu_variants(quantize_variants())) {
    std::vector<e4m3> codes(static_cast<size_t>(x.count()), e4m3{0xAA});
    std::vector<e8m0> scale(static_cast<size_t>(x.count() / 128), e8m0{0xAA});
    QuantizeArgs a;
    a.x = x, a.codes = View(codes.data(), x.size[0], x.size[1]),
    a.scale = View(scale.data(), x.size[0], x.size[1] / 128);
    run(*v, a);
    EXPECT_EQ(codes, g.t.get<e4m3>("codes")) << v->name;
    EXPECT_EQ(scale, g.t.get<e8m0>("scale")) << v->name;
  }
}

TEST(Golden, KvRowsRoundTripThroughTheFp8Format) {
  Golden g("unit_fp8_sim");
  const auto x = g.t.mat<bf16>("x"), y = g.t.mat<bf16>("y");
  std::vector<std::byte> page(static_cast<size_t>(page_bytes(RowFormat::v4, x.size[0])));
  const KvPool pool{page.data(), static_cast<int64_t>(page.size()), static_cast<int32_t>(x.size[0])};
  for (int64_t t = 0; t < x.size[0]; ++t) {
    std::vector<float> row(kHeadDim, 0.5f), back(kHeadDim);
    for (int i = 0; i < kNopeDim; ++i) row[static_cast<size_t>(i)] = to_float(x(t, i));
    exact::write_kv_row(pool, RowFormat::v4, t, row);
    exact::read_kv_row(pool, RowFormat::v4, t, back.data());
    for (int i = 0; i < kNopeDim; ++i) ASSERT_EQ(to_bf16(back[static_cast<size_t>(i)]), y(t, i)) << t << ' ' << i;
    for (int i = kNopeDim; i < kHeadDim; ++i) ASSERT_EQ(back[static_cast<size_t>(i)], 0.5f);
  }
}

TEST(Golden, Fp4GroupsRoundToTheGrid) {
  Golden g("unit_fp4_sim");
  const auto x = g.t.mat<bf16>("x"), y = g.t.mat<bf16>("y");
  for (int64_t t = 0; t < x.size[0]; ++t) {
    const auto row = exact::widen(x[t]);
    uint8_t codes[64], scales[4];
    for (size_t group = 0; group < 4; ++group)
      scales[group] = exact::fp4_group(std::span(row).subspan(group * 32, 32), codes + group * 16).bits;
    float back[128];
    exact::read_fp4(codes, scales, back);
    for (int i = 0; i < 128; ++i) ASSERT_EQ(to_bf16(back[i]), y(t, i)) << t << ' ' << i;
  }
}

TEST(Golden, QueryNormInBf16StepsAndInFp32) {
  Golden g("unit_norms");
  const auto q = g.t.cube<bf16>("q");
  const std::vector<int32_t> position(static_cast<size_t>(q.size[0]), 0);  // position 0: RoPE is the identity
  const auto freq = fairy_frequencies("plain");
  for (const auto* v : cpu_variants(query_variants())) {
    for (bool steps : {true, false}) {
      auto data = g.t.get<bf16>("q");
      run(*v, QueryArgs{View(data.data(), q.size[0], q.size[1], q.size[2]), View(position.data(), position.size()),
                        View(freq.data(), freq.size()), 1e-6f, steps});
      const auto match = compare(data.data(), g.t.vec<bf16>(steps ? "q_bf16_steps" : "q_fp32"));
      EXPECT_EQ(match.different, 0u) << v->name << " bf16_steps=" << steps;
    }
  }
}

TEST(Golden, RopeAtLowAndVeryHighPositionsBothWays) {
  Golden g("unit_rope");
  const auto x = g.t.mat<bf16>("x");
  const auto position = g.t.vec<int32_t>("positions");
  for (const char* table : {"plain", "yarn"}) {
    const auto freq = g.t.vec<float>(std::string(table) + ".freqs");
    for (bool inverse : {false, true}) {
      const auto want = g.t.mat<bf16>(std::string(table) + (inverse ? ".inverse" : ".y"));
      for (int64_t t = 0; t < x.size[0]; ++t) {
        auto row = exact::widen(x[t]);
        exact::rope(row, position(t), freq, inverse);
        for (size_t i = 0; i < row.size(); ++i)
          ASSERT_EQ(to_bf16(row[i]), want(t, i)) << table << ' ' << inverse << ' ' << t;
      }
    }
  }
}

TEST(Golden, Hadamard) {
  Golden g("unit_hadamard");
  const auto x = g.t.mat<bf16>("x"), y = g.t.mat<bf16>("y");
  for (int64_t t = 0; t < x.size[0]; ++t) {
    auto row = exact::widen(x[t]);
    exact::hadamard(row);
    for (size_t i = 0; i < row.size(); ++i) ASSERT_EQ(to_bf16(row[i]), y(t, i));
  }
}

TEST(Golden, ResidualMixPreAndPost) {
  Golden g("unit_hc");
  Tensors<Checkpoint> w(fairy());
  const auto x = g.t.cube<bf16>("x");
  const int64_t tokens = x.size[0], d = x.size[2];
  for (const auto* v : cpu_variants(residual_mix_variants())) {
    auto streams = g.t.get<bf16>("x");
    std::vector<float> post(static_cast<size_t>(tokens * 4)), comb(static_cast<size_t>(tokens * 16));
    std::vector<bf16> y(static_cast<size_t>(tokens * d)), ones(static_cast<size_t>(d), to_bf16(1));
    std::vector<e4m3> codes(y.size());
    std::vector<e8m0> scale(y.size() / 128);
    ResidualMixArgs a;
    a.streams = View(streams.data(), tokens, 4, d);
    a.fn = w.mat<float>("layers.1.hc_attn_fn"), a.scale = w.vec<float>("layers.1.hc_attn_scale");
    a.base = w.vec<float>("layers.1.hc_attn_base"), a.norm = View<const bf16, 1>(ones.data(), d);
    a.next_post = View(post.data(), tokens, 4), a.next_comb = View(comb.data(), tokens, 4, 4);
    a.x = View(y.data(), tokens, d), a.x_codes = View(codes.data(), tokens, d),
    a.x_scale = View(scale.data(), tokens, d / 128);
    run(*v, a);
    for (size_t i = 0; i < post.size(); ++i) EXPECT_NEAR(post[i], g.t.get<float>("post")[i], 1e-6) << v->name;
    for (size_t i = 0; i < comb.size(); ++i) EXPECT_NEAR(comb[i], g.t.get<float>("comb")[i], 2e-6) << v->name;

    // post part with the golden mixes
    ResidualMixArgs b;
    b.streams = a.streams;
    b.y = g.t.mat<bf16>("o"), b.post = View<const float, 2>(g.t.get<float>("post").data(), tokens, 4);
    b.comb = View<const float, 3>(g.t.get<float>("comb").data(), tokens, 4, 4);
    run(*v, b);
    const auto match = compare(streams.data(), g.t.vec<bf16>("joined"));
    EXPECT_LE(match.worst_ulps, v->name == "ref" ? 0 : 1) << v->name;
  }
}

TEST(Golden, HeadMixesTheStreamsAndMultipliesTheHeadMatrix) {
  Golden g("unit_hc");
  Tensors<Checkpoint> w(fairy());
  const auto x = g.t.cube<bf16>("x");
  const int64_t tokens = x.size[0], d = x.size[2], vocab = fairy().config().vocab_size;
  std::vector<int32_t> rows(static_cast<size_t>(tokens));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<int32_t>(i);
  for (const auto* v : cpu_variants(head_variants())) {
    std::vector<bf16> hidden(static_cast<size_t>(tokens * d)), normed(hidden.size());
    std::vector<float> logits(static_cast<size_t>(tokens * vocab), NAN);
    HeadArgs a;
    a.streams = x, a.rows = View<const int32_t, 1>(rows.data(), tokens);
    a.fn = w.mat<float>("hc_head_fn"), a.scale = w.vec<float>("hc_head_scale"), a.base = w.vec<float>("hc_head_base");
    a.norm = w.vec<bf16>("norm.weight"), a.weight = w.mat<bf16>("head.weight");
    a.hidden = View(hidden.data(), tokens, d), a.normed = View(normed.data(), tokens, d);
    a.logits = View(logits.data(), tokens, vocab);
    run(*v, a);
    EXPECT_LE(compare(hidden.data(), g.t.vec<bf16>("head")).worst_ulps, v->name == "ref" ? 0 : 1) << v->name;
    // The product, against a plain sum over the variant's own normed rows.
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t n = 0; n < vocab; n += 97) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < d; ++i) {
          const double product = double{to_float(a.normed(t, i))} * double{to_float(a.weight(n, i))};
          sum += product, size += std::abs(product);
        }
        ASSERT_NEAR(a.logits(t, n), sum, 1e-6 * size + 1e-6) << v->name << " token " << t << " row " << n;
      }
    }
  }
}

}  // namespace
}  // namespace fathom::test

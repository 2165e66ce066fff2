// Golden vectors of linears, compressor, indexer, attention, router and experts: every CPU variant against ref.py.
#include "ops/exact_rows.h"
#include "ops/golden.h"
#include "ops/ops.h"

namespace fathom::test {
namespace {

using namespace ops;  // NOLINT: test code speaks of nothing else

/// Quantised copy of a bf16 matrix, as the model would hand it to a product.
struct Quantised {
  explicit Quantised(View<const bf16, 2> x)
      : codes(static_cast<size_t>(x.count())),
        scale(static_cast<size_t>(x.count() / 128)),
        rows(x.size[0]),
        columns(x.size[1]) {
    for (int64_t t = 0; t < rows; ++t)
      exact::act_quant(exact::widen(x[t]), &codes[static_cast<size_t>(t * columns)],
                       &scale[static_cast<size_t>(t * columns / 128)]);
  }
  View<const e4m3, 2> code_view() const { return View<const e4m3, 2>(codes.data(), rows, columns); }
  View<const e8m0, 2> scale_view() const { return View<const e8m0, 2>(scale.data(), rows, columns / 128); }
  std::vector<e4m3> codes;
  std::vector<e8m0> scale;
  int64_t rows, columns;
};

template <typename Name>
void expect_close(const bf16* got, View<const bf16, 1> want, Name variant, double relative_l2) {
  const Match m = compare(got, want);
  if (std::string(variant) == "ref") {
    EXPECT_EQ(m.different, 0u) << "of " << m.count << ", worst " << m.worst_ulps << " ulp";
  }
  EXPECT_LE(m.relative_l2, relative_l2) << variant << ": " << m.different << " of " << m.count << " differ";
}

TEST(Golden, LinearFp8) {
  Golden g("unit_fp8_linear");
  const auto x = g.t.mat<bf16>("x");
  const Quantised q(x);
  for (const auto* v : cpu_variants(linear_fp8_variants())) {
    std::vector<bf16> y(g.t.get<bf16>("y").size(), bf16{0x7FC0});
    LinearFp8Args a;
    a.x = q.code_view(), a.x_scale = q.scale_view(), a.parts = 1;
    a.part[0] = {{g.t.mat<e4m3>("weight"), g.t.mat<e8m0>("scale")},
                 View(y.data(), x.size[0], g.file.info("weight").shape[0])};
    run(*v, a);
    expect_close(y.data(), g.t.vec<bf16>("y"), v->name, 1e-3);
  }
}

TEST(Golden, CompressorOfBothRatiosWholePromptAndTokenByToken) {
  for (const auto& [file, layer, ratio] : {std::tuple{"unit_compressor_r4", 1, 4}, {"unit_compressor_r128", 2, 128}}) {
    Golden g(file);
    Tensors<Checkpoint> w(fairy());
    Golden rope("unit_rope");
    const auto x = g.t.mat<bf16>("x");
    for (const char* part : {"main", "index"}) {
      const bool index = std::string(part) == "index";
      if (index && ratio == 128) continue;
      const std::string prefix =
          "layers." + std::to_string(layer) + ".attn." + (index ? "indexer.compressor." : "compressor.");
      const auto wkv = w.mat<bf16>(prefix + "wkv.weight"), wgate = w.mat<bf16>(prefix + "wgate.weight");
      const auto want = g.t.mat<bf16>(std::string(part) + ".entries");
      const int64_t tokens = x.size[0], width = wkv.size[0], ring = ratio == 4 ? 16 : 256, entries = tokens / ratio;
      std::vector<float> k(static_cast<size_t>(tokens * width)), gate(k.size());
      LinearF32Args project;
      project.x = x, project.parts = 2;
      project.part[0] = {wkv, View(k.data(), tokens, width)};
      project.part[1] = {wgate, View(gate.data(), tokens, width)};
      run(*find_variant(linear_f32_variants(), "ref"), project);

      for (const auto* v : cpu_variants(compress_variants())) {
        for (int64_t chunk : {tokens, int64_t{1}, int64_t{7}}) {
          std::vector<std::byte> page(
              static_cast<size_t>(index ? index_page_bytes(entries) : page_bytes(RowFormat::v4, entries)));
          std::vector<float> state_k(static_cast<size_t>(ring * width), NAN), state_g(state_k.size(), NAN);
          CompressArgs a;
          a.ratio = ratio, a.ape = w.mat<float>(prefix + "ape"), a.norm = w.vec<bf16>(prefix + "norm.weight");
          a.rope_freq = rope.t.vec<float>("yarn.freqs");
          a.state_k = View(state_k.data(), 1, ring, width), a.state_g = View(state_g.data(), 1, ring, width);
          a.index = index;
          a.pool = {page.data(), static_cast<int64_t>(page.size()), static_cast<int32_t>(entries)};
          a.index_pool = {page.data(), static_cast<int64_t>(page.size()), static_cast<int32_t>(entries)};
          for (int64_t at = 0; at < tokens; at += chunk) {
            const int64_t n = std::min(chunk, tokens - at);
            const Segment segment{0, static_cast<int32_t>(n), static_cast<int32_t>(at), 0};
            std::vector<CompressEntry> done;
            for (int64_t e = at / ratio; e < (at + n) / ratio; ++e)
              done.push_back({0, static_cast<int32_t>(e), static_cast<int32_t>(e)});
            a.k = View<const float, 2>(&k[static_cast<size_t>(at * width)], n, width);
            a.g = View<const float, 2>(&gate[static_cast<size_t>(at * width)], n, width);
            a.segments = View<const Segment, 1>(&segment, 1);
            a.entries = View<const CompressEntry, 1>(done.data(), done.size());
            run(*v, a);
          }
          std::vector<bf16> got;
          for (int64_t e = 0; e < entries; ++e) {
            std::vector<float> row(static_cast<size_t>(want.size[1]));
            if (index)
              exact::read_fp4(reinterpret_cast<uint8_t*>(a.index_pool.row_codes(e)),
                              reinterpret_cast<uint8_t*>(a.index_pool.row_scales(e)), row.data());
            else
              exact::read_kv_row(a.pool, RowFormat::v4, e, row.data());
            for (float value : row) got.push_back(to_bf16(value));
          }
          SCOPED_TRACE(std::string(file) + " " + part + " chunk " + std::to_string(chunk));
          expect_close(got.data(), g.t.vec<bf16>(std::string(part) + ".entries"), v->name, 5e-3);
        }
      }
    }
  }
}

TEST(Golden, IndexerQueriesWeightsAndScores) {
  Golden g("unit_indexer");
  Tensors<Checkpoint> w(fairy());
  Golden rope("unit_rope");
  const auto x = g.t.mat<bf16>("x");
  const auto want_q = g.t.cube<bf16>("q");
  const int64_t tokens = x.size[0], heads = want_q.size[1];
  const Quantised qr(g.t.mat<bf16>("qr"));
  std::vector<bf16> q(static_cast<size_t>(want_q.count())), weight(static_cast<size_t>(tokens * heads));
  LinearFp8Args up;
  up.x = qr.code_view(), up.x_scale = qr.scale_view(), up.parts = 1;
  up.part[0] = {{w.mat<e4m3>("layers.1.attn.indexer.wq_b.weight"), w.mat<e8m0>("layers.1.attn.indexer.wq_b.scale")},
                View(q.data(), tokens, heads * kIndexDim)};
  run(*find_variant(linear_fp8_variants(), "ref"), up);
  std::vector<int32_t> position(static_cast<size_t>(tokens));
  for (size_t i = 0; i < position.size(); ++i) position[i] = static_cast<int32_t>(i);

  for (const auto* v : cpu_variants(index_query_variants())) {
    std::vector<e2m1x2> codes(static_cast<size_t>(want_q.count() / 2));
    std::vector<e8m0> scale(static_cast<size_t>(want_q.count() / 32));
    run(*v, IndexQueryArgs{View<const bf16, 3>(q.data(), tokens, heads, kIndexDim),
                           View<const int32_t, 1>(position.data(), tokens), rope.t.vec<float>("yarn.freqs"),
                           View(codes.data(), tokens, heads, 64), View(scale.data(), tokens, heads, 4)});
    std::vector<bf16> got;
    for (int64_t i = 0; i < tokens * heads; ++i) {
      float row[kIndexDim];
      exact::read_fp4(&codes[static_cast<size_t>(i * 64)].bits, &scale[static_cast<size_t>(i * 4)].bits, row);
      for (float value : row) got.push_back(to_bf16(value));
    }
    expect_close(got.data(), g.t.vec<bf16>("q"), v->name, 0.02);
  }
  for (const auto* v : cpu_variants(linear_bf16_variants())) {
    run(*v, LinearBf16Args{x, w.mat<bf16>("layers.1.attn.indexer.weights_proj.weight"),
                           static_cast<float>(std::pow(128, -0.5) * std::pow(static_cast<double>(heads), -0.5)),
                           View(weight.data(), tokens, heads)});
    expect_close(weight.data(), g.t.vec<bf16>("head_weights"), v->name, 4e-3);
  }
}

TEST(Golden, SparseAttentionSmallAndFull) {
  for (const char* name : {"unit_attention_small", "unit_attention_full"}) {
    Golden g(name);
    const auto q = g.t.mat<bf16>("q"), kv = g.t.mat<bf16>("kv");
    std::vector<int32_t> index(static_cast<size_t>(kv.size[0]));
    for (size_t i = 0; i < index.size(); ++i) index[i] = static_cast<int32_t>(i);
    const int32_t length = static_cast<int32_t>(kv.size[0]);
    for (const auto* v : cpu_variants(sparse_attention_variants())) {
      std::vector<bf16> out(static_cast<size_t>(q.count()), bf16{0x7FC0});
      SparseAttentionArgs a;
      a.q = View<const bf16, 3>(q.data, 1, q.size[0], q.size[1]);
      a.format = RowFormat::bf16;
      auto rows = g.t.get<bf16>("kv");
      a.window = {{reinterpret_cast<std::byte*>(rows.data()), static_cast<int64_t>(rows.size() * 2), length},
                  View<const int32_t, 2>(index.data(), 1, length),
                  View<const int32_t, 1>(&length, 1)};
      a.sink = g.t.vec<float>("sink");
      a.scale = static_cast<float>(std::pow(512, -0.5));
      a.out = View(out.data(), 1, q.size[0], q.size[1]);
      run(*v, a);
      expect_close(out.data(), g.t.vec<bf16>("o"), v->name, 2.5e-3);
    }
  }
}

TEST(Golden, AttentionOutputInverseRopeGroupsAndWoB) {
  Golden g("unit_attn_output");
  Tensors<Checkpoint> w(fairy());
  Golden rope("unit_rope");
  const auto o = g.t.cube<bf16>("o");
  const auto position = g.t.vec<int32_t>("positions");
  auto rotated = g.t.get<bf16>("o");
  for (int64_t t = 0; t < o.size[0]; ++t) {
    for (int64_t h = 0; h < o.size[1]; ++h) {
      auto row = exact::widen(o[t][h]);
      exact::rope(std::span(row).last(64), position(t), rope.t.vec<float>("yarn.freqs"), true);
      for (size_t i = 0; i < row.size(); ++i)
        rotated[static_cast<size_t>((t * o.size[1] + h) * o.size[2]) + i] = to_bf16(row[i]);
    }
  }
  const Fp8Weight wo_a{w.mat<e4m3>("layers.1.attn.wo_a.weight"), w.mat<e8m0>("layers.1.attn.wo_a.scale")};
  const Fp8Weight wo_b{w.mat<e4m3>("layers.1.attn.wo_b.weight"), w.mat<e8m0>("layers.1.attn.wo_b.scale")};
  const int64_t tokens = o.size[0], width = wo_a.codes.size[0];
  for (const auto* v : cpu_variants(output_project_variants())) {
    std::vector<bf16> z(static_cast<size_t>(tokens * width)), y(static_cast<size_t>(tokens * wo_b.codes.size[0]));
    std::vector<e4m3> codes(z.size());
    std::vector<e8m0> scale(z.size() / 128);
    OutputProjectArgs a;
    a.o = View<const bf16, 3>(rotated.data(), tokens, o.size[1], o.size[2]), a.groups = 2, a.wo_a = wo_a;
    a.z = View(z.data(), tokens, width), a.z_codes = View(codes.data(), tokens, width),
    a.z_scale = View(scale.data(), tokens, width / 128);
    run(*v, a);
    LinearFp8Args b;
    b.x = a.z_codes, b.x_scale = a.z_scale, b.parts = 1;
    b.part[0] = {wo_b, View(y.data(), tokens, wo_b.codes.size[0])};
    run(*find_variant(linear_fp8_variants(), v->name == "ref" ? "ref" : "cpu"), b);
    expect_close(y.data(), g.t.vec<bf16>("y"), v->name, 1.5e-2);
  }
}

/// Stacked weights of all experts of a fairy layer.
struct Experts {
  std::vector<std::byte> codes, scale;
  ExpertWeight weight;
  Experts(const std::string& prefix, const char* which) {
    const auto& c = fairy();
    for (int e = 0; e < c.config().num_experts; ++e) {
      const std::string name = prefix + ".experts." + std::to_string(e) + "." + which;
      const auto w = c.bytes(name + ".weight"), s = c.bytes(name + ".scale");
      codes.insert(codes.end(), w.begin(), w.end());
      scale.insert(scale.end(), s.begin(), s.end());
      weight.codes_stride = static_cast<int64_t>(w.size()), weight.scale_stride = static_cast<int64_t>(s.size());
      weight.rows = c.info(name + ".weight").shape[0], weight.columns = 2 * c.info(name + ".weight").shape[1];
    }
    weight.codes = codes.data(), weight.scale = scale.data();
  }
};

void check_moe(int layer, const std::string& input, const std::string& prefix) {
  Golden g("unit_moe");
  Tensors<Checkpoint> w(fairy());
  const std::string ffn = "layers." + std::to_string(layer) + ".ffn";
  const auto x = g.t.mat<bf16>(input);
  const int64_t tokens = x.size[0], d = x.size[1], k = 4, experts = 16;
  std::vector<int32_t> table;
  for (const auto* v : cpu_variants(route_variants())) {
    RouteArgs r;
    std::vector<float> scores(static_cast<size_t>(tokens * experts)), weight(static_cast<size_t>(tokens * k));
    std::vector<int32_t> expert(weight.size());
    r.x = x, r.gate = w.mat<bf16>(ffn + ".gate.weight"), r.ids = g.t.vec<int32_t>("ids"), r.route_scale = 1.5f;
    if (layer > 0) {
      r.bias = w.vec<float>(ffn + ".gate.bias");
    } else {
      const auto& wide = w.get<int64_t>(ffn + ".gate.tid2eid");
      table.assign(wide.begin(), wide.end());
      r.table = View<const int32_t, 2>(table.data(), static_cast<int64_t>(table.size()) / k, k);
    }
    r.scores = View(scores.data(), tokens, experts), r.expert = View(expert.data(), tokens, k),
    r.weight = View(weight.data(), tokens, k);
    run(*v, r);
    EXPECT_EQ(expert, g.t.get<int32_t>(prefix + "experts")) << v->name;
    for (size_t i = 0; i < weight.size(); ++i)
      EXPECT_NEAR(weight[i], g.t.get<float>(prefix + "weights")[i], 2e-6) << v->name;
  }
  const Experts w1(ffn, "w1"), w2(ffn, "w2"), w3(ffn, "w3");
  const Quantised q(x);
  const auto shared = [&](const char* which) {
    return Fp8Weight{w.mat<e4m3>(ffn + ".shared_experts." + which + ".weight"),
                     w.mat<e8m0>(ffn + ".shared_experts." + which + ".scale")};
  };
  for (const auto* v : cpu_variants(experts_variants())) {
    std::vector<bf16> y(static_cast<size_t>(tokens * d), bf16{0x7FC0});
    ExpertsArgs a;
    a.x = q.code_view(), a.x_scale = q.scale_view(), a.expert = g.t.mat<int32_t>(prefix + "experts"),
    a.weight = g.t.mat<float>(prefix + "weights");
    a.experts = experts, a.w1 = w1.weight, a.w2 = w2.weight, a.w3 = w3.weight;
    a.shared_w1 = shared("w1"), a.shared_w2 = shared("w2"), a.shared_w3 = shared("w3");
    a.y = View(y.data(), tokens, d);
    run(*v, a);
    expect_close(y.data(), g.t.vec<bf16>(prefix + "y"), v->name, 1.2e-2);
  }
}

TEST(Golden, MoeWithTheHashRouter) {
  check_moe(0, "x", "layer0.");
}
TEST(Golden, MoeWithTheBiasRouter) {
  check_moe(1, "x", "layer1.");
}
TEST(Golden, MoeWhereEveryClampFires) {
  check_moe(1, "x_big", "layer1.big_");
}

}  // namespace
}  // namespace fathom::test

// The kernels of wo_a and of act_quant, run on the host by the emulator and compared with the references.
#define FATHOM_GPU_EMULATOR
#include <gtest/gtest.h>

#include <random>

#include "ops/gpu_emulator.h"
#include "ops/output_project/output_project_kernel.cuh"
#include "ops/output_project/stream_project.cuh"
#include "ops/quantize/quantize_kernel.cuh"

namespace fathom::ops {

void output_project_ref(const OutputProjectArgs& a, const Launch&);
void quantize_ref(const QuantizeArgs& a, const Launch&);

namespace {

namespace op = output_projection;

constexpr bf16 kNan16{0x7FC0};

/// Storage of arguments; heads, tokens and outputs are padded, and what nobody writes is NaN.
struct Projection {
  int64_t tokens, heads, rank;
  int32_t groups;
  std::vector<bf16> o, z;
  std::vector<e4m3> w, codes;
  std::vector<e8m0> w_scale, scale;
  std::vector<std::byte> workspace;

  Projection(int64_t t, int64_t h, int32_t g, int64_t r, unsigned seed) : tokens(t), heads(h), rank(r), groups(g) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0, 0.3f);
    o.assign(t * h * 520, kNan16);
    for (int64_t i = 0; i < t * h; ++i)
      for (int64_t k = 0; k < 512; ++k) o[i * 520 + k] = to_bf16(normal(random));
    for (int64_t i = 0; i < width() * columns(); ++i) {
      uint8_t c;
      do c = static_cast<uint8_t>(random());
      while ((c & 0x7F) == 0x7F);
      w.push_back({c});
    }
    for (int64_t i = 0; i < width() / 128 * (columns() / 128); ++i)
      w_scale.push_back({static_cast<uint8_t>(114 + random() % 4)});
    workspace.assign(op::workspace_bytes(args()), std::byte{0});
    poison();
  }
  int64_t width() const { return groups * rank; }
  int64_t columns() const { return heads / groups * 512; }
  void poison() {
    z.assign(tokens * (width() + 8), kNan16), codes.assign(tokens * width(), e4m3{0x7F});
    scale.assign(tokens * width() / 128, e8m0{255});
  }
  OutputProjectArgs args(int64_t first = 0, int64_t count = -1) {
    const int64_t n = count < 0 ? tokens : count;
    OutputProjectArgs a;
    a.o = View<const bf16, 3>(o.data() + first * heads * 520, n, heads, 512);
    a.o.stride[0] = heads * 520, a.o.stride[1] = 520;
    a.groups = groups;
    a.wo_a = {View<const e4m3, 2>(w.data(), width(), columns()),
              View<const e8m0, 2>(w_scale.data(), width() / 128, columns() / 128)};
    a.z = View<bf16, 2>(z.data() + first * (width() + 8), n, width()), a.z.stride[0] = width() + 8;
    a.z_codes = View<e4m3, 2>(codes.data() + first * width(), n, width());
    a.z_scale = View<e8m0, 2>(scale.data() + first * width() / 128, n, width() / 128);
    return a;
  }
  void emulate(const OutputProjectArgs& a, unsigned seed = 1) {
    const op::Plan plan = op::make_plan(a);
    const op::Params p = op::pack(a, plan, workspace.data());
    device::emulator::run_grid(plan.width, plan.height, plan.split ? 1 << plan.log2_slices : 1, plan.threads(),
                               plan.shared_bytes, false, seed, [&](std::byte* shared) {
                                 if (plan.tiles == 1) return op::project_block<1>(p, shared);
                                 if (plan.tiles == 2) return op::project_block<2>(p, shared);
                                 op::project_block<8>(p, shared);
                               });
  }
};

void stream_heads(const OutputProjectArgs& a, unsigned seed) {
  stream::Work work = op::pack_stream(a);
  const stream::Plan plan =
      stream::make_plan(stream::Input::bf16, work.row_tiles, work.params.units, work.params.tokens);
  stream::set_plan(work.params, plan);
  const stream::Maps maps = stream::describe_weights(work, device::emulated_map);
  const op::Results to = op::results_of(a);
  stream::with_tiles(plan, [&]<int kTiles>() {
    device::emulator::run_grid(plan.cluster(), plan.token_tiles, plan.grid_tiles(), stream::threads(kTiles),
                               plan.shared_bytes, plan.cluster() > 1, seed,
                               [&](std::byte* shared) { op::stream_project<kTiles>(work.params, maps, to, shared); });
  });
}

void run_heads(Projection& p, const OutputProjectArgs& a, bool streams, unsigned seed) {
  if (streams)
    stream_heads(a, seed);
  else
    p.emulate(a, seed);
}

void expect_projected(int64_t tokens, int64_t heads, int32_t groups, int64_t rank, bool streams) {
  Projection p(tokens, heads, groups, rank, 3);
  output_project_ref(p.args(), {});
  const auto want = p.z;
  for (int run = 0; run < 2; ++run) {  // the second finds the workspace as the first left it
    p.poison();
    run_heads(p, p.args(), streams, static_cast<unsigned>(run + 1));
    double error = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(std::isnan(to_float(p.z[i])), std::isnan(to_float(want[i]))) << i;
      if (std::isnan(to_float(want[i]))) continue;
      error += std::pow(to_float(p.z[i]) - to_float(want[i]), 2), size += std::pow(to_float(want[i]), 2);
    }
    EXPECT_LE(std::sqrt(error / size), 1e-3);
    // Codes and scales are exactly those of the z that was written.
    const auto codes = p.codes;
    const auto scale = p.scale;
    QuantizeArgs q;
    const OutputProjectArgs a = p.args();
    q.x = a.z, q.codes = a.z_codes, q.scale = a.z_scale;
    quantize_ref(q, {});
    EXPECT_EQ(codes, p.codes);
    EXPECT_EQ(scale, p.scale);
  }
}

TEST(OutputProjectEmulated, MatchesTheReference) {
  for (const bool streams : {false, true}) {
    expect_projected(1, 2, 2, 128, streams);
    expect_projected(5, 4, 1, 256, streams);
    expect_projected(19, 2, 1, 128, streams);
    expect_projected(70, 1, 1, 128, streams);
    expect_projected(130, 1, 1, 256, streams);
  }
}

TEST(OutputProjectEmulated, ATokenHasTheSameBitsWhateverTheBatch) {
  for (const bool streams : {false, true}) {
    Projection p(40, 2, 1, 128, 5);
    const auto row = [&] { return std::vector<bf16>(&p.z[20 * 136], &p.z[20 * 136] + 128); };
    run_heads(p, p.args(20, 1), streams, 1);
    const auto alone = row();
    for (const auto& [first, count] : {std::pair<int64_t, int64_t>{18, 12}, {0, 40}}) {
      p.poison();
      run_heads(p, p.args(first, count), streams, 1);
      EXPECT_EQ(row(), alone);
    }
  }
}

TEST(OutputProjectEmulated, CountersLieWhereNoLaunchOfAnotherSizeWritesSums) {
  alignas(16) static std::byte memory[16];
  size_t counters = 0, sums = SIZE_MAX;
  for (const int64_t rows : {256, 8192, 16384}) {
    size_t bytes = 0;  // the same for any number of tokens
    for (int64_t tokens = 1; tokens <= 200; ++tokens) {
      OutputProjectArgs a;
      a.o = View<const bf16, 3>(nullptr, tokens, 64, 512), a.groups = 8;
      a.wo_a = {View<const e4m3, 2>(nullptr, rows, 4096), View<const e8m0, 2>(nullptr, rows / 128, 32)};
      const op::Plan plan = op::make_plan(a);
      const op::Params p = op::pack(a, plan, memory);
      const bool counts = plan.split || 32 << plan.log2_sets < 128;
      if (counts) counters = std::max(counters, static_cast<size_t>(plan.height * rows / 128) * sizeof(uint32_t));
      const size_t blocks = static_cast<size_t>(plan.width * plan.height) << plan.log2_slices;
      const size_t partial = plan.split ? static_cast<size_t>(reinterpret_cast<std::byte*>(p.partial) - memory) : 0;
      if (plan.split) sums = std::min(sums, partial);
      EXPECT_GE(op::workspace_bytes(a), counters);
      EXPECT_GE(op::workspace_bytes(a), plan.split ? partial + blocks * op::kBlockSums * sizeof(float) : 0);
      if (tokens == 1) bytes = op::workspace_bytes(a);
      EXPECT_EQ(op::workspace_bytes(a), bytes) << tokens;
    }
  }
  EXPECT_LT(counters, SIZE_MAX);
  EXPECT_LE(counters, sums);
}

TEST(QuantizeEmulated, CodesAndScalesAreExactlyThoseOfTheReference) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const int64_t k : {128, 384, 1024, 4096})
    for (const bool with_norm : {false, true}) {
      const int64_t tokens = 3, stride = k + 8;
      std::vector<bf16> x(tokens * stride, kNan16), norm;
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t i = 0; i < k; ++i) x[t * stride + i] = to_bf16(normal(random) * std::exp2(float(i / 128) - 6));
      std::fill_n(x.begin(), 128, bf16{0});
      for (int64_t i = 0; i < k; ++i) norm.push_back(to_bf16(1 + normal(random) / 8));
      const auto run = [&](auto&& with) {
        std::vector<e4m3> codes(tokens * k, e4m3{0x7F});
        std::vector<e8m0> scale(tokens * k / 128, e8m0{255});
        QuantizeArgs a;
        a.x = View<const bf16, 2>(x.data(), tokens, k), a.x.stride[0] = stride;
        if (with_norm) a.norm = View<const bf16, 1>(norm.data(), k);
        a.codes = View<e4m3, 2>(codes.data(), tokens, k), a.scale = View<e8m0, 2>(scale.data(), tokens, k / 128);
        with(a);
        return std::pair{codes, scale};
      };
      const auto got = run([](const QuantizeArgs& a) {
        const quantizing::Params p = quantizing::pack(a);
        device::emulator::run_grid(3, 1, 1, p.threads, 256, false, 1,
                                   [&](std::byte* shared) { quantizing::quantize_block(p, shared); });
      });
      EXPECT_EQ(got, run([](const QuantizeArgs& a) { quantize_ref(a, {}); })) << k << ", norm " << with_norm;
    }
}

}  // namespace
}  // namespace fathom::ops

#include <fmt/format.h>

#include <algorithm>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"
#include "ops/quantize/quantize.h"
#include "ops/together/together.h"

namespace fathom::lab {

namespace {

using ops::OutputProductsArgs;

/// Memory for the codes of z.
struct Codes {
  std::vector<e4m3> code;
  std::vector<e8m0> scale;
  View<e4m3, 2> codes;
  View<e8m0, 2> scales;

  Codes(int64_t tokens, int64_t columns)
      : code(static_cast<size_t>(tokens * columns)),
        scale(static_cast<size_t>(tokens * columns / 128)),
        codes(code.data(), tokens, columns),
        scales(scale.data(), tokens, columns / 128) {}
  /// y = codes . wo_b, by the reference.
  void multiply(const ops::Fp8Weight& wo_b, View<bf16, 2> y) const {
    ops::LinearFp8Args product;
    product.x = codes, product.x_scale = scales;
    product.part[product.parts++] = {wo_b, y};
    ops::find_variant(ops::linear_fp8_variants(), "ref")->run(product, {});
  }
};

/// The operations one after the other, by their references.
void run_ref(const OutputProductsArgs& a, const ops::Launch& l) {
  const Codes z(a.heads.z.size[0], a.heads.z.size[1]);
  ops::OutputProjectArgs heads = a.heads;
  heads.z_codes = z.codes, heads.z_scale = z.scales;
  ops::find_variant(ops::output_project_variants(), "ref")->run(heads, l);
  z.multiply(a.wo_b, a.y);
}

/// The op has CUDA variants alone.
ops::Variants<OutputProductsArgs> variants() {
  static const auto all = [] {
    std::vector<ops::Variant<OutputProductsArgs>> v{
        {"ref", ops::Backend::cpu, ops::always<OutputProductsArgs>, nullptr, run_ref}};
    const auto fast = ops::output_products_variants();
    v.insert(v.end(), fast.begin(), fast.end());
    return v;
  }();
  return all;
}

/// y must be the product of the z that was found, quantised: where z differs in its last bit a code may differ, too.
std::string y_follows(View<const bf16, 2> z, const ops::Fp8Weight& wo_b, View<const bf16, 2> y) {
  const int64_t tokens = z.size[0], rows = y.size[1];
  const Codes quantised(tokens, z.size[1]);
  std::vector<bf16> want(static_cast<size_t>(tokens * rows));
  ops::QuantizeArgs q;
  q.x = z, q.codes = quantised.codes, q.scale = quantised.scales;
  ops::find_variant(ops::quantize_variants(), "ref")->run(q, {});
  quantised.multiply(wo_b, View<bf16, 2>(want.data(), tokens, rows));
  for (int64_t t = 0; t < tokens; ++t) {
    double largest = 0;
    for (int64_t i = 0; i < rows; ++i)
      largest = std::max(largest, std::abs(double{to_float(want[static_cast<size_t>(t * rows + i)])}));
    for (int64_t i = 0; i < rows; ++i) {
      const double expected = to_float(want[static_cast<size_t>(t * rows + i)]), got = to_float(y(t, i));
      // A step of bf16 is 2^-8 of its power of two.
      if (!(std::abs(got - expected) <= std::max(std::abs(expected) / 128, 1e-4 * largest)))
        return fmt::format("y[{}, {}] is {}, the product of the quantised z {}", t, i, got, expected);
    }
  }
  return "";
}

Case make(int64_t tokens, int64_t heads, int64_t groups, int64_t rank, int64_t out, Rng& rng) {
  Case c;
  c.op = "output_products";
  const int64_t k = heads / groups * 512, n = groups * rank;
  const auto o = c.in<bf16>("o", tokens * heads * 512);
  fill_normal(o.values, 0.3f, rng);
  const auto weights = [&](const char* name, int64_t rows, int64_t columns) {
    const auto codes = c.in<e4m3>(name, rows * columns);
    fill_codes(codes.values, rng);
    const auto scale = c.in<e8m0>(fmt::format("{}_scale", name), (rows + 127) / 128 * (columns / 128));
    fill_scales(scale.values, -14, -10, rng);
    return [=](const Addresses& a) {
      ops::Fp8Weight w;
      w.codes = View<const e4m3, 2>(codes.at(a), rows, columns);
      w.scale = View<const e8m0, 2>(scale.at(a), (rows + 127) / 128, columns / 128);
      return w;
    };
  };
  const auto wo_a = weights("wo_a", n, k), wo_b = weights("wo_b", out, n);
  const auto z = c.out<bf16>("z", tokens * n, Tolerance::bf16_ulp(1, 2e-5), n);
  const auto y = c.out<bf16>("y", tokens * out, Tolerance::by_property(), out);
  c.properties.push_back([=](const Addresses& got, const Addresses&) {
    return y_follows(View<const bf16, 2>(z.at(got), tokens, n), wo_b(got), View<const bf16, 2>(y.at(got), tokens, out));
  });
  c.cost = {
      static_cast<double>(n * k + out * n) + static_cast<double>(tokens) * static_cast<double>(heads * 1024 + 2 * out),
      2.0 * static_cast<double>(tokens * n) * static_cast<double>(k + out), Unit::bf16};
  c.shape = fmt::format("T={} H={} groups={} rank={} out={}", tokens, heads, groups, rank, out);
  const auto build = [=](const Addresses& a) {
    OutputProductsArgs args;
    args.heads.o = View<const bf16, 3>(o.at(a), tokens, heads, 512);
    args.heads.groups = static_cast<int32_t>(groups);
    args.heads.wo_a = wo_a(a);
    args.heads.z = View<bf16, 2>(z.at(a), tokens, n);
    args.wo_b = wo_b(a);
    args.y = View<bf16, 2>(y.at(a), tokens, out);
    return args;
  };
  c.bind<OutputProductsArgs>(variants(), build);
  return c;
}

}  // namespace

OpCases output_products_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    const int64_t groups = rng.pick({1, 2, 4, 8}), rows = rng.chance(0.15) ? 4096 : 1024, out = rng.pick({512, 1024});
    return make(rng.between(1, 4), groups * rng.pick({1, 1, 2}), groups, rows / groups, out, rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return make(batch, 64, 8, 1024, 4096, rng);
  };
  return {"output_products",
          "output_project and the linear_fp8 behind it",
          [] { return names_of(variants()); },
          random,
          {"flash"},
          timed};
}

}  // namespace fathom::lab

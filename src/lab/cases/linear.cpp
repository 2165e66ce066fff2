#include "ops/linear/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

using namespace ops;

/// Products of fp8 tensor cores truncate their partial sums at about 2^-13 of the largest, so elements that cancel to
/// little have no last bit to compare. `terms`: sqrt(sum of (x w)^2), as large as an element is without cancelling.
Tolerance product(std::vector<double> terms) {
  return Tolerance::bf16_ulp(1, 5e-4, std::move(terms));
}

constexpr double kF32Limit = 3e-6;  // of linear_f32

int64_t some_rows(Rng& rng) {
  return rng.pick({1, 8, 16, 24, 64, 100, 128, 136, 200, 256, 384});
}

// linear_fp8 ---------------------------------------------------------------------------------------------------------

struct Fp8Case {
  struct Part {
    int64_t n;
    Strides y;
    Slot<e4m3> codes;
    Slot<e8m0> scale;
    Slot<bf16> out;
  };
  Strides x{};
  Slot<e4m3> x_codes;
  Slot<e8m0> x_scale;
  std::vector<Part> parts;

  LinearFp8Args args(const Addresses& a) const {
    LinearFp8Args args;
    args.x = view2<const e4m3>(x_codes.at(a), x);
    args.x_scale = View<const e8m0, 2>(x_scale.at(a), x.rows, x.columns / 128);
    for (const Part& p : parts) {
      auto& to = args.part[args.parts++];
      to.w.codes = View<const e4m3, 2>(p.codes.at(a), p.n, x.columns);
      to.w.scale = View<const e8m0, 2>(p.scale.at(a), (p.n + 127) / 128, x.columns / 128);
      to.y = view2<bf16>(p.out.at(a), p.y);
    }
    return args;
  }
  static LinearFp8Args token(LinearFp8Args args, int64_t t) {
    args.x = args.x.rows(t, 1);
    args.x_scale = args.x_scale.rows(t, 1);
    for (auto& p : args.part)
      if (p.y.data) p.y = p.y.rows(t, 1);
    return args;
  }
};

/// Mean square of 128 columns of some rows, codes with their scales.
double mean_square(const e4m3* codes, int64_t stride, const e8m0* scale, int64_t scale_stride, int64_t rows,
                   int64_t rows_of_a_scale, int64_t block) {
  const int64_t step = std::max<int64_t>(1, rows / 64);
  double sum = 0;
  int64_t count = 0;
  for (int64_t r = 0; r < rows; r += step)
    for (int64_t k = 128 * block; k < 128 * (block + 1); ++k, ++count) {
      const double v =
          double{to_float(codes[r * stride + k])} * to_float(scale[r / rows_of_a_scale * scale_stride + block]);
      sum += v * v;
    }
  return sum / static_cast<double>(std::max<int64_t>(1, count));
}

/// sqrt(sum of (x w)^2) of a typical element of a part.
double typical_terms(const Fp8Case& s, const Fp8Case::Part& p, int64_t token) {
  const int64_t blocks = s.x.columns / 128;
  double sum = 0;
  for (int64_t b = 0; b < blocks; ++b)
    sum += 128 *
           mean_square(s.x_codes.values.data() + token * s.x.stride, s.x.stride,
                       s.x_scale.values.data() + token * blocks, blocks, 1, 1, b) *
           mean_square(p.codes.values.data(), s.x.columns, p.scale.values.data(), blocks, p.n, 128, b);
  return std::sqrt(sum);
}
/// Of each token.
std::vector<double> terms_of_tokens(const Fp8Case& s, const Fp8Case::Part& p) {
  std::vector<double> terms;
  for (int64_t t = 0; t < s.x.rows; ++t) terms.push_back(typical_terms(s, p, t));
  return terms;
}

Case fp8_case(int64_t tokens, int64_t k, const std::vector<int64_t>& ns, bool ragged, Rng& rng) {
  Case c;
  c.op = "linear_fp8";
  Fp8Case s;
  s.x = ragged ? strided(tokens, k, 16, rng) : dense(tokens, k);
  s.x_codes = c.in<e4m3>("x", s.x.elements());
  fill_codes(s.x_codes.values, rng);
  s.x_scale = c.in<e8m0>("x_scale", tokens * (k / 128));
  fill_scales(s.x_scale.values, -9, -4, rng);
  c.cost.unit = Unit::fp8;
  c.cost.bytes = static_cast<double>(tokens) * static_cast<double>(k + k / 128);
  for (size_t i = 0; i < ns.size(); ++i) {
    const int64_t n = ns[i], blocks = (n + 127) / 128 * (k / 128);
    Fp8Case::Part p{n, ragged ? strided(tokens, n, 8, rng) : dense(tokens, n), {}, {}, {}};
    p.codes = c.in<e4m3>(fmt::format("w{}", i), n * k);
    fill_codes(p.codes.values, rng);
    p.scale = c.in<e8m0>(fmt::format("w{}_scale", i), blocks);
    fill_scales(p.scale.values, -14, -10, rng);
    p.out = c.out<bf16>(fmt::format("y{}", i), p.y.elements(), product(terms_of_tokens(s, p)), p.y.stride);
    s.parts.push_back(p);
    c.cost.bytes += static_cast<double>(n * k + blocks) + 2.0 * static_cast<double>(tokens * n);
    c.cost.flops += 2.0 * static_cast<double>(tokens * n) * static_cast<double>(k);
    c.shape += fmt::format("{}{}", i ? "+" : "", n);
  }
  c.shape = fmt::format("T={} N={} K={}", tokens, c.shape, k);
  c.bind<LinearFp8Args>(
      linear_fp8_variants(), [s](const Addresses& a) { return s.args(a); },
      ragged ? std::function(Fp8Case::token) : nullptr, tokens);
  c.batch_moves_bits("sm90_fast");
  return c;
}

// linear_bf16 --------------------------------------------------------------------------------------------------------

Case bf16_case(int64_t tokens, int64_t k, int64_t n, float factor, bool ragged, Rng& rng) {
  Case c;
  c.op = "linear_bf16";
  const Strides x = ragged ? strided(tokens, k, 8, rng) : dense(tokens, k);
  const Strides y = ragged ? strided(tokens, n, 8, rng) : dense(tokens, n);
  const auto x_slot = c.in<bf16>("x", x.elements()), w_slot = c.in<bf16>("w", n * k);
  fill_normal(x_slot.values, 1.0f, rng);
  fill_normal(w_slot.values, 0.02f, rng);
  // With a factor there are two roundings: a step in the first can become two.
  const auto y_slot = c.out<bf16>("y", y.elements(), Tolerance::bf16_ulp(factor == 1 ? 1 : 2, 1e-5), y.stride);
  const auto build = [=](const Addresses& a) {
    LinearBf16Args args;
    args.x = view2<const bf16>(x_slot.at(a), x);
    args.w = View<const bf16, 2>(w_slot.at(a), n, k);
    args.factor = factor;
    args.y = view2<bf16>(y_slot.at(a), y);
    return args;
  };
  const auto token = [](LinearBf16Args args, int64_t t) {
    args.x = args.x.rows(t, 1), args.y = args.y.rows(t, 1);
    return args;
  };
  c.cost = {2.0 * static_cast<double>(n * k + tokens * (k + n)),
            2.0 * static_cast<double>(tokens * n) * static_cast<double>(k), Unit::bf16};
  c.shape = fmt::format("T={} N={} K={}{}", tokens, n, k, factor == 1 ? "" : " scaled");
  c.bind<LinearBf16Args>(linear_bf16_variants(), build,
                         ragged ? std::function<LinearBf16Args(LinearBf16Args, int64_t)>(token) : nullptr, tokens);
  return c;
}

// linear_f32 ---------------------------------------------------------------------------------------------------------

/// Errors are judged against what the terms of the sums amount to, sqrt(sum of (x w)^2), not against the sums: any
/// order of adding in fp32 leaves a sum that cancels to little with few right digits. On random data with many outputs
/// both are the same. Limit over all outputs of a part; four times as much for one token's.
std::string sums_are_exact(const std::string& name, View<const bf16, 2> x, View<const bf16, 2> w,
                           View<const float, 2> got, View<const float, 2> want, double limit) {
  double all_error = 0, all_terms = 0;
  for (int64_t t = 0; t < x.size[0]; ++t) {
    double error = 0, terms = 0;
    for (int64_t n = 0; n < w.size[0]; ++n) {
      for (int64_t k = 0; k < x.size[1]; ++k) {
        const double term = double{to_float(x(t, k))} * to_float(w(n, k));
        terms += term * term;
      }
      const double off = double{got(t, n)} - want(t, n);
      error += off * off;
    }
    if (!(error <= terms * 16 * limit * limit))
      return fmt::format("{}: row {}: error {:.3g} of the size of its terms, over four times the limit {:.3g}", name, t,
                         std::sqrt(error / terms), limit);
    all_error += error, all_terms += terms;
  }
  if (all_error <= all_terms * limit * limit) return "";
  return fmt::format("{}: error {:.3g} of the size of the terms, limit {:.3g}", name, std::sqrt(all_error / all_terms),
                     limit);
}

Case f32_case(int64_t tokens, int64_t k, const std::vector<int64_t>& ns, bool ragged, Rng& rng) {
  struct Part {
    int64_t n;
    Strides y;
    Slot<bf16> w;
    Slot<float> out;
  };
  Case c;
  c.op = "linear_f32";
  const Strides x = ragged ? strided(tokens, k, 8, rng) : dense(tokens, k);
  const auto x_slot = c.in<bf16>("x", x.elements());
  fill_normal(x_slot.values, 1.0f, rng);
  std::vector<Part> parts;
  c.cost.bytes = 2.0 * static_cast<double>(tokens * k);
  for (size_t i = 0; i < ns.size(); ++i) {
    Part p{ns[i],
           ragged ? strided(tokens, ns[i], 4, rng) : dense(tokens, ns[i]),
           c.in<bf16>(fmt::format("w{}", i), ns[i] * k),
           {}};
    fill_normal(p.w.values, 0.02f, rng);
    p.out = c.out<float>(fmt::format("y{}", i), p.y.elements(), Tolerance::by_property(), p.y.stride);
    parts.push_back(p);
    c.properties.push_back([=](const Addresses& got, const Addresses& want) {
      return sums_are_exact(fmt::format("y{}", i), view2<const bf16>(x_slot.at(want), x),
                            View<const bf16, 2>(p.w.at(want), p.n, k), view2<const float>(p.out.at(got), p.y),
                            view2<const float>(p.out.at(want), p.y), kF32Limit);
    });
    c.cost.bytes += static_cast<double>(2 * p.n * k + 4 * tokens * p.n);
    c.cost.flops += 2.0 * static_cast<double>(tokens * p.n) * static_cast<double>(k);
    c.shape += fmt::format("{}{}", i ? "+" : "", p.n);
  }
  c.shape = fmt::format("T={} N={} K={}", tokens, c.shape, k);
  const auto build = [=](const Addresses& a) {
    LinearF32Args args;
    args.x = view2<const bf16>(x_slot.at(a), x);
    for (const Part& p : parts)
      args.part[args.parts++] = {View<const bf16, 2>(p.w.at(a), p.n, k), view2<float>(p.out.at(a), p.y)};
    return args;
  };
  const auto token = [](LinearF32Args args, int64_t t) {
    args.x = args.x.rows(t, 1);
    for (auto& p : args.part)
      if (p.y.data) p.y = p.y.rows(t, 1);
    return args;
  };
  c.bind<LinearF32Args>(linear_f32_variants(), build,
                        ragged ? std::function<LinearF32Args(LinearF32Args, int64_t)>(token) : nullptr, tokens);
  return c;
}

std::vector<int64_t> some_parts(Rng& rng) {
  std::vector<int64_t> ns(static_cast<size_t>(rng.pick({1, 1, 2, 3, 4})));
  for (int64_t& n : ns) n = some_rows(rng);
  return ns;
}

struct Named {
  std::string_view name;
  int64_t k;
  std::vector<int64_t> n;
};
const Named& named(const std::vector<Named>& all, std::string_view name) {
  return *std::find_if(all.begin(), all.end(), [&](const Named& n) { return n.name == name; });
}
const std::vector<Named>& fp8_shapes() {
  static const std::vector<Named> all = {{"wqa-wkv", 4096, {1024, 512}},
                                         {"wqb", 1024, {32768}},
                                         {"wqb-index", 1024, {32768, 8192}},
                                         {"wob", 8192, {4096}},
                                         {"shared13", 4096, {2048, 2048}}};
  return all;
}
const std::vector<Named>& f32_shapes() {
  static const std::vector<Named> all = {
      {"compress4", 4096, {1024, 1024, 256, 256}}, {"compress128", 4096, {512, 512}}, {"gate", 4096, {256}}};
  return all;
}
std::vector<std::string_view> names(const std::vector<Named>& all) {
  std::vector<std::string_view> n;
  for (const Named& s : all) n.push_back(s.name);
  return n;
}

}  // namespace

OpCases linear_fp8_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    if (seed % 16 == 0)  // the kernel for weights of some thousand rows and one block for each multiprocessor
      return fp8_case(rng.between(33, 64), 128 * rng.between(8, 11), {3000, rng.between(100, 1100)}, true, rng);
    return fp8_case(some_tokens(rng), 128 * rng.between(1, 6), some_parts(rng), true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    const Named& s = named(fp8_shapes(), shape);
    return fp8_case(batch, s.k, s.n, false, rng);
  };
  return {"linear_fp8", "block-scaled fp8 products", [] { return names_of(linear_fp8_variants()); },
          random,       names(fp8_shapes()),         timed};
}

OpCases linear_bf16_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    return bf16_case(some_tokens(rng), 8 * rng.between(1, 90), some_rows(rng), rng.pick({1.0f, 0.0110485435f}), true,
                     rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return bf16_case(batch, 4096, 64, 0.0110485435f, false, rng);
  };
  return {"linear_bf16", "bf16 products",   [] { return names_of(linear_bf16_variants()); },
          random,        {"index-weights"}, timed};
}

OpCases linear_f32_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    return f32_case(some_tokens(rng), 8 * rng.between(1, 90), some_parts(rng), true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    const Named& s = named(f32_shapes(), shape);
    return f32_case(batch, s.k, s.n, false, rng);
  };
  return {"linear_f32",
          "bf16 products with fp32 results",
          [] { return names_of(linear_f32_variants()); },
          random,
          names(f32_shapes()),
          timed};
}

}  // namespace fathom::lab

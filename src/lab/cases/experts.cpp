#include "ops/experts/experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"
#include "ops/order/order.h"

namespace fathom::lab {

namespace {

using ops::CodeOrder;
using ops::ExpertFormat;
using ops::ExpertWeight;

std::string_view format_name(ExpertFormat f) {
  return f == ExpertFormat::mxfp4 ? "mxfp4" : f == ExpertFormat::nvfp4 ? "nvfp4" : "fp8";
}

/// One of w1, w3, w2 of all experts.
struct Matrix {
  ExpertWeight shape;                           // pointers null
  Slot<std::byte> codes, halves, bytes, scale;  // codes as a checkpoint has them, and as GPUs do
  Slot<float> global;

  ExpertWeight at(const Addresses& a, CodeOrder order) const {
    ExpertWeight w = shape;
    w.order = order;
    w.codes = (order == CodeOrder::halves  ? halves
               : order == CodeOrder::bytes ? bytes
                                           : codes)
                  .at(a),
    w.scale = scale.at(a), w.global_scale = global.at(a);
    return w;
  }
};

struct Shared {
  int64_t rows = 0, columns = 0;
  Slot<e4m3> codes;
  Slot<e8m0> scale;

  ops::Fp8Weight at(const Addresses& a) const {
    return {View<const e4m3, 2>(codes.at(a), rows, columns),
            View<const e8m0, 2>(scale.at(a), (rows + 127) / 128, columns / 128)};
  }
};

struct Shape {
  int64_t tokens = 1, d = 128, inner = 128, k = 6;
  int32_t experts = 8;
  ExpertFormat format = ExpertFormat::mxfp4;
  bool with_shared = true, bytes = false;    // fast kernels get codes in the order of bytes
  std::vector<std::vector<int32_t>> chosen;  // [tokens][k] ascending
  Strides x_rows{}, y_rows{};
  Slot<e4m3> x;
  Slot<e8m0> x_scale;
  Slot<int32_t> expert;
  Slot<float> weight;
  Matrix w1, w3, w2;
  Shared s1, s3, s2;
  Slot<bf16> y;

  ops::ExpertsArgs args(const Addresses& a, CodeOrder order) const {
    ops::ExpertsArgs args;
    args.x = view2<const e4m3>(x.at(a), x_rows);
    args.x_scale = View<const e8m0, 2>(x_scale.at(a), tokens, d / 128);
    args.expert = View<const int32_t, 2>(expert.at(a), tokens, k);
    args.weight = View<const float, 2>(weight.at(a), tokens, k);
    args.experts = experts;
    args.w1 = w1.at(a, order), args.w3 = w3.at(a, order), args.w2 = w2.at(a, order);
    if (with_shared) args.shared_w1 = s1.at(a), args.shared_w3 = s3.at(a), args.shared_w2 = s2.at(a);
    args.y = view2<bf16>(y.at(a), y_rows);
    return args;
  }
  static ops::ExpertsArgs token(ops::ExpertsArgs args, int64_t t) {
    args.x = args.x.rows(t, 1), args.x_scale = args.x_scale.rows(t, 1), args.expert = args.expert.rows(t, 1);
    args.weight = args.weight.rows(t, 1), args.y = args.y.rows(t, 1);
    return args;
  }
};

/// Where the variants of a GPU begin: the registry lists those of the processor first.
size_t gpu_variants() {
  const auto all = ops::experts_variants();
  return static_cast<size_t>(std::ranges::find(all, ops::Backend::cuda, &ops::Variant<ops::ExpertsArgs>::backend) -
                             all.begin());
}

/// Codes and scales; experts that no token chose get scales that make every product NaN.
Matrix add_matrix(Case& c, const std::string& name, const Shape& s, int64_t rows, int64_t columns,
                  const std::vector<bool>& used, bool ragged, Rng& rng) {
  Matrix m;
  m.shape.format = s.format;
  m.shape.rows = rows, m.shape.columns = columns;
  const int64_t code_bytes = rows * m.shape.code_row_bytes();
  const int64_t scale_rows = s.format == ExpertFormat::fp8 ? (rows + 127) / 128 : rows,
                scales = scale_rows * m.shape.scale_columns();
  m.shape.codes_stride = code_bytes + (ragged ? 16 * rng.below(3) : 0);
  m.shape.scale_stride = scales + (ragged ? 16 * rng.below(3) : 0);
  m.codes = c.in<std::byte>(name, m.shape.codes_stride * s.experts);
  m.scale = c.in<std::byte>(name + "_scale", m.shape.scale_stride * s.experts);
  if (s.format == ExpertFormat::fp8)
    fill_codes(std::span(reinterpret_cast<e4m3*>(m.codes.values.data()), m.codes.values.size()), rng);
  else
    fill_bytes(m.codes.values, rng);
  const auto ordered = [&](const char* suffix, CodeOrder order) {
    Slot<std::byte> to = c.in<std::byte>(name + suffix, m.shape.codes_stride * s.experts);
    std::ranges::copy(m.codes.values, to.values.begin());
    ops::order_codes(to.values, order);
    return to;
  };
  if (gpu_variants() < ops::experts_variants().size() && s.format != ExpertFormat::fp8) {
    m.halves = ordered("_halves", CodeOrder::halves);
    if (s.bytes) m.bytes = ordered("_bytes", CodeOrder::bytes);
  }
  if (s.format == ExpertFormat::nvfp4) {
    m.global = c.in<float>(name + "_global", s.experts);
    for (float& g : m.global.values) g = rng.uniform(0.5f, 2.0f) / 4096;
  }
  // Sizes that keep the sums of order one: codes are about 3 (fp4) or 200 (fp8).
  const int level =
      -static_cast<int>(std::log2(static_cast<double>(columns)) / 2) - (s.format == ExpertFormat::fp8 ? 8 : 1);
  for (int32_t e = 0; e < s.experts; ++e) {
    for (int64_t i = 0; i < scales; ++i) {
      std::byte& to = m.scale.values[static_cast<size_t>(e * m.shape.scale_stride + i)];
      if (!used[static_cast<size_t>(e)])
        to = s.format == ExpertFormat::nvfp4 ? std::byte{0x7F} : std::byte{0xFF};
      else if (s.format == ExpertFormat::nvfp4)
        to = static_cast<std::byte>(0x60 + rng.below(24));  // 32 to 240
      else
        to = static_cast<std::byte>(127 + level + rng.below(2));
    }
  }
  return m;
}

Shared add_shared(Case& c, const std::string& name, int64_t rows, int64_t columns, Rng& rng) {
  Shared w{rows, columns, c.in<e4m3>(name, rows * columns),
           c.in<e8m0>(name + "_scale", (rows + 127) / 128 * (columns / 128))};
  fill_codes(w.codes.values, rng);
  const int level = -static_cast<int>(std::log2(static_cast<double>(columns)) / 2) - 8;
  fill_scales(w.scale.values, level, level + 1, rng);
  return w;
}

Case make(Shape s, bool ragged, Rng& rng) {
  Case c;
  c.op = "experts";
  s.x_rows = ragged ? strided(s.tokens, s.d, 16, rng) : dense(s.tokens, s.d);
  s.y_rows = ragged ? strided(s.tokens, s.d, 8, rng) : dense(s.tokens, s.d);
  s.x = c.in<e4m3>("x", s.x_rows.elements()), s.x_scale = c.in<e8m0>("x_scale", s.tokens * (s.d / 128));
  fill_codes(s.x.values, rng);
  fill_scales(s.x_scale.values, -8, -7, rng);
  s.expert = c.in<int32_t>("expert", s.tokens * s.k), s.weight = c.in<float>("weight", s.tokens * s.k);
  std::vector<bool> used(static_cast<size_t>(s.experts));
  for (int64_t t = 0; t < s.tokens; ++t) {
    for (int64_t i = 0; i < s.k; ++i) {
      const int32_t e = s.chosen[static_cast<size_t>(t)][static_cast<size_t>(i)];
      s.expert.values[static_cast<size_t>(t * s.k + i)] = e;
      used[static_cast<size_t>(e)] = true;
    }
  }
  for (float& w : s.weight.values) w = rng.uniform(0.01f, 0.6f);
  s.w1 = add_matrix(c, "w1", s, s.inner, s.d, used, ragged, rng);
  s.w3 = add_matrix(c, "w3", s, s.inner, s.d, used, ragged, rng);
  s.w2 = add_matrix(c, "w2", s, s.d, s.inner, used, ragged, rng);
  if (s.with_shared) {
    s.s1 = add_shared(c, "shared_w1", s.inner, s.d, rng);
    s.s3 = add_shared(c, "shared_w3", s.inner, s.d, rng);
    s.s2 = add_shared(c, "shared_w2", s.d, s.inner, rng);
  }
  // The hidden row is quantised again, so a last bit of it can become a step of a code. Fp8 products keep 13 bits of 32
  // columns: computed so on the host, such small cases are off by up to 1e-2 (docs/kernels/experts.md).
  s.y = c.out<bf16>("y", s.y_rows.elements(), Tolerance::relative_l2(s.bytes ? 1.4e-2 : 6e-3), s.y_rows.stride);
  const double busy = static_cast<double>(std::ranges::count(used, true)), n = static_cast<double>(s.tokens);
  const double matrix = 3.0 * static_cast<double>(s.d * s.inner);
  const double per_weight = s.format == ExpertFormat::fp8     ? 1.0
                            : s.format == ExpertFormat::mxfp4 ? 0.5 + 1.0 / 32
                                                              : 0.5 + 1.0 / 16;
  c.cost.bytes = busy * matrix * per_weight + (s.with_shared ? matrix : 0) +
                 n * (3.0 * static_cast<double>(s.d) + 8.0 * static_cast<double>(s.k));
  c.cost.flops = 2 * matrix * n * (static_cast<double>(s.k) + (s.with_shared ? 1 : 0));
  c.cost.unit = Unit::fp8;
  c.shape = fmt::format("T={} d={} inner={} E={} ({:.0f} busy) k={} {}{}", s.tokens, s.d, s.inner, s.experts, busy, s.k,
                        format_name(s.format), s.with_shared ? " +shared" : "");
  const auto all = ops::experts_variants();
  const size_t on_gpu = gpu_variants();
  const auto bind = [&](ops::Variants<ops::ExpertsArgs> variants, CodeOrder order) {
    c.bind<ops::ExpertsArgs>(
        variants, [s, order](const Addresses& a) { return s.args(a, order); },
        ragged ? std::function<ops::ExpertsArgs(ops::ExpertsArgs, int64_t)>(Shape::token) : nullptr, s.tokens);
  };
  const CodeOrder halves = s.format == ExpertFormat::fp8 ? CodeOrder::checkpoint : CodeOrder::halves;
  bind(all.first(on_gpu), CodeOrder::checkpoint);
  for (size_t i = on_gpu; i < all.size(); ++i)
    bind(all.subspan(i, 1), s.bytes && all[i].name == "sm90_fast" ? CodeOrder::bytes : halves);
  c.batch_moves_bits("sm90_fast");
  return c;
}

/// k distinct experts out of `experts` for each token, ascending.
void choose(Shape& s, int64_t experts, Rng& rng) {
  for (int64_t t = 0; t < s.tokens; ++t) {
    s.chosen.push_back(sample(experts, s.k, rng));
    std::ranges::sort(s.chosen.back());
  }
}

}  // namespace

OpCases experts_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    Shape s;
    s.tokens = rng.pick({1, 2, 3, 5, 8, 17});
    s.d = 128 * rng.between(1, 3), s.inner = 128 * rng.between(1, 2);
    s.experts = rng.pick({1, 4, 8, 16});
    s.k = rng.between(1, std::min<int64_t>(6, s.experts));
    s.format = rng.pick({ExpertFormat::mxfp4, ExpertFormat::mxfp4, ExpertFormat::nvfp4, ExpertFormat::fp8});
    s.with_shared = rng.chance(0.7);
    s.bytes = s.format == ExpertFormat::mxfp4 && rng.chance(0.6);
    if (s.bytes) s.d = 256 * rng.between(1, 2), s.inner = 256 * rng.between(1, 2);
    // Sometimes all tokens crowd on few experts.
    choose(s, rng.chance(0.3) ? s.k : s.experts, rng);
    return make(s, true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    Shape s;
    s.tokens = batch, s.d = 4096, s.inner = 2048, s.k = 6;
    s.format = shape == "nvfp4" ? ExpertFormat::nvfp4 : ExpertFormat::mxfp4;
    // Uniform routing over 256 experts; only the chosen ones exist here, so that a small batch needs little memory.
    s.bytes = s.format == ExpertFormat::mxfp4;
    choose(s, 256, rng);
    std::vector<int32_t> name(256, -1);
    for (auto& row : s.chosen)
      for (int32_t e : row) name[static_cast<size_t>(e)] = 0;
    for (int32_t e = 0, next = 0; e < 256; ++e)
      if (name[static_cast<size_t>(e)] == 0) name[static_cast<size_t>(e)] = next++, s.experts = next;
    for (auto& row : s.chosen)
      for (int32_t& e : row) e = name[static_cast<size_t>(e)];
    return make(s, false, rng);
  };
  return {"experts",
          "routed experts and the shared one",
          [] { return names_of(ops::experts_variants()); },
          random,
          {"mxfp4", "nvfp4"},
          timed};
}

}  // namespace fathom::lab

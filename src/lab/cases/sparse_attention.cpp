#include "ops/sparse_attention/sparse_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_set>

#include "base/threads.h"
#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

using namespace ops;

constexpr float v4_scale = 0.04419417382415922f;  // 512^-0.5

/// One of the two row sets of a case.
struct Rows {
  bool present = false;
  PoolShape pool;
  Slot<std::byte> data;
  Strides index_strides{};
  Slot<int32_t> index, length;

  RowSet at(const Addresses& a, int64_t tokens) const {
    if (!present) return {};
    RowSet set;
    set.pool = pool.at(data.at(a));
    set.index = view2<const int32_t>(index.at(a), index_strides);
    if (length.index >= 0) set.length = View<const int32_t, 1>(length.at(a), tokens);
    return set;
  }
  /// The slots that token t attends to.
  std::vector<int32_t> of(const Addresses& a, int64_t t) const {
    std::vector<int32_t> slots;
    if (!present) return slots;
    int64_t n = index_strides.columns;
    if (length.index >= 0) n = std::min<int64_t>(n, length.at(a)[t]);
    for (int64_t i = 0; i < n; ++i)
      if (const int32_t slot = index.at(a)[t * index_strides.stride + i]; slot >= 0) slots.push_back(slot);
    return slots;
  }
};

struct Shape {
  int64_t tokens = 1, heads = 64;
  int32_t queries = 1;
  RowFormat format = RowFormat::v4;
  float scale = v4_scale;
  Strides q{}, out{};
  Rows window, extra;
  Slot<bf16> q_slot, out_slot;
  Slot<float> sink, freq, lse;
  Slot<int32_t> position;
  Slot<e4m3> codes;
  Slot<e8m0> code_scale;

  SparseAttentionArgs args(const Addresses& a) const {
    SparseAttentionArgs args;
    args.q = view3<const bf16>(q_slot.at(a), tokens, heads, q);
    args.format = format;
    args.window = window.at(a, tokens);
    args.extra = extra.at(a, tokens);
    if (sink.index >= 0) args.sink = View<const float, 1>(sink.at(a), heads);
    args.scale = scale;
    args.queries_per_request = queries;
    if (position.index >= 0) {
      args.position = View<const int32_t, 1>(position.at(a), tokens);
      args.rope_freq = View<const float, 1>(freq.at(a), 32);
    }
    if (out_slot.index >= 0) args.out = view3<bf16>(out_slot.at(a), tokens, heads, out);
    if (lse.index >= 0) args.lse = View<float, 2>(lse.at(a), tokens, heads);
    if (codes.index >= 0) {
      args.out_codes = View<e4m3, 3>(codes.at(a), tokens, heads, int64_t{kHeadDim});
      args.out_scale = View<e8m0, 3>(code_scale.at(a), tokens, heads, int64_t{4});
    }
    return args;
  }

  /// Token t alone, as the only token of its request.
  static SparseAttentionArgs token(SparseAttentionArgs args, int64_t t) {
    const auto one = [t](auto& view) {
      if (view.data) view = view.rows(t, 1);
    };
    one(args.q), one(args.window.index), one(args.window.length), one(args.extra.index), one(args.extra.length);
    one(args.position), one(args.out), one(args.lse), one(args.out_codes), one(args.out_scale);
    args.queries_per_request = 1;
    return args;
  }

  /// Output of every token and head in double precision.
  std::vector<double> truth(const Addresses& a) const {
    std::vector<double> result(static_cast<size_t>(out.elements()), std::numeric_limits<double>::quiet_NaN());
    parallel_for(tokens, 1, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) truth_of_token(a, t, result);
    });
    return result;
  }

  void truth_of_token(const Addresses& a, int64_t t, std::vector<double>& result) const {
    std::vector<double> rows;
    for (const Rows* set : {&window, &extra}) {
      for (int32_t slot : set->of(a, t)) {
        rows.resize(rows.size() + kHeadDim);
        read_row(set->pool.at(set->data.at(a)), format, slot, rows.data() + rows.size() - kHeadDim);
      }
    }
    const int64_t n = static_cast<int64_t>(rows.size()) / kHeadDim;
    std::vector<double> score(static_cast<size_t>(n)), query(kHeadDim), sum(kHeadDim);
    for (int64_t h = 0; h < heads; ++h) {
      const bf16* q_row = q_slot.at(a) + (t * heads + h) * q.stride;
      for (size_t i = 0; i < query.size(); ++i) query[i] = to_float(q_row[i]);
      double most = -std::numeric_limits<double>::infinity();
      for (int64_t r = 0; r < n; ++r) {
        double dot = 0;
        for (size_t i = 0; i < query.size(); ++i) dot += query[i] * rows[static_cast<size_t>(r) * kHeadDim + i];
        score[static_cast<size_t>(r)] = dot * scale;
        most = std::max(most, score[static_cast<size_t>(r)]);
      }
      double den = sink.index >= 0 && n > 0 ? std::exp(sink.at(a)[h] - most) : 0;
      std::fill(sum.begin(), sum.end(), 0.0);
      for (int64_t r = 0; r < n; ++r) {
        const double p = std::exp(score[static_cast<size_t>(r)] - most);
        den += p;
        for (size_t i = 0; i < sum.size(); ++i) sum[i] += p * rows[static_cast<size_t>(r) * kHeadDim + i];
      }
      for (double& v : sum) v = n > 0 ? v / den : 0;
      if (position.index >= 0) rope(sum.data() + kNopeDim, position.at(a)[t], {freq.at(a), 32}, true);
      std::copy(sum.begin(), sum.end(), result.begin() + (t * heads + h) * out.stride);
    }
  }
};

/// Codes without the bf16 output they come from: near ties may round the other way, so they are compared as values.
std::string codes_are_close(const Shape& s, const Addresses& got, const Addresses& want) {
  double error = 0, norm = 0;
  for (int64_t row = 0; row < s.tokens * s.heads; ++row) {
    for (int64_t i = 0; i < kHeadDim; ++i) {
      const auto value = [&](const Addresses& a) {
        return double{to_float(s.codes.at(a)[row * kHeadDim + i])} * to_float(s.code_scale.at(a)[row * 4 + i / 128]);
      };
      error += (value(got) - value(want)) * (value(got) - value(want)), norm += value(want) * value(want);
    }
  }
  if (error <= norm * 0.03 * 0.03) return "";
  return fmt::format("out_codes: relative L2 {:.3g} against the reference's codes, limit 0.03",
                     std::sqrt(error / norm));
}

void add_outputs(Case& c, Shape& s, bool bf16_out, bool lse, bool codes, double limit) {
  if (bf16_out) {
    // The reference, with bf16 probabilities, is up to 2.9e-3 from the truth in random cases, the CUDA variants up to
    // 2.2e-3; how far a variant may be from the truth is stated apart.
    s.out_slot = c.out<bf16>("out", s.out.elements(), Tolerance::relative_l2(3.5e-3), s.out.stride);
    c.truths.push_back({s.out_slot.index, limit, [s](const Addresses& a) { return s.truth(a); }});
  }
  if (lse) s.lse = c.out<float>("lse", s.tokens * s.heads, Tolerance::relative_l2(1e-4), s.heads);
  if (codes) {
    s.codes = c.out<e4m3>("out_codes", s.tokens * s.heads * kHeadDim, Tolerance::by_property(), kHeadDim);
    s.code_scale = c.out<e8m0>("out_scale", s.tokens * s.heads * 4, Tolerance::by_property(), 4);
    c.properties.push_back([s](const Addresses& got, const Addresses& want) {
      if (s.out_slot.index < 0) return codes_are_close(s, got, want);
      const int64_t rows = s.tokens * s.heads;
      return codes_follow("out_codes", view2<const bf16>(s.out_slot.at(got), s.out),
                          View<const e4m3, 2>(s.codes.at(got), rows, int64_t{kHeadDim}),
                          View<const e8m0, 2>(s.code_scale.at(got), rows, int64_t{4}));
    });
  }
}

/// Other queries, shorter lengths and more masked rows for all requests but the first: the results of its first token
/// must keep every bit. (What the tokens of one request share may decide the order in which their rows are added.)
void add_neighbours(Case& c, const Shape& s) {
  c.change_neighbours = [s](Case& changed) {
    const Addresses a = changed.host_addresses();
    Rng rng(17);
    for (int64_t i = s.queries * s.heads * s.q.stride; i < s.q.elements(); ++i)
      s.q_slot.at(a)[i] = to_bf16(4 * rng.normal());
    for (const Rows* rows : {&s.window, &s.extra}) {
      if (!rows->present) continue;
      for (int64_t t = s.queries; t < s.tokens; ++t) {
        if (rows->length.index >= 0)
          rows->length.at(a)[t] = static_cast<int32_t>(rng.between(0, rows->length.at(a)[t]));
        for (int64_t i = 0; i < rows->index_strides.columns; ++i)
          if (rng.chance(0.3)) rows->index.at(a)[t * rows->index_strides.stride + i] = -1;
      }
    }
  };
  c.first_token_kept = [s](const Addresses& before, const Addresses& after) -> std::string {
    const auto differ = [&](const auto& slot, int64_t count) {
      return slot.index >= 0 && !std::equal(slot.at(before), slot.at(before) + count, slot.at(after),
                                            [](auto x, auto y) { return std::memcmp(&x, &y, sizeof x) == 0; });
    };
    if (differ(s.out_slot, (s.heads - 1) * s.out.stride + kHeadDim) || differ(s.lse, s.heads) ||
        differ(s.codes, s.heads * kHeadDim) || differ(s.code_scale, s.heads * 4))
      return "the results of token 0 changed with the inputs of other requests";
    return "";
  };
}

/// A row set with ragged lengths, masked slots, rows of every kind, and NaN in every row that nobody attends to.
Rows random_rows(Case& c, const std::string& name, const Shape& s, int64_t most, bool wild, Rng& rng) {
  Rows rows;
  rows.present = true;
  const int32_t page_rows = rng.pick({256, 64, 2, 1, 7});
  rows.pool = some_pool(s.format, page_rows, std::max<int64_t>(1, most + rng.below(64)), rng);
  rows.data = c.in<std::byte>(name + " pool", rows.pool.bytes());
  c.align(rows.data, 32);
  rows.index_strides = strided(s.tokens, most, 1, rng);
  rows.index = c.in<int32_t>(name + " index", std::max<int64_t>(1, rows.index_strides.elements()));
  c.align(rows.index, 4);
  const double masked = rng.pick({0.0, 0.0, 0.1, 0.9, 1.0});
  std::unordered_set<int32_t> used;
  std::ranges::fill(rows.data.values, std::byte{0xFF});
  std::ranges::fill(rows.index.values, 0x3FFFFFFF);  // padding and elements past the length name no row
  const bool ragged = rng.chance(0.7);
  if (ragged) rows.length = c.in<int32_t>(name + " length", s.tokens), c.align(rows.length, 4);
  for (int64_t t = 0; t < s.tokens; ++t) {
    int64_t n = most;
    if (ragged) {
      n = rng.chance(0.3) ? rng.pick<int64_t>({0, std::min<int64_t>(1, most), most}) : rng.between(0, most);
      rows.length.values[static_cast<size_t>(t)] = static_cast<int32_t>(n);
    }
    const auto slots = sample(rows.pool.rows(), std::min(n, rows.pool.rows()), rng);
    for (int64_t i = 0; i < n; ++i) {
      const int32_t slot = rng.chance(masked) ? -1 : slots[static_cast<size_t>(i)];
      rows.index.values[static_cast<size_t>(t * rows.index_strides.stride + i)] = slot;
      if (slot >= 0) used.insert(slot);
    }
  }
  std::vector<int32_t> order(used.begin(), used.end());
  std::ranges::sort(order);
  for (int32_t slot : order)
    fill_row(rows.pool.at(rows.data.values.data()), s.format, slot, rng.uniform(0.2f, 2.0f), wild, rng);
  return rows;
}

Case random_case(uint64_t seed) {
  Rng rng(seed);
  Case c;
  c.op = "sparse_attention";
  Shape s;
  s.queries = rng.pick({1, 1, 1, 2, 3, 6, 8});
  s.tokens = s.queries * rng.pick({1, 1, 2, 3, 5});
  s.heads = rng.pick({4, 8, 16, 24, 32, 64, 64, 128});
  const int64_t window = rng.pick({0, 1, 3, 31, 64, 127, 128, 128, 129});
  const int64_t extra = rng.pick({-1, -1, 0, 1, 5, 37, 64, 100, 512, 700, 1500});
  // The reference is slow: large row counts come with few tokens and heads.
  const auto too_large = [&] { return s.tokens * s.heads * (window + std::max<int64_t>(0, extra)) > 200'000; };
  if (too_large()) s.tokens = s.queries;
  if (too_large()) s.tokens = s.queries = rng.pick({1, 2});
  if (too_large()) s.heads = rng.pick({8, 16, 64});
  s.format = rng.chance(0.25) ? RowFormat::bf16 : RowFormat::v4;
  s.q = strided(s.tokens * s.heads, kHeadDim, 64, rng);
  s.out = strided(s.tokens * s.heads, kHeadDim, 64, rng);
  s.q_slot = c.in<bf16>("q", s.q.elements());
  c.align(s.q_slot, 16);
  fill_normal(s.q_slot.values, rng.pick({0.05f, 1.0f, 1.0f, 4.0f}), rng);
  const bool wild = s.format == RowFormat::v4 && rng.chance(0.25);
  s.window = random_rows(c, "window", s, window, wild, rng);
  if (extra >= 0) s.extra = random_rows(c, "extra", s, extra, wild, rng);
  if (rng.chance(0.7)) {
    s.sink = c.in<float>("sink", s.heads);
    for (float& v : s.sink.values) v = rng.chance(0.1) ? -std::numeric_limits<float>::infinity() : rng.uniform(-6, 12);
  }
  if (rng.chance(0.6)) {
    s.position = c.in<int32_t>("position", s.tokens);
    for (int32_t& v : s.position.values) v = static_cast<int32_t>(rng.chance(0.2) ? rng.below(3) : rng.below(1048576));
    s.freq = c.in<float>("rope_freq", 32);
    std::ranges::copy(rope_frequencies(rng.pick({10000.0, 160000.0})), s.freq.values.begin());
  }
  const bool codes = rng.chance(0.3), out = !codes || rng.chance(0.6);
  add_outputs(c, s, out, rng.chance(0.6), codes, 3e-3);
  if (s.tokens > 1) add_neighbours(c, s);
  c.shape = fmt::format("T={} H={} window {}x{} extra {}x{} {}", s.tokens, s.heads, window, s.window.pool.page_rows,
                        std::max<int64_t>(0, extra), s.extra.pool.page_rows, s.format == RowFormat::v4 ? "v4" : "bf16");
  c.bind<SparseAttentionArgs>(
      sparse_attention_variants(), [s](const Addresses& a) { return s.args(a); },
      std::function<SparseAttentionArgs(SparseAttentionArgs, int64_t)>(Shape::token), s.tokens);
  // Most CUDA variants divide the rows of a token as the size of the batch suggests, which moves last bits.
  c.batch_moves_bits([](const Implementation& v) { return v.backend == Backend::cuda && v.name != "exact"; });
  return c;
}

// Shapes of the real model: 64 heads (or what the name says), window pages of 256 rows.
// ----------------------------------

struct Timed {
  std::string_view name;
  int64_t heads, extra;  // rows selected besides the window of 128
  int32_t extra_page_rows, queries;
};
constexpr Timed timed_shapes[] = {{"c4", 64, 512, 64, 1},           {"c128-128k", 64, 1024, 2, 1},
                                  {"c128-1m", 64, 8192, 2, 1},      {"window", 64, 0, 64, 1},
                                  {"verify6", 64, 512, 64, 6},      {"c4-8heads", 8, 512, 64, 1},
                                  {"c4-16heads", 16, 512, 64, 1},   {"c4-32heads", 32, 512, 64, 1},
                                  {"c4-128heads", 128, 512, 64, 1}, {"verify6-8heads", 8, 512, 64, 6}};

/// Rows for `requests` requests: each token of a request sees `most` of the request's `owned` rows, with all but
/// `fresh` of them shared by the tokens of a request.
Rows timed_rows(Case& c, const std::string& name, const Shape& s, int32_t page_rows, int64_t most, int64_t owned,
                int64_t fresh, Rng& rng) {
  Rows rows;
  rows.present = true;
  const int64_t requests = s.tokens / s.queries, pages = (owned + page_rows - 1) / page_rows;
  rows.pool = {s.format, page_rows, requests * pages, page_bytes(s.format, page_rows)};
  rows.data = c.in<std::byte>(name + " pool", rows.pool.bytes());
  fill_pool(rows.pool, rows.data.values, rng);
  rows.index_strides = dense(s.tokens, most);
  rows.index = c.in<int32_t>(name + " index", rows.index_strides.elements());
  rows.length = c.in<int32_t>(name + " length", s.tokens);
  std::ranges::fill(rows.length.values, static_cast<int32_t>(most));
  const auto page_order = sample(rows.pool.pages, rows.pool.pages, rng);
  for (int64_t r = 0; r < requests; ++r) {
    const auto chosen = sample(owned, std::min(owned, most + fresh * s.queries), rng);
    for (int32_t q = 0; q < s.queries; ++q) {
      for (int64_t i = 0; i < most; ++i) {
        // The last `fresh` rows differ from token to token.
        const int64_t at = i < most - fresh ? i : i + q * fresh;
        const int32_t row = chosen[static_cast<size_t>(at) % chosen.size()];
        const int64_t page = page_order[static_cast<size_t>(r * pages + row / page_rows)];
        rows.index.values[static_cast<size_t>((r * s.queries + q) * most + i)] =
            static_cast<int32_t>(page * page_rows + row % page_rows);
      }
    }
  }
  return rows;
}

Case timed_case(std::string_view shape, int64_t batch, uint64_t seed) {
  const Timed& timed = *std::ranges::find(timed_shapes, shape, &Timed::name);
  Rng rng(seed);
  Case c;
  c.op = "sparse_attention";
  Shape s;
  s.queries = timed.queries;
  s.tokens = batch * timed.queries;
  s.heads = timed.heads;
  s.q = s.out = dense(s.tokens * s.heads, kHeadDim);
  s.q_slot = c.in<bf16>("q", s.q.elements());
  fill_normal(s.q_slot.values, 1.0f, rng);
  s.window = timed_rows(c, "window", s, 256, 128, 128 + s.queries - 1, s.queries > 1 ? 1 : 0, rng);
  if (timed.extra > 0) {
    const int64_t owned = timed.extra_page_rows == 2 ? timed.extra : 4 * timed.extra;
    s.extra = timed_rows(c, "extra", s, timed.extra_page_rows, timed.extra, owned, s.queries > 1 ? 16 : 0, rng);
  }
  s.sink = c.in<float>("sink", s.heads);
  for (float& v : s.sink.values) v = rng.uniform(-2, 2);
  s.position = c.in<int32_t>("position", s.tokens);
  for (int32_t& v : s.position.values) v = static_cast<int32_t>(rng.below(131072));
  s.freq = c.in<float>("rope_freq", 32);
  std::ranges::copy(rope_frequencies(160000), s.freq.values.begin());
  add_outputs(c, s, true, false, false, 1.9e-3);

  Addresses host;
  for (auto& b : c.buffers) host.push_back(b.bytes.data());
  double rows_read = 0, products = 0;
  for (const Rows* set : {&s.window, &s.extra}) {
    std::unordered_set<int32_t> unique;
    for (int64_t t = 0; t < s.tokens; ++t) {
      const auto slots = set->of(host, t);
      unique.insert(slots.begin(), slots.end());
      products += static_cast<double>(slots.size());
    }
    rows_read += static_cast<double>(unique.size());
  }
  const double row_bytes = kV4DataBytes + kV4ScaleBytes;
  c.cost.bytes = rows_read * row_bytes + products * 4 + static_cast<double>(s.tokens * s.heads) * kHeadDim * 2 * 2;
  c.cost.flops = products * static_cast<double>(s.heads) * kHeadDim * 4;
  c.cost.unit = Unit::bf16;
  c.shape = fmt::format("{} requests x {} tokens, {} heads, 128 + {} rows", batch, s.queries, s.heads, timed.extra);
  c.bind<SparseAttentionArgs>(sparse_attention_variants(), [s](const Addresses& a) { return s.args(a); });
  return c;
}

}  // namespace

OpCases sparse_attention_cases() {
  std::vector<std::string_view> shapes;
  for (const Timed& t : timed_shapes) shapes.push_back(t.name);
  return {"sparse_attention",
          "window and selected rows, sink, inverse RoPE",
          [] { return names_of(sparse_attention_variants()); },
          random_case,
          shapes,
          timed_case};
}

}  // namespace fathom::lab

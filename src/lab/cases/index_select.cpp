#include "ops/index_select/index_select.h"

#include <fmt/format.h>

#include <algorithm>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

using ops::kIndexDim;
using ops::kIndexGroup;

// index_query
// ----------------------------------------------------------------------------------------------------------

Case query_case(int64_t tokens, int64_t heads, bool ragged, Rng& rng) {
  Case c;
  c.op = "index_query";
  const Strides q = ragged ? strided(tokens * heads, kIndexDim, 8, rng) : dense(tokens * heads, kIndexDim);
  const auto q_slot = c.in<bf16>("q", q.elements());
  fill_normal(q_slot.values, std::exp2(rng.uniform(-4, 4)), rng);
  const auto position = c.in<int32_t>("position", tokens);
  for (int32_t& p : position.values) p = static_cast<int32_t>(rng.chance(0.2) ? rng.below(4) : rng.below(1048576));
  const auto freq = c.in<float>("rope_freq", 32);
  std::ranges::copy(rope_frequencies(160000), freq.values.begin());
  const auto codes = c.out<e2m1x2>("codes", tokens * heads * 64, Tolerance::by_property(), 64);
  const auto scale = c.out<e8m0>("scale", tokens * heads * 4, Tolerance::by_property(), 4);
  c.properties.push_back([=](const Addresses& got, const Addresses& want) {
    const auto value = [&](const Addresses& a, int64_t row, int64_t i) {
      const uint8_t byte = codes.at(a)[row * 64 + i / 2].bits;
      return double{e2m1_to_float(byte >> (i % 2 * 4) & 15)} * to_float(scale.at(a)[row * 4 + i / kIndexGroup]);
    };
    return decoded_close("codes", tokens * heads, kIndexDim, 0.02, 0.05, value, got, want);
  });
  c.cost = {static_cast<double>(tokens * heads) * (256 + 68) + 4.0 * static_cast<double>(tokens), 0, Unit::fp32};
  c.shape = fmt::format("T={} H={}", tokens, heads);
  const auto build = [=](const Addresses& a) {
    ops::IndexQueryArgs args;
    args.q = view3<const bf16>(q_slot.at(a), tokens, heads, q);
    args.position = View<const int32_t, 1>(position.at(a), tokens);
    args.rope_freq = View<const float, 1>(freq.at(a), 32);
    args.codes = View<e2m1x2, 3>(codes.at(a), tokens, heads, int64_t{64});
    args.scale = View<e8m0, 3>(scale.at(a), tokens, heads, int64_t{4});
    return args;
  };
  const auto token = [](ops::IndexQueryArgs args, int64_t t) {
    args.q = args.q.rows(t, 1), args.position = args.position.rows(t, 1), args.codes = args.codes.rows(t, 1);
    args.scale = args.scale.rows(t, 1);
    return args;
  };
  c.bind<ops::IndexQueryArgs>(ops::index_query_variants(), build,
                              std::function<ops::IndexQueryArgs(ops::IndexQueryArgs, int64_t)>(token), tokens);
  return c;
}

// index_select
// ---------------------------------------------------------------------------------------------------------

struct Shape {
  int64_t tokens = 1, heads = 64, sequences = 1, most_pages = 1, pool_pages = 1;
  int32_t topk = 512, page_rows = 64;
  int64_t page_stride = 0;
  std::vector<int32_t> visible_of, sequence_of;
  Slot<e2m1x2> q;
  Slot<e8m0> q_scale;
  Slot<bf16> head_weight;
  Slot<std::byte> keys;
  Slot<int32_t> pages, sequence, visible, index, length;

  ops::IndexPool pool(const Addresses& a) const { return {keys.at(a), page_stride, page_rows}; }
  int32_t slot(const Addresses& a, int64_t t, int64_t entry) const {
    const int32_t page = pages.at(a)[sequence_of[static_cast<size_t>(t)] * most_pages + entry / page_rows];
    return static_cast<int32_t>(page * page_rows + entry % page_rows);
  }
  ops::IndexSelectArgs args(const Addresses& a) const {
    ops::IndexSelectArgs args;
    args.q = View<const e2m1x2, 3>(q.at(a), tokens, heads, int64_t{64});
    args.q_scale = View<const e8m0, 3>(q_scale.at(a), tokens, heads, int64_t{4});
    args.head_weight = View<const bf16, 2>(head_weight.at(a), tokens, heads);
    args.keys = pool(a);
    args.pages = View<const int32_t, 2>(pages.at(a), sequences, most_pages);
    args.sequence = View<const int32_t, 1>(sequence.at(a), tokens);
    args.visible = View<const int32_t, 1>(visible.at(a), tokens);
    args.topk = topk;
    args.index = View<int32_t, 2>(index.at(a), tokens, int64_t{topk});
    args.length = View<int32_t, 1>(length.at(a), tokens);
    return args;
  }
  static ops::IndexSelectArgs token(ops::IndexSelectArgs args, int64_t t) {
    args.q = args.q.rows(t, 1), args.q_scale = args.q_scale.rows(t, 1), args.head_weight = args.head_weight.rows(t, 1);
    args.sequence = args.sequence.rows(t, 1), args.visible = args.visible.rows(t, 1),
    args.index = args.index.rows(t, 1);
    args.length = args.length.rows(t, 1);
    return args;
  }

  /// The score of an entry with every rounding the contract states; sums in double.
  float score(const Addresses& a, int64_t t, int64_t slot_number) const {
    float key[kIndexDim], query[kIndexDim];
    const auto decode = [](const uint8_t* codes, const uint8_t* scales, float* out) {
      for (int i = 0; i < kIndexDim; ++i)
        out[i] = e2m1_to_float(codes[i / 2] >> (i % 2 * 4) & 15) * to_float(e8m0{scales[i / kIndexGroup]});
    };
    decode(reinterpret_cast<const uint8_t*>(pool(a).row_codes(slot_number)),
           reinterpret_cast<const uint8_t*>(pool(a).row_scales(slot_number)), key);
    double total = 0;
    for (int64_t h = 0; h < heads; ++h) {
      decode(&q.at(a)[(t * heads + h) * 64].bits, &q_scale.at(a)[(t * heads + h) * 4].bits, query);
      double dot = 0;
      for (int i = 0; i < kIndexDim; ++i) dot += double{query[i]} * key[i];
      const float relu = std::max(0.0f, round_bf16(static_cast<float>(dot)));
      total += round_bf16(relu * to_float(head_weight.at(a)[t * heads + h]));
    }
    return round_bf16(static_cast<float>(total));
  }

  /// The choice must be the best by score, where scores one bf16 step apart may be taken for each other (the order of
  /// the sum over heads decides the last bit).
  std::string choice(const Addresses& in, const Addresses& got) const {
    for (int64_t t = 0; t < tokens; ++t) {
      const int32_t seen = visible_of[static_cast<size_t>(t)], kept = std::min(seen, topk);
      const int32_t* chosen = index.at(got) + t * topk;
      if (length.at(got)[t] != kept)
        return fmt::format("length: token {}: got {}, want {}", t, length.at(got)[t], kept);
      std::vector<bool> taken(static_cast<size_t>(seen));
      int32_t entry = 0;
      for (int32_t i = 0; i < topk; ++i) {
        if (i >= kept) {
          if (chosen[i] != -1) return fmt::format("index: token {}, place {}: got {}, want -1", t, i, chosen[i]);
          continue;
        }
        while (entry < seen && slot(in, t, entry) != chosen[i]) ++entry;
        if (entry >= seen)
          return fmt::format("index: token {}, place {}: {} is no visible entry, or not in ascending order", t, i,
                             chosen[i]);
        taken[static_cast<size_t>(entry++)] = true;
      }
      if (seen == kept) continue;
      float worst = std::numeric_limits<float>::infinity(), best = -worst, largest = 0;
      for (int32_t e = 0; e < seen; ++e) {
        const float s = score(in, t, slot(in, t, e));
        largest = std::max(largest, std::fabs(s));
        if (taken[static_cast<size_t>(e)])
          worst = std::min(worst, s);
        else
          best = std::max(best, s);
      }
      const float step = std::max(std::fabs(worst), std::fabs(best)) * 0.0079f + largest * 1e-5f;
      if (best > worst + step)
        return fmt::format("index: token {}: an entry of score {} was left out and one of {} taken", t, best, worst);
    }
    return "";
  }
};

Case select_case(Shape s, bool ragged, Rng& rng) {
  Case c;
  c.op = "index_select";
  s.q = c.in<e2m1x2>("q", s.tokens * s.heads * 64), s.q_scale = c.in<e8m0>("q_scale", s.tokens * s.heads * 4);
  fill_codes(s.q.values, rng);
  fill_scales(s.q_scale.values, -4, -1, rng);
  s.head_weight = c.in<bf16>("head_weight", s.tokens * s.heads);
  fill_normal(s.head_weight.values, 0.3f, rng);  // may be negative
  s.keys = c.in<std::byte>("keys", (s.pool_pages - 1) * s.page_stride + ops::index_page_bytes(s.page_rows));
  if (ragged) c.align(s.keys, s.page_stride % 16 == 0 ? 16 : 4);
  fill_bytes(s.keys.values, rng);
  const ops::IndexPool pool{s.keys.values.data(), s.page_stride, s.page_rows};
  for (int64_t slot = 0; slot < s.pool_pages * s.page_rows; ++slot)
    for (int g = 0; g < 4; ++g) pool.row_scales(slot)[g] = static_cast<std::byte>(127 - 3 + (rng.next() & 3));
  s.pages = c.in<int32_t>("pages", s.sequences * s.most_pages);
  const auto order = sample(s.pool_pages, s.sequences * s.most_pages, rng);
  std::ranges::copy(order, s.pages.values.begin());
  s.sequence = c.in<int32_t>("sequence", s.tokens), s.visible = c.in<int32_t>("visible", s.tokens);
  std::ranges::copy(s.sequence_of, s.sequence.values.begin());
  std::ranges::copy(s.visible_of, s.visible.values.begin());
  s.index = c.out<int32_t>("index", s.tokens * s.topk, Tolerance::by_property(), s.topk);
  s.length = c.out<int32_t>("length", s.tokens, Tolerance::exact());
  // A property sees the outputs' copies only; the inputs are read from the reference's side, where they are the same.
  c.properties.push_back([s](const Addresses& got, const Addresses& want) { return s.choice(want, got); });
  double seen = 0;
  for (int32_t v : s.visible_of) seen += v;
  c.cost = {seen * 68 + static_cast<double>(s.tokens) * static_cast<double>(s.heads * 70 + 4 * s.topk + 12),
            seen * 2 * kIndexDim * static_cast<double>(s.heads), Unit::fp8};
  c.shape = fmt::format("T={} H={} topk={} entries={:.0f} pages of {}", s.tokens, s.heads, s.topk, seen, s.page_rows);
  c.bind<ops::IndexSelectArgs>(
      ops::index_select_variants(), [s](const Addresses& a) { return s.args(a); },
      ragged ? std::function<ops::IndexSelectArgs(ops::IndexSelectArgs, int64_t)>(Shape::token) : nullptr, s.tokens);
  return c;
}

}  // namespace

OpCases index_query_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    return query_case(some_tokens(rng), rng.pick({1, 4, 8, 64}), true, rng);
  };
  const auto timed = [](std::string_view, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    return query_case(batch, 64, false, rng);
  };
  return {"index_query",
          "indexer queries: RoPE, Hadamard, fp4",
          [] { return names_of(ops::index_query_variants()); },
          random,
          {"heads64"},
          timed};
}

OpCases index_select_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    Shape s;
    s.tokens = rng.pick({1, 2, 3, 5, 8}), s.heads = rng.pick({1, 4, 8, 64}), s.sequences = rng.between(1, 3);
    s.topk = rng.pick({1, 16, 64, 100, 512});
    s.page_rows = rng.pick({64, 2, 7, 64});
    const int64_t most = rng.pick({1, 63, 130, 600, 1500});
    s.most_pages = (most + s.page_rows - 1) / s.page_rows + rng.below(2);
    s.pool_pages = s.sequences * s.most_pages + rng.below(3);
    s.page_stride = ops::index_page_bytes(s.page_rows) + 4 * rng.below(10);
    if (rng.chance(0.5)) s.page_stride = (s.page_stride + 15) / 16 * 16;  // rows that are loaded 16 bytes at a time
    for (int64_t t = 0; t < s.tokens; ++t) {
      s.sequence_of.push_back(static_cast<int32_t>(rng.below(s.sequences)));
      s.visible_of.push_back(static_cast<int32_t>(
          rng.chance(0.3) ? rng.pick<int64_t>({0, 1, std::min<int64_t>(most, s.topk), most}) : rng.between(0, most)));
    }
    return select_case(s, true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    Shape s;
    const int32_t seen = shape == "8k" ? 2048 : shape == "32k" ? 8192 : shape == "128k" ? 32768 : 262144;
    s.tokens = s.sequences = batch;
    s.most_pages = seen / 64;
    s.pool_pages = batch * s.most_pages;
    s.page_stride = ops::index_page_bytes(64);
    for (int64_t t = 0; t < batch; ++t) s.sequence_of.push_back(static_cast<int32_t>(t)), s.visible_of.push_back(seen);
    return select_case(s, false, rng);
  };
  return {"index_select", "index scores and exact top-k", [] { return names_of(ops::index_select_variants()); },
          random,         {"128k", "8k", "32k", "1m"},    timed};
}

}  // namespace fathom::lab

#include "ops/compress/compress.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lab/cases/cases.h"
#include "lab/cases/common.h"

namespace fathom::lab {

namespace {

using ops::CompressEntry;
using ops::RowFormat;
using ops::Segment;

constexpr float nan = std::numeric_limits<float>::quiet_NaN();

struct IndexPoolShape {
  int32_t page_rows = 64;
  int64_t pages = 1, stride = 0;
  int64_t bytes() const { return (pages - 1) * stride + ops::index_page_bytes(page_rows); }
  ops::IndexPool at(std::byte* p) const { return {p, stride, page_rows}; }
};

/// Decodes index rows and knows their bytes.
PoolWrite index_pool_write(const IndexPoolShape& shape) {
  PoolWrite write;
  write.columns = ops::kIndexDim;
  write.read = [shape](const std::byte* pool, int64_t slot, double* values) {
    const ops::IndexPool p = shape.at(const_cast<std::byte*>(pool));
    for (int i = 0; i < ops::kIndexDim; ++i) {
      const auto byte = static_cast<uint8_t>(p.row_codes(slot)[i / 2]);
      const e8m0 scale{static_cast<uint8_t>(p.row_scales(slot)[i / ops::kIndexGroup])};
      values[i] = double{e2m1_to_float(byte >> (i % 2 * 4) & 15)} * to_float(scale);
    }
  };
  write.owns = [shape](int64_t slot, const std::function<void(int64_t, int64_t)>& visit) {
    auto* const zero = reinterpret_cast<std::byte*>(uintptr_t{1} << 20);  // any address: only differences count
    visit(shape.at(zero).row_codes(slot) - zero, ops::kIndexCodeBytes);
    visit(shape.at(zero).row_scales(slot) - zero, ops::kIndexScaleBytes);
  };
  return write;
}

struct Shape {
  int32_t ratio = 4;
  bool index = false;
  int64_t ring = 8, tokens = 0, states = 1;
  std::vector<Segment> segments;
  std::vector<CompressEntry> entries;
  PoolShape pool;
  IndexPoolShape index_pool;
  Strides rows{};
  Slot<float> k, g, ape, freq, state_k, state_g;
  Slot<bf16> norm;
  Slot<std::byte> segment_bytes, entry_bytes, pool_bytes;

  int64_t width() const { return index ? ops::kIndexDim : ops::kHeadDim; }
  int64_t channels() const { return width() * (ratio == 4 ? 2 : 1); }

  ops::CompressArgs args(const Addresses& a) const {
    ops::CompressArgs args;
    args.ratio = ratio;
    args.k = view2<const float>(k.at(a), rows);
    args.g = view2<const float>(g.at(a), rows);
    args.ape = View<const float, 2>(ape.at(a), int64_t{ratio}, channels());
    args.norm = View<const bf16, 1>(norm.at(a), width());
    args.rope_freq = View<const float, 1>(freq.at(a), 32);
    args.segments = View<const Segment, 1>(reinterpret_cast<const Segment*>(segment_bytes.at(a)), segments.size());
    args.entries =
        View<const CompressEntry, 1>(reinterpret_cast<const CompressEntry*>(entry_bytes.at(a)), entries.size());
    args.state_k = View<float, 3>(state_k.at(a), states, ring, channels());
    args.state_g = View<float, 3>(state_g.at(a), states, ring, channels());
    args.index = index;
    args.format = pool.format;
    if (index)
      args.index_pool = index_pool.at(pool_bytes.at(a));
    else
      args.pool = pool.at(pool_bytes.at(a));
    return args;
  }
};

/// Sequences at `positions` with `counts` new tokens, and the entries these complete.
void lay_out(Shape& s, const std::vector<std::pair<int32_t, int32_t>>& runs, Rng& rng) {
  s.states = static_cast<int64_t>(runs.size()) + rng.below(3);
  const auto state = sample(s.states, static_cast<int64_t>(runs.size()), rng);
  for (size_t i = 0; i < runs.size(); ++i) {
    const auto [position, count] = runs[i];
    s.segments.push_back({static_cast<int32_t>(s.tokens), count, position, state[i]});
    s.tokens += count;
    for (int32_t e = position / s.ratio; (e + 1) * s.ratio <= position + count; ++e)
      s.entries.push_back({static_cast<int32_t>(i), e, 0});
  }
}

Case make(Shape s, bool ragged, Rng& rng) {
  Case c;
  c.op = "compress";
  const auto completed = static_cast<int64_t>(s.entries.size());
  if (ragged) s.entries.insert(s.entries.end(), static_cast<size_t>(rng.below(3)), CompressEntry{0, 0, -1});
  if (s.entries.empty()) s.entries.push_back({0, 0, -1});
  const int32_t page_rows = ragged ? rng.pick({64, 2, 7}) : s.ratio == 4 ? 64 : 2;
  const int64_t pool_rows = completed + 1 + (ragged ? rng.below(9) : 0);
  if (s.index) {
    s.index_pool = {page_rows, (pool_rows + page_rows - 1) / page_rows, ops::index_page_bytes(page_rows)};
  } else {
    s.pool = some_pool(ragged && rng.chance(0.3) ? RowFormat::bf16 : RowFormat::v4, page_rows, pool_rows, rng);
  }
  const int64_t all_rows = s.index ? s.index_pool.pages * page_rows : s.pool.rows();
  const auto slots = sample(all_rows, completed, rng);
  for (int64_t i = 0; i < completed; ++i) s.entries[static_cast<size_t>(i)].slot = slots[static_cast<size_t>(i)];

  s.rows = ragged ? strided(s.tokens, s.channels(), 4, rng) : dense(s.tokens, s.channels());
  s.k = c.in<float>("k", s.rows.elements()), s.g = c.in<float>("g", s.rows.elements());
  s.ape = c.in<float>("ape", s.ratio * s.channels()), s.norm = c.in<bf16>("norm", s.width()),
  s.freq = c.in<float>("rope_freq", 32);
  fill_normal(s.k.values, 1.0f, rng);
  fill_normal(s.g.values, rng.pick({0.3f, 2.0f, 10.0f}), rng);
  fill_normal(s.ape.values, 0.5f, rng);
  fill_norm_weight(s.norm.values, rng);
  std::ranges::copy(rope_frequencies(160000), s.freq.values.begin());
  s.segment_bytes = c.in<std::byte>("segments", static_cast<int64_t>(s.segments.size() * sizeof(Segment)));
  std::ranges::copy(std::as_bytes(std::span(s.segments)), s.segment_bytes.values.begin());
  s.entry_bytes = c.in<std::byte>("entries", static_cast<int64_t>(s.entries.size() * sizeof(CompressEntry)));
  std::ranges::copy(std::as_bytes(std::span(s.entries)), s.entry_bytes.values.begin());

  // Slots of tokens that never were hold NaN: nothing may read them.
  const int64_t row = s.channels();
  s.state_k = c.inout<float>("state_k", s.states * s.ring * row, Tolerance::exact(), row);
  s.state_g = c.inout<float>("state_g", s.states * s.ring * row, Tolerance::exact(), row);
  std::ranges::fill(s.state_k.values, nan);
  std::ranges::fill(s.state_g.values, nan);
  for (const Segment& segment : s.segments) {
    for (int64_t p = std::max<int64_t>(0, segment.position - s.ring); p < segment.position; ++p) {
      const auto at = static_cast<size_t>((segment.state * s.ring + p % s.ring) * row);
      fill_normal(s.state_k.values.subspan(at, static_cast<size_t>(row)), 1.0f, rng);
      fill_normal(s.state_g.values.subspan(at, static_cast<size_t>(row)), 2.0f, rng);
    }
  }
  s.pool_bytes = c.inout<std::byte>("pool", s.index ? s.index_pool.bytes() : s.pool.bytes(), Tolerance::by_property());
  if (ragged) c.align(s.pool_bytes, s.index ? 4 : 32);
  fill_bytes(s.pool_bytes.values, rng);
  const auto bytes = s.pool_bytes.values.size();
  const PoolWrite write = s.index ? index_pool_write(s.index_pool) : kv_pool_write(s.pool);
  c.properties.push_back([=](const Addresses& got, const Addresses& want) {
    return pool_close("pool", write, {s.pool_bytes.at(got), bytes}, {s.pool_bytes.at(want), bytes}, slots);
  });
  const double kept =
      static_cast<double>(std::min<int64_t>(s.tokens, s.ring * static_cast<int64_t>(s.segments.size())));
  const double read = static_cast<double>(completed) * s.ratio * (s.ratio == 4 ? 1.5 : 1.0);
  c.cost = {(static_cast<double>(s.tokens) * 2 + read + kept * 2) * static_cast<double>(row) * 4, 0, Unit::fp32};
  c.shape = fmt::format("ratio {}{} segments={} T={} entries={} R={}", s.ratio, s.index ? " index" : "",
                        s.segments.size(), s.tokens, completed, s.ring);
  c.bind<ops::CompressArgs>(ops::compress_variants(), [s](const Addresses& a) { return s.args(a); });
  return c;
}

}  // namespace

OpCases compress_cases() {
  const auto random = [](uint64_t seed) {
    Rng rng(seed);
    Shape s;
    const int kind = static_cast<int>(rng.below(3));
    s.ratio = kind == 2 ? 128 : 4;
    s.index = kind == 1;
    s.ring = s.ratio == 4 ? rng.pick({8, 9, 16, 21}) : rng.pick({128, 131, 256});
    std::vector<std::pair<int32_t, int32_t>> runs(static_cast<size_t>(rng.between(1, 5)));
    for (auto& [position, count] : runs) {
      position = static_cast<int32_t>(rng.chance(0.4)   ? 0
                                      : rng.chance(0.5) ? rng.below(3 * s.ratio)
                                                        : rng.below(100000));
      count = static_cast<int32_t>(rng.chance(0.6) ? rng.between(1, 9) : rng.between(1, 2 * s.ratio + 9));
      // Often the token that completes an entry is among the new ones.
      if (rng.chance(0.5)) position = position / s.ratio * s.ratio + s.ratio - 1;
    }
    lay_out(s, runs, rng);
    return make(s, true, rng);
  };
  const auto timed = [](std::string_view shape, int64_t batch, uint64_t seed) {
    Rng rng(seed);
    Shape s;
    s.ratio = shape == "ratio128" ? 128 : 4;
    s.index = shape == "index4";
    s.ring = 2 * s.ratio;
    // Every sequence completes an entry: the slow step of the four (or of the 128).
    lay_out(s, std::vector<std::pair<int32_t, int32_t>>(static_cast<size_t>(batch), {8191, 1}), rng);
    return make(s, false, rng);
  };
  return {"compress",
          "compressor: state, pooling, norm, RoPE, row write",
          [] { return names_of(ops::compress_variants()); },
          random,
          {"ratio4", "ratio128", "index4"},
          timed};
}

}  // namespace fathom::lab

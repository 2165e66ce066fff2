// The indexer on the CPU: scores of blocks of tokens against whole pages of keys, then an exact top-k by counting.
#include <algorithm>

#include "ops/cpu/product.h"
#include "ops/cpu/rows.h"
#include "ops/cpu/scores.h"
#include "ops/index_select/index_select.h"

namespace fathom::ops {

void index_query_ref(const IndexQueryArgs& a, const Launch&);
void index_select_ref(const IndexSelectArgs& a, const Launch&);

void index_query_cpu(const IndexQueryArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return index_query_ref(a, l);
  const int64_t heads = a.q.size[1];
  cpu::split(a.q.size[0], 1, static_cast<double>(a.q.count()) * 64, [&](int64_t begin, int64_t end) {
    alignas(64) float row[kIndexDim];
    cpu::Angles angles;
    for (int64_t t = begin; t < end; ++t) {
      cpu::make_angles(a.position(t), a.rope_freq.data, false, angles);
      for (int64_t h = 0; h < heads; ++h) {
        cpu::widen(a.q[t][h].data, kIndexDim, row);
        cpu::rope(row + kIndexDim - kRopeDim, angles);
        cpu::hadamard(row);
        cpu::quantize_fp4(row, &a.codes(t, h, 0).bits, &a.scale(t, h, 0).bits);
      }
    }
  });
}

namespace {

struct QueryScratch;
struct DotScratch;
struct KeyScratch;

constexpr int64_t kBlockRows = 48;  // query heads that a block of tokens may have together

/// Slots of the first entries of token t, page by page: visit(slot of the first, how many, first entry).
template <typename Visit>
void each_page(const IndexSelectArgs& a, int64_t t, int32_t entries, const Visit& visit) {
  const int32_t* pages = a.pages[a.sequence(t)].data;
  for (int32_t first = 0, page = 0; first < entries; first += a.keys.page_rows, ++page)
    visit(pages[page] * a.keys.page_rows, std::min(a.keys.page_rows, entries - first), first);
}

void write_all(const IndexSelectArgs& a, int64_t t) {
  const int32_t visible = a.visible(t);
  int32_t* out = a.index[t].data;
  each_page(a, t, visible, [&](int32_t slot, int32_t count, int32_t first) {
    for (int32_t i = 0; i < count; ++i) out[first + i] = slot + i;
  });
  std::fill(out + visible, out + a.topk, -1);
  a.length(t) = visible;
}

void write_top(const IndexSelectArgs& a, int64_t t, const uint16_t* key) {
  const cpu::KeyLimit limit = cpu::key_limit(key, a.visible(t), a.topk);
  int64_t equal = limit.equal;
  int32_t* out = a.index[t].data;
  int32_t kept = 0;
  each_page(a, t, a.visible(t), [&](int32_t slot, int32_t count, int32_t first) {
    for (int32_t i = 0; i < count && kept < a.topk; ++i) {  // without branches on the keys, which cannot be foreseen
      const bool tie = key[first + i] == limit.key && equal > 0;
      out[kept] = slot + i;
      kept += static_cast<int32_t>(key[first + i] > limit.key) + static_cast<int32_t>(tie);
      equal -= static_cast<int64_t>(tie);
    }
  });
  a.length(t) = a.topk;
}

/// Keys of tokens [t0, t1) of one sequence for their first `most` entries, `pitch` apart.
void score(const IndexSelectArgs& a, int64_t t0, int64_t t1, int32_t most, int64_t pitch, uint16_t* key) {
  const int64_t heads = a.q.size[1], rows = (t1 - t0) * heads, page = a.keys.page_rows;
  const int64_t dot_pitch = cpu::round_up(page, cpu::kRowGroup);
  auto* q = reinterpret_cast<float*>(
      cpu::thread_scratch<QueryScratch>(static_cast<size_t>(rows) * (kIndexDim * sizeof(float) + sizeof(float*))));
  auto* dot =
      reinterpret_cast<float*>(cpu::thread_scratch<DotScratch>(static_cast<size_t>(rows * dot_pitch) * sizeof(float)));
  auto** x = reinterpret_cast<const float**>(q + rows * kIndexDim);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = t0 + r / heads, h = r % heads;
    cpu::prepare_fp4(&a.q(t, h, 0).bits, &a.q_scale(t, h, 0).bits, q + r * kIndexDim);
    x[r] = q + r * kIndexDim;
  }
  cpu::Matrix keys;
  keys.codec = cpu::Codec::mxfp4;
  keys.row_bytes = kIndexCodeBytes;
  keys.scale_bytes = kIndexScaleBytes;
  keys.columns = kIndexDim;
  for (int32_t first = 0; first < most; first += a.keys.page_rows) {
    const int64_t slot = int64_t{a.pages(a.sequence(t0), first / a.keys.page_rows)} * page;
    keys.codes = reinterpret_cast<const uint8_t*>(a.keys.row_codes(slot));
    keys.scale = reinterpret_cast<const uint8_t*>(a.keys.row_scales(slot));
    keys.rows = std::min<int64_t>(page, most - first);
    cpu::multiply(keys, 0, keys.rows, x, rows, dot, dot_pitch);
    for (int64_t t = t0; t < t1; ++t)
      cpu::index_scores(dot + (t - t0) * heads * dot_pitch, dot_pitch, a.head_weight[t].data, heads, keys.rows,
                        key + (t - t0) * pitch + first);
  }
}

/// Tokens [begin, end), in blocks of neighbours in one sequence.
void select(const IndexSelectArgs& a, int64_t begin, int64_t end) {
  const int64_t heads = a.q.size[1], block = std::max<int64_t>(1, kBlockRows / heads);
  for (int64_t t = begin; t < end;) {
    if (a.visible(t) <= a.topk) {
      write_all(a, t++);
      continue;
    }
    int64_t stop = t + 1;
    int32_t most = a.visible(t);
    for (; stop < end && stop < t + block && a.sequence(stop) == a.sequence(t) && a.visible(stop) > a.topk; ++stop)
      most = std::max(most, a.visible(stop));
    const int64_t pitch = cpu::round_up(most, 32);
    auto* key = reinterpret_cast<uint16_t*>(
        cpu::thread_scratch<KeyScratch>(static_cast<size_t>((stop - t) * pitch) * sizeof(uint16_t)));
    score(a, t, stop, most, pitch, key);
    for (int64_t i = t; i < stop; ++i) write_top(a, i, key + (i - t) * pitch);
    t = stop;
  }
}

}  // namespace

void index_select_cpu(const IndexSelectArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return index_select_ref(a, l);
  double cost = 0;
  for (int64_t t = 0; t < a.q.size[0]; ++t)
    cost += a.visible(t) <= a.topk ? a.topk * 8.0 : static_cast<double>(a.visible(t) * a.q.size[1]) * kIndexDim * 1.5;
  cpu::split(a.q.size[0], 4, cost, [&](int64_t begin, int64_t end) { select(a, begin, end); });
}

}  // namespace fathom::ops

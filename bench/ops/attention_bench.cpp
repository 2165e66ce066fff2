// Sparse attention over window and selected rows, the indexer, and what writes the rows.
#include "inputs.h"
#include "ops/index_select/index_select.h"
#include "ops/query/query.h"
#include "ops/sparse_attention/sparse_attention.h"
#include "ops/window_write/window_write.h"

namespace fathom::bench {
namespace {

constexpr int64_t kSlots = 4096, kPageRows = 64;

std::vector<int32_t> positions(int64_t tokens) {
  std::vector<int32_t> p(static_cast<size_t>(tokens));
  for (int64_t t = 0; t < tokens; ++t) p[static_cast<size_t>(t)] = static_cast<int32_t>(2000 + t);
  return p;
}

/// Rows with random codes: 448 codes, 64 bf16, scales at the end of the page.
std::vector<std::byte> cache_rows(Inputs& in) {
  const int64_t page = ops::page_bytes(ops::RowFormat::v4, kPageRows);
  std::vector<std::byte> data(static_cast<size_t>(page * kSlots / kPageRows));
  const ops::KvPool pool{data.data(), page, kPageRows};
  for (int64_t slot = 0; slot < kSlots; ++slot) {
    const auto codes = in.codes(ops::kNopeDim);
    const auto tail = in.bf16s(ops::kRopeDim);
    std::copy_n(reinterpret_cast<const std::byte*>(codes.data()), ops::kNopeDim,
                pool.row_data(ops::RowFormat::v4, slot));
    std::copy_n(reinterpret_cast<const std::byte*>(tail.data()), 2 * ops::kRopeDim,
                pool.row_data(ops::RowFormat::v4, slot) + ops::kNopeDim);
    std::fill_n(pool.row_scales(slot), ops::kV4ScaleBytes, std::byte{120});
  }
  return data;
}

/// `tokens` neighbours of one sequence: 128 window rows that move on by one, and `extra` rows chosen among four times
/// as many.
void sparse_attention(benchmark::State& state, const Dims& m) {
  const int64_t extra = state.range(0), tokens = state.range(1), window = 128;
  Inputs in;
  auto rows = cache_rows(in);
  const ops::KvPool pool{rows.data(), ops::page_bytes(ops::RowFormat::v4, kPageRows), kPageRows};
  const auto q = in.bf16s(tokens * m.heads * 512, 0.2f);
  const auto sink = in.fp32(m.heads), freq = rope_frequencies();
  const auto position = positions(tokens);
  std::vector<int32_t> window_index, extra_index;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t i = 0; i < window; ++i) window_index.push_back(static_cast<int32_t>((t + i) % 2048));
    for (int64_t i = 0; i < extra; ++i)
      extra_index.push_back(static_cast<int32_t>((2048 + 4 * i + in.below(4)) % kSlots));
  }
  std::vector<bf16> out(q.size());
  ops::SparseAttentionArgs a;
  a.q = View<const bf16, 3>(q.data(), tokens, m.heads, 512);
  a.window.pool = a.extra.pool = pool;
  a.window.index = View<const int32_t, 2>(window_index.data(), tokens, window);
  if (extra) a.extra.index = View<const int32_t, 2>(extra_index.data(), tokens, extra);
  a.sink = View<const float, 1>(sink.data(), m.heads);
  a.scale = 0.04419417f;
  a.position = View<const int32_t, 1>(position.data(), tokens);
  a.rope_freq = View<const float, 1>(freq.data(), 32);
  a.out = View<bf16, 3>(out.data(), tokens, m.heads, 512);
  measure(state, ops::sparse_attention_variants(), a, static_cast<double>(tokens * m.heads * (window + extra) * 1024),
          static_cast<double>(tokens * ((window + extra) * 584 + m.heads * 2048)));
}

void index_select(benchmark::State& state, const Dims& m) {
  const int64_t entries = state.range(0), tokens = state.range(1);
  const int64_t pages = (entries + kPageRows - 1) / kPageRows, page = ops::index_page_bytes(kPageRows);
  Inputs in;
  auto keys = in.bytes(pages * page, 118, 124);
  const auto q = in.bytes(tokens * m.index_heads * 64), q_scale = in.bytes(tokens * m.index_heads * 4, 118, 124);
  const auto weight = in.bf16s(tokens * m.index_heads);
  std::vector<int32_t> page_of(static_cast<size_t>(pages)), sequence(static_cast<size_t>(tokens));
  const std::vector<int32_t> visible(static_cast<size_t>(tokens), static_cast<int32_t>(entries));
  for (int64_t i = 0; i < pages; ++i) page_of[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  std::vector<int32_t> index(static_cast<size_t>(tokens * m.index_topk)), length(static_cast<size_t>(tokens));
  ops::IndexSelectArgs a;
  a.q = View<const e2m1x2, 3>(reinterpret_cast<const e2m1x2*>(q.data()), tokens, m.index_heads, 64);
  a.q_scale = View<const e8m0, 3>(reinterpret_cast<const e8m0*>(q_scale.data()), tokens, m.index_heads, 4);
  a.head_weight = View<const bf16, 2>(weight.data(), tokens, m.index_heads);
  a.keys = {reinterpret_cast<std::byte*>(keys.data()), page, kPageRows};
  a.pages = View<const int32_t, 2>(page_of.data(), 1, pages);
  a.sequence = View<const int32_t, 1>(sequence.data(), tokens);
  a.visible = View<const int32_t, 1>(visible.data(), tokens);
  a.topk = static_cast<int32_t>(m.index_topk);
  a.index = View<int32_t, 2>(index.data(), tokens, m.index_topk);
  a.length = View<int32_t, 1>(length.data(), tokens);
  measure(state, ops::index_select_variants(), a, static_cast<double>(tokens * m.index_heads * entries * 128),
          static_cast<double>(tokens * (entries * 68 + m.index_topk * 4)));
}

void query(benchmark::State& state, const Dims& m) {
  const int64_t tokens = state.range(0);
  Inputs in;
  auto q = in.bf16s(tokens * m.heads * 512);
  const auto position = positions(tokens);
  const auto freq = rope_frequencies();
  ops::QueryArgs a;
  a.q = View<bf16, 3>(q.data(), tokens, m.heads, 512);
  a.position = View<const int32_t, 1>(position.data(), tokens);
  a.rope_freq = View<const float, 1>(freq.data(), 32);
  measure(state, ops::query_variants(), a, 0, static_cast<double>(tokens * m.heads * 2048));
}

void window_write(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  Inputs in;
  auto rows = cache_rows(in);
  const auto kv = in.bf16s(tokens * 512), norm = in.bf16s(512);
  const auto position = positions(tokens);
  const auto freq = rope_frequencies();
  ops::WindowWriteArgs a;
  a.kv = View<const bf16, 2>(kv.data(), tokens, 512);
  a.norm = View<const bf16, 1>(norm.data(), 512);
  a.position = a.slot = View<const int32_t, 1>(position.data(), tokens);
  a.rope_freq = View<const float, 1>(freq.data(), 32);
  a.pool = {rows.data(), ops::page_bytes(ops::RowFormat::v4, kPageRows), kPageRows};
  measure(state, ops::window_write_variants(), a, 0, static_cast<double>(tokens * (1024 + 584)));
}

BENCHMARK_CAPTURE(sparse_attention, fairy, kFairy)
    ->ArgNames({"extra", "T"})
    ->ArgsProduct({{0, 64}, {1, 6, 512}})
    ->UseRealTime();
BENCHMARK_CAPTURE(sparse_attention, flash, kFlash)
    ->ArgNames({"extra", "T"})
    ->ArgsProduct({{0, 512}, {1, 6}})
    ->UseRealTime();
BENCHMARK_CAPTURE(index_select, fairy, kFairy)
    ->ArgNames({"entries", "T"})
    ->ArgsProduct({{256}, {1, 512}})
    ->UseRealTime();
BENCHMARK_CAPTURE(index_select, flash, kFlash)
    ->ArgNames({"entries", "T"})
    ->ArgsProduct({{8192}, {1, 6}})
    ->UseRealTime();
BENCHMARK_CAPTURE(query, fairy, kFairy)->ArgName("T")->Arg(1)->Arg(512)->UseRealTime();
BENCHMARK(window_write)->ArgName("T")->Arg(1)->Arg(512)->UseRealTime();

}  // namespace
}  // namespace fathom::bench

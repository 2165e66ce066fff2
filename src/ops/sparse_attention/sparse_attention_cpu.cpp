// Sparse attention on the CPU. Neighbouring tokens share most of their rows, so a block of tokens decodes each row once
// to fp32; a token with more rows than the buffer holds goes through them in tiles, twice.
#include <cmath>
#include <limits>

#include "ops/cpu/product.h"
#include "ops/cpu/rows.h"
#include "ops/sparse_attention/attend.h"
#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::ops {

void sparse_attention_ref(const SparseAttentionArgs& a, const Launch&);

namespace {

constexpr int64_t kCachedRows = 512;  // 1 MiB of fp32 rows a thread
constexpr int64_t kTileRows = 256;
constexpr int64_t kBlockTokens = 16;
constexpr int64_t kTableSize = 2048;  // slots of the hash table of cached rows, a power of two

struct AttentionScratch;
struct ListScratch;
struct ScoreScratch;

/// A row named by a token: slot of a pool.
struct RowName {
  int32_t pool, slot;  // pool 0 = window, 1 = extra
  friend bool operator==(RowName, RowName) = default;
};

/// Which rows of the block are decoded, and where.
struct RowTable {
  struct Entry {
    uint64_t key;
    uint32_t stamp;
    int32_t at;
  };
  Entry entries[kTableSize];
  uint32_t stamp;
  int32_t used;

  void reset() {
    for (Entry& e : entries) e.stamp = 0;
    stamp = 1, used = 0;
  }
  void clear() {
    if (++stamp == 0) reset();
    used = 0;
  }
  bool has(RowName row) const { return entries[position(row)].stamp == stamp; }
  /// Place of a row; `fresh` when it was not there.
  int32_t find(RowName row, bool& fresh) {
    Entry& e = entries[position(row)];
    fresh = e.stamp != stamp;
    if (fresh) e = {key_of(row), stamp, used++};
    return e.at;
  }

 private:
  static uint64_t key_of(RowName row) {
    return static_cast<uint64_t>(row.pool) << 32 | static_cast<uint32_t>(row.slot);
  }
  /// Its entry, or the free one where it would go.
  uint64_t position(RowName row) const {
    const uint64_t key = key_of(row);
    uint64_t at = (key * 0x9E3779B97F4A7C15u) >> 53;  // 11 bits
    while (entries[at].stamp == stamp && entries[at].key != key) at = (at + 1) % kTableSize;
    return at;
  }
};

/// Memory of one thread.
struct Buffers {
  RowTable* table;
  float* rows;    // [kCachedRows, 512]
  float* q;       // [heads, 512]
  float* o;       // [heads, 512]
  float* scores;  // [heads, pitch]
  RowName* last;  // rows of the token before, where the table still holds them
  const float** last_place;
  int64_t last_count;
  const float** place;  // of the rows of this token
};

int64_t most_rows(const RowSet& set) {
  return set.index.data ? set.index.size[1] : 0;
}

void append_rows(const RowSet& set, int32_t pool, int64_t t, RowName* list, int64_t& count) {
  if (!set.index.data) return;
  const int32_t* index = set.index[t].data;
  const int64_t n = set.length.data ? set.length(t) : set.index.size[1];
  for (int64_t i = 0; i < n; ++i)
    if (index[i] >= 0) list[count++] = {pool, index[i]};
}

void decode(const SparseAttentionArgs& a, RowName row, float* out) {
  const KvPool& pool = row.pool ? a.extra.pool : a.window.pool;
  const std::byte* scales = a.format == RowFormat::v4 ? pool.row_scales(row.slot) : nullptr;
  cpu::decode_kv_row(a.format, pool.row_data(a.format, row.slot), scales, out);
}

void write_head(const SparseAttentionArgs& a, int64_t t, int64_t h, const float* o, float den, const float* cosine,
                const float* sine) {
  alignas(64) bf16 row[kHeadDim];
  bf16* out = a.out.data ? a.out[t][h].data : row;
  cpu::attention_output(o, den, cosine, sine, out);
  if (!a.out_codes.data) return;
  alignas(64) float wide[kHeadDim];
  cpu::widen(out, kHeadDim, wide);
  cpu::act_quant(wide, kHeadDim, a.out_codes[t][h].data, a.out_scale[t][h].data);
}

/// Attention of one token over `count` rows; rows(begin, end) gives pointers to the fp32 rows of that part of its list.
template <typename Rows>
void attend(const SparseAttentionArgs& a, int64_t t, int64_t h0, int64_t h1, int64_t count, const Buffers& b,
            const Rows& rows) {
  const int64_t heads = h1 - h0, pitch = cpu::round_up(std::max<int64_t>(count, 1), 16);
  for (int64_t h = 0; h < heads; ++h) cpu::load_query(a.q[t][h0 + h].data, b.q + h * kHeadDim);
  for (int64_t i = 0; i < count; i += kTileRows) {
    const int64_t end = std::min(count, i + kTileRows);
    cpu::attention_scores(b.q, heads, rows(i, end), end - i, a.scale, b.scores + i, pitch);
  }
  float cosine[kRopeDim / 2], sine[kRopeDim / 2];
  if (a.position.data) cpu::cosines_and_sines(a.position(t), a.rope_freq.data, cosine, sine);
  const float* c = a.position.data ? cosine : nullptr;
  if (count == 0) std::fill_n(b.o, heads * kHeadDim, 0.0f);
  for (int64_t i = 0, h = 0; h < heads && count > 0; ++h, i += pitch) {
    const auto [top, sum] = cpu::attention_softmax(b.scores + i, count);
    b.q[h] = sum + (a.sink.data ? std::exp(a.sink(h0 + h) - top) : 0.0f);  // the query is not needed any more
    if (a.lse.data) a.lse(t, h0 + h) = top + std::log(sum);
  }
  for (int64_t i = 0; i < count; i += kTileRows) {
    const int64_t end = std::min(count, i + kTileRows);
    cpu::attention_values(b.scores + i, pitch, heads, rows(i, end), end - i, i == 0, b.o);
  }
  for (int64_t h = 0; h < heads; ++h) {
    if (count == 0 && a.lse.data) a.lse(t, h0 + h) = -std::numeric_limits<float>::infinity();
    write_head(a, t, h0 + h, b.o + h * kHeadDim, count ? b.q[h] : 1.0f, c, sine);
  }
}

/// Makes b.place point to the fp32 rows of a list, decoding those that are new to the block. Most rows follow each
/// other as in the list of the token before, which saves looking them up.
void find_rows(const SparseAttentionArgs& a, Buffers& b, const RowName* list, int64_t count, bool alone) {
  int64_t old = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (alone) {
      decode(a, list[i], b.rows + i * kHeadDim);
      b.place[i] = b.rows + i * kHeadDim;
      continue;
    }
    while (old < b.last_count && b.last[old].pool == list[i].pool && b.last[old].slot < list[i].slot) ++old;
    if (old < b.last_count && b.last[old] == list[i]) {
      b.place[i] = b.last_place[old++];
      continue;
    }
    if (b.table->used == kCachedRows && !b.table->has(list[i])) {
      b.table->clear();  // full: start again with the rows of this token
      b.last_count = 0;
      i = -1;
      continue;
    }
    bool fresh;
    float* row = b.rows + int64_t{b.table->find(list[i], fresh)} * kHeadDim;
    if (fresh) decode(a, list[i], row);
    b.place[i] = row;
  }
}

/// Tokens [t0, t1), heads [h0, h1) on this thread.
void attend_tokens(const SparseAttentionArgs& a, int64_t t0, int64_t t1, int64_t h0, int64_t h1) {
  const int64_t most = most_rows(a.window) + most_rows(a.extra), heads = h1 - h0;
  cpu::Carver fixed(
      cpu::thread_scratch<AttentionScratch>(sizeof(RowTable) + sizeof(float) * kCachedRows * kHeadDim + 64));
  Buffers b{};
  b.rows = fixed.take<float>(kCachedRows * kHeadDim);
  b.table = new (fixed.take<RowTable>(1)) RowTable;
  b.q = reinterpret_cast<float*>(cpu::thread_scratch<ScoreScratch>(
      sizeof(float) * static_cast<size_t>(heads * (2 * kHeadDim + cpu::round_up(most + 1, 16)))));
  b.o = b.q + heads * kHeadDim;
  b.scores = b.o + heads * kHeadDim;
  const int64_t list_rows = std::max(most, kTileRows);
  cpu::Carver lists(cpu::thread_scratch<ListScratch>(
      static_cast<size_t>(list_rows) * 2 * (sizeof(RowName) + sizeof(const float*)) + 4 * 64));
  auto* list = lists.take<RowName>(list_rows);
  b.last = lists.take<RowName>(list_rows);
  b.place = lists.take<const float*>(list_rows);
  b.last_place = lists.take<const float*>(list_rows);
  const bool alone = t1 - t0 == 1;
  if (!alone) b.table->reset();
  for (int64_t t = t0; t < t1; ++t) {
    int64_t count = 0;
    append_rows(a.window, 0, t, list, count);
    append_rows(a.extra, 1, t, list, count);
    if (count > kCachedRows) {
      attend(a, t, h0, h1, count, b, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          decode(a, list[i], b.rows + (i - begin) * kHeadDim);
          b.place[i - begin] = b.rows + (i - begin) * kHeadDim;
        }
        return static_cast<const float* const*>(b.place);
      });
      if (!alone) b.table->clear();
      b.last_count = 0;
      continue;
    }
    find_rows(a, b, list, count, alone);
    attend(a, t, h0, h1, count, b, [&](int64_t begin, int64_t) { return b.place + begin; });
    std::swap(list, b.last);
    std::swap(b.place, b.last_place);
    b.last_count = count;
  }
}

}  // namespace

void sparse_attention_cpu(const SparseAttentionArgs& a, const Launch& l) {
  if (!cpu::have_simd()) return sparse_attention_ref(a, l);
  const int64_t tokens = a.q.size[0], heads = a.q.size[1];
  if (tokens <= 0 || heads <= 0) return;
  const double rows = static_cast<double>(most_rows(a.window) + most_rows(a.extra));
  const double cost = static_cast<double>(tokens) * rows * (static_cast<double>(heads) * 2 * kHeadDim + 6 * kHeadDim);
  const int64_t threads = thread_count();
  if (tokens >= 4 * threads || heads == 1) {
    cpu::split(tokens, std::min(kBlockTokens, (tokens + threads - 1) / threads), cost,
               [&](int64_t begin, int64_t end) { attend_tokens(a, begin, end, 0, heads); });
    return;
  }
  // Few tokens: pieces of the heads of each token. Every piece decodes the rows it reads.
  const int64_t step = std::max<int64_t>(1, std::min<int64_t>(heads, (heads * tokens + threads - 1) / threads));
  const int64_t pieces = (heads + step - 1) / step;
  cpu::split(tokens * pieces, 1, cost, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t t = i / pieces, h = i % pieces * step;
      attend_tokens(a, t, t + 1, h, std::min(heads, h + step));
    }
  });
}

}  // namespace fathom::ops

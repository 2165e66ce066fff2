#include "ops/sparse_attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

namespace fathom::ops {
namespace {

/// Fast normal-like numbers: bench-sized pools hold tens of millions of them.
struct Random {
  uint64_t state;
  uint64_t next() {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
  }
  float uniform() { return static_cast<float>(next() >> 40) * 0x1p-24f; }
  float normal() {  // sum of four 16-bit uniforms, variance 1
    const uint64_t u = next();
    const auto sum = static_cast<float>((u & 0xFFFF) + (u >> 16 & 0xFFFF) + (u >> 32 & 0xFFFF) + (u >> 48));
    return (sum * (1.0f / 65536) - 2.0f) * 1.7320508f;
  }
  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }
};

void fill_row(KvPool pool, const SparseCaseShape& s, int64_t slot, Random& random) {
  const RowFormat format = s.format;
  std::byte* data = pool.row_data(format, slot);
  if (format == RowFormat::bf16) {
    for (int i = 0; i < kHeadDim; ++i) {
      const bf16 v = to_bf16(random.normal());
      std::memcpy(data + 2 * i, &v, 2);
    }
    return;
  }
  std::byte* scales = pool.row_scales(slot);
  for (int group = 0; group < kKvScales; ++group) {
    float value[kKvGroup], most = 0;
    for (float& v : value) v = random.normal(), most = std::max(most, std::fabs(v));
    e8m0 scale = e4m3_scale(most);
    const float inverse = reciprocal(scale);
    for (int i = 0; i < kKvGroup; ++i) {
      uint8_t code = to_e4m3(value[i] * inverse).bits;
      if (s.code_limit) code = static_cast<uint8_t>(random.below(s.code_limit) | random.below(2) << 7);
      data[group * kKvGroup + i] = std::byte{code};
    }
    if (s.largest_scale && random.below(50) == 0) scale.bits = static_cast<uint8_t>(s.largest_scale - random.below(6));
    scales[group] = std::byte{scale.bits};
  }
  scales[kKvScales] = std::byte{0xFF};  // the pad byte may hold anything
  for (int i = 0; i < kRopeDim; ++i) {
    const bf16 v = to_bf16(random.normal());
    std::memcpy(data + kNopeDim + 2 * i, &v, 2);
  }
}

/// A pool with every slot filled, and indices into it.
void make_rows(const SparseCaseShape& s, int page_rows, int most, std::vector<std::byte>& storage,
               std::vector<int32_t>& index, Random& random) {
  const int64_t slots = std::max<int64_t>(int64_t{s.tokens} * most / s.queries_per_request + page_rows, page_rows);
  const int64_t pages = (slots + page_rows - 1) / page_rows;
  const int64_t stride = page_bytes(s.format, page_rows) + s.padding * 16;
  storage.assign(pages * stride, std::byte{0xFF});
  const KvPool pool{storage.data(), stride, page_rows};
  for (int64_t slot = 0; slot < pages * page_rows; ++slot) fill_row(pool, s, slot, random);
  index.resize(int64_t{s.tokens} * most);
  for (auto& i : index) i = random.uniform() < s.masked ? -1 : random.below(static_cast<int>(pages * page_rows));
}

double row_value(const SparseCase& c, const KvPool& pool, int64_t slot, int channel) {
  const std::byte* data = pool.row_data(c.shape.format, slot);
  if (c.shape.format == RowFormat::v4 && channel < kNopeDim) {
    const double code = to_float(e4m3{static_cast<uint8_t>(data[channel])});
    return std::ldexp(code, static_cast<int>(pool.row_scales(slot)[channel / kKvGroup]) - 127);
  }
  const int at = c.shape.format == RowFormat::v4 ? kNopeDim + 2 * (channel - kNopeDim) : 2 * channel;
  bf16 v;
  std::memcpy(&v, data + at, 2);
  return to_float(v);
}

void append_rows(const SparseCase& c, const RowSet& rows, int token, std::vector<double>& values) {
  if (!rows.index.data) return;
  const int64_t n = rows.length.data ? rows.length(token) : rows.index.size[1];
  for (int64_t i = 0; i < n; ++i) {
    const int32_t slot = rows.index(token, i);
    if (slot < 0) continue;
    for (int channel = 0; channel < kHeadDim; ++channel) values.push_back(row_value(c, rows.pool, slot, channel));
  }
}

void turn_back(const SparseCase& c, int token, double* o) {
  for (int pair = 0; pair < kRopeDim / 2; ++pair) {
    const double angle = static_cast<float>(c.position[token]) * c.rope_freq[pair];
    double &a = o[kNopeDim + 2 * pair], &b = o[kNopeDim + 2 * pair + 1];
    const double x = a * std::cos(angle) + b * std::sin(angle);
    b = b * std::cos(angle) - a * std::sin(angle);
    a = x;
  }
}

}  // namespace

SparseCase make_sparse_case(const SparseCaseShape& s) {
  Random random{s.seed * 0x9E3779B97F4A7C15u + 0x1234567};
  for (int i = 0; i < 20; ++i) random.next();
  SparseCase c;
  c.shape = s;
  c.q.resize(int64_t{s.tokens} * (s.heads * (kHeadDim + s.padding * 8) + s.padding * 8));
  for (auto& v : c.q) v = to_bf16(random.normal() * static_cast<float>(s.query_scale));
  if (s.window_most) make_rows(s, s.window_page, s.window_most, c.window_pool, c.window_index, random);
  if (s.extra_most) make_rows(s, s.extra_page, s.extra_most, c.extra_pool, c.extra_index, random);
  c.window_length.assign(s.window_length.begin(), s.window_length.end());
  c.extra_length.assign(s.extra_length.begin(), s.extra_length.end());
  for (int h = 0; h < s.heads; ++h) c.sink.push_back(random.normal() * 2);
  for (int t = 0; t < s.tokens; ++t) c.position.push_back(t % 3 == 2 ? 1000003 + t : 17 + random.below(100000));
  for (int i = 0; i < kRopeDim / 2; ++i) c.rope_freq.push_back(std::pow(10000.0f, -static_cast<float>(i) / 32));
  c.out.resize(c.q.size());
  c.lse.resize(int64_t{s.tokens} * s.heads);
  c.codes.resize(s.codes ? int64_t{s.tokens} * s.heads * kHeadDim : 0);
  c.code_scale.resize(s.codes ? int64_t{s.tokens} * s.heads * 4 : 0);
  c.poison();
  return c;
}

void SparseCase::poison() {
  for (auto& v : out) v.bits = 0xFFC1;
  for (auto& v : lse) v = NAN;
  for (auto& v : codes) v.bits = 0x7F;
  for (auto& v : code_scale) v.bits = 255;
}

SparseAttentionArgs SparseCase::args() {
  SparseAttentionArgs a;
  const int64_t tokens = shape.tokens, heads = shape.heads, head_stride = kHeadDim + shape.padding * 8;
  a.q = View<const bf16, 3>(q.data(), tokens, heads, kHeadDim);
  a.out = View<bf16, 3>(out.data(), tokens, heads, kHeadDim);
  a.q.stride[1] = a.out.stride[1] = head_stride;
  a.q.stride[0] = a.out.stride[0] = heads * head_stride + shape.padding * 8;
  a.format = shape.format;
  const auto rows = [&](int most, int page, std::vector<std::byte>& pool, std::vector<int32_t>& index,
                        std::vector<int32_t>& length) {
    RowSet set;
    if (!most) return set;
    set.pool = {pool.data(), page_bytes(shape.format, page) + shape.padding * 16, page};
    set.index = View<const int32_t, 2>(index.data(), tokens, most);
    if (!length.empty()) set.length = View<const int32_t, 1>(length.data(), tokens);
    return set;
  };
  a.window = rows(shape.window_most, shape.window_page, window_pool, window_index, window_length);
  a.extra = rows(shape.extra_most, shape.extra_page, extra_pool, extra_index, extra_length);
  if (shape.sink) a.sink = View<const float, 1>(sink.data(), heads);
  a.scale = 1.0f / std::sqrt(512.0f);
  a.queries_per_request = shape.queries_per_request;
  if (shape.rotate) {
    a.position = View<const int32_t, 1>(position.data(), tokens);
    a.rope_freq = View<const float, 1>(rope_freq.data(), kRopeDim / 2);
  }
  a.lse = View<float, 2>(lse.data(), tokens, heads);
  if (shape.codes) {
    a.out_codes = View<e4m3, 3>(codes.data(), tokens, heads, kHeadDim);
    a.out_scale = View<e8m0, 3>(code_scale.data(), tokens, heads, 4);
  }
  return a;
}

SparseReference sparse_reference(const SparseCase& c, int token) {
  const SparseAttentionArgs a = const_cast<SparseCase&>(c).args();
  std::vector<double> rows;
  append_rows(c, a.window, token, rows);
  append_rows(c, a.extra, token, rows);
  const int64_t n = static_cast<int64_t>(rows.size()) / kHeadDim;
  SparseReference r;
  r.out.assign(int64_t{c.shape.heads} * kHeadDim, 0);
  r.lse.assign(c.shape.heads, -INFINITY);
  if (n == 0) return r;
  std::vector<double> score(n);
  for (int h = 0; h < c.shape.heads; ++h) {
    double query[kHeadDim];
    for (int i = 0; i < kHeadDim; ++i) query[i] = to_float(a.q(token, h, i));
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; ++i) {
      double dot = 0;
      for (int k = 0; k < kHeadDim; ++k) dot += query[k] * rows[i * kHeadDim + k];
      score[i] = dot * static_cast<double>(a.scale);
      most = std::max(most, score[i]);
    }
    double* o = r.out.data() + int64_t{h} * kHeadDim;
    for (int64_t i = 0; i < n; ++i) {
      const double p = std::exp(score[i] - most);
      sum += p;
      for (int k = 0; k < kHeadDim; ++k) o[k] += p * rows[i * kHeadDim + k];
    }
    r.lse[h] = most + std::log(sum);
    const double denominator = sum + (a.sink.data ? std::exp(static_cast<double>(c.sink[h]) - most) : 0.0);
    for (int k = 0; k < kHeadDim; ++k) o[k] /= denominator;
    if (c.shape.rotate) turn_back(c, token, o);
  }
  return r;
}

std::vector<SparseReference> sparse_references(const SparseCase& c, int step) {
  std::vector<SparseReference> all;
  for (int token = 0; token < c.shape.tokens; token += step) all.push_back(sparse_reference(c, token));
  return all;
}

SparseComparison compare_sparse(const SparseCase& c, int step) {
  return compare_sparse(c, sparse_references(c, step), step);
}

SparseComparison compare_sparse(const SparseCase& c, const std::vector<SparseReference>& references, int step) {
  const SparseAttentionArgs a = const_cast<SparseCase&>(c).args();
  SparseComparison result;
  const auto fail = [&](const char* what, int token, int head) {
    if (result.failure.empty())
      result.failure = std::string(what) + " at token " + std::to_string(token) + ", head " + std::to_string(head);
  };
  double error = 0, norm = 0, rounding = 0;
  for (int token = 0; token < c.shape.tokens; token += step) {
    const SparseReference& r = references[token / step];
    for (int h = 0; h < c.shape.heads; ++h) {
      const double lse = a.lse(token, h), want = r.lse[h];
      if (std::isinf(want) ? lse != want : !(std::fabs(lse - want) < 1e-4 * (1 + std::fabs(want))))
        fail("lse", token, h);
      if (std::isfinite(want)) result.worst_lse = std::max(result.worst_lse, std::fabs(lse - want));
      float most = 0;
      for (int k = 0; k < kHeadDim; ++k) {
        const double got = to_float(a.out(token, h, k)), exact = r.out[int64_t{h} * kHeadDim + k];
        if (!std::isfinite(got)) fail("output not finite", token, h);
        const double rounded = round_bf16(static_cast<float>(exact));
        error += (got - exact) * (got - exact), norm += exact * exact;
        rounding += (rounded - exact) * (rounded - exact);
        most = std::max(most, std::fabs(static_cast<float>(got)));
        if (k % 128 != 127 || !c.shape.codes) continue;
        const e8m0 scale = e4m3_scale(most);
        if (a.out_scale(token, h, k / 128) != scale) fail("scale of codes", token, h);
        for (int i = k - 127; i <= k; ++i)
          if (a.out_codes(token, h, i) != to_e4m3(to_float(a.out(token, h, i)) * reciprocal(scale)))
            fail("code", token, h);
        most = 0;
      }
    }
  }
  result.relative_l2 = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  result.rounding_l2 = norm > 0 ? std::sqrt(rounding / norm) : 0;
  if (!std::isfinite(result.relative_l2)) fail("relative error not finite", 0, 0);
  return result;
}

}  // namespace fathom::ops

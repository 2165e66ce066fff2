// What several generators share: strided views, KV pools, RoPE, exact quantisation of expected values.
#pragma once

#include <cmath>

#include "lab/case.h"
#include "ops/kv_rows.h"

namespace fathom::lab {

/// A [rows, columns] matrix (or stack of them) whose rows lie `stride` elements apart.
struct Strides {
  int64_t rows, columns, stride;
  int64_t elements() const { return rows == 0 ? 0 : (rows - 1) * stride + columns; }
};
/// Dense, or (in random cases) with up to four times `unit` elements of padding between rows.
Strides strided(int64_t rows, int64_t columns, int64_t unit, Rng& rng);
inline Strides dense(int64_t rows, int64_t columns) {
  return {rows, columns, columns};
}

template <typename T>
View<T, 2> view2(T* p, const Strides& s) {
  View<T, 2> v(p, s.rows, s.columns);
  v.stride[0] = s.stride;
  return v;
}

/// [a, b, columns] where row (i, j) is row i * b + j of `s`.
template <typename T>
View<T, 3> view3(T* p, int64_t a, int64_t b, const Strides& s) {
  View<T, 3> v(p, a, b, s.columns);
  v.stride[1] = s.stride;
  v.stride[0] = s.stride * b;
  return v;
}

/// Token counts with the edges well represented: 1, 2, odd, around tile sizes.
int64_t some_tokens(Rng& rng);

/// The 32 base frequencies of base^(-2i/64).
std::vector<float> rope_frequencies(double base);

/// x[0:64] rotated by position * frequency (conjugate when `inverse`), in double from the fp32 angle.
void rope(double* x, int32_t position, std::span<const float> frequencies, bool inverse);

// KV pools -----------------------------------------------------------------------------------------------------------

struct PoolShape {
  ops::RowFormat format = ops::RowFormat::v4;
  int32_t page_rows = 64;
  int64_t pages = 1;
  int64_t stride = 0;  // bytes

  int64_t rows() const { return page_rows * pages; }
  /// The address range ends with the last page, without the slack of its stride.
  int64_t bytes() const { return pages == 0 ? 0 : (pages - 1) * stride + ops::page_bytes(format, page_rows); }
  ops::KvPool at(std::byte* p) const { return {p, stride, page_rows}; }
};

/// Pages for at least `rows` rows; sometimes with room between pages.
PoolShape some_pool(ops::RowFormat format, int32_t page_rows, int64_t rows, Rng& rng);

/// Fills a row with values of standard deviation `sigma`, quantised as a cache holds them; `wild`: any finite codes.
void fill_row(const ops::KvPool& pool, ops::RowFormat format, int64_t slot, float sigma, bool wild, Rng& rng);
/// Fills a whole pool quickly with finite rows (for cases at real sizes).
void fill_pool(const PoolShape& shape, std::span<std::byte> bytes, Rng& rng);
/// The 512 values of a row.
void read_row(const ops::KvPool& pool, ops::RowFormat format, int64_t slot, double* values);

/// act_quant of one group: the codes and the scale that `values` must have.
e8m0 quantize_group(std::span<const float> values, e4m3* codes);

/// Property: codes[T, K] and scale[T, K/128] are exactly act_quant of the bf16 rows x[T, K] that the same run produced.
/// Returns what is wrong, or nothing.
std::string codes_follow(std::string_view name, const View<const bf16, 2>& x, const View<const e4m3, 2>& codes,
                         const View<const e8m0, 2>& scale);

/// Property: quantised rows are those of the reference but for near ties: at most `share` of the values differ, and the
/// relative L2 of the decoded values is at most `limit`. `value(addresses, row, column)` decodes.
std::string decoded_close(std::string_view name, int64_t rows, int64_t columns, double share, double limit,
                          const std::function<double(const Addresses&, int64_t, int64_t)>& value, const Addresses& got,
                          const Addresses& want);

/// Property of a pool of cache rows after a write of the rows `slots` (-1 skipped): those rows are close to the
/// reference's (`read` decodes the `columns` values of one), every other byte is as the reference left it. `owns(slot,
/// visit)` calls visit(offset, bytes) for the parts of a row, pad bytes included.
struct PoolWrite {
  int64_t columns = 0;
  std::function<void(const std::byte* pool, int64_t slot, double* values)> read;
  std::function<void(int64_t slot, const std::function<void(int64_t offset, int64_t bytes)>& visit)> owns;
};
std::string pool_close(std::string_view name, const PoolWrite& write, std::span<const std::byte> got,
                       std::span<const std::byte> want, std::span<const int32_t> slots);
PoolWrite kv_pool_write(const PoolShape& shape);

}  // namespace fathom::lab

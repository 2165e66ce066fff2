#include "lab/cases/common.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace fathom::lab {

using ops::RowFormat;

Strides strided(int64_t rows, int64_t columns, int64_t unit, Rng& rng) {
  return {rows, columns, columns + (rng.chance(0.3) ? unit * rng.between(1, 4) : 0)};
}

int64_t some_tokens(Rng& rng) {
  if (rng.chance(0.6)) return rng.pick({1, 1, 2, 3, 5, 7, 8});
  return rng.pick({15, 16, 17, 31, 33, 64, 65});
}

std::vector<float> rope_frequencies(double base) {
  std::vector<float> f(32);
  for (int i = 0; i < 32; ++i) f[static_cast<size_t>(i)] = static_cast<float>(std::pow(base, -2.0 * i / 64));
  return f;
}

void rope(double* x, int32_t position, std::span<const float> frequencies, bool inverse) {
  for (size_t i = 0; i < 32; ++i) {
    const float angle = static_cast<float>(position) * frequencies[i];
    const double c = std::cos(static_cast<double>(angle)),
                 s = std::sin(static_cast<double>(angle)) * (inverse ? -1 : 1);
    const double a = x[2 * i], b = x[2 * i + 1];
    x[2 * i] = a * c - b * s;
    x[2 * i + 1] = a * s + b * c;
  }
}

PoolShape some_pool(RowFormat format, int32_t page_rows, int64_t rows, Rng& rng) {
  PoolShape shape{format, page_rows, (rows + page_rows - 1) / page_rows + rng.below(3), 0};
  const int64_t room = rng.chance(0.3) ? 64 * rng.between(1, 40) : 0;  // pages of several layers interleaved
  shape.stride = (ops::page_bytes(format, page_rows) + 31) / 32 * 32 + room;
  return shape;
}

e8m0 quantize_group(std::span<const float> values, e4m3* codes) {
  float largest = 0;
  for (float v : values) largest = std::max(largest, std::fabs(v));
  const e8m0 scale = e4m3_scale(largest);
  const float inverse = reciprocal(scale);
  for (size_t i = 0; i < values.size(); ++i)
    codes[i] = to_e4m3(std::min(448.0f, std::max(-448.0f, values[i] * inverse)));
  return scale;
}

namespace {

void fill_bf16_row(bf16* row, int64_t n, float sigma, Rng& rng) {
  for (int64_t i = 0; i < n; ++i) row[i] = to_bf16(sigma * rng.normal());
}

}  // namespace

void fill_row(const ops::KvPool& pool, RowFormat format, int64_t slot, float sigma, bool wild, Rng& rng) {
  std::byte* data = pool.row_data(format, slot);
  if (format == RowFormat::bf16) {
    fill_bf16_row(reinterpret_cast<bf16*>(data), ops::kHeadDim, sigma, rng);
    return;
  }
  std::byte* scales = pool.row_scales(slot);
  auto* codes = reinterpret_cast<e4m3*>(data);
  if (wild) fill_codes(std::span<e4m3>(codes, ops::kNopeDim), rng);
  for (int g = 0; g < ops::kKvScales; ++g) {
    e8m0 scale;
    if (wild) {
      fill_scales({&scale, 1}, -14, -7, rng);
    } else {
      float group[ops::kKvGroup];
      for (float& v : group) v = round_bf16(sigma * rng.normal());
      scale = quantize_group(group, codes + g * ops::kKvGroup);
    }
    scales[g] = static_cast<std::byte>(scale.bits);
  }
  scales[ops::kKvScales] = static_cast<std::byte>(rng.next());  // the pad byte means nothing
  fill_bf16_row(reinterpret_cast<bf16*>(data + ops::kNopeDim), ops::kRopeDim, sigma, rng);
}

void fill_pool(const PoolShape& shape, std::span<std::byte> bytes, Rng& rng) {
  const ops::KvPool pool = shape.at(bytes.data());
  if (shape.format == RowFormat::bf16) {
    for (int64_t page = 0; page < shape.pages; ++page)
      fill_normal(std::span(reinterpret_cast<bf16*>(bytes.data() + page * shape.stride),
                            static_cast<size_t>(shape.page_rows) * ops::kHeadDim),
                  1.0f, rng);
    return;
  }
  // Codes of normal values around 448 / 3.5, so that a scale of 2^-7 gives values near 1.
  std::vector<e4m3> table(65536);
  std::vector<float> values(table.size());
  fill_normal(values, 128.0f, rng);
  for (size_t i = 0; i < table.size(); ++i) table[i] = to_e4m3(std::min(448.0f, std::max(-448.0f, values[i])));
  for (int64_t slot = 0; slot < shape.rows(); ++slot) {
    auto* codes = reinterpret_cast<e4m3*>(pool.row_data(shape.format, slot));
    for (int i = 0; i < ops::kNopeDim; i += 4) {
      const uint64_t word = rng.next();
      for (int k = 0; k < 4; ++k) codes[i + k] = table[word >> (16 * k) & 0xFFFF];
    }
    std::span rope(reinterpret_cast<bf16*>(codes + ops::kNopeDim), size_t{ops::kRopeDim});
    for (bf16& v : rope) v = to_bf16(values[rng.next() & 0xFFFF] * (1.0f / 128));
    std::byte* scales = pool.row_scales(slot);
    for (int g = 0; g < 8; ++g) scales[g] = static_cast<std::byte>(127 - 7 - rng.below(2));
  }
}

void read_row(const ops::KvPool& pool, RowFormat format, int64_t slot, double* values) {
  const std::byte* data = pool.row_data(format, slot);
  if (format == RowFormat::bf16) {
    for (int i = 0; i < ops::kHeadDim; ++i) values[i] = element(DType::bf16, data, i);
    return;
  }
  const std::byte* scales = pool.row_scales(slot);
  for (int i = 0; i < ops::kNopeDim; ++i)
    values[i] = element(DType::e4m3, data, i) * std::ldexp(1.0, static_cast<int>(scales[i / ops::kKvGroup]) - 127);
  for (int i = 0; i < ops::kRopeDim; ++i) values[ops::kNopeDim + i] = element(DType::bf16, data + ops::kNopeDim, i);
}

std::string codes_follow(std::string_view name, const View<const bf16, 2>& x, const View<const e4m3, 2>& codes,
                         const View<const e8m0, 2>& scale) {
  std::vector<float> group(128);
  std::vector<e4m3> want(128);
  for (int64_t t = 0; t < x.size[0]; ++t) {
    for (int64_t g = 0; g < x.size[1] / 128; ++g) {
      for (int64_t i = 0; i < 128; ++i) group[static_cast<size_t>(i)] = to_float(x(t, g * 128 + i));
      const e8m0 want_scale = quantize_group(group, want.data());
      if (scale(t, g) != want_scale)
        return fmt::format("{}: scale of row {}, group {} is {}, act_quant of the row gives {}", name, t, g,
                           scale(t, g).bits, want_scale.bits);
      for (int64_t i = 0; i < 128; ++i) {
        const e4m3 c = codes(t, g * 128 + i), w = want[static_cast<size_t>(i)];
        const bool both_zero = (c.bits & 0x7F) == 0 && (w.bits & 0x7F) == 0;
        if (c != w && !both_zero)
          return fmt::format("{}: code of row {}, column {} is {}, act_quant of the row gives {}", name, t, g * 128 + i,
                             to_float(c), to_float(w));
      }
    }
  }
  return "";
}

std::string decoded_close(std::string_view name, int64_t rows, int64_t columns, double share, double limit,
                          const std::function<double(const Addresses&, int64_t, int64_t)>& value, const Addresses& got,
                          const Addresses& want) {
  double error = 0, norm = 0;
  int64_t differing = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < columns; ++i) {
      const double g = value(got, r, i), w = value(want, r, i);
      if (std::isnan(g) != std::isnan(w))
        return fmt::format("{}: row {}, column {}: got {}, want {}", name, r, i, g, w);
      if (std::isnan(w)) continue;
      differing += g != w;
      error += (g - w) * (g - w), norm += w * w;
    }
  }
  const double relative = norm > 0 ? std::sqrt(error / norm) : std::sqrt(error);
  // A few values may always differ: a share of a small case is less than one value.
  const double most = share * static_cast<double>(rows * columns) + 2;
  if (static_cast<double>(differing) > most)
    return fmt::format("{}: {} of {} values differ, at most {:.0f} may", name, differing, rows * columns, most);
  if (relative > limit)
    return fmt::format("{}: relative L2 {:.3g} of the decoded values, limit {:.3g}", name, relative, limit);
  return "";
}

std::string pool_close(std::string_view name, const PoolWrite& write, std::span<const std::byte> got,
                       std::span<const std::byte> want, std::span<const int32_t> slots) {
  std::vector<bool> owned(got.size(), false);
  std::vector<int32_t> written;
  for (int32_t slot : slots) {
    if (slot < 0) continue;
    written.push_back(slot);
    write.owns(slot, [&](int64_t offset, int64_t bytes) {
      for (int64_t i = 0; i < bytes; ++i) owned[static_cast<size_t>(offset + i)] = true;
    });
  }
  for (size_t i = 0; i < got.size(); ++i)
    if (!owned[i] && got[i] != want[i])
      return fmt::format("{}: byte {}, which belongs to no written row, was changed", name, i);
  const auto rows = static_cast<int64_t>(written.size());
  std::vector<double> decoded[2];
  for (int side = 0; side < 2; ++side) {
    decoded[side].resize(static_cast<size_t>(rows * write.columns));
    for (int64_t r = 0; r < rows; ++r)
      write.read((side == 0 ? got : want).data(), written[static_cast<size_t>(r)],
                 decoded[side].data() + r * write.columns);
  }
  const Addresses first{reinterpret_cast<std::byte*>(decoded[0].data())},
      second{reinterpret_cast<std::byte*>(decoded[1].data())};
  const auto value = [&](const Addresses& a, int64_t r, int64_t i) {
    return reinterpret_cast<const double*>(a[0])[r * write.columns + i];
  };
  return decoded_close(name, rows, write.columns, 0.02, 0.02, value, first, second);
}

PoolWrite kv_pool_write(const PoolShape& shape) {
  PoolWrite write;
  write.columns = ops::kHeadDim;
  write.read = [shape](const std::byte* pool, int64_t slot, double* values) {
    read_row(shape.at(const_cast<std::byte*>(pool)), shape.format, slot, values);
  };
  write.owns = [shape](int64_t slot, const std::function<void(int64_t, int64_t)>& visit) {
    auto* const zero = reinterpret_cast<std::byte*>(uintptr_t{1} << 20);  // any address: only differences count
    const ops::KvPool pool = shape.at(zero);
    visit(pool.row_data(shape.format, slot) - zero,
          shape.format == RowFormat::bf16 ? 2 * ops::kHeadDim : ops::kV4DataBytes);
    if (shape.format == RowFormat::v4) visit(pool.row_scales(slot) - zero, ops::kV4ScaleBytes);
  };
  return write;
}

}  // namespace fathom::lab

#include "lab/buffer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace fathom::lab {

size_t element_bytes(DType type) {
  switch (type) {
    case DType::bf16:
      return 2;
    case DType::f32:
    case DType::i32:
      return 4;
    default:
      return 1;
  }
}

std::string_view dtype_name(DType type) {
  switch (type) {
    case DType::bf16:
      return "bf16";
    case DType::f32:
      return "f32";
    case DType::i32:
      return "i32";
    case DType::e4m3:
      return "e4m3";
    case DType::e8m0:
      return "e8m0";
    case DType::e2m1x2:
      return "e2m1x2";
    case DType::bytes:
      return "bytes";
  }
  return "?";
}

void poison(DType type, std::span<std::byte> bytes) {
  if (bytes.empty()) return;
  // All ones is NaN in bf16, f32, e4m3 and e8m0. -1 means "no row" as an integer, so integers get another pattern.
  const bool floating = type == DType::bf16 || type == DType::f32 || type == DType::e4m3 || type == DType::e8m0;
  std::memset(bytes.data(), floating ? 0xFF : 0x6B, bytes.size());
}

double element(DType type, const std::byte* data, int64_t at) {
  const std::byte* p = data + at * static_cast<int64_t>(element_bytes(type));
  switch (type) {
    case DType::bf16: {
      bf16 v;
      std::memcpy(&v, p, 2);
      return to_float(v);
    }
    case DType::f32: {
      float v;
      std::memcpy(&v, p, 4);
      return v;
    }
    case DType::i32: {
      int32_t v;
      std::memcpy(&v, p, 4);
      return v;
    }
    case DType::e4m3:
      return to_float(e4m3{static_cast<uint8_t>(*p)});
    default:
      return static_cast<double>(static_cast<uint8_t>(*p));
  }
}

namespace {

/// bf16 bit patterns in the order of their values, so that a difference counts steps.
int32_t ordered(double value) {
  const uint32_t bits = to_bf16(static_cast<float>(value)).bits;
  return bits & 0x8000 ? -static_cast<int32_t>(bits & 0x7FFF) : static_cast<int32_t>(bits);
}

class Comparison {
 public:
  Comparison(const Buffer& buffer, std::span<const std::byte> got, std::span<const std::byte> want)
      : buffer_(buffer), got_(got), want_(want), width_(element_bytes(buffer.type)) {}

  Difference run() {
    const int64_t n = static_cast<int64_t>(want_.size() / width_), row = std::max<int64_t>(1, buffer_.row);
    for (int64_t begin = 0; begin < n; begin += row) judge_row(begin, std::min(n, begin + row));
    result_.relative_l2 = total_norm_ > 0 ? std::sqrt(total_error_ / total_norm_) : std::sqrt(total_error_);
    if (buffer_.tolerance.kind == Tolerance::Kind::relative_l2) {
      const double limit = buffer_.tolerance.limit;
      if (!(result_.relative_l2 <= limit))
        bad(fmt::format("relative L2 {:.3g} over the limit {:.3g}", result_.relative_l2, limit));
      // A row is judged against its own size, but not below a hundredth of the typical row.
      const double floor = rows_ > 0 ? 1e-4 * total_norm_ / static_cast<double>(rows_) : 0;
      if (const double error = worst_row_error(floor); error > 4 * limit)
        bad(fmt::format("row {}: relative L2 {:.3g} over four times the limit {:.3g}", worst_row_, error, limit));
    }
    return result_;
  }

 private:
  void bad(std::string message) {
    if (result_.ok) result_.message = fmt::format("{}: {}", buffer_.name, message);
    result_.ok = false;
  }

  void judge_row(int64_t begin, int64_t end) {
    if (std::memcmp(got_.data() + begin * width_, want_.data() + begin * width_, (end - begin) * width_) == 0) {
      accumulate_equal(begin, end);
      return;
    }
    const std::vector<double>& least = buffer_.tolerance.least;
    const auto row = static_cast<size_t>(begin / std::max<int64_t>(1, buffer_.row));
    double largest = least.empty() ? 0 : least[std::min(row, least.size() - 1)], error = 0, norm = 0;
    for (int64_t i = begin; i < end; ++i)
      if (const double w = std::fabs(element(buffer_.type, want_.data(), i)); std::isfinite(w))
        largest = std::max(largest, w);
    for (int64_t i = begin; i < end; ++i) {
      const double g = element(buffer_.type, got_.data(), i), w = element(buffer_.type, want_.data(), i);
      if (std::memcmp(got_.data() + i * width_, want_.data() + i * width_, width_) != 0)
        judge_element(i, g, w, largest);
      if (std::isfinite(g) && std::isfinite(w)) error += (g - w) * (g - w), norm += w * w;
    }
    total_error_ += error, total_norm_ += norm, ++rows_;
    row_errors_.push_back({begin / std::max<int64_t>(1, buffer_.row), error, norm});
  }

  void accumulate_equal(int64_t begin, int64_t end) {
    if (buffer_.tolerance.kind == Tolerance::Kind::exact) return;
    double norm = 0;
    for (int64_t i = begin; i < end; ++i)
      if (const double w = element(buffer_.type, want_.data(), i); std::isfinite(w)) norm += w * w;
    total_norm_ += norm, ++rows_;
  }

  void judge_element(int64_t i, double g, double w, double largest) {
    ++result_.differing;
    const auto say = [&](std::string_view why) {
      bad(fmt::format("element {} (row {}, column {}): got {:.9g}, want {:.9g}{}", i, i / buffer_.row, i % buffer_.row,
                      g, w, why));
    };
    const Tolerance& t = buffer_.tolerance;
    if (t.kind == Tolerance::Kind::exact) return say("");
    if (std::isnan(g) && std::isnan(w)) return say(" (other NaN: one of them was not written)");
    if (!std::isfinite(g) || !std::isfinite(w)) return say(std::isnan(g) ? " (not written, or NaN)" : "");
    if (t.kind != Tolerance::Kind::bf16_ulp) return;
    const double steps = std::fabs(static_cast<double>(ordered(g)) - ordered(w));
    if (std::fabs(g - w) <= t.slack * largest) return;
    result_.worst_ulp = std::max(result_.worst_ulp, steps);
    if (steps > t.limit) say(fmt::format(": {} steps of bf16, {} allowed", steps, t.limit));
  }

  double worst_row_error(double floor) {
    double worst = 0;
    for (const auto& r : row_errors_) {
      const double relative = std::sqrt(r.error / std::max({r.norm, floor, 1e-300}));
      if (relative > worst) worst = relative, worst_row_ = r.row;
    }
    return worst;
  }

  struct RowError {
    int64_t row;
    double error, norm;
  };
  const Buffer& buffer_;
  std::span<const std::byte> got_, want_;
  size_t width_;
  Difference result_;
  double total_error_ = 0, total_norm_ = 0;
  int64_t rows_ = 0, worst_row_ = 0;
  std::vector<RowError> row_errors_;
};

}  // namespace

Difference compare(const Buffer& buffer, std::span<const std::byte> got, std::span<const std::byte> want) {
  return Comparison(buffer, got, want).run();
}

}  // namespace fathom::lab

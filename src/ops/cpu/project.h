// A product of all tokens with one or several weights, spread over the threads: the shape of every linear op.
#pragma once

#include <cstddef>
#include <cstdint>

#include <span>

#include "ops/cpu/product.h"

namespace fathom::ops::cpu {

/// Up to this many tokens a product is cut along the rows of its weight, beyond along the tokens.
inline constexpr int64_t kFewTokens = 64;

inline size_t project_workspace(int64_t tokens, int64_t columns) {
  return tokens > kFewTokens ? 0 : static_cast<size_t>(tokens * round_up(columns, 32)) * sizeof(float);
}

inline constexpr int64_t kTokenStep = 6;  // tokens of a full tile

struct ProjectX;
struct ProjectY;
struct ProjectRows;

/// Rows [t0, t1) of every part on this thread.
template <typename Prepare, typename Store>
void project_rows(int64_t t0, int64_t t1, std::span<const Matrix> parts, const Prepare& prepare, const Store& store) {
  constexpr int64_t kColumns = 128;
  const int64_t pitch = x_pitch(parts[0].columns);
  const int64_t most = std::clamp<int64_t>((512 << 10) / pitch / kTokenStep * kTokenStep, kTokenStep, 192);
  auto* x = reinterpret_cast<float*>(
      thread_scratch<ProjectX>(static_cast<size_t>(std::min(most, t1 - t0) * pitch) * sizeof(float)));
  auto* y = reinterpret_cast<float*>(thread_scratch<ProjectY>(static_cast<size_t>(most * kColumns) * sizeof(float)));
  auto** rows =
      reinterpret_cast<const float**>(thread_scratch<ProjectRows>(static_cast<size_t>(most) * sizeof(float*)));
  for (int64_t t = t0; t < t1; t += most) {
    const int64_t m = std::min(most, t1 - t);
    for (int64_t r = 0; r < m; ++r) {
      prepare(t + r, x + r * pitch);
      rows[r] = x + r * pitch;
    }
    for (size_t p = 0; p < parts.size(); ++p) {
      for (int64_t n = 0; n < parts[p].rows; n += kColumns) {
        const int64_t end = std::min(n + kColumns, parts[p].rows);
        multiply(parts[p], n, end, rows, m, y, kColumns);
        for (int64_t r = 0; r < m; ++r) store(p, t + r, n, end, y + r * kColumns);
      }
    }
  }
}

/// Few tokens: x once into `workspace`, then pieces of the rows of all parts.
template <typename Prepare, typename Store>
void project_columns(int64_t tokens, std::span<const Matrix> parts, const Prepare& prepare, const Store& store,
                     float* workspace) {
  constexpr int64_t kColumns = 128, kUnit = 32;
  const int64_t pitch = x_pitch(parts[0].columns);
  const float* rows[kFewTokens];
  int64_t units = 0;
  for (const Matrix& w : parts) units += (w.rows + kUnit - 1) / kUnit;
  for (int64_t t = 0; t < tokens; ++t) {
    prepare(t, workspace + t * pitch);
    rows[t] = workspace + t * pitch;
  }
  const double cost = static_cast<double>(units * kUnit * parts[0].columns) * static_cast<double>(tokens + 6);
  split(units, 1, cost, [&](int64_t begin, int64_t end) {
    auto* y =
        reinterpret_cast<float*>(thread_scratch<ProjectY>(static_cast<size_t>(tokens * kColumns) * sizeof(float)));
    int64_t base = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t count = (parts[p].rows + kUnit - 1) / kUnit;
      const int64_t from = std::max(begin - base, int64_t{0}) * kUnit;
      const int64_t to = std::min(std::min(end - base, count) * kUnit, parts[p].rows);
      base += count;
      for (int64_t n = from; n < to; n += kColumns) {
        const int64_t stop = std::min(n + kColumns, to);
        multiply(parts[p], n, stop, rows, tokens, y, kColumns);
        for (int64_t t = 0; t < tokens; ++t) store(p, t, n, stop, y + t * kColumns);
      }
    }
  });
}

/// y = x . w^T for every part. prepare(t, out) writes row t of x as fp32 in the order of the codec; store(part, t, n0,
/// n1, y) takes the sums of columns [n0, n1). The workspace is project_workspace() bytes.
template <typename Prepare, typename Store>
void project(int64_t tokens, std::span<const Matrix> parts, const Prepare& prepare, const Store& store,
             void* workspace) {
  if (tokens <= 0 || parts.empty()) return;
  if (tokens <= kFewTokens) {
    return project_columns(tokens, parts, prepare, store, static_cast<float*>(workspace));
  }
  double cost = 0;
  for (const Matrix& w : parts) cost += static_cast<double>(w.rows * w.columns) * static_cast<double>(tokens);
  split(tokens, 4 * kTokenStep, cost,
        [&](int64_t begin, int64_t end) { project_rows(begin, end, parts, prepare, store); });
}

}  // namespace fathom::ops::cpu

// A product of all tokens with one or several weights, spread over the threads: the shape of every linear op.
#pragma once

#include <cstddef>
#include <cstdint>

#include <span>

#include "ops/cpu/product.h"

namespace fathom::ops::cpu {

/// Up to this many tokens a product is cut along the rows of its weight, beyond along the tokens.
inline constexpr int64_t kFewTokens = 96;

inline size_t project_workspace(int64_t tokens, int64_t columns) {
  return tokens > kFewTokens ? 0 : static_cast<size_t>(tokens * round_up(columns, 32)) * sizeof(float);
}

inline constexpr int64_t kPieceTokens = 192;  // most tokens of a piece of a product over many tokens
inline constexpr int64_t kTokenStep = 6;      // tokens of a full tile
inline constexpr double kDecodeCost = 6;      // decoding a weight costs about as much as six products

struct ProjectX;
struct ProjectY;
struct ProjectRows;

/// One weight of a projection and the columns [x_begin, x_begin + w.columns) of x that it multiplies; x_begin is a
/// multiple of 32.
struct Part {
  Matrix w;
  int64_t x_begin = 0;
};

struct NoFinish {
  void operator()(int64_t) const {}
};

/// Rows [t0, t1) of every part on this thread.
template <typename Prepare, typename Store, typename Finish>
void project_rows(int64_t t0, int64_t t1, int64_t columns, std::span<const Part> parts, const Prepare& prepare,
                  const Store& store, const Finish& finish) {
  constexpr int64_t kColumns = 128;
  const int64_t pitch = x_pitch(columns);
  const int64_t most = std::clamp<int64_t>((512 << 10) / pitch / kTokenStep * kTokenStep, kTokenStep, kPieceTokens);
  auto* x = reinterpret_cast<float*>(
      thread_scratch<ProjectX>(static_cast<size_t>(std::min(most, t1 - t0) * pitch) * sizeof(float)));
  auto* y = reinterpret_cast<float*>(thread_scratch<ProjectY>(static_cast<size_t>(most * kColumns) * sizeof(float)));
  auto** rows =
      reinterpret_cast<const float**>(thread_scratch<ProjectRows>(static_cast<size_t>(most) * sizeof(float*)));
  for (int64_t t = t0; t < t1; t += most) {
    const int64_t m = std::min(most, t1 - t);
    for (int64_t r = 0; r < m; ++r) prepare(t + r, x + r * pitch);
    for (size_t p = 0; p < parts.size(); ++p) {
      for (int64_t r = 0; r < m; ++r) rows[r] = x + r * pitch + parts[p].x_begin;
      for (int64_t n = 0; n < parts[p].w.rows; n += kColumns) {
        const int64_t end = std::min(n + kColumns, parts[p].w.rows);
        multiply(parts[p].w, n, end, rows, m, y, kColumns);
        for (int64_t r = 0; r < m; ++r) store(p, t + r, n, end, y + r * kColumns);
      }
    }
    for (int64_t r = 0; r < m; ++r) finish(t + r);
  }
}

/// Few tokens: x once into `workspace`, then pieces of the rows of all parts.
template <typename Prepare, typename Store, typename Finish>
void project_columns(int64_t tokens, int64_t columns, std::span<const Part> parts, const Prepare& prepare,
                     const Store& store, const Finish& finish, float* workspace) {
  constexpr int64_t kColumns = 128, kUnit = 32;
  const int64_t pitch = x_pitch(columns);
  int64_t units = 0;
  double cost = 0;
  for (const Part& p : parts) {
    units += (p.w.rows + kUnit - 1) / kUnit;
    cost += static_cast<double>(p.w.rows * p.w.columns) * (static_cast<double>(tokens) + kDecodeCost);
  }
  split(tokens, 8, static_cast<double>(tokens * columns) * 16, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) prepare(t, workspace + t * pitch);
  });
  split(units, 1, cost, [&](int64_t begin, int64_t end) {
    const float* rows[kFewTokens];
    auto* y =
        reinterpret_cast<float*>(thread_scratch<ProjectY>(static_cast<size_t>(tokens * kColumns) * sizeof(float)));
    int64_t base = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const int64_t count = (parts[p].w.rows + kUnit - 1) / kUnit;
      const int64_t from = std::max(begin - base, int64_t{0}) * kUnit;
      const int64_t to = std::min(std::min(end - base, count) * kUnit, parts[p].w.rows);
      base += count;
      for (int64_t t = 0; t < tokens; ++t) rows[t] = workspace + t * pitch + parts[p].x_begin;
      for (int64_t n = from; n < to; n += kColumns) {
        const int64_t stop = std::min(n + kColumns, to);
        multiply(parts[p].w, n, stop, rows, tokens, y, kColumns);
        for (int64_t t = 0; t < tokens; ++t) store(p, t, n, stop, y + t * kColumns);
      }
    }
  });
  for (int64_t t = 0; t < tokens; ++t) finish(t);
}

/// y = x . w^T for every part. prepare(t, out) writes row t of x (`columns` columns) as fp32 in the order of the codec;
/// store(part, t, n0, n1, y) takes the sums of rows [n0, n1) of the weight; finish(t) follows when token t has all of
/// them. The workspace is project_workspace() bytes.
template <typename Prepare, typename Store, typename Finish = NoFinish>
void project(int64_t tokens, int64_t columns, std::span<const Part> parts, const Prepare& prepare, const Store& store,
             void* workspace, const Finish& finish = {}) {
  if (tokens <= 0 || parts.empty()) return;
  if (tokens <= kFewTokens)
    return project_columns(tokens, columns, parts, prepare, store, finish, static_cast<float*>(workspace));
  // Every piece decodes all weights, so pieces are as large as the threads allow.
  const int64_t threads = thread_count();
  const int64_t pieces = threads * ((tokens + threads * kPieceTokens - 1) / (threads * kPieceTokens));
  const int64_t step = round_up((tokens + pieces - 1) / pieces, kTokenStep);
  parallel_for(tokens, step,
               [&](int64_t begin, int64_t end) { project_rows(begin, end, columns, parts, prepare, store, finish); });
}

}  // namespace fathom::ops::cpu

// Random inputs for sparse attention, a float64 reference for them, and the comparison of an output with it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::ops {

/// What a case looks like; every field is used by the reference too.
struct SparseCaseShape {
  int tokens = 1, heads = 64;
  RowFormat format = RowFormat::v4;
  int window_page = 256, extra_page = 64;
  int window_most = 128, extra_most = 512;
  /// Rows of each token; empty: all tokens have window_most and extra_most and no length array is given.
  std::vector<int> window_length, extra_length;
  double masked = 0;  // share of indices that are -1
  bool sink = true, rotate = true, codes = false;
  double query_scale = 1;  // 4 makes attention peaked
  int largest_scale = 0;   // not 0: some V4 scale bytes up to this one
  int code_limit = 0;      // not 0: V4 codes are random below this one, with random signs (8: subnormal ones only)
  int queries_per_request = 1;
  int padding = 0;  // extra elements between heads and tokens of q and out, and extra bytes between pages
  uint64_t seed = 1;
};

struct SparseCase {
  SparseCaseShape shape;
  std::vector<bf16> q, out;
  std::vector<std::byte> window_pool, extra_pool;
  std::vector<int32_t> window_index, extra_index, window_length, extra_length, position;
  std::vector<float> sink, rope_freq, lse;
  std::vector<e4m3> codes;
  std::vector<e8m0> code_scale;

  /// Views of the buffers above.
  SparseAttentionArgs args();
  /// Fills everything an operation must write with values that it cannot produce.
  void poison();
};

SparseCase make_sparse_case(const SparseCaseShape& shape);

/// Float64 attention of one token: out [heads][512] after inverse RoPE and lse [heads], nothing rounded.
struct SparseReference {
  std::vector<double> out, lse;
};
SparseReference sparse_reference(const SparseCase& c, int token);

/// Compares the outputs in `c` with the reference for every `step`-th token.
struct SparseComparison {
  double relative_l2 = 0;  // over all compared outputs
  double rounding_l2 = 0;  // what rounding the exact output to bf16 would give
  double worst_lse = 0;    // largest absolute difference
  std::string failure;     // empty when everything was written, finite, and codes belong to the bf16 output
};
SparseComparison compare_sparse(const SparseCase& c, int step = 1);

/// The same with references computed before, of tokens 0, step, 2 step ...
std::vector<SparseReference> sparse_references(const SparseCase& c, int step = 1);
SparseComparison compare_sparse(const SparseCase& c, const std::vector<SparseReference>& references, int step);

}  // namespace fathom::ops

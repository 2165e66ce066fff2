// How sparse attention decode is laid over a GPU: which kernel instance, how many splits of the rows.
//
// A plan comes from static shapes alone: tokens, heads, the most rows a token may have, and the number of SMs. The
// kernel adapts it to the real lengths: a token uses as many splits as it has work for, the other blocks leave at once.
#pragma once

#include "ops/sparse_attention/sparse_attention.h"

namespace fathom::ops::sparse_decode {

struct Plan {
  int block_heads = 64;  // 16, 32 or 64 heads share a staged row
  int splits = 1;        // blocks over the rows of a token, at most 32
  bool wide = false;     // sm_90a: a warpgroup kernel (64 heads, V4 rows)
  bool overlap = false;  // sm_90: programmatic dependent launch; the launch overlaps the end of the kernel before
  int64_t patience = 0;  // cycles that a split waits for the others of its token before it leaves the sum to the last
  int burst = 0;         // not 0: the kernel for few rows, at most this many tiles of 16 a block (V4 rows)
  int pack = 1;          // more: so many query tokens of a request as one token of more heads (32 or 64 heads a block)
  bool mail = false;     // with burst: splits hand partial results over by mail (decode_mail.cuh); no codes
  int cluster = 0;       // with burst, sm_90: all splits (8 or 16) form a cluster; 16 heads, no codes
};

/// The fastest plan by the measured costs. `sm90`: with the warpgroup kernel and overlapping launches.
Plan choose_plan(const SparseAttentionArgs& args, const DeviceInfo& device, bool sm90);

/// A plan whose results do not depend on how many tokens are computed together. What changes the last bits of a result
/// is the kernel instance and where the rows are split; here these follow from heads, format, most rows and the GPU
/// alone.
Plan choose_exact_plan(const SparseAttentionArgs& args, const DeviceInfo& device);

/// Layout of the workspace. The first `zeroed` bytes, the same number for every plan, count arrivals and launches and
/// take mail: they must be zero when the memory is new, only launches of this op may write them, one at a time, and
/// each leaves them fit for the next one, of any shape. The rest may hold anything.
struct Workspace {
  size_t mail_at = 0, place_at = 0, place_bytes = 0, zeroed = 0, state_at = 0, partial_at = 0, total = 0;
};
Workspace workspace_for(const SparseAttentionArgs& args, const Plan& plan);

/// Whether the CUDA kernels take arguments of these shapes and strides (16-byte aligned rows, at most 65,535 tokens).
bool shapes_fit(const SparseAttentionArgs& args);

/// Launches one plan. Throws fathom::Error when CUDA refuses.
void run_plan(const SparseAttentionArgs& args, const Launch& launch, const Plan& plan);

/// Parts of run_plan, called by it.
struct Params;
void launch_wide(const Params& params, const Plan& plan, int tokens, void* stream);
void launch_wide_burst(const Params& params, const Plan& plan, int tokens, void* stream);
void launch_burst(const Params& params, const Plan& plan, int tokens, void* stream);
void launch_cluster(const Params& params, const Plan& plan, int tokens, void* stream);

/// Throws fathom::Error. (error.h does not compile under nvcc.)
[[noreturn]] void launch_failed(const char* what, const char* why);

}  // namespace fathom::ops::sparse_decode

// Grouped wo_a by the streaming product kernel of linear_fp8 (sm_90a): a tile of 128 rows is one quantisation group of
// z, so the warp that adds a token's slices quantises it.
#pragma once

#include "ops/device/rows.cuh"
#include "ops/linear/stream_kernel.cuh"
#include "ops/output_project/stream_params.h"

namespace fathom::ops::output_projection {

template <int kTiles>
FATHOM_DEVICE void stream_project(const stream::Params& p, const stream::Maps& maps, const Results& to,
                                  std::byte* memory) {
  const stream::Place at(p, stream::tokens_of(kTiles));
  stream::multiply_tile<stream::Input::bf16, kTiles>(
      p, maps, at, memory, [&](int64_t token, int row, const float(&sum)[4]) {
        constexpr float kRestore = 4294967296.0f;  // 2^kHeadroom
        device::Words2 z;
        z.word[0] = device::pack_bf16x2(sum[0] * kRestore, sum[1] * kRestore);
        z.word[1] = device::pack_bf16x2(sum[2] * kRestore, sum[3] * kRestore);
        *reinterpret_cast<device::Words2*>(to.z + token * to.z_stride + at.row + row) = z;
        const float v[4] = {device::low_half(z.word[0]), device::high_half(z.word[0]), device::low_half(z.word[1]),
                            device::high_half(z.word[1])};
        const e8m0 scale = e4m3_scale(device::group_max(device::largest(v), 32));
        *reinterpret_cast<uint32_t*>(to.codes + token * to.codes_stride + at.row + row) =
            device::codes_of(v, reciprocal(scale));
        if (row == 0) to.scale[token * to.scale_stride + at.row / stream::kTileRows] = scale;
      });
}

}  // namespace fathom::ops::output_projection

// What wo_a is launched with when the streaming product kernel of linear_fp8 runs it.
#pragma once

#include "ops/linear/stream_params.h"
#include "ops/output_project/output_project.h"

namespace fathom::ops::output_projection {

/// Where results go; strides in elements.
struct Results {
  bf16* z;
  e4m3* codes;
  e8m0* scale;
  int64_t z_stride, codes_stride, scale_stride;
};

inline Results results_of(const OutputProjectArgs& a) {
  return {a.z.data, a.z_codes.data, a.z_scale.data, a.z.stride[0], a.z_codes.stride[0], a.z_scale.stride[0]};
}

inline stream::Work pack_stream(const OutputProjectArgs& a) {
  stream::Work work;
  stream::Params& p = work.params;
  p.group_heads = static_cast<int32_t>(a.o.size[1] / a.groups);
  p.group_rows = static_cast<int32_t>(a.wo_a.codes.size[0] / a.groups);
  p.tokens = static_cast<int32_t>(a.o.size[0]);
  p.units = static_cast<int32_t>(a.wo_a.codes.size[1] / stream::kUnitColumns), p.parts = 1;
  p.part[0].scale = reinterpret_cast<const uint8_t*>(a.wo_a.scale.data);
  p.part[0].scale_stride = a.wo_a.scale.stride[0], p.part[0].rows = static_cast<int32_t>(a.wo_a.codes.size[0]);
  work.x = {reinterpret_cast<const std::byte*>(a.o.data),
            2 * a.o.size[2],
            2 * a.o.stride[1],
            p.tokens,
            static_cast<int32_t>(a.o.size[1]),
            2 * a.o.stride[0]};
  work.weights[0] = {reinterpret_cast<const std::byte*>(a.wo_a.codes.data), a.wo_a.codes.size[1], 0, p.part[0].rows, 1};
  work.row_tiles = p.part[0].rows / stream::kTileRows;
  return work;
}

void launch_stream(const stream::Params& p, const stream::Maps& maps, const Results& to, const stream::Plan& plan,
                   void* stream);

}  // namespace fathom::ops::output_projection

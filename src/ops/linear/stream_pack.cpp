// The arguments of linear_fp8 as parameters of the streaming product kernel.
#include "ops/linear/stream_params.h"

namespace fathom::ops::stream {

Work pack(const LinearFp8Args& a) {
  Work work;
  Params& p = work.params;
  p.x_scale = reinterpret_cast<const uint8_t*>(a.x_scale.data);
  p.x_scale_stride = a.x_scale.stride[0];
  p.tokens = static_cast<int32_t>(a.x.size[0]), p.units = static_cast<int32_t>(a.x.size[1] / kUnitColumns);
  work.x = {reinterpret_cast<const std::byte*>(a.x.data), a.x.size[1], 0, p.tokens, 1, a.x.stride[0]};
  for (int32_t i = 0; i < a.parts; ++i) {
    const auto& from = a.part[i];
    const int64_t rows = from.w.codes.size[0];
    if (rows == 0) continue;
    work.weights[p.parts] = {reinterpret_cast<const std::byte*>(from.w.codes.data), a.x.size[1], 0,
                             static_cast<int32_t>(rows), 1};
    Part& part = p.part[p.parts++];
    part.scale = reinterpret_cast<const uint8_t*>(from.w.scale.data), part.scale_stride = from.w.scale.stride[0];
    part.y = from.y.data, part.y_stride = from.y.stride[0];
    part.rows = static_cast<int32_t>(rows), part.first_tile = work.row_tiles;
    part.aligned = from.y.stride[0] % 4 == 0 && reinterpret_cast<uintptr_t>(from.y.data) % (4 * sizeof(bf16)) == 0;
    work.row_tiles += static_cast<int>((rows + kTileRows - 1) / kTileRows);
  }
  return work;
}

}  // namespace fathom::ops::stream

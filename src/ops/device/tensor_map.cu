// Descriptions of rows for the copy unit, made by the driver, which is asked for its function at run time.
#include "ops/device/tensor_map.h"

#include <cuda.h>

#include "ops/device/launch.cuh"

namespace fathom::ops::device {
namespace {

constexpr const char* kWhat = "description of weights for the copy unit";

decltype(&cuTensorMapEncodeTiled) find_encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check("copy_box", kWhat,
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess || !function) launch_failed("copy_box", kWhat, "the driver is too old");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

TensorMap describe_planes(const Planes& p) {
  static const auto encode = find_encoder();
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  TensorMap map;
  const cuuint64_t size[3] = {static_cast<cuuint64_t>(p.row_bytes), static_cast<cuuint64_t>(p.rows),
                              static_cast<cuuint64_t>(p.planes)};
  // The copy unit wants a distance between planes where there is one plane only, too.
  const int64_t plane = p.planes > 1 ? p.plane_stride : p.row_distance() * p.rows;
  const cuuint64_t stride[2] = {static_cast<cuuint64_t>(p.row_distance()), static_cast<cuuint64_t>(plane)};
  const cuuint32_t box[3] = {kBoxBytes, static_cast<cuuint32_t>(p.box_rows), 1}, every[3] = {1, 1, 1};
  const CUresult code =
      encode(reinterpret_cast<CUtensorMap*>(&map), CU_TENSOR_MAP_DATA_TYPE_UINT8, 3, const_cast<std::byte*>(p.base),
             size, stride, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS) launch_failed("copy_box", kWhat, "rows, distances or the address do not suit it");
  return map;
}

}  // namespace fathom::ops::device

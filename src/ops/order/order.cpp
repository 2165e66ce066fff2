#include "ops/order/order.h"

#include <cstring>

#include "ops/compute_device.h"
#include "ops/experts/moe_params.h"
#include "ops/fp4_order.h"

namespace fathom::ops {

#ifdef FATHOM_HAVE_CUDA
void order_codes_cuda(std::byte* codes, int64_t bytes, CodeOrder order, const Launch& l);
#endif

CodeOrder order_codes(std::byte* codes, int64_t bytes, CodeOrder order, ComputeDevice& device) {
  if (device.info().backend == Backend::cpu) return CodeOrder::checkpoint;
#ifdef FATHOM_HAVE_CUDA
  if (!device.only_counts()) order_codes_cuda(codes, bytes, order, {device.info(), nullptr, device.stream()});
#else
  static_cast<void>(codes), static_cast<void>(bytes);
#endif
  return order;
}

bool bytes_suit(ExpertFormat format, int64_t rows, int64_t columns, const DeviceInfo& device) {
  return format == ExpertFormat::mxfp4 && device.backend == Backend::cuda && device.compute_capability == 90 &&
         moe::stream_blocks_of(device) > 0 && rows % 256 == 0 && columns % 256 == 0;
}

void order_codes(std::span<std::byte> codes, CodeOrder order) {
  for (size_t i = 0; i + 4 <= codes.size(); i += 4) {
    uint32_t word;
    std::memcpy(&word, codes.data() + i, 4);
    word = order == CodeOrder::bytes ? order_fp4_bytes(word) : order_fp4(word);
    std::memcpy(codes.data() + i, &word, 4);
  }
}

}  // namespace fathom::ops

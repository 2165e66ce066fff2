#include "ops/order/order.h"

#include <cstring>

#include "ops/compute_device.h"
#include "ops/fp4_order.h"

namespace fathom::ops {

#ifdef FATHOM_HAVE_CUDA
void order_codes_cuda(std::byte* codes, int64_t bytes, const Launch& l);
#endif

bool order_codes(std::byte* codes, int64_t bytes, ComputeDevice& device) {
  if (device.info().backend == Backend::cpu) return false;
#ifdef FATHOM_HAVE_CUDA
  if (!device.only_counts()) order_codes_cuda(codes, bytes, {device.info(), nullptr, device.stream()});
#else
  static_cast<void>(codes), static_cast<void>(bytes);
#endif
  return true;
}

void order_codes(std::span<std::byte> codes) {
  for (size_t i = 0; i + 4 <= codes.size(); i += 4) {
    uint32_t word;
    std::memcpy(&word, codes.data() + i, 4);
    word = order_fp4(word);
    std::memcpy(codes.data() + i, &word, 4);
  }
}

}  // namespace fathom::ops

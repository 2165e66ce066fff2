#include "ops/order/order.h"

#include "ops/compute_device.h"

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

}  // namespace fathom::ops

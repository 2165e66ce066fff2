// Brings FP4 codes that lie in the memory of a GPU into an order of its kernels (fp4_order.h), in place, once after
// loading. Reads and writes every byte once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "ops/weights.h"

namespace fathom::ops {

class ComputeDevice;
struct DeviceInfo;

/// `codes`: a multiple of 16, like `bytes`. In the order of the device's stream. Returns the order in which codes are
/// now: on the processor they stay as the checkpoint has them; on a device that only counts nothing is done.
CodeOrder order_codes(std::byte* codes, int64_t bytes, CodeOrder order, ComputeDevice& device);

/// Whether fast kernels of the device want codes of such a matrix, or of its transposed shape, in the order of bytes.
bool bytes_suit(ExpertFormat format, int64_t rows, int64_t columns, const DeviceInfo& device);

/// order_codes() on the host, of 4 bytes after 4; what is left of `codes` then stays.
void order_codes(std::span<std::byte> codes, CodeOrder order);

}  // namespace fathom::ops

// Brings FP4 codes that lie in the memory of a GPU into the order of its kernels (fp4_order.h), in place, once after
// loading. Reads and writes every byte once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace fathom::ops {

class ComputeDevice;

/// `codes`: a multiple of 16, like `bytes`. In the order of the device's stream. Returns whether codes are in that
/// order now: on the processor they stay as the checkpoint has them; on a device that only counts nothing is done.
bool order_codes(std::byte* codes, int64_t bytes, ComputeDevice& device);

/// The same on the host, of 4 bytes after 4; what is left of `codes` then stays.
void order_codes(std::span<std::byte> codes);

}  // namespace fathom::ops

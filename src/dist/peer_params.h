// Sums and gathers through memory that the GPUs of a process write for each other: parameters and launches.
//
// A message is cut into packets of 8 bytes of data. A thread sends its packet to every other rank as 16 bytes, each
// half four bytes of data and the number of the message, and waits until the packet of every other rank carries that
// number: no fence, no barrier, no second message. A rank's inbox holds two messages of each rank, by the parity of the
// number. A rank sends message n + 2 only after it has received message n + 1 of all, which they send after they have
// received message n: so nothing is overwritten before it was read.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/small_floats.h"

namespace fathom::dist::peer {

inline constexpr int kMostRanks = 16;
inline constexpr int64_t kPackets = int64_t{1} << 18;  // of the longest message: 2 MiB of data

/// In the rank's own memory.
struct Counters {
  uint32_t number = 0, arrived = 0;  // messages so far; blocks that are done with this one
  uint32_t gave_up = 0;              // like Link::gave_up, for the threads of this rank
  uint64_t asked = 0;                // nanoseconds: when one of them last read Link::give_up
};

/// What all kernels of a rank need.
struct Link {
  int rank = 0, size = 1;
  uint64_t* inbox[kMostRanks] = {};  // of every rank: [2][size][kPackets][2]
  Counters* counters = nullptr;
  // In host memory, which one thread in a while reads: reads of one word by thousands of waiting threads are served one
  // after the other and take milliseconds, in which the packets they wait for arrive unseen.
  const volatile uint32_t* give_up = nullptr;  // somebody failed: nobody waits any more
  volatile uint32_t* gave_up = nullptr;        // this rank has not waited to the end
  uint64_t patience = 0;                       // nanoseconds that a thread waits for a packet
};

inline constexpr size_t inbox_bytes(int size) {
  return static_cast<size_t>(2 * size) * static_cast<size_t>(kPackets) * 16;
}

/// sum = bf16 of the sum of the ranks' parts, in their order. `packets` at most kPackets; `early`: may start while the
/// kernel before it ends.
void launch_reduce(const Link& link, const float* part, bf16* sum, int64_t packets, bool early, void* stream);
void launch_reduce(const Link& link, const bf16* part, bf16* sum, int64_t packets, bool early, void* stream);
/// Rows of `row_packets` packets each: rank r's go to column r * row_packets of full, whose rows have size times as
/// many. Packets [first, first + packets) of part.
void launch_gather(const Link& link, const float* part, float* full, int64_t first, int64_t packets,
                   int64_t row_packets, bool early, void* stream);
/// sum = bf16 of the sum over ranks of parts[r * stride ...], in their order; no communication.
void launch_sum(const float* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream);
void launch_sum(const bf16* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream);
/// Loads the kernels onto the present device, which must not happen while another rank waits in one.
void load_kernels();

}  // namespace fathom::dist::peer

// Sums and gathers through memory that the GPUs of a process write for each other: parameters and launches.
//
// A message is an array of words of 32 bits. A thread writes its packet, two or four of them, into the inbox of every
// other rank, and waits until those of every other rank have come. The inbox is zero until then; a word is never sent
// as zero (+0 goes as -0, which adds to a sum of ranks what +0 does), and whoever has read it makes it zero again: no
// fence, no barrier, no second message, and nothing but data on the way.
//
// A rank's inbox holds two messages of each rank, by the parity of the message's number. A rank sends message n + 2
// only after it has received message n + 1 of all, which they send when their kernel that received message n has ended:
// so nothing is overwritten before it was read, nor cleared after it was written.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/small_floats.h"

namespace fathom::dist::peer {

inline constexpr int kMostRanks = 16;
inline constexpr int64_t kWords = int64_t{1} << 20;  // of the longest message: 4 MiB

/// In the rank's own memory.
struct Counters {
  uint32_t number = 0, arrived = 0;  // messages so far; blocks that are done with this one
  uint32_t gave_up = 0;              // like Link::gave_up, for the threads of this rank
  uint64_t asked = 0;                // nanoseconds: when one of them last read Link::give_up
};

/// What all kernels of a rank need.
struct Link {
  int rank = 0, size = 1;
  uint32_t* inbox[kMostRanks] = {};  // of every rank: [2][size][kWords]
  Counters* counters = nullptr;
  // In host memory, which one thread in a while reads: reads of one word by thousands of waiting threads are served one
  // after the other and take milliseconds, in which the packets they wait for arrive unseen.
  const volatile uint32_t* give_up = nullptr;  // somebody failed: nobody waits any more
  volatile uint32_t* gave_up = nullptr;        // this rank has not waited to the end
  uint64_t patience = 0;                       // nanoseconds that a thread waits for a packet
};

inline constexpr size_t inbox_bytes(int size) {
  return static_cast<size_t>(2 * size) * static_cast<size_t>(kWords) * sizeof(uint32_t);
}

/// sum = bf16 of the sum of the ranks' parts, in their order. `words` of part, an even number, at most kWords; `early`:
/// may start while the kernel before it ends.
void launch_reduce(const Link& link, const float* part, bf16* sum, int64_t words, bool early, void* stream);
void launch_reduce(const Link& link, const bf16* part, bf16* sum, int64_t words, bool early, void* stream);
/// Rows of `row_words` words each: rank r's go to column r * row_words of full, whose rows have size times as many.
/// Words [first, first + words) of part; all even.
void launch_gather(const Link& link, const float* part, float* full, int64_t first, int64_t words, int64_t row_words,
                   bool early, void* stream);
/// sum = bf16 of the sum over ranks of parts[r * stride ...], in their order; no communication.
void launch_sum(const float* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream);
void launch_sum(const bf16* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream);
/// Loads the kernels onto the present device, which must not happen while another rank waits in one.
void load_kernels();

}  // namespace fathom::dist::peer

#include "dist/peer_params.h"

#include <vector>

#include "ops/device/launch.cuh"
#include "ops/device/scalars.cuh"

namespace fathom::dist::peer {
namespace {

namespace device = ops::device;

constexpr int kThreads = 256, kMostBlocks = 264;

/// The words of a packet. Two or four.
template <int kCount>
struct alignas(4 * kCount) Packet {
  uint32_t word[kCount];
};

/// A packet to or from memory that several GPUs write and read, past the caches of this one. Each word arrives whole.
FATHOM_DEVICE void store_shared_by_gpus(uint32_t* p, const Packet<2>& v) {
  asm volatile("st.volatile.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]) : "memory");
}
FATHOM_DEVICE void store_shared_by_gpus(uint32_t* p, const Packet<4>& v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]), "r"(v.word[1]),
               "r"(v.word[2]), "r"(v.word[3])
               : "memory");
}
FATHOM_DEVICE void load_shared_by_gpus(const uint32_t* p, Packet<2>& v) {
  asm volatile("ld.volatile.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.word[0]), "=r"(v.word[1]) : "l"(p) : "memory");
}
FATHOM_DEVICE void load_shared_by_gpus(const uint32_t* p, Packet<4>& v) {
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p)
               : "memory");
}
FATHOM_DEVICE uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

FATHOM_DEVICE uint32_t* place(uint32_t* inbox, const Link& link, uint32_t number, int from, int64_t word) {
  return inbox + ((number & 1) * link.size + from) * kWords + word;
}

/// The packet that begins at `word` of the message to every other rank.
template <int kCount>
FATHOM_DEVICE void send(const Link& link, uint32_t number, int64_t word, Packet<kCount> data) {
  FATHOM_UNROLL
  for (uint32_t& w : data.word)
    if (w == 0) w = 0x80000000u;
  for (int r = 0; r < link.size; ++r)
    if (r != link.rank) store_shared_by_gpus(place(link.inbox[r], link, number, link.rank, word), data);
}

/// Asked now and then by a thread that has waited since `since`: false when it shall wait no longer.
FATHOM_DEVICE bool still_patient(const Link& link, uint64_t since) {
  constexpr uint64_t kBetweenReads = 200'000;  // ns
  Counters* const here = link.counters;
  if (*const_cast<volatile uint32_t*>(&here->gave_up) != 0) return false;
  const uint64_t now = nanoseconds();
  bool over = now - since > link.patience;
  auto* const asked = reinterpret_cast<unsigned long long*>(&here->asked);
  const unsigned long long last = *const_cast<volatile unsigned long long*>(asked);
  // Clocks of two threads may differ by a tick: `last` can be later than `now`.
  if (!over && static_cast<int64_t>(now - last) > static_cast<int64_t>(kBetweenReads) &&
      atomicCAS(asked, last, now) == last)
    over = *link.give_up != 0;
  if (over && atomicExch(&here->gave_up, 1u) == 0) *link.gave_up = 1;
  return !over;
}

/// Waits for the packet of a rank and makes room for the next but one. Zeros: gave up, now or before.
template <int kCount>
FATHOM_DEVICE Packet<kCount> receive(const Link& link, uint32_t number, int from, int64_t word, bool& patient) {
  uint32_t* const at = place(link.inbox[link.rank], link, number, from, word);
  uint64_t since = 0;
  for (uint32_t spins = 0; patient; ++spins) {
    Packet<kCount> data;
    load_shared_by_gpus(at, data);
    bool there = true;
    FATHOM_UNROLL
    for (const uint32_t w : data.word) there = there && w != 0;
    if (there) {
      store_shared_by_gpus(at, Packet<kCount>{});
      return data;
    }
    if (spins % 1024 != 1023) continue;
    if (since == 0) since = nanoseconds();
    patient = still_patient(link, since);
  }
  return {};
}

/// The number of this message; all of a block's threads ask before any of its blocks ends.
FATHOM_DEVICE uint32_t begin_message(const Link& link) {
  return *const_cast<volatile uint32_t*>(&link.counters->number) + 1;
}
FATHOM_DEVICE void end_message(const Link& link, uint32_t number) {
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(&link.counters->arrived, 1u) + 1 != gridDim.x) return;
  link.counters->arrived = 0, link.counters->number = number;
}

FATHOM_DEVICE float as_float(uint32_t word) {
  return __uint_as_float(word);
}

/// sum = bf16 of the ranks' sum. kWide: words are fp32, else two bf16 each.
template <bool kWide, int kCount>
struct Sum {
  static constexpr int kEach = kWide ? 1 : 2, kValues = kCount * kEach;
  float value[kValues] = {};

  FATHOM_DEVICE void add(const Packet<kCount>& data) {
    FATHOM_UNROLL
    for (int i = 0; i < kValues; ++i) {
      const uint32_t word = data.word[i / kEach];
      value[i] += as_float(kWide ? word : i % 2 ? word & 0xFFFF0000u : word << 16);
    }
  }
  FATHOM_DEVICE void store(bf16* sum, int64_t packet) const {
    struct alignas(2 * kValues) Rounded {
      uint32_t pair[kValues / 2];
    } rounded;
    FATHOM_UNROLL
    for (int i = 0; i < kValues / 2; ++i) rounded.pair[i] = device::pack_bf16x2(value[2 * i], value[2 * i + 1]);
    reinterpret_cast<Rounded*>(sum)[packet] = rounded;
  }
};

/// Sends this rank's packets, part[first ..), to all others. For each, `take(i, from)` is called, where from(r) is rank
/// r's packet. kEach: packets that a thread has under way at once.
template <int kEach, int kCount, typename Take>
FATHOM_DEVICE void exchange(const Link& link, const Packet<kCount>* part, int64_t first, int64_t packets,
                            const Take& take) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const uint32_t number = begin_message(link);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  bool patient = true;
  for (int64_t base = int64_t{blockIdx.x} * kThreads + threadIdx.x; base < packets; base += stride * kEach) {
    Packet<kCount> own[kEach];
    FATHOM_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = base + k * stride;
      if (i < packets) own[k] = part[first + i], send(link, number, kCount * i, own[k]);
    }
    FATHOM_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = base + k * stride;
      if (i >= packets) break;
      take(i, [&](int r) { return r == link.rank ? own[k] : receive<kCount>(link, number, r, kCount * i, patient); });
    }
  }
  end_message(link, number);
}

template <bool kWide, int kCount, int kEach>
__global__ void __launch_bounds__(kThreads, 2)
    reduce(const __grid_constant__ Link link, const Packet<kCount>* part, bf16* sum, int64_t packets) {
  exchange<kEach>(link, part, 0, packets, [&](int64_t i, const auto& from) {
    Sum<kWide, kCount> total;
    for (int r = 0; r < link.size; ++r) total.add(from(r));
    total.store(sum, i);
  });
}

/// Zeros may come as -0: all ranks shall have +0.
template <int kCount, int kEach>
__global__ void __launch_bounds__(kThreads, 2)
    gather(const __grid_constant__ Link link, const Packet<kCount>* part, Packet<kCount>* full, int64_t first,
           int64_t packets, int64_t row_packets) {
  exchange<kEach>(link, part, first, packets, [&](int64_t i, const auto& from) {
    const int64_t row = (first + i) / row_packets, column = (first + i) % row_packets;
    for (int r = 0; r < link.size; ++r) {
      Packet<kCount> data = from(r);
      FATHOM_UNROLL
      for (uint32_t& w : data.word)
        if (w == 0x80000000u) w = 0;
      full[(row * link.size + r) * row_packets + column] = data;
    }
  });
}

FATHOM_DEVICE float widened(float v) {
  return v;
}
FATHOM_DEVICE float widened(bf16 v) {
  return to_float(v);
}

template <typename T>
__global__ void __launch_bounds__(kThreads) sum_ranks(const T* parts, int64_t stride, int size, bf16* sum, int64_t n) {
  for (int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x; i < n; i += int64_t{gridDim.x} * kThreads) {
    float total = 0;
    for (int r = 0; r < size; ++r) total += widened(parts[r * stride + i]);
    sum[i] = to_bf16(total);
  }
}

device::LaunchShape shape_for(int64_t packets, int each, bool early) {
  const int64_t blocks = (packets + int64_t{kThreads} * each - 1) / (int64_t{kThreads} * each);
  return {dim3(static_cast<unsigned>(blocks < kMostBlocks ? blocks : kMostBlocks)), kThreads, 0, early};
}

/// One packet a thread while that does not take more blocks than are resident.
bool is_short(int64_t packets) {
  return packets <= int64_t{kMostBlocks} * kThreads;
}

/// `run.operator()<kCount, kEach>(packets)`: as many words in a packet as can be, as many packets a thread as must be.
template <typename Run>
void with_packets(int64_t words, bool fours, const Run& run) {
  const int64_t packets = words / (fours ? 4 : 2);
  if (fours)
    is_short(packets) ? run.template operator()<4, 1>(packets) : run.template operator()<4, 4>(packets);
  else
    is_short(packets) ? run.template operator()<2, 1>(packets) : run.template operator()<2, 4>(packets);
}
bool is_aligned(const void* p) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0;
}

template <bool kWide>
void launch_reduce_of(const Link& link, const void* part, bf16* sum, int64_t words, bool early, void* stream) {
  with_packets(words, words % 4 == 0 && is_aligned(part) && is_aligned(sum), [&]<int kCount, int kEach>(int64_t n) {
    device::launch("all_reduce", reduce<kWide, kCount, kEach>, shape_for(n, kEach, early), stream, link,
                   static_cast<const Packet<kCount>*>(part), sum, n);
  });
}

template <typename T>
void launch_sum_of(const T* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream) {
  device::launch("all_reduce", sum_ranks<T>, shape_for(count, 1, false), stream, parts, stride, size, sum, count);
}

}  // namespace

void launch_reduce(const Link& link, const float* part, bf16* sum, int64_t words, bool early, void* stream) {
  launch_reduce_of<true>(link, part, sum, words, early, stream);
}
void launch_reduce(const Link& link, const bf16* part, bf16* sum, int64_t words, bool early, void* stream) {
  launch_reduce_of<false>(link, part, sum, words, early, stream);
}

void launch_gather(const Link& link, const float* part, float* full, int64_t first, int64_t words, int64_t row_words,
                   bool early, void* stream) {
  const bool fours = row_words % 4 == 0 && is_aligned(part) && is_aligned(full);
  with_packets(words, fours, [&]<int kCount, int kEach>(int64_t n) {
    device::launch("all_gather", gather<kCount, kEach>, shape_for(n, kEach, early), stream, link,
                   reinterpret_cast<const Packet<kCount>*>(part), reinterpret_cast<Packet<kCount>*>(full),
                   first / kCount, n, row_words / kCount);
  });
}

void launch_sum(const float* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream) {
  launch_sum_of(parts, stride, size, sum, count, stream);
}
void launch_sum(const bf16* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream) {
  launch_sum_of(parts, stride, size, sum, count, stream);
}

void load_kernels() {
  cudaFuncAttributes a;
  std::vector<const void*> kernels;
  const auto add = [&]<int kCount, int kEach>() {
    kernels.push_back(reinterpret_cast<const void*>(reduce<true, kCount, kEach>));
    kernels.push_back(reinterpret_cast<const void*>(reduce<false, kCount, kEach>));
    kernels.push_back(reinterpret_cast<const void*>(gather<kCount, kEach>));
  };
  add.operator()<2, 1>(), add.operator()<2, 4>(), add.operator()<4, 1>(), add.operator()<4, 4>();
  for (const void* kernel : kernels) device::check("all_reduce", "kernel", cudaFuncGetAttributes(&a, kernel));
}

}  // namespace fathom::dist::peer

#include "dist/peer_params.h"
#include "ops/device/launch.cuh"
#include "ops/device/scalars.cuh"

namespace fathom::dist::peer {
namespace {

namespace device = ops::device;

constexpr int kThreads = 256, kMostBlocks = 264;

/// 16 bytes to or from memory that several GPUs write and read, past the caches of this one. Each half arrives whole.
FATHOM_DEVICE void store_shared_by_gpus(uint64_t* p, uint64_t low, uint64_t high) {
  asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(p), "l"(low), "l"(high) : "memory");
}
FATHOM_DEVICE void load_shared_by_gpus(const uint64_t* p, uint64_t& low, uint64_t& high) {
  asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(low), "=l"(high) : "l"(p) : "memory");
}
FATHOM_DEVICE uint64_t nanoseconds() {
  uint64_t t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

FATHOM_DEVICE uint64_t* place(uint64_t* inbox, const Link& link, uint32_t number, int from, int64_t packet) {
  return inbox + (((number & 1) * link.size + from) * kPackets + packet) * 2;
}

/// Eight bytes of data to every other rank.
FATHOM_DEVICE void send(const Link& link, uint32_t number, int64_t packet, uint64_t data) {
  const uint64_t mark = uint64_t{number} << 32;
  for (int r = 0; r < link.size; ++r) {
    if (r == link.rank) continue;
    store_shared_by_gpus(place(link.inbox[r], link, number, link.rank, packet), (data & 0xFFFFFFFFu) | mark,
                         data >> 32 | mark);
  }
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

/// Waits for the packet of a rank. False: gave up, now or before.
FATHOM_DEVICE bool receive(const Link& link, uint32_t number, int from, int64_t packet, bool& patient, uint64_t& data) {
  const uint64_t* at = place(link.inbox[link.rank], link, number, from, packet);
  uint64_t low, high, since = 0;
  for (uint32_t spins = 0; patient; ++spins) {
    load_shared_by_gpus(at, low, high);
    if (low >> 32 == number && high >> 32 == number) {
      data = (low & 0xFFFFFFFFu) | high << 32;
      return true;
    }
    if (spins % 1024 != 1023) continue;
    if (since == 0) since = nanoseconds();
    patient = still_patient(link, since);
  }
  return false;
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

/// Adds the values of a packet.
FATHOM_DEVICE void add(float (&sum)[2], uint64_t data) {
  sum[0] += as_float(static_cast<uint32_t>(data)), sum[1] += as_float(static_cast<uint32_t>(data >> 32));
}
FATHOM_DEVICE void add(float (&sum)[4], uint64_t data) {
  FATHOM_UNROLL
  for (int k = 0; k < 4; ++k) sum[k] += as_float(static_cast<uint32_t>(data >> 16 * k) << 16);
}
FATHOM_DEVICE void store(bf16* sum, int64_t packet, const float (&v)[2]) {
  reinterpret_cast<uint32_t*>(sum)[packet] = device::pack_bf16x2(v[0], v[1]);
}
FATHOM_DEVICE void store(bf16* sum, int64_t packet, const float (&v)[4]) {
  const uint64_t low = device::pack_bf16x2(v[0], v[1]), high = device::pack_bf16x2(v[2], v[3]);
  reinterpret_cast<uint64_t*>(sum)[packet] = low | high << 32;
}

/// Sends this rank's packets, part[first ..), to all others. For each, `take(i, from)` is called, where from(r) is rank
/// r's packet. kEach: packets that a thread has under way at once.
template <int kEach, typename Take>
FATHOM_DEVICE void exchange(const Link& link, const uint64_t* part, int64_t first, int64_t packets, const Take& take) {
  device::wait_for_previous_kernel();
  device::let_next_kernel_start();
  const uint32_t number = begin_message(link);
  const int64_t stride = int64_t{gridDim.x} * kThreads;
  bool patient = true;
  for (int64_t base = int64_t{blockIdx.x} * kThreads + threadIdx.x; base < packets; base += stride * kEach) {
    uint64_t own[kEach];
    FATHOM_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = base + k * stride;
      if (i < packets) own[k] = part[first + i], send(link, number, i, own[k]);
    }
    FATHOM_UNROLL
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = base + k * stride;
      if (i >= packets) break;
      take(i, [&](int r) {
        uint64_t data = own[k];
        if (r != link.rank && !receive(link, number, r, i, patient, data)) data = 0;
        return data;
      });
    }
  }
  end_message(link, number);
}

/// kValues of a packet: 2 floats or 4 bf16.
template <int kValues, int kEach>
__global__ void __launch_bounds__(kThreads, 2)
    reduce(const __grid_constant__ Link link, const uint64_t* part, bf16* sum, int64_t packets) {
  exchange<kEach>(link, part, 0, packets, [&](int64_t i, const auto& from) {
    float total[kValues] = {};
    for (int r = 0; r < link.size; ++r) add(total, from(r));
    store(sum, i, total);
  });
}

template <int kEach>
__global__ void __launch_bounds__(kThreads, 2)
    gather(const __grid_constant__ Link link, const uint64_t* part, uint64_t* full, int64_t first, int64_t packets,
           int64_t row_packets) {
  exchange<kEach>(link, part, first, packets, [&](int64_t i, const auto& from) {
    const int64_t row = (first + i) / row_packets, column = (first + i) % row_packets;
    for (int r = 0; r < link.size; ++r) full[(row * link.size + r) * row_packets + column] = from(r);
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

template <int kValues>
void launch_reduce_of(const Link& link, const void* part, bf16* sum, int64_t packets, bool early, void* stream) {
  const auto* from = static_cast<const uint64_t*>(part);
  if (is_short(packets))
    device::launch("all_reduce", reduce<kValues, 1>, shape_for(packets, 1, early), stream, link, from, sum, packets);
  else
    device::launch("all_reduce", reduce<kValues, 4>, shape_for(packets, 4, early), stream, link, from, sum, packets);
}

template <typename T>
void launch_sum_of(const T* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream) {
  device::launch("all_reduce", sum_ranks<T>, shape_for(count, 1, false), stream, parts, stride, size, sum, count);
}

}  // namespace

void launch_reduce(const Link& link, const float* part, bf16* sum, int64_t packets, bool early, void* stream) {
  launch_reduce_of<2>(link, part, sum, packets, early, stream);
}
void launch_reduce(const Link& link, const bf16* part, bf16* sum, int64_t packets, bool early, void* stream) {
  launch_reduce_of<4>(link, part, sum, packets, early, stream);
}

void launch_gather(const Link& link, const float* part, float* full, int64_t first, int64_t packets,
                   int64_t row_packets, bool early, void* stream) {
  const auto* from = reinterpret_cast<const uint64_t*>(part);
  auto* to = reinterpret_cast<uint64_t*>(full);
  if (is_short(packets))
    device::launch("all_gather", gather<1>, shape_for(packets, 1, early), stream, link, from, to, first, packets,
                   row_packets);
  else
    device::launch("all_gather", gather<4>, shape_for(packets, 4, early), stream, link, from, to, first, packets,
                   row_packets);
}

void launch_sum(const float* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream) {
  launch_sum_of(parts, stride, size, sum, count, stream);
}
void launch_sum(const bf16* parts, int64_t stride, int size, bf16* sum, int64_t count, void* stream) {
  launch_sum_of(parts, stride, size, sum, count, stream);
}

void load_kernels() {
  cudaFuncAttributes a;
  const void* kernels[] = {reinterpret_cast<const void*>(reduce<2, 1>), reinterpret_cast<const void*>(reduce<2, 4>),
                           reinterpret_cast<const void*>(reduce<4, 1>), reinterpret_cast<const void*>(reduce<4, 4>),
                           reinterpret_cast<const void*>(gather<1>),    reinterpret_cast<const void*>(gather<4>)};
  for (const void* kernel : kernels) device::check("all_reduce", "kernel", cudaFuncGetAttributes(&a, kernel));
}

}  // namespace fathom::dist::peer

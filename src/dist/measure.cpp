#include "dist/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "dist/gpus.h"

#ifdef FATHOM_HAVE_CUDA
#include <cuda_runtime.h>
#endif

namespace fathom::dist {

#ifdef FATHOM_HAVE_CUDA
namespace {

using Clock = std::chrono::steady_clock;
using Devices = std::vector<std::shared_ptr<ops::ComputeDevice>>;
constexpr int64_t kWidth = 4096;
constexpr int kCalls = 40, kReplays = 10;

/// Microseconds of a sum of `rows` rows inside a graph, the best of some replays on the first rank.
template <typename T>
double sum_time(const Devices& devices, const std::vector<std::unique_ptr<Communicator>>& ranks, int64_t rows) {
  double best = 0;
  std::string problem;
  const auto work = [&](size_t r) {
    ops::ComputeDevice& device = *devices[r];
    device.bind();
    const ops::DeviceBuffer part(device, static_cast<size_t>(rows * kWidth) * sizeof(T)),
        sum(device, static_cast<size_t>(rows * kWidth) * sizeof(bf16));
    device.synchronize("clearing memory");
    ranks[r]->barrier();
    const auto once = [&] {
      ranks[r]->all_reduce(View<const T, 2>(reinterpret_cast<const T*>(part.data()), rows, kWidth),
                           View<bf16, 2>(reinterpret_cast<bf16*>(sum.data()), rows, kWidth));
    };
    once();
    device.synchronize("a sum");
    const auto graph = device.capture([&] {
      for (int i = 0; i < kCalls; ++i) once();
    });
    for (int i = 0; i < kReplays; ++i) {
      ranks[r]->barrier();
      const auto start = Clock::now();
      graph->replay();
      device.synchronize("sums");
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kCalls;
      if (r == 0) best = best == 0 ? us : std::min(best, us);
    }
    ranks[r]->barrier();  // memory that a peer may still need is freed behind it
    if (auto failed = ranks[r]->failure()) throw Error(failed->what);
  };
  const auto guarded = [&](size_t r) {
    try {
      work(r);
    } catch (const std::exception& e) {
      ranks[r]->fail(e.what());
      if (r == 0) problem = e.what();
    }
  };
  std::vector<std::thread> others;
  for (size_t r = 1; r < devices.size(); ++r) others.emplace_back(guarded, r);
  guarded(0);
  for (auto& t : others) t.join();
  devices.front()->bind();
  if (!problem.empty()) fail("{}", problem);
  return best;
}

/// GB a second from the first GPU to the second.
double copy_rate(const Devices& devices) {
  constexpr size_t kBytes = size_t{256} << 20;
  const ops::DeviceBuffer from(*devices[0], kBytes), to(*devices[1], kBytes);
  devices[1]->synchronize("clearing memory");
  const auto copy = [&] {
    const auto code = cudaMemcpyPeerAsync(to.data(), devices[1]->ordinal(), from.data(), devices[0]->ordinal(), kBytes,
                                          static_cast<cudaStream_t>(devices[0]->stream()));
    if (code != cudaSuccess) fail("CUDA: copying between GPUs: {}", cudaGetErrorString(code));
  };
  copy();
  devices[0]->synchronize("copying between GPUs");
  const auto start = Clock::now();
  for (int i = 0; i < 4; ++i) copy();
  devices[0]->synchronize("copying between GPUs");
  return 4 * kBytes / std::chrono::duration<double>(Clock::now() - start).count() / 1e9;
}

}  // namespace

std::vector<Measurement> measure_links() {
  std::vector<Measurement> rows;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) return rows;
  Devices devices;
  const auto attempt = [&](const std::string& what, const auto& measure) {
    try {
      measure();
    } catch (const Error& e) {
      rows.push_back({what + ": " + e.what(), 0, ""});
    }
  };
  attempt("GPUs", [&] { devices = ops::devices_like(ops::open_device("cuda"), count); });
  if (devices.empty()) return rows;
  const auto sums = [&](const char* over, const auto& connect) {
    attempt(fmt::format("sums over {}", over), [&] {
      const auto ranks = connect(devices);
      for (const int64_t tokens : {1, 16, 64}) {
        rows.push_back({fmt::format("all-reduce of {} x {} fp32 on {} GPUs, {}", tokens, kWidth, count, over),
                        sum_time<float>(devices, ranks, tokens), "us"});
        rows.push_back({fmt::format("all-reduce of {} x {} bf16 on {} GPUs, {}", tokens, kWidth, count, over),
                        sum_time<bf16>(devices, ranks, tokens), "us"});
      }
    });
  };
  sums("peer memory", connect_peers);  // from here on copies need not go through the host either
  attempt("copy between GPUs", [&] { rows.push_back({"copy from GPU 0 to GPU 1", copy_rate(devices), "GB/s"}); });
  sums("NCCL", connect_nccl);
  return rows;
}

#else

std::vector<Measurement> measure_links() {
  return {};
}

#endif

}  // namespace fathom::dist

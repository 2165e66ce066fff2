// Ranks on the GPUs at hand, each with its thread.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "dist/gpus.h"
#include "ops/compute_device.h"

namespace fathom::gpu_ranks {

using Devices = std::vector<std::shared_ptr<ops::ComputeDevice>>;
using Ranks = std::vector<std::unique_ptr<dist::Communicator>>;
using Clock = std::chrono::steady_clock;

/// Two GPUs, opened once.
inline const Devices& two_gpus() {
  static const Devices devices = [] {
    ops::expect_several_devices();
    return ops::devices_like(ops::open_device("cuda"), 2);
  }();
  return devices;
}

inline double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// `work(rank)` on a thread for each rank, to which its GPU is bound.
template <typename Work>
void on_all(const Devices& devices, const Work& work) {
  std::vector<std::thread> threads;
  for (size_t r = 0; r < devices.size(); ++r)
    threads.emplace_back([&, r] {
      try {
        devices[r]->bind();
        work(r);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << r << ": " << e.what();
      }
    });
  for (auto& t : threads) t.join();
  devices.front()->bind();
}

/// Numbers in a device's memory.
template <typename T>
class Numbers {
 public:
  Numbers(ops::ComputeDevice& device, int64_t rows, int64_t columns)
      : device_(device),
        rows_(rows),
        columns_(columns),
        memory_(device, std::max<size_t>(1, static_cast<size_t>(rows * columns)) * sizeof(T)) {}
  Numbers(ops::ComputeDevice& device, int64_t rows, int64_t columns, const std::vector<T>& values)
      : Numbers(device, rows, columns) {
    device.upload(memory_.data(), values.data(), values.size() * sizeof(T));
  }
  View<T, 2> view() const { return View<T, 2>(reinterpret_cast<T*>(memory_.data()), rows_, columns_); }
  std::vector<T> values() const {
    std::vector<T> v(static_cast<size_t>(rows_ * columns_));
    device_.download(v.data(), memory_.data(), v.size() * sizeof(T));
    return v;
  }

 private:
  ops::ComputeDevice& device_;
  int64_t rows_, columns_;
  ops::DeviceBuffer memory_;
};

}  // namespace fathom::gpu_ranks

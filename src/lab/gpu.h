// The part of the CUDA runtime that the lab uses, behind plain types, so that everything else compiles without CUDA.
//
// A binary built with CUDA starts and runs on machines without a GPU or driver: nothing here touches the driver before
// the first call, and unavailable() says why there is no device. Every failing call throws Failure with CUDA's text.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "base/error.h"
#include "ops/op.h"

namespace fathom::lab::gpu {

/// A CUDA call failed. After a fault inside a kernel nothing else works in this process.
class Failure : public Error {
 public:
  using Error::Error;
};

struct Device {
  ops::DeviceInfo info;
  std::string name;
  int64_t memory_bytes = 0;
  int64_t shared_bytes_per_sm = 0;
  int driver = 0, runtime = 0;  // 13000 = 13.0
};

/// Empty when a GPU can be used; otherwise the reason, as the end of a sentence ("this build has no CUDA kernels").
std::string unavailable();
/// The current device. Throws Error with the reason of unavailable().
Device current();
/// How many devices there are; 0 when unavailable() has a reason.
int count();
/// Device `ordinal` of count().
Device describe(int ordinal);

/// Device memory of its own.
class Memory {
 public:
  Memory() = default;
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

void upload(void* device, const void* host, size_t bytes);
void download(void* host, const void* device, size_t bytes);
void copy(void* to, const void* from, size_t bytes);
/// The same as work of a stream.
void copy_on(void* stream, void* to, const void* from, size_t bytes);
void fill(void* device, int byte, size_t bytes);
/// Waits, and throws what went wrong in the kernels launched so far. `doing` names them in the message.
void synchronize(const std::string& doing);
size_t free_memory();

/// Work captured once and replayed.
class Graph {
 public:
  explicit Graph(const std::function<void(void* stream)>& work);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  /// Replays and returns the milliseconds between events around it.
  double replay();

 private:
  void* stream_ = nullptr;
  void* graph_ = nullptr;
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

/// Runs `work` on a fresh stream, without a graph, and waits for it.
void run_on_stream(const std::function<void(void* stream)>& work);

/// Measured on this device: bytes read plus bytes written a second of a large copy, and the matrix rates in FLOP/s of
/// register-resident products (0 where the device has no such instruction).
struct Rates {
  double copy = 0;
  double fp32 = 0;
  double bf16_mma = 0, bf16_wgmma = 0;
  double fp8_mma = 0;
};
Rates measure_rates();

}  // namespace fathom::lab::gpu

// Memory and work division of the fast CPU variants.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

#include "base/threads.h"

namespace fathom::ops::cpu {

/// Scratch memory of the calling thread, 64-byte aligned, that only grows: the body of one parallel piece may use it,
/// and nothing survives in it from one piece to the next. `Tag` keeps buffers apart that are alive at the same time.
template <typename Tag>
std::byte* thread_scratch(size_t bytes) {
  struct Free {
    void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<std::byte, Free> memory;
  thread_local size_t capacity = 0;
  if (bytes > capacity) {
    memory.reset();
    capacity = 0;
    memory.reset(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{64})));
    capacity = bytes;
  }
  return memory.get();
}

constexpr int64_t round_up(int64_t n, int64_t step) {
  return (n + step - 1) / step * step;
}

/// Runs body(begin, end) over [0, n): on the calling thread when the whole costs less than it takes to wake another
/// one, else in pieces of a multiple of `step`, a few for each thread. `cost` is in multiply-adds or the like.
template <typename Body>
void split(int64_t n, int64_t step, double cost, const Body& body) {
  constexpr double kWorthAThread = 400e3;  // about 10 us of work
  if (n <= 0) return;
  const int64_t threads = thread_count();
  if (threads == 1 || cost < kWorthAThread || n <= step) return body(int64_t{0}, n);
  const int64_t pieces = std::clamp<int64_t>(static_cast<int64_t>(cost / kWorthAThread), 2, 4 * threads);
  parallel_for(n, round_up((n + pieces - 1) / pieces, step), body);
}

/// Takes consecutive 64-byte aligned arrays out of one block of memory; with a null block it only counts.
class Carver {
 public:
  explicit Carver(void* block) : at_(static_cast<std::byte*>(block)) {}

  template <typename T>
  T* take(int64_t count) {
    T* const out = reinterpret_cast<T*>(at_ ? at_ + used_ : nullptr);
    used_ += static_cast<size_t>(round_up(std::max<int64_t>(count, 0) * static_cast<int64_t>(sizeof(T)), 64));
    return out;
  }
  size_t used() const { return used_; }

 private:
  std::byte* at_;
  size_t used_ = 0;
};

}  // namespace fathom::ops::cpu

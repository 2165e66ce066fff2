// A sparse attention case on the GPU: uploads buffers, translates views, reads results back.
#pragma once

#include <cuda_runtime.h>

#include <map>
#include <vector>

#include "base/error.h"
#include "ops/sparse_attention_case.h"

namespace fathom::gpu {

inline void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) fail("{}: {}", what, cudaGetErrorString(code));
}

/// Device memory that is freed with its owner.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  explicit DeviceMemory(size_t bytes) : bytes_(bytes) { check(cudaMalloc(&data_, bytes ? bytes : 16), "cudaMalloc"); }
  DeviceMemory(DeviceMemory&& o) noexcept : data_(o.data_), bytes_(o.bytes_) { o.data_ = nullptr; }
  DeviceMemory& operator=(DeviceMemory&& o) noexcept {
    std::swap(data_, o.data_), std::swap(bytes_, o.bytes_);
    return *this;
  }
  ~DeviceMemory() { cudaFree(data_); }
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void fill(int byte) { check(cudaMemset(data_, byte, bytes_ ? bytes_ : 16), "cudaMemset"); }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// Device twins of the vectors of a SparseCase.
class DeviceCase {
 public:
  explicit DeviceCase(ops::SparseCase& c) : host_(c) {
    visit([&](auto& v) {
      auto& m = twins_.emplace_back(v.size() * sizeof(v[0]));
      check(cudaMemcpy(m.data(), v.data(), m.bytes(), cudaMemcpyHostToDevice), "upload");
    });
  }

  /// The case's arguments with device pointers.
  ops::SparseAttentionArgs args() {
    ops::SparseAttentionArgs a = host_.args();
    move(a.q.data), move(a.window.pool.data), move(a.extra.pool.data), move(a.window.index.data);
    move(a.extra.index.data), move(a.window.length.data), move(a.extra.length.data), move(a.sink.data);
    move(a.position.data), move(a.rope_freq.data), move(a.out.data), move(a.lse.data), move(a.out_codes.data);
    move(a.out_scale.data);
    return a;
  }

  /// Overwrites the outputs on the device with impossible values.
  void poison() {
    host_.poison();
    copy(cudaMemcpyHostToDevice);
  }
  void download() { copy(cudaMemcpyDeviceToHost); }

 private:
  template <typename F>
  void visit(F f) {
    f(host_.q), f(host_.window_pool), f(host_.extra_pool), f(host_.window_index), f(host_.extra_index);
    f(host_.window_length), f(host_.extra_length), f(host_.position), f(host_.sink), f(host_.rope_freq);
    f(host_.out), f(host_.lse), f(host_.codes), f(host_.code_scale);
  }
  template <typename T>
  void move(T*& p) {
    if (!p) return;
    size_t i = 0;
    visit([&](auto& v) {
      if (static_cast<const void*>(v.data()) == p) p = static_cast<T*>(twins_[i].data());
      ++i;
    });
  }
  void copy(cudaMemcpyKind kind) {
    size_t i = 0;
    visit([&](auto& v) {
      if (i >= 10) {
        void* device = twins_[i].data();
        void* host = v.data();
        check(cudaMemcpy(kind == cudaMemcpyHostToDevice ? device : host, kind == cudaMemcpyHostToDevice ? host : device,
                         v.size() * sizeof(v[0]), kind),
              "copy of outputs");
      }
      ++i;
    });
  }

  ops::SparseCase& host_;
  std::vector<DeviceMemory> twins_;
};

}  // namespace fathom::gpu

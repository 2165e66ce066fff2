// Memory of a device and views of it, as the models lay them out.
#pragma once

#include <cstddef>
#include <vector>

#include "base/view.h"
#include "model/activations.h"
#include "ops/compute_device.h"

namespace fathom {

/// Lays views out one behind the other; with a null base it only counts.
class Layout {
 public:
  explicit Layout(std::byte* base) : base_(base) {}

  template <typename T, typename... Sizes>
  View<T, sizeof...(Sizes)> take(Sizes... sizes) {
    View<T, sizeof...(Sizes)> view(base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr,
                                   static_cast<int64_t>(sizes)...);
    used_ += (static_cast<size_t>(view.count()) * sizeof(T) + 255) / 256 * 256;
    return view;
  }
  Quantized quantized(int64_t rows, int64_t columns) {
    return {take<e4m3>(rows, columns), take<e8m0>(rows, columns / 128)};
  }
  size_t used() const { return used_; }

 private:
  std::byte* base_;
  size_t used_ = 0;
};

template <typename T>
View<const T, 1> view_of(const std::vector<T>& v) {
  return View<const T, 1>(v.data(), v.size());
}

/// Makes `buffer` at least `bytes` large; frees the old memory before the new one is taken. Whether it moved: what it
/// held is gone then.
inline bool grow(ops::DeviceBuffer& buffer, ops::ComputeDevice& device, size_t bytes, ops::DeviceBuffer::Kind kind) {
  if (bytes <= buffer.size()) return false;
  buffer = ops::DeviceBuffer();
  buffer = ops::DeviceBuffer(device, bytes, kind);
  return true;
}

}  // namespace fathom

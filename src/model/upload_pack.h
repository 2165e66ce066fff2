// Small host arrays that go to a device together, in one copy.
#pragma once

#include <bit>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#include "base/view.h"
#include "ops/compute_device.h"

namespace fathom {

class UploadPack {
 public:
  enum When { where_needed, always };

  /// where_needed: where the device shares the host's memory nothing is copied and views stay what they are.
  explicit UploadPack(ops::ComputeDevice& device, When when = where_needed) : device_(device), when_(when) {}

  /// `view` is of host memory until send(), of the device's from then on until the next send().
  template <typename T, int Rank>
  void add(View<const T, Rank>& view) {
    if (when_ == where_needed && device_.shares_host_memory()) return;
    const size_t bytes = static_cast<size_t>(view.count()) * sizeof(T);
    const size_t at = staging_.size();
    staging_.resize(at + (bytes + kAlignment - 1) / kAlignment * kAlignment);
    if (bytes > 0) std::memcpy(staging_.data() + at, view.data, bytes);
    places_.push_back([&view, at](std::byte* memory) { view.data = reinterpret_cast<const T*>(memory + at); });
  }

  void send() {
    sent_.clear(), sent_.swap(staging_);  // nothing is left of them if this throws
    const auto places = std::exchange(places_, {});
    if (sent_.size() > memory_.size()) {
      memory_ = ops::DeviceBuffer();
      memory_ = ops::DeviceBuffer(device_, std::bit_ceil(sent_.size()));
      ++generation_;
    }
    if (!sent_.empty()) device_.upload(memory_.data(), sent_.data(), sent_.size());
    for (const auto& place : places) place(memory_.data());
  }

  /// Changes whenever the memory has moved.
  int64_t generation() const { return generation_; }

 private:
  static constexpr size_t kAlignment = 256;
  ops::ComputeDevice& device_;
  const When when_;
  std::vector<std::byte> staging_, sent_;
  std::vector<std::function<void(std::byte*)>> places_;
  ops::DeviceBuffer memory_;
  int64_t generation_ = 0;
};

}  // namespace fathom

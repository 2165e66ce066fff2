#include "ops/compute_device.h"

#include <stdlib.h>

#include <cstring>
#include <new>

#include "base/error.h"

namespace fathom::ops {

#ifdef FATHOM_HAVE_CUDA
/// Null and the reason when there is none.
std::shared_ptr<ComputeDevice> open_cuda(std::string& why, int ordinal);
#endif

namespace {

class HostDevice final : public ComputeDevice {
 public:
  const DeviceInfo& info() const override { return info_; }
  std::string name() const override { return "cpu"; }
  bool shares_host_memory() const override { return true; }
  void* stream() const override { return nullptr; }

  std::byte* allocate(size_t bytes) override {
    auto* data = static_cast<std::byte*>(::operator new (bytes, std::align_val_t{256}));
    std::memset(data, 0, bytes);
    return data;
  }
  void release(std::byte* data) noexcept override { ::operator delete (data, std::align_val_t{256}); }
  std::byte* allocate_host(size_t bytes) override { return allocate(bytes); }
  void release_host(std::byte* data) noexcept override { release(data); }

  void upload(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, size_t bytes) override { copy(to, from, bytes); }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void zero(void* to, size_t bytes) override {
    if (bytes > 0) std::memset(to, 0, bytes);
  }
  void synchronize(const char*) override {}
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>&) override { return nullptr; }

 private:
  DeviceInfo info_;
};

/// A graph of a device that only counts.
class NoGraph final : public DeviceGraph {
 public:
  void replay() override {}
};

}  // namespace

std::byte* CountingDevice::take(size_t bytes, int64_t& count) {
  auto* data = reinterpret_cast<std::byte*>(next_);
  next_ += (bytes + 4095) / 4096 * 4096 + 4096;
  sizes_[data] = static_cast<int64_t>(bytes);
  count += static_cast<int64_t>(bytes);
  return data;
}

void CountingDevice::give(std::byte* data, int64_t& count) noexcept {
  const auto at = sizes_.find(data);
  if (at == sizes_.end()) return;
  count -= at->second;
  sizes_.erase(at);
}

std::unique_ptr<DeviceGraph> CountingDevice::capture(const std::function<void()>& work) {
  work();
  ++graphs_;
  return std::make_unique<NoGraph>();
}

std::shared_ptr<ComputeDevice> host_device() {
  static const auto device = std::make_shared<HostDevice>();
  return device;
}

void expect_several_devices() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
}

std::shared_ptr<ComputeDevice> open_device(std::string_view name) {
  if (name == "cpu") return host_device();
  if (name != "cuda" && name != "auto") fail("device {}: there are cpu, cuda and auto", name);
  std::string why = "this build has no CUDA kernels";
#ifdef FATHOM_HAVE_CUDA
  if (auto device = open_cuda(why, 0)) return device;
#endif
  if (name == "auto") return host_device();
  fail("device cuda: {}", why);
}

std::vector<std::shared_ptr<ComputeDevice>> devices_like(const std::shared_ptr<ComputeDevice>& first, int count) {
  std::vector<std::shared_ptr<ComputeDevice>> all{first};
  while (static_cast<int>(all.size()) < count) {
    if (first->shares_host_memory() || first->only_counts()) {
      all.push_back(first);
      continue;
    }
#ifdef FATHOM_HAVE_CUDA
    std::string why;
    auto next = open_cuda(why, static_cast<int>(all.size()));
    first->bind();
    if (!next) fail("{} GPUs are needed, but GPU {}: {}", count, all.size(), why);
    if (next->info().compute_capability != first->info().compute_capability ||
        next->info().sm_count != first->info().sm_count)
      fail("tensor parallel needs GPUs of one kind: GPU 0 is {}, GPU {} is {}", first->name(), all.size(),
           next->name());
    all.push_back(std::move(next));
#endif
  }
  return all;
}

}  // namespace fathom::ops

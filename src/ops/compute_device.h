// A device that ops run on: its memory, copies to and from it, its stream, its graphs.
//
// Everything above the ops asks this interface for memory and never which device it is. Work (copies, ops, graphs)
// happens in the order it is asked for, on one stream; only download() and synchronize() wait for it.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/recorder.h"
#include "ops/op.h"

namespace fathom::ops {

class KernelTrace;

/// Work recorded once, with the addresses it had then.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  virtual void replay() = 0;
};

/// Memory of a device in bytes; all 0 for the processor.
struct DeviceMemoryUse {
  int64_t total = 0;
  int64_t free = 0;          // now
  int64_t free_at_open = 0;  // when this process opened the device
};

/// Every call that fails throws Error with the device's own words.
class ComputeDevice {
 public:
  virtual ~ComputeDevice() = default;
  virtual const DeviceInfo& info() const = 0;
  virtual std::string name() const = 0;
  /// Whether the host can read and write the device's memory.
  virtual bool shares_host_memory() const = 0;
  virtual void* stream() const = 0;
  virtual DeviceMemoryUse memory_use() const { return {}; }
  /// Its number among devices of its kind.
  virtual int ordinal() const { return 0; }
  /// The calling thread is about to use this device: every thread calls it once, and again for another device.
  virtual void bind() const {}
  /// What a trace says of the device; no name: nothing.
  virtual DeviceFacts facts() const { return {}; }
  /// True for a device that hands out addresses and runs nothing: what is built on it says how much memory it takes.
  virtual bool only_counts() const { return false; }

  /// Zeroed memory at a multiple of 256 bytes. Throws Error when there is not so much.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* data) noexcept = 0;
  /// Host memory that downloads are fast to.
  virtual std::byte* allocate_host(size_t bytes) = 0;
  virtual void release_host(std::byte* data) noexcept = 0;

  /// Host to device; `from` may change as soon as this returns.
  virtual void upload(void* to, const void* from, size_t bytes) = 0;
  /// Device to host; done when this returns.
  virtual void download(void* to, const void* from, size_t bytes) = 0;
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  /// The first `bytes` of each of `rows` rows.
  virtual void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r)
      copy(static_cast<std::byte*>(to) + static_cast<size_t>(r) * to_pitch,
           static_cast<const std::byte*>(from) + static_cast<size_t>(r) * from_pitch, bytes);
  }
  virtual void zero(void* to, size_t bytes) = 0;
  /// Waits; `doing` names what failed in the message.
  virtual void synchronize(const char* doing) = 0;

  /// Runs what `work` asks the device for beside what comes behind this call, up to join() of the branch. Both see
  /// everything older. Where a device cannot, work is done at once.
  static constexpr int kBranches = 2;
  virtual void fork(int branch, const std::function<void()>& work) {
    static_cast<void>(branch);
    work();
  }
  virtual void join(int branch) { static_cast<void>(branch); }
  /// Records what `work` asks the device for, without doing it. Null: this device knows no graphs.
  virtual std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) = 0;
  /// Inside capture(): pieces of work that were asked for so far. Else 0.
  virtual int64_t captured() const { return 0; }
  /// What records its kernels; null, and the reason if it should be able to: nothing does.
  virtual KernelTrace* kernel_trace(std::string& why) const {
    static_cast<void>(why);
    return nullptr;
  }
};

/// The processor and its memory.
std::shared_ptr<ComputeDevice> host_device();
/// Called before any device is opened by who will use several together: all kernels are loaded when a GPU is opened,
/// because loading one later may have to wait for work that waits for another GPU.
void expect_several_devices();

/// "cpu", "cuda", or "auto": the GPU where there is one. Throws Error saying why there is no such device.
std::shared_ptr<ComputeDevice> open_device(std::string_view name);
/// `count` devices of the kind of `first`, which is one of them: the processor itself each time, or GPUs 0, 1, ...
/// Throws Error when there are fewer, or when they are not alike.
std::vector<std::shared_ptr<ComputeDevice>> devices_like(const std::shared_ptr<ComputeDevice>& first, int count);

/// Stands in for a device to find out what a model, a cache and their scratch memory take before anything is allocated.
/// The addresses it gives must not be read or written.
class CountingDevice final : public ComputeDevice {
 public:
  explicit CountingDevice(const ComputeDevice& like) : info_(like.info()), name_(like.name()) {}

  /// Bytes that are allocated now on the device, and in its host memory.
  int64_t allocated() const { return allocated_; }
  int64_t allocated_host() const { return allocated_host_; }
  /// Graphs that were captured.
  int64_t graphs() const { return graphs_; }

  const DeviceInfo& info() const override { return info_; }
  std::string name() const override { return name_; }
  bool shares_host_memory() const override { return false; }
  bool only_counts() const override { return true; }
  void* stream() const override { return nullptr; }
  std::byte* allocate(size_t bytes) override { return take(bytes, allocated_); }
  void release(std::byte* data) noexcept override { give(data, allocated_); }
  std::byte* allocate_host(size_t bytes) override { return take(bytes, allocated_host_); }
  void release_host(std::byte* data) noexcept override { give(data, allocated_host_); }
  void upload(void*, const void*, size_t) override {}
  void download(void*, const void*, size_t) override {}
  void copy(void*, const void*, size_t) override {}
  void zero(void*, size_t) override {}
  void synchronize(const char*) override {}
  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) override;

 private:
  std::byte* take(size_t bytes, int64_t& count);
  void give(std::byte* data, int64_t& count) noexcept;

  DeviceInfo info_;
  std::string name_;
  int64_t allocated_ = 0, allocated_host_ = 0, graphs_ = 0;
  uintptr_t next_ = uintptr_t{1} << 44;
  std::unordered_map<std::byte*, int64_t> sizes_;
};

/// Memory of a device (or its host memory), freed with its owner.
class DeviceBuffer {
 public:
  enum class Kind { device, host };
  DeviceBuffer() = default;
  DeviceBuffer(ComputeDevice& device, size_t bytes, Kind kind = Kind::device)
      : device_(&device),
        kind_(kind),
        data_(kind == Kind::device ? device.allocate(bytes) : device.allocate_host(bytes)),
        size_(bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_), std::swap(kind_, other.kind_);
    std::swap(data_, other.data_), std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() {
    if (data_ && kind_ == Kind::device) device_->release(data_);
    if (data_ && kind_ == Kind::host) device_->release_host(data_);
  }
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  ComputeDevice* device_ = nullptr;
  Kind kind_ = Kind::device;
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace fathom::ops

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <vector>

#include "model/weights.h"

namespace fathom {
namespace {

/// Bump allocator over anonymous maps: pages count as resident only once they are written.
class HostMemory final : public WeightMemory {
 public:
  ~HostMemory() override {
    for (const Chunk& c : chunks_) ::munmap(c.data, c.size);
  }

  std::byte* allocate(size_t bytes) override {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    allocated_ += bytes;
    if (chunks_.empty() || chunks_.back().used + bytes > chunks_.back().size) add_chunk(bytes);
    Chunk& c = chunks_.back();
    std::byte* at = static_cast<std::byte*>(c.data) + c.used;
    c.used += bytes;
    return at;
  }

  void upload(std::byte* to, std::span<const std::byte> from) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }

  size_t allocated() const override { return allocated_; }
  std::shared_ptr<ops::ComputeDevice> shared_device() const override { return ops::host_device(); }

 private:
  static constexpr size_t kAlignment = 64, kChunk = size_t{64} << 20;
  struct Chunk {
    void* data;
    size_t size, used;
  };

  void add_chunk(size_t at_least) {
    const size_t size = std::max(kChunk, (at_least + 4095) / 4096 * 4096);
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) throw std::bad_alloc();
    chunks_.push_back({data, size, 0});
  }

  std::vector<Chunk> chunks_;
  size_t allocated_ = 0;
};

/// Bump allocator over large allocations of a device.
class DeviceMemory final : public WeightMemory {
 public:
  explicit DeviceMemory(std::shared_ptr<ops::ComputeDevice> device) : device_(std::move(device)) {}

  void reserve(size_t bytes) override {
    if (bytes == 0) return;
    chunks_.emplace_back(*device_, bytes);
    used_ = 0;
  }
  std::byte* allocate(size_t bytes) override {
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    allocated_ += bytes;
    if (chunks_.empty() || used_ + bytes > chunks_.back().size()) {
      chunks_.emplace_back(*device_, std::max(kChunk, bytes));
      used_ = 0;
    }
    std::byte* at = chunks_.back().data() + used_;
    used_ += bytes;
    return at;
  }
  void upload(std::byte* to, std::span<const std::byte> from) override {
    device_->upload(to, from.data(), from.size());
  }
  size_t allocated() const override { return allocated_; }
  std::shared_ptr<ops::ComputeDevice> shared_device() const override { return device_; }

 private:
  static constexpr size_t kAlignment = 256, kChunk = size_t{32} << 20;
  std::shared_ptr<ops::ComputeDevice> device_;  // outlives the chunks
  std::vector<ops::DeviceBuffer> chunks_;
  size_t used_ = 0, allocated_ = 0;  // of the last chunk; in all
};

}  // namespace

std::unique_ptr<WeightMemory> make_memory(std::shared_ptr<ops::ComputeDevice> device) {
  if (device->shares_host_memory()) return std::make_unique<HostMemory>();
  return std::make_unique<DeviceMemory>(std::move(device));
}

}  // namespace fathom

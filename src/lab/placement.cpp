#include "lab/placement.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace fathom::lab {

namespace {

constexpr size_t guard_bytes = 1024;
// 0x7F7F7F7F is a slot or page number far outside any pool, 3.4e38 as a float and NaN as an e4m3 code: what is read
// past the end shows.
constexpr std::byte guard_byte{0x7F};

std::byte* host_alloc(size_t bytes) {
  void* p = std::aligned_alloc(512, std::max<size_t>(512, (bytes + 511) / 512 * 512));
  if (!p) throw std::bad_alloc();
  return static_cast<std::byte*>(p);
}

}  // namespace

void Workspace::Free::operator()(std::byte* p) const {
  std::free(p);
}

Workspace::Workspace(ops::Backend backend, size_t bytes) : backend_(backend) {
  if (bytes == 0) return;
  if (backend == ops::Backend::cpu) {
    host_.reset(host_alloc(bytes));
    std::memset(host_.get(), 0, bytes);
  } else {
    device_ = gpu::Memory(bytes);
    gpu::fill(device_.data(), 0, bytes);
  }
}

/// [unused up to the wanted alignment][guard][data][guard], in memory of one backend.
struct Placement::Block {
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> host;
  gpu::Memory device;
  std::byte* base = nullptr;
  size_t lead = 0, bytes = 0, total = 0;  // data is base[lead, lead + bytes), memory base[0, total)
};

Placement::Placement(const Case& c, ops::Backend backend, Guards guards) : backend_(backend), guards_(guards) {
  const size_t guard = guards == Guards::zones ? guard_bytes : 0;
  for (const Buffer& b : c.buffers) {
    Block block;
    block.bytes = b.bytes.size();
    // Allocations start at a multiple of 512, so base + lead is a multiple of `align` and of nothing larger. Without
    // guards the data ends where the allocation ends, so that a tool sees the first byte read past it.
    block.lead = guard + static_cast<size_t>(b.align);
    block.total = block.lead + block.bytes + guard;
    if (backend == ops::Backend::cpu) {
      block.host.reset(host_alloc(block.total));
      block.base = block.host.get();
    } else {
      block.device = gpu::Memory(block.total);
      block.base = block.device.data();
    }
    addresses_.push_back(block.base + block.lead);
    blocks_.push_back(std::move(block));
  }
}

Placement::~Placement() = default;
Placement::Placement(Placement&&) noexcept = default;

void Placement::load(const Case& c) {
  std::vector<std::byte> image;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Buffer& b = c.buffers[i];
    Block& block = blocks_[i];
    image.assign(block.total, guard_byte);
    std::copy(b.bytes.begin(), b.bytes.end(), image.begin() + static_cast<ptrdiff_t>(block.lead));
    if (backend_ == ops::Backend::cpu)
      std::memcpy(block.base, image.data(), block.total);
    else if (block.total > 0)
      gpu::upload(block.base, image.data(), block.total);
  }
}

void Placement::load_from(const Placement& other) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].bytes == 0) continue;
    if (backend_ == ops::Backend::cpu)
      std::memcpy(addresses_[i], other.addresses_[i], blocks_[i].bytes);
    else
      gpu::copy(addresses_[i], other.addresses_[i], blocks_[i].bytes);
  }
}

Contents Placement::fetch() const {
  Contents contents(blocks_.size());
  for (size_t i = 0; i < blocks_.size(); ++i) {
    contents[i].resize(blocks_[i].bytes);
    if (blocks_[i].bytes == 0) continue;
    if (backend_ == ops::Backend::cpu)
      std::memcpy(contents[i].data(), addresses_[i], blocks_[i].bytes);
    else
      gpu::download(contents[i].data(), addresses_[i], blocks_[i].bytes);
  }
  return contents;
}

std::string Placement::damage(const Case& c, const Contents& now) const {
  std::vector<std::byte> image;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const Buffer& b = c.buffers[i];
    if (b.role == Role::in && now[i] != b.bytes) {
      const auto at = std::mismatch(now[i].begin(), now[i].end(), b.bytes.begin()).first - now[i].begin();
      return fmt::format("{}: an input was changed, at byte {}", b.name, at);
    }
    if (guards_ == Guards::none) continue;
    const Block& block = blocks_[i];
    image.resize(block.total);
    if (backend_ == ops::Backend::cpu)
      std::memcpy(image.data(), block.base, block.total);
    else
      gpu::download(image.data(), block.base, block.total);
    for (size_t k = 0; k < block.total; ++k) {
      if (k == block.lead) k += block.bytes;
      if (k < block.total && image[k] != guard_byte)
        return fmt::format("{}: memory outside of it was written, {} bytes from its start (it has {})", b.name,
                           static_cast<int64_t>(k) - static_cast<int64_t>(block.lead), block.bytes);
    }
  }
  return "";
}

Addresses addresses_of(Contents& contents) {
  Addresses addresses;
  for (auto& c : contents) addresses.push_back(c.data());
  return addresses;
}

}  // namespace fathom::lab

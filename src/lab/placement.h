// The buffers of a case in memory that a variant can use: on the host or on the device, with guard zones around them.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "lab/case.h"
#include "lab/gpu.h"

namespace fathom::lab {

/// Whole contents of the buffers of a case, in their order.
using Contents = std::vector<std::vector<std::byte>>;

enum class Guards {
  zones,  // 1 KiB before and behind each buffer, checked by damage()
  none,   // every buffer ends where its allocation ends: for compute-sanitizer, and for timing
};

class Placement {
 public:
  Placement(const Case& c, ops::Backend backend, Guards guards);
  ~Placement();
  Placement(Placement&&) noexcept;

  const Addresses& addresses() const { return addresses_; }

  /// Inputs as the case has them, outputs poisoned, guard zones painted. May be called again.
  void load(const Case& c);
  /// The same contents as another placement of the same case on the same backend, without a detour over the host.
  void load_from(const Placement& other);
  /// What the buffers hold now.
  Contents fetch() const;
  /// Empty, or which guard zone was written or which input was changed. `now` is what fetch() gave.
  std::string damage(const Case& c, const Contents& now) const;

 private:
  struct Block;
  ops::Backend backend_;
  Guards guards_;
  std::vector<Block> blocks_;
  Addresses addresses_;
};

/// Addresses of contents on the host, as the checks of a case take them.
Addresses addresses_of(Contents& contents);

/// Scratch memory on one backend, zeroed at the start, 256-byte aligned.
class Workspace {
 public:
  Workspace(ops::Backend backend, size_t bytes);
  void* data() const { return backend_ == ops::Backend::cpu ? host_.get() : static_cast<void*>(device_.data()); }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  ops::Backend backend_;
  std::unique_ptr<std::byte, Free> host_;
  gpu::Memory device_;
};

}  // namespace fathom::lab

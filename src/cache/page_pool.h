// Reference-counted page numbers out of a fixed set. Knows nothing of what pages hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fathom {

class PagePool {
 public:
  explicit PagePool(int32_t total);

  int32_t total() const { return static_cast<int32_t>(references_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t references(int32_t page) const { return references_[static_cast<size_t>(page)]; }

  /// A page with one reference. The caller has checked that free() > 0.
  int32_t acquire();
  void share(int32_t page) { ++references_[static_cast<size_t>(page)]; }
  void release(int32_t page);

 private:
  std::vector<int32_t> references_;
  std::vector<int32_t> free_;
};

}  // namespace fathom

#include "cache/page_pool.h"

#include <stdexcept>

namespace fathom {

PagePool::PagePool(int32_t total) : references_(static_cast<size_t>(total), 0) {
  for (int32_t page = total - 1; page >= 0; --page) free_.push_back(page);  // low numbers go first
}

int32_t PagePool::acquire() {
  if (free_.empty()) throw std::logic_error("PagePool::acquire without a free page");
  const int32_t page = free_.back();
  free_.pop_back();
  references_[static_cast<size_t>(page)] = 1;
  return page;
}

void PagePool::release(int32_t page) {
  int32_t& count = references_[static_cast<size_t>(page)];
  if (count <= 0) throw std::logic_error("PagePool::release of a free page");
  if (--count == 0) free_.push_back(page);
}

}  // namespace fathom

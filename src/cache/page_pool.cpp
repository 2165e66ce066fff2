#include "cache/page_pool.h"

#include <stdexcept>
#include <string>

namespace fathom {

PagePool::PagePool(int32_t total) : pages_(static_cast<size_t>(total)) {
  for (int32_t page = total - 1; page >= 0; --page) free_.push_back(page);  // low numbers go first
}

PagePool::Counts& PagePool::owned(int32_t page, const char* what) {
  Counts& counts = pages_.at(static_cast<size_t>(page));
  if (counts.sequences + counts.holds <= 0)
    throw std::logic_error(std::string("PagePool::") + what + " of a free page");
  return counts;
}

int32_t PagePool::acquire() {
  if (free_.empty()) throw std::logic_error("PagePool::acquire without a free page");
  const int32_t page = free_.back();
  free_.pop_back();
  pages_[static_cast<size_t>(page)].sequences = 1;
  return page;
}

void PagePool::share(int32_t page) {
  Counts& counts = owned(page, "share");
  if (counts.sequences++ == 0) --cached_;
}

void PagePool::release(int32_t page) {
  Counts& counts = owned(page, "release");
  if (counts.sequences <= 0) throw std::logic_error("PagePool::release of a page that no sequence has");
  if (--counts.sequences > 0) return;
  if (counts.holds > 0)
    ++cached_;
  else
    free_.push_back(page);
}

void PagePool::hold(int32_t page) {
  ++owned(page, "hold").holds;
}

void PagePool::drop(int32_t page) {
  Counts& counts = owned(page, "drop");
  if (counts.holds <= 0) throw std::logic_error("PagePool::drop of a page that is not held");
  if (--counts.holds > 0 || counts.sequences > 0) return;
  --cached_;
  free_.push_back(page);
}

}  // namespace fathom

// Reference-counted page numbers out of a fixed set. Knows nothing of what pages hold.
//
// A page has two kinds of owners: sequences (acquire, share, release) and the prefix cache (hold, drop). Used means
// that a sequence has it; cached, that only the prefix cache has it; free, that nobody has. used + cached + free =
// total.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fathom {

class PagePool {
 public:
  explicit PagePool(int32_t total);

  int32_t total() const { return static_cast<int32_t>(pages_.size()); }
  int32_t free() const { return static_cast<int32_t>(free_.size()); }
  int32_t cached() const { return cached_; }
  int32_t used() const { return total() - free() - cached(); }

  int32_t references(int32_t page) const { return pages_[static_cast<size_t>(page)].sequences; }
  int32_t holds(int32_t page) const { return pages_[static_cast<size_t>(page)].holds; }
  /// More than one owner: whoever wants to write takes a copy first.
  bool shared(int32_t page) const { return references(page) + holds(page) > 1; }

  /// A page with one reference. The caller has checked that free() > 0.
  int32_t acquire();
  /// One more sequence has the page, which somebody has already.
  void share(int32_t page);
  void release(int32_t page);
  /// The prefix cache has the page, which a sequence or the prefix cache has already, once more.
  void hold(int32_t page);
  void drop(int32_t page);

 private:
  struct Counts {
    int32_t sequences = 0, holds = 0;
  };
  Counts& owned(int32_t page, const char* what);

  std::vector<Counts> pages_;
  std::vector<int32_t> free_;
  int32_t cached_ = 0;
};

}  // namespace fathom

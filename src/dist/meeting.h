// Where the threads of all ranks meet: a barrier that a failed rank opens for everybody.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include "dist/communicator.h"

namespace fathom::dist {

class Meeting {
 public:
  explicit Meeting(int size) : size_(size) {}
  int size() const { return size_; }

  /// Waits until all ranks have called it. Throws Failed, at once or while waiting, when a rank has failed.
  void arrive();
  /// The first failure stays.
  void fail(int rank, const std::string& what) noexcept;
  std::optional<Failure> failure() const;
  /// With no rank waiting.
  void reset();

 private:
  [[noreturn]] void throw_failed() const;

  const int size_;
  mutable std::mutex mutex_;
  std::condition_variable all_here_;
  int arrived_ = 0;
  uint64_t round_ = 0;
  std::optional<Failure> failure_;
};

}  // namespace fathom::dist

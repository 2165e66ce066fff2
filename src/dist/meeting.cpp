#include "dist/meeting.h"

namespace fathom::dist {

void Meeting::throw_failed() const {
  throw Failed(fmt::format("rank {} of {} failed: {}", failure_->rank, size_, failure_->what));
}

void Meeting::arrive() {
  std::unique_lock lock(mutex_);
  if (failure_) throw_failed();
  const uint64_t round = round_;
  if (++arrived_ == size_) {
    arrived_ = 0, ++round_;
    all_here_.notify_all();
    return;
  }
  all_here_.wait(lock, [&] { return round_ != round || failure_; });
  if (round_ == round) throw_failed();  // who has passed the barrier has all it came for
}

void Meeting::fail(int rank, const std::string& what) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = Failure{rank, what};
  all_here_.notify_all();
}

std::optional<Failure> Meeting::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Meeting::reset() {
  const std::lock_guard lock(mutex_);
  failure_.reset();
  arrived_ = 0;
}

}  // namespace fathom::dist

#include "dist/shared_memory.h"

#include <algorithm>

#include "dist/meeting.h"

namespace fathom::dist {
namespace {

/// What the ranks share. A rank reads the others' `part` and `scratch` between two meetings only.
struct Group {
  explicit Group(int size) : meeting(size), part(static_cast<size_t>(size)) {}
  Meeting meeting;
  std::vector<const void*> part;  // of each rank, for the call in progress
  std::vector<bf16> scratch;      // the sum
};

float widened(float v) {
  return v;
}
float widened(bf16 v) {
  return to_float(v);
}

class SharedMemory final : public Communicator {
 public:
  SharedMemory(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return group_->meeting.size(); }
  const char* name() const override { return "shared memory"; }

  void all_reduce(View<const float, 2> part, View<bf16, 2> sum) override { reduce(part, sum); }
  void all_reduce(View<const bf16, 2> part, View<bf16, 2> sum) override { reduce(part, sum); }

  void all_gather(View<const float, 2> part, View<float, 2> full) override {
    group_->part[static_cast<size_t>(rank_)] = part.data;
    group_->meeting.arrive();
    const int64_t columns = part.size[1];
    for (int r = 0; r < size(); ++r) {
      const auto* from = static_cast<const float*>(group_->part[static_cast<size_t>(r)]);
      for (int64_t t = 0; t < part.size[0]; ++t) std::copy_n(from + t * columns, columns, full[t].data + r * columns);
    }
    group_->meeting.arrive();  // others may still be reading our part
  }

  void barrier() override { group_->meeting.arrive(); }
  void fail(const std::string& what) noexcept override { group_->meeting.fail(rank_, what); }
  std::optional<Failure> failure() override { return group_->meeting.failure(); }
  void reset() override { group_->meeting.reset(); }

 private:
  /// Dense rows. Nobody passes the next call's first meeting before all have copied this one's sum.
  template <typename T>
  void reduce(View<const T, 2> part, View<bf16, 2> sum) {
    const int64_t count = part.count();
    group_->part[static_cast<size_t>(rank_)] = part.data;
    group_->meeting.arrive();
    if (count > room_) {  // all ranks see the same counts
      if (rank_ == 0) group_->scratch.resize(static_cast<size_t>(count));
      group_->meeting.arrive();
      room_ = count;
    }
    for (int64_t i = count * rank_ / size(); i < count * (rank_ + 1) / size(); ++i) {
      float total = 0;
      for (const void* p : group_->part) total += widened(static_cast<const T*>(p)[i]);
      group_->scratch[static_cast<size_t>(i)] = to_bf16(total);
    }
    group_->meeting.arrive();
    std::copy_n(group_->scratch.data(), count, sum.data);
  }

  std::shared_ptr<Group> group_;
  const int rank_;
  int64_t room_ = 0;  // of the scratch memory
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> connect_shared_memory(int size) {
  const auto group = std::make_shared<Group>(size);
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<SharedMemory>(group, r));
  return ranks;
}

}  // namespace fathom::dist

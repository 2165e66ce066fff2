// Communicators through memory that the GPUs of a process write for each other.
#ifdef FATHOM_HAVE_CUDA
#include <cuda_runtime.h>

#include <algorithm>

#include "dist/gpus.h"
#include "dist/meeting.h"
#include "dist/peer_params.h"

namespace fathom::dist {
namespace {

using Devices = std::span<const std::shared_ptr<ops::ComputeDevice>>;

constexpr uint64_t kPatience = 10'000'000'000;  // ns; a step takes less, and a wait that never ends would hold the GPU

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) fail("CUDA: {}: {}", what, cudaGetErrorString(code));
}

/// Host memory that all GPUs see.
struct Words {
  uint32_t give_up = 0;
  uint32_t gave_up[peer::kMostRanks] = {};
};

struct Group {
  explicit Group(int size) : meeting(size) {
    void* data = nullptr;
    check(cudaHostAlloc(&data, sizeof(Words), cudaHostAllocPortable | cudaHostAllocMapped), "allocating host memory");
    words = new (data) Words;
  }
  ~Group() { cudaFreeHost(words); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Meeting meeting;
  Words* words = nullptr;
};

class Peer final : public Communicator {
 public:
  Peer(std::shared_ptr<Group> group, std::shared_ptr<ops::ComputeDevice> device, int rank)
      : group_(std::move(group)),
        device_(std::move(device)),
        early_(device_->info().compute_capability >= 90),
        inbox_(*device_, peer::inbox_bytes(group_->meeting.size())),
        counters_(*device_, sizeof(peer::Counters)) {
    link_.rank = rank, link_.size = group_->meeting.size();
    link_.counters = reinterpret_cast<peer::Counters*>(counters_.data());
    link_.give_up = &group_->words->give_up, link_.gave_up = &group_->words->gave_up[rank];
    link_.patience = kPatience;
    device_->synchronize("clearing memory");
  }
  uint32_t* inbox() const { return reinterpret_cast<uint32_t*>(inbox_.data()); }
  void meet(std::span<uint32_t* const> inboxes) { std::copy(inboxes.begin(), inboxes.end(), link_.inbox); }

  int rank() const override { return link_.rank; }
  int size() const override { return link_.size; }
  const char* name() const override { return "peer memory"; }
  size_t device_bytes() const override { return inbox_.size() + counters_.size(); }

  void all_reduce(View<const float, 2> part, View<bf16, 2> sum) override { reduce(part, sum, 1); }
  void all_reduce(View<const bf16, 2> part, View<bf16, 2> sum) override { reduce(part, sum, 2); }

  void all_gather(View<const float, 2> part, View<float, 2> full) override {
    if (part.size[1] % 2 != 0) fathom::fail("all_gather: {} columns a rank are not even", part.size[1]);
    for (int64_t at = 0; at < part.count(); at += peer::kWords)
      peer::launch_gather(link_, part.data, full.data, at, std::min(peer::kWords, part.count() - at), part.size[1],
                          early_, device_->stream());
  }

  void barrier() override { group_->meeting.arrive(); }
  void fail(const std::string& what) noexcept override {
    group_->meeting.fail(link_.rank, what);
    __atomic_store_n(&group_->words->give_up, 1u, __ATOMIC_SEQ_CST);
  }
  std::optional<Failure> failure() override {
    if (auto known = group_->meeting.failure()) return known;
    if (__atomic_load_n(&group_->words->gave_up[link_.rank], __ATOMIC_SEQ_CST) == 0) return std::nullopt;
    return Failure{link_.rank, fmt::format("a sum waited {} s for the other ranks", kPatience / 1'000'000'000)};
  }
  void reset() override {
    try {
      device_->zero(inbox_.data(), inbox_.size());
      device_->zero(counters_.data(), counters_.size());
      device_->synchronize("resetting");
    } catch (const Error&) {  // of a GPU that can be used no more: the next step says it again
    }
    group_->words->gave_up[link_.rank] = 0, group_->words->give_up = 0;
    group_->meeting.reset();
  }

 private:
  /// `each`: values of a word.
  template <typename T>
  void reduce(View<const T, 2> part, View<bf16, 2> sum, int64_t each) {
    const int64_t count = part.count();
    if (count % (2 * each) != 0) fathom::fail("all_reduce: {} numbers are no whole packets of {}", count, 2 * each);
    for (int64_t at = 0; at < count; at += peer::kWords * each) {
      const int64_t words = std::min(peer::kWords, (count - at) / each);
      peer::launch_reduce(link_, part.data + at, sum.data + at, words, early_, device_->stream());
    }
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<ops::ComputeDevice> device_;
  const bool early_;
  ops::DeviceBuffer inbox_, counters_;
  peer::Link link_;
};

}  // namespace

bool peers_reachable(Devices devices) {
  for (const auto& a : devices) {
    for (const auto& b : devices) {
      int can = 0;
      if (a->ordinal() == b->ordinal()) continue;
      if (cudaDeviceCanAccessPeer(&can, a->ordinal(), b->ordinal()) != cudaSuccess || !can) return false;
    }
  }
  return static_cast<int>(devices.size()) <= peer::kMostRanks;
}

std::vector<std::unique_ptr<Communicator>> connect_peers(Devices devices) {
  if (!peers_reachable(devices)) fail("a GPU cannot reach the memory of another: no sums through peer memory");
  for (const auto& a : devices) {
    a->bind();
    for (const auto& b : devices) {
      if (a->ordinal() == b->ordinal()) continue;
      const auto code = cudaDeviceEnablePeerAccess(b->ordinal(), 0);
      if (code != cudaErrorPeerAccessAlreadyEnabled) check(code, "reaching another GPU's memory");
      cudaGetLastError();
    }
    peer::load_kernels();
  }
  const auto group = std::make_shared<Group>(static_cast<int>(devices.size()));
  std::vector<std::unique_ptr<Communicator>> ranks;
  std::vector<uint32_t*> inboxes;
  for (size_t r = 0; r < devices.size(); ++r) {
    devices[r]->bind();
    auto rank = std::make_unique<Peer>(group, devices[r], static_cast<int>(r));
    inboxes.push_back(rank->inbox());
    ranks.push_back(std::move(rank));
  }
  for (const auto& rank : ranks) static_cast<Peer&>(*rank).meet(inboxes);
  devices.front()->bind();
  return ranks;
}

}  // namespace fathom::dist
#endif

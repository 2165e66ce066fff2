// Communicators over NCCL. The library is loaded when first asked for, so that no build and no machine needs it.
#ifdef FATHOM_HAVE_CUDA
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>

#include "dist/gpus.h"
#include "dist/meeting.h"
#include "dist/peer_params.h"

namespace fathom::dist {
namespace {

using NcclComm = void*;
constexpr int kSuccess = 0, kFloat32 = 7, kBfloat16 = 9;  // ncclResult_t, ncclDataType_t
constexpr size_t kStaging = size_t{8} << 20;              // bytes of each rank's part that are under way at once

class Library {
 public:
  static const Library& get() {
    static const Library library;
    return library;
  }
  /// Calls a function of the library; the types of the arguments are its signature.
  template <typename... Args>
  void call(const char* name, Args... args) const {
    const int code = reinterpret_cast<int (*)(Args...)>(symbol(name))(args...);
    if (code == kSuccess) return;
    const char* text = reinterpret_cast<const char* (*)(int)>(symbol("ncclGetErrorString"))(code);
    fail("NCCL: {}: {}", name, text ? printable(text) : "unknown error");
  }

 private:
  Library() {
    ::setenv("NCCL_NVLS_ENABLE", "0", 0);  // multicast needs rights that virtual machines often lack
    handle_ = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!handle_) {
      const char* why = ::dlerror();
      fail("NCCL is not there: {}; install libnccl2, or use GPUs that reach each other's memory", why ? why : "");
    }
  }
  void* symbol(const char* name) const {
    void* s = ::dlsym(handle_, name);
    if (!s) fail("NCCL: the library has no {}: 2.10 is the oldest that works", name);
    return s;
  }
  void* handle_ = nullptr;
};

/// The communicators of all ranks, so that one that fails can end what the others wait for.
struct Group {
  explicit Group(int size) : meeting(size), comms(static_cast<size_t>(size)) {}
  ~Group() {
    for (NcclComm comm : comms) {
      try {
        if (comm) Library::get().call(aborted ? "ncclCommAbort" : "ncclCommDestroy", comm);
      } catch (const Error&) {  // it goes either way
      }
    }
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  Meeting meeting;
  std::vector<NcclComm> comms;
  std::atomic<bool> aborted = false;
};

class Nccl final : public Communicator {
 public:
  Nccl(std::shared_ptr<Group> group, std::shared_ptr<ops::ComputeDevice> device, int rank)
      : group_(std::move(group)),
        device_(std::move(device)),
        rank_(rank),
        staging_(*device_, kStaging * static_cast<size_t>(group_->meeting.size())) {}

  int rank() const override { return rank_; }
  int size() const override { return group_->meeting.size(); }
  const char* name() const override { return "NCCL"; }
  size_t device_bytes() const override { return staging_.size(); }

  void all_reduce(View<const float, 2> part, View<bf16, 2> sum) override { reduce(part, sum, kFloat32); }
  void all_reduce(View<const bf16, 2> part, View<bf16, 2> sum) override { reduce(part, sum, kBfloat16); }

  void all_gather(View<const float, 2> part, View<float, 2> full) override {
    const int64_t columns = part.size[1], most = std::max<int64_t>(1, static_cast<int64_t>(kStaging / 4) / columns);
    for (int64_t row = 0; row < part.size[0]; row += most) {
      const int64_t rows = std::min(most, part.size[0] - row);
      exchange(part[row].data, rows * columns, kFloat32);
      const size_t width = static_cast<size_t>(columns) * sizeof(float);
      for (int r = 0; r < size(); ++r)
        device_->copy_rows(full[row].data + r * columns, width * static_cast<size_t>(size()),
                           staging_.data() + static_cast<size_t>(r * rows) * width, width, width, rows);
    }
  }

  void barrier() override { group_->meeting.arrive(); }
  void fail(const std::string& what) noexcept override {
    group_->meeting.fail(rank_, what);
    if (group_->aborted.exchange(true)) return;
    for (NcclComm& comm : group_->comms) {
      try {
        Library::get().call("ncclCommAbort", comm);
      } catch (const Error&) {  // the first failure is what counts
      }
      comm = nullptr;
    }
  }
  std::optional<Failure> failure() override { return group_->meeting.failure(); }
  /// What was aborted cannot be used again: the failure stays.
  void reset() override {
    if (!group_->aborted) group_->meeting.reset();
  }

 private:
  /// Everybody's numbers into the staging memory, rank after rank.
  void exchange(const void* part, int64_t count, int type) {
    if (group_->aborted) throw Failed("NCCL was stopped by an earlier failure: start again");
    Library::get().call("ncclAllGather", part, static_cast<void*>(staging_.data()), static_cast<size_t>(count), type,
                        group_->comms[static_cast<size_t>(rank_)], static_cast<cudaStream_t>(device_->stream()));
  }

  template <typename T>
  void reduce(View<const T, 2> part, View<bf16, 2> sum, int type) {
    constexpr auto kMost = static_cast<int64_t>(kStaging / sizeof(T));
    for (int64_t at = 0; at < part.count(); at += kMost) {
      const int64_t count = std::min(kMost, part.count() - at);
      exchange(part.data + at, count, type);
      peer::launch_sum(reinterpret_cast<const T*>(staging_.data()), count, size(), sum.data + at, count,
                       device_->stream());
    }
  }

  std::shared_ptr<Group> group_;
  std::shared_ptr<ops::ComputeDevice> device_;
  const int rank_;
  ops::DeviceBuffer staging_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> connect_nccl(std::span<const std::shared_ptr<ops::ComputeDevice>> devices) {
  const auto group = std::make_shared<Group>(static_cast<int>(devices.size()));
  std::vector<int> ordinals;
  for (const auto& device : devices) ordinals.push_back(device->ordinal());
  Library::get().call("ncclCommInitAll", group->comms.data(), static_cast<int>(ordinals.size()),
                      static_cast<const int*>(ordinals.data()));
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (size_t r = 0; r < devices.size(); ++r) {
    devices[r]->bind();
    ranks.push_back(std::make_unique<Nccl>(group, devices[r], static_cast<int>(r)));
  }
  devices.front()->bind();
  return ranks;
}

}  // namespace fathom::dist
#endif

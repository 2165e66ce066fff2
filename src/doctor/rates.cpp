#include "doctor/rates.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "base/error.h"
#include "lab/cpu_rates.h"
#include "lab/gpu.h"

namespace fathom::doctor {
namespace {

using Clock = std::chrono::steady_clock;

/// The largest *.safetensors below a folder (not in its sub-folders).
std::filesystem::path largest_weights(const std::filesystem::path& folder) {
  std::filesystem::path best;
  uintmax_t most = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    const uintmax_t size = at->path().extension() == ".safetensors" ? at->file_size(ignored) : 0;
    if (!ignored && size > most) most = size, best = at->path();
  }
  return best;
}

}  // namespace

Rates measure_rates(size_t gpus) {
  Rates r;
  try {
    const lab::CpuRates cpu = lab::measure_cpu_rates();
    r.cpu_copy = cpu.copy, r.cpu_fp32 = cpu.fp32;
  } catch (const std::bad_alloc&) {
    r.cpu_why_not = "1 GiB of memory is not free";
  }
  r.gpu_why_not = lab::gpu::unavailable();
  if (r.gpu_why_not.empty()) {
    try {
      const lab::gpu::Rates gpu = lab::gpu::measure_rates();
      r.gpu = printable(lab::gpu::current().name);
      r.gpu_copy = gpu.copy, r.gpu_fp32 = gpu.fp32;
      r.gpu_bf16 = std::max(gpu.bf16_mma, gpu.bf16_wgmma), r.gpu_fp8 = gpu.fp8_mma;
    } catch (const Error& e) {
      r.gpu_why_not = e.what();
    }
  }
  if (gpus > 1 && r.gpu_why_not.empty()) r.links = dist::measure_links();
  if (r.links.empty()) r.all_reduce_why_not = gpus > 1 ? r.gpu_why_not : "it takes two GPUs";
  return r;
}

DiskRate measure_disk(const std::filesystem::path& folder, size_t limit) {
  DiskRate r;
  const auto file = largest_weights(folder);
  if (file.empty()) {
    r.why_not = "no *.safetensors file in " + printable(folder.string(), 300);
    return r;
  }
  r.file = printable(file.string(), 300);
  int descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_DIRECT);
  r.direct = descriptor >= 0;
  if (descriptor < 0) descriptor = ::open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) {
    r.why_not = r.file + ": " + std::strerror(errno);
    return r;
  }
  constexpr size_t piece = size_t{8} << 20;
  const std::unique_ptr<void, decltype(&std::free)> buffer(std::aligned_alloc(4096, piece), &std::free);
  if (!buffer) {
    ::close(descriptor);
    r.why_not = "no memory for a buffer";
    return r;
  }
  // A file that was read before comes from memory: without direct reads its pages are dropped first.
  if (!r.direct) ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_DONTNEED);
  const auto start = Clock::now();
  while (r.bytes < static_cast<double>(limit)) {
    const ssize_t got = ::read(descriptor, buffer.get(), piece);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) r.why_not = r.file + ": " + std::strerror(errno);
    if (got <= 0) break;
    r.bytes += static_cast<double>(got);
  }
  r.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  ::close(descriptor);
  return r;
}

}  // namespace fathom::doctor

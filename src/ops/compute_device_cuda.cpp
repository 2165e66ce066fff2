// CUDA devices: the only place of the engine that knows the CUDA runtime's memory calls.
#ifdef FATHOM_HAVE_CUDA
#include <cuda_runtime.h>

#include "base/error.h"
#include "ops/compute_device.h"
#include "ops/kernel_trace.h"

namespace fathom::ops {
namespace {

void check(cudaError_t code, const char* what) {
  if (code != cudaSuccess) fail("CUDA: {}: {}", what, cudaGetErrorString(code));
}

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(cudaGraph_t graph, cudaStream_t stream) : stream_(stream) {
    const auto code = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check(code, "instantiating a graph");
    // Otherwise the first launch does it: it allocates, and takes a millisecond longer than the next.
    const auto uploaded = cudaGraphUpload(graph_, stream_);
    if (uploaded != cudaSuccess) cudaGraphExecDestroy(graph_);
    check(uploaded, "uploading a graph");
  }
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  void replay() override { check(cudaGraphLaunch(graph_, stream_), "launching a graph"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
  cudaStream_t stream_;
};

/// Makes a device the thread's for a while.
class Current {
 public:
  explicit Current(int ordinal) {
    cudaGetDevice(&before_);
    if (before_ != ordinal) cudaSetDevice(ordinal), changed_ = true;
  }
  ~Current() {
    if (changed_) cudaSetDevice(before_);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
};

class CudaDevice final : public ComputeDevice {
 public:
  explicit CudaDevice(int ordinal) : ordinal_(ordinal) {
    const Current here(ordinal);
    cudaDeviceProp properties;
    check(cudaGetDeviceProperties(&properties, ordinal), "reading the device's properties");
    name_ = properties.name;
    info_.backend = Backend::cuda;
    info_.compute_capability = properties.major * 10 + properties.minor;
    info_.sm_count = properties.multiProcessorCount;
    info_.shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin);
    info_.l2_bytes = properties.l2CacheSize;
    facts_ = {properties.name,
              properties.major,
              properties.minor,
              properties.multiProcessorCount,
              properties.warpSize,
              static_cast<int64_t>(properties.totalGlobalMem),
              properties.maxThreadsPerMultiProcessor,
              properties.regsPerMultiprocessor,
              static_cast<int64_t>(properties.sharedMemPerMultiprocessor)};
    check(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking), "creating a stream");
    for (int i = 0; i < kBranches; ++i) {
      check(cudaStreamCreateWithFlags(&side_[i], cudaStreamNonBlocking), "creating a stream");
      check(cudaEventCreateWithFlags(&joined_[i], cudaEventDisableTiming), "creating an event");
    }
    check(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "creating an event");
    stream_ = main_;
    at_open_ = memory_use().free;
  }
  ~CudaDevice() override {
    const Current here(ordinal_);
    for (int i = 0; i < kBranches; ++i) cudaEventDestroy(joined_[i]), cudaStreamDestroy(side_[i]);
    cudaEventDestroy(forked_);
    cudaStreamDestroy(main_);
  }

  const DeviceInfo& info() const override { return info_; }
  std::string name() const override { return name_; }
  bool shares_host_memory() const override { return false; }
  void* stream() const override { return stream_; }
  DeviceFacts facts() const override { return facts_; }
  int ordinal() const override { return ordinal_; }
  void bind() const override { check(cudaSetDevice(ordinal_), "choosing a device"); }
  DeviceMemoryUse memory_use() const override {
    const Current here(ordinal_);
    size_t free = 0, total = 0;
    check(cudaMemGetInfo(&free, &total), "asking for free memory");
    return {static_cast<int64_t>(total), static_cast<int64_t>(free), at_open_};
  }

  std::byte* allocate(size_t bytes) override {
    const Current here(ordinal_);
    void* data = nullptr;
    if (const auto code = cudaMalloc(&data, bytes); code != cudaSuccess) {
      cudaGetLastError();
      size_t free = 0, total = 0;
      cudaMemGetInfo(&free, &total);
      fail("{} has no {} bytes left ({} of {} are free): a smaller cache or model fits", name_, bytes, free, total);
    }
    zero(data, bytes);
    return static_cast<std::byte*>(data);
  }
  /// Nothing of the stream may still use it, nor may a copy of another stream: cudaFree waits for the device.
  void release(std::byte* data) noexcept override {
    const Current here(ordinal_);
    cudaFree(data);
  }
  std::byte* allocate_host(size_t bytes) override {
    void* data = nullptr;
    check(cudaMallocHost(&data, bytes), "allocating host memory");
    return static_cast<std::byte*>(data);
  }
  void release_host(std::byte* data) noexcept override { cudaFreeHost(data); }

  /// From pageable memory the runtime returns when it has taken the bytes.
  void upload(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "copying to the device");
  }
  void download(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream_), "copying from the device");
    synchronize("running a step");
  }
  void copy(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying on the device");
  }
  void copy_rows(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t bytes, int64_t rows) override {
    if (bytes > 0 && rows > 0)
      check(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, bytes, static_cast<size_t>(rows),
                              cudaMemcpyDeviceToDevice, stream_),
            "copying on the device");
  }
  void zero(void* to, size_t bytes) override {
    const Current here(ordinal_);
    if (bytes > 0) check(cudaMemsetAsync(to, 0, bytes, stream_), "clearing memory");
  }
  void synchronize(const char* doing) override { check(cudaStreamSynchronize(stream_), doing); }

  void fork(int branch, const std::function<void()>& work) override {
    run_on(side_[branch], work);
    check(cudaEventRecord(joined_[branch], side_[branch]), "forking");
  }
  void join(int branch) override { check(cudaStreamWaitEvent(main_, joined_[branch]), "joining"); }

  std::unique_ptr<DeviceGraph> capture(const std::function<void()>& work) override {
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "recording a graph");
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph) cudaGraphDestroy(graph);
      throw;
    }
    check(cudaStreamEndCapture(stream_, &graph), "recording a graph");
    return std::make_unique<CudaGraph>(graph, stream_);
  }
  KernelTrace* kernel_trace(std::string& why) const override { return ops::kernel_trace(why); }
  int64_t captured() const override {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaGraph_t graph = nullptr;
    check(cudaStreamGetCaptureInfo(stream_, &status, nullptr, &graph, nullptr, nullptr, nullptr), "recording a graph");
    size_t nodes = 0;
    if (graph) check(cudaGraphGetNodes(graph, nullptr, &nodes), "recording a graph");
    return static_cast<int64_t>(nodes);
  }

 private:
  const int ordinal_;
  DeviceInfo info_;
  DeviceFacts facts_;
  std::string name_;
  /// `work` on another stream, behind everything that was asked for so far.
  void run_on(cudaStream_t stream, const std::function<void()>& work) {
    check(cudaEventRecord(forked_, main_), "forking");
    check(cudaStreamWaitEvent(stream, forked_), "forking");
    stream_ = stream;
    try {
      work();
    } catch (...) {
      stream_ = main_;
      throw;
    }
    stream_ = main_;
  }

  cudaStream_t main_ = nullptr, side_[kBranches] = {};
  cudaStream_t stream_ = nullptr;  // one of them: work goes there
  cudaEvent_t forked_ = nullptr, joined_[kBranches] = {};
  int64_t at_open_ = 0;
};

}  // namespace

std::shared_ptr<ComputeDevice> open_cuda(std::string& why, int ordinal) {
  int count = 0;
  if (const auto code = cudaGetDeviceCount(&count); code != cudaSuccess || count == 0) {
    why = code == cudaSuccess ? "there is no GPU" : cudaGetErrorString(code);
    return nullptr;
  }
  if (ordinal >= count) {
    why = "there are " + std::to_string(count);
    return nullptr;
  }
  auto device = std::make_shared<CudaDevice>(ordinal);
  if (device->info().compute_capability >= 80) return device;
  why = device->name() + " is too old: compute capability 8.0 is the least";
  return nullptr;
}

}  // namespace fathom::ops
#endif

// The lab's thin layer over the CUDA runtime: memory, copies, graphs, the device.
#include "lab/gpu.h"

#ifdef FATHOM_HAVE_CUDA

#include <cuda_runtime.h>

#include <utility>

namespace fathom::lab::gpu {

namespace {

void require(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  throw Failure(fmt::format("CUDA: {} failed: {} ({})", call, cudaGetErrorString(status), cudaGetErrorName(status)));
}

int attribute(cudaDeviceAttr what, int device) {
  int value = 0;
  require(cudaDeviceGetAttribute(&value, what, device), "cudaDeviceGetAttribute");
  return value;
}

cudaStream_t stream_of(void* p) {
  return static_cast<cudaStream_t>(p);
}

}  // namespace

std::string unavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return "";
  cudaGetLastError();  // not sticky: the CPU parts go on
  if (status == cudaErrorInsufficientDriver)
    return "no NVIDIA driver, or one that is too old for this build (CUDA 13 needs R580 or newer)";
  if (status == cudaErrorNoDevice || status == cudaSuccess)
    return "the driver sees no GPU (check nvidia-smi and CUDA_VISIBLE_DEVICES)";
  return fmt::format("the CUDA driver answers: {}", cudaGetErrorString(status));
}

Device current() {
  if (const std::string why = unavailable(); !why.empty()) fail("no GPU: {}", why);
  int device = 0;
  require(cudaGetDevice(&device), "cudaGetDevice");
  return describe(device);
}

int count() {
  int n = 0;
  return unavailable().empty() && cudaGetDeviceCount(&n) == cudaSuccess ? n : 0;
}

Device describe(int device) {
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  Device d;
  d.info.backend = ops::Backend::cuda;
  d.info.compute_capability = properties.major * 10 + properties.minor;
  d.info.sm_count = properties.multiProcessorCount;
  d.info.shared_bytes = attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  d.info.l2_bytes = properties.l2CacheSize;
  d.name = properties.name;
  d.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  d.shared_bytes_per_sm = static_cast<int64_t>(properties.sharedMemPerMultiprocessor);
  require(cudaDriverGetVersion(&d.driver), "cudaDriverGetVersion");
  require(cudaRuntimeGetVersion(&d.runtime), "cudaRuntimeGetVersion");
  return d;
}

Memory::Memory(size_t bytes) : size_(bytes) {
  void* p = nullptr;
  if (bytes > 0) require(cudaMalloc(&p, bytes), "cudaMalloc");
  data_ = static_cast<std::byte*>(p);
}
Memory::~Memory() {
  cudaFree(data_);
}
Memory::Memory(Memory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
Memory& Memory::operator=(Memory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void upload(void* device, const void* host, size_t bytes) {
  require(cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy to the device");
}
void download(void* host, const void* device, size_t bytes) {
  require(cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
}
void copy(void* to, const void* from, size_t bytes) {
  require(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToDevice), "cudaMemcpy on the device");
}
void copy_on(void* stream, void* to, const void* from, size_t bytes) {
  require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_of(stream)), "cudaMemcpyAsync");
}
void fill(void* device, int byte, size_t bytes) {
  if (bytes > 0) require(cudaMemset(device, byte, bytes), "cudaMemset");
}
void synchronize(const std::string& doing) {
  require(cudaGetLastError(), doing.c_str());
  require(cudaDeviceSynchronize(), doing.c_str());
}
size_t free_memory() {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return free;
}

namespace {

class Stream {
 public:
  Stream() { require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace

void run_on_stream(const std::function<void(void*)>& work) {
  require(cudaDeviceSynchronize(), "the work before");  // the stream does not wait for the legacy stream's copies
  const Stream stream;
  work(stream.get());
  require(cudaGetLastError(), "launching");
  require(cudaStreamSynchronize(stream.get()), "running the kernels");
}

Graph::Graph(const std::function<void(void*)>& work) {
  require(cudaDeviceSynchronize(), "the work before");
  cudaStream_t stream = nullptr;
  require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  stream_ = stream;
  cudaGraph_t graph = nullptr;
  require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  work(stream);
  require(cudaStreamEndCapture(stream, &graph), "capturing the graph (a variant must not allocate or synchronise)");
  cudaGraphExec_t exec = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&exec, graph, 0);
  cudaGraphDestroy(graph);
  require(status, "cudaGraphInstantiate");
  graph_ = exec;
  cudaEvent_t event = nullptr;
  require(cudaEventCreate(&event), "cudaEventCreate");
  begin_ = event;
  require(cudaEventCreate(&event), "cudaEventCreate");
  end_ = event;
}

Graph::~Graph() {
  if (end_) cudaEventDestroy(static_cast<cudaEvent_t>(end_));
  if (begin_) cudaEventDestroy(static_cast<cudaEvent_t>(begin_));
  if (graph_) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph_));
  if (stream_) cudaStreamDestroy(stream_of(stream_));
}

double Graph::replay() {
  require(cudaEventRecord(static_cast<cudaEvent_t>(begin_), stream_of(stream_)), "cudaEventRecord");
  require(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph_), stream_of(stream_)), "cudaGraphLaunch");
  require(cudaEventRecord(static_cast<cudaEvent_t>(end_), stream_of(stream_)), "cudaEventRecord");
  require(cudaStreamSynchronize(stream_of(stream_)), "replaying the graph");
  float milliseconds = 0;
  require(cudaEventElapsedTime(&milliseconds, static_cast<cudaEvent_t>(begin_), static_cast<cudaEvent_t>(end_)),
          "cudaEventElapsedTime");
  return milliseconds;
}

}  // namespace fathom::lab::gpu

#endif

#include "ops/kernel_trace.h"

#if defined(FATHOM_HAVE_CUDA) && __has_include(<cupti.h>)
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "base/error.h"

namespace fathom::ops {
namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

/// The functions of CUPTI that are used.
struct Cupti {
  decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
  decltype(&cuptiActivityEnable) enable = nullptr;
  decltype(&cuptiActivityDisable) disable = nullptr;
  decltype(&cuptiActivityFlushAll) flush = nullptr;
  decltype(&cuptiFinalize) detach = nullptr;
  decltype(&cuptiActivityGetNextRecord) next = nullptr;
  decltype(&cuptiGetTimestamp) timestamp = nullptr;
  decltype(&cuptiGetVersion) version = nullptr;
  decltype(&cuptiGetResultString) text = nullptr;
  decltype(&cuptiGetCallbackName) callback_name = nullptr;
  decltype(&cuptiSetThreadIdType) thread_ids = nullptr;

  /// Empty, or why it cannot be used.
  std::string load() {
    void* library = nullptr;
    for (const char* name : {"libcupti.so.13", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so",
                             "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so"})
      if (!library) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library)
      return "libcupti.so was not found (it is part of the CUDA toolkit; LD_LIBRARY_PATH may name its folder)";
    const auto get = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    const bool all = get(register_callbacks, "cuptiActivityRegisterCallbacks") && get(enable, "cuptiActivityEnable") &&
                     get(disable, "cuptiActivityDisable") && get(flush, "cuptiActivityFlushAll") &&
                     get(detach, "cuptiFinalize") && get(next, "cuptiActivityGetNextRecord") &&
                     get(timestamp, "cuptiGetTimestamp") && get(version, "cuptiGetVersion") &&
                     get(text, "cuptiGetResultString") && get(callback_name, "cuptiGetCallbackName") &&
                     get(thread_ids, "cuptiSetThreadIdType");
    uint32_t number = 0;
    if (!all || version(&number) != CUPTI_SUCCESS) return "libcupti.so lacks functions";
    if (number / 10000 != CUPTI_API_VERSION / 10000)  // records have another layout
      return "libcupti.so is of version " + std::to_string(number) + ", this program was built for " +
             std::to_string(CUPTI_API_VERSION);
    return {};
  }
};

std::string plain_name(const char* mangled) {
  if (!mangled) return "kernel";
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : mangled;
}

class CuptiTrace final : public KernelTrace {
 public:
  explicit CuptiTrace(const Cupti& cupti) : cupti_(cupti) {}

  void start() override {
    {
      const std::lock_guard lock(mutex_);
      runs_.clear();  // of a trace whose end failed
    }
    resume();
  }

  void resume() override {
    try {
      uint64_t stamp = 0;
      check(cupti_.timestamp(&stamp), "reading its clock");
      offset_ = Recorder::now() - static_cast<int64_t>(stamp);
      earlier_ = latest_;
      // Those of the recorder. Where they are refused, kernels outside of replays keep the names of their functions.
      static_cast<void>(cupti_.thread_ids(CUPTI_ACTIVITY_THREAD_ID_TYPE_SYSTEM));
      check(cupti_.register_callbacks(request, complete), "registering buffers");
      for (const auto kind : kKinds) check(cupti_.enable(kind), "starting");
    } catch (const Error&) {
      leave();
      throw;
    }
    running_ = true;
  }

  /// The records must be fetched: a replay that is not recorded writes its times to those of the one before. And CUPTI
  /// must leave the process: as long as it is there, graphs launch slower, whatever it records.
  void pause() override {
    if (!running_) return;
    running_ = false;
    const auto [flushed, left] = leave();
    check(flushed, "flushing");
    check(left, "leaving the process");
  }

  std::vector<KernelRun> stop() override {
    pause();
    const std::lock_guard lock(mutex_);
    std::stable_sort(runs_.begin(), runs_.end(),
                     [](const KernelRun& a, const KernelRun& b) { return a.span.start_ns < b.span.start_ns; });
    return std::exchange(runs_, {});
  }

  static CuptiTrace*& instance() {
    static CuptiTrace* one = nullptr;
    return one;
  }

 private:
  /// Leaves the process, whatever fails: the answers to the flush and to that.
  std::pair<CUptiResult, CUptiResult> leave() {
    for (const auto kind : kKinds) cupti_.disable(kind);
    const CUptiResult flushed = cupti_.flush(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED), left = cupti_.detach();
    functions_.clear();  // the texts may have been CUPTI's
    return {flushed, left};
  }

  static constexpr CUpti_ActivityKind kKinds[] = {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, CUPTI_ACTIVITY_KIND_MEMCPY,
                                                  CUPTI_ACTIVITY_KIND_MEMSET, CUPTI_ACTIVITY_KIND_RUNTIME};

  void check(CUptiResult code, const char* doing) const {
    if (code == CUPTI_SUCCESS) return;
    const char* text = "unknown";
    cupti_.text(code, &text);
    fail("CUPTI: {}: {}", doing, text);
  }

  static void CUPTIAPI request(uint8_t** buffer, size_t* size, size_t* most_records) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
    *size = *buffer ? kBufferBytes : 0;
    *most_records = 0;
  }
  static void CUPTIAPI complete(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
    instance()->take(buffer, valid);
    std::free(buffer);
  }

  void take(uint8_t* buffer, size_t valid) {
    const std::lock_guard lock(mutex_);
    CUpti_Activity* record = nullptr;
    while (valid > 0 && cupti_.next(buffer, valid, &record) == CUPTI_SUCCESS) {
      if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL || record->kind == CUPTI_ACTIVITY_KIND_KERNEL)
        take(*reinterpret_cast<const CUpti_ActivityKernel10*>(record));
      else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY)
        take_copy(*reinterpret_cast<const CUpti_ActivityMemcpy6*>(record), "memcpy", kCopyCategory);
      else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET)
        take_copy(*reinterpret_cast<const CUpti_ActivityMemset4*>(record), "memset", kClearCategory);
      else if (record->kind == CUPTI_ACTIVITY_KIND_RUNTIME)
        take(*reinterpret_cast<const CUpti_ActivityAPI*>(record));
    }
  }

  void take(const CUpti_ActivityKernel10& k) {
    KernelRun run;
    run.span.kernel = function_name(k.name);
    run.span.name = run.span.kernel;
    set_times(run.span, k.start, k.end);
    run.span.grid = {k.gridX, k.gridY, k.gridZ}, run.span.block = {k.blockX, k.blockY, k.blockZ};
    run.span.registers = k.registersPerThread;
    run.span.shared_bytes = int64_t{k.staticSharedMemory} + k.dynamicSharedMemory;
    run.span.correlation = correlation(k.correlationId), run.span.stream = static_cast<int32_t>(k.streamId);
    run.span.device = static_cast<int32_t>(k.deviceId);
    run.node = k.graphNodeId;
    runs_.push_back(std::move(run));
  }

  template <typename Record>
  void take_copy(const Record& r, const char* name, const char* category) {
    KernelRun run;
    run.span.name = name, run.span.category = category;
    set_times(run.span, r.start, r.end);
    run.span.bytes = static_cast<int64_t>(r.bytes);
    run.span.correlation = correlation(r.correlationId), run.span.stream = static_cast<int32_t>(r.streamId);
    run.span.device = static_cast<int32_t>(r.deviceId);
    run.node = r.graphNodeId;
    runs_.push_back(std::move(run));
  }

  void take(const CUpti_ActivityAPI& a) {
    const char* name = nullptr;
    if (cupti_.callback_name(CUPTI_CB_DOMAIN_RUNTIME_API, a.cbid, &name) != CUPTI_SUCCESS || !name) name = "cuda call";
    KernelRun run;
    run.span.name = name, run.span.category = kRuntimeCategory;
    set_times(run.span, a.start, a.end);
    run.span.correlation = correlation(a.correlationId), run.span.stream = static_cast<int32_t>(a.threadId);
    runs_.push_back(std::move(run));
  }

  /// A number of its own for each call, also where CUPTI counts from the beginning when it comes back.
  uint64_t correlation(uint32_t id) {
    latest_ = std::max(latest_, earlier_ + id);
    return earlier_ + id;
  }

  /// Each name is demangled once while CUPTI is there.
  const std::string& function_name(const char* mangled) {
    const auto [at, added] = functions_.try_emplace(mangled);
    if (added) at->second = plain_name(mangled);
    return at->second;
  }

  void set_times(DeviceSpan& span, uint64_t start, uint64_t end) const {
    span.start_ns = static_cast<int64_t>(start) + offset_, span.end_ns = static_cast<int64_t>(end) + offset_;
  }

  Cupti cupti_;
  bool running_ = false;
  int64_t offset_ = 0;                 // from CUPTI's clock to Recorder::now
  uint64_t earlier_ = 0, latest_ = 0;  // correlations before CUPTI came back, and of all
  std::mutex mutex_;
  std::vector<KernelRun> runs_;
  std::unordered_map<const char*, std::string> functions_;
};

}  // namespace

KernelTrace* kernel_trace(std::string& why) {
  static std::string reason;
  static const std::unique_ptr<CuptiTrace> trace = [] {
    Cupti cupti;
    reason = cupti.load();
    return reason.empty() ? std::make_unique<CuptiTrace>(cupti) : nullptr;
  }();
  CuptiTrace::instance() = trace.get();
  why = reason;
  return trace.get();
}

}  // namespace fathom::ops

#else

namespace fathom::ops {

KernelTrace* kernel_trace(std::string& why) {
  why = "this build has no CUPTI";
  return nullptr;
}

}  // namespace fathom::ops

#endif

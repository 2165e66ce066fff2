// Timers inside the engine: where did this step's time go?
//
// A Recorder keeps one fixed-size record for each finished Span: an op, a step, a phase of loading. Code that can be
// profiled carries a `Recorder*`; null means off, and a Span then costs one pointer test. When on, a Span costs two
// clock readings and one store into a preallocated slot; it takes no lock, except once in 4096 spans to get the next
// chunk of memory. Memory is bounded: spans past `limit` are counted in dropped(), never stored, and whoever shows the
// result says so. profile/ turns the records into a ranking (summary.h) and a Chrome trace (chrome_trace.h).
//
//   { Span s(recorder, "linear_fp8", bytes, flops, {tokens, in, out});  run(...); }
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <utility>
#include <vector>

namespace fathom {

/// Categories of spans, named as PyTorch's profiler names them, so that any trace tool knows what they are.
/// Arrays, so that each has one address: they may be compared as pointers.
inline constexpr char kOpCategory[] = "cpu_op";
inline constexpr char kStepCategory[] = "user_annotation";
inline constexpr char kPhaseCategory[] = "phase";  // loading, tokenising, sampling ...
/// A stretch of steps that a profile left out on purpose; SpanRecord::shape[0] says how many.
inline constexpr char kSkippedCategory[] = "steps not recorded";
inline constexpr char kKernelCategory[] = "kernel", kCopyCategory[] = "gpu_memcpy", kClearCategory[] = "gpu_memset",
                      kRuntimeCategory[] = "cuda_runtime";

/// One finished span. Times are nanoseconds of the monotonic clock (Recorder::now).
struct SpanRecord {
  const char* name = nullptr;  // a literal, or text that outlives the recorder
  const char* category = kOpCategory;
  int64_t start_ns = 0, end_ns = 0;
  int64_t bytes = 0;  // memory the op has to touch: weights, cache rows and activations; 0: not known
  int64_t flops = 0;  // multiplications and additions; 0: not known
  std::array<int64_t, 4>
      shape{};         // up to four sizes, ended by the first 0; a step holds {prefill tokens, decode sequences}
  int32_t step = 0;    // number of the step it belongs to, from 1; 0: outside any step
  int32_t thread = 0;  // the kernel's thread id
};

/// One piece of work on a GPU: a kernel, a copy, or a call of the host's runtime that started some.
struct DeviceSpan {
  std::string name;    // the op it belongs to where that is known, else the function
  std::string kernel;  // the function; empty for others
  const char* category = kKernelCategory;
  int64_t start_ns = 0, end_ns = 0;  // Recorder::now
  std::array<int32_t, 3> grid{}, block{};
  int32_t registers = 0;         // a thread
  int64_t shared_bytes = 0;      // a block, static and dynamic
  uint64_t correlation = 0;      // of the call that started it
  int64_t bytes = 0, flops = 0;  // kernel: of its op; copy: moved
  int32_t step = 0;
  int32_t stream = 0;  // of calls: the kernel's thread id
  int32_t device = 0;  // which GPU
};

/// What recording some of the steps cost all of them.
struct RecordingCost {
  int64_t steps = 0, recorded = 0;
  double seconds = 0;   // that the steps would have taken; 0: not known
  double overhead = 0;  // seconds on top
  std::string problem;  // why no more steps were recorded from some step on; empty: nothing failed
  double share() const { return seconds > 0 ? overhead / seconds : 0; }
};

/// What a GPU is, for whoever reads its spans. Several that work together are alike.
struct DeviceFacts {
  std::string name;
  int compute_major = 0, compute_minor = 0, sm_count = 0, warp_size = 32;
  int64_t memory_bytes = 0, threads_per_sm = 0, registers_per_sm = 0, shared_per_sm = 0;
};

/// Collects spans from any number of threads. Not copyable; must outlive every Span opened on it.
class Recorder {
 public:
  /// Default limit of stored spans: 1 Mi records, 96 MiB of memory when full.
  static constexpr size_t kDefaultLimit = size_t{1} << 20;

  explicit Recorder(size_t limit = kDefaultLimit);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Nanoseconds of the monotonic clock.
  static int64_t now();
  /// The calling thread's id as the kernel numbers it.
  static int32_t this_thread();

  /// Stores a finished span, also one timed elsewhere (a GPU event). Past the limit only counts it.
  void add(const SpanRecord& record);

  /// Starts the next step and returns its number; spans added from now on carry it. One step runs at a time.
  int32_t begin_step();
  void end_step() { current_step_.store(0, std::memory_order_relaxed); }
  /// Steps that have begun.
  int32_t steps() const { return steps_.load(std::memory_order_relaxed); }
  int32_t current_step() const { return current_step_.load(std::memory_order_relaxed); }

  /// Gives the calling thread a name in the trace.
  void name_thread(std::string name);
  std::vector<std::pair<int32_t, std::string>> thread_names() const;

  /// Calls `visit` for each stored span, in the order in which they ended. Safe while other threads add.
  void for_each(const std::function<void(const SpanRecord&)>& visit) const;

  /// Spans of a GPU, added together when its profiler hands them over; within the same limit of their own.
  void add_device_spans(std::vector<DeviceSpan> spans);
  void describe_device(DeviceFacts facts);
  /// Not while others add.
  const std::vector<DeviceSpan>& device_spans() const { return device_spans_; }
  const DeviceFacts& device_facts() const { return device_facts_; }
  /// Set when the recording has ended, where not every step was recorded.
  void set_cost(const RecordingCost& cost) { cost_ = cost; }
  const RecordingCost& cost() const { return cost_; }

  size_t limit() const { return limit_; }
  size_t stored() const;
  /// Spans that found the recorder full.
  size_t dropped() const;
  /// When this recorder was made: time 0 of the trace.
  int64_t origin_ns() const { return origin_ns_; }

 private:
  struct Slot {
    SpanRecord record;
    std::atomic<bool> ready{false};
  };
  static constexpr size_t kChunk = 4096;
  Slot* slot(size_t index);

  size_t limit_;
  int64_t origin_ns_;
  std::atomic<size_t> next_{0};
  std::atomic<int32_t> current_step_{0}, steps_{0};
  mutable std::mutex mutex_;  // guards the creation of chunks, and thread_names_
  std::vector<std::atomic<Slot*>> chunks_;
  std::vector<std::pair<int32_t, std::string>> thread_names_;
  std::vector<DeviceSpan> device_spans_;
  size_t device_dropped_ = 0;
  DeviceFacts device_facts_;
  RecordingCost cost_;
};

/// Times its own lifetime. `name` and `category` must be literals. Does nothing on a null recorder.
class Span {
 public:
  Span(Recorder* recorder, const char* name, int64_t bytes = 0, int64_t flops = 0, std::array<int64_t, 4> shape = {},
       const char* category = kOpCategory)
      : recorder_(recorder) {
    if (recorder_) new (&record_) SpanRecord{name, category, Recorder::now(), 0, bytes, flops, shape};
  }
  ~Span() {
    if (recorder_) finish();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

  /// For amounts that are known only after the work, such as the rows a selection kept.
  void set_cost(int64_t bytes, int64_t flops) {
    if (recorder_) record_.bytes = bytes, record_.flops = flops;
  }

 private:
  void finish();
  Recorder* recorder_;
  union {  // left untouched when off
    SpanRecord record_;
  };
};

/// Times one step of the engine; opens a new step number for the spans inside. In the trace it reads
/// "step 7: prefill 12 tokens + decode B=3".
class StepSpan {
 public:
  StepSpan(Recorder* recorder, int64_t prefill_tokens, int64_t decode_sequences);
  ~StepSpan();
  StepSpan(const StepSpan&) = delete;
  StepSpan& operator=(const StepSpan&) = delete;

 private:
  Recorder* recorder_;
  SpanRecord record_;
};

}  // namespace fathom

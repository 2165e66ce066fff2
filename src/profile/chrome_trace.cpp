#include "profile/chrome_trace.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "formats/gzip.h"

namespace fathom::profile {
namespace {

constexpr size_t kBuffer = size_t{1} << 16;

/// Plain or compressed output behind one buffer.
class Sink {
 public:
  explicit Sink(const std::filesystem::path& path) : file_(path) {
    if (path.extension() == ".gz") gzip_ = std::make_unique<GzipWriter>(file_);
    buffer_.reserve(kBuffer + 1024);
  }
  template <typename... Args>
  void print(fmt::format_string<Args...> text, Args&&... args) {
    fmt::format_to(std::back_inserter(buffer_), text, std::forward<Args>(args)...);
    if (buffer_.size() >= kBuffer) flush();
  }
  void finish() {
    flush();
    if (gzip_) gzip_->finish();
    file_.commit();
  }

 private:
  void flush() {
    if (gzip_)
      gzip_->write(buffer_);
    else
      file_.write(buffer_);
    buffer_.clear();
  }
  OutputFile file_;
  std::unique_ptr<GzipWriter> gzip_;
  std::string buffer_;
};

/// The text between quotes of a JSON string.
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : utf8_repaired(text)) {
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out;
}

/// Nanoseconds as microseconds with all three decimals, exactly.
std::string microseconds(int64_t ns) {
  const char* sign = ns < 0 ? "-" : "";
  const uint64_t magnitude = ns < 0 ? 0 - static_cast<uint64_t>(ns) : static_cast<uint64_t>(ns);
  return fmt::format("{}{}.{:03}", sign, magnitude / 1000, magnitude % 1000);
}

std::string shape_text(const std::array<int64_t, 4>& shape) {
  std::string out;
  for (const int64_t size : shape) {
    if (size == 0) break;
    out += fmt::format("{}{}", out.empty() ? "" : "x", size);
  }
  return out;
}

void write_span(Sink& out, const SpanRecord& span, int64_t origin, int pid) {
  const bool step = std::string_view(span.category) == kStepCategory;
  const bool skipped = std::string_view(span.category) == kSkippedCategory;
  const std::string name = step      ? fmt::format("step {}: {}", span.step, step_label(span.shape[0], span.shape[1]))
                           : skipped ? skipped_label(span.shape[0])
                                     : escaped(span.name);
  out.print(",\n{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{",
            skipped ? kStepCategory : escaped(span.category), name, pid, span.thread,
            microseconds(span.start_ns - origin), microseconds(span.end_ns - span.start_ns));
  const char* comma = "";
  if (span.step) out.print("\"step\":{}", span.step), comma = ",";
  if (step) {
    out.print("{}\"prefill_tokens\":{},\"decode_sequences\":{}", comma, span.shape[0], span.shape[1]);
  } else {
    if (span.shape[0]) out.print("{}\"shape\":\"{}\"", comma, shape_text(span.shape)), comma = ",";
    const auto ns = static_cast<double>(span.end_ns - span.start_ns);
    if (span.bytes) {
      out.print("{}\"bytes\":{}", comma, span.bytes), comma = ",";
      if (ns > 0) out.print(",\"GB/s\":{:.3f}", static_cast<double>(span.bytes) / ns);
    }
    if (span.flops) {
      out.print("{}\"flops\":{}", comma, span.flops), comma = ",";
      if (ns > 0) out.print(",\"GFLOP/s\":{:.3f}", static_cast<double>(span.flops) / ns);
    }
  }
  out.print("}}}}");
}

/// Kernels and copies of a GPU and the calls that started them, as PyTorch's profiler writes them; `early_ns` of a
/// kernel are left out at its beginning.
void write_device_span(Sink& out, const DeviceSpan& s, int64_t early_ns, int64_t origin, int pid) {
  const std::string_view category = s.category;
  const bool call = category == kRuntimeCategory;
  out.print(",\n{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":\"{}\",\"pid\":{},\"tid\":{},\"ts\":{},\"dur\":{},\"args\":{{",
            escaped(category), escaped(s.name), call ? pid : s.device, s.stream,
            microseconds(s.start_ns + early_ns - origin), microseconds(s.end_ns - s.start_ns - early_ns));
  out.print("\"correlation\":{}", s.correlation);
  if (!call) out.print(",\"device\":{},\"stream\":{}", s.device, s.stream);
  if (s.step) out.print(",\"step\":{}", s.step);
  if (category == kKernelCategory) {
    out.print(
        ",\"kernel\":\"{}\",\"grid\":[{},{},{}],\"block\":[{},{},{}],\"registers per thread\":{},\"shared memory\":{}",
        escaped(s.kernel), s.grid[0], s.grid[1], s.grid[2], s.block[0], s.block[1], s.block[2], s.registers,
        s.shared_bytes);
    if (early_ns > 0) out.print(",\"early us\":{}", microseconds(early_ns));
    if (s.bytes) out.print(",\"op bytes\":{}", s.bytes);
    if (s.flops) out.print(",\"op flops\":{}", s.flops);
  } else if (s.bytes) {
    out.print(",\"bytes\":{}", s.bytes);
  }
  out.print("}}}}");
}

/// A kernel that is launched while the one before it on its stream still runs (programmatic launch) mostly waits for
/// that one's end. In the trace it begins there, so that durations add up to what a stream did; how much earlier its
/// blocks were there stands beside it.
class EarlyTime {
 public:
  /// Of spans in order of their starts.
  int64_t operator()(const DeviceSpan& s) {
    if (std::string_view(s.category) == kRuntimeCategory) return 0;
    int64_t& end = end_[{s.device, s.stream}];
    const int64_t early = std::clamp<int64_t>(end - s.start_ns, 0, s.end_ns - s.start_ns);
    end = std::max(end, s.end_ns);
    return early;
  }

 private:
  std::map<std::pair<int32_t, int32_t>, int64_t> end_;
};

/// The GPUs that have spans, all alike; the first where none has any.
std::set<int32_t> devices_of(const Recorder& recorder) {
  std::set<int32_t> devices;
  for (const DeviceSpan& s : recorder.device_spans())
    if (std::string_view(s.category) != kRuntimeCategory) devices.insert(s.device);
  if (devices.empty()) devices.insert(0);
  return devices;
}

void write_devices(Sink& out, const DeviceFacts& d, const std::set<int32_t>& devices) {
  out.print("\"deviceProperties\":[");
  const char* comma = "";
  for (const int32_t id : devices) {
    out.print(
        "{}{{\"id\":{},\"name\":\"{}\",\"totalGlobalMem\":{},\"computeMajor\":{},\"computeMinor\":{},"
        "\"maxThreadsPerMultiprocessor\":{},\"regsPerMultiprocessor\":{},\"warpSize\":{},"
        "\"sharedMemPerMultiprocessor\":{},\"numSms\":{}}}",
        comma, id, escaped(d.name), d.memory_bytes, d.compute_major, d.compute_minor, d.threads_per_sm,
        d.registers_per_sm, d.warp_size, d.shared_per_sm, d.sm_count);
    comma = ",";
  }
  out.print("],\n");
}

/// What recording only some steps left out and cost, among the notes.
void write_cost(Sink& out, const RecordingCost& cost) {
  if (cost.steps == 0) return;
  out.print(",\"steps\":\"{}\",\"steps_recorded\":\"{}\"", cost.steps, cost.recorded);
  if (cost.seconds > 0) out.print(",\"recording_overhead\":\"{:.1f} %\"", 100 * cost.share());
  if (!cost.problem.empty()) out.print(",\"recording_ended\":\"{}\"", escaped(cost.problem));
}

}  // namespace

std::string step_label(int64_t prefill_tokens, int64_t decode_sequences) {
  std::string out;
  if (prefill_tokens > 0) out = fmt::format("prefill {} token{}", prefill_tokens, prefill_tokens == 1 ? "" : "s");
  if (decode_sequences > 0) out += fmt::format("{}decode B={}", out.empty() ? "" : " + ", decode_sequences);
  return out.empty() ? "empty" : out;
}

std::string skipped_label(int64_t steps) {
  return fmt::format("{} step{} not recorded", steps, steps == 1 ? "" : "s");
}

void write_chrome_trace(const Recorder& recorder, const std::filesystem::path& path, const TraceNotes& notes) {
  Sink out(path);
  // GPUs have the numbers from 0 on; in a container this process may be number 1.
  const int own = static_cast<int>(::getpid()), pid = own < 64 ? own + (1 << 20) : own;
  out.print("{{\"displayTimeUnit\":\"ms\",\n");
  const std::set<int32_t> devices = devices_of(recorder);
  if (!recorder.device_facts().name.empty()) write_devices(out, recorder.device_facts(), devices);
  out.print("\"otherData\":{{\"producer\":\"fathom\",\"spans_dropped\":\"{}\"", recorder.dropped());
  write_cost(out, recorder.cost());
  for (const auto& [key, value] : notes) out.print(",\"{}\":\"{}\"", escaped(key), escaped(value));
  out.print(
      "}},\n\"traceEvents\":[\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"tid\":0,"
      "\"args\":{{\"name\":\"fathom\"}}}}",
      pid);
  if (!recorder.device_spans().empty())
    for (const int32_t id : devices)
      out.print(",\n{{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":{},\"tid\":0,\"args\":{{\"name\":\"GPU {}\"}}}}",
                id, id);

  std::set<int32_t> unnamed;
  recorder.for_each([&](const SpanRecord& span) { unnamed.insert(span.thread); });
  const auto name_thread = [&](int32_t id, const std::string& name) {
    out.print(",\n{{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":{},\"tid\":{},\"args\":{{\"name\":\"{}\"}}}}", pid,
              id, escaped(name));
  };
  for (const auto& [id, name] : recorder.thread_names()) name_thread(id, name), unnamed.erase(id);
  for (const int32_t id : unnamed) name_thread(id, id == own ? "main" : fmt::format("thread {}", id));

  recorder.for_each([&](const SpanRecord& span) { write_span(out, span, recorder.origin_ns(), pid); });
  EarlyTime early;
  for (const DeviceSpan& span : recorder.device_spans())
    write_device_span(out, span, early(span), recorder.origin_ns(), pid);
  out.print("\n]}}\n");
  out.finish();
}

}  // namespace fathom::profile

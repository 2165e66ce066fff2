// The data model of `fathom trace`: what one trace file says about GPU work, in integer nanoseconds.
//
// A Trace keeps 40 bytes for each piece of GPU work, the host calls that launched it, and the annotations that mark
// steps; everything else in the file is only counted. Texts are interned once (NameId), launch shapes too (ShapeId).
// Nothing here knows about file formats: readers (reader.h) fill it, analysis passes (analysis.h) read it.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace fathom::trace {

/// Nanoseconds. Time stamps are relative to Trace::base_time.
using Ns = int64_t;

enum class NameId : uint32_t {};
enum class ShapeId : uint32_t {};   // Trace::shapes; ShapeId{0} is "not recorded"
enum class StreamId : uint32_t {};  // Trace::streams
enum class DeviceId : uint32_t {};  // Trace::devices

/// Times that readers let through: from 36 years before the epoch to 2079, and no longer than 73 years. Sums and
/// differences of what a file may claim then stay in range; finish_trace() bounds the sum of all durations too.
constexpr Ns earliest_time = -(Ns{1} << 60), latest_time = Ns{3} << 60, longest_sum = Ns{1} << 61;
constexpr bool is_possible(Ns start, Ns duration) {
  return start >= earliest_time && start <= latest_time && duration >= 0 && duration <= longest_sum;
}
/// The sum, or the largest time when it does not fit.
constexpr Ns saturated_sum(Ns a, Ns b) {
  Ns sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? std::numeric_limits<Ns>::max() : sum;
}

constexpr size_t index(NameId id) {
  return static_cast<size_t>(id);
}
constexpr size_t index(ShapeId id) {
  return static_cast<size_t>(id);
}
constexpr size_t index(StreamId id) {
  return static_cast<size_t>(id);
}
constexpr size_t index(DeviceId id) {
  return static_cast<size_t>(id);
}

/// Every distinct text once, in order of first appearance. Texts are valid UTF-8 (readers repair them).
class NameTable {
 public:
  NameTable();  // holds the empty text as NameId{0}
  NameTable(NameTable&&) = default;
  NameTable& operator=(NameTable&&) = default;
  NameTable(const NameTable&) = delete;
  NameTable& operator=(const NameTable&) = delete;

  NameId intern(std::string_view text);
  std::string_view text(NameId id) const { return texts_[index(id)]; }
  size_t size() const { return texts_.size(); }

 private:
  std::deque<std::string> texts_;  // a deque keeps the string_view keys of ids_ alive
  std::unordered_map<std::string_view, NameId> ids_;
};

enum class WorkKind : uint8_t { kernel, memcpy, memset };

/// How a kernel was launched, or how much a copy moved. Zero means that the file does not say.
struct LaunchShape {
  std::array<uint32_t, 3> grid{}, block{};
  uint32_t registers = 0;           // per thread
  uint32_t shared_bytes = 0;        // per block, static and dynamic
  int32_t reported_occupancy = -1;  // the file's own percentage; -1 when absent. Never a verdict: Kineto writes 0
                                    // for every kernel with more than 48 KiB of shared memory.
  float blocks_per_sm = -1, warps_per_sm = -1;  // the file's own figures; -1 when absent or not finite
  int64_t bytes = 0;                            // copies and fills
  // Collectives (NCCL arguments), empty otherwise.
  NameId collective{}, group{};  // "allreduce", "[0, 1, 2, 3]"; NameId{0} is the empty text
  int64_t elements_in = 0;
  int32_t group_size = 0;

  bool has_grid() const { return grid[0] != 0 && block[0] != 0; }
  uint64_t blocks() const { return product(grid); }
  uint64_t threads() const { return product(block); }
  friend bool operator==(const LaunchShape&, const LaunchShape&) = default;

 private:
  /// At most 2^62: damaged files hold any number.
  static uint64_t product(const std::array<uint32_t, 3>& sides) {
    const unsigned __int128 n = static_cast<unsigned __int128>(uint64_t{sides[0]} * sides[1]) * sides[2];
    return n < uint64_t{1} << 62 ? static_cast<uint64_t>(n) : uint64_t{1} << 62;
  }
};

/// One piece of work on a GPU.
struct GpuEvent {
  Ns start = 0;
  Ns duration = 0;          // >= 0
  int64_t correlation = 0;  // 0: not recorded. One value for all kernels of a graph launch.
  NameId name{};
  ShapeId shape{};
  StreamId stream{};
  WorkKind kind = WorkKind::kernel;

  Ns end() const { return start + duration; }
};

/// A host call into the runtime or driver that can start GPU work, or waits for it.
enum class HostKind : uint8_t { launch, graph_launch, copy, synchronize, other };
struct HostCall {
  Ns start = 0, duration = 0;
  int64_t correlation = 0;
  NameId name{};
  uint32_t rank_label = 0;  // Trace::labels: the process label of merged files
  HostKind kind = HostKind::other;

  Ns end() const { return start + duration; }
};

/// A named span written by the engine: step markers, NVTX ranges, profiler steps.
struct Annotation {
  Ns start = 0, duration = 0;
  NameId name{};
  bool on_gpu = false;  // on a GPU row: spans the kernels of the range; never GPU work of its own
  std::optional<StreamId> stream;

  Ns end() const { return start + duration; }
};

/// A GPU of the machine: hardware facts of the file where it has them.
struct Device {
  std::string id;           // as the file writes it: "0", "GPU 0"
  std::string rank_label;   // process label of merged files ("TP00-DP00"), else empty
  std::optional<int> rank;  // where known
  uint32_t label = 0;       // Trace::labels: the process label of the host calls that launch its work
  std::string name;         // "NVIDIA H200", may be empty
  int sm_count = 0;
  int compute_major = 0, compute_minor = 0;
  int max_threads_per_sm = 0, registers_per_sm = 0, warp_size = 0;
  int64_t shared_per_sm = 0, memory_bytes = 0;
};

struct Stream {
  DeviceId device{};
  std::string id;  // as the file writes it: "7", "stream 7"
};

/// A row of a trace without categories (JAX, TensorFlow): plain sums of what lies on it. Rows nest (steps, modules,
/// ops), so only the leaf rows become GpuEvents.
struct Lane {
  std::string process, thread;
  int64_t events = 0;
  Ns total = 0;
  bool is_device = false;  // the process is a device
  bool is_work = false;    // its events became GpuEvents
};

/// A place where the file could not be understood. `offset` counts bytes of the (decompressed) text.
struct Damage {
  uint64_t offset = 0;
  std::string what;     // "expected ',' or '}'"
  std::string context;  // the text around it, printable
};

/// What the reader met on the way: nothing is dropped without a count here.
struct ImportReport {
  uint64_t file_bytes = 0, text_bytes = 0;     // on disk, decompressed
  uint64_t events = 0;                         // whole events read, of any kind
  std::map<std::string, uint64_t> categories;  // category -> events (complete and begin events)
  std::map<char, uint64_t> phases;

  bool partial = false;         // damaged or cut: the report covers the whole events that were found
  uint64_t partial_offset = 0;  // byte offset of the first damage
  std::vector<Damage> damages;  // the first 20
  uint64_t damage_count = 0;

  uint64_t non_finite = 0, bad_escapes = 0, bad_utf8 = 0, control_characters = 0, big_integers = 0;
  uint64_t zero_time = 0;          // GPU work at time 0 (left out: it would stretch the span)
  uint64_t zero_duration = 0;      // GPU work of no length (counted as calls)
  uint64_t negative_duration = 0;  // left out
  uint64_t no_duration = 0;        // complete events without dur or with one that is no number (left out)
  uint64_t no_time = 0;            // GPU work without a time stamp (left out)
  uint64_t open_begins = 0, stray_ends = 0;
  uint64_t empty_objects = 0, unknown_phases = 0;
  uint64_t launches_without_work = 0;  // host launches whose kernel is missing
  uint64_t work_without_launch = 0;
  std::vector<std::string> notes;  // sentences for the report: "rank 3 taken from the file name"
};

enum class Producer : uint8_t { unknown, torch, jax_gpu, jax_tpu, nsys_json, nsys_sqlite, fathom };

/// One trace file (or one fathom profile). Events are sorted by device, then start, then longer first.
struct Trace {
  std::filesystem::path path;
  Producer producer = Producer::unknown;
  std::string form;  // "object", "array", "nsys sqlite"
  Ns base_time = 0;  // baseTimeNanoseconds; 0: time stamps are absolute or unknown
  bool has_base_time = false;
  std::optional<int> rank, world_size;
  std::string host;
  std::string runtime;    // "CUDA 12.8", "HIP 6.2" where the file says so
  bool cpu_work = false;  // the work is operations on the CPU (fathom's own profiles of its CPU path)

  NameTable names;
  std::vector<LaunchShape> shapes{LaunchShape{}};
  std::vector<Device> devices;  // only those that did work
  std::vector<Stream> streams;
  std::vector<std::string> labels{""};
  std::vector<GpuEvent> events;
  std::vector<HostCall> calls;          // sorted by start
  std::vector<Annotation> annotations;  // sorted by start
  std::vector<Lane> lanes;
  ImportReport import;

  std::string_view name(const GpuEvent& e) const { return names.text(e.name); }
  const LaunchShape& shape(const GpuEvent& e) const { return shapes[index(e.shape)]; }
  DeviceId device_of(const GpuEvent& e) const { return streams[index(e.stream)].device; }
};

/// Short names for messages: "PyTorch profiler", "JAX (GPU)", ...
std::string_view producer_name(Producer producer);
/// What the work of a trace ran on, for sentences: "GPU", "CPU" or "TPU".
std::string_view device_word(const Trace& trace);
/// What a piece of its work is called: "kernel", or "operation" where the device is no GPU.
std::string_view work_word(const Trace& trace);

}  // namespace fathom::trace

// From rows of a document to devices, streams and sorted work.
#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "base/error.h"
#include "trace/chrome_reader.h"
#include "trace/finish.h"
#include "trace/format.h"
#include "trace/skipped_steps.h"

namespace fathom::trace {
namespace {

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

/// A pid like "[TP00-DP00-PP00-EP00] 3" of merged files: the label and the rest.
std::pair<std::string_view, std::string_view> split_label(std::string_view pid) {
  if (!pid.starts_with('[')) return {{}, pid};
  const size_t close = pid.find(']');
  if (close == std::string_view::npos) return {{}, pid};
  std::string_view rest = pid.substr(close + 1);
  while (rest.starts_with(' ')) rest.remove_prefix(1);
  return {pid.substr(1, close - 1), rest};
}

std::string_view without_prefix(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) && text.size() > prefix.size() ? text.substr(prefix.size()) : text;
}

class Assembler {
 public:
  Assembler(ChromeDocument& document, Trace& trace) : document_(document), store_(document.store), trace_(trace) {}

  void run() {
    name_rows();
    pair_edges();
    resolve_lanes();
    if (document_.from_fathom) tell_work_apart();
    make_devices();
    trace_.shapes = std::move(store_.shapes);
    trace_.producer = producer();
    if (document_.from_fathom) cut_skipped_steps(trace_);
    finish_trace(trace_);
  }

 private:
  std::string_view text(uint32_t name) const { return trace_.names.text(NameId{name}); }

  void name_rows() {
    for (const RowName& r : store_.row_names) {
      if (r.is_label) continue;
      if (r.of_thread)
        threads_[{r.pid, r.tid}] = r.text;
      else
        processes_[r.pid] = r.text;
    }
  }

  /// Begin and end events of a row nest; only pairs that are GPU work become work.
  void pair_edges() {
    auto& edges = store_.edges;
    std::stable_sort(edges.begin(), edges.end(), [](const EdgeEvent& a, const EdgeEvent& b) {
      return std::tie(a.row, a.time) < std::tie(b.row, b.time);
    });
    std::vector<const EdgeEvent*> open;
    for (size_t i = 0; i < edges.size(); ++i) {
      if (i > 0 && edges[i].row != edges[i - 1].row) {
        trace_.import.open_begins += open.size();
        open.clear();
      }
      if (edges[i].begin) {
        open.push_back(&edges[i]);
      } else if (open.empty()) {
        ++trace_.import.stray_ends;
      } else {
        const EdgeEvent& b = *open.back();
        const bool is_work = b.what >= EventClass::kernel && b.what <= EventClass::memset;
        if (is_work) {
          GpuEvent e{b.time, edges[i].time - b.time, b.correlation, NameId{b.name}, ShapeId{b.shape}, StreamId{b.row},
                     {}};
          e.kind = b.what == EventClass::kernel   ? WorkKind::kernel
                   : b.what == EventClass::memcpy ? WorkKind::memcpy
                                                  : WorkKind::memset;
          store_.work.push_back(e);
        }
        open.pop_back();
      }
    }
    trace_.import.open_begins += open.size();
    edges = {};
  }

  /// Operations on the host are the work of fathom's own profiles, but where steps were launched op by op on a GPU: its
  /// kernels are.
  void tell_work_apart() {
    const auto& categories = trace_.import.categories;
    trace_.cpu_work = categories.contains("cpu_op") && !categories.contains("kernel");
    const auto names_device = [&](const GpuEvent& e) { return store_.rows[index(e.stream)].device != 0; };
    if (std::any_of(store_.work.begin(), store_.work.end(), names_device))
      std::erase_if(store_.work, [&](const GpuEvent& e) { return !names_device(e); });
  }

  std::string process_of(const RowKey& row) const {
    const auto found = processes_.find(row.pid);
    return std::string(text(found == processes_.end() ? row.pid : found->second));
  }
  std::string thread_of(const RowKey& row) const {
    const auto found = threads_.find({row.pid, row.tid});
    return std::string(text(found == threads_.end() ? row.tid : found->second));
  }

  /// Files without categories (JAX, TensorFlow): the leaf rows of device processes hold the work.
  void resolve_lanes() {
    if (store_.lane_events.empty()) return;
    std::map<uint32_t, Lane> lanes;
    for (const LaneEvent& e : store_.lane_events) {
      Lane& lane = lanes[e.row];
      ++lane.events;
      lane.total = saturated_sum(lane.total, e.duration);
    }
    bool streams = false, ops = false;
    for (auto& [row, lane] : lanes) {
      lane.process = process_of(store_.rows[row]);
      lane.thread = thread_of(store_.rows[row]);
      lane.is_device = contains(lane.process, "/device:") && !contains(lane.process, "/device:CPU");
      streams |= lane.is_device && lane.thread.starts_with("Stream #");
      ops |= lane.is_device && lane.thread == "XLA Ops";
      is_tpu_ |= contains(lane.process, "/device:TPU");
    }
    bool any = false, any_device = false;
    for (auto& [row, lane] : lanes) {
      lane.is_work =
          lane.is_device && (streams ? lane.thread.starts_with("Stream #") : ops && lane.thread == "XLA Ops");
      any |= lane.is_work;
      any_device |= lane.is_device;
    }
    if (any_device && !any)
      trace_.import.notes.push_back(
          "device rows were found, but none is a stream or an \"XLA Ops\" row, so no row counts as GPU work");
    lanes_seen_ = any;
    uint64_t enclosing = 0;
    for (const LaneEvent& e : store_.lane_events) {
      if (!lanes[e.row].is_work) continue;
      const std::string_view operation = text(e.operation);
      if (operation == "while" || operation == "conditional" || operation == "call") {
        ++enclosing;
        continue;
      }
      GpuEvent work{e.start,          e.duration,      e.correlation,   operation_name(e),
                    ShapeId{e.shape}, StreamId{e.row}, WorkKind::kernel};
      const std::string_view name = text(e.name);
      if (contains(name, "Memcpy")) work.kind = WorkKind::memcpy;
      if (contains(name, "Memset")) work.kind = WorkKind::memset;
      store_.work.push_back(work);
    }
    if (enclosing)
      trace_.import.notes.push_back(
          fmt::format("{} of XLA (while, conditional, call) {} no work: the operations inside have events of their own",
                      counted(static_cast<int64_t>(enclosing), "control-flow event"), enclosing == 1 ? "is" : "are"));
    if (any_device)
      for (auto& [row, lane] : lanes)
        if (trace_.lanes.size() < 10'000) trace_.lanes.push_back(std::move(lane));
    store_.lane_events = {};
  }

  /// XLA numbers its instructions, so that each layer's "fusion.17" has a name of its own: without the number, and with
  /// what XLA says the instruction is, those of a kind come together: "fusion [convolution fusion]".
  NameId operation_name(const LaneEvent& e) {
    const std::string_view operation = text(e.operation);
    if (operation.empty()) return NameId{e.name};
    std::string_view name = text(e.name);
    const size_t dot = name.rfind('.');
    if (dot != std::string_view::npos && dot > 0 &&
        name.find_first_not_of("0123456789", dot + 1) == std::string_view::npos)
      name = name.substr(0, dot);
    if (name == operation) return trace_.names.intern(name);
    return trace_.names.intern(fmt::format("{} [{}]", name, operation));
  }

  /// The device text of a row: what its work names, else what other work of the process names, else the process.
  std::string device_text(const RowKey& row) const {
    if (row.device) return std::string(text(row.device));
    const auto found = named_devices_.find(row.pid);
    if (found != named_devices_.end() && found->second.size() == 1) return std::string(text(*found->second.begin()));
    std::string_view pid = split_label(text(row.pid)).second;
    const auto process = processes_.find(row.pid);
    if (lanes_seen_ && process != processes_.end()) pid = text(process->second);
    return std::string(without_prefix(without_prefix(pid, "GPU "), "Device "));
  }

  void make_devices() {
    std::vector<bool> used(store_.rows.size(), false);
    for (const GpuEvent& e : store_.work) used[index(e.stream)] = true;
    for (size_t i = 0; i < used.size(); ++i)
      if (used[i] && store_.rows[i].device) named_devices_[store_.rows[i].pid].insert(store_.rows[i].device);

    // One device for each process and device number; sorted, so that ids do not depend on the order of events.
    std::map<std::tuple<std::string, std::string, std::string>, DeviceId> devices;  // label, id, pid
    std::map<std::tuple<std::string, std::string, std::string, std::string>, StreamId> streams;
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) continue;
      const auto [label, rest] = split_label(text(store_.rows[i].pid));
      devices.try_emplace({std::string(label), device_text(store_.rows[i]), std::string(text(store_.rows[i].pid))});
    }
    for (auto& [key, id] : devices) {
      id = static_cast<DeviceId>(trace_.devices.size());
      trace_.devices.push_back(describe(key));
    }
    tell_devices_apart();
    std::vector<StreamId> stream_of(store_.rows.size());
    for (size_t i = 0; i < used.size(); ++i) {
      if (!used[i]) continue;
      const RowKey& row = store_.rows[i];
      const auto [label, rest] = split_label(text(row.pid));
      const std::string device = device_text(row), pid(text(row.pid));
      const std::string thread = lanes_seen_ ? thread_of(row) : std::string(text(row.tid));
      const auto [at, added] =
          streams.try_emplace({std::string(label), device, pid, thread}, static_cast<StreamId>(trace_.streams.size()));
      if (added)
        trace_.streams.push_back({devices.at({std::string(label), device, pid}),
                                  std::string(without_prefix(without_prefix(thread, "stream "), "Stream "))});
      stream_of[i] = at->second;
    }
    trace_.events = std::move(store_.work);
    for (GpuEvent& e : trace_.events) e.stream = stream_of[index(e.stream)];
    take_host_side(used, stream_of);
  }

  void take_host_side(const std::vector<bool>& used, const std::vector<StreamId>& stream_of) {
    trace_.calls = std::move(store_.calls);
    for (HostCall& c : trace_.calls) c.rank_label = label_id(split_label(text(store_.rows[c.rank_label].pid)).first);
    trace_.annotations = std::move(store_.annotations);
    std::map<std::pair<uint32_t, uint32_t>, StreamId> by_row;  // annotations name no device
    for (size_t i = 0; i < used.size(); ++i)
      if (used[i]) by_row.try_emplace({store_.rows[i].pid, store_.rows[i].tid}, stream_of[i]);
    for (size_t i = 0; i < trace_.annotations.size(); ++i) {
      if (!trace_.annotations[i].on_gpu) continue;
      const RowKey& row = store_.rows[store_.annotation_rows[i]];
      if (const auto found = by_row.find({row.pid, row.tid}); found != by_row.end())
        trace_.annotations[i].stream = found->second;
    }
  }

  uint32_t label_id(std::string_view label) {
    const auto [at, added] = labels_.try_emplace(std::string(label), static_cast<uint32_t>(trace_.labels.size()));
    if (added) trace_.labels.emplace_back(label);
    return at->second;
  }

  Device describe(const std::tuple<std::string, std::string, std::string>& key) {
    Device d;
    int64_t number = -1;
    const bool numbered = parse_integer(std::get<1>(key), number);
    for (const DeviceProperties& p : document_.devices)
      if (numbered && p.id == number) d = p.facts;
    d.rank_label = std::get<0>(key);
    d.label = label_id(d.rank_label);
    d.id = std::get<1>(key);
    return d;
  }

  /// Merged files may number processes so that two devices show the same id: then the process is told too.
  void tell_devices_apart() {
    std::map<std::pair<std::string, std::string>, int> seen;
    for (const Device& d : trace_.devices) ++seen[{d.rank_label, d.id}];
    bool clash = false;
    for (const auto& [key, count] : seen) clash |= count > 1;
    if (!clash) return;
    std::map<std::pair<std::string, std::string>, int> next;
    for (Device& d : trace_.devices)
      if (seen[{d.rank_label, d.id}] > 1)
        d.rank_label += fmt::format("{}process {}", d.rank_label.empty() ? "" : " ", next[{d.rank_label, d.id}]++);
    trace_.import.notes.push_back("several processes use the same device number: they are taken for different ranks");
  }

  Producer producer() const {
    if (document_.from_fathom) return Producer::fathom;
    if (is_tpu_) return Producer::jax_tpu;
    if (lanes_seen_) return Producer::jax_gpu;
    const auto& categories = trace_.import.categories;
    if (document_.torch || categories.contains("cpu_op") || categories.contains("Operator")) return Producer::torch;
    if (categories.contains("cuda")) return Producer::nsys_json;
    return Producer::unknown;
  }

  ChromeDocument& document_;
  EventStore& store_;
  Trace& trace_;
  std::map<uint32_t, uint32_t> processes_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> threads_;
  std::map<uint32_t, std::set<uint32_t>> named_devices_;
  std::map<std::string, uint32_t> labels_{{"", 0}};  // indices of Trace::labels
  bool is_tpu_ = false, lanes_seen_ = false;
};

}  // namespace

void assemble(ChromeDocument&& document, Trace& trace) {
  Assembler(document, trace).run();
}

}  // namespace fathom::trace

#include "trace/nsys_reader.h"

#include <sqlite3.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/utf8.h"
#include "trace/chrome_chunk.h"
#include "trace/finish.h"
#include "trace/format.h"

namespace fathom::trace {
namespace {

struct CloseDatabase {
  void operator()(sqlite3* db) const { sqlite3_close(db); }
};
struct CloseStatement {
  void operator()(sqlite3_stmt* s) const { sqlite3_finalize(s); }
};

constexpr size_t most_annotations = 1'000'000;
constexpr int longest_value = 64 << 20;

/// What SQLite says of its last error; it quotes the file.
std::string complaint(sqlite3* db) {
  return printable(sqlite3_errmsg(db), 200);
}

/// One SELECT over the wanted columns of a table; absent columns read as NULL. `tables` are those of the database:
/// views are not read, since a damaged or hostile one may have no end.
class Rows {
 public:
  Rows(sqlite3* db, const std::set<std::string>& tables, const std::string& table,
       const std::vector<const char*>& wanted, std::string& damage)
      : db_(db), damage_(damage) {
    if (!tables.contains(table)) return;
    std::set<std::string> present;
    sqlite3_stmt* info = nullptr;
    if (sqlite3_prepare_v2(db, ("PRAGMA table_info(\"" + table + "\")").c_str(), -1, &info, nullptr) == SQLITE_OK)
      while (sqlite3_step(info) == SQLITE_ROW)
        if (const auto* name = sqlite3_column_text(info, 1)) present.insert(reinterpret_cast<const char*>(name));
    sqlite3_finalize(info);
    if (present.empty()) return;
    exists_ = true;
    std::string sql = "SELECT ";
    for (size_t i = 0; i < wanted.size(); ++i)
      sql +=
          fmt::format("{}{}", i ? ", " : "", present.contains(wanted[i]) ? fmt::format("\"{}\"", wanted[i]) : "NULL");
    sql += " FROM \"" + table + "\"";
    sqlite3_stmt* statement = nullptr;
    if (sqlite3_prepare_v2(db, sql.c_str(), -1, &statement, nullptr) != SQLITE_OK) note_damage(table);
    statement_.reset(statement);
    table_ = table;
  }

  bool exists() const { return exists_; }
  bool next() {
    if (!statement_) return false;
    const int r = sqlite3_step(statement_.get());
    if (r == SQLITE_ROW) return true;
    if (r != SQLITE_DONE) note_damage(table_);
    return false;
  }
  bool has(int column) const { return sqlite3_column_type(statement_.get(), column) != SQLITE_NULL; }
  int64_t integer(int column) const { return sqlite3_column_int64(statement_.get(), column); }
  uint32_t unsigned32(int column) const {
    return static_cast<uint32_t>(std::clamp<int64_t>(integer(column), 0, std::numeric_limits<uint32_t>::max()));
  }
  std::string text(int column) const {
    const auto* data = reinterpret_cast<const char*>(sqlite3_column_text(statement_.get(), column));
    return data ? std::string(data, static_cast<size_t>(sqlite3_column_bytes(statement_.get(), column)))
                : std::string();
  }

 private:
  void note_damage(const std::string& table) {
    if (damage_.empty()) damage_ = fmt::format("table {}: {}", table, complaint(db_));
  }
  sqlite3* db_;
  std::string& damage_;
  std::string table_;
  std::unique_ptr<sqlite3_stmt, CloseStatement> statement_;
  bool exists_ = false;
};

class NsysReader {
 public:
  explicit NsysReader(const std::filesystem::path& path) {
    trace_.path = path;
    trace_.producer = Producer::nsys_sqlite;
    trace_.form = "nsys sqlite";
    std::error_code ignored;
    trace_.import.file_bytes = std::filesystem::file_size(path, ignored);
    std::string uri = "file:";
    for (const char c : std::filesystem::absolute(path).string()) {
      const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                         std::string_view("/._-").find(c) != std::string_view::npos;
      uri += plain ? std::string(1, c) : fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
    sqlite3* db = nullptr;  // immutable: no lock and no journal files beside the capture
    const int r = sqlite3_open_v2((uri + "?immutable=1").c_str(), &db, SQLITE_OPEN_READONLY | SQLITE_OPEN_URI, nullptr);
    db_.reset(db);
    if (r != SQLITE_OK) fail("{}: cannot open: {}", shown(), complaint(db));
    sqlite3_db_config(db, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_limit(db, SQLITE_LIMIT_LENGTH, longest_value);
    sqlite3_progress_handler(
        db, 1'000'000, [](void*) { return interrupted() ? 1 : 0; }, nullptr);
  }

  Trace run() {
    read_tables();
    read_strings();
    read_gpus();
    read_kernels();
    read_copies();
    read_graph_traces();
    read_calls();
    read_ranges();
    finish_devices();
    if (!damage_.empty()) {
      trace_.import.partial = true;
      ++trace_.import.damage_count;
      trace_.import.damages.push_back({0, damage_, ""});
      trace_.import.notes.push_back("the database is damaged (" + damage_ + "); export the report again");
    }
    finish_trace(trace_);
    explain();
    return std::move(trace_);
  }

 private:
  std::string shown() const { return printable(trace_.path.string(), 400); }

  void read_tables() {
    sqlite3_stmt* s = nullptr;
    if (sqlite3_prepare_v2(db_.get(), "SELECT name FROM sqlite_master WHERE type='table'", -1, &s, nullptr) !=
        SQLITE_OK)
      fail("{}: is a damaged SQLite file ({}); export the report again", shown(), complaint(db_.get()));
    int r;
    while ((r = sqlite3_step(s)) == SQLITE_ROW)
      if (const auto* name = sqlite3_column_text(s, 0)) tables_.insert(reinterpret_cast<const char*>(name));
    sqlite3_finalize(s);
    if (r != SQLITE_DONE)
      fail("{}: is a damaged SQLite file ({}); export the report again", shown(), complaint(db_.get()));
    bool nsys = tables_.contains("StringIds");
    for (const std::string& t : tables_) nsys |= t.starts_with("CUPTI_ACTIVITY_KIND_") || t.starts_with("META_DATA_");
    if (!nsys) {
      std::string seen;
      for (const std::string& t : tables_) seen += (seen.empty() ? "" : ", ") + printable(t, 40);
      fail("{}: is an SQLite database, but no Nsight Systems export (tables: {})", shown(),
           seen.empty() ? "none" : printable(seen, 200));
    }
  }

  void read_strings() {
    Rows rows(db_.get(), tables_, "StringIds", {"id", "value"}, damage_);
    while (rows.next()) {
      const std::string text = rows.text(1);
      if (!is_valid_utf8(text)) ++trace_.import.bad_utf8;
      strings_[rows.integer(0)] = utf8_repaired(text);
    }
  }

  NameId string(int64_t id) {
    const auto found = strings_.find(id);
    return trace_.names.intern(found == strings_.end() ? fmt::format("(string {})", id) : found->second);
  }

  void read_gpus() {
    Rows rows(db_.get(), tables_, "TARGET_INFO_GPU",
              {"id", "name", "smCount", "computeMajor", "computeMinor", "maxWarpsPerSm", "threadsPerWarp",
               "maxRegistersPerSm", "maxShmemPerSm", "totalMemory"},
              damage_);
    while (rows.next()) {
      Device d;
      d.name = utf8_repaired(rows.text(1));
      d.sm_count = static_cast<int>(rows.unsigned32(2) & 0xFFFFF);
      d.compute_major = static_cast<int>(rows.unsigned32(3) & 0xFFFF);
      d.compute_minor = static_cast<int>(rows.unsigned32(4) & 0xFFFF);
      d.warp_size = static_cast<int>(rows.unsigned32(6) & 0xFFFF);
      d.max_threads_per_sm = static_cast<int>(rows.unsigned32(5) & 0xFFFF) * d.warp_size;
      d.registers_per_sm = static_cast<int>(rows.unsigned32(7) & 0xFFFFFFF);
      d.shared_per_sm = rows.integer(8);
      d.memory_bytes = rows.integer(9);
      gpus_[rows.integer(0)] = d;
    }
    Rows map(db_.get(), tables_, "TARGET_INFO_CUDA_DEVICE", {"pid", "cudaId", "gpuId"}, damage_);
    while (map.next()) gpu_of_[{map.integer(0), map.integer(1)}] = map.integer(2);
  }

  /// Process of a globalPid; the exporter packs hardware, VM and process ids into one number.
  static int64_t process_of(int64_t global) { return global >> 24 & 0xFFFFFF; }

  StreamId stream(int64_t global_pid, int64_t device, int64_t stream) {
    const auto [at, added] =
        streams_.try_emplace({global_pid, device, stream}, static_cast<StreamId>(trace_.streams.size()));
    if (!added) return at->second;
    const auto [d, new_device] =
        devices_.try_emplace({global_pid, device}, static_cast<DeviceId>(trace_.devices.size()));
    if (new_device) {
      Device facts;
      const auto gpu = gpu_of_.find({process_of(global_pid), device});
      const auto found = gpus_.find(gpu == gpu_of_.end() ? device : gpu->second);
      if (found != gpus_.end()) facts = found->second;
      facts.id = std::to_string(device);
      trace_.devices.push_back(std::move(facts));
      device_process_.push_back(process_of(global_pid));
    }
    trace_.streams.push_back({d->second, std::to_string(stream)});
    return at->second;
  }

  ShapeId shape(const LaunchShape& s) {
    if (s == LaunchShape{}) return {};
    const auto [at, added] = shapes_.try_emplace(s, static_cast<ShapeId>(trace_.shapes.size()));
    if (added) trace_.shapes.push_back(s);
    return at->second;
  }

  /// Start and end; counts and refuses rows that are no interval.
  bool interval(const Rows& rows, Ns& start, Ns& duration) {
    ++trace_.import.events;
    if ((trace_.import.events & 0xFFFF) == 0 && interrupted()) fail("{}: interrupted", shown());
    if (!rows.has(0) || !rows.has(1)) {
      ++trace_.import.no_duration;
      return false;
    }
    start = rows.integer(0);
    if (rows.integer(1) < start || start < 0 || !is_possible(start, rows.integer(1) - start)) {
      ++trace_.import.negative_duration;
      return false;
    }
    duration = rows.integer(1) - start;
    if (start == 0 && duration == 0) {
      ++trace_.import.zero_time;
      return false;
    }
    return true;
  }

  void read_kernels() {
    std::vector<const char*> wanted = {"start",
                                       "end",
                                       "deviceId",
                                       "streamId",
                                       "correlationId",
                                       "globalPid",
                                       "demangledName",
                                       "shortName",
                                       "registersPerThread",
                                       "staticSharedMemory",
                                       "dynamicSharedMemory",
                                       "gridX",
                                       "gridY",
                                       "gridZ",
                                       "blockX",
                                       "blockY",
                                       "blockZ"};
    for (const char* table : {"CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL"}) {
      Rows rows(db_.get(), tables_, table, wanted, damage_);
      while (rows.next()) {
        GpuEvent e;
        if (!interval(rows, e.start, e.duration)) continue;
        ++trace_.import.categories[table];
        LaunchShape s;
        for (size_t i = 0; i < 3; ++i) {
          s.grid[i] = rows.unsigned32(static_cast<int>(11 + i));
          s.block[i] = rows.unsigned32(static_cast<int>(14 + i));
        }
        s.registers = rows.unsigned32(8);
        s.shared_bytes =
            static_cast<uint32_t>(std::min<uint64_t>(uint64_t{rows.unsigned32(9)} + rows.unsigned32(10), ~0u));
        e.name = string(rows.has(6) ? rows.integer(6) : rows.integer(7));
        e.correlation = rows.integer(4);
        e.stream = stream(rows.integer(5), rows.integer(2), rows.integer(3));
        e.shape = shape(s);
        trace_.events.push_back(e);
      }
    }
  }

  void read_copies() {
    std::map<int64_t, std::string> labels;
    Rows kinds(db_.get(), tables_, "ENUM_CUDA_MEMCPY_OPER", {"id", "label"}, damage_);
    while (kinds.next()) labels[kinds.integer(0)] = utf8_repaired(kinds.text(1));
    for (const bool set : {false, true}) {
      const char* table = set ? "CUPTI_ACTIVITY_KIND_MEMSET" : "CUPTI_ACTIVITY_KIND_MEMCPY";
      Rows rows(db_.get(), tables_, table,
                {"start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind"}, damage_);
      while (rows.next()) {
        GpuEvent e;
        if (!interval(rows, e.start, e.duration)) continue;
        ++trace_.import.categories[table];
        const auto label = labels.find(rows.integer(7));
        e.name = trace_.names.intern(set                     ? "[CUDA memset]"
                                     : label == labels.end() ? fmt::format("[CUDA memcpy kind {}]", rows.integer(7))
                                                             : fmt::format("[CUDA memcpy {}]", label->second));
        e.kind = set ? WorkKind::memset : WorkKind::memcpy;
        LaunchShape s;
        s.bytes = rows.integer(6);
        e.shape = shape(s);
        e.correlation = rows.integer(4);
        e.stream = stream(rows.integer(5), rows.integer(2), rows.integer(3));
        trace_.events.push_back(e);
      }
    }
  }

  /// Whole graphs as one row each: without kernels inside, all that is known is their length.
  void read_graph_traces() {
    Rows rows(db_.get(), tables_, "CUPTI_ACTIVITY_KIND_GRAPH_TRACE",
              {"start", "end", "deviceId", "streamId", "globalPid", "graphId"}, damage_);
    while (rows.next()) {
      Annotation a;
      if (!interval(rows, a.start, a.duration)) continue;
      ++graph_rows_;
      graph_time_ = saturated_sum(graph_time_, a.duration);
      a.on_gpu = true;
      a.name = trace_.names.intern(fmt::format("CUDA graph {}", rows.integer(5)));
      trace_.annotations.push_back(a);
    }
  }

  void read_calls() {
    for (const char* table : {"CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"}) {
      Rows rows(db_.get(), tables_, table, {"start", "end", "correlationId", "nameId"}, damage_);
      std::map<int64_t, std::pair<HostKind, NameId>> known;
      while (rows.next()) {
        HostCall c;
        if (!interval(rows, c.start, c.duration)) continue;
        ++trace_.import.categories[table];
        const auto [at, added] = known.try_emplace(rows.integer(3));
        if (added) {
          at->second.second = string(rows.integer(3));
          at->second.first = classify_call(trace_.names.text(at->second.second));
        }
        if (at->second.first == HostKind::other) continue;
        c.kind = at->second.first;
        c.name = at->second.second;
        c.correlation = rows.integer(2);
        trace_.calls.push_back(c);
      }
    }
  }

  void read_ranges() {
    Rows rows(db_.get(), tables_, "NVTX_EVENTS", {"start", "end", "eventType", "text", "textId"}, damage_);
    uint64_t open = 0, dropped = 0;
    while (rows.next()) {
      const int64_t type = rows.integer(2);
      if (type != 59 && type != 60) continue;  // push/pop and start/end ranges
      if (!rows.has(1)) {
        ++open;
        continue;
      }
      Annotation a;
      if (!interval(rows, a.start, a.duration)) continue;
      if (trace_.annotations.size() >= most_annotations) {
        ++dropped;
        continue;
      }
      a.name = rows.has(3) ? trace_.names.intern(utf8_repaired(rows.text(3))) : string(rows.integer(4));
      trace_.annotations.push_back(a);
    }
    trace_.import.open_begins += open;
    if (dropped)
      trace_.import.notes.push_back(fmt::format(
          "{} left out: only the first {} are kept",
          counted(static_cast<int64_t>(dropped), "NVTX range is", "NVTX ranges are"), count_text(most_annotations)));
  }

  /// Processes that share a device number but not the GPU are told apart; one process on one GPU stays plain.
  void finish_devices() {
    std::map<std::string, std::set<int64_t>> processes;
    for (size_t i = 0; i < trace_.devices.size(); ++i) processes[trace_.devices[i].id].insert(device_process_[i]);
    for (size_t i = 0; i < trace_.devices.size(); ++i)
      if (processes[trace_.devices[i].id].size() > 1)
        trace_.devices[i].rank_label = fmt::format("process {}", device_process_[i]);
  }

  void explain() {
    int64_t kernels = 0;
    for (const GpuEvent& e : trace_.events) kernels += e.kind == WorkKind::kernel;
    auto& notes = trace_.import.notes;
    if (kernels == 0) {
      bool graphs =
          graph_rows_ > 0 || tables_.contains("CUDA_GRAPH_EVENTS") || tables_.contains("CUDA_GRAPH_NODE_EVENTS");
      for (const HostCall& c : trace_.calls) graphs |= c.kind == HostKind::graph_launch;
      notes.push_back(
          graphs ? "no kernels: the program runs CUDA graphs and they were traced as a whole; capture again with "
                   "nsys profile --cuda-graph-trace=node"
                 : "no kernels: capture with nsys profile -t cuda (and --trace-fork-before-exec=true when the "
                   "engine forks workers)");
    }
    if (graph_rows_)
      notes.push_back(fmt::format("{}, of {:.3f} ms together, recorded as a whole; kernels inside are in no table",
                                  counted(graph_rows_, "graph launch is", "graph launches are"),
                                  static_cast<double>(graph_time_) / 1e6));
  }

  Trace trace_;
  std::unique_ptr<sqlite3, CloseDatabase> db_;
  std::string damage_;
  std::set<std::string> tables_;
  std::unordered_map<int64_t, std::string> strings_;
  std::map<int64_t, Device> gpus_;
  std::map<std::pair<int64_t, int64_t>, int64_t> gpu_of_;
  std::map<std::pair<int64_t, int64_t>, DeviceId> devices_;
  std::vector<int64_t> device_process_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, StreamId> streams_;
  std::unordered_map<LaunchShape, ShapeId, ShapeHash> shapes_;
  int64_t graph_rows_ = 0;
  Ns graph_time_ = 0;
};

}  // namespace

Trace read_nsys(const std::filesystem::path& path) {
  return NsysReader(path).run();
}

}  // namespace fathom::trace

// Parsing one stretch of an event list. Chunks are parsed in parallel, each into its own ChunkResult.
//
// A chunk other than the first starts at a guess: an object behind a comma that reads as an event. The guess is only
// used when the chunk before it ends exactly there; otherwise the chunk is parsed again from where that one ended. So
// the result is the same as reading the file from front to back, without a pass over the text to find the events.
//
// Damage: when an event cannot be read, the place is recorded and reading goes on at the next object that is a whole
// event. In valid JSON the bytes `{"x` cannot stand inside a string (the quote would end it and a letter cannot
// follow), so text that merely looks like events is never taken for one.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trace/chrome_event.h"
#include "trace/model.h"

namespace fathom::trace {

/// Distinct raw texts of a chunk. Views point into the window.
class RawNames {
 public:
  struct Entry {
    RawText raw;
    uint64_t uses = 0;
  };
  uint32_t add(const RawText& raw);
  const std::vector<Entry>& entries() const { return entries_; }

 private:
  struct Hash {
    size_t operator()(std::string_view text) const;
  };
  std::vector<Entry> entries_;
  std::unordered_map<std::string_view, uint32_t, Hash> ids_;
};

struct ShapeHash {
  size_t operator()(const LaunchShape& shape) const;
};

/// A row of the file: pid and tid, and the device that the work on it names.
struct RowKey {
  uint32_t pid = 0, tid = 0, device = 0;  // RawNames; device 0 (the empty text) when the event names none
  friend bool operator==(const RowKey&, const RowKey&) = default;
};

struct RowHash {
  size_t operator()(const RowKey& key) const;
};

/// An event of a file without categories, kept until the names of the processes are known.
struct LaneEvent {
  Ns start = 0, duration = 0;
  int64_t correlation = 0;
  uint32_t name = 0, row = 0, shape = 0;
  uint32_t operation = 0;  // what XLA says it is ("convolution fusion"); the empty text when it does not say
};

/// A begin or end event; pairs are matched when all are there.
struct EdgeEvent {
  Ns time = 0;
  int64_t correlation = 0;
  uint32_t name = 0, row = 0, shape = 0;
  EventClass what = EventClass::ignored;
  bool begin = false;
};

/// A metadata event (process_name, process_labels, thread_name).
struct RowName {
  uint32_t pid = 0, tid = 0, text = 0;
  bool of_thread = false, is_label = false;
};

/// What a chunk or a whole file holds, before rows are turned into devices and streams. Ids are local: names index
/// `names`, GpuEvent::stream and HostCall::rank_label index `rows`.
struct EventStore {
  std::vector<GpuEvent> work;
  std::vector<HostCall> calls;
  std::vector<Annotation> annotations;
  std::vector<uint32_t> annotation_rows;
  std::vector<LaneEvent> lane_events;
  std::vector<EdgeEvent> edges;
  std::vector<RowName> row_names;
  std::vector<LaunchShape> shapes{LaunchShape{}};
  std::vector<RowKey> rows;
};

enum class ChunkEnd : uint8_t {
  boundary,  // `end` is the first byte of an event at or behind the limit
  more,      // `end` is the first byte of an event that the window cuts
  closed,    // `end` is the ']' of the list
  lost,      // damage without a new start so far: go on searching at `end`
  finished,  // the text ends here
};

struct ChunkResult {
  size_t begin = 0, end = 0;  // in the window
  ChunkEnd state = ChunkEnd::boundary;
  bool cut = false;  // finished inside an event

  RawNames names;
  EventStore store;
  std::unordered_map<LaunchShape, uint32_t, ShapeHash> shape_ids;

  std::array<uint64_t, 256> phases{};
  std::vector<std::pair<std::string_view, uint64_t>> categories;
  uint64_t events = 0, empty_objects = 0, unknown_phases = 0, not_objects = 0;
  uint64_t negative_duration = 0, no_duration = 0, no_time = 0, zero_time = 0;
  ScanCounts scan;
  std::vector<Damage> damages;  // offsets in the window; the first 20
  uint64_t damage_count = 0;
};

/// The same for every chunk of a file.
struct ChunkRules {
  bool last = true;           // nothing follows the window
  bool cpu_ops_work = false;  // fathom's own profiles: operations on the CPU are the work
};

/// Parses the events in window[begin, limit) and the one that straddles the limit. `begin` stands between events (or
/// on one). `lost`: begin by searching for an event.
ChunkResult parse_chunk(std::string_view window, size_t begin, size_t limit, const ChunkRules& rules,
                        bool lost = false);

/// The first byte at or behind `from` that seems to begin an event of the list, if one lies before `limit`.
std::optional<size_t> guess_event_start(std::string_view window, size_t from, size_t limit);

}  // namespace fathom::trace

#include "trace/chrome_chunk.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/error.h"

namespace fathom::trace {
namespace {

constexpr size_t max_damages = 20;
constexpr size_t damaged_depth = 64;  // after damage, events may nest this deep: keeps hostile input linear
constexpr size_t guess_range = size_t{1} << 20;

uint64_t mix(uint64_t a, uint64_t b) {
  const auto product = static_cast<unsigned __int128>(a ^ 0x9E3779B97F4A7C15u) * (b ^ 0xD6E8FEB86659FD93u);
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

uint64_t hash_bytes(const char* data, size_t size) {
  uint64_t h = size, word = 0;
  for (; size >= 8; data += 8, size -= 8) {
    std::memcpy(&word, data, 8);
    h = mix(h, word);
  }
  word = 0;
  if (size > 0) std::memcpy(&word, data, size);  // an empty view may have no address
  return mix(h, word);
}

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool is_space(char c) {
  return static_cast<unsigned char>(c) <= ' ';
}

bool is_known_phase(char c) {
  return c && std::strchr("BEXiIRCbneSTpFstfNODMVvPc()g", c);
}

/// True when the '{' at `at` opens an element of a list (not the value of a key) and a key follows.
bool opens_element(std::string_view text, size_t at) {
  size_t next = at + 1;
  while (next < text.size() && is_space(text[next])) ++next;
  if (next + 1 >= text.size() || text[next] != '"' || !is_letter(text[next + 1])) return false;
  size_t before = at;
  while (before > 0 && is_space(text[before - 1])) --before;
  return before == 0 || text[before - 1] != ':';
}

/// Reads the object at `at` as an event of its own, under the limits for recovery.
Scan try_event(std::string_view window, size_t at, size_t& end) {
  JsonScanner s(window.data() + at, window.data() + window.size());
  s.depth_limit = damaged_depth;
  RawEvent event;
  RawArgs ignored;
  Scan r = scan_event(s, event, {}, ignored);
  if (r == Scan::ok && event.phase_letter() == '\0') r = Scan::bad;
  end = static_cast<size_t>(s.at - window.data());
  return r;
}

/// One parse: the window, the results, and what is looked up again and again.
class ChunkParser {
 public:
  ChunkParser(std::string_view window, size_t limit, const ChunkRules& rules, ChunkResult& out)
      : window_(window),
        limit_(limit),
        rules_(rules),
        out_(out),
        scanner_(window.data(), window.data() + window.size()) {
    out_.names.add({});  // id 0: the empty text
    scanner_.at = window.data() + out.begin;
  }

  void run(bool lost) {
    if (lost && !resynchronise(out_.begin)) return;
    while (step()) {
    }
    out_.end = position();
  }

 private:
  size_t position() const { return static_cast<size_t>(scanner_.at - window_.data()); }

  bool stop(ChunkEnd state) {
    out_.state = state;
    return false;
  }

  /// One event; false when the chunk is done.
  bool step() {
    while (scanner_.space() == Scan::ok && *scanner_.at == ',') ++scanner_.at;
    if (scanner_.at == scanner_.end) return stop(rules_.last ? ChunkEnd::finished : ChunkEnd::more);
    if (*scanner_.at == ']') return stop(ChunkEnd::closed);
    if (position() >= limit_) return stop(ChunkEnd::boundary);
    const size_t begin = position();
    const ScanCounts before = scanner_.counts;
    Scan r;
    if (*scanner_.at == '{') {
      r = scan_event(scanner_, event_, work_category_, args_);
      if (r == Scan::ok) take();
    } else {
      RawText value;
      r = scanner_.value(value);
      if (r == Scan::ok) ++out_.not_objects;
    }
    if (r == Scan::ok) {
      out_.scan = scanner_.counts;
      return true;
    }
    scanner_.counts = before;
    if (r == Scan::more && !rules_.last) {
      scanner_.at = window_.data() + begin;
      return stop(ChunkEnd::more);
    }
    if (r == Scan::more) {
      damage(begin, "the file ends inside this event");
      out_.cut = true;
      // A lost closing quote also runs to the end of the file: whole events may follow.
      return resynchronise(begin + 1);
    }
    damage(position(), scanner_.error);
    return resynchronise(begin + 1);
  }

  void damage(size_t at, const char* what) {
    ++out_.damage_count;
    scanner_.depth_limit = damaged_depth;
    if (out_.damages.size() >= max_damages) return;
    const size_t from = at > 30 ? at - 30 : 0;
    out_.damages.push_back({at, what, printable(window_.substr(from, at - from + 30), 100)});
  }

  /// Moves to the next whole event at or behind `from`; false (with the state set) when the window has none.
  bool resynchronise(size_t from) {
    size_t at = from;
    while (at < window_.size()) {
      at = window_.find('{', at);
      if (at == std::string_view::npos) break;
      if (window_.size() - at < 256 && !rules_.last) return lose(at);  // too close to the end to judge
      size_t end = 0;
      if (opens_element(window_, at)) {
        const Scan r = try_event(window_, at, end);
        if (r == Scan::more && !rules_.last) return lose(at);
        if (r == Scan::ok) {
          scanner_.at = window_.data() + at;
          out_.cut = false;
          return true;
        }
      }
      ++at;
    }
    return lose(window_.size());
  }

  bool lose(size_t at) {
    scanner_.at = window_.data() + at;
    out_.end = at;
    return stop(rules_.last ? ChunkEnd::finished : ChunkEnd::lost);
  }

  void count_category(std::string_view category) {
    if (last_category_ < out_.categories.size() && out_.categories[last_category_].first == category) {
      ++out_.categories[last_category_].second;
      return;
    }
    for (size_t i = 0; i < out_.categories.size(); ++i) {
      if (out_.categories[i].first != category) continue;
      ++out_.categories[i].second;
      last_category_ = i;
      last_class_ = classify(category);
      return;
    }
    // Files with endless different categories would make this list long: beyond 1000 they are counted together.
    const std::string_view kept = out_.categories.size() < 1000 ? category : std::string_view("(more categories)");
    last_class_ = classify(category);
    if (kept != category && out_.categories.back().first == kept) {
      ++out_.categories.back().second;
    } else {
      out_.categories.emplace_back(kept, 1);
    }
    last_category_ = out_.categories.size() - 1;
    if (kept != category) last_category_ = SIZE_MAX;
  }

  EventClass classify(std::string_view category) const {
    return rules_.cpu_ops_work && category == "cpu_op" ? EventClass::kernel : classify_category(category);
  }

  uint32_t row(std::string_view device) {
    // Neighbours mostly share their row.
    if (same_row_ && event_.pid.text == row_pid_ && event_.tid.text == row_tid_ && device == row_device_)
      return last_row_;
    same_row_ = true;
    row_pid_ = event_.pid.text, row_tid_ = event_.tid.text, row_device_ = device;
    RowKey key{out_.names.add(event_.pid), out_.names.add(event_.tid), 0};
    if (!device.empty()) key.device = out_.names.add({device, true, false, false});
    auto& rows = out_.store.rows;
    const auto [at, added] = row_ids_.try_emplace(key, static_cast<uint32_t>(rows.size()));
    if (added) rows.push_back(key);
    return last_row_ = at->second;
  }

  uint32_t shape(RawArgs& args) {
    if (args.collective.present) args.shape.collective = NameId{out_.names.add(args.collective)};
    if (args.group.present) args.shape.group = NameId{out_.names.add(args.group)};
    if (args.shape == LaunchShape{}) return 0;
    auto& shapes = out_.store.shapes;
    const auto [at, added] = out_.shape_ids.try_emplace(args.shape, static_cast<uint32_t>(shapes.size()));
    if (added) shapes.push_back(args.shape);
    return at->second;
  }

  void take() {
    if (event_.empty) {
      ++out_.empty_objects;
      return;
    }
    ++out_.events;
    const char phase = event_.phase_letter();
    ++out_.phases[static_cast<unsigned char>(phase)];
    if (phase == 'X') {
      take_complete();
    } else if (phase == 'B' || phase == 'E') {
      take_edge(phase == 'B');
    } else if (phase == 'M') {
      take_metadata();
    } else if (!is_known_phase(phase)) {
      ++out_.unknown_phases;
    }
  }

  void take_complete() {
    EventClass what = EventClass::ignored;
    if (event_.category.present && !event_.category.text.empty()) {
      count_category(event_.category.text);
      what = last_class_;
      if (what == EventClass::ignored) return;
    }
    const bool is_work = what >= EventClass::kernel && what <= EventClass::memset;
    Ns start = 0, duration = 0;
    if (!event_.time.present || !parse_scaled(event_.time.text, 3, start)) {
      out_.no_time += is_work;
      return;
    }
    if (!event_.duration.present || !parse_scaled(event_.duration.text, 3, duration)) {
      out_.no_duration += is_work;
      return;
    }
    if (!is_possible(start, duration)) {
      out_.negative_duration += is_work;
      return;
    }
    if (is_work) {
      take_work(what, start, duration);
    } else if (what == EventClass::runtime) {
      const HostKind kind = classify_call(event_.name.text);
      if (kind == HostKind::other) return;
      RawArgs args;
      scan_args(event_.args, args);
      out_.store.calls.push_back(
          {start, duration, args.correlation, NameId{out_.names.add(event_.name)}, row({}), kind});
    } else if (what == EventClass::ignored) {  // no category at all
      take_lane(start, duration);
    } else {
      out_.store.annotations.push_back(
          {start, duration, NameId{out_.names.add(event_.name)}, what == EventClass::gpu_annotation, {}});
      out_.store.annotation_rows.push_back(row({}));
    }
  }

  /// Only the rows of devices carry XLA's "kernel_details", "memcpy_details" and "hlo_category"; the arguments of
  /// others are not read.
  void take_lane(Ns start, Ns duration) {
    LaneEvent e{start, duration, 0, out_.names.add(event_.name), row({}), 0, 0};
    if (event_.args.find("_details\"") != std::string_view::npos ||
        event_.args.find("\"hlo_category\"") != std::string_view::npos) {
      RawArgs args;
      scan_args(event_.args, args);
      e.correlation = args.correlation;
      e.shape = shape(args);
      if (args.operation.present) e.operation = out_.names.add(args.operation);
    }
    out_.store.lane_events.push_back(e);
  }

  void take_work(EventClass what, Ns start, Ns duration) {
    if (start == 0 && duration == 0) {
      ++out_.zero_time;
      return;
    }
    if (!event_.args_read) {
      args_ = {};
      scan_args(event_.args, args_);
      work_category_ = event_.category.text;  // the next ones are read in one pass
    }
    RawArgs& args = args_;
    GpuEvent e{start, duration, args.correlation, NameId{out_.names.add(event_.name)}, ShapeId{shape(args)}, {}, {}};
    e.stream = StreamId{row(args.device)};
    e.kind = what == EventClass::kernel   ? WorkKind::kernel
             : what == EventClass::memcpy ? WorkKind::memcpy
                                          : WorkKind::memset;
    out_.store.work.push_back(e);
  }

  void take_edge(bool begin) {
    EdgeEvent edge;
    edge.begin = begin;
    if (event_.category.present && begin) {
      count_category(event_.category.text);
      edge.what = last_class_;
    }
    if (!event_.time.present || !parse_scaled(event_.time.text, 3, edge.time) || !is_possible(edge.time, 0)) {
      ++out_.no_time;
      return;
    }
    const bool is_work = edge.what >= EventClass::kernel && edge.what <= EventClass::memset;
    RawArgs args;
    if (is_work) scan_args(event_.args, args);
    edge.correlation = args.correlation;
    edge.name = out_.names.add(event_.name);
    edge.shape = is_work ? shape(args) : 0;
    edge.row = row({});
    out_.store.edges.push_back(edge);
  }

  void take_metadata() {
    const std::string_view what = event_.name.text;
    const bool of_thread = what == "thread_name", is_label = what == "process_labels";
    if (!of_thread && !is_label && what != "process_name") return;
    RawText text;
    for_each_member(event_.args, [&](const RawText& key, const RawText& value) {
      if (value.present && key.text == (is_label ? "labels" : "name")) text = value;
    });
    if (!text.present) return;
    const uint32_t pid = out_.names.add(event_.pid), tid = out_.names.add(event_.tid);
    out_.store.row_names.push_back({pid, tid, out_.names.add(text), of_thread, is_label});
  }

  std::string_view window_;
  size_t limit_;
  ChunkRules rules_;
  ChunkResult& out_;
  JsonScanner scanner_;
  RawEvent event_;
  RawArgs args_;
  std::string_view work_category_;  // category of the GPU work met last
  size_t last_category_ = SIZE_MAX;
  EventClass last_class_ = EventClass::ignored;
  bool same_row_ = false;
  std::string_view row_pid_, row_tid_, row_device_;
  uint32_t last_row_ = 0;
  std::unordered_map<RowKey, uint32_t, RowHash> row_ids_;
};

}  // namespace

size_t RawNames::Hash::operator()(std::string_view text) const {
  return hash_bytes(text.data(), text.size());
}

uint32_t RawNames::add(const RawText& raw) {
  const auto [at, added] = ids_.try_emplace(raw.text, static_cast<uint32_t>(entries_.size()));
  if (added) entries_.push_back({raw, 0});
  ++entries_[at->second].uses;
  return at->second;
}

size_t RowHash::operator()(const RowKey& key) const {
  return mix(uint64_t{key.pid} << 32 | key.tid, key.device);
}

size_t ShapeHash::operator()(const LaunchShape& s) const {
  uint64_t h = mix(uint64_t{s.grid[0]} << 32 | s.grid[1], uint64_t{s.grid[2]} << 32 | s.block[0]);
  h = mix(h, uint64_t{s.block[1]} << 32 | s.block[2]);
  h = mix(h, uint64_t{s.registers} << 32 | s.shared_bytes);
  h = mix(h, static_cast<uint64_t>(s.bytes) ^ static_cast<uint64_t>(s.elements_in) << 20);
  return mix(h, uint64_t{std::bit_cast<uint32_t>(s.warps_per_sm)} << 32 | static_cast<uint32_t>(s.collective));
}

ChunkResult parse_chunk(std::string_view window, size_t begin, size_t limit, const ChunkRules& rules, bool lost) {
  ChunkResult out;
  out.begin = out.end = begin;
  ChunkParser(window, limit, rules, out).run(lost);
  return out;
}

std::optional<size_t> guess_event_start(std::string_view window, size_t from, size_t limit) {
  const size_t stop = std::min(limit, from + guess_range);
  for (size_t at = from; at < stop; ++at) {
    at = window.find('{', at);
    if (at == std::string_view::npos || at >= stop) return {};
    size_t end = 0, before = at;
    while (before > 0 && is_space(window[before - 1])) --before;
    if (before == 0 || window[before - 1] != ',' || !opens_element(window, at)) continue;
    if (try_event(window, at, end) == Scan::ok) return at;
  }
  return {};
}

}  // namespace fathom::trace

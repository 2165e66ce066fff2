#include "trace/chrome_reader.h"

#include <algorithm>

#include "base/error.h"
#include "base/interrupt.h"
#include "base/threads.h"
#include "base/utf8.h"

namespace fathom::trace {
namespace {

constexpr size_t chunk_bytes = size_t{1} << 20;  // fixed: results must not depend on the number of threads
constexpr size_t chunks_a_wave = 32;
constexpr size_t event_limit = size_t{64} << 20;  // of compressed input: a longer event is damage, not data

class DocumentReader {
 public:
  DocumentReader(TextSource& source, Trace& trace, const ReadOptions& options)
      : source_(source), trace_(trace), options_(options) {
    document_.store.rows.clear();
    chunk_ = std::clamp(options.window_bytes / 8, size_t{64}, chunk_bytes);
  }

  ChromeDocument run() {
    if (source_.window().starts_with("\xEF\xBB\xBF")) source_.advance(3);
    const char first = peek();
    if (first == '[') {
      trace_.form = "array";
      document_.found_events = true;
      source_.advance(1);
      events(true);
      if (peek() != '\0') damage(0, "text after the end of the event list");
    } else if (first == '{') {
      trace_.form = "object";
      source_.advance(1);
      members();
    }
    trace_.import.text_bytes = source_.offset() + source_.window().size();
    if (const std::string why = source_.damage(); !why.empty()) {
      damage(source_.window().size(), why);
      trace_.import.notes.push_back(why);
    }
    finish_counts();
    return std::move(document_);
  }

 private:
  /// Skips white space; the next byte stays in the window. '\0' at the end of the text.
  char peek() {
    for (;;) {
      const std::string_view w = source_.window();
      size_t at = 0;
      while (at < w.size() && static_cast<unsigned char>(w[at]) <= ' ') ++at;
      const bool found = at < w.size();
      if (!found && source_.last()) {
        source_.advance(at);
        return '\0';
      }
      source_.advance(at);
      if (found) return source_.window()[0];
      source_.grow();
    }
  }

  void damage(size_t at, const std::string& what) {
    ImportReport& import = trace_.import;
    const uint64_t offset = source_.offset() + at;
    if (!import.partial) import.partial_offset = offset;
    import.partial = true;
    ++import.damage_count;
    if (import.damages.size() >= 20) return;
    const std::string_view w = source_.window();
    const size_t from = at > 30 ? at - 30 : 0;
    import.damages.push_back({offset, what, printable(w.substr(std::min(from, w.size()), at - from + 30), 100)});
  }

  /// The members of the top-level object, and of an object in the place of the event list.
  void members() {
    int depth = 1;
    while (depth > 0) {
      const char c = peek();
      if (c == ',' || c == '}') {
        depth -= c == '}';
        source_.advance(1);
        continue;
      }
      if (c == '\0') return damage(source_.window().size(), "the file ends before the trace does");
      RawText key, value;
      bool is_events = false;
      const char* error = nullptr;
      for (;;) {  // until the member is whole in the window
        const std::string_view w = source_.window();
        JsonScanner s(w.data(), w.data() + w.size());
        Scan r = c == '"' ? s.key(key) : Scan::bad;
        if (r == Scan::ok) r = s.space();
        is_events = r == Scan::ok && key.text == "traceEvents" && (*s.at == '[' || *s.at == '{');
        if (r == Scan::ok && !is_events) r = s.value(value);
        if (r == Scan::ok) {
          if (!is_events) {
            trace_.import.non_finite += s.counts.non_finite;
            trace_.import.bad_escapes += s.counts.bad_escapes;
            member(key, value);
          }
          source_.advance(static_cast<size_t>(s.at - w.data()));
          break;
        }
        if (r == Scan::bad || source_.last()) {
          error = r == Scan::bad ? s.error : "the file ends inside this member";
          if (c != '"') error = "expected a key";
          damage(static_cast<size_t>(s.at - w.data()), error);
          break;
        }
        source_.grow();
      }
      if (error) {
        if (document_.found_events || !find_event_list()) return;
        is_events = true;
      }
      if (!is_events) continue;
      document_.found_events = true;
      note_key("traceEvents");
      if (peek() == '{') {
        trace_.import.notes.push_back("the trace is wrapped in another traceEvents object; the inner one was read");
        ++depth;
        source_.advance(1);
      } else {
        source_.advance(1);
        if (!events(false)) return;
      }
    }
    if (peek() != '\0') damage(0, "text after the end of the trace");
  }

  /// After damage in the head: goes to the list behind a "traceEvents" key further on.
  bool find_event_list() {
    constexpr std::string_view key = "\"traceEvents\"";
    for (;;) {
      const std::string_view w = source_.window();
      for (size_t at = w.find(key); at != std::string_view::npos; at = w.find(key, at + 1)) {
        size_t next = at + key.size();
        while (next < w.size() && (static_cast<unsigned char>(w[next]) <= ' ' || w[next] == ':')) ++next;
        if (next < w.size() && w[next] == '[') {
          source_.advance(next);
          return true;
        }
      }
      if (source_.last()) return false;
      source_.advance(w.size() > 4096 ? w.size() - 4096 : 0);
      source_.grow();
    }
  }

  void note_key(std::string_view key) {
    if (document_.top_keys.size() < 100) document_.top_keys.push_back(printable(key, 60));
  }

  void member(const RawText& key, const RawText& value);
  void device_properties(std::string_view list);

  /// Reads events up to the end of the list, which it consumes; false when the text ended first.
  bool events(bool array_form);
  /// Parses one wave of chunks in parallel and takes their results in order.
  ChunkEnd wave(size_t& at, bool lost);
  void take(ChunkResult&& chunk);
  void finish_counts();

  TextSource& source_;
  Trace& trace_;
  const ReadOptions& options_;
  ChromeDocument document_;
  size_t chunk_;
  std::map<std::string, uint64_t, std::less<>> categories_;
  std::array<uint64_t, 256> phases_{};
  std::unordered_map<RowKey, uint32_t, RowHash> rows_;
  std::unordered_map<LaunchShape, uint32_t, ShapeHash> shapes_;
};

bool DocumentReader::events(bool array_form) {
  bool lost = false;
  for (;;) {
    if (interrupted()) fail("{}: interrupted", printable(trace_.path.string(), 400));
    size_t at = 0;
    const bool last = source_.last();
    const ChunkEnd state = wave(at, lost);
    source_.advance(at);
    if (state != ChunkEnd::closed) source_.grow();
    if (options_.progress) options_.progress(source_.file_position(), trace_.import.file_bytes);
    lost = state == ChunkEnd::lost;
    switch (state) {
      case ChunkEnd::closed:
        source_.advance(1);
        return true;
      case ChunkEnd::finished:
        if (!array_form && !trace_.import.partial)
          damage(source_.window().size(), "the file ends before the list of events does");
        return false;
      case ChunkEnd::more:
        if (!last && source_.window().size() > event_limit) {
          damage(0, "an event longer than 64 MiB");
          source_.advance(1);
          lost = true;
        }
        break;
      case ChunkEnd::boundary:
      case ChunkEnd::lost:
        break;
    }
  }
}

ChunkEnd DocumentReader::wave(size_t& at, bool lost) {
  const std::string_view window = source_.window();
  const size_t stop = std::min(window.size(), chunk_ * chunks_a_wave);
  const size_t count = std::max<size_t>(1, (stop + chunk_ - 1) / chunk_);
  const ChunkRules rules{source_.last(), document_.from_fathom};
  const auto limit = [&](size_t i) { return i + 1 == count ? stop : (i + 1) * chunk_; };
  std::vector<std::optional<ChunkResult>> results(count);
  parallel_for(static_cast<int64_t>(count), 1, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      if (i == 0) {
        results[0] = parse_chunk(window, 0, limit(0), rules, lost);
      } else if (const auto guess = guess_event_start(window, i * chunk_, limit(i))) {
        results[i] = parse_chunk(window, *guess, limit(i), rules);
      }
    }
  });
  ChunkEnd state = results[0]->state;
  at = results[0]->end;
  take(std::move(*results[0]));
  for (size_t i = 1; i < count && state == ChunkEnd::boundary; ++i) {
    if (at >= limit(i)) continue;
    if (!results[i] || results[i]->begin != at) results[i] = parse_chunk(window, at, limit(i), rules);
    at = results[i]->end;
    state = results[i]->state;
    take(std::move(*results[i]));
    results[i].reset();
  }
  return state;
}

void DocumentReader::take(ChunkResult&& chunk) {
  ImportReport& import = trace_.import;
  EventStore& store = document_.store;
  std::vector<NameId> names;
  names.reserve(chunk.names.entries().size());
  for (const RawNames::Entry& entry : chunk.names.entries()) {
    bool repaired = false, controls = false;
    names.push_back(trace_.names.intern(decode_text(entry.raw, &repaired, &controls)));
    if (repaired) import.bad_utf8 += entry.uses;
    if (controls) import.control_characters += entry.uses;
  }
  const auto name = [&](uint32_t local) { return static_cast<uint32_t>(names[local]); };
  std::vector<uint32_t> rows, shapes;
  for (RowKey key : chunk.store.rows) {
    key = {name(key.pid), name(key.tid), name(key.device)};
    const auto [found, added] = rows_.try_emplace(key, static_cast<uint32_t>(store.rows.size()));
    if (added) store.rows.push_back(key);
    rows.push_back(found->second);
  }
  for (LaunchShape shape : chunk.store.shapes) {
    shape.collective = names[index(shape.collective)];
    shape.group = names[index(shape.group)];
    const auto [found, added] = shapes_.try_emplace(shape, static_cast<uint32_t>(store.shapes.size()));
    if (added && !(shape == LaunchShape{})) store.shapes.push_back(shape);
    shapes.push_back(shape == LaunchShape{} ? 0 : found->second);
  }
  for (GpuEvent e : chunk.store.work) {
    e.name = names[index(e.name)];
    e.shape = ShapeId{shapes[index(e.shape)]};
    e.stream = StreamId{rows[index(e.stream)]};
    store.work.push_back(e);
  }
  for (HostCall c : chunk.store.calls) {
    c.name = names[index(c.name)];
    c.rank_label = rows[c.rank_label];
    store.calls.push_back(c);
  }
  for (size_t i = 0; i < chunk.store.annotations.size(); ++i) {
    Annotation a = chunk.store.annotations[i];
    a.name = names[index(a.name)];
    store.annotations.push_back(a);
    store.annotation_rows.push_back(rows[chunk.store.annotation_rows[i]]);
  }
  for (const LaneEvent& e : chunk.store.lane_events)
    store.lane_events.push_back(
        {e.start, e.duration, e.correlation, name(e.name), rows[e.row], shapes[e.shape], name(e.operation)});
  for (EdgeEvent e : chunk.store.edges) {
    e.name = name(e.name), e.row = rows[e.row], e.shape = shapes[e.shape];
    store.edges.push_back(e);
  }
  for (const RowName& r : chunk.store.row_names)
    store.row_names.push_back({name(r.pid), name(r.tid), name(r.text), r.of_thread, r.is_label});

  for (const auto& [category, count] : chunk.categories) {
    const auto found = categories_.find(category);
    if (found == categories_.end())
      categories_.emplace(category, count);
    else
      found->second += count;
  }
  for (size_t i = 0; i < phases_.size(); ++i) phases_[i] += chunk.phases[i];
  import.events += chunk.events;
  import.empty_objects += chunk.empty_objects;
  import.unknown_phases += chunk.unknown_phases;
  import.negative_duration += chunk.negative_duration;
  import.no_duration += chunk.no_duration;
  import.no_time += chunk.no_time;
  import.zero_time += chunk.zero_time;
  import.non_finite += chunk.scan.non_finite;
  import.bad_escapes += chunk.scan.bad_escapes;
  import.big_integers += chunk.scan.big_integers;
  document_.not_objects += chunk.not_objects;
  for (Damage& d : chunk.damages) {
    d.offset += source_.offset();
    if (!import.partial) import.partial_offset = d.offset;
    import.partial = true;
    if (import.damages.size() < 20) import.damages.push_back(std::move(d));
  }
  import.damage_count += chunk.damage_count;
}

void DocumentReader::finish_counts() {
  for (const auto& [category, count] : categories_) trace_.import.categories[utf8_repaired(category)] += count;
  for (size_t i = 0; i < phases_.size(); ++i)
    if (phases_[i]) trace_.import.phases[static_cast<char>(i)] = phases_[i];
}

int as_int(const RawText& value) {
  int64_t n = 0;
  if (!value.present || !parse_integer(value.text, n)) return 0;
  return static_cast<int>(std::clamp<int64_t>(n, 0, 1 << 30));
}

int64_t as_int64(const RawText& value) {
  int64_t n = 0;
  return value.present && parse_integer(value.text, n) ? n : 0;
}

void DocumentReader::device_properties(std::string_view list) {
  for_each_element(list, [&](const RawText& element) {
    DeviceProperties d;
    for_each_member(element.text, [&](const RawText& key, const RawText& value) {
      const std::string_view k = key.text;
      if (k == "id")
        d.id = value.present ? as_int64(value) : -1;
      else if (k == "name")
        d.facts.name = decode_text(value);
      else if (k == "numSms")
        d.facts.sm_count = as_int(value);
      else if (k == "computeMajor")
        d.facts.compute_major = as_int(value);
      else if (k == "computeMinor")
        d.facts.compute_minor = as_int(value);
      else if (k == "maxThreadsPerMultiprocessor")
        d.facts.max_threads_per_sm = as_int(value);
      else if (k == "regsPerMultiprocessor")
        d.facts.registers_per_sm = as_int(value);
      else if (k == "warpSize")
        d.facts.warp_size = as_int(value);
      else if (k == "sharedMemPerMultiprocessor")
        d.facts.shared_per_sm = as_int64(value);
      else if (k == "totalGlobalMem")
        d.facts.memory_bytes = as_int64(value);
    });
    if (document_.devices.size() < 4096) document_.devices.push_back(std::move(d));
  });
}

void DocumentReader::member(const RawText& key, const RawText& value) {
  const std::string_view k = key.text;
  note_key(k);
  if (k == "deviceProperties") {
    document_.torch = true;
    device_properties(value.text);
  } else if (k == "distributedInfo") {
    for_each_member(value.text, [&](const RawText& name, const RawText& v) {
      int64_t n = 0;
      if (!v.present || !parse_integer(v.text, n) || n < 0 || n > 1 << 30) return;
      if (name.text == "rank") trace_.rank = static_cast<int>(n);
      if (name.text == "world_size") trace_.world_size = static_cast<int>(n);
    });
  } else if (k == "baseTimeNanoseconds") {
    trace_.has_base_time = value.present && parse_integer(value.text, trace_.base_time);
  } else if (k == "host_name" || k == "hostName") {
    trace_.host = decode_text(value);
  } else if (k == "schemaVersion" || k == "traceName" || k == "with_stack" || k == "record_shapes") {
    document_.torch = true;
  } else if (k == "cuda_runtime_version" || k == "hip_runtime_version") {
    const int64_t version = as_int64(value);
    if (version <= 0) return;
    trace_.runtime =
        k[0] == 'c' ? fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10) : fmt::format("HIP {}", version);
  } else if (k == "otherData") {
    for_each_member(value.text, [&](const RawText& name, const RawText& v) {
      if (name.text == "producer" && v.text == "fathom") document_.from_fathom = true;
    });
  }
}

}  // namespace

ChromeDocument read_chrome(TextSource& source, Trace& trace, const ReadOptions& options) {
  return DocumentReader(source, trace, options).run();
}

}  // namespace fathom::trace

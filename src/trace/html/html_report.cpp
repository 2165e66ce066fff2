#include "trace/html/html_report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/utf8.h"
#include "html/page.h"
#include "trace/format.h"
#include "trace/html/assets.h"
#include "trace/html/timeline.h"
#include "trace/names.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

using json = nlohmann::json;

std::string cut_text(const std::string& text, size_t limit) {
  if (text.size() <= limit) return text;
  const size_t kept = utf8_complete_prefix(std::string_view(text).substr(0, limit));
  return fmt::format("{}… ({} more bytes)", text.substr(0, kept), text.size() - kept);
}

/// Bounds every list and text of a document, whatever it holds, and tells in `left_out` what was cut.
class Trimmer {
 public:
  Trimmer(const HtmlLimits& limits, size_t ranking_rows) : limits_(limits), ranking_rows_(ranking_rows) {}

  json left_out = json::object();

  void trim(json& value, const std::string& path = "") {
    if (value.is_string()) {
      value = cut_text(value.get_ref<const std::string&>(), limits_.name_bytes);
    } else if (value.is_array()) {
      const size_t limit = path == "ranking" ? ranking_rows_ : limits_.list_entries;
      if (value.size() > limit) {
        note(path, value.size() - limit);
        value.erase(value.begin() + static_cast<ptrdiff_t>(limit), value.end());
      }
      for (json& entry : value) trim(entry, path);
    } else if (value.is_object()) {
      trim_object(value, path);
    }
  }

 private:
  void note(const std::string& path, size_t entries) {
    json& count = left_out[path];
    count = (count.is_null() ? size_t{0} : count.get<size_t>()) + entries;
  }

  void trim_object(json& value, const std::string& path) {
    if (path == "import.categories") {  // the one object whose members the file names
      if (value.size() > limits_.list_entries) note(path, value.size() - limits_.list_entries);
      json kept = json::object();
      for (const auto& [key, entry] : value.items())
        if (kept.size() < limits_.list_entries) kept[cut_text(key, limits_.name_bytes)] = entry;
      value = std::move(kept);
    }
    for (const auto& [key, entry] : value.items()) trim(entry, path.empty() ? key : path + "." + key);
  }

  const HtmlLimits& limits_;
  size_t ranking_rows_;
};

json shape_json(const LaunchShape& s) {
  json out = json::object();
  if (s.has_grid()) {
    out["grid"] = s.grid;
    out["block"] = s.block;
  }
  if (s.registers) out["registers"] = s.registers;
  if (s.shared_bytes) out["shared_bytes"] = s.shared_bytes;
  if (s.bytes) out["bytes"] = s.bytes;
  return out;
}

/// The events of a view in columns. Times are relative to the view's start, so that they are exact in JavaScript.
json timeline_json(const Analysis& a, const TimelineView& view, const HtmlLimits& limits) {
  const Trace& t = *a.trace;
  std::map<std::pair<NameId, WorkKind>, size_t> categories, kernel_of;
  for (const KernelRow& r : a.ranking.rows) categories[{r.name, r.kind}] = r.category;
  std::map<ShapeId, size_t> shape_of;
  std::map<StreamId, size_t> stream_of;
  json out, kernels = json::array(), shapes = json::array(), streams = json::array();
  json start = json::array(), duration = json::array(), kernel = json::array(), shape = json::array(),
       stream = json::array();
  for (const size_t i : view.events) {
    const GpuEvent& e = t.events[i];
    const auto [k, new_kernel] = kernel_of.try_emplace({e.name, e.kind}, kernel_of.size());
    if (new_kernel)
      kernels.push_back({{"name", cut_text(std::string(t.name(e)), limits.name_bytes)},
                         {"category", a.categories.categories[categories[{e.name, e.kind}]].id}});
    const auto [s, new_shape] = shape_of.try_emplace(e.shape, shape_of.size());
    if (new_shape) shapes.push_back(shape_json(t.shape(e)));
    const auto [r, new_stream] = stream_of.try_emplace(e.stream, stream_of.size());
    if (new_stream) streams.push_back(cut_text(t.streams[index(e.stream)].id, limits.name_bytes));
    start.push_back(e.start - view.start);
    duration.push_back(e.duration);
    kernel.push_back(k->second);
    shape.push_back(s->second);
    stream.push_back(r->second);
  }
  const Device& device = t.devices[index(view.device)];
  out["title"] = view.title;
  out["device"] = cut_text(device.id, limits.name_bytes);
  out["sm_count"] = device.sm_count;
  for (const DeviceSummary& d : a.summary.devices)
    if (d.device == view.device) out["offset_ns"] = view.start - d.first;
  out["span_ns"] = view.end - view.start;
  out["left_out"] = view.left_out;
  out["limit"] = view.events.size();
  out["kernels"] = std::move(kernels);
  out["shapes"] = std::move(shapes);
  out["streams"] = std::move(streams);
  out["start"] = std::move(start);
  out["duration"] = std::move(duration);
  out["kernel"] = std::move(kernel);
  out["shape"] = std::move(shape);
  out["stream"] = std::move(stream);
  return out;
}

json steps_json(const StepAnalysis& a, size_t limit) {
  json out;
  out["sentence"] = steps_sentence(a);
  out["count"] = a.steps.size();
  out["median_ns"] = a.median;
  out["p95_ns"] = a.p95;
  out["min_ns"] = a.min;
  out["max_ns"] = a.max;
  json step = json::array(), duration = json::array(), busy = json::array(), kernels = json::array();
  for (const size_t i : step_points(a, limit)) {
    step.push_back(i + 1);
    duration.push_back(a.steps[i].duration());
    busy.push_back(a.steps[i].busy);
    kernels.push_back(a.steps[i].kernels);
  }
  out["step"] = std::move(step);
  out["duration"] = std::move(duration);
  out["busy"] = std::move(busy);
  out["kernels"] = std::move(kernels);
  return out;
}

/// Readable forms of the names on the page, where they differ from the names themselves. Names whose readable forms
/// are the same stay as they are, so that two kernels never look like one.
json readable_names(const json& trace, const json& timelines, const json& compared, const HtmlLimits& limits) {
  std::map<std::string, std::string> shown;
  const auto add = [&](const json& name) {
    const std::string& raw = name.get_ref<const std::string&>();
    if (raw.size() <= limits.name_bytes) shown.try_emplace(raw, display_name(raw));  // longer ones are cut and told so
  };
  for (const json& row : trace["ranking"]) add(row["name"]);
  for (const json& device : trace["devices"])
    for (const json& hole : device["holes"]) add(hole["before"]), add(hole["after"]);
  for (const json& view : timelines)
    for (const json& kernel : view["kernels"]) add(kernel["name"]);
  for (const json& row : compared) add(row["name"]), add(row["old_name"]);
  std::map<std::string_view, size_t> users;
  for (const auto& [raw, text] : shown) ++users[text];
  json out = json::object();
  for (const auto& [raw, text] : shown)
    if (text != raw && users[text] == 1) out[raw] = text;
  return out;
}

/// Time stamps can be nanoseconds since 1970, past what JavaScript counts exactly: holes are also told by offset.
void add_hole_offsets(json& trace, const Summary& summary) {
  for (size_t d = 0; d < summary.devices.size(); ++d)
    for (size_t h = 0; h < summary.devices[d].holes.size(); ++h)
      trace["devices"][d]["holes"][h]["offset_ns"] = summary.devices[d].holes[h].start - summary.devices[d].first;
}

json rest_json(const Ranking& ranking, size_t shown) {
  int64_t calls = 0;
  Ns total = 0;
  double share = 0;
  for (size_t i = shown; i < ranking.rows.size(); ++i) {
    calls += ranking.rows[i].calls;
    total += ranking.rows[i].total;
    share += ranking.rows[i].share;
  }
  return {{"names", ranking.rows.size() - std::min(shown, ranking.rows.size())},
          {"calls", calls},
          {"total_ns", total},
          {"share", share}};
}

/// What one of `traces` traces may take of a limit: four have it whole, more of them share four times as much.
size_t share_of(size_t limit, size_t traces) {
  return traces <= 4 ? limit : std::max<size_t>(limit / 20, limit * 4 / traces);
}

json page_data(const std::vector<Analysis>& analyses, const std::string& document_text, const HtmlLimits& limits) {
  json document = json::parse(document_text);
  const size_t count = analyses.size();
  const size_t rows = share_of(limits.ranking_rows, count), events = share_of(limits.timeline_events, count);
  json top = json::object();  // members beside the traces are bounded as a whole
  for (const auto& [key, value] : document.items())
    if (key != "traces") top[key] = value;
  Trimmer top_trimmer(limits, rows);
  top_trimmer.trim(top);
  for (const auto& [key, value] : top.items()) document[key] = value;
  const json compared = document.contains("diff") ? document["diff"]["kernels"] : json::array();
  for (size_t i = 0; i < count; ++i) {
    json& trace = document["traces"].at(i);
    if (trace.contains("steps")) trace["steps"].erase("steps");  // the plot has its own
    add_hole_offsets(trace, analyses[i].summary);
    Trimmer trimmer(limits, rows);
    trimmer.trim(trace);
    json page;
    page["timelines"] = json::array();
    for (const TimelineView& view : timeline_views(analyses[i], events))
      page["timelines"].push_back(timeline_json(analyses[i], view, limits));
    page["steps"] = steps_json(analyses[i].steps, limits.steps);
    page["names"] = readable_names(trace, page["timelines"], compared, limits);
    page["ranking_rest"] = rest_json(analyses[i].ranking, rows);
    page["left_out"] = std::move(trimmer.left_out);
    trace["page"] = std::move(page);
  }
  return document;
}

/// What stands there for browsers without scripts: the answers, not the tables.
std::string plain_part(const std::vector<Analysis>& analyses) {
  std::string out;
  for (const Analysis& a : analyses) {
    out += fmt::format("<p><strong>{}</strong>: {}{}</p>\n",
                       html::escaped(printable(a.trace->path.filename().string(), 300)),
                       a.trace->import.partial ? "PARTIAL. " : "", html::escaped(headline(a)));
  }
  return out;
}

}  // namespace

std::string html_report(const std::vector<Analysis>& analyses, const std::string& document, const HtmlLimits& limits) {
  std::string title = "fathom trace";
  if (analyses.size() == 1) title += ": " + printable(analyses.front().trace->path.filename().string(), 200);
  if (analyses.size() > 1) title += fmt::format(": {} files", analyses.size());
  return html::page(
      {.title = title,
       .data = page_data(analyses, document, limits).dump(-1, ' ', false, json::error_handler_t::replace),
       .scripts = {embedded::trace_kernels_js(), embedded::trace_ranking_js(), embedded::trace_timeline_js(),
                   embedded::trace_sections_js(), embedded::trace_comparison_js(), embedded::trace_page_js()},
       .plain =
           plain_part(analyses) + "<p>The tables, the timeline and the plots of this report need JavaScript.</p>\n"});
}

}  // namespace fathom::trace

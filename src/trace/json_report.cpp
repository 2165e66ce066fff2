#include "trace/json_report.h"

#include <nlohmann/json.hpp>

#include "trace/format.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

using json = nlohmann::ordered_json;

constexpr const char* kind_names[] = {"kernel", "memcpy", "memset"};

json shape_json(const Trace& t, const LaunchShape& s) {
  json out = json::object();
  if (s.has_grid()) {
    out["grid"] = s.grid;
    out["block"] = s.block;
  }
  if (s.registers) out["registers"] = s.registers;
  if (s.shared_bytes) out["shared_bytes"] = s.shared_bytes;
  if (s.reported_occupancy >= 0) out["reported_occupancy_pct"] = s.reported_occupancy;
  if (s.bytes) out["bytes"] = s.bytes;
  if (s.collective != NameId{}) out["collective"] = t.names.text(s.collective);
  if (s.group_size) out["group_size"] = s.group_size;
  return out;
}

json import_json(const Trace& t) {
  const ImportReport& r = t.import;
  json out;
  out["file_bytes"] = r.file_bytes;
  out["text_bytes"] = r.text_bytes;
  out["events"] = r.events;
  out["partial"] = r.partial;
  out["partial_offset"] = r.partial ? json(r.partial_offset) : json(nullptr);
  out["damages"] = json::array();
  for (const Damage& d : r.damages)
    out["damages"].push_back({{"offset", d.offset}, {"what", d.what}, {"context", d.context}});
  out["damage_count"] = r.damage_count;
  out["categories"] = r.categories;
  json& phases = out["phases"] = json::object();
  for (const auto& [phase, n] : r.phases)
    phases[static_cast<unsigned char>(phase) < 0x80 && phase ? std::string(1, phase) : std::string("other")] = n;
  out["counts"] = {{"non_finite", r.non_finite},
                   {"bad_escapes", r.bad_escapes},
                   {"bad_utf8", r.bad_utf8},
                   {"control_characters", r.control_characters},
                   {"big_integers", r.big_integers},
                   {"zero_time", r.zero_time},
                   {"zero_duration", r.zero_duration},
                   {"negative_duration", r.negative_duration},
                   {"no_duration", r.no_duration},
                   {"no_time", r.no_time},
                   {"open_begins", r.open_begins},
                   {"stray_ends", r.stray_ends},
                   {"empty_objects", r.empty_objects},
                   {"unknown_phases", r.unknown_phases},
                   {"launches_without_work", r.launches_without_work},
                   {"work_without_launch", r.work_without_launch}};
  out["notes"] = import_sentences(t);
  return out;
}

json device_json(const Trace& t, const DeviceSummary& d) {
  const Device& facts = t.devices[index(d.device)];
  json out;
  out["id"] = facts.id;
  out["rank_label"] = facts.rank_label;
  out["rank"] = facts.rank ? json(*facts.rank) : json(nullptr);
  out["name"] = facts.name;
  out["sm_count"] = facts.sm_count;
  out["events"] = d.events;
  out["kernels"] = d.kernels;
  out["total_ns"] = d.total;
  out["kernel_total_ns"] = d.kernel_total;
  out["busy_ns"] = d.busy;
  out["first_ns"] = d.first;
  out["last_ns"] = d.last;
  out["span_ns"] = d.span();
  out["idle_ns"] = d.idle();
  out["hole_count"] = d.hole_count;
  out["holes"] = json::array();
  for (const Hole& h : d.holes)
    out["holes"].push_back({{"start_ns", h.start},
                            {"duration_ns", h.duration},
                            {"before", t.name(t.events[h.before])},
                            {"after", t.name(t.events[h.after])}});
  out["windows"] = json::array();
  for (const Window& w : d.windows)
    out["windows"].push_back({{"start_ns", w.start}, {"end_ns", w.end}, {"busy_ns", w.busy}, {"events", w.events}});
  out["streams"] = json::array();
  for (const StreamSummary& s : d.streams)
    out["streams"].push_back({{"id", t.streams[index(s.stream)].id},
                              {"events", s.events},
                              {"total_ns", s.total},
                              {"busy_ns", s.busy},
                              {"overlapping_events", s.overlapping},
                              {"implausible_events", s.implausible}});
  out["clock_defects"] = d.defects.size();
  return out;
}

json steps_json(const StepAnalysis& s) {
  constexpr const char* sources[] = {"none", "gpu_annotation", "host_annotation", "graph_launch", "sequence"};
  json out;
  out["source"] = sources[static_cast<size_t>(s.source)];
  out["marker"] = s.marker;
  out["count"] = s.steps.size();
  out["median_ns"] = s.median;
  out["mean_ns"] = s.mean;
  out["min_ns"] = s.min;
  out["p95_ns"] = s.p95;
  out["max_ns"] = s.max;
  out["kernels"] = s.kernels;
  out["gap_ns"] = s.gap_time;
  out["between_ns"] = s.between;
  out["layers"] = {{"repeats", s.layers.repeats}, {"kernels", s.layers.kernels}, {"mean_ns", s.layers.mean}};
  out["steps"] = json::array();
  for (size_t i = 0; i < s.steps.size() && i < 10'000; ++i) {
    const Step& step = s.steps[i];
    out["steps"].push_back({{"start_ns", step.start},
                            {"end_ns", step.end},
                            {"kernels", step.kernels},
                            {"total_ns", step.total},
                            {"busy_ns", step.busy},
                            {"gap_ns", step.gap_time}});
  }
  return out;
}

json diagnosis_json(const Analysis& a) {
  const Diagnosis& d = a.diagnosis;
  json out;
  out["base_ns"] = d.base;
  out["unknown_launches_share"] = d.unknown_launches;
  out["findings"] = json::array();
  for (const Finding& f : d.findings) {
    json rows = json::array();
    for (const size_t row : f.rows) rows.push_back(row);
    out["findings"].push_back({{"id", f.id},
                               {"title", f.title},
                               {"evidence", f.evidence},
                               {"advice", f.advice},
                               {"gain_ns", f.gain},
                               {"gain_speedup", d.speedup(f.gain)},
                               {"ceiling_ns", f.ceiling},
                               {"ceiling_speedup", d.speedup(f.ceiling)},
                               {"rows", rows}});
  }
  return out;
}

json diff_rows(const std::vector<DiffRow>& rows) {
  constexpr const char* changes[] = {"both", "renamed", "added", "gone"};
  json out = json::array();
  for (const DiffRow& r : rows)
    out.push_back({{"name", r.name},
                   {"old_name", r.old_name},
                   {"category", r.category},
                   {"change", changes[static_cast<size_t>(r.change)]},
                   {"before_ns", r.before},
                   {"after_ns", r.after},
                   {"calls_before", r.calls_before},
                   {"calls_after", r.calls_after},
                   {"share_before", r.share_before},
                   {"share_after", r.share_after}});
  return out;
}

json diff_json(const TraceDiff& d) {
  json out;
  out["headline"] = d.headline;
  out["per_step"] = d.per_step;
  out["measures"] = json::array();
  for (const Measure& m : d.measures)
    out["measures"].push_back({{"name", m.name}, {"before_ns", m.before}, {"after_ns", m.after}});
  out["kernels"] = diff_rows(d.rows);
  out["categories"] = diff_rows(d.categories);
  return out;
}

json ranks_json(const RankComparison& c) {
  json out;
  out["headline"] = c.headline;
  out["collectives"] = c.collectives;
  out["unmatched_names"] = c.unmatched_names;
  out["mean_skew_ns"] = c.skew;
  out["ranks"] = json::array();
  for (const RankRow& r : c.rows)
    out["ranks"].push_back({{"label", r.label},
                            {"rank", r.rank ? json(*r.rank) : json(nullptr)},
                            {"span_ns", r.span},
                            {"busy_ns", r.busy},
                            {"compute_ns", r.compute},
                            {"communication_ns", r.communication},
                            {"waiting_ns", r.waiting},
                            {"arrived_last", r.last}});
  return out;
}

/// What every ranking says of a kernel.
json row_json(const Analysis& a, const KernelRow& r) {
  return {{"name", a.trace->names.text(r.name)},
          {"kind", kind_names[static_cast<size_t>(r.kind)]},
          {"category", a.categories.categories[r.category].id},
          {"calls", r.calls},
          {"total_ns", r.total},
          {"mean_ns", r.mean()},
          {"min_ns", r.min},
          {"p50_ns", r.p50},
          {"p95_ns", r.p95},
          {"max_ns", r.max},
          {"share", r.share}};
}

json trace_json(const Analysis& a) {
  const Trace& t = *a.trace;
  json out;
  out["file"] = t.path.filename().string();
  out["producer"] = producer_name(t.producer);
  out["device_word"] = device_word(t);
  out["form"] = t.form;
  out["rank"] = t.rank ? json(*t.rank) : json(nullptr);
  out["world_size"] = t.world_size ? json(*t.world_size) : json(nullptr);
  out["base_time_ns"] = t.has_base_time ? json(t.base_time) : json(nullptr);
  out["host"] = t.host;
  out["runtime"] = t.runtime;
  out["headline"] = headline(a);
  out["import"] = import_json(t);
  out["total_ns"] = a.summary.total;
  out["kernel_total_ns"] = a.summary.kernel_total;
  out["busy_ns"] = a.summary.busy;
  out["span_ns"] = a.summary.span;
  out["devices"] = json::array();
  for (const DeviceSummary& d : a.summary.devices) out["devices"].push_back(device_json(t, d));
  out["ranking"] = json::array();
  for (const KernelRow& r : a.ranking.rows) {
    json row = row_json(a, r);
    row["kernel_share"] = r.kernel_share;
    row["ceiling_speedup"] = r.ceiling;
    row["shapes"] = r.shapes;
    row["shape"] = shape_json(t, t.shapes[index(r.shape)]);
    out["ranking"].push_back(std::move(row));
  }
  out["ranking_without_defects"] = json::array();
  for (const KernelRow& r : a.plausible.rows) out["ranking_without_defects"].push_back(row_json(a, r));
  out["categories"] = json::array();
  for (size_t i = 0; i < a.categories.rows.size(); ++i) {
    const CategoryRow& r = a.categories.rows[i];
    const Category& c = a.categories.categories[r.category];
    out["categories"].push_back({{"id", c.id},
                                 {"label", c.label},
                                 {"glue", c.glue},
                                 {"calls", r.calls},
                                 {"names", r.names},
                                 {"total_ns", r.total},
                                 {"share", r.share},
                                 {"ceiling_speedup", a.diagnosis.category_speedup[i]}});
  }
  out["steps"] = steps_json(a.steps);
  out["diagnosis"] = diagnosis_json(a);
  out["other_share_of_kernels"] = a.categories.other_share;
  out["lanes"] = json::array();
  for (const Lane& l : t.lanes)
    out["lanes"].push_back({{"process", l.process},
                            {"thread", l.thread},
                            {"events", l.events},
                            {"total_ns", l.total},
                            {"device", l.is_device},
                            {"work", l.is_work}});
  return out;
}

}  // namespace

std::string json_report(const std::vector<Analysis>& analyses, const TraceDiff* diff, const RankComparison* ranks) {
  json out;
  out["schema"] = "fathom-trace-1";
  out["traces"] = json::array();
  for (const Analysis& a : analyses) out["traces"].push_back(trace_json(a));
  if (diff) out["diff"] = diff_json(*diff);
  if (ranks) out["ranks"] = ranks_json(*ranks);
  return out.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace fathom::trace

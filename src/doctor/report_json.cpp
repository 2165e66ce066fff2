// The machine-readable report. What is not known is null.
#include <nlohmann/json.hpp>

#include "doctor/report.h"

namespace fathom::doctor {
namespace {

using Json = nlohmann::ordered_json;

template <typename T>
Json known(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json positive(double value) {
  return value > 0 ? Json(value) : Json(nullptr);
}

Json gpu_json(const GpuState& g) {
  return {{"index", g.index},
          {"name", g.name},
          {"uuid", g.uuid},
          {"bus_id", g.bus_id},
          {"compute_capability", known(g.compute_capability)},
          {"memory_bytes", known(g.memory_total)},
          {"memory_used_bytes", known(g.memory_used)},
          {"sm_clock_mhz", known(g.sm_clock)},
          {"sm_clock_max_mhz", known(g.sm_clock_max)},
          {"memory_clock_mhz", known(g.memory_clock)},
          {"memory_clock_max_mhz", known(g.memory_clock_max)},
          {"clock_reasons", known(g.clock_reasons)},
          {"clock_reasons_text", g.clock_reasons ? Json(clock_reasons_text(*g.clock_reasons)) : Json(nullptr)},
          {"power_watts", known(g.power)},
          {"power_limit_watts", known(g.power_limit)},
          {"temperature_celsius", known(g.temperature)},
          {"slowdown_celsius", known(g.slowdown_temperature)},
          {"pcie_generation", known(g.link_generation)},
          {"pcie_generation_max", known(g.link_generation_max)},
          {"pcie_width", known(g.link_width)},
          {"pcie_width_max", known(g.link_width_max)},
          {"pcie_replays", known(g.link_replays)},
          {"nvlinks", known(g.nvlinks)},
          {"busy_percent", known(g.busy)},
          {"memory_busy_percent", known(g.memory_busy)},
          {"mig", known(g.mig)},
          {"ecc", known(g.ecc)},
          {"uncorrected_errors", known(g.uncorrected_errors)},
          {"persistence", known(g.persistence)},
          {"compute_mode", known(g.compute_mode)},
          {"performance_state", known(g.performance_state)},
          {"not_told", g.unread}};
}

Json machine_json(const Machine& m) {
  Json nodes = Json::array(), gpus = Json::array(), limits = Json::object(), environment = Json::object();
  for (const NumaNode& n : m.nodes)
    nodes.push_back({{"id", n.id}, {"processors", n.processors}, {"memory_bytes", n.memory}});
  for (const PciGpu& g : m.gpus)
    gpus.push_back({{"address", g.address},
                    {"device", g.device},
                    {"driver", g.driver},
                    {"gt_per_second", positive(g.speed)},
                    {"gt_per_second_max", positive(g.speed_max)},
                    {"width", g.width},
                    {"width_max", g.width_max},
                    {"numa_node", g.numa_node}});
  for (const Limit& l : m.limits) limits[l.name] = known(l.value);
  for (const auto& [name, value] : m.environment) environment[name] = value;
  return {{"system", m.system},
          {"kernel", m.kernel},
          {"container", m.container},
          {"processor", m.processor},
          {"processors", m.processors},
          {"processors_allowed", m.allowed},
          {"processor_quota", positive(m.processor_limit)},
          {"instruction_set", m.instruction_set},
          {"governor", m.governor},
          {"numa_nodes", nodes},
          {"memory_bytes", m.memory},
          {"memory_available_bytes", m.available},
          {"memory_limit_bytes", m.memory_limit ? Json(m.memory_limit) : Json(nullptr)},
          {"swap_bytes", m.swap},
          {"huge_pages", m.huge_pages},
          {"limits", limits},
          {"environment", environment},
          {"pci_gpus", gpus},
          {"nvidia_module", m.driver},
          {"nvidia_device_files", m.device_files}};
}

Json nvml_json(const NvmlReport& n) {
  if (!n.usable()) return {{"usable", false}, {"why_not", n.why_not}};
  Json gpus = Json::array(), pairs = Json::array();
  for (const GpuState& g : n.gpus) gpus.push_back(gpu_json(g));
  for (const GpuPair& p : n.pairs)
    pairs.push_back({{"from", p.from},
                     {"to", p.to},
                     {"peer_read", p.peer_read ? Json(peer_status_text(*p.peer_read)) : Json(nullptr)},
                     {"nvlink", p.nvlink ? Json(*p.nvlink == 0) : Json(nullptr)},
                     {"common_ancestor", p.ancestor ? Json(ancestor_text(*p.ancestor)) : Json(nullptr)}});
  return {{"usable", true},      {"library", n.library}, {"driver", n.driver}, {"version", n.version},
          {"cuda", n.cuda},      {"gpus", gpus},         {"pairs", pairs},     {"unreachable", n.unreachable},
          {"not_told", n.unread}};
}

Json rates_json(const Rates& r) {
  const auto why = [](const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); };
  Json links = Json::array();
  for (const dist::Measurement& l : r.links)
    links.push_back({{"what", l.what}, {"value", l.unit.empty() ? Json(nullptr) : Json(l.value)}, {"unit", l.unit}});
  return {{"cpu_copy_bytes_per_second", positive(r.cpu_copy)},
          {"cpu_fp32_flops", positive(r.cpu_fp32)},
          {"cpu_not_measured", why(r.cpu_why_not)},
          {"gpu", r.gpu.empty() ? Json(nullptr) : Json(r.gpu)},
          {"gpu_copy_bytes_per_second", positive(r.gpu_copy)},
          {"gpu_fp32_flops", positive(r.gpu_fp32)},
          {"gpu_bf16_flops", positive(r.gpu_bf16)},
          {"gpu_fp8_flops", positive(r.gpu_fp8)},
          {"gpu_not_measured", why(r.gpu_why_not)},
          {"links", links},
          {"all_reduce_not_measured", why(r.all_reduce_why_not)}};
}

Json verdict_json(const Verdict& v) {
  Json parts = Json::array();
  for (const Part& p : v.parts)
    parts.push_back({{"part", p.id},
                     {"seconds", p.seconds},
                     {"share", p.share},
                     {"bound_seconds", p.bound < 0 ? Json(nullptr) : Json(p.bound)},
                     {"cause", p.cause},
                     {"remedy", p.remedy}});
  Json bound = nullptr;
  if (v.bound)
    bound = {{"of", v.bound_of},
             {"seconds", v.bound->time()},
             {"binds", v.bound->binds()},
             {"tokens_per_second", v.bound->tokens_per_second()}};
  return {{"file", v.file},       {"device", v.device},
          {"devices", v.devices}, {"sentence", verdict_sentence(v)},
          {"steps", v.steps},     {"steps_left_out", v.left_out},
          {"seconds", v.seconds}, {"largest_loss", v.largest},
          {"parts", parts},       {"bound", bound}};
}

Json server_json(const ServerReport& s) {
  Json gpus = Json::array();
  for (const WorkSamples& g : s.gpus)
    gpus.push_back({{"index", g.index},
                    {"name", g.name},
                    {"samples", g.samples},
                    {"busy", g.busy},
                    {"memory_busy", g.memory_busy},
                    {"power_watts", positive(g.power)},
                    {"power_limit_watts", positive(g.limit)},
                    {"sm_clock_mhz", positive(g.clock)},
                    {"hottest_celsius", positive(g.hottest)},
                    {"clock_reasons", clock_reasons_text(g.reasons)}});
  return {{"kind", s.kind},
          {"local", s.local},
          {"bench", Json::parse(bench::json_report(s.sweep))},
          {"gpus_under_load", gpus},
          {"trace", s.trace.empty() ? Json(nullptr) : Json(s.trace)},
          {"no_trace_because", s.trace_why_not.empty() ? Json(nullptr) : Json(s.trace_why_not)}};
}

}  // namespace

std::string json_report(const Report& r) {
  Json checks = Json::array(), verdicts = Json::array();
  for (const Check& c : r.checks)
    checks.push_back({{"area", c.area},
                      {"level", c.level == Level::bad ? "bad" : level_name(c.level)},
                      {"found", c.found},
                      {"cause", c.cause.empty() ? Json(nullptr) : Json(c.cause)},
                      {"remedy", c.remedy.empty() ? Json(nullptr) : Json(c.remedy)}});
  for (const Verdict& v : r.verdicts) verdicts.push_back(verdict_json(v));
  Json out = {{"schema", "fathom-doctor-1"},
              {"version", r.version},
              {"time", r.time},
              {"checks", checks},
              {"machine", machine_json(r.machine)},
              {"nvml", nvml_json(r.nvml)},
              {"rates", r.rates ? rates_json(*r.rates) : Json(nullptr)},
              {"disk", nullptr},
              {"server", r.server ? server_json(*r.server) : Json(nullptr)},
              {"verdicts", verdicts},
              {"remarks", r.judged_without}};
  if (r.disk)
    out["disk"] = {{"file", r.disk->file},
                   {"bytes", r.disk->bytes},
                   {"seconds", r.disk->seconds},
                   {"bytes_per_second", positive(r.disk->rate())},
                   {"direct", r.disk->direct},
                   {"not_measured", r.disk->why_not.empty() ? Json(nullptr) : Json(r.disk->why_not)}};
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace fathom::doctor

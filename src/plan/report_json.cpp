// The machine-readable side of a plan, and the two files that a user may bring.
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "plan/report.h"

namespace fathom::plan {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const StepBound& b) {
  return {{"tokens_in_step", b.tokens},
          {"distinct_experts", b.distinct},
          {"bytes",
           {{"weights", b.fixed_bytes},
            {"experts", b.expert_bytes},
            {"cache", b.cache_bytes},
            {"draft", b.draft_bytes},
            {"all", b.bytes()},
            {"busiest_device", b.device_bytes}}},
          {"flops", {{"products", b.product_flops}, {"attention_and_index", b.attention_flops}}},
          {"seconds", {{"bytes", b.memory_time}, {"math", b.matrix_time}, {"links", b.link_time}, {"step", b.time()}}},
          {"tokens_per_second", b.tokens_per_second()},
          {"binds", b.binds()}};
}

Json json_of(const Capacity& c) {
  return {{"fits", c.fits()},
          {"weight_bytes_per_device", c.weights},
          {"cache_bytes_per_device", c.cache},
          {"bytes_per_sequence", c.sequence_bytes},
          {"sequences", c.sequences},
          {"longest_sequence", c.longest}};
}

double positive(const Json& object, const char* field, const std::string& where) {
  const auto at = object.find(field);
  const double n = at != object.end() && at->is_number() ? at->get<double>() : NAN;
  if (!(n > 0 && std::isfinite(n))) fail("{}: {} must be a positive number", where, field);
  return n;
}

}  // namespace

std::string json_report(const Answer& a) {
  const Question& q = a.question;
  const Model& m = q.model;
  Json out = {{"schema", "fathom-plan-1"},
              {"model",
               {{"name", m.name},
                {"parameters", m.parameters},
                {"active_parameters", m.active_parameters},
                {"weight_bytes", m.weights.total()},
                {"draft_bytes", m.draft.resident},
                {"cache_bytes_per_token", cache_bytes_per_token(m, q.devices.index_row)},
                {"cache_bytes_per_sequence", cache_bytes_fixed(m)}}},
              {"devices",
               {{"gpu", q.devices.gpu.name},
                {"count", q.devices.count},
                {"experts", q.devices.split == Split::tensor ? "split" : "whole"},
                {"bandwidth", q.devices.gpu.bandwidth},
                {"memory", q.devices.gpu.memory},
                {"reserve", q.devices.reserve},
                {"all_reduce_seconds", q.devices.gpu.link.all_reduce_latency},
                {"all_reduce_measured", q.devices.gpu.link.measured}}}};
  for (size_t i = 0; i < q.contexts.size(); ++i) {
    Json context = {{"context", q.contexts[i]}, {"capacity", json_of(a.capacities[i])}, {"steps", Json::array()}};
    for (size_t k = 0; k < q.batches.size(); ++k) {
      const Row& r = a.rows[i * q.batches.size() + k];
      Json row = {{"batch", r.batch}, {"fits", r.fits}, {"plain", json_of(r.plain)}};
      if (q.accepted > 0) row["speculation"] = json_of(r.drafted), row["speculation"]["accepted"] = q.accepted;
      if (r.measured > 0)
        row["measured"] = {{"tokens_per_second", r.measured}, {"of_bound", r.measured / r.plain.tokens_per_second()}};
      context["steps"].push_back(std::move(row));
    }
    out["contexts"].push_back(std::move(context));
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Routing read_routing(const std::filesystem::path& file, int experts) {
  const std::string text = read_file(file, size_t{1} << 24), name = printable(file.string(), 400);
  Routing counts(static_cast<size_t>(experts), -1.0);
  size_t next = 0;
  int line_number = 0;
  double sum = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++line_number;
    line = line.substr(0, line.find('#'));
    std::vector<double> numbers;
    while (true) {
      const size_t begin = line.find_first_not_of(" \t\r,;");
      if (begin == line.npos) break;
      line.remove_prefix(begin);
      double n = 0;
      const auto [stop, error] = std::from_chars(line.data(), line.data() + line.size(), n);
      if (error != std::errc() || !std::isfinite(n) || n < 0)
        fail("{}: line {}: expected \"ID COUNT\" or \"COUNT\", numbers that are not negative", name, line_number);
      line.remove_prefix(static_cast<size_t>(stop - line.data()));
      numbers.push_back(n);
    }
    if (numbers.empty()) continue;
    if (numbers.size() > 2) fail("{}: line {}: more than two numbers", name, line_number);
    const double id = numbers.size() == 2 ? numbers[0] : static_cast<double>(next);
    if (id != std::floor(id) || id >= experts)
      fail("{}: line {}: expert {:g}, but the model has experts 0 to {}", name, line_number, id, experts - 1);
    double& count = counts[static_cast<size_t>(id)];
    if (count >= 0) fail("{}: line {}: expert {:g} a second time", name, line_number, id);
    count = numbers.back();
    sum += count;
    ++next;
  }
  if (!(sum > 0) || !std::isfinite(sum)) fail("{}: no counts of experts in it", name);
  for (double& count : counts) count = std::max(count, 0.0) / sum;
  return counts;
}

std::vector<Measured> read_measured(const std::filesystem::path& file) {
  const std::string name = printable(file.string(), 400);
  const Json json = Json::parse(read_file(file, size_t{1} << 28), nullptr, false);
  if (json.is_discarded()) fail("{}: not valid JSON", name);
  if (!json.is_object() || !json.contains("levels") || !json["levels"].is_array())
    fail("{}: no \"levels\", the list that fathom bench --json writes", name);
  std::vector<Measured> out;
  for (const Json& level : json["levels"]) {
    const std::string where = fmt::format("{}: levels[{}]", name, out.size());
    if (!level.is_object()) fail("{}: an object was expected", where);
    Measured m{positive(level, "concurrency", where), 0, positive(level, "output_tokens_per_second", where)};
    out.push_back(m);
  }
  return out;
}

}  // namespace fathom::plan

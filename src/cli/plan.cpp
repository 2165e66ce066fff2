#include "base/error.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "formats/built_in.h"
#include "plan/report.h"

namespace fathom::cli {
namespace {

struct PlanOptions {
  std::string model = "v4-flash", gpu, batches = "1,4,16,64", contexts = "8192", split = "whole", index = "fp8";
  std::string routing, measured, json;
  std::vector<std::string> tables;
  int64_t count = 0, experts = 0;
  double accepted = 0, reserve = 1.5, all_reduce = 0, bandwidth = 0;
  bool explain = false;
};

std::vector<double> numbers(const char* option, const std::string& text, int64_t most) {
  const std::vector<int64_t> whole = number_list(option, text, most, true);
  return {whole.begin(), whole.end()};
}

/// The fewest devices that hold the model, or one when none do.
int fewest(const plan::Model& m, plan::Devices s, double context) {
  for (s.count = 1; s.count <= m.config.o_groups; ++s.count)
    if (m.config.o_groups % s.count == 0 && plan::capacity(m, s, context).fits()) return s.count;
  return 1;
}

int run_plan(const PlanOptions& o) {
  plan::GpuTable table;
  for (const std::string& file : o.tables) table.add_file(file);
  const plan::Model model = plan::find_model(o.model, static_cast<int>(o.experts));

  plan::Devices devices;
  devices.split = o.split == "split" ? plan::Split::tensor : plan::Split::experts;
  devices.index_row = o.index == "fp4" ? 68 : 132;
  devices.reserve = o.reserve * 1024 * 1024 * 1024;
  devices.with_draft = o.accepted > 0;
  if (!o.routing.empty()) devices.routing = plan::read_routing(o.routing, model.config.num_experts);
  const std::vector<double> contexts = numbers("--context", o.contexts, int64_t{1} << 24);
  if (o.accepted > 0 && model.draft.stages == 0) fail("--accept: {} has no draft", printable(model.name));
  if (o.accepted > 1 + model.draft.block)
    fail("--accept {:g}: {} drafts {} tokens, so {} at most come out of a step", o.accepted, printable(model.name),
         model.draft.block, 1 + model.draft.block);

  if (o.gpu.empty()) {
    for (const auto& [given, option] : {std::pair{o.count > 0, "--count"},
                                        {o.explain, "--explain"},
                                        {!o.json.empty(), "--json"},
                                        {!o.measured.empty(), "--measured"},
                                        {o.bandwidth > 0, "--bandwidth"}})
      if (given) throw UsageError(fmt::format("{} needs --gpu", option));
    print(plan::survey(model, table, devices, contexts.front()));
    return 0;
  }
  devices.gpu = table.find(o.gpu);
  if (o.bandwidth > 0) devices.gpu.bandwidth = o.bandwidth * 1e9;
  if (o.all_reduce > 0) devices.gpu.link.all_reduce_latency = o.all_reduce * 1e-6, devices.gpu.link.measured = true;
  devices.count = o.count > 0 ? static_cast<int>(o.count) : fewest(model, devices, contexts.front());
  plan::check_count(model, devices.count);

  plan::Question question{model, devices, numbers("--batch", o.batches, 65536), contexts, o.accepted, {}};
  if (!o.measured.empty()) question.measured = plan::read_measured(o.measured);
  const plan::Answer answer = plan::answer(std::move(question));
  if (!o.json.empty()) {
    write_file(o.json == "-" ? "/dev/stdout" : o.json, plan::json_report(answer));
    if (o.json == "-") return 0;
  }
  print(plan::text_report(answer));
  if (o.explain) print(plan::explanation(answer));
  return 0;
}

}  // namespace

Command plan_command() {
  return {
      "plan", "What fits on which GPUs, and the bound of a decode step", [](Parser& p) -> std::function<int()> {
        auto o = std::make_shared<PlanOptions>();
        p.positional("MODEL", o->model,
                     "a checkpoint folder, a config.json, or one of " + built_in_models() + " (default v4-flash)",
                     false);
        p.option("--gpu", o->gpu, "name of a GPU; without it, one line for each of the table");
        p.option("--count", o->count, "GPUs that share the model (default: the fewest that hold it)", 1, 1024);
        p.choice("--experts-on", o->split, {"whole", "split"},
                 "whole: each GPU has some experts (default); split: a part of each");
        p.option("--batch", o->batches, "requests in a step, a list (default 1,4,16,64)");
        p.option("--context", o->contexts, "tokens of each request, a list; 128k, 1m (default 8192)");
        p.choice("--index", o->index, {"fp8", "fp4"}, "index keys in the cache (default fp8)");
        p.option("--accept", o->accepted, "speculation: tokens of a request that come out of a step", 1, 64);
        p.option("--experts", o->experts, "routed experts, when pruned", 1, 65536);
        p.option("--routing", o->routing, "file with the tokens that each expert got, in place of uniform routing");
        p.option("--reserve", o->reserve, "GiB of each GPU kept for driver, graphs, workspaces (default 1.5)", 0, 1024);
        p.option("--allreduce-us", o->all_reduce, "a measured small all-reduce, in place of the table's", 0.01, 1e6);
        p.option("--bandwidth", o->bandwidth, "a measured copy bandwidth in GB/s, in place of the data sheet's", 1,
                 1e6);
        p.option("--gpus", o->tables, "file with more GPUs, in the form of the built-in table (docs/planning.md)");
        p.option("--measured", o->measured, "results of fathom bench --json, shown beside their bound");
        p.option("--json", o->json, "write the plan as JSON to this file; - for the standard output alone");
        p.flag("--explain", o->explain, "show the formula of every number of the first row");
        p.footer(
            "Examples:\n  fathom plan\n  fathom plan v4-flash --gpu \"RTX PRO 6000\" --count 2 --context 8k,128k\n"
            "  fathom plan v4-flash-0731 --gpu h200 --accept 3 --explain");
        return [o] { return run_plan(*o); };
      }};
}

}  // namespace fathom::cli

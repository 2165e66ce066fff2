// fathom doctor: this machine, a model, a server, a trace: what is wrong, why, and what to do.
#include <fmt/chrono.h>
#include <unistd.h>

#include <cstdio>
#include <ctime>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "doctor/report.h"
#include "engine/self_check.h"
#include "trace/reader.h"

namespace fathom::cli {
namespace {

struct DoctorOptions {
  std::string model, url, served, key_file, gpu, nvml, json, markdown, levels = "1,4", profile_folder;
  std::vector<std::string> traces, tables;
  int64_t count = 0, batch = 0, context = 0, input = 128, output = 64, threads = 0, profile_steps = 48;
  bool quick = false;
};

/// The checkpoint's own checks, as `fathom check` makes them.
void check_engine(const std::string& folder, std::vector<doctor::Check>& out) {
  using doctor::Level;
  try {
    const auto model = load_model(folder);
    SelfCheckOptions options;
    if (const auto beside = std::filesystem::path(folder) / "goldens"; std::filesystem::is_directory(beside))
      options.goldens = beside;
    self_check(*model, options, [&](const CheckResult& r) {
      const std::string found = fmt::format("{}: {}", r.name, r.detail);
      if (r.verdict == Verdict::passed)
        out.push_back({"engine", Level::ok, found, "", ""});
      else if (r.verdict == Verdict::skipped)
        out.push_back({"engine", Level::note, found, "it could not be compared", "nothing, if the rest passed"});
      else
        out.push_back({"engine", Level::bad, found, "the checkpoint or this build computes something else",
                       "fathom check MODEL --ops ref tells which of both: the references are slow and exact"});
    });
  } catch (const Interrupted&) {
    throw;
  } catch (const Error& e) {
    out.push_back({"engine", Level::bad, e.what(), "the checkpoint cannot be loaded", "see the message"});
  }
}

bool is_checkpoint(const std::string& name) {
  std::error_code ignored;
  return std::filesystem::is_directory(name, ignored);
}

/// This machine's CPU in the form of the table of GPUs, from its measured rates.
plan::Gpu measured_cpu(const doctor::Report& r) {
  plan::Gpu cpu;
  cpu.name = "this machine's CPU (measured)";
  cpu.bandwidth = r.rates->cpu_copy, cpu.bf16 = r.rates->cpu_fp32;
  cpu.memory = static_cast<double>(r.machine.memory);
  cpu.link.bandwidth = 1;
  return cpu;
}

class Doctor {
 public:
  explicit Doctor(const DoctorOptions& o) : o_(o) {
    for (const std::string& file : o.tables) table_.add_file(file);
    if (!o.gpu.empty()) gpu_ = table_.find(o.gpu);
    if (!o.model.empty()) model_ = plan::find_model(o.model);
    if (o.count > 0 && model_) plan::check_count(*model_, static_cast<int>(o.count));
  }

  int run() {
    r_.version = FATHOM_VERSION;
    r_.time = fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr)));
    say("looking at the machine");
    r_.machine = doctor::read_machine();
    r_.nvml = doctor::read_nvml(o_.nvml);
    add(doctor::machine_checks(r_.machine));
    add(doctor::gpu_checks(r_.nvml, r_.machine));
    if (!o_.quick) measure();
    if (is_checkpoint(o_.model) && !o_.quick) {
      say("checking the model");
      check_engine(o_.model, r_.checks);
    }
    throw_if_interrupted("examining the machine");
    if (!o_.url.empty()) server();
    for (const std::string& trace : o_.traces) judge(trace, o_.batch, o_.context);
    if (r_.verdicts.empty() && o_.url.empty())
      r_.judged_without.push_back("No verdict on speed: give --url of a server, or --trace FILE.");
    return finish();
  }

 private:
  void say(const char* what) const {
    if (::isatty(STDERR_FILENO) == 1) std::fprintf(stderr, "fathom: %s...\n", what);
  }

  void add(std::vector<doctor::Check> checks) {
    for (doctor::Check& c : checks) r_.checks.push_back(std::move(c));
  }

  void measure() {
    say("measuring rates");
    r_.rates = doctor::measure_rates(r_.nvml.gpus.size());
    add(doctor::rate_checks(*r_.rates, table_));
    if (is_checkpoint(o_.model)) r_.disk = doctor::measure_disk(o_.model);
  }

  void server() {
    say("measuring the server");
    doctor::ServerOptions s;
    s.url = o_.url, s.model = o_.served, s.nvml = o_.nvml;
    s.api_key = o_.key_file.empty() ? "" : read_key(o_.key_file);
    s.levels = number_list("--concurrency", o_.levels, 65536);
    s.input = o_.input, s.output = o_.output;
    s.profile_steps = o_.profile_steps, s.profile_folder = o_.profile_folder;
    r_.server = doctor::examine_server(s);
    add(r_.server->checks);
    throw_if_interrupted("measuring the server");
    if (!r_.server->trace.empty())
      judge(r_.server->trace, static_cast<int64_t>(s.levels.back()), o_.input + o_.output / 2);
    else if (o_.traces.empty())
      r_.judged_without.push_back("No verdict: " + r_.server->trace_why_not + ".");
  }

  /// `batch` and `context` 0: not known; then the bound is of one request at 1,024 tokens, and that is said.
  void judge(const std::string& file, int64_t batch, int64_t context) {
    const trace::Trace trace = trace::read_trace(file);
    const trace::Analysis analysis = trace::analyse(trace, trace::CategoryRules::built_in());
    std::optional<doctor::BoundQuestion> question;
    if (model_) {
      plan::Devices devices;
      std::string why_not;
      if (find_device(trace, devices.gpu, why_not)) {
        devices.count = o_.count > 0 ? static_cast<int>(o_.count) : static_cast<int>(analysis.summary.devices.size());
        if (trace.cpu_work) devices.count = 1;
        plan::check_count(*model_, devices.count);
        question = doctor::BoundQuestion{*model_, devices, static_cast<double>(std::max<int64_t>(batch, 1)),
                                         context > 0 ? static_cast<double>(context) : 1024.0};
        if (batch <= 0 || context <= 0)
          r_.judged_without.push_back("The bound is of batch " + std::to_string(std::max<int64_t>(batch, 1)) +
                                      " and 1,024 tokens of context where nothing else is given: --batch, --context.");
      } else {
        r_.judged_without.push_back("No bound: " + why_not);
      }
    } else {
      r_.judged_without.push_back(
          "No bound: name the model: a checkpoint folder, or a built-in one (fathom plan --help).");
    }
    r_.verdicts.push_back(doctor::judge(analysis, question));
  }

  bool find_device(const trace::Trace& trace, plan::Gpu& gpu, std::string& why_not) const {
    if (gpu_) {
      gpu = *gpu_;
      return true;
    }
    if (trace.cpu_work) {
      why_not = "this machine was not measured (--quick)";
      if (!r_.rates || r_.rates->cpu_copy <= 0) return false;
      gpu = measured_cpu(r_);
      return true;
    }
    for (const trace::Device& d : trace.devices)
      if (const plan::Gpu* known = table_.find_in(d.name)) {
        gpu = *known;
        return true;
      }
    why_not = "the trace names no GPU of the table: give --gpu.";
    return false;
  }

  int finish() {
    const std::string json = o_.json.empty() ? "" : doctor::json_report(r_);
    if (o_.json == "-")
      print(json);
    else if (!o_.json.empty())
      write_file(o_.json, json);
    if (!o_.markdown.empty()) write_file(o_.markdown, doctor::markdown_report(r_));
    if (o_.json != "-") print(doctor::text_report(r_));
    return r_.count(doctor::Level::bad) > 0 ? 1 : 0;
  }

  const DoctorOptions& o_;
  plan::GpuTable table_;
  std::optional<plan::Gpu> gpu_;
  std::optional<plan::Model> model_;
  doctor::Report r_;
};

int run_doctor(const DoctorOptions& o, const Parser& parser) {
  for (const char* name :
       {"--served", "--key-file", "--concurrency", "--input", "--output", "--profile-dir", "--profile-steps"})
    if (o.url.empty() && parser.given(name)) throw UsageError(fmt::format("{} needs --url", name));
  for (const char* name : {"--batch", "--context"})
    if (o.traces.empty() && parser.given(name)) throw UsageError(fmt::format("{} needs --trace", name));
  for (const char* name : {"--gpu", "--gpus", "--count"})
    if (parser.given(name) && (o.model.empty() || (o.traces.empty() && o.url.empty())))
      throw UsageError(fmt::format("{} is of the bound: it needs MODEL, and --trace or --url", name));
  for (const std::string& path : {o.json, o.markdown})
    if (!path.empty()) check_output_path(path);
  if (o.threads > 0) set_thread_count(static_cast<int>(o.threads));
  catch_interrupts();
  return Doctor(o).run();
}

}  // namespace

Command doctor_command() {
  return {"doctor", "What is wrong with a machine, a server or a trace, why, and what to do",
          [](Parser& p) -> std::function<int()> {
            auto o = std::make_shared<DoctorOptions>();
            p.positional(
                "MODEL", o->model,
                "a checkpoint folder, which is checked too; or, for the bound alone, a config.json or a built-in "
                "model (fathom plan --help lists them)",
                false);
            p.option("--url", o->url, "a server: its metrics, a short load test, and a profile (fathom, SGLang)");
            p.option("--trace", o->traces, "a trace to judge, of any engine that fathom trace reads");
            p.option("--gpu", o->gpu, "GPU of the bound (default: the one that the trace names)");
            p.option("--gpus", o->tables, "file with more GPUs (docs/planning.md)");
            p.option("--count", o->count, "GPUs of the bound (default: those in the trace)", 1, 1024);
            p.option("--batch", o->batch, "requests that a step of the trace decodes", 1, 65536);
            p.option("--context", o->context, "tokens of context of each of them", 1, int64_t{1} << 24);
            p.option("--concurrency", o->levels,
                     "open requests of the load test, a list (default 1,4); the last is profiled");
            p.option("--input", o->input, "prompt tokens of the load test (default 128)", 1, 1 << 20);
            p.option("--output", o->output, "output tokens of the load test (default 64)", 2, 1 << 20);
            p.option("--profile-dir", o->profile_folder, "folder for the server's trace, as both machines see it");
            p.option("--profile-steps", o->profile_steps, "steps to profile (default 48); 0: none", 0, 100'000);
            p.option("--served", o->served, "name of the model at the server (default: the first that it lists)");
            p.option("--key-file", o->key_file, "file with the server's API key");
            p.flag("--quick", o->quick, "measure no rates and check no model");
            p.option("--nvml", o->nvml, "NVML library (default: the driver's libnvidia-ml.so.1)");
            p.option("--threads", o->threads, "threads of measurements and checks", 1, 1024);
            p.option("--json", o->json, "write everything as JSON to this file; - for the standard output");
            p.option("--md", o->markdown, "write the report as Markdown");
            p.footer(
                "Examples:\n  fathom doctor\n  fathom doctor models/fairy --url http://127.0.0.1:8000\n"
                "  fathom doctor v4-flash --trace profile.json.gz --gpu h200 --batch 16 --context 8192\n"
                "Exit status: 0 nothing bad, 1 something bad was found or bad input, 2 usage, 130 interrupted.");
            Parser* parser = &p;
            return [o, parser] { return run_doctor(*o, *parser); };
          }};
}

}  // namespace fathom::cli

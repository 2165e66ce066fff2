#include <algorithm>
#include <charconv>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/threads.h"
#include "bench/sweep.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/model_setup.h"
#include "cli/output.h"
#include "engine/speculate_option.h"

namespace fathom::cli {
namespace {

struct BenchOptions {
  std::string target, model, api = "chat", key_file, levels = "1,4,16", input = "256", output = "128",
                             content = "prose";
  std::string json, markdown, html, device = "auto", context, profile;
  ModelFlags choice;
  bool shared_prefix = false, keep_end = false, no_warm_up = false;
  std::string speculate = "off", acceptance;
  int64_t rounds = 4, requests = 0, repeats = 1, seed = 1, threads = 0, chunk = 512;
  double rate = 0, temperature = 0, timeout = 600;
};

/// One of the settings to be measured one behind the other.
struct DraftSetting {
  std::string speculate, acceptance;  // as they were given
  int32_t depth = 0;
  double probability = -1;
};

std::vector<std::string> split(const std::string& list) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= list.size();) {
    const size_t comma = std::min(list.find(',', at), list.size());
    items.push_back(list.substr(at, comma - at));
    at = comma + 1;
  }
  return items;
}

double read_acceptance(const std::string& text) {
  double p = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), p);
  if (error != std::errc() || end != text.data() + text.size() || !(p >= 0 && p <= 1))
    throw UsageError(fmt::format("--draft-acceptance {}: numbers from 0 to 1", printable(text, 60)));
  return p;
}

/// Every depth with every acceptance, where those are `forced`; without drafts once.
std::vector<DraftSetting> draft_settings(const BenchOptions& o, bool forced) {
  std::vector<DraftSetting> out;
  for (const std::string& speculate : split(o.speculate)) {
    const int32_t depth = read_speculate(speculate);
    if (depth == 0 || !forced) {
      out.push_back({speculate, "", depth, -1});
      continue;
    }
    for (const std::string& a : split(o.acceptance)) out.push_back({speculate, a, depth, read_acceptance(a)});
  }
  constexpr size_t kMost = 64;
  if (out.size() > kMost) throw UsageError(fmt::format("--speculate and --draft-acceptance: at most {} runs", kMost));
  return out;
}

/// Tokens a second of whole runs, a line for each setting, and beside the best setting of the same acceptance.
std::string comparison(const std::vector<DraftSetting>& settings, const std::vector<bench::Sweep>& sweeps) {
  std::string out = fmt::format("\nTokens/s of whole runs (beside the best with drafts as good)\n{:>10}{:>12}",
                                "drafts", "acceptance");
  for (const auto& level : sweeps.front().levels)
    out += fmt::format("{:>16}", fmt::format("load {}", bench::load_text(level)));
  for (size_t i = 0; i < sweeps.size(); ++i) {
    out += fmt::format("\n{:>10}{:>12}", settings[i].speculate,
                       settings[i].acceptance.empty() ? "-" : settings[i].acceptance);
    for (size_t k = 0; k < sweeps[i].levels.size(); ++k) {
      const double rate = sweeps[i].levels[k].median().whole_rate;
      double best = 0;
      for (size_t j = 0; j < sweeps.size(); ++j)
        if (k < sweeps[j].levels.size() &&
            (settings[j].depth == 0 || settings[i].depth == 0 || settings[j].acceptance == settings[i].acceptance) &&
            (settings[i].depth != 0 || settings[j].depth == 0))
          best = std::max(best, sweeps[j].levels[k].median().whole_rate);
      out += fmt::format("{:>16}", fmt::format("{:.1f} ({:.3f})", rate, best > 0 ? rate / best : 0));
    }
  }
  return out + "\n";
}

std::unique_ptr<bench::Target> server_of(const BenchOptions& o) {
  return bench::http_target({.url = o.target,
                             .model = o.model,
                             .api_key = o.key_file.empty() ? "" : read_key(o.key_file),
                             .chat = o.api == "chat",
                             .ignore_end = !o.keep_end,
                             .temperature = o.temperature,
                             .timeout = o.timeout});
}

std::unique_ptr<bench::InProcessTarget> model_of(const BenchOptions& o, const bench::WorkloadOptions& w,
                                                 int64_t most_open, const std::vector<DraftSetting>& drafts) {
  std::vector<int32_t> later;
  for (size_t i = 1; i < drafts.size(); ++i) later.push_back(drafts[i].depth);
  // A prompt's length is known only when it has been written: room for one that comes out longer.
  const int64_t context = o.context.empty() ? 0 : number_list("--context", o.context, int64_t{1} << 24, true).front();
  return bench::in_process_target({.model = choose_model(o.target, o.choice),
                                   .device = device_for(o.device, false),
                                   .fast = o.choice.fast,
                                   .context = context,
                                   .profile = o.profile,
                                   .say = say_on_stderr,
                                   .most_open = most_open,
                                   .most_tokens = (context > 0 ? context : w.input.high * 2) + w.output.high + 64 +
                                                  (o.profile.empty() ? 0 : bench::kMostProfileSteps),
                                   .chunk = o.chunk,
                                   .speculate = drafts.front().depth,
                                   .draft_acceptance = drafts.front().probability,
                                   .temperature = o.temperature,
                                   .later = later});
}

int written(const BenchOptions& o, const bench::Sweep& sweep) {
  if (!o.json.empty()) write_file(o.json, bench::json_report(sweep));
  if (!o.markdown.empty()) write_file(o.markdown, bench::markdown_report(sweep));
  if (!o.html.empty()) write_file(o.html, bench::html_report(sweep));
  size_t answered = 0;
  for (const auto& level : sweep.levels)
    for (const auto& r : level.repeats) answered += r.requests - r.errors;
  if (sweep.interrupted) return 130;
  return answered > 0 ? 0 : 1;
}

/// One sweep for each setting, on one loaded model.
int run_settings(bench::InProcessTarget& target, const BenchOptions& o, const bench::WorkloadOptions& workload,
                 const bench::SweepOptions& options, const std::vector<DraftSetting>& settings) {
  std::vector<bench::Sweep> sweeps;
  int worst = 0;
  for (const DraftSetting& s : settings) {
    if (!sweeps.empty()) target.set_drafts(s.depth, s.probability);
    sweeps.push_back(bench::run_sweep(target, workload, options));
    sweeps.back().content = o.content;
    print(bench::text_report(sweeps.back()) + "\n");
    worst = std::max(worst, written(o, sweeps.back()));
    if (sweeps.back().interrupted) break;
  }
  if (settings.size() > 1) print(comparison(settings, sweeps));
  return worst;
}

int run_bench(const BenchOptions& o, const Parser& parser) {
  bench::WorkloadOptions workload;
  workload.input = bench::parse_lengths("--input", o.input);
  workload.output = bench::parse_lengths("--output", o.output);
  workload.content = bench::parse_content(o.content);
  workload.shared_prefix = o.shared_prefix;
  workload.seed = static_cast<uint64_t>(o.seed);
  bench::SweepOptions sweep_options{.levels = number_list("--concurrency", o.levels, 65536),
                                    .rate = o.rate,
                                    .rounds = o.rounds,
                                    .least = 8,
                                    .requests = o.requests,
                                    .repeats = o.repeats,
                                    .warm_up = !o.no_warm_up};
  if (o.rate > 0 && parser.given("--concurrency")) throw UsageError("--rate and --concurrency exclude each other");
  if (o.rate > 0 && o.requests == 0) throw UsageError("--rate needs --requests");
  const bool url = o.target.find("://") != std::string::npos;
  if (!url) choose_model(o.target, o.choice);
  for (const char* name : {"--model", "--api", "--key-file", "--timeout", "--stop-early"})
    if (!url && parser.given(name))
      throw UsageError(fmt::format("{} is of a server's URL, {} is a folder", name, printable(o.target, 200)));
  if (parser.given("--context") && parser.given("--input"))
    throw UsageError("--context and --input exclude each other");
  for (const char* name : {"--threads", "--chunk", "--speculate", "--draft-acceptance", "--device", "--context",
                           "--synthetic", "--exact", "--fast", "--tensor-parallel", "--profile"})
    if (url && parser.given(name))
      throw UsageError(fmt::format("{} is of a model in this process, not of a server", name));
  const std::vector<DraftSetting> drafts = draft_settings(o, parser.given("--draft-acceptance"));
  const bool plain = std::all_of(drafts.begin(), drafts.end(), [](const DraftSetting& d) { return d.depth == 0; });
  if (parser.given("--draft-acceptance") && plain)
    throw UsageError("--draft-acceptance needs --speculate auto or a number");
  if (parser.given("--context") && !plain && !parser.given("--draft-acceptance"))
    throw UsageError(
        "--speculate with --context needs --draft-acceptance: drafts of a context that nobody computed are right by "
        "chance");
  for (const char* name : {"--json", "--md", "--html", "--profile"})
    if (drafts.size() > 1 && parser.given(name))
      throw UsageError(
          fmt::format("{} is of one setting of --speculate and --draft-acceptance, not of {}", name, drafts.size()));
  if (parser.given("--profile") && !parser.given("--context")) throw UsageError("--profile needs --context");
  for (const std::string& path : {o.json, o.markdown, o.html, o.profile})
    if (!path.empty()) check_output_path(path);
  if (o.threads > 0) set_thread_count(static_cast<int>(o.threads));
  catch_interrupts();
  int64_t most = static_cast<int64_t>(o.rate > 0 ? 64 : 1);
  for (const int64_t level : sweep_options.levels) most = std::max(most, level);
  if (!url) return run_settings(*model_of(o, workload, most, drafts), o, workload, sweep_options, drafts);
  bench::Sweep sweep = bench::run_sweep(*server_of(o), workload, sweep_options);
  sweep.content = o.content;
  print(bench::text_report(sweep));
  return written(o, sweep);
}

}  // namespace

Command bench_command() {
  return {
      "bench", "Load test of a server or a model: rates, latencies, step time", [](Parser& p) -> std::function<int()> {
        auto o = std::make_shared<BenchOptions>();
        p.positional("TARGET", o->target, "http://HOST:PORT of an OpenAI-compatible server, or a checkpoint folder",
                     false);
        p.option("--concurrency", o->levels, "open requests, a list of levels (default 1,4,16)");
        p.option("--rate", o->rate, "requests a second at random times, in place of levels", 0.001, 1e5);
        p.option("--input", o->input, "prompt tokens: 256, or a range 128..1024 (default 256)");
        p.option("--output", o->output, "output tokens, a number or a range (default 128)");
        p.choice("--content", o->content, {"prose", "code", "structured", "random"}, "kind of prompts (default prose)");
        p.flag("--shared-prefix", o->shared_prefix, "let all prompts begin alike, so that a prefix cache helps");
        p.flag("--stop-early", o->keep_end, "let the model end its outputs; by default they have exactly the length");
        p.option("--rounds", o->rounds, "requests of a level: rounds x concurrency, at least 8 (default 4)", 1, 1000);
        p.option("--requests", o->requests, "requests of a level", 1, 10'000'000);
        p.option("--repeats", o->repeats, "run each level so often; the median is shown, with the spread", 1, 100);
        p.flag("--no-warm-up", o->no_warm_up, "do not send requests before a level is measured");
        p.option("--temperature", o->temperature, "sampling temperature (default 0)", 0, 10);
        p.option("--seed", o->seed, "of the prompts (default 1)", 0, int64_t{1} << 53);
        p.choice("--api", o->api, {"chat", "completions"}, "of the server (default chat)");
        p.option("--model", o->model, "name of the model (default: the first that the server lists)");
        p.option("--key-file", o->key_file, "file with the API key");
        p.option("--timeout", o->timeout, "seconds without a byte until a request counts as failed (default 600)", 0.1,
                 86400);
        p.option("--threads", o->threads, "of a model in this process", 1, 1024);
        p.option("--speculate", o->speculate,
                 std::string(kSpeculateHelp) + ". Several (off,2,auto) are measured one behind the other and compared");
        p.option("--draft-acceptance", o->acceptance,
                 "with --speculate: take each draft for right with this probability, whatever the model says. Speed is "
                 "measured as with drafts so good; the text means nothing. A list is measured as above");
        p.option("--chunk", o->chunk, "prompt tokens in one step of a model in this process (default 512)", 1, 1 << 20);
        p.choice("--device", o->device, {"auto", "cpu", "cuda"},
                 "of a model in this process; auto: a GPU if there is one");
        p.option(
            "--context", o->context,
            "of a model in this process: prompts of so many tokens (8k) that are not computed; the cache is filled "
            "with numbers instead. Decoding alone is measured, beside its floor");
        declare_model_flags(p, o->choice);
        p.option("--profile", o->profile,
                 "with --context: write a Chrome trace of some steps of each level, t.json.gz as t-b16.json.gz");
        p.option("--json", o->json, "write the results as JSON, which fathom plan --measured reads");
        p.option("--md", o->markdown, "write the results as Markdown");
        p.option("--html", o->html, "write the results as one HTML file with plots that needs no network");
        p.footer(
            "Examples:\n  fathom bench http://127.0.0.1:8000 --concurrency 1,4,16,64 --json bench.json\n"
            "  fathom bench models/fairy --input 64 --output 64\n"
            "  fathom bench --synthetic v4-flash,experts=160 --device cuda --context 8k --concurrency 1,16,64\n"
            "Exit status: 0 measured, 1 nothing was answered or bad input, 2 usage, 130 interrupted.");
        return [o, &p] { return run_bench(*o, p); };
      }};
}

}  // namespace fathom::cli

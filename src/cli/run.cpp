// fathom run: generate text in the terminal, as it comes.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "base/threads.h"
#include "base/utf8.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/model_setup.h"
#include "engine/draft_shares.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "engine/speculate_option.h"
#include "engine/text_stream.h"
#include "profile/chrome_trace.h"
#include "profile/summary.h"
#include "text/chat.h"
#include "text/json.h"

namespace fathom::cli {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double>(b - a).count();
}

struct Flags {
  std::string model, prompt, system, think, profile, ops = "cpu", device = "auto", speculate = "off";
  std::vector<std::string> stop;
  ModelFlags choice;
  bool chat = false, json = false, stats = false, ignore_eos = false, quiet = false;
  int64_t max_tokens = 256, top_k = 0, seed = 0, threads = 0, context = 16384, chunk = 512;
  double temperature = 1, top_p = 1, min_p = 0, repetition = 1, frequency = 0, presence = 0;
};

/// Text on stdout, checked: a closed pipe or a full disk ends the run with an error.
void put(std::string_view text) {
  write_all(STDOUT_FILENO, text, "standard output");
}

void check_utf8(const char* what, std::string_view text) {
  if (!is_valid_utf8(text)) fail("{} is not UTF-8: convert it first (iconv -t UTF-8)", what);
}

std::string read_prompt(const Flags& f, bool given) {
  std::string prompt = f.prompt;
  if (!given || prompt == "-") {
    if (::isatty(STDIN_FILENO)) std::fprintf(stderr, "Reading the prompt from the terminal; end it with Ctrl-D.\n");
    prompt = read_all(STDIN_FILENO, "standard input", size_t{256} << 20);
    if (prompt.empty())
      fail("standard input is empty: give a prompt there or as an argument (\"\" starts from nothing)");
  }
  check_utf8("the prompt", prompt);
  return prompt;
}

std::vector<int32_t> encode_prompt(const Flags& f, const OpenedModel& m, const std::string& prompt) {
  if (!f.chat) {
    std::vector<int32_t> ids{m.source->config().bos_id};
    m.tokenizer.encode(prompt, text::AddedTokens::recognise, ids);
    return ids;
  }
  check_utf8("--system", f.system);
  std::vector<text::Message> messages;
  if (!f.system.empty()) messages.push_back({.role = "system", .content = f.system});
  messages.push_back({.role = "user", .content = prompt});
  text::ChatOptions options;
  if (!f.think.empty()) {
    options.thinking_mode = "thinking";
    options.reasoning_effort = f.think;
  }
  return text::prompt_ids(text::encode_chat(messages, options), m.tokenizer);
}

struct ToolCall {
  std::string name, arguments;
};

/// What a run came to.
struct Outcome {
  std::string reasoning, content;
  std::vector<ToolCall> calls;     // complete ones
  std::vector<std::string> notes;  // what was wrong with the markup of others
  std::vector<int32_t> tokens;
  FinishReason finish = FinishReason::none;
  int64_t prompt_tokens = 0;
  double first_seconds = 0, decode_seconds = 0;  // request to first token; first token to last
  bool interrupted = false;
  double decode_bytes = 0;  // a token
  int64_t steps = 0;        // of the engine
  SpeculationStats drafts;

  double decode_rate() const {
    return decode_seconds > 0 ? static_cast<double>(tokens.size() - 1) / decode_seconds : 0;
  }
  int64_t prompt_steps(int64_t chunk) const { return (prompt_tokens + chunk - 1) / chunk; }
  /// Tokens of a step behind the prompt.
  double tokens_a_step(int64_t chunk) const {
    const int64_t behind = steps - prompt_steps(chunk);
    return behind > 0 ? static_cast<double>(tokens.size() - 1) / static_cast<double>(behind) : 1;
  }
  double prefill_rate() const { return first_seconds > 0 ? static_cast<double>(prompt_tokens) / first_seconds : 0; }
};

/// Puts the events of tool calls together. Calls that are not closed properly do not count.
class CallCollector {
 public:
  explicit CallCollector(Outcome& out) : out_(out) {}
  void take(const text::OutputEvent& event) {
    switch (event.kind) {
      case text::OutputKind::call_begin:
        open_.push_back({event.text, {}});
        break;
      case text::OutputKind::call_arguments:
        if (!open_.empty()) open_.back().arguments += event.text;
        break;
      case text::OutputKind::calls_done:
        out_.calls.insert(out_.calls.end(), open_.begin(), open_.end());
        open_.clear();
        break;
      case text::OutputKind::malformed:
      case text::OutputKind::cut:
        open_.clear();
        [[fallthrough]];
      default:
        if (!event.text.empty()) out_.notes.push_back(event.text);
    }
  }

 private:
  Outcome& out_;
  std::vector<ToolCall> open_;
};

/// Shows pieces of text: thinking dimmed on a terminal, set apart otherwise.
class Printer {
 public:
  explicit Printer(bool quiet) : quiet_(quiet), terminal_(is_rich_terminal(STDOUT_FILENO)) {}
  void show(const TextPiece& piece) {
    if (quiet_) return;
    if (!piece.reasoning.empty()) {
      if (!thinking_) put(terminal_ ? "\033[2m" : "<think>\n");
      thinking_ = true;
      put(piece.reasoning);
    }
    if (!piece.content.empty()) {
      leave_thinking();
      put(piece.content);
    }
  }
  void finish() {
    leave_thinking();
    if (!quiet_) put("\n");
  }

 private:
  void leave_thinking() {
    if (!thinking_) return;
    thinking_ = false;
    put(terminal_ ? "\033[0m\n\n" : "\n</think>\n\n");
  }
  bool quiet_, terminal_, thinking_ = false;
};

EngineOptions engine_options(const Flags& f, const ModelConfig& config, const ops::ComputeDevice& device,
                             int64_t prompt_tokens) {
  EngineOptions options;
  options.ops = device.shares_host_memory() ? f.ops : fast_ops(device);
  options.fast = f.choice.fast;
  options.max_sequences = 1;
  options.chunk_tokens = f.chunk;
  options.speculate = read_speculate(f.speculate);
  options.max_context = std::min(f.context, config.max_positions);  // the flag's default may be beyond a small model
  options.cache_tokens = std::min(options.max_context, prompt_tokens + f.max_tokens + 1);
  if (prompt_tokens >= options.max_context)
    fail("the prompt has {} tokens, --context allows {} (the model up to {})", prompt_tokens, options.max_context,
         config.max_positions);
  return options;
}

Outcome generate(const Flags& f, const LoadedModel& m, Engine& engine, std::vector<int32_t> prompt,
                 const SamplingParams& sampling) {
  Outcome out;
  out.prompt_tokens = static_cast<int64_t>(prompt.size());
  TextStream text(m.tokenizer, {f.chat, !f.think.empty(), f.stop});
  Printer printer(f.json);

  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling = sampling;
  request.max_tokens = f.max_tokens;
  if (!f.ignore_eos) request.stop_ids.assign(m.config().eos_ids.begin(), m.config().eos_ids.end());
  const RequestId id = engine.add(std::move(request));
  CallCollector calls(out);
  std::string error;
  const auto start = Clock::now();
  auto first = start, last = start;
  const auto keep = [&](const TextPiece& piece) {
    out.reasoning += piece.reasoning, out.content += piece.content;
    for (const auto& event : piece.calls) calls.take(event);
    printer.show(piece);
  };
  while (out.finish == FinishReason::none) {
    if (interrupted() && !out.interrupted) engine.cancel(id), out.interrupted = true;
    engine.step([&](const GenerationEvent& event) {
      if (event.token.token >= 0) {
        last = Clock::now();
        if (out.tokens.empty()) first = last;
        out.tokens.push_back(event.token.token);
        keep(text.push(event.token.token));
      }
      out.finish = event.finish, error = event.error;
      if (text.stopped() && out.finish == FinishReason::none) out.finish = FinishReason::stop;
    });
  }
  keep(text.finish());
  if (text.stopped() && out.finish == FinishReason::length) out.finish = FinishReason::stop;  // met by the last token
  printer.finish();
  out.steps = engine.stats().steps, out.drafts = engine.stats().speculation;
  if (const std::string fault = draft_fault(out.drafts); !fault.empty())
    std::fprintf(stderr, "note: %s\n", fault.c_str());
  if (out.finish == FinishReason::failed) fail("after {} tokens: {}", out.tokens.size(), error);
  out.first_seconds = seconds_between(start, first), out.decode_seconds = seconds_between(first, last);
  return out;
}

/// Bytes that the ops of a step behind the prompt had to touch, on average: weights, cache rows, activations. Over the
/// steps that the recorder had room for.
double decode_bytes(const Recorder& recorder, int64_t prompt_steps) {
  std::vector<int32_t> steps;
  recorder.for_each([&](const SpanRecord& s) {
    if (s.category == kStepCategory && s.step > prompt_steps) steps.push_back(s.step);
  });
  if (steps.empty()) return 0;
  std::sort(steps.begin(), steps.end());
  double bytes = 0;
  recorder.for_each([&](const SpanRecord& s) {
    if (s.category == kOpCategory && std::binary_search(steps.begin(), steps.end(), s.step))
      bytes += static_cast<double>(s.bytes);
  });
  return bytes / static_cast<double>(steps.size());
}

void print_report(const Flags& f, const LoadedModel& m, const Outcome& o, const Recorder& recorder) {
  if (f.quiet) return;
  std::string text = fmt::format("\n[{} prompt tokens, ", o.prompt_tokens);
  if (o.tokens.empty())
    text += "no token yet";
  else
    text += fmt::format("first token after {:.1f} ms ({:.0f} tokens/s prefill); {} tokens", o.first_seconds * 1e3,
                        o.prefill_rate(), o.tokens.size());
  if (o.tokens.size() > 1) text += fmt::format(", {:.1f} tokens/s decode", o.decode_rate());
  if (o.tokens.size() > 1 && o.decode_bytes > 0)
    text += fmt::format("; {} touched a token, {:.2f} GB/s", human_bytes(o.decode_bytes),
                        o.decode_bytes * o.decode_rate() / 1e9);
  const std::string where =
      m.device().shares_host_memory() ? fmt::format("{} threads", thread_count()) : printable(m.device().name());
  if (o.drafts.offered > 0)
    text += fmt::format("; {} of {} drafts right (by place {}), {:.2f} tokens a step, {:.1f} steps/s",
                        o.drafts.accepted, o.drafts.offered, shares_by_place(o.drafts.offered_at, o.drafts.accepted_at),
                        o.tokens_a_step(f.chunk), o.decode_rate() / o.tokens_a_step(f.chunk));
  text += fmt::format("; ended by {}; loaded {} in {:.2f} s, {}]\n", o.interrupted ? "interrupt" : name_of(o.finish),
                      human_bytes(static_cast<double>(m.source->total_bytes())), m.load_seconds, where);
  std::fputs(text.c_str(), stderr);
  for (const auto& call : o.calls)
    std::fprintf(stderr, "[call of %s: %s]\n", printable(call.name).c_str(), printable(call.arguments, 2000).c_str());
  for (const auto& note : o.notes) std::fprintf(stderr, "[%s]\n", printable(note, 200).c_str());
  if (f.stats) {
    const auto summary = profile::summarize(recorder);
    std::fprintf(stderr, "\nWhere the time went\n%s",
                 profile::format_table(summary, profile::terminal_width(STDERR_FILENO)).c_str());
  }
}

void print_json(const LoadedModel& m, const Outcome& o) {
  using text::json_quoted;
  std::string j = "{";
  j += fmt::format("\"model\": {}, \"text\": {}, \"reasoning\": {}, ", json_quoted(m.name()), json_quoted(o.content),
                   json_quoted(o.reasoning));
  if (!o.calls.empty()) {
    std::vector<std::string> calls;
    for (const auto& call : o.calls)
      calls.push_back(fmt::format("{{\"name\": {}, \"arguments\": {}}}", json_quoted(call.name), call.arguments));
    j += fmt::format("\"tool_calls\": [{}], ", fmt::join(calls, ", "));
  }
  j += fmt::format("\"finish_reason\": \"{}\", \"token_ids\": [{}], ", name_of(o.finish), fmt::join(o.tokens, ", "));
  j += fmt::format(
      "\"usage\": {{\"prompt_tokens\": {}, \"completion_tokens\": {}, \"steps\": {}, \"accepted_drafts\": {}, "
      "\"rejected_drafts\": {}, \"drafts_verified_by_place\": [{}], \"drafts_accepted_by_place\": [{}]}}, ",
      o.prompt_tokens, o.tokens.size(), o.steps, o.drafts.accepted, o.drafts.offered - o.drafts.accepted,
      fmt::join(o.drafts.offered_at, ", "), fmt::join(o.drafts.accepted_at, ", "));
  j += fmt::format(
      "\"timing\": {{\"load_seconds\": {:.4f}, \"first_token_seconds\": {:.5f}, \"decode_seconds\": {:.5f}, "
      "\"prefill_tokens_per_second\": {:.2f}, \"decode_tokens_per_second\": {:.2f}, \"decode_bytes_per_token\": "
      "{:.0f}}}}}\n",
      m.load_seconds, o.first_seconds, o.decode_seconds, o.prefill_rate(), o.decode_rate(), o.decode_bytes);
  put(j);
}

int run(Flags f, const Parser& parser) {
  // Without a folder the first text is the prompt.
  if (!f.choice.synthetic.empty() && !parser.given("PROMPT")) std::swap(f.model, f.prompt);
  if (!f.chat && (!f.system.empty() || !f.think.empty()))
    throw UsageError("--system and --think need --chat: a plain prompt has no roles");
  if (parser.given("--profile") && f.profile.empty()) throw UsageError("--profile needs the name of a file");
  if (f.threads > 0) set_thread_count(static_cast<int>(f.threads));
  // A profile that cannot be written should be known before minutes of work, not after.
  if (!f.profile.empty()) check_output_path(f.profile);
  const ModelChoice choice = choose_model(f.model, f.choice);
  const bool prompt_given = parser.given("PROMPT") || !f.prompt.empty();
  catch_interrupts();
  const auto device = device_for(f.device, parser.given("--ops"));
  OpenedModel opened = open_model(choice);
  const ModelConfig& config = opened.source->config();
  if (parser.given("--context") && f.context > config.max_positions)
    fail("--context {}: the model has positions for {} tokens (max_position_embeddings in config.json)", f.context,
         config.max_positions);
  for (const auto& field : config.unknown_fields)
    std::fprintf(stderr, "note: config.json has a field that fathom does not know: %s\n", field.c_str());
  std::vector<int32_t> prompt = encode_prompt(f, opened, read_prompt(f, prompt_given));
  const auto prompt_tokens = static_cast<int64_t>(prompt.size());
  const EngineOptions options = engine_options(f, config, *device, prompt_tokens);
  MemoryPlan plan;
  const auto model = load_planned(std::move(opened), options, device,
                                  f.quiet ? std::function<void(const std::string&)>() : say_on_stderr, plan);

  SamplingParams sampling = model->recommended;
  if (parser.given("--temperature")) sampling.temperature = f.temperature;
  if (parser.given("--top-p")) sampling.top_p = f.top_p;
  if (parser.given("--top-k")) sampling.top_k = f.top_k;
  if (parser.given("--min-p")) sampling.min_p = f.min_p;
  if (parser.given("--repetition-penalty")) sampling.repetition_penalty = f.repetition;
  sampling.frequency_penalty = f.frequency, sampling.presence_penalty = f.presence;
  sampling.seed = static_cast<uint64_t>(f.seed);

  // On a GPU a profile costs time, so there it is taken only on demand.
  Recorder recorder;
  const bool record = device->shares_host_memory() || f.stats || !f.profile.empty();
  Engine engine(model->config(), model->weights, options, record ? &recorder : nullptr);
  print_memory_use(plan, *device, f.quiet);
  Outcome out = generate(f, *model, engine, std::move(prompt), sampling);
  engine.set_recorder(nullptr);  // a GPU's kernels are handed over now
  if (record && !engine.model().trace_problem().empty() && !f.quiet)
    std::fprintf(stderr, "note: no kernel trace (%s): every operation was launched and waited for by itself\n",
                 printable(engine.model().trace_problem(), 400).c_str());
  out.decode_bytes = decode_bytes(recorder, out.prompt_steps(f.chunk)) / std::max(1.0, out.tokens_a_step(f.chunk));
  if (f.json) print_json(*model, out);
  print_report(f, *model, out, recorder);
  if (!f.profile.empty()) {
    profile::write_chrome_trace(recorder, f.profile,
                                {{"model", model->name()},
                                 {"prompt_tokens", std::to_string(out.prompt_tokens)},
                                 {"generated_tokens", std::to_string(out.tokens.size())},
                                 {"threads", std::to_string(thread_count())}});
    if (!f.quiet)
      std::fprintf(stderr, "[profile written to %s: open it in Perfetto, chrome://tracing or fathom trace]\n",
                   printable(f.profile, 400).c_str());
  }
  return out.interrupted ? 130 : 0;
}

}  // namespace

Command run_command() {
  return {
      "run", "Generate text in the terminal", [](Parser& p) -> std::function<int()> {
        auto f = std::make_shared<Flags>();
        p.positional("MODEL", f->model, "Folder of a checkpoint (config.json, tokenizer.json, *.safetensors)", false);
        p.positional("PROMPT", f->prompt, "The prompt; without it, or with -, it is read from standard input", false);
        p.flag("--chat", f->chat, "Take the prompt as a user's message and answer as the assistant");
        p.option("--system", f->system, "System message (with --chat)");
        p.choice("--think", f->think, {"low", "high", "max"}, "Think before answering, with this effort (with --chat)");
        p.option("-n,--max-tokens", f->max_tokens, "Most tokens to generate", 1, 1 << 24);
        p.option("--temperature", f->temperature, "Randomness; 0 takes the likeliest token (default: the model's)", 0,
                 100);
        p.option("--top-p", f->top_p, "Sample from the likeliest tokens that make up this probability", 1e-9, 1);
        p.option("--top-k", f->top_k, "Sample from this many likeliest tokens; 0: all", 0, 1 << 24);
        p.option("--min-p", f->min_p, "Drop tokens below this share of the likeliest one's probability", 0, 0.999999);
        p.option("--repetition-penalty", f->repetition, "Above 1: make tokens of prompt and output less likely", 1e-3,
                 100);
        p.option("--frequency-penalty", f->frequency, "Lower a token's logit by this each time it was generated", -100,
                 100);
        p.option("--presence-penalty", f->presence, "Lower a token's logit by this once it was generated", -100, 100);
        p.option("--seed", f->seed, "The same seed gives the same text", 0, INT64_MAX);
        p.option("--stop", f->stop, "End before this text; may be given several times");
        p.flag("--ignore-eos", f->ignore_eos, "Go on after the end token");
        p.flag("--json", f->json, "One JSON object on standard output instead of text as it comes");
        p.flag("--stats", f->stats, "Print where the time went, op by op");
        p.flag("-q,--quiet", f->quiet, "No report on standard error");
        p.option("--profile", f->profile, "Write a Chrome trace of every op to this file (.json or .json.gz)");
        p.option("--context", f->context, "Most tokens of prompt and answer together", 1, 1 << 24);
        p.option("--speculate", f->speculate, kSpeculateHelp);
        p.option("--chunk", f->chunk, "Prompt tokens processed in one step", 1, 1 << 16);
        p.option("--threads", f->threads, "Threads; 0: all processors", 0, 4096);
        p.choice("--ops", f->ops, {"cpu", "ref"}, "Operations: fast, or the slow exact references");
        p.choice("--device", f->device, {"auto", "cpu", "cuda"}, "Where to run; auto: on the GPU if there is one");
        declare_model_flags(p, f->choice);
        p.footer(
            "Examples:\n  fathom run models/fairy --chat \"Tell me a story about a king and a dragon.\"\n"
            "  echo \"Once upon a time\" | fathom run models/fairy --temperature 0 --stats\n"
            "Exit status: 0 done, 1 error (one line on standard error), 2 usage, 130 interrupted.");
        Parser* parser = &p;
        return [f, parser] { return run(*f, *parser); };
      }};
}

}  // namespace fathom::cli

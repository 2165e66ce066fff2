// fathom serve: the HTTP server on a checkpoint.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <random>

#include "base/error.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/threads.h"
#include "cli/commands.h"
#include "cli/device.h"
#include "cli/model_setup.h"
#include "engine/engine.h"
#include "engine/loaded_model.h"
#include "engine/speculate_option.h"
#include "serve/access.h"
#include "serve/http.h"
#include "serve/options.h"
#include "serve/server.h"

namespace fathom::cli {
namespace {

using serve::ServeOptions;

struct Flags {
  std::string model, config, synthetic;
  bool print_config = false;
  ServeOptions options;
};

void declare_option(Parser& p, const serve::OptionEntry& entry, ServeOptions& o) {
  const std::string flag = std::string("--") + entry.name;
  if (const auto* text = std::get_if<std::string ServeOptions::*>(&entry.field)) {
    if (entry.allowed.empty())
      p.option(flag, o.**text, entry.help);
    else
      p.choice(flag, o.**text, entry.allowed, entry.help);
  } else if (const auto* whole = std::get_if<int64_t ServeOptions::*>(&entry.field)) {
    p.option(flag, o.**whole, entry.help, static_cast<int64_t>(entry.low), static_cast<int64_t>(entry.high));
  } else if (const auto* number = std::get_if<double ServeOptions::*>(&entry.field)) {
    p.option(flag, o.**number, entry.help, entry.low, entry.high);
  } else if (const auto* on = std::get_if<bool ServeOptions::*>(&entry.field)) {
    p.flag(flag, o.**on, entry.help);
  } else {
    p.option(flag, o.*std::get<std::vector<std::string> ServeOptions::*>(entry.field), entry.help);
  }
}

EngineOptions engine_options(const ServeOptions& o, const ModelConfig& config, const ops::ComputeDevice& device) {
  EngineOptions e;
  e.ops = device.shares_host_memory() ? o.ops : fast_ops(device);
  e.fast = o.fast;
  e.cache_tokens = o.cache_tokens;
  e.max_sequences = static_cast<int32_t>(o.max_running);
  e.max_context = std::min({o.context > 0 ? o.context : config.max_positions, config.max_positions, o.cache_tokens});
  e.prefix_cache = !o.no_prefix_cache;
  e.speculate = read_speculate(o.speculate);
  e.chunk_tokens = o.chunk, e.chunk_beside_decode = o.chunk_beside_decode;
  return e;
}

serve::ApiModel api_model(const LoadedModel& m, const ServeOptions& o) {
  serve::ApiModel out;
  out.tokenizer = &m.tokenizer, out.config = &m.config();
  out.tokens = std::make_shared<const text::TokenTable>(m.tokenizer);
  out.names = o.names;
  if (out.names.empty()) out.names.push_back(m.name());
  out.created = std::time(nullptr);
  out.recommended = m.recommended;
  out.thinking = o.thinking;
  out.official = o.compat == "official";
  out.default_max_tokens = o.default_max_tokens;
  return out;
}

/// A full batch and a full chunk before the first client comes: what does not fit or does not run is known now, and the
/// first request is as fast as later ones.
void warm_up(Engine& engine, const ServeOptions& o, const ModelConfig& config) {
  const int64_t longest = std::min(o.chunk, engine.max_context() - 3);
  for (int64_t i = 0; i < o.max_running; ++i) {
    GenerationRequest request;
    request.prompt.assign(static_cast<size_t>(i == 0 ? std::max<int64_t>(1, longest) : 1), config.bos_id);
    request.max_tokens = 2;
    request.prefix.on = false;
    engine.add(std::move(request));
  }
  std::string error;
  while (engine.step([&](const GenerationEvent& e) {
    if (e.finish == FinishReason::failed) error = e.error;
  }))
    throw_if_interrupted("warming up");
  if (!error.empty()) fail("the first step of the engine failed: {}", error);
}

int serve_model(Flags f, const Parser& parser) {
  if (parser.given("--config"))
    serve::read_config_file(
        f.config, [&](const std::string& name) { return parser.given("--" + name); }, f.options);
  serve::check_options(f.options);
  if (f.print_config) {
    write_all(STDOUT_FILENO, serve::print_config(f.options), "standard output");
    return 0;
  }
  const ModelChoice choice =
      choose_model(f.model, {.synthetic = f.synthetic, .tensor_parallel = f.options.tensor_parallel});
  serve::read_api_keys(f.options);
  if (f.options.threads > 0) set_thread_count(static_cast<int>(f.options.threads));
  serve::check_address(f.options.host, static_cast<int>(f.options.port));
  catch_interrupts();
  const auto device = device_for(f.options.device, parser.given("--ops") || f.options.ops != "cpu");
  OpenedModel opened = open_model(choice);
  const ModelConfig& config = opened.source->config();
  for (const auto& field : config.unknown_fields)
    std::fprintf(stderr, "note: config.json has a field that fathom does not know: %s\n", field.c_str());
  const ServeOptions& o = f.options;
  if (o.context > config.max_positions)
    fail("--context {}: the model has positions for {} tokens (max_position_embeddings in config.json)", o.context,
         config.max_positions);
  const EngineOptions options = engine_options(o, config, *device);
  MemoryPlan plan;
  const auto model = load_planned(std::move(opened), options, device, say_on_stderr, plan);
  if (!serve::is_loopback(o.host) && o.api_keys.empty())
    std::fprintf(stderr, "note: everybody who can reach %s may use this server; --api-key asks for a key\n",
                 printable(o.host).c_str());
  Engine engine(model->config(), model->weights, options);
  print_memory_use(plan, *device, false);
  warm_up(engine, o, model->config());
  const auto backend = serve::engine_backend(engine, options, model->config().vocab_size);
  serve::ServerSetup setup{o, api_model(*model, o), FATHOM_VERSION, {}};
  if (o.no_prefix_cache) setup.degraded.push_back("no prefix cache (--no-prefix-cache)");
  if (model->source->synthetic()) setup.degraded.push_back("synthetic weights: the text means nothing");
  if (o.ops == "ref") setup.degraded.push_back("slow reference operations (--ops ref)");
  serve::Server server(setup, *backend);
  server.catch_signals();
  std::fprintf(stderr, "fathom serves %s at %s (context %lld tokens, %lld at once, loaded in %.2f s)\n",
               printable(setup.model.names.front()).c_str(), server.url().c_str(),
               static_cast<long long>(engine.max_context()), static_cast<long long>(o.max_running),
               model->load_seconds);
  server.run();
  return 0;
}

}  // namespace

Command serve_command() {
  return {"serve", "Serve a checkpoint over HTTP with OpenAI's API", [](Parser& p) -> std::function<int()> {
            auto f = std::make_shared<Flags>();
            p.positional("MODEL", f->model, "Folder of a checkpoint", false);
            p.option("--config", f->config, "JSON file of settings, named as these flags; flags count before it");
            p.flag("--print-config", f->print_config, "Print all settings as such a file, and end");
            p.option("--synthetic", f->synthetic,
                     "Instead of a checkpoint: a built-in model with generated weights (v4-flash,experts=160)");
            for (const serve::OptionEntry& entry : serve::option_table()) declare_option(p, entry, f->options);
            p.footer(
                "Example:\n  fathom serve models/fairy --port 8000\n"
                "  curl localhost:8000/v1/chat/completions -d '{\"messages\": [{\"role\": \"user\", \"content\": "
                "\"Hi\"}]}'\n"
                "docs/serving.md describes the API. Exit status: 0 stopped by a signal, 1 error, 2 usage.");
            Parser* parser = &p;
            return [f, parser] { return serve_model(*f, *parser); };
          }};
}

}  // namespace fathom::cli

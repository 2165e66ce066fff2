#include "serve/metrics.h"

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace fathom::serve {
namespace {

using prometheus::Histogram;

const Histogram::BucketBoundaries kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                                 1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
const Histogram::BucketBoundaries kNextToken = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
                                                0.4,   0.5,    0.75,  1,    2.5,   5,    10,    20,  40,   80};
const Histogram::BucketBoundaries kWhole = {0.01, 0.1, 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,
                                            15,   20,  30,  40,  50,  60, 120, 240, 480, 960, 1920};
const Histogram::BucketBoundaries kTokens = {1,   2,   5,   10,  20,  50,  100, 200, 500, 1e3,
                                             2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 2e5, 5e5, 1e6};

const Histogram::BucketBoundaries kChoices = {1, 2, 5, 10, 20};

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

/// Resident memory of this process, bytes.
double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const std::string& m) : model(m) {}

  prometheus::Registry registry;
  std::string model;
  Engine::Stats before;

  prometheus::Family<prometheus::Counter>& counter_family(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  prometheus::Counter& counter(const char* name, const char* help) {
    return counter_family(name, help).Add({{"model_name", model}});
  }
  prometheus::Gauge& gauge(const char* name, const char* help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry).Add({{"model_name", model}});
  }
  Histogram& histogram(const char* name, const char* help, const Histogram::BucketBoundaries& buckets) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry).Add({{"model_name", model}}, buckets);
  }

  Histogram& first = histogram("vllm:time_to_first_token_seconds", "From the request to its first token", kFirstToken);
  Histogram& next = histogram("vllm:inter_token_latency_seconds", "Between tokens of one output", kNextToken);
  Histogram& whole = histogram("vllm:e2e_request_latency_seconds", "From the request to its last token", kWhole);
  Histogram& prompt = histogram("vllm:request_prompt_tokens", "Prompt tokens of a request", kTokens);
  Histogram& generated = histogram("vllm:request_generation_tokens", "Generated tokens of a request", kTokens);
  Histogram& queued = histogram("vllm:request_queue_time_seconds", "From the request to its start", kWhole);
  Histogram& prefill = histogram("vllm:request_prefill_time_seconds", "From its start to the first token", kWhole);
  Histogram& decode = histogram("vllm:request_decode_time_seconds", "From the first token to the last", kWhole);
  Histogram& inference = histogram("vllm:request_inference_time_seconds", "From its start to the last token", kWhole);
  Histogram& choices = histogram("vllm:request_params_n", "Choices asked for", kChoices);
  Histogram& most = histogram("vllm:request_params_max_tokens", "Most tokens of an output", kTokens);
  prometheus::Family<prometheus::Counter>& finished =
      counter_family("vllm:request_success_total", "Requests that ended, by reason");
  prometheus::Counter& prompt_total = counter("vllm:prompt_tokens_total", "Prompt tokens processed");
  prometheus::Counter& generated_total = counter("vllm:generation_tokens_total", "Tokens generated");
  prometheus::Gauge& running = gauge("vllm:num_requests_running", "Outputs being generated");
  prometheus::Gauge& waiting = gauge("vllm:num_requests_waiting", "Outputs that wait for their turn");
  prometheus::Gauge& waiting_clients =
      gauge("fathom_clients_waiting", "Clients that wait for the turn of an output that has not begun");
  prometheus::Gauge& cache =
      gauge("vllm:kv_cache_usage_perc", "Share of the cache pages that running outputs use, 0 to 1");
  prometheus::Gauge& cache_bytes = gauge("fathom_cache_bytes", "Memory of the cache");
  prometheus::Gauge& cache_tokens = gauge("fathom_cache_tokens", "Tokens that the cache holds");
  prometheus::Gauge& context = gauge("fathom_context_tokens", "Most tokens of one request");
  prometheus::Counter& prefix_queries =
      counter("vllm:prefix_cache_queries_total", "Tokens that were looked for in the prefix cache");
  prometheus::Counter& prefix_hits = counter("vllm:prefix_cache_hits_total", "Tokens that were found in it");
  prometheus::Counter& preemptions = counter("vllm:num_preemptions_total", "Times that an output gave way to others");
  prometheus::Counter& recomputed =
      counter("fathom_recomputed_tokens_total", "Tokens computed again behind a preemption");
  prometheus::Counter& proposals = counter("vllm:spec_decode_num_drafts_total", "Proposals of drafts");
  prometheus::Counter& drafts = counter("vllm:spec_decode_num_draft_tokens_total", "Drafted tokens that were verified");
  prometheus::Counter& right = counter("vllm:spec_decode_num_accepted_tokens_total", "Drafted tokens that were right");
  prometheus::Family<prometheus::Counter>& right_at =
      counter_family("vllm:spec_decode_num_accepted_tokens_per_pos_total", "The same by place in the proposal");
  prometheus::Family<prometheus::Counter>& verified_at = counter_family(
      "fathom_draft_tokens_per_pos_total", "Drafted tokens that were verified, by place in the proposal");
  prometheus::Counter& draft_faults =
      counter("fathom_draft_faults_total", "Proposals that failed, and drafted ids outside the vocabulary");
  prometheus::Counter& steps = counter("fathom_engine_steps_total", "Steps of the engine");
  prometheus::Counter& failures = counter("fathom_engine_failures_total", "Steps that failed");
  prometheus::Counter& refusals = counter("fathom_requests_refused_total", "Requests refused for lack of room (429)");
  prometheus::Family<prometheus::Counter>& answers =
      counter_family("fathom_http_requests_total", "HTTP requests answered, by route and status");
  prometheus::Gauge& connections = gauge("fathom_http_connections", "Open connections");
  prometheus::Counter& accepted = counter("fathom_http_connections_total", "Connections so far");
  prometheus::Counter& timed_out = counter("fathom_http_timeouts_total", "Requests and readers that were too slow");
  prometheus::Counter& bad = counter("fathom_http_bad_requests_total", "Requests that were not good HTTP");
  prometheus::Gauge& memory = gauge("process_resident_memory_bytes", "Resident memory");
};

Metrics::Metrics(const std::string& model) : impl_(std::make_unique<Impl>(model)) {}
Metrics::~Metrics() = default;

void Metrics::first_token(double s) {
  impl_->first.Observe(s);
}

void Metrics::next_token(double s) {
  impl_->next.Observe(s);
}

void Metrics::ended(const GenerationTimes& t) {
  impl_->finished.Add({{"model_name", impl_->model}, {"finished_reason", t.finish}}).Increment();
  impl_->whole.Observe(seconds(t.done - t.submitted));
  impl_->prompt.Observe(static_cast<double>(t.usage.prompt_tokens));
  impl_->generated.Observe(static_cast<double>(t.usage.completion_tokens));
  impl_->choices.Observe(static_cast<double>(t.choices));
  impl_->most.Observe(static_cast<double>(t.max_tokens));
  if (t.started == Clock::time_point{}) return;
  impl_->queued.Observe(seconds(t.started - t.submitted));
  impl_->prefill.Observe(seconds(t.first_token - t.started));
  impl_->decode.Observe(seconds(t.last_token - t.first_token));
  impl_->inference.Observe(seconds(t.last_token - t.started));
}

void Metrics::answered(const std::string& path, int status) {
  impl_->answers.Add({{"path", path}, {"status", std::to_string(status)}}).Increment();
}

void Metrics::start_from(const Engine::Stats& stats) {
  impl_->before = stats;
}

void Metrics::refused() {
  impl_->refusals.Increment();
}

namespace {

/// Counters that are kept elsewhere: brought up to `value`.
void raise(prometheus::Counter& counter, int64_t value) {
  const double more = static_cast<double>(value) - counter.Value();
  if (more > 0) counter.Increment(more);
}

/// Of the pages, those that running requests need. What only the prefix cache holds is given up when it is wanted.
double used_share(const Cache::Usage& u) {
  const auto share = [](int32_t total, int32_t free) { return total ? 1.0 - double(free) / total : 0.0; };
  const double window = share(u.window_total, u.window_free + u.window_cached);
  const double entries = share(u.entry_total, u.entry_free + u.entry_cached);
  return std::max(window, entries);
}

}  // namespace

std::string Metrics::text(const Service::Snapshot& service, const Backend::Limits& limits,
                          const HttpServer::Counts& http) {
  Impl& m = *impl_;
  m.running.Set(static_cast<double>(service.engine.running));
  m.waiting.Set(static_cast<double>(std::max<int64_t>(0, service.live - static_cast<int64_t>(service.engine.running))));
  m.waiting_clients.Set(static_cast<double>(service.engine.waiting_clients));
  m.cache.Set(used_share(service.engine.cache));
  m.cache_bytes.Set(static_cast<double>(service.engine.cache.bytes));
  m.cache_tokens.Set(static_cast<double>(limits.cache_tokens));
  m.context.Set(static_cast<double>(limits.max_context));
  raise(m.prompt_total, service.engine.prompt_tokens - m.before.prompt_tokens);
  raise(m.generated_total, service.engine.generated_tokens - m.before.generated_tokens);
  raise(m.steps, service.engine.steps - m.before.steps);
  raise(m.prefix_queries, service.engine.prefix.opened_tokens - m.before.prefix.opened_tokens);
  raise(m.prefix_hits, service.engine.prefix.hit_tokens - m.before.prefix.hit_tokens);
  raise(m.preemptions, service.engine.preemptions - m.before.preemptions);
  raise(m.recomputed, service.engine.recomputed_tokens - m.before.recomputed_tokens);
  const SpeculationStats &drafts = service.engine.speculation, &before = m.before.speculation;
  raise(m.proposals, drafts.proposals - before.proposals);
  raise(m.drafts, drafts.offered - before.offered);
  raise(m.right, drafts.accepted - before.accepted);
  for (size_t i = 0; i < drafts.accepted_at.size(); ++i) {
    const int64_t earlier = i < before.accepted_at.size() ? before.accepted_at[i] : 0;
    raise(m.right_at.Add({{"model_name", m.model}, {"position", std::to_string(i)}}), drafts.accepted_at[i] - earlier);
    const int64_t verified = i < before.offered_at.size() ? before.offered_at[i] : 0;
    raise(m.verified_at.Add({{"model_name", m.model}, {"position", std::to_string(i)}}),
          drafts.offered_at[i] - verified);
  }
  raise(m.draft_faults, drafts.failed + drafts.refused - before.failed - before.refused);
  raise(m.failures, service.failures);
  m.connections.Set(static_cast<double>(http.connections));
  raise(m.accepted, http.accepted);
  raise(m.timed_out, http.timed_out);
  raise(m.bad, http.bad_requests);
  m.memory.Set(resident_bytes());
  return prometheus::TextSerializer().Serialize(m.registry.Collect());
}

}  // namespace fathom::serve

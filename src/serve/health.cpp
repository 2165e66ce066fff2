#include "serve/health.h"

#include <fmt/format.h>

#include <iterator>

#include "serve/openai_json.h"

namespace fathom::serve {
namespace {

constexpr auto kFresh = std::chrono::seconds(1);  // a token this young is proof enough

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

}  // namespace

struct Health::Impl : std::enable_shared_from_this<Health::Impl> {
  Impl(const HealthOptions& o, HttpServer& h) : options(o), http(h) {}

  void ask(Api& api, const std::shared_ptr<Exchange>& exchange);
  void probe(Api& api);
  void answer_all(Api& api, const std::string& failure, double took);
  void answer(Api& api, Exchange& exchange, const std::string& failure, double took) const;

  const HealthOptions options;
  HttpServer& http;
  std::vector<std::shared_ptr<Exchange>> waiting;
  int64_t probe_number = 0;  // of the probe that is being decoded; odd while one is
};

namespace {

/// One token for the question.
struct Probe final : JobListener {
  explicit Probe(std::function<void(const std::string&)> d) : done(std::move(d)) {}
  void on_event(const JobEvent& event) override {
    if (event.kind == JobEvent::Kind::token) got = true;
    if (event.kind == JobEvent::Kind::end)
      done(got ? "" : event.error.empty() ? std::string("the engine gave no token") : event.error);
  }
  std::function<void(const std::string&)> done;
  bool got = false;
};

}  // namespace

void Health::Impl::answer(Api& api, Exchange& exchange, const std::string& failure, double took) const {
  const auto s = api.service().snapshot();
  std::string out = fmt::format(R"({{"status":"{}","version":"{}","model":)",
                                failure.empty() ? "ok"
                                : s.draining    ? "draining"
                                                : "failed",
                                options.version);
  append_quoted(out, api.model().names.front());
  fmt::format_to(std::back_inserter(out), R"(,"token_seconds":{:.4f},"running":{},"waiting":{},"engine_failures":{})",
                 took, s.engine.running, std::max<int64_t>(0, s.live - static_cast<int64_t>(s.engine.running)),
                 s.failures);
  for (const auto& [name, text] :
       {std::pair<const char*, const std::string&>{"error", failure}, {"last_failure", s.last_failure}}) {
    if (text.empty()) continue;
    fmt::format_to(std::back_inserter(out), R"(,"{}":)", name);
    append_quoted(out, text);
  }
  auto degraded = options.degraded;
  if (const std::string fault = draft_fault(s.engine.speculation); !fault.empty()) degraded.push_back(fault);
  out += R"(,"degraded":[)";
  for (size_t i = 0; i < degraded.size(); ++i) {
    if (i) out += ',';
    append_quoted(out, degraded[i]);
  }
  exchange.reply(failure.empty() ? 200 : 503, "application/json", out + "]}\n");
}

void Health::Impl::answer_all(Api& api, const std::string& failure, double took) {
  ++probe_number;
  for (const auto& exchange : std::exchange(waiting, {})) answer(api, *exchange, failure, took);
}

void Health::Impl::ask(Api& api, const std::shared_ptr<Exchange>& exchange) {
  const auto s = api.service().snapshot();
  if (s.draining) return answer(api, *exchange, "the server is shutting down", 0);
  const auto age = Clock::now() - s.last_token;
  if (age < kFresh) return answer(api, *exchange, "", seconds(age));
  waiting.push_back(exchange);
  if (waiting.size() == 1) probe(api);
}

void Health::Impl::probe(Api& api) {
  const int64_t number = ++probe_number;
  const auto start = Clock::now();
  Job job;
  job.request.prompt = {api.model().config->bos_id};
  job.request.sampling.temperature = 0;
  job.request.max_tokens = 1;
  job.deadline = start + options.deadline;
  job.listener = std::make_shared<Probe>([self = shared_from_this(), &api, number, start](const std::string& failure) {
    if (self->probe_number == number) self->answer_all(api, failure, seconds(Clock::now() - start));
  });
  const auto result = api.service().submit({std::move(job)});
  if (const auto* refusal = std::get_if<Refusal>(&result)) {
    // Full of work: that is well as long as the work goes on.
    const auto age = start - api.service().snapshot().last_token;
    return answer_all(api, age < options.deadline ? "" : refusal->message, seconds(age));
  }
  // The engine may hang inside a step, and then no event ever comes.
  http.after(options.deadline + std::chrono::milliseconds(100), [self = shared_from_this(), &api, number, start] {
    if (self->probe_number != number) return;
    const bool progress = api.service().snapshot().last_token > start;  // others got theirs, the probe still waits
    self->answer_all(api, progress ? "" : fmt::format("no token in {:.1f} s", seconds(self->options.deadline)),
                     seconds(Clock::now() - start));
  });
}

Health::Health(const HealthOptions& options, HttpServer& http) : impl_(std::make_shared<Impl>(options, http)) {}

std::vector<RouteEntry> Health::routes() {
  const Route ask = [impl = impl_](Api& api, const std::shared_ptr<Exchange>& e) { impl->ask(api, e); };
  const Route ping = [](Api&, const std::shared_ptr<Exchange>& e) {
    e->reply(200, "text/plain; charset=utf-8", "the process runs\n");
  };
  const Route version = [impl = impl_](Api&, const std::shared_ptr<Exchange>& e) {
    e->reply(200, "application/json", fmt::format("{{\"version\":\"{}\"}}\n", impl->options.version));
  };
  return {{"GET", "/health", ask, "decodes a token"},
          {"GET", "/health_generate", ask, "the same"},
          {"GET", "/ping", ping, "the process runs; says nothing of the engine"},
          {"GET", "/version", version, "version of fathom"}};
}

}  // namespace fathom::serve

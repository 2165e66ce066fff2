#include "serve/server.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <unordered_map>

#include "engine/philox.h"
#include "serve/access.h"
#include "serve/health.h"
#include "serve/log.h"
#include "serve/metrics.h"
#include "serve/profile_control.h"
#include "serve/web_page.h"
#include "serve/worker.h"

namespace fathom::serve {
namespace {

constexpr auto kDrainCheck = std::chrono::milliseconds(50);
constexpr auto kLastWords = std::chrono::seconds(2);   // for the error events of requests that were cut off
constexpr auto kKeepAlive = std::chrono::seconds(10);  // silence after which a stream gets a comment
constexpr auto kKeepAliveCheck = std::chrono::seconds(1);

constexpr size_t kLargeBody = 256 << 10;  // bytes; read by a worker of its own

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

HttpOptions http_options(const ServeOptions& o) {
  HttpOptions h;
  h.host = o.host, h.port = static_cast<int>(o.port);
  h.max_connections = o.max_connections;
  h.max_body_bytes = o.max_body_mib << 20;
  h.max_bodies_bytes = std::max(h.max_bodies_bytes, 2 * h.max_body_bytes);
  h.write_timeout = milliseconds(o.write_timeout);
  return h;
}

/// A client's request id, if it is short and harmless.
std::string usable_id(std::string_view given) {
  if (given.empty() || given.size() > 128) return "";
  for (const char c : given)
    if (static_cast<unsigned char>(c) <= 0x20 || static_cast<unsigned char>(c) >= 0x7F) return "";
  return std::string(given);
}

std::string milliseconds_text(Clock::duration d) {
  return fmt::format("{:.1f}", std::chrono::duration<double, std::milli>(d).count());
}

}  // namespace

struct Server::Impl final : Api {
  Impl(const ServerSetup& setup, Backend& backend);
  ~Impl() override {
    worker.stop();  // its tasks use the engine
    large_worker.stop();
    engine.reset();  // its thread hands out events
  }

  // Api
  const ApiModel& model() const override { return setup.model; }
  Service& service() override { return *engine; }
  void prepare(const std::shared_ptr<Exchange>& exchange, const ErrorWriter& writer,
               std::function<std::function<void()>()> work) override;
  void on_worker(std::function<void()> task) override;
  void start(const std::shared_ptr<Exchange>& exchange, TextRequest request,
             std::shared_ptr<TextListener> listener) override;
  void fail(Exchange& exchange, const ErrorWriter& writer, const ApiError& error) override;
  std::string new_id() override;
  uint64_t random() override;

  void add_routes(std::vector<RouteEntry> more) { routes.insert(routes.end(), more.begin(), more.end()); }
  void handle(const std::shared_ptr<Exchange>& exchange);
  bool admitted(Exchange& exchange);
  const RouteEntry* find_route(Exchange& exchange);
  void closed(const Exchange* exchange, bool complete);
  void keep_streams_alive();
  void drain();
  void wait_for_end(Clock::time_point until);
  void cut_off();
  ApiError as_api_error(const std::exception& e);

  /// What is known of a request while it is answered.
  struct Tracked {
    std::string id, route;
    Clock::time_point begin;
    std::shared_ptr<Exchange> exchange;
    std::shared_ptr<Generation> generation;
    uint64_t bytes = 0;  // at the last check of keep_streams_alive()
    Clock::time_point quiet_since;
  };

  ServerSetup setup;
  Log log;
  Access access;
  Metrics metrics;
  std::vector<RouteEntry> routes;
  std::unordered_map<const Exchange*, Tracked> tracked;
  uint64_t secret, ids = 0;
  int64_t failures_logged = 0;
  bool draining = false;
  HttpServer http;
  ProfileControl profile;
  Health health;
  std::unique_ptr<Service> engine;
  Worker worker, large_worker;
};

Server::Impl::Impl(const ServerSetup& s, Backend& backend)
    : setup(s),
      log(log_level(s.options.log_level), s.options.log_format),
      access(s.options.api_keys, s.options.cors_origins, is_loopback(s.options.host)),
      metrics(s.model.names.front()),
      secret((uint64_t{std::random_device{}()} << 32) ^ std::random_device{}()),
      http(
          [&] {
            HttpOptions h = http_options(s.options);
            h.error_body = [](int status, std::string_view message, std::string_view path) {
              const ApiError error(status, status == 503 ? "server_error" : "invalid_request_error",
                                   std::string(message));
              return is_messages_path(path) ? messages_error(error) : openai_error(error);
            };
            h.on_error = [this](const std::string& what) { log.error("internal_error", {{"what", what}}); };
            return h;
          }(),
          [this](const std::shared_ptr<Exchange>& exchange) { handle(exchange); }),
      profile(
          {s.options.profile_dir, is_loopback(s.options.host) || !s.options.api_keys.empty(), s.model.names.front()}),
      health({milliseconds(s.options.health_timeout), s.degraded, s.version}, http),
      engine(std::make_unique<Service>(backend, ServiceOptions{s.options.max_waiting},
                                       [this](std::function<void()> call) { http.post(std::move(call)); })) {
  setup.model.timeout = milliseconds(s.options.request_timeout);
  setup.model.max_choices =
      std::min(setup.model.max_choices, backend.limits().max_running + std::max<int64_t>(0, s.options.max_waiting));
  metrics.start_from(engine->snapshot().engine);
  add_routes(chat_routes());
  add_routes(completions_routes());
  add_routes(model_routes());
  add_routes(messages_routes());
  add_routes(responses_routes());
  add_routes(health.routes());
  add_routes(profile.routes());
  add_routes(web_routes());
  add_routes({{"GET", "/metrics",
               [this](Api&, const std::shared_ptr<Exchange>& exchange) {
                 exchange->reply(200, "text/plain; version=0.0.4; charset=utf-8",
                                 metrics.text(engine->snapshot(), engine->limits(), http.counts()));
               },
               "Prometheus metrics"}});
}

uint64_t Server::Impl::random() {
  const auto r = philox(secret, ++ids, 0);
  return uint64_t{r[0]} << 31 | r[1] >> 1;  // 63 bits: a client can send it back as a seed
}

std::string Server::Impl::new_id() {
  const auto r = philox(secret, ++ids, 1);
  return fmt::format("{:08x}{:08x}{:08x}", r[0], r[1], r[2]);
}

ApiError Server::Impl::as_api_error(const std::exception& e) {
  if (const auto* api = dynamic_cast<const ApiError*>(&e)) return *api;
  if (dynamic_cast<const Error*>(&e)) return ApiError(400, "invalid_request_error", e.what());
  if (dynamic_cast<const std::bad_alloc*>(&e)) return ApiError(503, "server_error", "out of memory", "", "", 5);
  log.error("internal_error", {{"what", e.what()}});
  return ApiError(500, "server_error", "internal error, please report it");
}

void Server::Impl::fail(Exchange& exchange, const ErrorWriter& writer, const ApiError& error) {
  if (error.retry_after_s > 0) exchange.add_header("retry-after", std::to_string(error.retry_after_s));
  if (error.status == 401) exchange.add_header("www-authenticate", "Bearer");
  exchange.reply(error.status, "application/json", writer(error));
}

void Server::Impl::prepare(const std::shared_ptr<Exchange>& exchange, const ErrorWriter& writer,
                           std::function<std::function<void()>()> work) {
  // Megabytes of text must not stand before short questions.
  Worker& chosen = exchange->request().body.size() > kLargeBody ? large_worker : worker;
  chosen.run_later([this, exchange, writer, work = std::move(work)] {
    const auto failed = [&](const std::exception& e) {
      http.post([this, exchange, writer, error = as_api_error(e)] { fail(*exchange, writer, error); });
    };
    try {
      http.post([this, exchange, writer, next = work()] {
        exchange->release_body();
        if (!exchange->open()) return;
        try {
          next();
        } catch (const std::exception& e) {
          fail(*exchange, writer, as_api_error(e));
        }
      });
    } catch (const std::exception& e) {
      failed(e);
    }
  });
}

void Server::Impl::on_worker(std::function<void()> task) {
  worker.run_later([this, task = std::move(task)] {
    try {
      task();
    } catch (const std::exception& e) {
      log.error("worker", {{"what", e.what()}});
    }
  });
}

void Server::Impl::start(const std::shared_ptr<Exchange>& exchange, TextRequest request,
                         std::shared_ptr<TextListener> listener) {
  const auto at = tracked.find(exchange.get());
  if (at == tracked.end()) return;  // the client has gone
  request.id = at->second.id;
  request.client = access.client_of(exchange->request(), request.client);
  request.on_wait = [weak = std::weak_ptr(exchange)](int64_t before, double seconds) {
    const auto waiting = weak.lock();
    if (!waiting || waiting->begun()) return;
    waiting->add_header("x-fathom-queue", std::to_string(before));
    if (seconds > 0) waiting->add_header("x-fathom-wait", std::to_string(static_cast<int64_t>(std::ceil(seconds))));
  };
  auto result = start_generation(*engine, *setup.model.tokenizer, std::move(request), std::move(listener), &metrics);
  if (const auto* refusal = std::get_if<Refusal>(&result)) {
    if (refusal->kind == Refusal::Kind::draining)
      throw ApiError(503, "server_error", refusal->message, "", "", refusal->retry_after_s);
    metrics.refused();
    throw ApiError(429, "rate_limit_error", refusal->message, "", "rate_limit_exceeded", refusal->retry_after_s);
  }
  at->second.generation = std::get<std::shared_ptr<Generation>>(result);
  exchange->on_backlog([generation = at->second.generation](bool full) { generation->hold(full); });
}

void Server::Impl::handle(const std::shared_ptr<Exchange>& exchange) {
  const HttpRequest& request = exchange->request();
  Tracked& t = tracked[exchange.get()];
  t.id = usable_id(request.header("x-request-id"));
  if (t.id.empty()) t.id = "req-" + new_id();
  t.begin = t.quiet_since = Clock::now();
  t.exchange = exchange;
  t.route = "other";
  exchange->add_header("x-request-id", t.id);
  const bool anthropic = is_messages_path(request.path);
  if (anthropic) exchange->add_header("request-id", t.id);
  exchange->on_close([this, key = exchange.get()](bool complete) { closed(key, complete); });
  try {
    if (!admitted(*exchange)) return;
    const RouteEntry* route = find_route(*exchange);
    if (const auto encoding = request.header("content-encoding"); !encoding.empty() && encoding != "identity")
      throw ApiError(
          415, "invalid_request_error",
          fmt::format("bodies in content-encoding {} are not supported: send plain JSON", printable(encoding)));
    t.route = route->path;
    route->route(*this, exchange);
  } catch (const std::exception& e) {
    fail(*exchange, anthropic ? messages_error : openai_error, as_api_error(e));
  }
}

/// Origins, preflight requests and keys. False when the request has been answered.
bool Server::Impl::admitted(Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  const Access::Origin origin = access.origin_of(request);
  if (origin == Access::Origin::refused && request.method != "GET" && request.method != "HEAD")
    throw ApiError(
        403, "permission_error",
        fmt::format("pages of {} may not use this server (--cors-origin)", printable(request.header("origin"))));
  if (origin == Access::Origin::allowed) {
    exchange.add_header("access-control-allow-origin", request.header("origin"));
    exchange.add_header("access-control-expose-headers",
                        "x-request-id, x-fathom-warning, x-fathom-queue, x-fathom-wait, retry-after");
    exchange.add_header("vary", "origin");
  }
  if (request.method == "OPTIONS") {
    if (origin == Access::Origin::allowed) {
      exchange.add_header("access-control-allow-methods", "GET, POST, OPTIONS");
      const auto wanted = request.header("access-control-request-headers");
      exchange.add_header("access-control-allow-headers", wanted.empty() ? "authorization, content-type" : wanted);
      exchange.add_header("access-control-max-age", "600");
    }
    exchange.reply(204, "", "");
    return false;
  }
  constexpr std::string_view kOpen[] = {"/health", "/health_generate", "/ping", "/version"};
  const bool open =
      std::find(std::begin(kOpen), std::end(kOpen), request.path) != std::end(kOpen) || is_web_path(request.path);
  if (!open && !access.key_ok(request))
    throw ApiError(401, "authentication_error", "this server needs an API key: send authorization: Bearer KEY", "",
                   "invalid_api_key");
  return true;
}

const RouteEntry* Server::Impl::find_route(Exchange& exchange) {
  const HttpRequest& request = exchange.request();
  const std::string method = request.method == "HEAD" ? "GET" : request.method;
  std::vector<std::string> methods;
  for (const RouteEntry& entry : routes) {
    const std::string_view path = entry.path;
    const bool match =
        path.ends_with('*') ? request.path.starts_with(path.substr(0, path.size() - 1)) : request.path == path;
    if (match && method == entry.method) return &entry;
    if (match) methods.push_back(entry.method);
  }
  if (methods.empty())
    throw ApiError(404, "invalid_request_error", fmt::format("there is no {} here", printable(request.path)), "",
                   "not_found");
  exchange.add_header("allow", fmt::format("{}", fmt::join(methods, ", ")));
  throw ApiError(
      405, "invalid_request_error",
      fmt::format("{} takes {}, not {}", printable(request.path), fmt::join(methods, ", "), printable(request.method)));
}

void Server::Impl::closed(const Exchange* key, bool complete) {
  const auto at = tracked.find(key);
  if (at == tracked.end()) return;
  const Tracked t = std::move(at->second);
  tracked.erase(at);
  const Exchange& exchange = *t.exchange;
  if (t.generation && !complete) t.generation->cancel();
  metrics.answered(t.route, complete ? exchange.status() : 499);
  const bool quiet = t.route == "/health" || t.route == "/metrics" || t.route == "/ping";
  Log::Fields fields = {{"id", t.id},
                        {"peer", exchange.request().peer},
                        {"method", exchange.request().method},
                        {"path", exchange.request().path},
                        {"status", std::to_string(complete ? exchange.status() : 499)},
                        {"ms", milliseconds_text(Clock::now() - t.begin)},
                        {"bytes", std::to_string(exchange.bytes_sent())}};
  if (t.generation) {
    const GenerationTimes& times = t.generation->times();
    fields.emplace_back("finish", times.finish);
    fields.emplace_back("prompt_tokens", std::to_string(times.usage.prompt_tokens));
    fields.emplace_back("completion_tokens", std::to_string(times.usage.completion_tokens));
    if (times.first_token != Clock::time_point{})
      fields.emplace_back("ttft_ms", milliseconds_text(times.first_token - times.submitted));
  }
  log.write(quiet ? Log::Level::debug : Log::Level::info, "request", fields);
}

/// Proxies and clients give up on connections that stay silent, as one does while its request waits or its prompt is
/// read.
void Server::Impl::keep_streams_alive() {
  const auto now = Clock::now();
  if (const auto s = engine->snapshot(); s.failures > failures_logged) {
    failures_logged = s.failures;
    log.error("engine_failed", {{"times", std::to_string(s.failures)}, {"what", s.last_failure}});
  }
  for (auto& [key, t] : tracked) {
    if (!t.generation || !t.exchange->begun()) continue;
    if (t.exchange->bytes_sent() != t.bytes)
      t.bytes = t.exchange->bytes_sent(), t.quiet_since = now;
    else if (now - t.quiet_since > kKeepAlive && t.exchange->backlog() == 0)
      t.exchange->write(": still here\n\n");
  }
  http.after(kKeepAliveCheck, [this] { keep_streams_alive(); });
}

void Server::Impl::drain() {
  if (std::exchange(draining, true)) return cut_off();
  log.info("draining", {{"running", std::to_string(tracked.size())}});
  engine->drain();
  http.close_when_answered();
  wait_for_end(Clock::now() + milliseconds(setup.options.drain_timeout));
}

/// Stops when nothing is being answered; at `until` what is left is told so.
void Server::Impl::wait_for_end(Clock::time_point until) {
  if (http.counts().exchanges == 0) return http.stop();
  if (Clock::now() >= until) {
    cut_off();
    until = Clock::time_point::max();
  }
  http.after(kDrainCheck, [this, until] { wait_for_end(until); });
}

void Server::Impl::cut_off() {
  engine->end_all(EndReason::shutdown, "the server is shutting down");
  http.after(kLastWords, [this] { http.stop(); });
}

Server::Server(const ServerSetup& setup, Backend& backend) : impl_(std::make_unique<Impl>(setup, backend)) {}
Server::~Server() = default;

std::string Server::url() const {
  return impl_->http.url();
}
int Server::port() const {
  return impl_->http.port();
}
Service& Server::service() {
  return *impl_->engine;
}

void Server::run() {
  impl_->log.info("listening", {{"url", url()}, {"model", impl_->setup.model.names.front()}});
  impl_->keep_streams_alive();
  impl_->http.run();
  impl_->log.info("stopped", {});
}

void Server::catch_signals() {
  impl_->http.on_signal([this](int count) {
    if (count > 2) ::_exit(1);
    impl_->drain();
  });
}

void Server::shut_down() {
  impl_->http.post([this] { impl_->drain(); });
}

}  // namespace fathom::serve

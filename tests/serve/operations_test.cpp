// Running the server: who may ask, load, health, metrics, profiles, leaving clients, ending.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "formats/gzip.h"
#include "serve/access.h"
#include "serve/running_server.h"

namespace fathom::serve::test {
namespace {

using namespace std::chrono_literals;

constexpr const char* kChat = "/v1/chat/completions";

std::string chat(const std::string& more = "") {
  return R"({"messages":[{"role":"user","content":"Tell me a story"}])" + (more.empty() ? "" : "," + more) + "}";
}

template <typename Condition>
void wait_until(Condition condition) {
  for (int i = 0; i < 4000 && !condition(); ++i) std::this_thread::sleep_for(5ms);
  EXPECT_TRUE(condition());
}

/// The value of a metric; labels that do not matter are left out of `name`.
double metric(int port, const std::string& name) {
  const std::string text = get(port, "/metrics").body;
  double sum = -1;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    if (line.starts_with(name) && (line[name.size()] == '{' || line[name.size()] == ' '))
      sum = std::max(sum, 0.0) + std::stod(line.substr(line.rfind(' ')));
    at = end + 1;
  }
  EXPECT_GE(sum, 0) << name << " is not among the metrics";
  return sum;
}

TEST(Access, KeysAreAskedForEverywhereButForHealth) {
  ServeOptions o = quiet_options();
  o.api_keys = {"first-key", "second"};
  RunningServer server(o);
  EXPECT_EQ(post(server.port(), kChat, chat()).status, 401);
  EXPECT_EQ(at(post(server.port(), kChat, chat()).body, "error.code"), "invalid_api_key");
  EXPECT_EQ(get(server.port(), "/v1/models", "authorization: Bearer wrong\r\n").status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", "authorization: Bearer first-ke\r\n").status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", "authorization: Bearer first-keyfirst-key\r\n").status, 401);
  EXPECT_EQ(get(server.port(), "/metrics").status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", "authorization: Bearer first-key\r\n").status, 200);
  EXPECT_EQ(get(server.port(), "/v1/models", "authorization: bearer second\r\n").status, 200);
  EXPECT_EQ(get(server.port(), "/v1/models", "x-api-key: second\r\n").status, 200);
  EXPECT_EQ(get(server.port(), "/health").status, 200);
}

TEST(Access, SecretsAreEqualOnlyWhenAllOfThemIs) {
  EXPECT_TRUE(same_secret("abc", "abc"));
  for (const char* other : {"", "ab", "abd", "abcabc", "abcd", "xbc"}) EXPECT_FALSE(same_secret(other, "abc")) << other;
  EXPECT_FALSE(same_secret("abc", ""));
}

TEST(Access, PagesOfOtherOriginsAreRefusedUnlessNamed) {
  ServeOptions o = quiet_options();
  o.cors_origins = {"https://good.example"};
  RunningServer server(o);
  const auto from = [&](const std::string& origin) {
    return post(server.port(), kChat, chat(R"("max_tokens":1)"), "origin: " + origin + "\r\n");
  };
  EXPECT_EQ(from("https://bad.example").status, 403);
  EXPECT_EQ(from("http://localhost").status, 200);  // the page of the server itself
  const Answer good = from("https://good.example");
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(good.header("access-control-allow-origin"), "https://good.example");
  Client client(server.port());
  client.send(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\norigin: https://good.example\r\n"
      "access-control-request-method: POST\r\naccess-control-request-headers: authorization\r\n\r\n");
  const Answer preflight = client.read();
  EXPECT_EQ(preflight.status, 204);
  EXPECT_EQ(preflight.header("access-control-allow-headers"), "authorization");
  // A name that somebody else has pointed at this machine.
  Client rebound(server.port());
  rebound.send(
      "POST /v1/models HTTP/1.1\r\nhost: evil.example\r\norigin: http://evil.example\r\ncontent-length: 0\r\n\r\n");
  EXPECT_EQ(rebound.read().status, 403);
}

TEST(Operations, UnknownPathsAndMethodsAreTold) {
  RunningServer server;
  EXPECT_EQ(get(server.port(), "/nothing").status, 404);
  const Answer wrong = get(server.port(), kChat);
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.header("allow"), "POST");
  EXPECT_EQ(post(server.port(), kChat, "\x1f\x8b", "content-encoding: gzip\r\n").status, 415);
  EXPECT_EQ(get(server.port(), "/ping", "x-request-id: abc-1\r\n").header("x-request-id"), "abc-1");
  EXPECT_TRUE(get(server.port(), "/ping", "x-request-id: a b\r\n").header("x-request-id").starts_with("req-"));
}

TEST(Operations, HealthDecodesATokenAndSaysSoWhenItCannot) {
  StubBackend backend;
  ServeOptions o = quiet_options();
  o.health_timeout = 0.3;
  RunningServer server(backend, o);
  const Answer good = get(server.port(), "/health");
  EXPECT_EQ(good.status, 200);
  EXPECT_EQ(at(good.body, "status"), "ok");
  EXPECT_EQ(backend.steps_done, 1);
  std::this_thread::sleep_for(1100ms);  // the token is proof no longer
  backend.paused = true;
  const Answer bad = get(server.port(), "/health");
  EXPECT_EQ(bad.status, 503);
  EXPECT_EQ(at(bad.body, "status"), "failed");
  backend.paused = false;
  wait_until([&] { return get(server.port(), "/health").status == 200; });
}

TEST(Operations, AClientThatLeavesFreesItsPlaceAtOnce) {
  StubBackend backend;
  backend.step_time = 2ms;
  RunningServer server(backend);
  for (const bool stream : {true, false}) {
    {
      Client client(server.port());
      client.send(post_text(kChat, chat(stream ? R"("stream":true)" : R"("max_tokens":4000)")));
      if (stream) {
        EXPECT_TRUE(client.read_until("content"));
      }
      wait_until([&] { return backend.alive == 1; });
    }
    wait_until([&] { return backend.alive == 0; });
  }
  EXPECT_GE(metric(server.port(), R"(fathom_http_requests_total{path="/v1/chat/completions",status="499"})"), 1);
}

TEST(Operations, OverloadIs429WithATimeToComeBack) {
  StubBackend backend(StubBackend::counting, 2);
  backend.paused = true;
  ServeOptions o = quiet_options();
  o.max_waiting = 1;
  RunningServer server(backend, o);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(post_text(kChat, chat(R"("max_tokens":5)")));
  }
  wait_until([&] { return server.server().service().snapshot().live == 3; });
  const Answer a = post(server.port(), kChat, chat());
  EXPECT_EQ(a.status, 429);
  EXPECT_GE(std::stoi(a.header("retry-after")), 1);
  EXPECT_EQ(at(a.body, "error.code"), "rate_limit_exceeded");
  backend.paused = false;
  for (auto& client : clients) EXPECT_EQ(client->read().status, 200);
  EXPECT_EQ(post(server.port(), kChat, chat(R"("max_tokens":2)")).status, 200);
  EXPECT_EQ(metric(server.port(), "fathom_requests_refused_total"), 1);
}

TEST(Operations, OneClientCannotTakeAllPlacesAndWhoWaitsIsToldHowManyAreBefore) {
  StubBackend backend(StubBackend::counting, 2);
  backend.paused = true;
  ServeOptions o = quiet_options();
  o.max_waiting = 2;
  RunningServer server(backend, o);
  const auto live = [&] { return server.server().service().snapshot().live; };
  std::vector<std::unique_ptr<Client>> clients;
  const auto ask = [&](const std::string& user) {
    const int64_t before = live();
    clients.push_back(std::make_unique<Client>(server.port()));
    clients.back()->send(post_text(kChat, chat(R"("max_tokens":5,"stream":true,"user":")" + user + "\"")));
    wait_until([&] { return live() > before; });
  };
  for (int i = 0; i < 4; ++i) ask("many");
  EXPECT_EQ(post(server.port(), kChat, chat(R"("user":"many")")).status, 429);
  ask("one");
  EXPECT_EQ(post(server.port(), kChat, chat(R"("user":"one")")).status, 429) << "once";
  ask("two"), ask("three"), ask("four");
  EXPECT_EQ(post(server.port(), kChat, chat(R"("user":"five")")).status, 429) << "there is an end to it";
  backend.paused = false;
  for (size_t i = 0; i < clients.size(); ++i) {
    const Answer a = clients[i]->read();
    EXPECT_EQ(a.status, 200);
    EXPECT_EQ(a.header("x-fathom-queue"), i < 2 ? "" : std::to_string(i - 1)) << i;
  }
}

TEST(Operations, AFailingEngineGives500OrAnErrorEventAndTheServerGoesOn) {
  StubBackend backend;
  backend.step_time = 2ms;
  RunningServer server(backend);
  Client whole(server.port()), stream(server.port());
  whole.send(post_text(kChat, chat(R"("max_tokens":4000)")));
  stream.send(post_text(kChat, chat(R"("max_tokens":4000,"stream":true)")));
  EXPECT_TRUE(stream.read_until("content"));
  wait_until([&] { return backend.alive == 2; });
  backend.fail_next = true;
  const Answer failed = whole.read();
  EXPECT_EQ(failed.status, 500);
  EXPECT_NE(failed.body.find("told to fail"), std::string::npos);
  const Answer rest = stream.read();
  const Streamed s = join_chat(rest.body);
  EXPECT_NE(s.error.find("told to fail"), std::string::npos);
  EXPECT_TRUE(s.done);
  EXPECT_EQ(s.finish, "");
  EXPECT_EQ(post(server.port(), kChat, chat(R"("max_tokens":2)")).status, 200);
  EXPECT_EQ(metric(server.port(), "fathom_engine_failures_total"), 1);
}

TEST(Operations, ARequestHasATimeLimit) {
  StubBackend backend;
  backend.step_time = 2ms;
  RunningServer server(backend);
  const Answer whole = post(server.port(), kChat, chat(R"("max_tokens":4000,"timeout":0.1)"));
  EXPECT_EQ(whole.status, 504);
  EXPECT_EQ(at(whole.body, "error.type"), "timeout_error");
  const Answer stream = post(server.port(), kChat, chat(R"("max_tokens":4000,"timeout":0.1,"stream":true)"));
  EXPECT_NE(join_chat(stream.body).error, "");
}

TEST(Operations, ASlowReaderHoldsItsOwnOutputAndNobodyElse) {
  StubBackend backend;
  RunningServer server(backend);
  Client slow(server.port(), 4096);
  slow.send(post_text(kChat, chat(R"("stream":true,"max_tokens":4000,"logprobs":true)")));
  EXPECT_TRUE(slow.read_until("content"));
  std::this_thread::sleep_for(200ms);
  EXPECT_EQ(post(server.port(), kChat, chat(R"("max_tokens":50)")).status, 200);
  const Streamed s = join_chat(slow.read().body);
  EXPECT_EQ(s.completion_tokens, 4000);
  EXPECT_EQ(s.finish, "length");
}

TEST(Operations, MetricsAgreeWithWhatClientsGot) {
  RunningServer server;
  int64_t prompt = 0, completion = 0;
  for (int i = 0; i < 3; ++i) {
    const Answer a = post(server.port(), kChat,
                          chat(fmt::format(R"("max_tokens":{},"ignore_eos":true,"cache_salt":"{}")", 5 + i, i)));
    prompt += std::stoll(at(a.body, "usage.prompt_tokens"));
    completion += std::stoll(at(a.body, "usage.completion_tokens"));
  }
  EXPECT_EQ(metric(server.port(), "vllm:generation_tokens_total"), completion);
  EXPECT_EQ(metric(server.port(), "vllm:prompt_tokens_total"), prompt);
  EXPECT_EQ(metric(server.port(), "vllm:time_to_first_token_seconds_count"), 3);
  EXPECT_EQ(metric(server.port(), "vllm:inter_token_latency_seconds_count"), completion - 3);
  EXPECT_EQ(metric(server.port(), "vllm:request_success_total"), 3);
  EXPECT_EQ(metric(server.port(), "vllm:num_requests_running"), 0);
  EXPECT_EQ(metric(server.port(), "vllm:request_generation_tokens_sum"), completion);
  EXPECT_EQ(metric(server.port(), "vllm:kv_cache_usage_perc"), 0);
  for (const char* part : {"queue", "prefill", "decode", "inference"})
    EXPECT_EQ(metric(server.port(), fmt::format("vllm:request_{}_time_seconds_count", part)), 3) << part;
  const auto sum = [&](const char* part) { return metric(server.port(), fmt::format("vllm:{}_seconds_sum", part)); };
  EXPECT_NEAR(sum("request_queue_time") + sum("request_prefill_time"), sum("time_to_first_token"), 1e-6);
  EXPECT_NEAR(sum("request_prefill_time") + sum("request_decode_time"), sum("request_inference_time"), 1e-6);
  EXPECT_EQ(metric(server.port(), "vllm:request_params_n_sum"), 3);
  EXPECT_EQ(metric(server.port(), "vllm:request_params_max_tokens_sum"), 5 + 6 + 7);
}

TEST(Operations, TheSecondTurnOfAChatTakesItsPrefixFromTheCache) {
  RunningServer server;
  std::string story;
  for (int i = 0; i < 60; ++i) story += "The old king had a daughter. ";
  const std::string first = R"({"role":"user","content":")" + story + R"("})";
  const Answer a = post(server.port(), kChat, R"({"messages":[)" + first + R"(],"max_tokens":20,"temperature":0})");
  const std::string second = R"({"messages":[)" + first + R"(,{"role":"assistant","content":)" +
                             text::json_quoted(at(a.body, "choices.0.message.content")) +
                             R"(},{"role":"user","content":"And then?"}],"max_tokens":20,"temperature":0})";
  const Answer b = post(server.port(), kChat, second);
  EXPECT_GT(std::stoll(at(b.body, "usage.prompt_tokens_details.cached_tokens")),
            std::stoll(at(a.body, "usage.prompt_tokens")) - 256);
  RunningServer cold;
  EXPECT_EQ(at(post(cold.port(), kChat, second).body, "choices.0.message.content"),
            at(b.body, "choices.0.message.content"));
}

TEST(Operations, AProfileOfSomeStepsIsWritten) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("fathom-profile-{}", ::getpid());
  RunningServer server;
  const Answer started =
      post(server.port(), "/start_profile",
           fmt::format(R"({{"output_dir":"{}","num_steps":3,"activities":["CPU","GPU"]}})", folder.string()));
  EXPECT_EQ(started.status, 200) << started.body;
  EXPECT_NE(started.header("x-fathom-warning").find("GPU"), std::string::npos);
  EXPECT_EQ(post(server.port(), "/start_profile", "{}").status, 400);  // one at a time
  EXPECT_EQ(post(server.port(), kChat, chat(R"("max_tokens":8,"ignore_eos":true)")).status, 200);
  const auto traces = [&] {
    std::vector<std::string> out;
    if (std::filesystem::exists(folder))
      for (const auto& entry : std::filesystem::directory_iterator(folder)) out.push_back(entry.path().string());
    return out;
  };
  wait_until([&] { return traces().size() == 1 && post(server.port(), "/stop_profile", "").status == 400; });
  EXPECT_TRUE(traces()[0].ends_with(".trace.json.gz"));
  EXPECT_EQ(get(server.port(), "/start_profile").status, 200);  // without a body: until it is stopped
  EXPECT_EQ(post(server.port(), kChat, chat(R"("max_tokens":2)")).status, 200);
  const Answer stopped = post(server.port(), "/stop_profile", "");
  EXPECT_EQ(stopped.status, 200);
  const std::string file = stopped.body.substr(stopped.body.find("The trace is ") + 13);
  const std::filesystem::path second = file.substr(0, file.find('\n'));
  EXPECT_TRUE(std::filesystem::exists(second)) << second;
  std::filesystem::remove(second);
  EXPECT_EQ(post(server.port(), "/start_profile", R"({"activities":["RPD"]})").status, 400);
  std::filesystem::remove_all(folder);
}

TEST(Operations, ShuttingDownFinishesWhatRunsAndTakesNothingNew) {
  StubBackend backend;
  backend.step_time = 5ms;
  RunningServer server(backend);
  Client client(server.port());
  client.send(post_text(kChat, chat(R"("max_tokens":60,"stream":true)")));
  EXPECT_TRUE(client.read_until("content"));
  const int port = server.port();
  server.server().shut_down();
  const Answer a = client.read();
  EXPECT_EQ(join_chat(a.body).finish, "length");
  server.wait();
  EXPECT_THROW(Client late(port), std::runtime_error);
}

TEST(Operations, WhatDoesNotEndInTimeIsToldThatTheServerShutsDown) {
  StubBackend backend([](const GenerationRequest&) { return std::vector<int32_t>(1000000, 300); });
  backend.step_time = 2ms;
  ServeOptions o = quiet_options();
  o.drain_timeout = 0.1;
  RunningServer server(backend, o);
  Client stream(server.port()), whole(server.port());
  stream.send(post_text(kChat, chat(R"("stream":true)")));
  whole.send(post_text(kChat, chat()));
  EXPECT_TRUE(stream.read_until("content"));
  wait_until([&] { return backend.alive == 2; });
  server.server().shut_down();
  EXPECT_NE(join_chat(stream.read().body).error.find("shutting down"), std::string::npos);
  EXPECT_EQ(whole.read().status, 503);
  server.wait();
}

class Config : public ::testing::Test {
 protected:
  std::string write(const std::string& text) {
    path_ = std::filesystem::temp_directory_path() / fmt::format("fathom-config-{}.json", ::getpid());
    std::ofstream(path_) << text;
    return path_.string();
  }
  ~Config() override { std::filesystem::remove(path_); }
  std::filesystem::path path_;
};

TEST_F(Config, APrintedConfigurationCanBeReadBack) {
  ServeOptions o;
  o.port = 1234, o.names = {"a", "b"}, o.thinking = true, o.write_timeout = 2.5, o.log_format = "json";
  ServeOptions back;
  read_config_file(
      write(print_config(o)), [](const std::string&) { return false; }, back);
  EXPECT_EQ(print_config(back), print_config(o));
}

TEST_F(Config, FlagsCountBeforeTheFile) {
  ServeOptions o;
  o.port = 1;
  read_config_file(
      write(R"({"port": 2, "max-running": 3})"), [](const std::string& name) { return name == "port"; }, o);
  EXPECT_EQ(o.port, 1);
  EXPECT_EQ(o.max_running, 3);
}

TEST_F(Config, MistakesAreErrorsThatNameTheFileAndTheField) {
  for (const char* text : {R"({"prot": 1})", R"({"port": "x"})", R"({"port": 70000})", R"({"ops": "gpu"})", "[]", "{",
                           R"({"thinking": 1})"}) {
    ServeOptions o;
    const std::string path = write(text);
    try {
      read_config_file(
          path, [](const std::string&) { return false; }, o);
      ADD_FAILURE() << text;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(path), std::string::npos) << e.what();
    }
  }
  ServeOptions keys;
  keys.api_key_file = write("\n\n");
  EXPECT_THROW(read_api_keys(keys), Error);
  keys.api_key_file = write("one\r\n\ntwo");
  read_api_keys(keys);
  EXPECT_EQ(keys.api_keys, (std::vector<std::string>{"one", "two"}));
}

}  // namespace
}  // namespace fathom::serve::test

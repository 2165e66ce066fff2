// Many open streams on loopback, with an engine that gives every stream a token 50 times a second and costs nothing
// itself: what is measured is the server. The client is a process of its own and checks every token.
//
// Counters: lost (streams whose text is not exactly what the engine gave), gap_p50/p99/max in ms (between tokens of a
// stream, as the client sees them, once all streams run), kB_stream (growth of the server's resident memory for each
// open stream), us_token (processor time of the server for each token), steps_s (what the engine was held to).
#include <arpa/inet.h>
#include <benchmark/benchmark.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "engine/loaded_model.h"
#include "serve/server.h"

namespace {

using namespace fathom;
using namespace fathom::serve;
using namespace std::chrono_literals;
using Time = std::chrono::steady_clock;

constexpr int kTokens = 400;  // of each stream
constexpr auto kStep = 20ms;

/// Gives all streams their next token at a fixed pace.
class PacedBackend final : public Backend {
 public:
  PacedBackend(std::vector<int32_t> script, int64_t streams)
      : script_(std::move(script)), limits_{4096, 1 << 24, streams, 2048} {}
  const Limits& limits() const override { return limits_; }
  RequestId add(GenerationRequest) override {
    streams_[next_] = 0;
    return next_++;
  }
  void cancel(RequestId id) override { streams_.erase(id); }
  void hold(RequestId, bool) override {}
  void set_recorder(Recorder*) override {}
  bool step(const std::function<void(const GenerationEvent&)>& report) override {
    if (streams_.empty()) return false;
    std::this_thread::sleep_until(due_ = std::max(due_ + kStep, Time::now() - kStep));
    ++stats_.steps;
    for (auto it = streams_.begin(); it != streams_.end();) {
      GenerationEvent e;
      e.request = it->first;
      e.token.token = script_[static_cast<size_t>(it->second++)];
      const bool last = it->second == static_cast<int>(script_.size());
      if (last) e.finish = FinishReason::length;
      it = last ? streams_.erase(it) : std::next(it);
      ++stats_.generated_tokens;
      report(e);
    }
    stats_.running = streams_.size();
    return true;
  }
  Engine::Stats stats() const override { return stats_; }

 private:
  std::vector<int32_t> script_;
  Limits limits_;
  std::map<RequestId, int> streams_;
  RequestId next_ = 1;
  Time::time_point due_{};
  Engine::Stats stats_;
};

struct ClientResult {
  int64_t wrong = 0, tokens = 0;
  double p50 = 0, p99 = 0, most = 0;  // ms
};

/// One stream as the client sees it.
struct Stream {
  int socket = -1;
  std::string rest, text;  // not understood yet; content so far
  Time::time_point last{};
  bool done = false;
};

int connect_to(int port) {
  const int s = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (s < 0 || ::connect(s, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
    std::perror("connect");
    ::_exit(3);
  }
  return s;
}

/// Takes the contents out of what has arrived; returns how many there were.
int take_events(Stream& s) {
  int found = 0;
  size_t at = 0, end;
  while ((end = s.rest.find("\n\n", at)) != std::string::npos) {
    const std::string_view event = std::string_view(s.rest).substr(at, end - at);
    constexpr std::string_view kContent = "\"delta\":{\"content\":\"";
    if (const size_t begin = event.find(kContent); begin != std::string_view::npos) {
      const size_t from = begin + kContent.size();
      s.text += event.substr(from, event.find('"', from) - from);
      ++found;
    }
    if (event.find("data: [DONE]") != std::string_view::npos) s.done = true;
    at = end + 2;
  }
  s.rest.erase(0, at);
  return found;
}

/// The client process: opens `count` streams, reads them to their ends.
ClientResult read_streams(int port, int count, const std::string& expected) {
  const std::string body = R"({"messages":[{"role":"user","content":"go"}],"stream":true})";
  const std::string request =
      "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + std::to_string(body.size()) +
      "\r\n\r\n" + body;
  const int poll = ::epoll_create1(EPOLL_CLOEXEC);
  std::vector<Stream> streams(static_cast<size_t>(count));
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i].socket = connect_to(port);
    epoll_event e{};
    e.events = EPOLLIN, e.data.u64 = i;
    ::epoll_ctl(poll, EPOLL_CTL_ADD, streams[i].socket, &e);
    if (::send(streams[i].socket, request.data(), request.size(), MSG_NOSIGNAL) < 0) ::_exit(4);
  }
  ClientResult result;
  std::vector<int64_t> gaps(60000, 0);  // in tenths of a millisecond
  int started = 0, open = count;
  std::array<epoll_event, 256> ready;
  std::array<char, 65536> buffer;
  while (open > 0) {
    const int n = ::epoll_wait(poll, ready.data(), static_cast<int>(ready.size()), 20000);
    if (n <= 0) break;
    for (int k = 0; k < n; ++k) {
      Stream& s = streams[ready[static_cast<size_t>(k)].data.u64];
      const ssize_t got = ::recv(s.socket, buffer.data(), buffer.size(), 0);
      if (got > 0) s.rest.append(buffer.data(), static_cast<size_t>(got));
      const auto now = Time::now();
      const int tokens = got > 0 ? take_events(s) : 0;
      result.tokens += tokens;
      if (tokens > 0) {
        if (s.last == Time::time_point{}) {
          ++started;
        } else if (started == count) {
          const auto gap = std::chrono::duration_cast<std::chrono::microseconds>(now - s.last).count() / 100;
          ++gaps[static_cast<size_t>(std::min<int64_t>(gap, 59999))];
          gaps[0] += tokens - 1;
        }
        s.last = now;
      }
      if (got <= 0 || s.done) ::close(s.socket), --open;
    }
  }
  for (const Stream& s : streams) result.wrong += !s.done || s.text != expected;
  const int64_t all = std::accumulate(gaps.begin(), gaps.end(), int64_t{0});
  int64_t sum = 0;
  for (size_t i = 0; i < gaps.size(); ++i) {
    if (gaps[i] == 0) continue;
    const double ms = static_cast<double>(i) / 10;
    if (sum * 2 < all) result.p50 = ms;
    if (sum * 100 < all * 99) result.p99 = ms;
    result.most = ms, sum += gaps[i];
  }
  return result;
}

double resident_kb() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * 4;
}

double processor_seconds() {
  rusage u{};
  ::getrusage(RUSAGE_SELF, &u);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(u.ru_utime) + seconds(u.ru_stime);
}

/// Ids of tokens that are plain words, and the text they make.
std::vector<int32_t> script_of(const text::Tokenizer& tokenizer, std::string& text) {
  std::vector<int32_t> ids;
  for (int32_t id = 3; static_cast<int>(ids.size()) < kTokens; id = (id + 1) % tokenizer.vocab_size()) {
    if (!tokenizer.has(id) || tokenizer.is_added(id)) continue;
    const std::string_view bytes = tokenizer.bytes(id);
    if (!std::all_of(bytes.begin(), bytes.end(), [](unsigned char c) { return std::isalpha(c) || c == ' '; })) continue;
    ids.push_back(id);
    text += bytes;
  }
  return ids;
}

void Load(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0));
  const auto tokenizer = text::Tokenizer::load(FATHOM_SOURCE_DIR "/models/fairy/tokenizer.json");
  const ModelConfig config = read_config(FATHOM_SOURCE_DIR "/models/fairy/config.json");
  std::string expected;
  const auto script = script_of(tokenizer, expected);
  for (auto _ : state) {
    int port_pipe[2], result_pipe[2];
    if (::pipe(port_pipe) != 0 || ::pipe(result_pipe) != 0) return state.SkipWithError("pipe");
    const pid_t child = ::fork();
    if (child == 0) {  // before the server has threads
      int port = 0;
      if (::read(port_pipe[0], &port, sizeof port) != sizeof port) ::_exit(2);
      rlimit files{};
      ::getrlimit(RLIMIT_NOFILE, &files);
      files.rlim_cur = files.rlim_max;
      ::setrlimit(RLIMIT_NOFILE, &files);
      const ClientResult r = read_streams(port, count, expected);
      ::_exit(::write(result_pipe[1], &r, sizeof r) == sizeof r ? 0 : 2);
    }
    PacedBackend backend(script, count);
    ServerSetup setup;
    setup.options.port = 0, setup.options.log_level = "error";
    setup.options.max_connections = count + 100;
    setup.model.tokenizer = &tokenizer, setup.model.config = &config;
    setup.model.names = {"stub"};
    Server server(setup, backend);
    std::thread thread([&] { server.run(); });
    const double memory = resident_kb(), start_seconds = processor_seconds();
    double most = memory;
    const int port = server.port();
    if (::write(port_pipe[1], &port, sizeof port) != sizeof port) return state.SkipWithError("write");
    std::atomic<bool> over{false};
    std::thread watch([&] {
      while (!over) most = std::max(most, resident_kb()), std::this_thread::sleep_for(50ms);
    });
    const auto begin = Time::now();
    ClientResult r;
    const bool got = ::read(result_pipe[0], &r, sizeof r) == sizeof r;
    const double seconds = std::chrono::duration<double>(Time::now() - begin).count();
    over = true;
    watch.join();
    int status = 0;
    ::waitpid(child, &status, 0);
    const double cpu = processor_seconds() - start_seconds;
    const auto steps = server.service().snapshot().engine.steps;
    server.shut_down();
    thread.join();
    for (int descriptor : {port_pipe[0], port_pipe[1], result_pipe[0], result_pipe[1]}) ::close(descriptor);
    if (!got) return state.SkipWithError("the client failed");
    state.counters["lost"] = static_cast<double>(r.wrong);
    state.counters["gap_p50"] = r.p50, state.counters["gap_p99"] = r.p99, state.counters["gap_max"] = r.most;
    state.counters["kB_stream"] = (most - memory) / count;
    state.counters["us_token"] = 1e6 * cpu / static_cast<double>(std::max<int64_t>(1, r.tokens));
    state.counters["steps_s"] = static_cast<double>(steps) / seconds;
  }
}

BENCHMARK(Load)->Arg(100)->Arg(2000)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);

}  // namespace

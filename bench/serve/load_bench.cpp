// Many open streams on loopback, with an engine that gives every stream a token 50 times a second and costs nothing
// itself: what is measured is the server. The client is a process of its own and checks every token.
//
// Counters: lost (streams whose text is not exactly what the engine gave), gap_p50/p99/max in ms (between tokens of a
// stream, as the client sees them, once all streams run), kB_stream (growth of the server's resident memory for each
// open stream), us_token (processor time of the server for each token), steps_s (what the engine was held to).
#include <benchmark/benchmark.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "engine/loaded_model.h"
#include "serve/server.h"
#include "stream_client.h"

namespace {

using namespace fathom;
using namespace fathom::serve;
using namespace fathom::serve::bench;
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

void report(benchmark::State& state, const ClientResult& r, double cpu) {
  state.counters["lost"] = static_cast<double>(r.wrong);
  state.counters["gap_p50"] = r.p50, state.counters["gap_p99"] = r.p99, state.counters["gap_max"] = r.most;
  state.counters["us_token"] = 1e6 * cpu / static_cast<double>(std::max<int64_t>(1, r.tokens));
}

void Load(benchmark::State& state) {
  const auto count = static_cast<int>(state.range(0)), bad = static_cast<int>(state.range(1));
  const auto tokenizer = text::Tokenizer::load(FATHOM_SOURCE_DIR "/models/fairy/tokenizer.json");
  const ModelConfig config = read_config(FATHOM_SOURCE_DIR "/models/fairy/config.json");
  std::string expected;
  const auto script = script_of(tokenizer, expected);
  for (auto _ : state) {
    StreamClient client(count, expected, bad);  // before the server has threads
    PacedBackend backend(script, count + bad);
    ServerSetup setup;
    setup.options.port = 0, setup.options.log_level = "error";
    setup.options.max_connections = count + bad + 100;
    setup.model.tokenizer = &tokenizer, setup.model.config = &config;
    setup.model.names = {"stub"};
    Server server(setup, backend);
    std::thread thread([&] { server.run(); });
    const double memory = resident_kb(), start_seconds = processor_seconds();
    double most = memory;
    std::atomic<bool> over{false};
    std::thread watch([&] {
      while (!over) most = std::max(most, resident_kb()), std::this_thread::sleep_for(50ms);
    });
    const auto begin = Time::now();
    ClientResult r;
    const bool got = client.run(server.port(), r);
    const double seconds = std::chrono::duration<double>(Time::now() - begin).count();
    over = true;
    watch.join();
    const double cpu = processor_seconds() - start_seconds;
    const auto steps = server.service().snapshot().engine.steps;
    server.shut_down();
    thread.join();
    if (!got) return state.SkipWithError("the client failed");
    report(state, r, cpu);
    state.counters["kB_stream"] = (most - memory) / count;
    state.counters["steps_s"] = static_cast<double>(steps) / seconds;
  }
}

// The second number: clients that behave badly beside them.
BENCHMARK(Load)
    ->Args({200, 0})
    ->Args({2000, 0})
    ->Args({2000, 300})
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kSecond);

/// Processor seconds of another process so far.
double processor_seconds(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  double user = 0, system = 0;
  fields >> user >> system;
  return (user + system) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

/// A server of another kind (compare/), started by the command in OTHER_SERVER with a file of tokens, one a line, as
/// its argument. It prints its port and gives every stream a token each 20 ms.
void Other(benchmark::State& state) {
  const char* command = std::getenv("OTHER_SERVER");
  if (!command) return state.SkipWithError("OTHER_SERVER is not set");
  const auto tokenizer = text::Tokenizer::load(FATHOM_SOURCE_DIR "/models/fairy/tokenizer.json");
  std::string expected;
  const std::string file = "/tmp/fathom-tokens-" + std::to_string(::getpid());
  {
    std::ofstream out(file);
    for (const int32_t id : script_of(tokenizer, expected)) out << tokenizer.bytes(id) << "\n";
  }
  for (auto _ : state) {
    StreamClient client(static_cast<int>(state.range(0)), expected);
    int output[2];
    if (::pipe(output) != 0) return state.SkipWithError("pipe");
    const pid_t server = ::fork();
    if (server == 0) {
      ::dup2(output[1], STDOUT_FILENO);
      const std::string line = std::string("exec ") + command + " " + file;
      ::execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
      ::_exit(127);
    }
    ::close(output[1]);
    std::string port;
    for (char c; ::read(output[0], &c, 1) == 1 && c != '\n';) port += c;
    const double start = processor_seconds(server);
    ClientResult r;
    const bool got = !port.empty() && client.run(std::atoi(port.c_str()), r);
    report(state, r, processor_seconds(server) - start);
    ::kill(server, SIGKILL);
    int status = 0;
    ::waitpid(server, &status, 0);
    ::close(output[0]);
    if (!got) state.SkipWithError("the other server or the client failed");
  }
  ::unlink(file.c_str());
}

BENCHMARK(Other)->Arg(200)->Iterations(1)->UseRealTime()->Unit(benchmark::kSecond);

}  // namespace

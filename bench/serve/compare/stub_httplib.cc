// The benchmark's stub as a server on cpp-httplib: every stream gets a token each 20 ms, as server-sent events. One
// thread for each connection: that is how this library works.
// usage: stub_httplib TOKENS     a file with one token a line; prints its port
#include <httplib.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

int main(int count, char** arguments) {
  if (count != 2) return 2;
  std::vector<std::string> tokens;
  std::ifstream file(arguments[1]);
  for (std::string line; std::getline(file, line);) tokens.push_back(line);

  std::mutex mutex;
  std::condition_variable changed;
  uint64_t step = 0;
  std::thread([&] {
    for (auto due = std::chrono::steady_clock::now();; std::this_thread::sleep_until(due)) {
      due += std::chrono::milliseconds(20);
      {
        const std::lock_guard lock(mutex);
        ++step;
      }
      changed.notify_all();
    }
  }).detach();

  httplib::Server server;
  server.new_task_queue = [] { return new httplib::ThreadPool(2100); };
  server.set_tcp_nodelay(true);
  server.Post("/v1/chat/completions", [&](const httplib::Request&, httplib::Response& response) {
    response.set_chunked_content_provider("text/event-stream", [&, next = size_t{0}, seen = uint64_t{0}](
                                                                   size_t, httplib::DataSink& sink) mutable {
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return step > seen; });
        seen = step;
      }
      const std::string event =
          R"(data: {"id":"chatcmpl-0123456789abcdef01234567","object":"chat.completion.chunk","created":1764400000,)"
          R"("model":"stub","choices":[{"index":0,"delta":{"content":")" +
          tokens[next] + R"("},"finish_reason":null}]})" + "\n\n";
      sink.write(event.data(), event.size());
      if (++next == tokens.size()) {
        const std::string end = "data: [DONE]\n\n";
        sink.write(end.data(), end.size());
        sink.done();
      }
      return true;
    });
  });
  std::printf("%d\n", server.bind_to_any_port("127.0.0.1"));
  std::fflush(stdout);
  server.listen_after_bind();
}

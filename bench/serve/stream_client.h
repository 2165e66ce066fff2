// A client of many streams at once that checks every token. For benchmarks; runs in a process of its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace fathom::serve::bench {

struct ClientResult {
  int64_t wrong = 0, tokens = 0;      // streams whose text was not exactly the expected one
  double p50 = 0, p99 = 0, most = 0;  // ms between tokens of a stream, once all streams run
};

/// Opens `count` chat streams at a loopback port and reads them to their ends; each must say `expected`. Before them
/// `bad` more connections: by turns one that sends half a request, one that asks for a stream and never reads, and one
/// that has closed its sending side.
ClientResult read_streams(int port, int count, const std::string& expected, int bad = 0);

/// The same in a child process, forked at once: before this process has threads. It begins when it is told the port.
class StreamClient {
 public:
  StreamClient(int count, const std::string& expected, int bad = 0);
  ~StreamClient();
  StreamClient(const StreamClient&) = delete;
  StreamClient& operator=(const StreamClient&) = delete;

  /// False when the client failed.
  bool run(int port, ClientResult& result);

 private:
  int port_pipe_[2] = {-1, -1}, result_pipe_[2] = {-1, -1};
  pid_t child_ = -1;
};

}  // namespace fathom::serve::bench

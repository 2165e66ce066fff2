#include "serve/log.h"

#include <poll.h>
#include <spdlog/async_logger.h>
#include <spdlog/details/null_mutex.h>
#include <spdlog/details/thread_pool.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>

#include "base/error.h"
#include "serve/openai_json.h"
#include "text/json.h"

namespace fathom::serve {
namespace {

constexpr size_t kQueue = 8192;  // lines

spdlog::level::level_enum level_of(Log::Level level) {
  switch (level) {
    case Log::Level::debug:
      return spdlog::level::debug;
    case Log::Level::info:
      return spdlog::level::info;
    case Log::Level::warning:
      return spdlog::level::warn;
    case Log::Level::error:
      return spdlog::level::err;
    case Log::Level::off:
      return spdlog::level::off;
  }
  return spdlog::level::off;
}

/// Standard error, where nobody may be reading: the log's thread waits for a reader, but not beyond the end of the
/// program. Used by that thread alone.
class StderrSink : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  void close() { closing_ = true; }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    for (size_t at = 0; at < line.size();) {
      if (!writable()) return;
      // A pipe that can be written takes this much without blocking.
      const auto n = ::write(STDERR_FILENO, line.data() + at, std::min<size_t>(line.size() - at, PIPE_BUF));
      if (n < 0 && errno != EINTR && errno != EAGAIN) return;
      if (n > 0) at += static_cast<size_t>(n);
    }
  }
  void flush_() override {}

 private:
  bool writable() const {
    constexpr int kSliceMs = 100;
    for (bool last = false; !last;) {
      last = closing_;
      pollfd p{STDERR_FILENO, POLLOUT, 0};
      if (::poll(&p, 1, last ? 0 : kSliceMs) > 0) return true;
    }
    return false;
  }
  std::atomic<bool> closing_ = false;
};

bool needs_quotes(std::string_view value) {
  return value.empty() || value.find_first_of(" =\"") != std::string_view::npos;
}

}  // namespace

struct Log::Impl {
  std::shared_ptr<spdlog::details::thread_pool> pool;
  std::shared_ptr<StderrSink> sink = std::make_shared<StderrSink>();
  std::shared_ptr<spdlog::async_logger> logger;
  bool json = false;
};

Log::Log(Level level, const std::string& format) : impl_(std::make_unique<Impl>()) {
  impl_->json = format == "json";
  impl_->pool = std::make_shared<spdlog::details::thread_pool>(kQueue, 1);
  impl_->logger = std::make_shared<spdlog::async_logger>("fathom", impl_->sink, impl_->pool,
                                                         spdlog::async_overflow_policy::overrun_oldest);
  impl_->logger->set_level(level_of(level));
  impl_->logger->set_pattern(impl_->json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%v})"
                                         : "%Y-%m-%d %H:%M:%S.%e %l %v");
}

/// What is queued still comes out, as long as somebody reads.
Log::~Log() {
  impl_->sink->close();
}

void Log::write(Level level, std::string_view event, const Fields& fields) const {
  if (!impl_->logger->should_log(level_of(level))) return;
  std::string line;
  if (impl_->json) {
    line = R"("event":)";
    append_quoted(line, event);
    for (const auto& [name, value] : fields) {
      line += fmt::format(",\"{}\":", name);
      const text::JsonReading number = text::read_json(value);
      if (number.value && number.value->is(text::JsonValue::Kind::number) && text::is_strict_json(value))
        line += value;
      else
        append_quoted(line, printable(value, 1000));
    }
  } else {
    line = event;
    for (const auto& [name, value] : fields) {
      line += fmt::format(" {}=", name);
      const std::string shown = printable(value, 1000);
      if (needs_quotes(shown))
        append_quoted(line, shown);
      else
        line += shown;
    }
  }
  impl_->logger->log(level_of(level), "{}", line);
}

Log::Level log_level(const std::string& name) {
  if (name == "debug") return Log::Level::debug;
  if (name == "warning") return Log::Level::warning;
  if (name == "error") return Log::Level::error;
  return Log::Level::info;
}

}  // namespace fathom::serve

// The server's log: one line an event, as text or as JSON, on standard error. Prompts and outputs are never logged.
//
// Lines are written by a thread of their own. When standard error takes no more (a stopped terminal, a full pipe), the
// oldest waiting lines are lost, and never a request.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fathom::serve {

class Log {
 public:
  enum class Level { debug, info, warning, error, off };
  using Fields = std::vector<std::pair<const char*, std::string>>;

  /// `format` is "text" or "json".
  Log(Level level, const std::string& format);
  ~Log();
  Log(const Log&) = delete;
  Log& operator=(const Log&) = delete;

  /// Values that are numbers are written as such in JSON.
  void write(Level level, std::string_view event, const Fields& fields) const;
  void info(std::string_view event, const Fields& fields) const { write(Level::info, event, fields); }
  void warning(std::string_view event, const Fields& fields) const { write(Level::warning, event, fields); }
  void error(std::string_view event, const Fields& fields) const { write(Level::error, event, fields); }

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// "debug", "info", "warning", "error".
Log::Level log_level(const std::string& name);

}  // namespace fathom::serve

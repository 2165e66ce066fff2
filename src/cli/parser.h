// A thin front of CLI11, so that its heavy header is compiled once. One Parser is one subcommand.
//
// Flags are refused when unknown; `fathom CMD --help` prints what was registered. Values are written to the bound
// variables before the command's function runs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"

namespace fathom::cli {

/// Flags that do not fit together: one line, exit status 2.
class UsageError : public Error {
  using Error::Error;
};

class Parser {
 public:
  struct Impl;
  explicit Parser(Impl& impl) : impl_(&impl) {}

  // Numbers are decimal; what is no number, not finite or outside [low, high] is refused with the option's name.
  void flag(const std::string& names, bool& value, const std::string& help);
  void option(const std::string& names, std::string& value, const std::string& help);
  void option(const std::string& names, int64_t& value, const std::string& help, int64_t low, int64_t high);
  void option(const std::string& names, double& value, const std::string& help, double low, double high);
  void option(const std::string& names, std::vector<std::string>& values, const std::string& help);
  /// One of a fixed set of words.
  void choice(const std::string& names, std::string& value, const std::vector<std::string>& allowed,
              const std::string& help);
  void positional(const std::string& name, std::string& value, const std::string& help, bool required = true);
  void positional(const std::string& name, std::vector<std::string>& values, const std::string& help,
                  bool required = true);
  /// True when the option was given on the command line; `name` is one of its names ("--top-k").
  bool given(const std::string& name) const;
  /// Text printed behind the options by --help: examples, exit codes.
  void footer(const std::string& text);

 private:
  Impl* impl_;
};

/// A subcommand: `declare` registers options and returns the function that runs it and gives the exit status.
struct Command {
  const char* name;
  const char* help;
  std::function<std::function<int()>(Parser&)> declare;
};

/// Parses and runs. Exit status: 0 done, 1 bad input (one line on stderr), 2 usage, 130 interrupted, or what the
/// command returns. Output that could not be written is an error too.
int run_command_line(int argc, char** argv, const std::vector<Command>& commands);

}  // namespace fathom::cli

// Runs the fathom program as a user would, and keeps what it printed.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace fathom::cli::testing {

struct Finished {
  int status =
      -1;  // exit status; 128 + signal when a signal ended it; -1 when it ran past the time limit and was killed
  std::string out, err;
};

struct Command {
  std::vector<std::string> arguments;            // behind "fathom"
  std::vector<std::string> environment;          // "NAME=value", on top of the test's own
  std::string input;                             // standard input; then end of file
  std::string input_path;                        // standard input is this file or folder instead
  bool keep_input_open = false;                  // no end of file behind `input`
  std::vector<int> closed;                       // standard descriptors that the program is started without
  std::string output_path;                       // standard output goes to this file instead (/dev/full)
  bool close_output = false;                     // nobody reads standard output: the reading end of the pipe is closed
  std::string interrupt_after;                   // SIGINT as soon as standard output or error holds this text; "" never
  std::chrono::milliseconds interrupt_pause{0};  // between that and the signal
  std::chrono::seconds limit{120};
};

Finished run(const Command& command);
inline Finished run(std::vector<std::string> arguments) {
  return run(Command{.arguments = std::move(arguments)});
}

/// A folder that exists as long as the object.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The in-box model.
std::filesystem::path fairy();
/// A copy of the in-box model in `folder`, to be damaged.
std::filesystem::path copy_of_fairy(const TemporaryFolder& folder);
void write_text(const std::filesystem::path& path, const std::string& text);

}  // namespace fathom::cli::testing

#include "cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace fathom::cli::testing {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail_errno(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) fail_errno("pipe");
    read_end = ends[0], write_end = ends[1];
  }
  ~Pipe() { close_read(), close_write(); }
  void close_read() { close(read_end); }
  void close_write() { close(write_end); }

 private:
  static void close(int& fd) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
};

/// In the child, after fork: only calls that are safe there.
[[noreturn]] void become(char* const* argv, char* const* envp, int in, int out, int err,
                         const std::vector<int>& closed) {
  ::dup2(in, STDIN_FILENO);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGINT, SIG_DFL);
  for (int descriptor : closed) ::close(descriptor);
  ::execve(argv[0], argv, envp);
  ::_exit(127);
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> out;
  for (auto& s : strings) out.push_back(s.data());
  out.push_back(nullptr);
  return out;
}

std::vector<std::string> environment_with(const std::vector<std::string>& more) {
  std::vector<std::string> out;
  for (char** at = ::environ; *at; ++at)
    if (std::string_view(*at).substr(0, 7) != "FATHOM_") out.emplace_back(*at);
  out.insert(out.end(), more.begin(), more.end());
  return out;
}

/// Reads what is there; false at the end of the stream.
bool take(int fd, std::string& into) {
  char buffer[1 << 16];
  const ssize_t n = ::read(fd, buffer, sizeof buffer);
  if (n > 0) into.append(buffer, static_cast<size_t>(n));
  return n > 0 || (n < 0 && errno == EINTR);
}

/// Feeds `input`, collects both outputs and interrupts when asked. False when the time limit was reached.
bool converse(const Command& command, pid_t child, Pipe& in, Pipe& out, Pipe& err, Finished& result) {
  const auto deadline = Clock::now() + command.limit;
  size_t fed = 0;
  bool interrupted = command.interrupt_after.empty();
  while (out.read_end >= 0 || err.read_end >= 0) {
    if (fed == command.input.size() && !command.keep_input_open) in.close_write();
    std::array<pollfd, 3> waiting = {
        pollfd{out.read_end, POLLIN, 0}, pollfd{err.read_end, POLLIN, 0},
        pollfd{fed < command.input.size() ? in.write_end : -1, POLLOUT, 0}};  // poll() skips negative descriptors
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    if (::poll(waiting.data(), waiting.size(), static_cast<int>(left)) < 0 && errno != EINTR) fail_errno("poll");
    if (waiting[0].revents && !take(out.read_end, result.out)) out.close_read();
    if (waiting[1].revents && !take(err.read_end, result.err)) err.close_read();
    if (waiting[2].revents) {
      const ssize_t n =
          ::write(in.write_end, command.input.data() + fed, std::min<size_t>(command.input.size() - fed, 4096));
      fed = n < 0 ? command.input.size() : fed + static_cast<size_t>(n);
    }
    if (!interrupted && (result.out + result.err).find(command.interrupt_after) != std::string::npos) {
      std::this_thread::sleep_for(command.interrupt_pause);
      ::kill(child, SIGINT);
      interrupted = true;
    }
  }
  return true;
}

}  // namespace

Finished run(const Command& command) {
  std::vector<std::string> words = {FATHOM_BINARY};
  words.insert(words.end(), command.arguments.begin(), command.arguments.end());
  std::vector<std::string> variables = environment_with(command.environment);
  const auto argv = pointers(words), envp = pointers(variables);

  Pipe in, out, err;
  int file = -1, source = -1;
  if (!command.input_path.empty()) {
    source = ::open(command.input_path.c_str(), O_RDONLY | O_CLOEXEC);
    if (source < 0) fail_errno("open input");
  }
  if (!command.output_path.empty()) {
    file = ::open(command.output_path.c_str(), O_WRONLY | O_CLOEXEC);
    if (file < 0) fail_errno("open output");
  }
  if (command.close_output) out.close_read();
  ::signal(SIGPIPE, SIG_IGN);  // a program that does not read its input is no reason to die
  const pid_t child = ::fork();
  if (child < 0) fail_errno("fork");
  if (child == 0)
    become(argv.data(), envp.data(), source >= 0 ? source : in.read_end, file >= 0 ? file : out.write_end,
           err.write_end, command.closed);
  if (file >= 0) ::close(file);
  if (source >= 0) ::close(source);
  in.close_read(), out.close_write(), err.close_write();

  Finished result;
  const bool in_time = converse(command, child, in, out, err, result);
  if (!in_time) ::kill(child, SIGKILL);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (in_time) result.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return result;
}

TemporaryFolder::TemporaryFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "fathom-cli-XXXXXX").string();
  if (!::mkdtemp(name.data())) fail_errno("mkdtemp");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::filesystem::path fairy() {
  return std::filesystem::path(FATHOM_SOURCE_DIR) / "models/fairy";
}

std::filesystem::path copy_of_fairy(const TemporaryFolder& folder) {
  const auto to = folder.path() / "model";
  std::filesystem::copy(fairy(), to, std::filesystem::copy_options::recursive);
  return to;
}

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

}  // namespace fathom::cli::testing

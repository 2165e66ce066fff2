#include "base/progress.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string_view>

namespace fathom {

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int unit = 0;
  while (bytes >= 1024 && unit < 4) bytes /= 1024, ++unit;
  return unit == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.{}f} {}", bytes, bytes < 10 ? 2 : 1, units[unit]);
}

bool is_rich_terminal(int descriptor) {
  const char* term = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && term && *term && std::string_view(term) != "dumb";
}

Progress::Progress(std::string what, uint64_t total, std::string unit)
    : what_(std::move(what)),
      unit_(std::move(unit)),
      total_(total),
      terminal_(is_rich_terminal(STDERR_FILENO)),
      start_(Clock::now()),
      last_(start_) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\033[K", stderr);
}

void Progress::update(uint64_t done) {
  if (!terminal_) return;
  const auto now = Clock::now();
  if (now - start_ < std::chrono::seconds(1) || now - last_ < std::chrono::milliseconds(100)) return;
  last_ = now;
  drawn_ = true;
  const double share = total_ ? std::min(1.0, static_cast<double>(done) / static_cast<double>(total_)) : 0.0;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  const auto amount = [&](double v) { return unit_ == "B" ? human_bytes(v) : fmt::format("{:.0f} {}", v, unit_); };
  const std::string bar = std::string(static_cast<size_t>(share * 24), '#');
  auto text =
      fmt::format("{} [{:<24}] {:3.0f} %  {} of {}, {}/s, {:.0f} s left", what_, bar, share * 100, amount(double(done)),
                  amount(double(total_)), amount(double(done) / seconds), share > 0 ? seconds / share - seconds : 0.0);
  winsize size{};  // a line that wraps could not be redrawn
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    text.resize(std::min<size_t>(text.size(), size.ws_col - 1u));
  std::fputs(("\r" + text + "\033[K").c_str(), stderr);
  std::fflush(stderr);
}

}  // namespace fathom

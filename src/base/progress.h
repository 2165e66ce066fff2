// A progress line on stderr for work that takes longer than a second. Silent when stderr is not a terminal
// that can redraw a line.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fathom {

class Progress {
 public:
  /// `what` names the work ("loading weights"); `total` its size in `unit` ("B" prints as MiB/GiB).
  Progress(std::string what, uint64_t total, std::string unit = "B");
  ~Progress();  // erases the line
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  /// Sets the amount done. Cheap: redraws at most ten times a second, never in the first second.
  void update(uint64_t done);

 private:
  using Clock = std::chrono::steady_clock;
  std::string what_, unit_;
  uint64_t total_;
  bool terminal_, drawn_ = false;
  Clock::time_point start_, last_;
};

/// True when `descriptor` is a terminal that understands escape sequences (TERM is set, and not "dumb").
bool is_rich_terminal(int descriptor);

/// "1.5 GiB", "312 MiB", "17 B".
std::string human_bytes(double bytes);

}  // namespace fathom

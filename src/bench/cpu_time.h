// Processor time of this process.
#pragma once

#include <sys/resource.h>

namespace fathom::bench {

/// Seconds, user and system.
inline double cpu_time() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

}  // namespace fathom::bench

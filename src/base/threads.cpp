#include "base/threads.h"

#include <sched.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <memory>

namespace fathom {
namespace {

int allowed_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

struct Pool {
  int threads = allowed_processors();
  std::unique_ptr<tbb::global_control> limit;
  std::unique_ptr<tbb::task_arena>
      arena;  // only for more threads than processors: the usual arena has no place for them
};

Pool& pool() {
  static Pool instance;
  return instance;
}

}  // namespace

int thread_count() {
  return pool().threads;
}

void set_thread_count(int n) {
  pool().threads = std::max(1, n);
  pool().limit = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism,
                                                       static_cast<size_t>(pool().threads));
  pool().arena.reset();
  if (pool().threads > allowed_processors()) pool().arena = std::make_unique<tbb::task_arena>(pool().threads);
}

void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  grain = std::max<int64_t>(1, grain);
  if (n <= 0) return;
  if (n <= grain || pool().threads == 1) {
    for (int64_t begin = 0; begin < n; begin += grain) body(begin, std::min(n, begin + grain));
    return;
  }
  const int64_t pieces = (n + grain - 1) / grain;
  const auto work = [&] {
    tbb::parallel_for(
        tbb::blocked_range<int64_t>(0, pieces, 1),
        [&](const tbb::blocked_range<int64_t>& range) {
          for (int64_t i = range.begin(); i < range.end(); ++i) body(i * grain, std::min(n, (i + 1) * grain));
        },
        tbb::simple_partitioner{});
  };
  if (pool().arena)
    pool().arena->execute(work);
  else
    work();
}

}  // namespace fathom

// Data parallelism on the CPU: one pool for the process, sized once, used through parallel_for.
//
// Work is cut at fixed places that do not depend on the number of threads, so results are the same on any machine
// size as long as iterations are independent.
#pragma once

#include <cstdint>
#include <functional>

namespace fathom {

/// Number of threads that parallel_for uses. Default: the processors this process may run on.
int thread_count();

/// Sets it (1 = everything on the calling thread), also to more than there are processors. Call before the first
/// parallel_for; not thread-safe.
void set_thread_count(int n);

/// Calls body(begin, end) over [0, n) in pieces of at most `grain`, in parallel when there is more than one piece.
/// Exceptions thrown by `body` reach the caller. Nested calls are allowed.
void parallel_for(int64_t n, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body);

}  // namespace fathom

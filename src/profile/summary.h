// Where the time went: the spans of a Recorder added up by op and ranked.
//
// Times are self times: a span that contains others counts only what is left over, so the rows add up to the whole and
// the shares to 100 %. The row of a step therefore shows the glue between its ops.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/recorder.h"

namespace fathom::profile {

/// One row of the ranking: every span of one name and category, of one GPU.
struct OpTotal {
  std::string name;
  std::string category;
  int32_t device = -1;  // the GPU; -1: none
  int64_t calls = 0;
  int64_t self_ns = 0;   // without the spans inside
  int64_t total_ns = 0;  // with them
  int64_t bytes = 0;     // sums over the calls; 0: not known
  int64_t flops = 0;

  double gigabytes_per_second() const { return total_ns ? double(bytes) / double(total_ns) : 0; }
  double gigaflops_per_second() const { return total_ns ? double(flops) / double(total_ns) : 0; }
};

struct Summary {
  std::vector<OpTotal> rows;  // by self_ns, largest first
  int64_t covered_ns = 0;     // sum of self_ns
  int64_t span_count = 0;
  int64_t dropped = 0;  // spans that the recorder had no room for; they are missing in every sum
  int64_t steps = 0;    // that were recorded
  RecordingCost cost;   // where not all of them were
};

/// Where the recorder has spans of a GPU, the rows are those alone: kernels by op, copies, and the gaps inside replayed
/// steps, of each GPU.
Summary summarize(const Recorder& recorder);

/// The ranking as lines of text, at most `width` columns wide (at least 40): columns that do not fit are left out, the
/// least telling first, and rows past `max_rows` are added up in one line. Ends with a newline.
std::string format_table(const Summary& summary, int width, size_t max_rows = 20);

/// Columns of the terminal behind file descriptor `fd`; 80 when it is no terminal.
int terminal_width(int fd);

}  // namespace fathom::profile

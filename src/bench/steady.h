// From records to numbers: the stretch of a run in which the load was what was asked for, and the statistics of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/record.h"

namespace fathom::bench {

/// Median, p90, p99 and mean of values; all 0 when there are none.
struct Quantiles {
  size_t count = 0;
  double p50 = 0, p90 = 0, p99 = 0, mean = 0, most = 0;
  std::vector<float> curve;  // percentiles 0 to 100
};
/// Quantiles are linear between the two nearest values, as numpy.percentile does by default.
Quantiles quantiles(std::vector<double> values);

/// The longest stretch of a run at full concurrency. Pauses of at most `bridge` seconds, in which an ended request is
/// replaced by the next, do not end it.
struct Stretch {
  double begin = 0, end = 0;             // seconds of the level; end == begin: there is none
  double peak = 0, mean = 0, least = 0;  // open requests in it (least: pauses left out)
  double before = 0, after = 0;          // ramp and drain, seconds
  double length() const { return end - begin; }
};

/// Open requests are those sent and not ended. Full means `ratio` of the most that were open at a time.
Stretch longest_stretch(const std::vector<RequestRecord>& requests, double ratio = 0.95, double bridge = 0.05);

/// A level in equal pieces of time, from the first request to the last end.
struct Timeline {
  double begin = 0, width = 0;           // seconds of the level; of a piece
  std::vector<float> open, output_rate;  // mean open requests, output tokens a second
};
Timeline timeline_of(const LevelRun& run, size_t pieces = 120);

/// The numbers of a level. Rates and gaps are of the stretch; times of requests are of those sent in it.
struct LevelStats {
  double concurrency = 0, rate = 0;
  size_t requests = 0, errors = 0, looping = 0, uncounted = 0;  // uncounted: the server sent no usage
  Stretch stretch;
  double output_rate = 0, reasoning_rate = 0, total_rate = 0;  // tokens a second; total: prompts too
  double whole_rate = 0;      // output tokens of the whole run over its whole time, ramp and drain included
  double request_rate = 0;    // ended requests a second: (n - 1) / (last end - first end)
  double piece_rate = 0;      // pieces a second of all streams together
  double step_time = 0;       // seconds between the pieces of one stream: mean open requests / piece_rate
  double tokens_a_piece = 0;  // above 1: speculation, or a server that sends several tokens together
  double prompt_tokens = 0, output_tokens = 0, cached_share = 0;  // means of a request
  Quantiles first_token, gap, token_time, whole;                  // TTFT, ITL, TPOT, end to end; seconds
  Quantiles late;          // open loop: how long after its time a request was sent
  double early = 1;        // output rate of the first fifth of the stretch over that of the rest
  double cpu_a_token = 0;  // seconds of the load generator's processor time
  DraftCounts drafts;      // steps 0: not known
  Timeline timeline;
  std::vector<std::string> first_errors;  // different ones, at most five
  bool interrupted = false;
};

LevelStats analyse(const LevelRun& run);

/// step_time = a + b N by least squares, with 95 % confidence intervals (Student's t).
struct Fit {
  bool valid = false;
  std::string why;                                // not valid: why
  double a = 0, b = 0, a_error = 0, b_error = 0;  // seconds; half widths of the intervals
  double center = 0;                              // mean of N: where the line is known best
  double asymptote = 0;                           // output tokens a second for N without bound: tokens a piece / b
  double asymptote_low = 0, asymptote_high = 0;   // high 0: not bounded
};

/// Levels in which the load was not reached are left out, and so are open loops; three different levels are needed.
Fit fit_step_time(const std::vector<LevelStats>& levels);

}  // namespace fathom::bench

// What a load run leaves behind for each request: when its tokens came, and what the server counted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fathom::bench {

/// Times are seconds since the start of the level.
struct RequestRecord {
  double due = 0;              // when it was to be sent (open loop), else `sent`
  double sent = 0, end = 0;    // end: last byte, or the error
  std::vector<double> pieces;  // arrivals of pieces that carried output, thinking included
  int64_t prompt_tokens = -1;  // from usage; -1: the server did not say
  int64_t output_tokens = -1;  // from usage, thinking included
  int64_t reasoning_tokens = 0, cached_tokens = 0;
  std::string error;     // empty: answered
  std::string finish;    // "stop", "length"...
  bool looping = false;  // its text ends in a loop of a few words

  bool ok() const { return error.empty() && !pieces.empty(); }
  double first() const { return pieces.front(); }
  double last() const { return pieces.back(); }
  /// Output tokens; pieces where the server did not count.
  double tokens() const { return output_tokens >= 0 ? double(output_tokens) : double(pieces.size()); }
  /// Tokens that each piece carried on average: speculation sends several at a time.
  double tokens_a_piece() const { return tokens() / double(pieces.size()); }
};

/// What the engine did in a level: in process, or from the metrics of a server that has them.
struct DraftCounts {
  int64_t steps = 0;
  double seconds = 0;                            // that the steps took, pauses between them included
  int64_t generated = 0;                         // tokens
  int64_t proposals = 0, faults = 0;             // those that could be used; those that could not
  int64_t offered = 0, accepted = 0;             // drafts verified, and those that were right
  std::vector<int64_t> offered_at, accepted_at;  // the same by place in the proposal
  bool forced = false;                           // right as often as was asked for, whatever the drafts were

  double tokens_a_step() const { return steps > 0 ? double(generated) / double(steps) : 0; }
  double steps_a_second() const { return seconds > 0 ? double(steps) / seconds : 0; }
};

/// One level of a sweep as it ran, warm-up excluded.
struct LevelRun {
  double concurrency = 0;  // requests kept open; 0: open loop
  double rate = 0;         // requests a second, open loop
  std::vector<RequestRecord> requests;
  double cpu_seconds = 0;  // of the load generator itself; in process: of everything
  DraftCounts drafts;
  bool interrupted = false;
};

}  // namespace fathom::bench

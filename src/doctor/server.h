// A running server, examined: what its metrics say, a short load test, what the GPUs do meanwhile, and a profile of
// steps under load where the server can make one (fathom, SGLang).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "bench/sweep.h"
#include "doctor/checks.h"

namespace fathom::doctor {

struct ServerOptions {
  std::string url, model, api_key;
  std::vector<int64_t> levels{1, 4};
  int64_t input = 128, output = 64, rounds = 3;
  int64_t profile_steps = 48;  // 0: no profile
  /// Where the server is to write its trace, as this machine sees it. Empty: a fresh folder for temporary files when
  /// the server runs on this machine, and no profile when it does not.
  std::string profile_folder;
  std::string nvml;  // library, for the samples of the GPUs
};

struct ServerReport {
  std::string kind;  // "fathom", "SGLang", "vLLM", "unknown"
  bool local = false;
  bench::Sweep sweep;
  std::vector<Check> checks;
  std::vector<WorkSamples> gpus;  // during the load test; local servers only
  std::string trace;              // path; empty: see trace_why_not
  std::string trace_why_not;
};

/// Throws Error when the server does not answer.
ServerReport examine_server(const ServerOptions& options);

/// Which engine's metrics these are: "fathom", "SGLang", "vLLM", "unknown".
std::string engine_of_metrics(std::string_view metrics);
/// Sum of all samples of a metric in the Prometheus text format; nothing when it does not occur.
std::optional<double> metric(std::string_view metrics, std::string_view name);
/// What the metrics before and after a load test tell.
std::vector<Check> metrics_checks(const std::string& before, const std::string& after);

}  // namespace fathom::doctor

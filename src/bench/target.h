// What is measured: a server by its URL, or a model in this process.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/record.h"
#include "bench/workload.h"
#include "engine/loaded_model.h"

namespace fathom::bench {

struct LevelPlan {
  int64_t concurrency = 0;  // closed loop: so many requests are kept open; 0: open loop
  double rate = 0;          // open loop: requests a second, at random times (Poisson)
  int64_t requests = 0;
  uint64_t first_index = 0;  // of the workload
};

/// Called now and then with the number of requests that have ended.
using LevelProgress = std::function<void(int64_t ended)>;

/// Bytes that a decode step has to read, by the formulas of `fathom plan`, and how fast this device copies.
struct StepFloor {
  double bytes = 0, bandwidth = 0;           // bandwidth: read + written bytes a second of a large copy, in this run
  double experts = 0, expected_experts = 0;  // different experts of a layer: as met on average, and for even routing
  double context = 0;                        // tokens of a request
  double seconds() const { return bytes / bandwidth; }
};

class Target {
 public:
  virtual ~Target() = default;
  /// "http://127.0.0.1:8000, model fairy, chat completions".
  virtual std::string describe() const = 0;
  /// Sends the requests of a level and waits for their ends. A request that fails is a record with an error; after a
  /// signal the level ends early. Also tells `workload` how long prompts turned out to be. Throws Error when nothing
  /// can be sent at all.
  virtual LevelRun run(const LevelPlan& plan, Workload& workload, const LevelProgress& progress) = 0;
  /// The least that a step of `open` requests costs; nothing where it is not known. After run() of that level.
  virtual std::optional<StepFloor> floor(double open) {
    static_cast<void>(open);
    return std::nullopt;
  }
};

struct HttpOptions {
  std::string url;         // "http://host:port", with or without "/v1"
  std::string model;       // empty: the first that the server lists
  std::string api_key;     // empty: none is sent
  bool chat = true;        // chat completions; else completions
  bool ignore_end = true;  // ask for outputs of exactly the length (ignore_eos, min_tokens)
  double temperature = 0;
  double timeout = 600;  // seconds without a byte
};

/// Throws Error when the URL cannot be used or the server does not answer.
std::unique_ptr<Target> http_target(const HttpOptions& options);

/// A profile ends when so many steps were recorded, or that many have passed.
inline constexpr int kProfileSteps = 20, kMostProfileSteps = 320;

struct InProcessOptions {
  ModelChoice model;
  std::shared_ptr<ops::ComputeDevice> device;
  bool fast = false;
  int64_t context = 0;  // > 0: prompts of so many tokens that are not computed: the cache is filled with numbers
  std::string profile;  // with a context: a Chrome trace of some steps of each level, "FILE-b16.json.gz"; empty: none
  std::function<void(const std::string&)> say;  // lines for people; may be empty
  int64_t most_open = 1;                        // largest level of the sweep
  int64_t most_tokens = 0;                      // prompt and output of the longest request
  int64_t chunk = 512;
  int32_t speculate = 0;         // EngineOptions::speculate
  double draft_acceptance = -1;  // EngineOptions::draft_acceptance
  double temperature = 0;
  std::vector<int32_t> later;  // values of `speculate` that set_drafts() is to come with
};

/// A model in this process.
class InProcessTarget : public Target {
 public:
  /// Other values of the options of these names, in an engine that starts anew on the loaded model. Throws Error when
  /// the model has no drafts.
  virtual void set_drafts(int32_t speculate, double draft_acceptance) = 0;
};

/// Loads the model; throws Error as load_planned does.
std::unique_ptr<InProcessTarget> in_process_target(const InProcessOptions& options);

}  // namespace fathom::bench

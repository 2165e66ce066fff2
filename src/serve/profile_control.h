// /start_profile and /stop_profile: records the engine's steps into a Chrome trace, with the requests of SGLang.
//
// Fields of /start_profile, all optional: output_dir (default: the server's), num_steps (ends by itself), start_step
// (steps to wait first), activities (CPU, GPU; what the engine runs on decides, which a warning says). /profile is the
// ranking of the last trace.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "serve/api.h"

namespace fathom::serve {

struct ProfileOptions {
  std::string folder = ".";  // where traces go
  bool any_folder = true;    // a request may name another one
  std::string model;         // for the notes in the trace
};

class ProfileControl {
 public:
  explicit ProfileControl(const ProfileOptions& options);
  ~ProfileControl();

  std::vector<RouteEntry> routes();
  /// Name of the trace that is being recorded; empty: none.
  std::string running() const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace fathom::serve

// One event of a Chrome trace, as slices of the text; and which events the analysis keeps.
#pragma once

#include <string_view>

#include "trace/json_scan.h"
#include "trace/model.h"

namespace fathom::trace {

/// The arguments of a piece of GPU work or of a runtime call.
struct RawArgs {
  LaunchShape shape;  // collective and group are left empty: see the two texts
  RawText collective, group;
  RawText operation;        // what XLA says it is
  std::string_view device;  // number as text; empty when absent
  int64_t correlation = 0;
};
/// The members of one event. Nothing is decoded; slices point into the window.
struct RawEvent {
  RawText phase, category, name, pid, tid, time, duration, id;
  std::string_view args;   // the whole object, empty when there is none
  bool empty = true;       // the object was {}
  bool args_read = false;  // the arguments were taken in the same pass: RawArgs holds them

  char phase_letter() const { return phase.text.size() == 1 ? phase.text[0] : '\0'; }
};

/// Reads the object at s.at. After `ok`, s.at is behind its closing brace; otherwise s.at is where it failed. Members
/// of unexpected types count as absent; of a member that occurs twice the last one counts. The arguments of events of
/// category `work` are taken on the way, into `args`, if the category stands before them.
Scan scan_event(JsonScanner& s, RawEvent& out, std::string_view work, RawArgs& args);

/// What the category text of an event says about it. Categories may be comma-separated lists.
enum class EventClass : uint8_t { ignored, kernel, memcpy, memset, runtime, annotation, gpu_annotation };
EventClass classify_category(std::string_view category);

/// Which host calls matter, from their names (CUDA and HIP runtime and driver, and their graph launches).
HostKind classify_call(std::string_view name);

/// The same arguments, out of the text of an object that was read before.
void scan_args(std::string_view args, RawArgs& out);

}  // namespace fathom::trace

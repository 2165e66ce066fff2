// Reading a Chrome trace document (object or array form) from a TextSource.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "trace/chrome_chunk.h"
#include "trace/reader.h"
#include "trace/text_source.h"

namespace fathom::trace {

/// A GPU as "deviceProperties" lists it.
struct DeviceProperties {
  int64_t id = -1;
  Device facts;
};

/// A whole document, before rows become devices and streams (assemble.h).
struct ChromeDocument {
  EventStore store;  // ids are global: names index Trace::names
  std::vector<DeviceProperties> devices;
  std::vector<std::string> top_keys;  // in order, without those inside events
  bool found_events = false;          // an event list was there (possibly empty)
  uint64_t not_objects = 0;
  bool torch = false, from_fathom = false;
};

/// Reads everything; `trace` receives names, counts, damage and the facts of the head. Never throws for bad content:
/// what could not be understood is in trace.import.
ChromeDocument read_chrome(TextSource& source, Trace& trace, const ReadOptions& options);

/// Turns rows into devices and streams, pairs begin and end events, resolves lanes, sorts and checks.
void assemble(ChromeDocument&& document, Trace& trace);

}  // namespace fathom::trace

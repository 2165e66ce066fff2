// Reading traces: from a path to a Trace.
//
// Accepted: Chrome trace JSON of any producer (object or array form, plain or gzip, whatever the file's name says),
// Nsight Systems exports (.sqlite) and fathom's own --profile files. Damaged files yield every whole event and a
// Trace whose import.partial is set; a file that is no trace at all throws Error and is named for what it is.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "trace/model.h"

namespace fathom::trace {

struct ReadOptions {
  /// Called from the reading thread with bytes of the file consumed and its size; may be empty.
  std::function<void(uint64_t done, uint64_t total)> progress;
  /// Text handled at a time; bounds the memory of compressed input. Small values are for tests.
  size_t window_bytes = size_t{8} << 20;
};

Trace read_trace(const std::filesystem::path& path, const ReadOptions& options = {});

/// The same from memory (`path` only names it in messages). Chrome JSON or gzip of it; used by tests and fuzzing.
Trace read_trace_bytes(std::span<const std::byte> bytes, const std::filesystem::path& path,
                       const ReadOptions& options = {});

/// The files that a list of files and folders stands for: folders give their traces (*.json, *.json.gz, *.gz,
/// *.sqlite, *.trace), sorted by rank in the name, then by name. Throws Error on a missing path or an empty folder.
std::vector<std::filesystem::path> expand_paths(const std::vector<std::string>& paths);

}  // namespace fathom::trace

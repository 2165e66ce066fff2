#include "trace/reader.h"

#include <algorithm>

#include "base/error.h"
#include "base/file.h"
#include "trace/chrome_reader.h"
#include "trace/file_kind.h"
#include "trace/finish.h"
#include "trace/format.h"
#include "trace/nsys_reader.h"
#include "trace/text_source.h"

namespace fathom::trace {
namespace {

std::string shown(const std::filesystem::path& path) {
  return printable(path.string(), 400);
}

Trace read_json(std::span<const std::byte> bytes, bool gzip, const std::filesystem::path& path,
                const ReadOptions& options, const MappedFile* file) {
  Trace trace;
  trace.path = path;
  trace.import.file_bytes = bytes.size();
  ChromeDocument document;
  {
    const auto source = gzip ? gzip_text_source(bytes, shown(path), options.window_bytes)
                             : plain_text_source({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, file);
    if (gzip) {
      if (source->window().empty()) {
        const std::string why = source->damage();
        fail("{}: {}", shown(path), why.empty() ? "the gzip stream is empty" : why);
      }
      const std::string_view head = source->window().substr(0, 65536);
      const FileGuess inner = guess_kind(std::as_bytes(std::span(head.data(), head.size())), "");
      if (inner.kind == FileKind::gzip) fail("{}: is compressed twice; run gunzip once and try again", shown(path));
      if (inner.kind == FileKind::sqlite) fail("{}: is a compressed SQLite file; decompress it first", shown(path));
      if (inner.kind != FileKind::json) fail("{}: after decompression it {}", shown(path), inner.refusal);
    }
    document = read_chrome(*source, trace, options);
  }
  if (!document.found_events) {
    if (trace.import.partial && document.top_keys.empty())
      fail("{}: is no trace that can be read: {} at byte {}", shown(path),
           trace.import.damages.empty() ? "damaged" : trace.import.damages.front().what, trace.import.partial_offset);
    fail("{}: {}{}", shown(path), name_json_document(document.top_keys),
         trace.import.partial ? fmt::format(" (the file is damaged at byte {})", trace.import.partial_offset) : "");
  }
  if (trace.form == "array" && trace.import.phases.contains('\0') && trace.import.phases.size() == 1)
    fail("{}: is a JSON list of {} objects, but none is a trace event (none has a phase \"ph\")", shown(path),
         trace.import.events);
  if (trace.import.events == 0 && document.not_objects > 0)
    fail("{}: is a JSON list of {} values that are no trace events (a PyTorch memory timeline?)", shown(path),
         document.not_objects);
  if (document.not_objects > 0)
    trace.import.notes.push_back(counted(static_cast<int64_t>(document.not_objects),
                                         "entry of the event list is no object",
                                         "entries of the event list are no objects"));
  assemble(std::move(document), trace);
  if (options.progress) options.progress(trace.import.file_bytes, trace.import.file_bytes);
  return trace;
}

bool has_trace_suffix(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  for (const std::string_view suffix : {".json", ".json.gz", ".gz", ".sqlite", ".trace"})
    if (name.ends_with(suffix)) return true;
  return false;
}

}  // namespace

Trace read_trace(const std::filesystem::path& path, const ReadOptions& options) {
  const MappedFile file(path);
  const FileGuess guess =
      guess_kind(file.bytes().first(std::min<size_t>(file.bytes().size(), 65536)), path.filename().string());
  if (guess.kind == FileKind::other) fail("{}: {}", shown(path), guess.refusal);
  if (guess.kind == FileKind::sqlite) return read_nsys(path);
  return read_json(file.bytes(), guess.kind == FileKind::gzip, path, options, &file);
}

Trace read_trace_bytes(std::span<const std::byte> bytes, const std::filesystem::path& path,
                       const ReadOptions& options) {
  const FileGuess guess = guess_kind(bytes.first(std::min<size_t>(bytes.size(), 65536)), path.filename().string());
  if (guess.kind == FileKind::other) fail("{}: {}", shown(path), guess.refusal);
  if (guess.kind == FileKind::sqlite) fail("{}: SQLite files are read from disk only", shown(path));
  return read_json(bytes, guess.kind == FileKind::gzip, path, options, nullptr);
}

std::vector<std::filesystem::path> expand_paths(const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<fs::path> out;
  for (const std::string& text : paths) {
    const fs::path path(text);
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      if (!fs::exists(path, error)) fail("{}: no such file", shown(path));
      out.push_back(path);
      continue;
    }
    std::vector<fs::path> found;
    for (fs::directory_iterator it(path, error), end; !error && it != end; it.increment(error))
      if (std::error_code ignored; !it->is_directory(ignored) && has_trace_suffix(it->path()))
        found.push_back(it->path());  // also what is no file: reading it tells so
    if (error) fail("{}: cannot read the folder: {}", shown(path), error.message());
    if (found.empty())
      fail("{}: no traces in this folder (*.json, *.json.gz, *.gz, *.trace, *.sqlite are looked for)", shown(path));
    const auto key = [](const fs::path& p) {
      return std::pair(rank_of_name(p.filename().string()).value_or(-1), p.filename().string());
    };
    std::sort(found.begin(), found.end(), [&](const fs::path& a, const fs::path& b) { return key(a) < key(b); });
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

}  // namespace fathom::trace

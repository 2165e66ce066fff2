#include "trace/file_kind.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace fathom::trace {
namespace {

using namespace std::string_view_literals;

struct Magic {
  std::string_view bytes;
  const char* refusal;
};

// Formats that people hand to trace tools by mistake.
constexpr Magic magics[] = {
    {"PK\x03\x04"sv, "is a zip archive; unpack it and give the trace inside"},
    {"PK\x05\x06"sv, "is an empty zip archive"},
    {"\x28\xB5\x2F\xFD"sv, "is zstd-compressed; decompress it first (zstd -d)"},
    {"\xFD"
     "7zXZ\0"sv,
     "is xz-compressed; decompress it first (xz -d)"},
    {"BZh"sv, "is bzip2-compressed; decompress it first (bunzip2)"},
    {"7z\xBC\xAF\x27\x1C"sv, "is a 7-zip archive; unpack it first"},
    {"\x89PNG"sv, "is a PNG picture, not a trace"},
    {"%PDF"sv, "is a PDF document, not a trace"},
    {"\x7F"
     "ELF"sv,
     "is a program or library, not a trace"},
    {"PAR1"sv, "is a Parquet file; export the profile as .sqlite instead (nsys export --type sqlite)"},
    {"<!DOCTYPE"sv, "is an HTML page, not a trace"},
    {"<html"sv, "is an HTML page, not a trace"},
    {"<?xml"sv, "is XML, not a trace"},
    {"\x93NUMPY"sv, "is a NumPy array, not a trace"},
    {"\xFF\xFE"sv, "is UTF-16 text; convert it to UTF-8"},
    {"\xFE\xFF"sv, "is UTF-16 text; convert it to UTF-8"},
};

bool ends_with(std::string_view name, std::string_view suffix) {
  return name.ends_with(suffix);
}

}  // namespace

FileGuess guess_kind(std::span<const std::byte> head, std::string_view file_name) {
  const std::string_view text(reinterpret_cast<const char*>(head.data()), head.size());
  if (ends_with(file_name, ".qdstrm"))
    return {FileKind::other,
            "is an unfinished Nsight Systems capture (.qdstrm): the profiled program or nsys was killed before the "
            "report was written; convert it with QdstrmImporter or capture again"};
  if (text.empty()) return {FileKind::other, "empty file; the writer was stopped before it wrote anything"};
  if (text.starts_with("\x1F\x8B"sv)) return {FileKind::gzip, {}};
  if (text.starts_with("SQLite format 3\0"sv)) return {FileKind::sqlite, {}};
  if (ends_with(file_name, ".nsys-rep") || ends_with(file_name, ".qdrep"))
    return {FileKind::other,
            "is an Nsight Systems report, which only NVIDIA's tools can read; export it first: nsys export --type "
            "sqlite FILE"};
  if (ends_with(file_name, ".ncu-rep"))
    return {FileKind::other, "is an Nsight Compute report (single kernels), not a trace"};
  for (const Magic& m : magics)
    if (text.starts_with(m.bytes)) return {FileKind::other, m.refusal};
  if (text.size() > 262 && text.substr(257, 5) == "ustar")
    return {FileKind::other, "is a tar archive; unpack it and give the trace inside"};
  const size_t sample = std::min<size_t>(text.size(), 4096);
  const auto zeros = static_cast<size_t>(std::count(text.begin(), text.begin() + static_cast<long>(sample), '\0'));
  if (zeros == sample) {
    if (ends_with(file_name, ".sqlite"))
      return {FileKind::other, "has a zeroed SQLite header: the export was interrupted; export it again"};
    return {FileKind::other, "begins with nothing but zero bytes: the writer was stopped or the disk was full"};
  }
  if (ends_with(file_name, ".sqlite"))
    return {FileKind::other, "is no SQLite file (its header is damaged): the export was interrupted; export it again"};
  std::string_view rest = text;
  if (rest.starts_with("\xEF\xBB\xBF"sv)) rest.remove_prefix(3);
  while (!rest.empty() && static_cast<unsigned char>(rest[0]) <= ' ' && rest[0] != '\0') rest.remove_prefix(1);
  if (rest.empty()) return {FileKind::other, "holds only white space"};
  if (rest[0] == '{' || rest[0] == '[') return {FileKind::json, {}};
  if (ends_with(file_name, ".pftrace") || ends_with(file_name, ".perfetto-trace") || ends_with(file_name, ".pb") ||
      zeros > 0)
    return {FileKind::other,
            "is a binary file (a Perfetto, xplane or other protobuf trace?); give the Chrome JSON form of the trace"};
  return {FileKind::other,
          fmt::format("is no trace: JSON was expected, but it begins with \"{}\"", printable(rest.substr(0, 24), 60))};
}

std::string name_json_document(const std::vector<std::string>& keys) {
  const auto has = [&](std::string_view key) { return std::find(keys.begin(), keys.end(), key) != keys.end(); };
  if (has("schema") && has("nodes"))
    return "is a PyTorch execution trace (ET), which has no times of kernels; no traceEvents; give the profiler's "
           "trace";
  if (has("rocprofiler-sdk-tool"))
    return "is rocprofiler-sdk JSON, not a Chrome trace; no traceEvents; write the trace with --output-format pftrace "
           "or "
           "use the PyTorch profiler";
  if (has("resourceSpans")) return "is an OpenTelemetry export, not a GPU trace; no traceEvents";
  if (has("weight_map")) return "is a checkpoint index, not a trace; no traceEvents";
  if (has("architectures") || has("model_type")) return "is a model configuration, not a trace; no traceEvents";
  if (has("cells") && has("nbformat")) return "is a notebook, not a trace; no traceEvents";
  std::string seen;
  for (size_t i = 0; i < keys.size() && i < 8; ++i) seen += fmt::format("{}{}", i ? ", " : "", keys[i]);
  return fmt::format("is JSON, but no trace: no traceEvents among its keys ({})", seen.empty() ? "it has none" : seen);
}

}  // namespace fathom::trace

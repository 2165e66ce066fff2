// Streaming gzip: a writer for profiles and a reader for traces. Compatible with gzip(1) and zlib.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/file.h"

namespace fathom {

/// True when the data begins with the two bytes of a gzip member.
bool is_gzip(std::span<const std::byte> data);

/// Decompresses a .gz file of one or more members. Zero bytes after a member are padding and are skipped.
///
/// Data is delivered up to the last byte that can be recovered. Then either the stream ended whole, or truncated() is
/// true (the file ends inside a member: an interrupted writer), or the next read() throws Error with the offset
/// (a damaged block, a wrong checksum, bytes after the last member that are no gzip).
class GzipReader {
 public:
  /// Maps the file. Throws Error when it cannot be opened or is no gzip file.
  explicit GzipReader(const std::filesystem::path& path);
  /// Reads from memory that outlives the reader; `name` stands for the file in errors.
  GzipReader(std::span<const std::byte> data, std::string name);
  ~GzipReader();
  GzipReader(GzipReader&&) noexcept;
  GzipReader& operator=(GzipReader&&) noexcept;

  /// Fills `out` as far as the stream goes. Less than out.size() only at the end or just before damage; 0 means the
  /// end. Throws Error on damage, after everything before it was delivered.
  size_t read(std::span<char> out);

  /// True once read() has reached an end of file inside a member.
  bool truncated() const;
  /// Compressed bytes consumed so far; where the file ends when truncated().
  uint64_t compressed_offset() const;
  uint64_t compressed_size() const;
  /// Bytes delivered so far.
  uint64_t decompressed_offset() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Compresses to an OutputFile as one gzip member. Call finish() and then OutputFile::commit(); without finish() the
/// member is cut off.
class GzipWriter {
 public:
  /// `file` outlives the writer.
  explicit GzipWriter(OutputFile& file);
  ~GzipWriter();
  GzipWriter(const GzipWriter&) = delete;
  GzipWriter& operator=(const GzipWriter&) = delete;

  /// Throws Error when the file cannot take it (full disk).
  void write(std::string_view text);
  void finish();

 private:
  struct State;
  void deflate(std::string_view text, bool last);
  std::unique_ptr<State> state_;
};

}  // namespace fathom

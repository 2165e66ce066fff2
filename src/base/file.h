// Files: read-only memory maps, whole-file reads with a size limit, and writes that report a full disk.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace fathom {

/// A read-only memory map of a whole regular file. Movable, not copyable. An empty file maps to an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws Error when `path` is missing, a folder, or unreadable.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {static_cast<const std::byte*>(data_), size_}; }
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }
  const std::filesystem::path& path() const { return path_; }

  /// Tells the kernel that bytes [begin, end) are not needed any more, so they leave resident memory.
  void release(size_t begin, size_t end) const;

 private:
  std::filesystem::path path_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

/// The whole file; throws Error when it cannot be read or is longer than `limit` bytes.
std::string read_file(const std::filesystem::path& path, size_t limit = size_t{1} << 30);

/// Writes all of `text`, however often the call is interrupted. Throws Error that begins with `name` and ends with the
/// system's reason (full disk, closed pipe).
void write_all(int descriptor, std::string_view text, std::string_view name);

/// The whole of what `descriptor` (standard input, a pipe) gives until its end; throws Error that begins with `name`
/// when it cannot be read or gives more than `limit` bytes, and Interrupted after a signal.
std::string read_all(int descriptor, std::string_view name, size_t limit);

/// Throws Error when no output file could be made at `path`; leaves nothing behind. Special files (pipes, devices) are
/// not opened: that alone would be an event for their reader.
void check_output_path(const std::filesystem::path& path);

/// Output file that cannot lose data silently: every write and the final close are checked, and errors (full disk,
/// closed pipe) throw Error with the path. Unless commit() was called nothing of it is left, also when the process is
/// killed (where the file system knows files without names), so `path` holds either what it held before or the whole
/// new content. A path that is not a regular file (/dev/stdout,
/// a pipe) is written directly.
class OutputFile {
 public:
  explicit OutputFile(std::filesystem::path path);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view text);
  /// Flushes, closes and renames into place.
  void commit();

 private:
  [[noreturn]] void fail_errno(const char* doing);
  std::filesystem::path path_, temporary_;
  int fd_ = -1;
  bool nameless_ = false;  // temporary_ gets its name in commit()
};

}  // namespace fathom

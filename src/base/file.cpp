#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/interrupt.h"

namespace fathom {
namespace {

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

/// Opens a regular file for reading and returns its size.
size_t open_regular(const std::filesystem::path& path, Descriptor& out) {
  out.fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // NONBLOCK: do not hang on a pipe
  if (out.fd < 0) fail("{}: cannot open: {}", printable(path.string(), 400), std::strerror(errno));
  struct stat info {};
  if (::fstat(out.fd, &info) != 0) fail("{}: cannot read: {}", printable(path.string(), 400), std::strerror(errno));
  if (S_ISDIR(info.st_mode)) fail("{}: is a folder, a file was expected", printable(path.string(), 400));
  if (!S_ISREG(info.st_mode)) fail("{}: is not a regular file", printable(path.string(), 400));
  return static_cast<size_t>(info.st_size);
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) : path_(path) {
  Descriptor file{-1};
  size_ = open_regular(path, file);
  if (size_ == 0) return;
  void* at = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (at == MAP_FAILED) fail("{}: cannot map {} bytes: {}", printable(path.string(), 400), size_, std::strerror(errno));
  data_ = at;
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release(size_t begin, size_t end) const {
  const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  begin = (begin + page - 1) / page * page;
  end = end >= size_ ? size_ : end / page * page;
  if (begin < end) ::madvise(static_cast<char*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string read_file(const std::filesystem::path& path, size_t limit) {
  Descriptor file{-1};
  const size_t size = open_regular(path, file);
  if (size > limit) fail("{}: {} bytes, more than the {} allowed here", printable(path.string(), 400), size, limit);
  std::string text(size, '\0');
  size_t got = 0;
  while (got < size) {
    const ssize_t n = ::read(file.fd, text.data() + got, size - got);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("{}: cannot read: {}", printable(path.string(), 400), std::strerror(errno));
    if (n == 0) break;  // the file shrank while it was read
    got += static_cast<size_t>(n);
  }
  text.resize(got);
  return text;
}

void write_all(int descriptor, std::string_view text, std::string_view name) {
  while (!text.empty()) {
    const ssize_t n = ::write(descriptor, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("{}: cannot write: {}", name, std::strerror(errno));
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::string read_all(int descriptor, std::string_view name, size_t limit) {
  std::string text;
  while (true) {
    throw_if_interrupted("reading");
    const size_t have = text.size();
    text.resize(have + (size_t{64} << 10));
    const ssize_t n = ::read(descriptor, text.data() + have, text.size() - have);
    if (n < 0 && errno != EINTR) fail("{}: cannot read: {}", name, std::strerror(errno));
    text.resize(have + static_cast<size_t>(std::max<ssize_t>(0, n)));
    if (text.size() > limit) fail("{}: more than the {} bytes allowed", name, limit);
    if (n == 0) return text;
  }
}

void check_output_path(const std::filesystem::path& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode)) return;
  OutputFile probe(path);
}

OutputFile::OutputFile(std::filesystem::path path) : path_(std::move(path)) {
  struct stat info {};
  const bool exists = ::stat(path_.c_str(), &info) == 0;
  if (exists && S_ISDIR(info.st_mode))
    fail("{}: is a folder, cannot write a file there", printable(path_.string(), 400));
  const bool direct = exists && !S_ISREG(info.st_mode);
  if (!direct) temporary_ = path_.string() + fmt::format(".{}.tmp", ::getpid());
  if (!direct) {
    // A file without a name: whatever ends the process before commit(), nothing is left behind. Not every file system
    // has this.
    const auto folder = path_.parent_path();
    if (::access("/proc/self/fd", X_OK) == 0)  // which commit() needs to name it
      fd_ = ::open(folder.empty() ? "." : folder.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0644);
    nameless_ = fd_ >= 0;
    if (nameless_) return;
  }
  const auto& target = direct ? path_ : temporary_;
  fd_ = ::open(target.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd_ < 0) fail("{}: cannot create: {}", printable(path_.string(), 400), std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty() && !nameless_) ::unlink(temporary_.c_str());
}

void OutputFile::fail_errno(const char* doing) {
  fail("{}: cannot {}: {}", printable(path_.string(), 400), doing, std::strerror(errno));
}

void OutputFile::write(std::string_view text) {
  write_all(fd_, text, printable(path_.string(), 400));
}

void OutputFile::commit() {
  if (nameless_) {
    const std::string descriptor = fmt::format("/proc/self/fd/{}", fd_);
    ::unlink(temporary_.c_str());  // of an earlier process with this number
    if (::linkat(AT_FDCWD, descriptor.c_str(), AT_FDCWD, temporary_.c_str(), AT_SYMLINK_FOLLOW) != 0)
      fail_errno("name the finished file");
    nameless_ = false;
  }
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0) fail_errno("finish writing");
  if (temporary_.empty()) return;
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno("replace");
  temporary_.clear();
}

}  // namespace fathom

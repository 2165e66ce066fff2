#include "base/file.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>

#include "base/error.h"
#include "base/interrupt.h"

namespace fathom {
namespace {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "fathom-base-XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("mkdtemp");
    path_ = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }
  size_t entries() const { return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(path_), {})); }

 private:
  std::filesystem::path path_;
};

/// The message of the Error that `body` throws; "" when it throws none.
template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(OutputFile, ReplacesTheOldContentOnlyWhenCommitted) {
  const Folder folder;
  const auto path = folder / "out";
  for (const char* text : {"first", "second"}) {
    OutputFile file(path);
    file.write(text);
    file.commit();
    EXPECT_EQ(read_file(path), text);
  }
  {
    OutputFile file(path);
    file.write("lost");
  }
  EXPECT_EQ(read_file(path), "second");
  EXPECT_EQ(folder.entries(), 1u) << "a temporary file was left";
}

TEST(OutputFile, LeavesNothingWhenTheProcessIsKilled) {
  const Folder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    OutputFile file(folder / "out");
    file.write("half");
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  const int folder_descriptor = ::open((folder / ".").c_str(), O_TMPFILE | O_WRONLY, 0600);
  if (folder_descriptor < 0) GTEST_SKIP() << "this file system has no files without names";
  ::close(folder_descriptor);
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(MappedFile, CutShortWhileItIsReadEndsTheProcessWithOneLine) {
  const Folder folder;
  const auto path = folder / "shrinks";
  OutputFile file(path);
  file.write(std::string(8 << 20, 'x'));
  file.commit();
  EXPECT_EXIT(
      {
        catch_lost_pages();
        const MappedFile map(path);
        std::filesystem::resize_file(path, 0);
        volatile char last = map.text().back();
        static_cast<void>(last);
      },
      ::testing::ExitedWithCode(1), "became shorter");
}

TEST(OutputFile, SaysWhereAndWhyItCannotBeWritten) {
  const Folder folder;
  EXPECT_NE(error_of([&] { OutputFile file(folder / "."); }).find("is a folder"), std::string::npos);
  EXPECT_NE(error_of([&] { OutputFile file(folder / "no/file"); }).find("no/file: cannot create"), std::string::npos);
  const std::string full = error_of([] {
    OutputFile file("/dev/full");
    file.write("x");
    file.commit();
  });
  EXPECT_NE(full.find("/dev/full: cannot write: No space left"), std::string::npos) << full;
  EXPECT_EQ(folder.entries(), 0u);
}

TEST(CheckOutputPath, LeavesNothingBehindAndDoesNotOpenPipes) {
  const Folder folder;
  check_output_path(folder / "new");
  EXPECT_EQ(folder.entries(), 0u);
  EXPECT_THROW(check_output_path(folder / "no/file"), Error);
  EXPECT_THROW(check_output_path(folder / "."), Error);
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  check_output_path(folder / "pipe");  // opening it would wait for a reader for ever
}

TEST(ReadFile, RefusesWhatIsNoFileAndWhatIsTooLong) {
  const Folder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  for (const char* name : {".", "pipe", "missing"}) {
    EXPECT_THROW(read_file(folder / name), Error) << name;
    EXPECT_THROW(MappedFile(folder / name), Error) << name;
  }
  OutputFile file(folder / "five");
  file.write("12345");
  file.commit();
  EXPECT_EQ(read_file(folder / "five", 5), "12345");
  EXPECT_THROW(read_file(folder / "five", 4), Error);
}

TEST(Descriptors, ReadAllTakesEverythingUpToItsLimit) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string text(40000, 'x');  // fits into a pipe
  write_all(ends[1], text, "pipe");
  ::close(ends[1]);
  EXPECT_EQ(read_all(ends[0], "pipe", text.size()), text);
  EXPECT_EQ(read_all(ends[0], "pipe", 0), "");
  ::close(ends[0]);
  EXPECT_NE(error_of([&] { read_all(ends[0], "pipe", 10); }).find("pipe: cannot read: "), std::string::npos);

  ASSERT_EQ(::pipe(ends), 0);
  write_all(ends[1], text, "pipe");
  ::close(ends[1]);
  EXPECT_NE(error_of([&] { read_all(ends[0], "pipe", text.size() - 1); }).find("more than"), std::string::npos);
  ::close(ends[0]);
}

TEST(Descriptors, WriteAllReportsAClosedPipe) {
  std::signal(SIGPIPE, SIG_IGN);
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ::close(ends[0]);
  EXPECT_EQ(error_of([&] { write_all(ends[1], "x", "standard output"); }),
            "standard output: cannot write: Broken pipe");
  ::close(ends[1]);
}

}  // namespace
}  // namespace fathom

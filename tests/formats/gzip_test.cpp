// Gzip files: several members, padding, cut and damaged files, and a writer that gzip readers accept.
#include "formats/gzip.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "base/error.h"
#include "formats/temporary_folder.h"

namespace fathom {
namespace {

std::string sample(size_t bytes, unsigned seed = 1) {
  std::mt19937 random(seed);
  std::string out;
  while (out.size() < bytes)
    out += fmt::format("{{\"ts\":{},\"name\":\"kernel{}\"}},", random() % 100000, random() % 50);
  out.resize(bytes);
  return out;
}

class Gzip : public testing::Test {
 protected:
  std::string compressed(std::string_view text, size_t piece = 1 << 20) {
    const auto path = folder_.path() / "w.gz";
    OutputFile file(path);
    GzipWriter writer(file);
    for (size_t at = 0; at < text.size(); at += piece) writer.write(text.substr(at, piece));
    writer.finish();
    file.commit();
    return read_file(path);
  }

  static std::span<const std::byte> bytes(const std::string& s) { return std::as_bytes(std::span(s)); }

  static std::string read_all(GzipReader& reader, size_t piece = 4096) {
    std::string out, buffer(piece, '\0');
    while (const size_t n = reader.read(buffer)) out.append(buffer, 0, n);
    return out;
  }

  TemporaryFolder folder_;
};

TEST_F(Gzip, RoundTripsAnySizeInAnyPieces) {
  for (const size_t size : {0, 1, 5, 4095, 4096, 70000, 1000000, 5000000}) {
    const std::string text = sample(size), packed = compressed(text, size % 7 == 0 ? 777 : 1 << 20);
    for (const size_t piece : {size_t{1}, size_t{100}, size_t{65536}, size_t{8} << 20}) {
      if (piece == 1 && size > 100000) continue;
      GzipReader reader(bytes(packed), "x.gz");
      ASSERT_EQ(read_all(reader, piece), text) << size << " in pieces of " << piece;
      EXPECT_FALSE(reader.truncated());
      EXPECT_EQ(reader.compressed_offset(), packed.size());
      EXPECT_EQ(reader.decompressed_offset(), size);
    }
  }
}

TEST_F(Gzip, SystemGzipAcceptsWhatTheWriterMakes) {
  if (std::system("command -v gzip >/dev/null 2>&1") != 0) GTEST_SKIP() << "no gzip command here";
  compressed(sample(300000));
  EXPECT_EQ(std::system(("gzip -t '" + (folder_.path() / "w.gz").string() + "'").c_str()), 0);
}

TEST_F(Gzip, ReadsSeveralMembersAndZeroPadding) {
  const std::string a = sample(100000, 1), b = sample(3, 2), c = sample(50000, 3);
  std::string packed = compressed(a) + compressed(b) + std::string(5, '\0') + compressed("") + compressed(c);
  packed += std::string(1000, '\0');
  GzipReader reader(bytes(packed), "x.gz");
  EXPECT_EQ(read_all(reader), a + b + c);
  EXPECT_FALSE(reader.truncated());
}

TEST_F(Gzip, ACutFileDeliversItsBeginningAndSaysSo) {
  const std::string text = sample(200000), packed = compressed(text);
  for (size_t cut = 2; cut < packed.size(); cut += 1 + packed.size() / 97) {
    const std::string part = packed.substr(0, cut);
    GzipReader reader(bytes(part), "x.gz");
    const std::string out = read_all(reader, 5000);
    ASSERT_TRUE(reader.truncated()) << cut;
    EXPECT_EQ(reader.compressed_offset(), cut);
    ASSERT_EQ(out, text.substr(0, out.size())) << cut;
    if (cut > packed.size() / 2) {
      EXPECT_GT(out.size(), text.size() / 4);
    }
  }
}

TEST_F(Gzip, ACutInTheSecondMemberIsTruncationToo) {
  const std::string a = sample(1000, 1), packed = compressed(a) + compressed(sample(100000, 2));
  for (const size_t cut : {packed.size() - 1, packed.size() - 9, compressed(a).size() + 1, compressed(a).size() + 5}) {
    const std::string part = packed.substr(0, cut);
    GzipReader reader(bytes(part), "x.gz");
    EXPECT_EQ(read_all(reader).substr(0, 1000), a);
    EXPECT_TRUE(reader.truncated()) << cut;
  }
}

TEST_F(Gzip, DamageIsAnErrorAfterWhatPrecedesIt) {
  const std::string text = sample(100000);
  std::string packed = compressed(text);
  packed[packed.size() - 6] ^= 1;  // in the CRC
  GzipReader reader(bytes(packed), "x.gz");
  std::string out(text.size(), '\0');
  EXPECT_EQ(reader.read(out), text.size());
  EXPECT_EQ(out, text);
  try {
    char more[10];
    reader.read(more);
    FAIL() << "a wrong checksum passed";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("checksum"), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).rfind("x.gz: byte ", 0), 0u) << e.what();
  }
}

TEST_F(Gzip, GarbageAfterTheLastMemberIsAnError) {
  const std::string packed = compressed("hello") + "garbage";
  GzipReader reader(bytes(packed), "x.gz");
  std::string out(100, '\0');
  EXPECT_EQ(reader.read(out), 5u);
  EXPECT_THROW(reader.read(out), Error);
}

TEST_F(Gzip, FlippedBitsNeverPassUnnoticed) {
  const std::string text = sample(20000), packed = compressed(text);
  for (size_t at = 10; at < packed.size(); at += 1 + packed.size() / 211) {
    std::string broken = packed;
    broken[at] ^= 0x10;
    GzipReader reader(bytes(broken), "x.gz");
    try {
      const std::string out = read_all(reader);
      EXPECT_TRUE(reader.truncated()) << "flip at " << at << " of " << packed.size();
    } catch (const Error&) {
    }
  }
}

TEST_F(Gzip, WhatIsNoGzipIsRefused) {
  EXPECT_THROW(GzipReader(bytes("{}"), "x"), Error);
  EXPECT_THROW(GzipReader(bytes(""), "x"), Error);
  EXPECT_THROW(GzipReader(folder_.path() / "missing.gz"), Error);
  EXPECT_THROW(GzipReader(folder_.path()), Error);
}

}  // namespace
}  // namespace fathom

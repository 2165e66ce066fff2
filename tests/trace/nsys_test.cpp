// Nsight Systems exports with the tables and columns that versions leave out.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"
#include "trace/reader.h"
#include "trace/summary.h"

namespace fathom::trace {
namespace {

namespace fs = std::filesystem;

class Nsys : public testing::Test {
 protected:
  fs::path path_ = fs::temp_directory_path() / fmt::format("fathom nsys #{} %.sqlite", ::getpid());

  void SetUp() override { fs::remove(path_); }
  void TearDown() override { fs::remove(path_); }

  void make(const std::string& sql) {
    sqlite3* db = nullptr;
    ASSERT_EQ(sqlite3_open(path_.c_str(), &db), SQLITE_OK);
    char* error = nullptr;
    sqlite3_exec(db, sql.c_str(), nullptr, nullptr, &error);
    EXPECT_EQ(error, nullptr) << error;
    sqlite3_close(db);
  }
  std::string error() {
    try {
      read_trace(path_);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
};

constexpr const char* strings =
    "CREATE TABLE StringIds(id INTEGER, value TEXT);"
    "INSERT INTO StringIds VALUES(1,'gemm'),(2,'cudaLaunchKernel_v7000'),(3,'step');";

TEST_F(Nsys, ReadsAnOldExportWithFewColumns) {
  make(std::string(strings) +
       "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL(start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
       "shortName INTEGER);"
       "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL "
       "VALUES(100,160,0,7,1),(170,200,1,7,1),(300,290,0,7,1),(NULL,5,0,7,1),(310,330,0,7,99);");
  const Trace t = read_trace(path_);
  EXPECT_EQ(t.events.size(), 3u);
  EXPECT_EQ(t.devices.size(), 2u);
  EXPECT_EQ(t.import.negative_duration, 1u);
  EXPECT_EQ(t.import.no_duration, 1u);
  EXPECT_EQ(t.name(t.events[0]), "gemm");
  EXPECT_EQ(t.name(t.events[1]), "(string 99)");
  EXPECT_EQ(summarise(t).total, 60 + 20 + 30);
}

TEST_F(Nsys, AnOpenRangeDoesNotEndTheImport) {
  make(std::string(strings) +
       "CREATE TABLE NVTX_EVENTS(start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER);"
       "INSERT INTO NVTX_EVENTS VALUES(1,NULL,59,'open',NULL),(2,9,59,NULL,3),(3,4,75,'domain',NULL);");
  const Trace t = read_trace(path_);
  ASSERT_EQ(t.annotations.size(), 1u);
  EXPECT_EQ(t.names.text(t.annotations[0].name), "step");
  EXPECT_EQ(t.import.open_begins, 1u);
}

TEST_F(Nsys, TellsWhyThereAreNoKernels) {
  make(std::string(strings) +
       "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE(start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
       "graphId INTEGER);"
       "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES(100,160,0,7,1);");
  const Trace t = read_trace(path_);
  std::string notes;
  for (const std::string& n : t.import.notes) notes += n + "\n";
  EXPECT_NE(notes.find("--cuda-graph-trace=node"), std::string::npos) << notes;
}

TEST_F(Nsys, ViewsAreNotReadForTables) {  // this one has no end
  make(std::string(strings) +
       "CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS WITH RECURSIVE r(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM "
       "r) "
       "SELECT start, start + 1 AS end FROM r;");
  EXPECT_TRUE(read_trace(path_).events.empty());
}

TEST_F(Nsys, WhatSqliteQuotesOfAFileStaysOnOneLine) {
  make(std::string(strings) + "CREATE TABLE t(a INTEGER, -- first\nb INTEGER);");
  std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  const size_t at = bytes.find("-- first");
  ASSERT_NE(at, std::string::npos);
  file.seekp(static_cast<std::streamoff>(at));
  file << "\"\"\"\x1b[1m";
  file.close();
  EXPECT_NE(error().find("damaged SQLite file"), std::string::npos) << error();
  EXPECT_EQ(error().find_first_of("\n\x1b"), std::string::npos) << error();
}

TEST_F(Nsys, OtherDatabasesAndDamagedOnesAreNamed) {
  make("CREATE TABLE users(id INTEGER)");
  EXPECT_NE(error().find("no Nsight Systems export"), std::string::npos) << error();
  fs::remove(path_);
  std::ofstream(path_) << std::string("SQLite format 3\0", 16) << std::string(2000, 'x');
  EXPECT_NE(error().find("damaged"), std::string::npos) << error();
}

}  // namespace
}  // namespace fathom::trace

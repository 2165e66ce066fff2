// Hand-made damaged and odd files (tests/trace/derived): what each must give stands in EXPECT.json.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "trace/analysis.h"
#include "trace/reader.h"

namespace fathom::trace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path folder = FATHOM_SOURCE_DIR "/tests/trace/derived";

std::vector<std::string> derived_files() {
  std::vector<std::string> out;
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != "EXPECT.json") out.push_back(entry.path().filename().string());
  std::sort(out.begin(), out.end());
  return out;
}

Ns ns(const json& us) {
  return std::llround(us.get<double>() * 1000.0);
}

std::string error_of(const fs::path& path) {
  try {
    read_trace(path);
  } catch (const Error& e) {
    return e.what();
  }
  return {};
}

class Derived : public testing::TestWithParam<std::string> {};

TEST_P(Derived, GivesWhatIsExpected) {
  const json all = json::parse(std::ifstream(folder / "EXPECT.json"));
  ASSERT_TRUE(all.contains(GetParam()));
  json expect = all[GetParam()]["expect"];
  if (GetParam() == "51_zip.json.zip") {
    EXPECT_NE(error_of(folder / GetParam()).find("zip"), std::string::npos);
    return;
  }
  if (expect.contains("error")) {
    EXPECT_NE(error_of(folder / GetParam()).find(expect["error"].get<std::string>()), std::string::npos)
        << error_of(folder / GetParam());
    return;
  }
  if (expect.contains("either")) {
    expect = expect["either"][0];
    if (!expect.is_object()) expect = all["00_base.json"]["expect"];  // the inner trace is read
  }
  const Trace trace = read_trace(folder / GetParam());
  const Analysis a = analyse(trace, CategoryRules::built_in());
  if (expect.contains("gpu_total_us")) {
    EXPECT_EQ(a.summary.total, ns(expect["gpu_total_us"]));
  }
  if (expect.contains("kernel_total_us")) {
    EXPECT_EQ(a.summary.kernel_total, ns(expect["kernel_total_us"]));
  }
  if (expect.contains("gpu_events")) {
    EXPECT_EQ(a.summary.events, expect["gpu_events"].get<int64_t>());
  }
  if (expect.contains("busy_us")) {
    EXPECT_EQ(a.summary.busy, ns(expect["busy_us"]));
  }
  if (expect.contains("span_us")) {
    EXPECT_EQ(a.summary.span, ns(expect["span_us"]));
  }
  if (expect.contains("idle_us")) {
    EXPECT_EQ(a.summary.span - a.summary.busy, ns(expect["idle_us"]));
  }
  if (expect.contains("rank")) {
    EXPECT_EQ(trace.rank.value_or(-1), expect["rank"].get<int>());
  }
  if (expect.contains("busy_us_per_device")) {
    ASSERT_EQ(a.summary.devices.size(), expect["busy_us_per_device"].size());
    for (size_t i = 0; i < a.summary.devices.size(); ++i)
      EXPECT_EQ(a.summary.devices[i].busy, ns(expect["busy_us_per_device"][i]));
  }
  const bool cut = GetParam() == "01_truncated_mid_event.json";
  EXPECT_EQ(trace.import.partial, cut);
  for (size_t i = 0; i < trace.names.size(); ++i) EXPECT_TRUE(is_valid_utf8(trace.names.text(static_cast<NameId>(i))));
}

INSTANTIATE_TEST_SUITE_P(Files, Derived, testing::ValuesIn(derived_files()), [](const auto& info) {
  std::string name = "f" + info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

TEST(DerivedCounts, DamageTellsTheOffsetOfTheEventThatWasCut) {
  const Trace trace = read_trace(folder / "01_truncated_mid_event.json");
  const std::string text = read_file(folder / "01_truncated_mid_event.json");
  ASSERT_EQ(trace.import.damages.size(), 1u);
  EXPECT_EQ(trace.import.partial_offset, text.rfind("{\"ph\""));
}

TEST(DerivedCounts, OdditiesAreCounted) {
  EXPECT_EQ(read_trace(folder / "11_inf_nan.json").import.non_finite, 3u);
  EXPECT_GT(read_trace(folder / "13_windows_backslash.json").import.bad_escapes, 0u);
  const std::string control =
      "[{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"a\x01\nb\",\"pid\":0,\"tid\":7,\"ts\":1,\"dur\":2}]";
  EXPECT_EQ(read_trace_bytes(std::as_bytes(std::span(control)), "control.json").import.control_characters, 1u);
  EXPECT_EQ(read_trace(folder / "15_invalid_utf8.json").import.bad_utf8, 1u);
  EXPECT_EQ(read_trace(folder / "20_ts_zero_kernel.json").import.zero_time, 1u);
  EXPECT_EQ(read_trace(folder / "23_begin_without_end.json").import.open_begins, 1u);
  EXPECT_GT(read_trace(folder / "25_bigint.json").import.big_integers, 0u);
}

TEST(DerivedCounts, AStringOfMegabytesInOneEventIsSkippedNotRefused) {
  const std::string text =
      "{\"traceEvents\": [\n{\"ph\":\"X\",\"cat\":\"cpu_op\",\"name\":\"" + std::string(3'000'000, 'x') +
      "\",\"ts\":1,\"dur\":1},\n{\"ph\":\"X\",\"cat\":\"kernel\",\"name\":\"k\",\"pid\":0,\"tid\":7,"
      "\"ts\":1000,\"dur\":10}\n]}";
  const Trace trace = read_trace_bytes(std::as_bytes(std::span(text)), "huge.json", {.window_bytes = 4096});
  EXPECT_FALSE(trace.import.partial);
  EXPECT_EQ(trace.import.events, 2u);
  ASSERT_EQ(trace.events.size(), 1u);
  EXPECT_EQ(trace.events[0].duration, 10'000);
}

TEST(DerivedCounts, AnEmptyNameIsARowOfItsOwn) {
  const Trace trace = read_trace(folder / "43_hostile_names.json");
  const Ranking ranking = rank_kernels(trace);
  EXPECT_EQ(ranking.rows.size(), 6u);
  EXPECT_EQ(std::count_if(ranking.rows.begin(), ranking.rows.end(),
                          [&](const KernelRow& r) { return trace.names.text(r.name).empty(); }),
            1);
}

}  // namespace
}  // namespace fathom::trace

// Numbers against independent tables: every file of the collection, to the nanosecond.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "trace/analysis.h"
#include "trace/reader.h"

namespace fathom::trace {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const fs::path collection = FATHOM_SOURCE_DIR "/../shared/traces";

std::vector<std::string> truth_files() {
  std::vector<std::string> out;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(collection / "truth", error))
    if (entry.path().extension() == ".json") out.push_back(entry.path().stem().string());
  std::sort(out.begin(), out.end());
  if (out.empty()) out.push_back("missing");
  return out;
}

fs::path find_file(const std::string& name) {
  for (const char* folder : {"real", "edge", "nsys"})
    for (const char* suffix : {"", ".gz"})
      if (fs::exists(collection / folder / (name + suffix))) return collection / folder / (name + suffix);
  return {};
}

Ns ns(const json& us) {
  return std::llround(us.get<double>() * 1000.0);
}

/// The tables name copies of Nsight Systems by number.
std::string truth_name(const Trace& trace, const KernelRow& row) {
  const std::string name(trace.names.text(row.name));
  if (trace.producer != Producer::nsys_sqlite || row.kind == WorkKind::kernel) return name;
  if (name == "[CUDA memset]") return "Memset kind 0";
  const std::map<std::string, int> kinds = {{"[CUDA memcpy Host-to-Device]", 1},
                                            {"[CUDA memcpy Device-to-Host]", 2},
                                            {"[CUDA memcpy Device-to-Device]", 8},
                                            {"[CUDA memcpy Peer-to-Peer]", 10}};
  const auto found = kinds.find(name);
  return found == kinds.end() ? name : "Memcpy kind " + std::to_string(found->second);
}

void compare_rows(const Trace& trace, const Ranking& ranking, const json& truth, bool kernels_only) {
  for (const json& expected : truth) {
    int matches = 0;
    for (const KernelRow& row : ranking.rows) {
      if (kernels_only && row.kind != WorkKind::kernel) continue;
      if (truth_name(trace, row) != expected["name"].get<std::string>()) continue;
      ++matches;
      EXPECT_EQ(row.total, ns(expected["total_us"])) << expected["name"];
      EXPECT_EQ(row.calls, expected["calls"].get<int64_t>());
      EXPECT_EQ(row.min, ns(expected["min_us"]));
      EXPECT_EQ(row.max, ns(expected["max_us"]));
      EXPECT_NEAR(row.mean() / 1000, expected["mean_us"].get<double>(), 0.00051);
      EXPECT_NEAR((kernels_only ? row.kernel_share : row.share) * 100, expected["share_pct"].get<double>(), 0.0001);
    }
    EXPECT_EQ(matches, 1) << expected["name"];
  }
}

void compare_device(const Trace& trace, const DeviceSummary& d, const json& truth) {
  EXPECT_EQ(d.events, truth["events"].get<int64_t>());
  EXPECT_EQ(d.total, ns(truth["sum_us"]));
  EXPECT_EQ(d.busy, ns(truth["busy_union_us"]));
  // The tables hold clock times as doubles of microseconds: past 2^50 us these are 0.25 us apart.
  EXPECT_NEAR(static_cast<double>(d.first), static_cast<double>(ns(truth["first_start_us"])), 256);
  EXPECT_NEAR(static_cast<double>(d.last), static_cast<double>(ns(truth["last_end_us"])), 256);
  EXPECT_EQ(d.span(), ns(truth["span_us"]));
  EXPECT_EQ(d.idle(), ns(truth["idle_us"]));
  if (trace.import.zero_duration == 0) {
    EXPECT_EQ(d.hole_count, truth["gap_count"].get<int64_t>());
    const json& gaps = truth["largest_gaps"];
    ASSERT_EQ(d.holes.size(), std::min<size_t>(10, gaps.size()));
    for (size_t i = 0; i < d.holes.size(); ++i) EXPECT_EQ(d.holes[i].duration, ns(gaps[i]["us"]));
  } else {  // here work of no length never splits a hole; in the tables it does
    EXPECT_LT(d.hole_count, truth["gap_count"].get<int64_t>());
    EXPECT_GE(d.hole_count + static_cast<int64_t>(trace.import.zero_duration), truth["gap_count"].get<int64_t>());
  }
  if (!truth.contains("streams") || truth["streams"].contains("None")) return;
  EXPECT_EQ(d.streams.size(), truth["streams"].size());
  for (const auto& [id, expected] : truth["streams"].items()) {
    const auto found = std::find_if(d.streams.begin(), d.streams.end(), [&, id = id](const StreamSummary& s) {
      return trace.streams[index(s.stream)].id == id;
    });
    ASSERT_NE(found, d.streams.end()) << "stream " << id;
    EXPECT_EQ(found->events, expected["events"].get<int64_t>());
    EXPECT_EQ(found->total, ns(expected["sum_us"]));
    EXPECT_EQ(found->busy, ns(expected["busy_us"])) << "stream " << id;
  }
}

/// Files without categories: the tables sum every row of the device processes, nested ones too.
void compare_lanes(const Trace& trace, const json& truth) {
  int64_t events = 0;
  Ns total = 0, work = 0, of_ops = 0;
  for (const Lane& lane : trace.lanes) {
    if (!lane.is_device) continue;
    events += lane.events;
    total += lane.total;
    if (lane.thread == "XLA Ops") of_ops += lane.total;
  }
  for (const GpuEvent& e : trace.events) work += e.duration;
  EXPECT_EQ(events, truth["events"].get<int64_t>());
  EXPECT_NEAR(static_cast<double>(total), truth["total_us"].get<double>() * 1000, 0.5 * static_cast<double>(events));
  EXPECT_EQ(work, of_ops);
}

class Truth : public testing::TestWithParam<std::string> {};

TEST_P(Truth, NumbersAreEqualToTheTableToTheNanosecond) {
  if (GetParam() == "missing") GTEST_SKIP() << "the trace collection is not at " << collection;
  const json truth = json::parse(std::ifstream(collection / "truth" / (GetParam() + ".json")));
  const fs::path path = find_file(truth["file"].get<std::string>());
  if (path.empty()) GTEST_SKIP() << truth["file"] << " is not in the collection";
  const bool nsys = truth["form"].get<std::string>() == "nsys sqlite";
  if (!nsys && (!truth["is_chrome_trace"].get<bool>() || !truth.contains("gpu_total"))) {
    EXPECT_THROW(read_trace(path), Error);
    return;
  }
  if (GetParam() == "tracelens_execution_details_not_trace") {  // a list of one object that is no event
    EXPECT_THROW(read_trace(path), Error);
    return;
  }
  const Trace trace = read_trace(path);
  EXPECT_FALSE(trace.import.partial);
  if (truth.contains("device_lanes") && trace.producer == Producer::jax_tpu) {
    compare_lanes(trace, truth["device_lanes"]);
    return;
  }
  const Analysis a = analyse(trace, CategoryRules::built_in());
  EXPECT_EQ(a.summary.events, truth["gpu_total"]["events"].get<int64_t>());
  EXPECT_EQ(a.summary.total, ns(truth["gpu_total"]["total_us"]));
  EXPECT_EQ(a.summary.kernels, truth["kernels"]["events"].get<int64_t>());
  EXPECT_EQ(a.summary.kernel_total, ns(truth["kernels"]["total_us"]));
  EXPECT_EQ(a.ranking.rows.size(), truth["gpu_total"]["distinct_names"].get<size_t>());
  compare_rows(trace, a.ranking, truth["top10_gpu"], false);
  compare_rows(trace, a.ranking, truth["top10_kernels"], true);
  ASSERT_EQ(a.summary.devices.size(), truth["per_device"].size());
  for (const auto& [id, expected] : truth["per_device"].items()) {
    const auto found = std::find_if(
        a.summary.devices.begin(), a.summary.devices.end(),
        [&, id = id](const DeviceSummary& d) { return trace.devices[index(d.device)].id == id || id == "None"; });
    ASSERT_NE(found, a.summary.devices.end()) << "device " << id;
    compare_device(trace, *found, expected);
  }
  if (nsys) return;
  EXPECT_EQ(trace.import.events + trace.import.empty_objects, truth["events"].get<uint64_t>());
  for (const auto& [phase, count] : truth["phases"].items()) {
    if (phase.size() == 1) {
      EXPECT_EQ(trace.import.phases.at(phase[0]), count.get<uint64_t>()) << phase;
    }
  }
  const auto is_told = [&](const char* key, int64_t value) {
    return truth[key].is_null() || value == truth[key].get<int64_t>();
  };
  EXPECT_TRUE(is_told("rank", trace.rank.value_or(-1)));
  EXPECT_TRUE(is_told("world_size", trace.world_size.value_or(-1)));
  EXPECT_TRUE(is_told("baseTimeNanoseconds", trace.base_time));
}

TEST_P(Truth, SmallWindowsGiveTheSameTrace) {
  if (GetParam() == "missing") GTEST_SKIP() << "the trace collection is not at " << collection;
  const json truth = json::parse(std::ifstream(collection / "truth" / (GetParam() + ".json")));
  const fs::path path = find_file(truth["file"].get<std::string>());
  if (path.empty() || path.extension() == ".sqlite") GTEST_SKIP() << "not a JSON file of the collection";
  std::optional<Trace> whole;
  try {
    whole = read_trace(path);
  } catch (const Error&) {
    EXPECT_THROW(read_trace(path, {.window_bytes = 100'000}), Error);
    return;
  }
  const bool large = whole->import.text_bytes > 3'000'000;
  for (const size_t window : {large ? size_t{1'000'000} : size_t{20'000}, size_t{300'000}}) {
    const Trace small = read_trace(path, {.window_bytes = window});
    ASSERT_EQ(small.events.size(), whole->events.size());
    for (size_t i = 0; i < small.events.size(); ++i) {
      ASSERT_EQ(small.events[i].start, whole->events[i].start);
      ASSERT_EQ(small.events[i].duration, whole->events[i].duration);
      ASSERT_EQ(small.name(small.events[i]), whole->name(whole->events[i]));
    }
    EXPECT_EQ(small.import.events, whole->import.events);
    EXPECT_EQ(small.import.categories, whole->import.categories);
    EXPECT_EQ(small.annotations.size(), whole->annotations.size());
    EXPECT_EQ(small.calls.size(), whole->calls.size());
  }
}

INSTANTIATE_TEST_SUITE_P(Files, Truth, testing::ValuesIn(truth_files()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace fathom::trace

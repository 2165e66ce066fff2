#include "profile/chrome_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "formats/gzip.h"

namespace fathom::profile {
namespace {

using nlohmann::json;

class ChromeTrace : public ::testing::Test {
 protected:
  ChromeTrace() : folder_(std::filesystem::temp_directory_path() / fmt::format("fathom-trace-test-{}", ::getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~ChromeTrace() override { std::filesystem::remove_all(folder_); }

  std::filesystem::path folder_;
};

SpanRecord op(const char* name, int64_t start, int64_t end) {
  SpanRecord r;
  r.name = name;
  r.start_ns = start;
  r.end_ns = end;
  r.thread = 7;
  return r;
}

std::string gunzip(const std::filesystem::path& path) {
  GzipReader reader(path);
  std::string out, part(1 << 16, '\0');
  while (const size_t n = reader.read({part.data(), part.size()})) out.append(part, 0, n);
  EXPECT_FALSE(reader.truncated());
  return out;
}

const json& event(const json& trace, const std::string& name) {
  for (const json& e : trace["traceEvents"])
    if (e["name"] == name) return e;
  throw std::logic_error("no event " + name);
}

TEST_F(ChromeTrace, KernelsOfAGpuAreWrittenAsPyTorchWritesThem) {
  Recorder recorder;
  DeviceSpan s;
  s.name = "experts", s.kernel = "up<4>(Params)";
  s.start_ns = recorder.origin_ns() + 1000, s.end_ns = recorder.origin_ns() + 3500;
  s.grid = {132, 2, 1}, s.block = {256, 1, 1}, s.registers = 96, s.shared_bytes = 4096, s.correlation = 77;
  s.bytes = 1234, s.step = 5, s.stream = 13;
  recorder.add_device_spans({s});
  recorder.describe_device({"GPU \"X\"", 9, 0, 132, 32, 1000, 2048, 65536, 233472});
  write_chrome_trace(recorder, folder_ / "t.json");
  const json trace = json::parse(read_file(folder_ / "t.json"));
  EXPECT_EQ(trace["deviceProperties"][0]["name"], "GPU \"X\"");
  EXPECT_EQ(trace["deviceProperties"][0]["numSms"], 132);
  const json& e = event(trace, "experts");
  EXPECT_EQ(e["cat"], "kernel");
  EXPECT_EQ(e["ts"], 1.0);
  EXPECT_EQ(e["dur"], 2.5);
  EXPECT_EQ(e["args"]["grid"], json({132, 2, 1}));
  EXPECT_EQ(e["args"]["registers per thread"], 96);
  EXPECT_EQ(e["args"]["shared memory"], 4096);
  EXPECT_EQ(e["args"]["correlation"], 77);
  EXPECT_EQ(e["args"]["step"], 5);
}

TEST_F(ChromeTrace, AKernelLaunchedEarlyBeginsAtTheEndOfTheOneBeforeItOnItsStream) {
  Recorder recorder;
  const auto span = [&](const char* name, int64_t start, int64_t end, int32_t stream) {
    DeviceSpan s;
    s.name = name, s.start_ns = recorder.origin_ns() + start, s.end_ns = recorder.origin_ns() + end, s.stream = stream;
    return s;
  };
  recorder.add_device_spans({span("up", 1000, 9000, 7), span("beside", 2000, 4000, 8), span("down", 5000, 12000, 7),
                             span("within", 6000, 11000, 7), span("later", 15000, 16000, 7)});
  write_chrome_trace(recorder, folder_ / "t.json");
  const json trace = json::parse(read_file(folder_ / "t.json"));
  const auto expect = [&](const char* name, double start, double duration, double early) {
    const json& e = event(trace, name);
    EXPECT_DOUBLE_EQ(e["ts"].get<double>(), start) << name;
    EXPECT_DOUBLE_EQ(e["dur"].get<double>(), duration) << name;
    EXPECT_DOUBLE_EQ(e["args"].value("early us", 0.0), early) << name;
  };
  expect("up", 1, 8, 0);
  expect("beside", 2, 2, 0);
  expect("down", 9, 3, 4);
  expect("within", 11, 0, 5);  // all of it before the end of the one before
  expect("later", 15, 1, 0);
}

TEST_F(ChromeTrace, GpusHaveProcessesOfTheirOwnAndStepsThatWereLeftOutAreNamed) {
  Recorder recorder;
  std::vector<DeviceSpan> spans(2);
  for (const int32_t device : {0, 1}) spans[static_cast<size_t>(device)].device = device;
  spans[0].name = "experts", spans[1].name = "head";
  recorder.add_device_spans(spans);
  recorder.describe_device({"GPU", 9, 0, 132, 32, 1000, 2048, 65536, 233472});
  SpanRecord skipped = op(kSkippedCategory, recorder.origin_ns(), recorder.origin_ns() + 5000);
  skipped.category = kSkippedCategory, skipped.shape = {8};
  recorder.add(skipped);
  recorder.set_cost({10, 2, 1.0, 0.021});
  write_chrome_trace(recorder, folder_ / "t.json");
  const json trace = json::parse(read_file(folder_ / "t.json"));
  ASSERT_EQ(trace["deviceProperties"].size(), 2u);
  EXPECT_EQ(trace["deviceProperties"][1]["id"], 1);
  EXPECT_EQ(event(trace, "experts")["args"]["device"], 0);
  EXPECT_EQ(event(trace, "head")["args"]["device"], 1);
  EXPECT_EQ(event(trace, "head")["pid"], 1);
  EXPECT_EQ(event(trace, "8 steps not recorded")["cat"], "user_annotation");
  EXPECT_EQ(event(trace, "8 steps not recorded")["dur"], 5.0);
  EXPECT_EQ(trace["otherData"]["steps"], "10");
  EXPECT_EQ(trace["otherData"]["steps_recorded"], "2");
  EXPECT_EQ(trace["otherData"]["recording_overhead"], "2.1 %");
}

TEST_F(ChromeTrace, HoldsEveryOpWithItsArguments) {
  Recorder recorder;
  SpanRecord r = op("linear_fp8", recorder.origin_ns() + 1234567, recorder.origin_ns() + 1236567);
  r.bytes = 4000;
  r.flops = 6000;
  r.shape = {12, 512, 1024};
  r.step = 3;
  recorder.add(r);
  write_chrome_trace(recorder, folder_ / "t.json", {{"model", "models/fairy"}});
  const json trace = json::parse(read_file(folder_ / "t.json"));
  const json& e = event(trace, "linear_fp8");
  EXPECT_EQ(e["ph"], "X");
  EXPECT_EQ(e["cat"], "cpu_op");
  EXPECT_EQ(e["tid"], 7);
  EXPECT_EQ(e["pid"], static_cast<int>(::getpid()));
  EXPECT_DOUBLE_EQ(e["ts"].get<double>(), 1234.567);
  EXPECT_DOUBLE_EQ(e["dur"].get<double>(), 2.0);
  EXPECT_EQ(e["args"]["shape"], "12x512x1024");
  EXPECT_EQ(e["args"]["bytes"], 4000);
  EXPECT_EQ(e["args"]["flops"], 6000);
  EXPECT_EQ(e["args"]["step"], 3);
  EXPECT_DOUBLE_EQ(e["args"]["GB/s"].get<double>(), 2.0);
  EXPECT_DOUBLE_EQ(e["args"]["GFLOP/s"].get<double>(), 3.0);
  EXPECT_EQ(trace["otherData"]["model"], "models/fairy");
  EXPECT_EQ(trace["otherData"]["spans_dropped"], "0");
}

TEST_F(ChromeTrace, NamesStepsThreadsAndTheProcess) {
  Recorder recorder;
  recorder.name_thread("engine \"1\"\n");
  { StepSpan step(&recorder, 12, 0); }
  { StepSpan step(&recorder, 0, 3); }
  recorder.add(op("x", 5, 6));
  write_chrome_trace(recorder, folder_ / "t.json");
  const json trace = json::parse(read_file(folder_ / "t.json"));
  EXPECT_EQ(event(trace, "step 1: prefill 12 tokens")["cat"], "user_annotation");
  EXPECT_EQ(event(trace, "step 2: decode B=3")["args"]["decode_sequences"], 3);
  EXPECT_EQ(event(trace, "process_name")["args"]["name"], "fathom");
  std::map<int, std::string> names;
  for (const json& e : trace["traceEvents"])
    if (e["name"] == "thread_name") names[e["tid"]] = e["args"]["name"];
  EXPECT_EQ(names[Recorder::this_thread()], "engine \"1\"\n");
  EXPECT_EQ(names[7], "thread 7");
}

TEST_F(ChromeTrace, KeepsNanosecondsOfLongRunsAndOfTimesBeforeTheStart) {
  Recorder recorder;
  const int64_t day = 86'400'000'000'000;
  recorder.add(op("late", recorder.origin_ns() + day + 1, recorder.origin_ns() + day + 2));
  recorder.add(op("early", recorder.origin_ns() - 1, recorder.origin_ns()));
  write_chrome_trace(recorder, folder_ / "t.json");
  const std::string text = read_file(folder_ / "t.json");
  EXPECT_NE(text.find("\"ts\":86400000000.001,\"dur\":0.001"), std::string::npos);
  EXPECT_NE(text.find("\"ts\":-0.001,\"dur\":0.001"), std::string::npos);
}

TEST_F(ChromeTrace, IsCompressedWhenTheNameSaysSo) {
  Recorder recorder;
  for (int i = 0; i < 20000; ++i) recorder.add(op("embed", i * 10, i * 10 + 5));
  write_chrome_trace(recorder, folder_ / "t.json");
  write_chrome_trace(recorder, folder_ / "t.json.gz");
  const std::string text = gunzip(folder_ / "t.json.gz");
  EXPECT_EQ(text, read_file(folder_ / "t.json"));
  EXPECT_EQ(json::parse(text)["traceEvents"].size(), 20002u);
  EXPECT_LT(std::filesystem::file_size(folder_ / "t.json.gz"), text.size() / 5);
}

TEST_F(ChromeTrace, IsValidWithoutAnySpan) {
  write_chrome_trace(Recorder(), folder_ / "t.json");
  EXPECT_EQ(json::parse(read_file(folder_ / "t.json"))["traceEvents"].size(), 1u);
}

TEST_F(ChromeTrace, FullDiskIsAnErrorThatNamesThePath) {
  Recorder recorder;
  recorder.add(op("x", 1, 2));
  try {
    write_chrome_trace(recorder, "/dev/full");
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("/dev/full"), std::string::npos) << e.what();
    EXPECT_NE(std::string(e.what()).find("No space left"), std::string::npos) << e.what();
  }
}

TEST_F(ChromeTrace, MissingFolderIsAnErrorAndLeavesNothingBehind) {
  EXPECT_THROW(write_chrome_trace(Recorder(), folder_ / "none" / "t.json"), Error);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST(StepLabel, NamesPrefillDecodeAndBoth) {
  EXPECT_EQ(step_label(12, 0), "prefill 12 tokens");
  EXPECT_EQ(step_label(1, 0), "prefill 1 token");
  EXPECT_EQ(step_label(0, 1), "decode B=1");
  EXPECT_EQ(step_label(12, 3), "prefill 12 tokens + decode B=3");
  EXPECT_EQ(step_label(0, 0), "empty");
}

}  // namespace
}  // namespace fathom::profile

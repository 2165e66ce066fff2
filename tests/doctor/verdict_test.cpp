// The verdict on traces that are made here, so that every share is known.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <fstream>

#include "doctor/report.h"
#include "doctor/server.h"
#include "trace/reader.h"

namespace fathom::doctor {
namespace {

constexpr int sms = 132;

/// A decode trace of `steps` steps in the form of PyTorch's profiler. A step is, in microseconds: attention 500,
/// experts 200, a dense product 100, three pieces of glue of 20 and 10 of gap in front of each, an all-reduce 40, then
/// 60 idle.
struct Made {
  std::string text =
      R"({"deviceProperties":[{"id":0,"name":"NVIDIA H200","numSms":132,"computeMajor":9,"computeMinor":0}],"traceEvents":[)";
  double at = 1000;
  bool first = true;

  void event(const std::string& category, const std::string& name, double start, double length,
             const std::string& arguments) {
    text += fmt::format(
        "{}{{\"ph\":\"X\",\"cat\":\"{}\",\"name\":\"{}\",\"pid\":0,\"tid\":7,\"ts\":{:.3f},\"dur\":{:.3f},\"args\":{{{}"
        "}}}}",
        first ? "" : ",", category, name, start, length, arguments);
    first = false;
  }
  void kernel(const std::string& name, double length, int blocks, double gap = 0) {
    at += gap;
    event("kernel", name, at, length,
          fmt::format("\"device\":0,\"stream\":7,\"grid\":[{},1,1],\"block\":[256,1,1]", blocks));
    at += length;
  }
  void step(int number, double attention = 500) {
    const double start = at;
    kernel("flash_mla_sparse_decode", attention, 64);
    kernel("deep_gemm_grouped_moe_gemm", 200, sms);
    kernel("cutlass_gemm_tensorop", 100, sms);
    for (int i = 0; i < 3; ++i) kernel("rms_norm_kernel", 20, sms, 10);
    kernel("ncclDevKernel_AllReduce_Sum", 40, 24);
    event("gpu_user_annotation", fmt::format("execute_step_{}", number), start, at - start, "");
    at += 60;
  }
  trace::Trace done() {
    text += "]}";
    return trace::read_trace_bytes(std::as_bytes(std::span(text)), "made.json");
  }
};

const Part& part(const Verdict& v, const std::string& id) {
  for (const Part& p : v.parts)
    if (p.id == id) return p;
  throw std::logic_error("no part " + id);
}

Verdict judge_made(Made& made, std::optional<BoundQuestion> question = {}) {
  const trace::Trace t = made.done();
  return judge(trace::analyse(t, trace::CategoryRules::built_in()), question);
}

TEST(Verdict, DividesAStepIntoItsPartsToTheMicrosecond) {
  Made made;
  for (int i = 0; i < 8; ++i) made.step(i);
  const Verdict v = judge_made(made);
  ASSERT_EQ(v.steps, 8u);
  EXPECT_EQ(v.device, "NVIDIA H200");
  EXPECT_NEAR(part(v, "attention").seconds, 500e-6, 1e-7);
  EXPECT_NEAR(part(v, "experts").seconds, 200e-6, 1e-7);
  EXPECT_NEAR(part(v, "dense").seconds, 100e-6, 1e-7);
  EXPECT_NEAR(part(v, "glue").seconds, 60e-6, 1e-7);
  EXPECT_NEAR(part(v, "communication").seconds, 40e-6, 1e-7);
  EXPECT_NEAR(part(v, "launch_gaps").seconds, 30e-6, 1e-7);
  EXPECT_NEAR(part(v, "host_idle").seconds, 60e-6 * 7 / 8, 1e-7);  // none behind the last step
  double shares = 0, seconds = 0;
  for (const Part& p : v.parts) shares += p.share, seconds += p.seconds;
  EXPECT_NEAR(shares, 1, 1e-9);
  EXPECT_NEAR(seconds, v.seconds, 1e-12);
  EXPECT_EQ(v.largest, "attention");
}

TEST(Verdict, PartsThatMatterHaveCauseAndRemedy) {
  Made made;
  for (int i = 0; i < 8; ++i) made.step(i);
  const Verdict v = judge_made(made);
  for (const Part& p : v.parts) {
    EXPECT_FALSE(p.cause.empty()) << p.id;
    EXPECT_TRUE(p.share < 0.01 || !p.remedy.empty()) << p.id;
  }
  EXPECT_NE(part(v, "attention").cause.find("64 blocks"), std::string::npos) << part(v, "attention").cause;
}

TEST(Verdict, PrefillStepsAreLeftOutAndTold) {
  Made made;
  for (int i = 0; i < 9; ++i) made.step(i, i == 4 ? 20'000 : 500);
  const Verdict v = judge_made(made);
  EXPECT_EQ(v.steps, 8u);
  EXPECT_EQ(v.left_out, 1u);
  EXPECT_NEAR(part(v, "attention").seconds, 500e-6, 1e-7);
  EXPECT_NE(verdict_sentence(v).find("1 more over twice the median left out as prefill"), std::string::npos);
}

TEST(Verdict, StepsOfFathomsOwnProfilesAreOneKindWhateverTheyHold) {
  Made made;
  made.text = R"({"otherData":{"producer":"fathom"},"traceEvents":[)";
  for (int i = 0; i < 12; ++i) {
    const double length = i % 4 == 0 ? 900 : 100;  // every fourth reads a prompt too
    const double start = made.at;
    made.event("cpu_op", "linear_fp8", start, length, "");
    made.at += length;
    made.event("user_annotation", fmt::format("step {}: {}decode B=4", i + 1, i % 4 == 0 ? "prefill 64 tokens + " : ""),
               start, length, "");
    made.at += 10;
  }
  const Verdict v = judge_made(made);
  EXPECT_EQ(v.steps, 9u);
  EXPECT_EQ(v.left_out, 3u);
  EXPECT_NEAR(part(v, "dense").seconds, 100e-6, 1e-7);
}

TEST(Verdict, CommunicationCountsOnlyWhereNothingElseRuns) {
  Made made;
  for (int i = 0; i < 6; ++i) {
    const double start = made.at;
    // The all-reduce lies under the product for 60 of its 100 us.
    made.event("kernel", "ncclDevKernel_AllReduce_Sum", start, 100, "\"device\":0,\"stream\":9");
    made.kernel("cutlass_gemm_tensorop", 60, sms, 0);
    made.at = start + 100;
    made.event("gpu_user_annotation", fmt::format("execute_step_{}", i), start, 100, "");
  }
  const Verdict v = judge_made(made);
  EXPECT_NEAR(part(v, "dense").seconds, 60e-6, 1e-7);
  EXPECT_NEAR(part(v, "communication").seconds, 40e-6, 1e-7);
}

TEST(Verdict, BoundsOfThePartsAreThoseOfThePlan) {
  Made made;
  for (int i = 0; i < 8; ++i) made.step(i);
  BoundQuestion q{plan::find_model("v4-flash"), {}, 16, 8192};
  q.devices.gpu = plan::GpuTable().find("h200");
  const Verdict v = judge_made(made, q);
  const plan::StepBound b = plan::bound(q.model, q.devices, 16, 8192);
  ASSERT_TRUE(v.bound.has_value());
  EXPECT_DOUBLE_EQ(v.bound->time(), b.time());
  const double parts = part(v, "attention").bound + part(v, "experts").bound + part(v, "dense").bound;
  EXPECT_GE(parts, b.memory_time * 0.999);  // each part has its own limit, so together they are no less
  EXPECT_LE(parts, (b.memory_time + b.matrix_time) * 1.001);
  EXPECT_EQ(part(v, "glue").bound, 0);
}

TEST(Verdict, TraceWithoutStepsIsJudgedWhole) {
  Made made;
  made.kernel("some_kernel_a", 100, sms);
  made.kernel("cutlass_gemm_tensorop", 300, sms, 5'000);
  const Verdict v = judge_made(made);
  EXPECT_EQ(v.steps, 0u);
  EXPECT_NEAR(part(v, "host_idle").seconds, 5e-3, 1e-7);  // longer than a launch gap
  EXPECT_NE(verdict_sentence(v).find("no steps"), std::string::npos);
}

TEST(Verdict, TraceWithoutWorkIsNotJudged) {
  Made made;
  const Verdict v = judge_made(made);
  EXPECT_NE(verdict_sentence(v).find("nothing to judge"), std::string::npos);
}

TEST(Verdict, TextsOfATraceStayTextInMarkdown) {
  Made made;
  for (int i = 0; i < 6; ++i) {
    made.kernel("evil|<script>kernel", 100, 4);
    made.kernel("rms_norm_kernel", 5, 4, 3);
  }
  Report r;
  r.verdicts.push_back(judge_made(made));
  r.checks.push_back({"server", Level::bad, "a | b <img>", "c", "d"});
  const std::string text = markdown_report(r);
  EXPECT_EQ(text.find("<script"), text.find("\\<script") == text.npos ? text.npos : text.find("\\<script") + 1);
  EXPECT_NE(text.find("a \\| b \\<img\\>"), std::string::npos) << text;
  EXPECT_EQ(json_report(r).front(), '{');
}

TEST(Metrics, EnginesAreToldApart) {
  EXPECT_EQ(engine_of_metrics("# HELP x\nvllm:num_requests_running 1\nfathom_engine_steps_total 3\n"), "fathom");
  EXPECT_EQ(engine_of_metrics("sglang:num_running_reqs{model=\"a\"} 1\n"), "SGLang");
  EXPECT_EQ(engine_of_metrics("vllm:num_requests_running 1\n"), "vLLM");
  EXPECT_EQ(engine_of_metrics("<html>"), "unknown");
}

TEST(Metrics, SamplesOfAMetricAreAdded) {
  const std::string text = "# TYPE a counter\na{x=\"1 }\"} 2\na{x=\"2\"} 3.5\nab 100\na NaN\nb 1e3\n";
  EXPECT_DOUBLE_EQ(metric(text, "a").value(), 5.5);
  EXPECT_DOUBLE_EQ(metric(text, "b").value(), 1000);
  EXPECT_FALSE(metric(text, "c").has_value());
}

TEST(Metrics, WhatGrewDuringTheLoadIsExplained) {
  const std::string before =
      "fathom_engine_failures_total 1\nfathom_requests_refused_total 0\nvllm:num_requests_running 3\n";
  const std::string after =
      "fathom_engine_failures_total 3\nfathom_requests_refused_total 2\nvllm:num_requests_running 0\n";
  const auto checks = metrics_checks(before, after);
  size_t bad = 0, warnings = 0;
  for (const Check& c : checks) {
    bad += c.level == Level::bad, warnings += c.level == Level::warning;
    EXPECT_TRUE(c.level == Level::ok || !c.remedy.empty()) << c.found;
  }
  EXPECT_EQ(bad, 1u);       // two steps failed
  EXPECT_EQ(warnings, 2u);  // two refused, three of others
  EXPECT_EQ(metrics_checks(before, before).size(), 2u);
}

}  // namespace
}  // namespace fathom::doctor

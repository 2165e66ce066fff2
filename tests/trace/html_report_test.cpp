// The HTML report as a file: complete in itself, harmless whatever the trace holds, and with the numbers of the JSON.
// What a browser makes of it is checked by html_browser.sh.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/utf8.h"
#include "html/embedded.h"
#include "make_trace.h"
#include "trace/analysis.h"
#include "trace/html/assets.h"
#include "trace/html/html_report.h"
#include "trace/html/timeline.h"
#include "trace/json_report.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

using nlohmann::json;
const std::filesystem::path derived = FATHOM_SOURCE_DIR "/tests/trace/derived";

struct Page {
  std::string html;
  json data, document;  // what the page holds, what json_report says
};

Page page_of(const std::vector<const Trace*>& traces, const HtmlLimits& limits = {}) {
  std::vector<Analysis> analyses;
  for (const Trace* t : traces) analyses.push_back(analyse(*t, CategoryRules::built_in()));
  const std::string document = json_report(analyses);
  Page page{html_report(analyses, document, limits), {}, json::parse(document)};
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const size_t begin = page.html.find(open);
  EXPECT_NE(begin, std::string::npos);
  const size_t from = begin + open.size();
  page.data = json::parse(page.html.substr(from, page.html.find('<', from) - from));
  return page;
}

Page page_of(const Trace& trace, const HtmlLimits& limits = {}) {
  return page_of(std::vector<const Trace*>{&trace}, limits);
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

/// Names of the elements in order of their tags, scripts and styles read as raw text; "" when tags do not nest.
std::vector<std::string> elements(const std::string& html) {
  std::vector<std::string> seen, open;
  for (size_t at = html.find('<'); at != std::string::npos; at = html.find('<', at)) {
    const size_t end = html.find('>', at);
    if (end == std::string::npos) return {""};
    const std::string tag = html.substr(at + 1, end - at - 1);
    const bool closes = tag.starts_with('/');
    const size_t skip = closes ? 1 : 0;
    const std::string name = tag.substr(skip, tag.find(' ') == std::string::npos ? tag.size() : tag.find(' ') - skip);
    at = end + 1;
    if (name == "!DOCTYPE" || name == "meta") continue;
    if (closes) {
      if (open.empty() || open.back() != name) return {"", name};
      open.pop_back();
      continue;
    }
    seen.push_back(name);
    open.push_back(name);
    if (name == "script" || name == "style") {
      at = html.find("</" + name, at);
      if (at == std::string::npos) return {"", name};
    }
  }
  return open.empty() ? seen : std::vector<std::string>{"", open.back()};
}

/// Steps marked on the GPU row, the second one slower; two kernels in each.
Trace stepped(size_t steps = 5) {
  std::vector<std::string> events;
  double at = 1000;
  for (size_t i = 0; i < steps; ++i) {
    const double slow = i == 1 ? 50 : static_cast<double>(i);
    events.push_back(event_text("gpu_user_annotation", "decode_step", at, 30 + slow, R"({"device": 0, "stream": 7})"));
    events.push_back(
        kernel_text("gemm<1, 2>", at, 10, R"({"device": 0, "stream": 7, "grid": [64, 1, 1], "block": [256, 1, 1]})"));
    events.push_back(kernel_text("softmax", at + 15, 15 + slow, R"({"device": 0, "stream": 7})"));
    at += 60 + slow;
  }
  return read_text(trace_text(events));
}

TEST(HtmlReport, IsOneWellFormedDocument) {
  const Page page = page_of(stepped());
  EXPECT_TRUE(page.html.starts_with("<!DOCTYPE html>"));
  EXPECT_TRUE(is_valid_utf8(page.html));
  const std::vector<std::string> expected{"html", "head", "title",  "style", "body",   "main",   "noscript",
                                          "div",  "p",    "strong", "p",     "script", "script", "script"};
  EXPECT_EQ(elements(page.html), expected);
  EXPECT_NE(page.html.find("<title>fathom trace: test.json</title>"), std::string::npos);
}

TEST(HtmlReport, LoadsNothing) {
  const Page page = page_of(stepped());
  std::string rest = page.html;
  const size_t notice = rest.find("https://github.com/leeoniya/uPlot");  // the licence notice, a comment
  ASSERT_NE(notice, std::string::npos);
  rest.erase(notice, 33);
  for (const char* part : {"http:", "https:", "src=", "@import", "url(", "fetch(", "XMLHttpRequest", "WebSocket",
                           "import(", "EventSource", "sendBeacon", "<link", "<iframe", "<img"})
    EXPECT_EQ(count_of(rest, part), 0u) << part;
  EXPECT_NE(page.html.find("default-src 'none'"), std::string::npos);
}

TEST(HtmlReport, ItsOwnScriptsPutTextsOnThePageAsTextOnly) {
  for (const std::string_view script :
       {embedded::html_common_js(), embedded::trace_kernels_js(), embedded::trace_ranking_js(),
        embedded::trace_timeline_js(), embedded::trace_sections_js(), embedded::trace_comparison_js(),
        embedded::trace_page_js()})
    for (const char* part :
         {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "</"})
      EXPECT_EQ(script.find(part), std::string_view::npos) << part;
}

TEST(HtmlReport, HostileTextsStayText) {
  const std::string hostile = "</script><img src=x onerror=alert(1)><!-- <script>window.pwned=1</script>";
  const Trace trace = read_text(
      trace_text({kernel_text(hostile, 1000, 10), event_text("kernel", "b", 1010, 5, "", "0", "\"" + hostile + "\""),
                  event_text(hostile, hostile, 1020, 5)}),
      "<img src=x onerror=alert(2)>.json");
  const Page page = page_of(trace);
  EXPECT_EQ(count_of(page.html, "<script"), 3u);
  EXPECT_EQ(count_of(page.html, "</script"), 3u);
  EXPECT_EQ(count_of(page.html, "<img"), 0u);
  EXPECT_EQ(count_of(page.html, "<!--"), 0u);
  EXPECT_EQ(page.data["traces"][0]["ranking"][0]["name"], hostile);
  EXPECT_NE(page.html.find("&lt;img src=x onerror=alert(2)&gt;.json"), std::string::npos);
  EXPECT_NE(elements(page.html).front(), "");

  const Page collected = page_of(read_trace(derived / "43_hostile_names.json"));
  EXPECT_EQ(count_of(collected.html, "<script"), 3u);
  EXPECT_NE(elements(collected.html).front(), "");
}

TEST(HtmlReport, HoldsTheNumbersOfTheJson) {
  for (const char* name : {"26_two_streams_overlap.json", "41_two_gpus_same_stream_id.json",
                           "01_truncated_mid_event.json", "20_ts_zero_kernel.json", "34_empty_events.json"}) {
    Page page = page_of(read_trace(derived / name));
    for (json& trace : page.data["traces"]) {
      trace.erase("page");
      for (json& device : trace["devices"])
        for (json& hole : device["holes"]) hole.erase("offset_ns");
    }
    for (json& trace : page.document["traces"]) trace["steps"].erase("steps");
    EXPECT_EQ(page.data, page.document) << name;
  }
}

TEST(HtmlReport, DamageIsToldWithoutScriptsToo) {
  const Page page = page_of(read_trace(derived / "01_truncated_mid_event.json"));
  EXPECT_NE(page.html.find("</strong>: PARTIAL. "), std::string::npos);
  EXPECT_TRUE(page.data["traces"][0]["import"]["partial"].get<bool>());
  EXPECT_TRUE(page.data["traces"][0]["import"]["partial_offset"].is_number());
}

TEST(HtmlReport, TheTimelineShowsTheMedianAndTheSlowestStep) {
  const Page page = page_of(stepped());
  const json& views = page.data["traces"][0]["page"]["timelines"];
  ASSERT_EQ(views.size(), 2u);
  EXPECT_NE(views[0]["title"].get<std::string>().find("median"), std::string::npos);
  EXPECT_EQ(views[0]["span_ns"], 33'000);  // steps take 30, 80, 32, 33, 34 us
  EXPECT_NE(views[1]["title"].get<std::string>().find("step 2 of 5 (the slowest)"), std::string::npos);
  EXPECT_EQ(views[1]["start"], json({0, 15'000}));
  EXPECT_EQ(views[1]["duration"], json({10'000, 65'000}));
  EXPECT_EQ(views[1]["kernels"][0]["name"], "gemm<1, 2>");
  EXPECT_EQ(views[1]["shapes"][0]["grid"], json({64, 1, 1}));
  EXPECT_EQ(views[1]["streams"], json({"7"}));
  EXPECT_EQ(views[1]["left_out"], 0);
  EXPECT_EQ(page.data["traces"][0]["page"]["steps"]["duration"], json({30'000, 80'000, 32'000, 33'000, 34'000}));
}

TEST(HtmlReport, WithoutStepsTheTimelineShowsTheBusiestStretch) {
  const Trace trace = read_text(
      trace_text({kernel_text("a", 1000, 10), kernel_text("b", 900'000, 500), kernel_text("c", 900'700, 90)}));
  const json views = page_of(trace).data["traces"][0]["page"]["timelines"];
  ASSERT_EQ(views.size(), 1u);
  EXPECT_EQ(views[0]["span_ns"], 790'000);
  EXPECT_EQ(views[0]["start"], json({0, 700'000}));
  EXPECT_EQ(views[0]["offset_ns"], 899'000'000);
}

TEST(HtmlReport, WhatTheLimitsCutIsTold) {
  std::vector<std::string> events;
  for (int i = 0; i < 300; ++i) events.push_back(kernel_text(fmt::format("kernel_{}", i), 1000 + 10 * i, 300 - i));
  for (int i = 0; i < 15; ++i) events.push_back(event_text(fmt::format("odd_{}", i), "o", 1, 1));
  events.push_back(kernel_text("long_" + std::string(500, 'x'), 3991, 5000));
  const Trace trace = read_text(trace_text(events));
  const HtmlLimits limits{
      .timeline_events = 50, .ranking_rows = 20, .list_entries = 10, .steps = 10, .name_bytes = 100};
  const Page page = page_of(trace, limits);
  const json& shown = page.data["traces"][0];
  ASSERT_EQ(shown["ranking"].size(), 20u);
  const json& rest = shown["page"]["ranking_rest"];
  EXPECT_EQ(rest["names"], 281);
  int64_t total = rest["total_ns"];
  for (const json& row : shown["ranking"]) total += row["total_ns"].get<int64_t>();
  EXPECT_EQ(total, shown["total_ns"].get<int64_t>());
  EXPECT_EQ(shown["page"]["left_out"]["ranking"], 281);
  EXPECT_EQ(shown["import"]["categories"].size(), 10u);
  EXPECT_EQ(shown["page"]["left_out"]["import.categories"], 6);
  EXPECT_EQ(shown["page"]["timelines"][0]["start"].size(), 50u);
  EXPECT_EQ(shown["page"]["timelines"][0]["left_out"], 251);
  const std::string name = shown["ranking"][0]["name"];
  EXPECT_NE(name.find("… (405 more bytes)"), std::string::npos) << name;
}

TEST(HtmlReport, StaysSmallForManyEventsAndNames) {
  std::vector<std::string> events;
  for (int i = 0; i < 60'000; ++i)
    events.push_back(kernel_text(fmt::format("kernel_{}_{}", i % 5000, std::string(80, 'n')), 1000 + 3 * i, 2));
  const Page page = page_of(read_text(trace_text(events)));
  EXPECT_LT(page.html.size(), size_t{5} << 20);
}

TEST(HtmlReport, NamesThatReadTheSameStayApart) {
  const Trace trace = read_text(
      trace_text({kernel_text("f(int)", 1000, 9), kernel_text("f(float)", 1010, 8), kernel_text("g(int)", 1020, 7)}));
  const json names = page_of(trace).data["traces"][0]["page"]["names"];
  EXPECT_EQ(names, json({{"g(int)", "g"}}));
}

TEST(HtmlReport, SeveralFilesShareThePage) {
  const Trace a = stepped(3), b = stepped(5);
  const Page page = page_of({&a, &b});
  ASSERT_EQ(page.data["traces"].size(), 2u);
  EXPECT_EQ(page.data["traces"][0]["page"]["steps"]["count"], 3);
  EXPECT_EQ(page.data["traces"][1]["page"]["steps"]["count"], 5);
  EXPECT_NE(page.html.find("<title>fathom trace: 2 files</title>"), std::string::npos);
}

TEST(HtmlReport, TheSameTraceGivesTheSameFile) {
  EXPECT_EQ(page_of(stepped()).html, page_of(stepped()).html);
}

TEST(StepPoints, KeepTheExtremes) {
  StepAnalysis steps;
  steps.steps.resize(10'000);
  for (size_t i = 0; i < steps.steps.size(); ++i) steps.steps[i].end = 100 + static_cast<Ns>(i % 7);
  steps.steps[4321].end = 9000;
  steps.steps[777].end = 1;
  const std::vector<size_t> points = step_points(steps, 100);
  EXPECT_LE(points.size(), 100u);
  EXPECT_TRUE(std::is_sorted(points.begin(), points.end()));
  EXPECT_NE(std::find(points.begin(), points.end(), 4321u), points.end());
  EXPECT_NE(std::find(points.begin(), points.end(), 777u), points.end());
  EXPECT_EQ(step_points(steps, 20'000).size(), 10'000u);
}

}  // namespace
}  // namespace fathom::trace

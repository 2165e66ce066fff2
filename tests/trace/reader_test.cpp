// The reader on damage and on oddities that real producers write: nothing crashes, nothing is lost silently.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "make_trace.h"
#include "trace/json_scan.h"
#include "trace/launches.h"
#include "trace/summary.h"

namespace fathom::trace {
namespace {

Ns total(const Trace& t) {
  Ns sum = 0;
  for (const GpuEvent& e : t.events) sum += e.duration;
  return sum;
}

std::vector<std::string> many_kernels(int n) {
  std::vector<std::string> out;
  for (int i = 0; i < n; ++i)
    out.push_back(kernel_text(fmt::format("k{}", i % 7), 1000 + 10 * i, 5,
                              fmt::format("{{\"correlation\": {}, \"text\": \"a, {{\\\"ph\\\"\"}}", i + 1)));
  return out;
}

std::string error_of(const std::string& text, const std::string& name = "x.json") {
  try {
    read_text(text, name);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Numbers, AreExactDecimalsInNanoseconds) {
  int64_t ns = 0;
  const auto us = [&](std::string_view text) {
    EXPECT_TRUE(parse_scaled(text, 3, ns)) << text;
    return ns;
  };
  EXPECT_EQ(us("1712165509000000.123"), 1712165509000000123);
  EXPECT_EQ(us("1.0e3"), 1'000'000);
  EXPECT_EQ(us("4e1"), 40'000);
  EXPECT_EQ(us("4.3961589999999999"), 4396);
  EXPECT_EQ(us("0.0005"), 1);
  EXPECT_EQ(us("-0.0005"), -1);
  EXPECT_EQ(us("1e-30"), 0);
  EXPECT_EQ(us("-7"), -7000);
  for (const char* bad : {"", "-", "inf", "NaN", "1e", "1.2.3", "0x10", "1e400", "9223372036854775807", "1-2"})
    EXPECT_FALSE(parse_scaled(bad, 3, ns)) << bad;
}

RC_GTEST_PROP(Numbers, RoundTripNanosecondsThroughMicrosecondText, (int64_t value)) {
  const int64_t v = value % 4'000'000'000'000'000'000;
  const uint64_t magnitude = v < 0 ? 0 - static_cast<uint64_t>(v) : static_cast<uint64_t>(v);
  int64_t back = 0;
  RC_ASSERT(parse_scaled(fmt::format("{}{}.{:03}", v < 0 ? "-" : "", magnitude / 1000, magnitude % 1000), 3, back));
  RC_ASSERT(back == v);
}

TEST(Texts, EscapesAreResolvedAndUnknownOnesKept) {
  const auto decode = [](std::string_view text) { return decode_text({text, true, true, true}); };
  EXPECT_EQ(decode(R"(a\"b\\c\/d\n)"), "a\"b\\c/d\n");
  EXPECT_EQ(decode(R"(\u00e9\ud83d\ude00)"), "\xC3\xA9\xF0\x9F\x98\x80");
  EXPECT_EQ(decode(R"(\ud83d x)"), "\xEF\xBF\xBD x");
  EXPECT_EQ(decode(R"(C:\Users\me)"), "C:\\Users\\me");
}

TEST(Damage, ALostQuoteCostsOneEvent) {
  auto events = many_kernels(50);
  events[20] = R"({"ph": "X", "cat": "kernel", "name": "k", "pid": 0, tid": 7, "ts": 1200, "dur": 5})";
  const std::string text = trace_text(events);
  const Trace t = read_text(text);
  EXPECT_EQ(t.events.size(), 49u);
  EXPECT_TRUE(t.import.partial);
  ASSERT_EQ(t.import.damages.size(), 1u);
  EXPECT_EQ(t.import.partial_offset, text.find("tid\": 7, \"ts\": 1200"));
  EXPECT_NE(t.import.damages[0].context.find("tid"), std::string::npos);
}

TEST(Damage, AnUnescapedQuoteInsideANameCostsOneEvent) {
  auto events = many_kernels(50);
  events[10] = kernel_text("torch/_dynamo(\"x\", 3)", 1200, 5);
  const Trace t = read_text(trace_text(events));
  EXPECT_EQ(t.events.size(), 49u);
  EXPECT_EQ(t.import.damage_count, 1u);
}

TEST(Damage, AnExtraBraceIsPassedOver) {
  auto events = many_kernels(50);
  events[10] += "}";
  const Trace t = read_text(trace_text(events));
  EXPECT_EQ(t.events.size(), 50u);
  EXPECT_TRUE(t.import.partial);
}

TEST(Damage, EveryPrefixOfAFileGivesItsWholeEvents) {
  const auto events = many_kernels(12);
  const std::string text = trace_text(events);
  const size_t head = text.find('[', text.find("traceEvents"));
  for (size_t cut = head + 1; cut < text.size() - 1; ++cut) {
    const Trace t = read_text(text.substr(0, cut));
    size_t whole = 0;
    for (size_t at = text.find("\n{\"ph\""); at != std::string::npos && whole < events.size();
         at = text.find("\n{\"ph\"", at + 1)) {
      if (at + 1 + events[whole].size() > cut) break;
      ++whole;
    }
    ASSERT_EQ(t.events.size(), whole) << "cut at " << cut;
    EXPECT_EQ(t.import.partial, cut <= text.rfind('}')) << "cut at " << cut;
  }
}

RC_GTEST_PROP(Damage, BytesAnywhereNeverCrashAndNeverInventTime, ()) {
  std::string text = trace_text(many_kernels(40));
  const Ns whole = total(read_text(text));
  const int changes = *rc::gen::inRange(1, 5);
  for (int i = 0; i < changes; ++i) {
    const auto at = *rc::gen::inRange<size_t>(0, text.size());
    text[at] = *rc::gen::elementOf(std::string("\"{}[],:\\ x0\n"));
  }
  try {
    const Trace t = read_text(text, "x.json", {.window_bytes = 2000});
    RC_ASSERT(t.events.size() <= 40u);
    if (!t.import.partial && t.events.size() == 40u) RC_ASSERT(total(t) <= whole * 1000);
    const Trace again = read_text(text);
    RC_ASSERT(t.events.size() == again.events.size());
  } catch (const Error&) {
  }
}

TEST(Forms, ArraysMayEndAnywhereBetweenEvents) {
  const auto k = many_kernels(3);
  EXPECT_FALSE(read_text("[" + k[0] + "," + k[1]).import.partial);
  EXPECT_FALSE(read_text("[" + k[0] + "," + k[1] + ",\n").import.partial);
  EXPECT_EQ(read_text("[,{}," + k[0] + k[1] + ",,{}]").events.size(), 2u);
  EXPECT_EQ(read_text("[{}," + k[0] + ",{}]").import.empty_objects, 2u);
  EXPECT_TRUE(read_text("[" + k[0] + "] trailing").import.partial);
}

TEST(Forms, KeysAndNumbersInEverySpelling) {
  const Trace t = read_text(
      R"([{"\u0070h":"X","cat":"kernel","name":"k","name":"last","pid":"[TP03-DP00] 1","tid":"stream 9","ts":"1.5","dur":2E0},
    {"ph":"X","cat":"kernel","name":"n","pid":-1,"tid":99999999999,"ts":9,"dur":-4},
    {"ph":"X","cat":"kernel","name":"n","pid":-1,"tid":99999999999,"ts":9,"dur":inf},
    {"ph":"X","cat":"kernel","name":"n","pid":-1,"tid":99999999999,"dur":3}])");
  ASSERT_EQ(t.events.size(), 1u);
  EXPECT_EQ(t.name(t.events[0]), "last");
  EXPECT_EQ(t.events[0].start, 1500);
  EXPECT_EQ(t.devices[0].rank_label, "TP03-DP00");
  EXPECT_EQ(t.devices[0].rank, 3);
  EXPECT_EQ(t.streams[0].id, "9");
  EXPECT_EQ(t.import.negative_duration, 1u);
  EXPECT_EQ(t.import.no_duration, 1u);
  EXPECT_EQ(t.import.no_time, 1u);
  EXPECT_EQ(t.import.non_finite, 1u);
}

TEST(Forms, MergedRanksAreSplitByTheLabelInThePid) {
  const Trace t =
      read_text("[" + event_text("kernel", "k", 1, 5, R"({"device": 0})", "\"[TP00-DP00-PP00-EP00] 0\"") + "," +
                event_text("kernel", "k", 1, 5, R"({"device": 0})", "\"[TP01-DP00-PP00-EP00] 0\"") + "]");
  EXPECT_EQ(t.devices.size(), 2u);
  EXPECT_EQ(summarise(t).devices.size(), 2u);
}

TEST(Forms, MergedRanksMayUseTheSameCorrelations) {
  // Rank 1 launches late, rank 0 in time; both count their calls from 1.
  const auto call = [](const char* rank, double ts) {
    return event_text("cuda_runtime", "cudaLaunchKernel", ts, 2, R"({"correlation": 1})",
                      fmt::format("\"[{}] 99\"", rank));
  };
  const auto kernel = [](const char* rank, int correlation) {
    return event_text("kernel", "k", 100, 5, fmt::format(R"({{"device": 0, "correlation": {}}})", correlation),
                      fmt::format("\"[{}] 0\"", rank));
  };
  const Trace t = read_text(trace_text({call("TP00", 10), call("TP01", 90), kernel("TP00", 1), kernel("TP01", 1)}));
  ASSERT_EQ(t.events.size(), 2u);
  const LaunchTable launches(t);
  EXPECT_EQ(launches.start_of(t.events[0]), 10'000);
  EXPECT_EQ(launches.start_of(t.events[1]), 90'000);
  EXPECT_EQ(t.import.launches_without_work, 0u);
  const Trace lost = read_text(trace_text({call("TP00", 10), call("TP01", 90), kernel("TP00", 1), kernel("TP01", 2)}));
  EXPECT_EQ(lost.import.launches_without_work, 1u);
  EXPECT_EQ(lost.import.work_without_launch, 1u);
}

TEST(Forms, XlaOperationsOfAKindComeTogether) {
  const auto op = [](int ts, const char* name, const char* category) {
    return fmt::format(
        R"({{"ph":"X","pid":1,"tid":2,"ts":{},"dur":2,"name":"{}","args":{{"hlo_category":"{}","long_name":"%x"}}}},)",
        ts, name, category);
  };
  const std::string head =
      R"({"displayTimeUnit":"ns","traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:TPU:0"}},)"
      R"({"ph":"M","pid":1,"tid":2,"name":"thread_name","args":{"name":"XLA Ops"}},)";
  const Trace t = read_text(head + op(0, "while.3", "while") + op(1, "fusion.17", "convolution fusion") +
                            op(3, "fusion.18", "convolution fusion") + op(5, "fusion.2", "loop fusion") +
                            op(7, "all-reduce.1", "all-reduce") + op(9, "all-reduce", "all-reduce") + "{}]}");
  std::map<std::string, int> calls;
  for (const GpuEvent& e : t.events) ++calls[std::string(t.name(e))];
  EXPECT_EQ(calls, (std::map<std::string, int>{
                       {"fusion [convolution fusion]", 2}, {"fusion [loop fusion]", 1}, {"all-reduce", 2}}));
  ASSERT_EQ(t.import.notes.size(), 1u);  // the loop encloses its operations: told, not counted twice
  EXPECT_NE(t.import.notes[0].find("1 control-flow event of XLA"), std::string::npos) << t.import.notes[0];
}

TEST(Reading, TellsItsProgressAndEndsWithTheWholeFile) {
  const std::string text = trace_text(many_kernels(2000));
  uint64_t last = 0, calls = 0;
  ReadOptions options;
  options.window_bytes = 10'000;
  options.progress = [&](uint64_t done, uint64_t) {
    EXPECT_GE(done, last);
    last = done, ++calls;
  };
  EXPECT_EQ(read_text(text, "x.json", options).events.size(), 2000u);
  EXPECT_GT(calls, 3u);
  EXPECT_EQ(last, text.size());
}

TEST(Forms, AnnotationsSyncAndOverheadAreNotWork) {
  const Trace t = read_text(trace_text({kernel_text("k", 10, 5), event_text("gpu_user_annotation", "step", 9, 50),
                                        event_text("cuda_sync", "s", 9, 50), event_text("overhead", "o", 9, 50),
                                        event_text("cuda_runtime", "cudaLaunchKernel", 1, 2)}));
  EXPECT_EQ(t.events.size(), 1u);
  EXPECT_EQ(t.annotations.size(), 1u);
  EXPECT_EQ(t.calls.size(), 1u);
}

TEST(Forms, JaxStreamsAreWorkAndNestedRowsAreNot) {
  const auto named = [](const char* what, int tid, const char* name) {
    return fmt::format("{{\"ph\":\"M\",\"pid\":1,\"tid\":{},\"name\":\"{}\",\"args\":{{\"name\":\"{}\"}}}},", tid, what,
                       name);
  };
  const auto slice = [](int tid, int ts, int dur, const char* name) {
    return fmt::format("{{\"ph\":\"X\",\"pid\":1,\"tid\":{},\"ts\":{},\"dur\":{},\"name\":\"{}\"}},", tid, ts, dur,
                       name);
  };
  const Trace t =
      read_text("{\"displayTimeUnit\":\"ns\",\"traceEvents\":[" + named("process_name", 0, "/device:GPU:0") +
                named("thread_name", 1, "Stream #18(Compute,MemcpyD2D)") + named("thread_name", 2, "XLA Ops") +
                slice(1, 1, 2, "fusion") + slice(1, 5, 2, "MemcpyD2D") + slice(2, 1, 6, "fusion") + "{}]}");
  EXPECT_EQ(t.producer, Producer::jax_gpu);
  EXPECT_EQ(t.events.size(), 2u);
  EXPECT_EQ(total(t), 4000);
  EXPECT_EQ(t.import.empty_objects, 1u);
}

TEST(Forms, JaxKernelDetailsAreTheLaunch) {
  const std::string head =
      R"({"displayTimeUnit":"ns","traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:GPU:0"}},)"
      R"x({"ph":"M","pid":1,"tid":3,"name":"thread_name","args":{"name":"Stream #18(Compute)"}},)x";
  const Trace t = read_text(
      head +
      R"({"ph":"X","pid":1,"tid":3,"ts":1,"dur":2,"name":"gemm_fusion","args":{"correlation_id":"41","hlo_op":"dot.3",)"
      R"("kernel_details":"regs:226 static_shared:1024 dynamic_shared:65536 grid:64,2,1 block:128,1,1 occ_pct:16.6667"}},)"
      R"({"ph":"X","pid":1,"tid":3,"ts":5,"dur":2,"name":"MemcpyH2D","args":{"correlation_id":"42",)"
      R"("memcpy_details":"kind_src:pinned kind_dst:device size:4096 dest:0 async:1"}},)"
      R"({"ph":"X","pid":1,"tid":3,"ts":8,"dur":1,"name":"odd","args":{"kernel_details":"grid:x block regs:-4 : size:1e99"}},)"
      R"({}]})");
  ASSERT_EQ(t.events.size(), 3u);
  const LaunchShape& gemm = t.shape(t.events[0]);
  EXPECT_EQ(gemm.grid, (std::array<uint32_t, 3>{64, 2, 1}));
  EXPECT_EQ(gemm.block, (std::array<uint32_t, 3>{128, 1, 1}));
  EXPECT_EQ(gemm.registers, 226u);
  EXPECT_EQ(gemm.shared_bytes, 66560u);
  EXPECT_EQ(gemm.reported_occupancy, 17);
  EXPECT_EQ(t.events[0].correlation, 41);
  EXPECT_EQ(t.events[1].kind, WorkKind::memcpy);
  EXPECT_EQ(t.shape(t.events[1]).bytes, 4096);
  EXPECT_FALSE(t.shape(t.events[2]).has_grid());
}

TEST(Forms, ArgumentsReadTheSameBeforeAndBehindTheCategory) {
  // Arguments of a category that was met before are taken while the event is read; others from its text afterwards.
  const std::string args =
      R"("args": {"device": 1, "correlation": 12, "grid": [3, 2], "block": [64], "registers per thread": 32,)"
      R"( "shared memory": 1024, "warps per SM": 2.5, "nested": {"a": [1, {"b": ","}]}, "Collective name": "allreduce"})";
  const std::string rest = R"("name": "k", "pid": 0, "tid": 7, "dur": 2)";
  std::vector<std::string> before, behind;
  for (int i = 0; i < 20; ++i) {
    before.push_back(fmt::format("{{\"ph\": \"X\", {}, {}, \"cat\": \"kernel\", \"ts\": {}}}", args, rest, 10 * i));
    behind.push_back(fmt::format("{{\"ph\": \"X\", \"cat\": \"kernel\", {}, {}, \"ts\": {}}}", rest, args, 10 * i));
  }
  behind[7].insert(behind[7].size() - 1, R"(, "args": {"correlation": 99})");  // the last of two counts
  const Trace a = read_text(trace_text(before)), b = read_text(trace_text(behind));
  ASSERT_EQ(a.events.size(), 20u);
  ASSERT_EQ(b.events.size(), 20u);
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(a.events[i].correlation, 12);
    EXPECT_EQ(b.events[i].correlation, i == 7 ? 99 : 12);
    EXPECT_EQ(a.shape(a.events[i]).warps_per_sm, 2.5f);
    EXPECT_EQ(a.shape(a.events[i]).grid, (std::array<uint32_t, 3>{3, 2, 1}));
    if (i != 7) {
      EXPECT_EQ(a.shape(a.events[i]), b.shape(b.events[i]));
    } else {
      EXPECT_EQ(b.shape(b.events[i]), LaunchShape{});
    }
  }
  // Damage inside them is found at the same place with the same words, whichever way it is read.
  for (const char* broken : {R"({"a": 1])", R"({"a" 1})", R"({"a": 1 "b": 2})", R"({"a": [1}})", R"({,"a": nope})"}) {
    auto damaged = behind;
    damaged[10] = fmt::format("{{\"ph\": \"X\", \"cat\": \"kernel\", \"args\": {}, {}, \"ts\": 100}}", broken, rest);
    auto alone = damaged;
    alone.erase(alone.begin(), alone.begin() + 10);
    const Trace after = read_text(trace_text(damaged)), first = read_text(trace_text(alone));
    ASSERT_TRUE(after.import.partial && first.import.partial) << broken;
    EXPECT_EQ(after.import.damages[0].what, first.import.damages[0].what) << broken;
    EXPECT_EQ(after.import.damages[0].offset - first.import.damages[0].offset,
              trace_text(damaged).size() - trace_text(alone).size());
  }
}

TEST(Missing, LaunchesWithoutKernelsAreReported) {
  const Trace none =
      read_text(trace_text({event_text("cuda_runtime", "cudaLaunchKernel", 1, 2, R"({"correlation": 3})")}));
  ASSERT_FALSE(none.import.notes.empty());
  EXPECT_NE(none.import.notes[0].find("GPU activity missing"), std::string::npos);
  const Trace some =
      read_text(trace_text({event_text("cuda_runtime", "cudaLaunchKernel", 1, 2, R"({"correlation": 3})"),
                            event_text("cuda_runtime", "cudaLaunchKernel", 4, 2, R"({"correlation": 4})"),
                            kernel_text("k", 10, 5, R"({"correlation": 4})")}));
  EXPECT_EQ(some.import.launches_without_work, 1u);
}

TEST(Ranks, ComeFromTheFileItsNameOrNowhere) {
  const std::string text = trace_text({kernel_text("k", 1, 2)});
  EXPECT_EQ(read_text(trace_text({kernel_text("k", 1, 2)}, R"("distributedInfo": {"rank": 5, "world_size": 8}, )"),
                      "rank1.json")
                .rank,
            5);
  EXPECT_EQ(read_text(text, "rank-12.json").rank, 12);
  EXPECT_EQ(read_text(text, "host-TP-3-DECODE.trace.json").rank, 3);
  EXPECT_EQ(read_text(text, "worker3.pt.trace.json").rank, 3);
  EXPECT_FALSE(read_text(text, "frank3.json").rank.has_value());
  EXPECT_FALSE(read_text(text, "trace.json").rank.has_value());
}

TEST(Refusals, NameWhatTheFileIs) {
  using namespace std::string_literals;
  EXPECT_NE(error_of("PK\x03\x04zzzz").find("zip"), std::string::npos);
  EXPECT_NE(error_of("\x28\xB5\x2F\xFDzz").find("zstd"), std::string::npos);
  EXPECT_NE(error_of("").find("empty file"), std::string::npos);
  EXPECT_NE(error_of("  \n ").find("white space"), std::string::npos);
  EXPECT_NE(error_of(std::string(100, '\0'), "x.sqlite").find("zeroed SQLite header"), std::string::npos);
  EXPECT_NE(error_of("abc", "x.qdstrm").find("killed"), std::string::npos);
  EXPECT_NE(error_of("abc", "x.nsys-rep").find("nsys export"), std::string::npos);
  EXPECT_NE(error_of(R"({"schema": "1", "nodes": []})").find("execution trace"), std::string::npos);
  EXPECT_NE(error_of("[[1,2],[3,4]]").find("no trace events"), std::string::npos);
  EXPECT_NE(error_of(R"([{"a": 1}])").find("none is a trace event"), std::string::npos);
  EXPECT_NE(error_of("\n\x05\x0c\x08\x01"s + std::string(8, '\0'), "x.pftrace").find("binary"), std::string::npos);
  EXPECT_NE(error_of("<!DOCTYPE html>").find("HTML"), std::string::npos);
  EXPECT_NE(error_of("\x1F\x8B garbage that is no deflate stream").find("x.json"), std::string::npos);
}

TEST(Hostile, DeepNestingAndEndlessOpeningsTakeLinearTime) {
  std::string deep = "[";
  for (int i = 0; i < 200'000; ++i) deep += R"({"ph":"X","x":1},{"ph":"X","a":[)";
  EXPECT_TRUE(read_text(deep).import.partial);
  EXPECT_TRUE(read_text("[" + std::string(2'000'000, '[')).import.partial);
  EXPECT_TRUE(read_text("[{\"ph\":\"X\",\"args\":" + std::string(2'000'000, '{')).import.partial);
  std::string strings = "[";
  for (int i = 0; i < 100'000; ++i) strings += R"({"ph":"X","x":"abc)";
  EXPECT_TRUE(read_text(strings).import.partial);
}

TEST(Overlap, PointsOfNoDurationNeverSplitAHole) {
  const Trace t = read_text(trace_text({kernel_text("a", 10, 5), kernel_text("p", 17, 0), kernel_text("b", 20, 5)}));
  const Summary s = summarise(t);
  EXPECT_EQ(s.devices[0].hole_count, 1);
  EXPECT_EQ(s.devices[0].holes[0].duration, 5000);
  EXPECT_EQ(t.import.zero_duration, 1u);
}

TEST(Overlap, DependentLaunchIsFineAndClockDefectsAreTold) {
  // Neighbours overlap by a few microseconds: fine. One kernel outlasts dozens behind it: a defect.
  std::vector<std::string> fine, defect;
  for (int i = 0; i < 50; ++i) fine.push_back(kernel_text("k", 100 + 10 * i, 12));
  for (int i = 0; i < 50; ++i) defect.push_back(kernel_text("k", 100 + 10 * i, i == 5 ? 5000 : 8));
  EXPECT_EQ(summarise(read_text(trace_text(fine))).devices[0].streams[0].implausible, 0);
  EXPECT_GT(summarise(read_text(trace_text(defect))).devices[0].streams[0].implausible, 0);
}

TEST(Windows, OneHoleDoesNotSwallowTheBusyFigure) {
  std::vector<std::string> events = {kernel_text("early", 0.5, 4)};
  for (int i = 0; i < 100; ++i) events.push_back(kernel_text("k", 463'000 + 100 * i, 93));
  const Summary s = summarise(read_text(trace_text(events)));
  ASSERT_EQ(s.devices[0].windows.size(), 2u);
  const Window& w = s.devices[0].windows[1];
  EXPECT_GT(static_cast<double>(w.busy) / static_cast<double>(w.end - w.start), 0.92);
}

}  // namespace
}  // namespace fathom::trace

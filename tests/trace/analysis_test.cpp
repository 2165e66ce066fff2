// Steps, findings, comparisons and reports.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/utf8.h"
#include "make_trace.h"
#include "trace/analysis.h"
#include "trace/diff.h"
#include "trace/format.h"
#include "trace/json_report.h"
#include "trace/markdown_report.h"
#include "trace/names.h"
#include "trace/occupancy.h"
#include "trace/ranks.h"
#include "trace/sequence.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

namespace fs = std::filesystem;
const fs::path collection = FATHOM_SOURCE_DIR "/../shared/traces";
const fs::path derived = FATHOM_SOURCE_DIR "/tests/trace/derived";

Analysis analysed(const Trace& t, const Goal& goal = {}) {
  return analyse(t, CategoryRules::built_in(), goal);
}

const Finding* find(const Analysis& a, std::string_view id) {
  for (const Finding& f : a.diagnosis.findings)
    if (f.id == id) return &f;
  return nullptr;
}

bool lists(const Analysis& a, const Finding* f, std::string_view name) {
  if (!f) return false;
  for (const size_t row : f->rows)
    if (a.trace->names.text(a.ranking.rows[row].name) == name) return true;
  return false;
}

/// `layers` layers of five kernels between an embedding and a sampling kernel, `steps` times.
std::vector<std::string> decode(int steps, int layers, double pause = 20) {
  std::vector<std::string> out;
  double at = 1000;
  const auto add = [&](const std::string& name, double us) {
    out.push_back(kernel_text(name, at, us));
    at += us + 1;
  };
  for (int s = 0; s < steps; ++s) {
    add("embedding_kernel", 3);
    for (int l = 0; l < layers; ++l)
      add("rms_norm", 4), add("qkv_gemm", 20), add("flash_attn", 30), add("out_gemm", 15), add("silu_mul", 4);
    add("sampling_kernel", 6);
    at += pause;
  }
  return out;
}

TEST(Sequence, FindsTheShortestPeriod) {
  std::vector<uint32_t> names = {90, 91};
  for (int i = 0; i < 20; ++i)
    for (const uint32_t k : {1, 2, 3, 2, 4}) names.push_back(k);
  names.push_back(92);
  const Repeat r = find_repeat(names);
  EXPECT_EQ(r.period, 5u);
  EXPECT_EQ(r.count, 20u);
  EXPECT_EQ(find_repeat({1, 2, 3, 4, 5, 6}).count, 0u);
  EXPECT_EQ(find_repeat({}).count, 0u);
}

TEST(Steps, AreFoundFromTheKernelSequence) {
  const Trace t = read_text(trace_text(decode(6, 12)));
  const StepAnalysis s = analysed(t).steps;
  EXPECT_EQ(s.source, StepSource::sequence);
  EXPECT_EQ(s.steps.size(), 5u);  // the last one has no end mark
  EXPECT_EQ(s.kernels, 62);
  EXPECT_EQ(s.layers.kernels, 5);
  EXPECT_EQ(s.layers.repeats, 12);
}

TEST(Steps, AreFoundFromGraphLaunches) {
  std::vector<std::string> events;
  double at = 100;
  for (int g = 1; g <= 4; ++g, at += 50)
    for (int i = 0; i < 30; ++i, at += 10)
      events.push_back(kernel_text(fmt::format("k{}", i % 3), at, 9, fmt::format("{{\"correlation\": {}}}", g)));
  const Trace t = read_text(trace_text(events));
  const StepAnalysis s = analysed(t).steps;
  EXPECT_EQ(s.source, StepSource::graph_launch);
  EXPECT_EQ(s.steps.size(), 4u);
  EXPECT_EQ(s.median, 299'000);
  EXPECT_EQ(s.gap_time, 29'000);
  EXPECT_EQ(s.between, 3 * 51'000);
}

TEST(Steps, AreFoundFromAnnotationsOnTheGpu) {
  std::vector<std::string> events = decode(3, 4);
  for (int i = 0; i < 3; ++i)
    events.push_back(event_text("gpu_user_annotation", fmt::format("execute_{}", i), 999.9 + 343 * i, 320));
  const Trace t = read_text(trace_text(events));
  const StepAnalysis s = analysed(t).steps;
  EXPECT_EQ(s.source, StepSource::gpu_annotation);
  EXPECT_EQ(s.steps.size(), 3u);
}

TEST(Steps, OfRealTracesHaveTheLayersOfTheirModels) {
  const fs::path file = collection / "real" / "lightllm_h200_dsv3_decode_base_rank0.json";
  if (!fs::exists(file)) GTEST_SKIP() << "the trace collection is not at " << collection;
  const Trace t = read_trace(file);
  EXPECT_EQ(analysed(t).steps.layers.repeats, 58);  // the MoE layers of DeepSeek-V3
  const Trace qwen = read_trace(collection / "real" / "hf_h100_qwen15_05b_fwd.json.gz");
  EXPECT_EQ(analysed(qwen).steps.layers.repeats, 24);
  const Trace sglang = read_trace(collection / "real" / "sglang_mi300x_qwen3_8b_decode.json.gz");
  EXPECT_LT(analysed(sglang).steps.median, 12'000'000);  // the hole of 463 ms before it is no part of the step
}

TEST(Occupancy, IsRecomputedNotRead) {
  const Trace t = read_trace(derived / "52_occupancy_zero_big_smem.json");
  const Analysis a = analysed(t);
  const SmLimits l = sm_limits(t.devices[0]);
  for (const KernelRow& r : a.ranking.rows) {
    const Occupancy o = occupancy(t.shapes[index(r.shape)], l);
    ASSERT_TRUE(o.known);
    EXPECT_EQ(has_too_few_blocks(o), t.names.text(r.name) == "tiny");
    if (t.names.text(r.name) == "sm90_gemm") {
      EXPECT_EQ(o.blocks_per_sm, 1);
      EXPECT_STREQ(o.limit, "shared memory");
      EXPECT_NEAR(o.warps, 12.0 / 64, 1e-9);
    }
  }
  EXPECT_TRUE(lists(a, find(a, "few_blocks"), "tiny"));
  EXPECT_FALSE(lists(a, find(a, "few_blocks"), "sm90_gemm"));
}

TEST(Occupancy, OfImpossibleLaunchesIsNoTrap) {
  for (const char* side : {"4294967295", "65536", "0"}) {
    const std::string args = fmt::format(
        R"({{"grid": [{0}, {0}, {0}], "block": [{0}, {0}, {0}], "registers per thread": {0}, "shared memory": {0}}})",
        side);
    const Trace t = read_text(trace_text({kernel_text("k", 1, 5000, args), kernel_text("mla", 6000, 5000, args)}));
    EXPECT_FALSE(text_report(analyse(t, CategoryRules::built_in(), {1e-4, 1'000'000}), {}).empty());
  }
}

TEST(Report, CenturiesOfWorkDoNotOverflowTheSums) {
  std::vector<std::string> events;
  for (int i = 0; i < 40; ++i)
    events.push_back(event_text("kernel", "k", i % 2 ? 3.4e15 : -1e15, 2e15, "", fmt::format("{}", i % 3)));
  events.push_back(kernel_text("sound", 1, 2));
  const Trace t = read_text(trace_text(events));
  const Analysis a = analyse(t, CategoryRules::built_in(), {1000, 4});
  EXPECT_GT(t.import.negative_duration, 0u);
  EXPECT_EQ(t.import.negative_duration + t.events.size(), events.size());
  EXPECT_GE(a.summary.total, 0);
  EXPECT_GE(a.summary.span, a.summary.busy);
  EXPECT_FALSE(text_report(a, {}).empty());
  EXPECT_FALSE(ranks_text(compare_ranks({a, a, a}), 100).empty());
}

TEST(Occupancy, IsUnknownForGraphReplayWithoutGrids) {
  const Trace t = read_trace(derived / "30_graph_without_grid.json");
  const Analysis a = analysed(t);
  EXPECT_DOUBLE_EQ(a.diagnosis.unknown_launches, 1.0);
  EXPECT_EQ(find(a, "few_blocks"), nullptr);
  EXPECT_NE(text_report(a).find("100.0 % of kernel time"), std::string::npos);
}

TEST(Findings, TellTheStoryOfOneBlockPerHead) {
  // A sparse MLA kernel of one query with 64 heads on 132 SMs, glue and a SIMT product around it.
  std::vector<std::string> events;
  double at = 1000;
  const auto add = [&](const std::string& name, double us, const std::string& grid) {
    events.push_back(kernel_text(
        name, at, us,
        fmt::format(R"({{"device": 0, "grid": {}, "block": [128, 1, 1], "registers per thread": 64}})", grid)));
    at += us + 0.5;
  };
  for (int i = 0; i < 40; ++i) {
    add("rms_norm_kernel", 5, "[1, 1, 1]"), add("rotary_kernel", 5, "[1, 1, 1]"),
        add("act_quant_kernel", 5, "[1, 1, 1]");
    add("sparse_mla_decode_kernel", 736, "[1, 64, 1]");
    add("ampere_sgemm_128x64_tn", 120, "[264, 1, 1]");
    add("cublas_tensorop_gemm", 100, "[132, 1, 1]");
  }
  const Trace t = read_text(trace_text(events));
  const Analysis a = analysed(t, {1000, 1});
  EXPECT_TRUE(lists(a, find(a, "few_blocks"), "sparse_mla_decode_kernel"));
  EXPECT_FALSE(lists(a, find(a, "few_blocks"), "cublas_tensorop_gemm"));
  ASSERT_NE(find(a, "kv_reread"), nullptr);
  EXPECT_NE(find(a, "kv_reread")->title.find("64"), std::string::npos);
  Trace own = read_text(trace_text(events));  // of our kernels it is known that heads share rows
  own.producer = Producer::fathom;
  EXPECT_EQ(find(analysed(own, {1000, 1}), "kv_reread"), nullptr);
  EXPECT_TRUE(lists(a, find(a, "simt_gemm"), "ampere_sgemm_128x64_tn"));
  ASSERT_NE(find(a, "glue"), nullptr);
  EXPECT_EQ(find(a, "glue")->gain, 40 * (16'000 - 5'000));
  ASSERT_NE(find(a, "target"), nullptr);
  const std::string head = headline(a);
  EXPECT_NE(head.find("fills 64 of 132 SMs"), std::string::npos) << head;
  EXPECT_NE(head.find("sparse_mla_decode_kernel"), std::string::npos);
  for (const Finding& f : a.diagnosis.findings) {
    EXPECT_LE(f.gain, f.ceiling);
    EXPECT_LE(f.ceiling, a.diagnosis.base);
  }
}

TEST(Findings, FloorsOfTheModelStandBesideTheCalls) {
  const Trace t = read_text(
      trace_text({kernel_text("sparse_mla_decode_kernel", 1000, 736), kernel_text("fused_moe_kernel", 1740, 100)}));
  Goal goal;
  goal.v4_flash = true;
  goal.gpu = find_gpu("NVIDIA RTX PRO 6000 Blackwell");
  ASSERT_TRUE(goal.gpu.has_value());
  const Analysis a = analysed(t, goal);
  ASSERT_NE(find(a, "attention_floor"), nullptr);
  EXPECT_NE(find(a, "attention_floor")->title.find("736.0 us a call against a floor of 282 ns"), std::string::npos)
      << find(a, "attention_floor")->title;
  ASSERT_NE(find(a, "experts_floor"), nullptr);
  EXPECT_EQ(experts_floor(*find_gpu("H200"), 1, 1).time, 16712);  // 6 experts of 13.37 MB at 4.8 TB/s
  EXPECT_FALSE(find_gpu("abacus").has_value());
}

TEST(Findings, LateLaunchesAreToldFromOtherGaps) {
  std::vector<std::string> events;
  for (int i = 0; i < 20; ++i) {  // each launch begins after the GPU ran dry
    events.push_back(event_text("cuda_runtime", "cudaLaunchKernel", 100 + 50 * i, 5,
                                fmt::format("{{\"correlation\": {}}}", i + 1), "99", "1"));
    events.push_back(kernel_text("k", 110 + 50 * i, 10, fmt::format("{{\"correlation\": {}}}", i + 1)));
  }
  const Trace t = read_text(trace_text(events));
  const Analysis a = analysed(t);
  ASSERT_NE(find(a, "launch_bound"), nullptr);
  EXPECT_EQ(find(a, "launch_bound")->gain, 19 * 40'000);
  EXPECT_EQ(find(a, "gaps"), nullptr);
}

TEST(Findings, ExposedCommunicationAndWaiting) {
  std::vector<std::string> events;
  for (int i = 0; i < 10; ++i) {
    events.push_back(kernel_text("gemm", 1000 + 100 * i, 50));
    events.push_back(kernel_text("ncclDevKernel_AllReduce", 1050 + 100 * i, i == 0 ? 10 : 40));
  }
  const Trace t = read_text(trace_text(events));
  const Finding* f = nullptr;
  const Analysis a = analysed(t);
  ASSERT_NE(f = find(a, "communication"), nullptr);
  EXPECT_EQ(f->ceiling, 370'000);
  EXPECT_EQ(f->gain, 270'000);
}

TEST(Diff, ShowsAbsoluteChangeBesideShares) {
  const Trace before = read_text(
      trace_text({kernel_text("gemm<1>", 0.5, 50), kernel_text("slow", 60, 40), kernel_text("all_reduce", 110, 10)}));
  const Trace after = read_text(
      trace_text({kernel_text("gemm<2>", 0.5, 50), kernel_text("fast", 60, 10), kernel_text("all_reduce", 80, 25)}));
  const TraceDiff d = compare(analysed(before), analysed(after));
  std::map<std::string, const DiffRow*> rows;
  for (const DiffRow& r : d.rows) rows[r.name] = &r;
  EXPECT_EQ(rows.at("gemm<2>")->change, Change::renamed);
  EXPECT_EQ(rows.at("gemm<2>")->delta(), 0);
  EXPECT_GT(rows.at("gemm<2>")->share_after, rows.at("gemm<2>")->share_before);
  EXPECT_EQ(rows.at("slow")->change, Change::gone);
  EXPECT_EQ(rows.at("fast")->change, Change::added);
  EXPECT_EQ(rows.at("all_reduce")->delta(), 15'000);
  EXPECT_NE(d.headline.find("saved work turned into waiting"), std::string::npos) << d.headline;
}

TEST(Ranks, TheRankWithTheLeastCollectiveTimeIsTheSlowOne) {
  std::vector<Trace> traces;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<std::string> events;
    for (int i = 0; i < 10; ++i) {
      const double work = rank == 1 ? 80 : 50;
      events.push_back(kernel_text("gemm", 1000 + 100 * i, work));
      events.push_back(kernel_text("ncclDevKernel_AllReduce", 1000 + 100 * i + work, 95 - work));
    }
    traces.push_back(
        read_text(trace_text(events, fmt::format(R"("distributedInfo": {{"rank": {}, "world_size": 3}}, )", rank))));
  }
  std::vector<Analysis> analyses;
  for (const Trace& t : traces) analyses.push_back(analysed(t));
  const RankComparison c = compare_ranks(analyses);
  EXPECT_EQ(c.collectives, 10);
  EXPECT_EQ(c.rows[c.straggler].rank, 1);
  EXPECT_EQ(c.rows[1].last, 10);
  EXPECT_EQ(c.rows[0].waiting, 300'000);
  EXPECT_EQ(c.skew, 30'000);
  EXPECT_THROW(compare_ranks({analyses[0]}), Error);
}

TEST(Ranks, OfDifferentBaseTimesAreComparedByCallNotByClock) {
  const std::vector<std::string> events = {kernel_text("gemm", 10, 50), kernel_text("ncclDevKernel_AllReduce", 60, 40)};
  const Trace a = read_text(trace_text(
      events, R"("baseTimeNanoseconds": 1735646418000000000, "distributedInfo": {"rank": 0, "world_size": 2}, )"));
  const Trace b = read_text(trace_text(
      events, R"("baseTimeNanoseconds": 1743535656000000000, "distributedInfo": {"rank": 1, "world_size": 2}, )"));
  EXPECT_NE(a.base_time, b.base_time);
  const RankComparison c = compare_ranks({analysed(a), analysed(b)});
  EXPECT_EQ(c.collectives, 1);
  EXPECT_EQ(c.skew, 0);
  EXPECT_EQ(c.rows[0].span, c.rows[1].span);
}

TEST(Ranks, WithoutNumbersKeepTheOrderAndNamesOfTheirFiles) {
  const std::string text = trace_text({kernel_text("ncclDevKernel_AllReduce", 60, 40)});
  const Trace a = read_text(text, "second.json"), b = read_text(text, "first.json");
  const RankComparison c = compare_ranks({analysed(a), analysed(b)});
  ASSERT_EQ(c.rows.size(), 2u);
  EXPECT_EQ(c.rows[0].label, "second.json");
  EXPECT_EQ(c.rows[1].label, "first.json");
}

TEST(Report, SumAndUnionAreBothThereAndLabelled) {
  const Trace t = read_trace(derived / "26_two_streams_overlap.json");
  const std::string text = text_report(analysed(t), {});
  EXPECT_NE(text.find("total is the sum of durations, busy is the time in which at least one stream worked"),
            std::string::npos);
  EXPECT_NE(text.find("total 220.0 us, busy 150.0 us of 150.0 us (100.0 %)"), std::string::npos) << text;
}

TEST(Report, BeginsWithTheAnswerAndFitsTheWidth) {
  for (const auto& entry : fs::directory_iterator(derived)) {
    std::optional<Trace> t;
    try {
      t = read_trace(entry.path());
    } catch (const Error&) {
      continue;
    }
    const Analysis a = analysed(*t);
    for (const size_t width : {60, 80, 120, 200}) {
      const std::string text = text_report(a, {.width = width});
      EXPECT_TRUE(is_valid_utf8(text));
      EXPECT_EQ(text.rfind(headline(a).substr(0, 20), 0), 0u);
      std::stringstream lines(text);
      for (std::string line; std::getline(lines, line);) {
        EXPECT_LE(text_width(line), width) << entry.path().filename() << ": " << line;
        for (const char c : line) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20);
      }
    }
  }
}

TEST(Report, HostileNamesStayText) {
  const Trace t = read_trace(derived / "43_hostile_names.json");
  const Analysis a = analysed(t);
  const std::string md = markdown_report({a}, "2026-11-29");
  EXPECT_EQ(md.find("<script>"), std::string::npos);
  EXPECT_NE(md.find("&lt;script&gt;"), std::string::npos);
  EXPECT_NE(md.find("\\|"), std::string::npos);
  EXPECT_NE(text_report(a).find("(empty name)"), std::string::npos);
  const auto json = nlohmann::json::parse(json_report({a}));
  EXPECT_EQ(json["traces"][0]["ranking"].size(), 6u);
  bool found = false;
  for (const auto& row : json["traces"][0]["ranking"]) found |= row["name"] == "<script>alert(1)</script>";
  EXPECT_TRUE(found);
}

TEST(Report, DamageIsMarkedAndPlaced) {
  const Trace t = read_trace(derived / "01_truncated_mid_event.json");
  const Analysis a = analysed(t);
  EXPECT_NE(text_report(a).find("PARTIAL"), std::string::npos);
  EXPECT_NE(text_report(a).find(fmt::format("byte {}", t.import.partial_offset)), std::string::npos);
  EXPECT_NE(markdown_report({a}, "2026-11-29").find("PARTIAL"), std::string::npos);
  const auto json = nlohmann::json::parse(json_report({a}));
  EXPECT_EQ(json["traces"][0]["import"]["partial_offset"], t.import.partial_offset);
}

TEST(Report, MarkdownIsAppendedNotReplaced) {
  const fs::path file = fs::temp_directory_path() / fmt::format("fathom_md_{}.md", ::getpid());
  append_markdown(file, "one\n");
  append_markdown(file, "two\n");
  std::string text;
  for (std::stringstream in(read_file(file)); std::getline(in, text) && text != "one";) {
  }
  EXPECT_EQ(text, "one");
  EXPECT_NE(read_file(file).find("one\ntwo\n"), std::string::npos);
  fs::remove(file);
}

TEST(Format, NamesAndTimesForPeople) {
  EXPECT_EQ(short_name("void deep_ep::internode_ll::combine<3, 10>(void*, int)"), "deep_ep::internode_ll::combine");
  EXPECT_EQ(display_name("_ZN5aiter24add_rmsnorm_quant_kernelIDF16bEEv"), "aiter::add_rmsnorm_quant_kernel<...>");
  EXPECT_EQ(display_name("Memcpy HtoD (Pageable -> Device)"), "Memcpy HtoD (Pageable -> Device)");
  EXPECT_EQ(time_text(725'887), "725.9 us");
  EXPECT_EQ(time_text(104'114'029), "104.1 ms");
  EXPECT_EQ(count_text(1148), "1,148");
  EXPECT_EQ(counted(1, "call"), "1 call");
  EXPECT_EQ(counted(1148, "call"), "1,148 calls");
  EXPECT_EQ(counted(0, "launch", "launches"), "0 launches");
}

TEST(Names, BriefOnesSayWhatAWrapperWraps) {
  EXPECT_EQ(
      brief_name("void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::"
                 "direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>(at::TensorIteratorBase&)>(int)"),
      "at::native::elementwise_kernel [direct_copy_kernel_cuda]");
  EXPECT_EQ(
      brief_name("void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
                 "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)"),
      "at::native::vectorized_elementwise_kernel [MulFunctor]");
  EXPECT_EQ(brief_name("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_nn_align8>(int)"),
            "cutlass::Kernel2 [cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_nn_align8]");
  EXPECT_EQ(brief_name("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x16x64_MI16x16x1_SN_WG64_4_1"),
            "Cijk_Alik_Bljk_BBS_BH MT256x16x64");
  EXPECT_EQ(brief_name("Cijk_"), "Cijk_");
  EXPECT_EQ(brief_name(""), "(empty name)");
  EXPECT_EQ(brief_name("<<<>>>"), "<<<>>>");
}

TEST(Names, InATableShowTheArgumentsInWhichTheyDiffer) {
  const std::string gemm = "deep_gemm::fp8_gemm_kernel<4096u, 7168u, 64u, 160u, 128u, 32u, (deep_gemm::GemmType)";
  const std::vector<std::string> whole = {gemm + "2>", gemm + "0>", "_rotary_kernel"};
  EXPECT_EQ(distinct_names(whole, 50),
            (std::vector<std::string>{"deep_gemm::fp8_gemm_kernel<GemmType 2>",
                                      "deep_gemm::fp8_gemm_kernel<GemmType 0>", "_rotary_kernel"}));
  EXPECT_EQ(distinct_names(whole, 200), whole);  // what fits stays whole
  // Without room for the arguments, and where nothing else is left, names are numbered and cut.
  EXPECT_EQ(distinct_names(whole, 20)[1], "fp8_gemm_kernel (2)");
  const auto cut = distinct_names(
      {std::string(100, 'a') + "b" + std::string(100, 'c'), std::string(100, 'a') + "d" + std::string(100, 'c')}, 30);
  EXPECT_NE(cut[0], cut[1]);
  EXPECT_EQ(text_width(cut[1]), 30u);
}

TEST(Report, ARankingWithoutClockDefectsStandsBesideTheOther) {
  std::vector<std::string> events;
  for (int i = 0; i < 50; ++i)
    events.push_back(kernel_text(i == 5 ? "broken" : "sound", 100 + 10 * i, i == 5 ? 50'000 : 8));
  for (int i = 0; i < 3; ++i) events.push_back(kernel_text("broken", 700 + 10 * i, 9));
  const Trace t = read_text(trace_text(events));
  const Analysis a = analyse(t, CategoryRules::built_in());
  ASSERT_EQ(a.summary.devices[0].defects.size(), 1u);
  EXPECT_EQ(t.events[a.summary.devices[0].defects[0]].duration, 50'000'000);
  EXPECT_EQ(t.names.text(a.ranking.rows[0].name), "broken");
  ASSERT_EQ(a.plausible.rows.size(), 2u);
  EXPECT_EQ(t.names.text(a.plausible.rows[0].name), "sound");
  EXPECT_EQ(a.plausible.rows[1].calls, 3);
  EXPECT_EQ(a.plausible.rows[1].total, 27'000);
  const std::string report = text_report(a, {});
  EXPECT_NE(report.find("Without 1 call whose duration cannot be real"), std::string::npos) << report;
  EXPECT_NE(json_report({a}, nullptr, nullptr).find("\"ranking_without_defects\""), std::string::npos);
  EXPECT_TRUE(
      analyse(read_text(trace_text({kernel_text("k", 1, 2)})), CategoryRules::built_in()).plausible.rows.empty());
}

TEST(Report, ProfilesOfTheCpuAreNotCalledGpu) {
  const Trace t = read_text(
      R"({"otherData":{"producer":"fathom"},"traceEvents":[{"ph":"X","cat":"cpu_op","name":"experts","pid":9,"tid":9,)"
      R"("ts":1,"dur":5,"args":{}},{"ph":"X","cat":"cpu_op","name":"head","pid":9,"tid":9,"ts":7,"dur":2,"args":{}}]})");
  const Analysis a = analyse(t, CategoryRules::built_in());
  const std::string report = text_report(a, {}), markdown = markdown_report({a}, "2026-01-01");
  EXPECT_EQ(a.categories.other, 0);
  EXPECT_EQ(report.find("GPU"), std::string::npos) << report;
  EXPECT_EQ(markdown.find("GPU"), std::string::npos) << markdown;
  EXPECT_NE(report.find("of CPU time is one operation: experts (1 call,"), std::string::npos) << report;
}

TEST(Report, OperationsThatLaunchedKernelsAreNotWork) {
  const Trace t = read_text(
      R"({"otherData":{"producer":"fathom"},"traceEvents":[{"ph":"X","cat":"cpu_op","name":"experts","pid":9,"tid":9,)"
      R"("ts":1,"dur":50,"args":{}},{"ph":"X","cat":"kernel","name":"experts","pid":0,"tid":7,"ts":7,"dur":2,)"
      R"("args":{"device":0,"stream":7,"kernel":"up"}}]})");
  EXPECT_FALSE(t.cpu_work);
  ASSERT_EQ(t.devices.size(), 1u);
  ASSERT_EQ(t.events.size(), 1u);
  EXPECT_EQ(t.events[0].duration, 2000);
}

TEST(Gpus, AreFoundByNameAndNotInsideLongerNumbers) {
  EXPECT_EQ(find_gpu("NVIDIA H200")->bandwidth, 4800);
  EXPECT_EQ(find_gpu("NVIDIA H20")->tensor_rate, 148);
  EXPECT_EQ(find_gpu("NVIDIA A100-SXM4-80GB")->bandwidth, 2039);
  EXPECT_EQ(find_gpu("NVIDIA A100 80GB PCIe")->bandwidth, 1935);
  EXPECT_EQ(find_gpu("rtx 5090")->tensor_rate, 210);
  EXPECT_FALSE(find_gpu("NVIDIA RTX A4000"));  // no A40
  EXPECT_FALSE(find_gpu("NVIDIA RTX A1000"));
}

}  // namespace
}  // namespace fathom::trace

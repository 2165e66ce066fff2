// The rules against a hand-made table of kernel names, and the form of a rules file.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "base/error.h"
#include "trace/analysis.h"
#include "trace/reader.h"
#include "trace/text_report.h"

namespace fathom::trace {
namespace {

namespace fs = std::filesystem;
const fs::path collection = FATHOM_SOURCE_DIR "/../shared/traces";

std::string id_of(const CategoryRules& rules, std::string_view name, WorkKind kind = WorkKind::kernel) {
  return rules.categories()[rules.classify(name, kind)].id;
}

TEST(Categories, EveryNameOfTheTableFallsWhereItsReaderPutIt) {
  std::ifstream in(collection / "truth" / "categories.tsv");
  if (!in) GTEST_SKIP() << "the table of categories is not at " << collection;
  const CategoryRules rules = CategoryRules::built_in();
  // The table's words and ours. "gemm_ambiguous" is left open by the table itself.
  const std::map<std::string, std::string> ours = {{"comms", "communication"},        {"copy", "memcpy"},
                                                   {"moe_gemm_setup", "moe_routing"}, {"scheduling", "elementwise"},
                                                   {"kv_cache", "kv_cache"},          {"gemm_ambiguous", "dense_gemm"}};
  std::string line;
  std::getline(in, line);
  int names = 0;
  while (std::getline(in, line)) {
    std::stringstream fields(line);
    std::string fine, coarse, total, calls, where, name;
    std::getline(fields, fine, '\t');
    std::getline(fields, coarse, '\t');
    std::getline(fields, total, '\t');
    std::getline(fields, calls, '\t');
    std::getline(fields, where, '\t');
    std::getline(fields, name);
    ++names;
    std::string expected = ours.contains(fine) ? ours.at(fine) : fine;
    if (name.find("ArgMaxOps") != std::string::npos) expected = "sampling";  // the greedy choice of a token
    const WorkKind kind = fine == "copy" ? WorkKind::memcpy : WorkKind::kernel;
    EXPECT_EQ(id_of(rules, name, kind), expected) << name << "\n  rule: " << rules.reason(name, kind);
  }
  EXPECT_GT(names, 300);
}

class OfLanguageModels : public testing::TestWithParam<const char*> {};

TEST_P(OfLanguageModels, HardlyAnyTimeIsLeftInOther) {
  const fs::path file = collection / GetParam();
  if (!fs::exists(file)) GTEST_SKIP() << file << " is missing";
  const Trace trace = read_trace(file);
  const Analysis a = analyse(trace, CategoryRules::built_in());
  EXPECT_GT(a.summary.kernel_total, 0);
  EXPECT_LT(a.categories.other_share, 0.03) << headline(a);
}

INSTANTIATE_TEST_SUITE_P(
    Traces, OfLanguageModels,
    testing::Values(
        "real/lightllm_h200_dsv3_decode_base_rank0.json", "real/lightllm_h200_dsv3_decode_base_rank1.json.gz",
        "real/lightllm_h200_dsv3_decode_base_rank7.json.gz", "real/lightllm_h200_dsv3_decode_opt01_rank0.json.gz",
        "real/lightllm_h200_dsv3_decode_opt07_rank0.json.gz", "real/lightllm_h200_dsv3_decode_overlap_rank0.json.gz",
        "real/sglang_mi300x_qwen3_8b_decode.json.gz", "real/sglang_mi300x_qwen3_8b_prefilldecode.json.gz",
        "real/vllm_b200_gptoss120b_tp8_eager.json.gz", "real/vllm_rocm_gptoss_decode_graph.json.gz",
        "real/hf_h100_qwen15_05b_fwd.json.gz", "real/hf_mi300x_qwen15_05b_fwd.json.gz", "real/a100_qlora_bnb.json",
        "real/a100_qlora_compiled.json", "real/ao_b200_moe_ep_ref_fwd.json.gz",
        "real/ao_b200_moe_ep_syncless_fwd.json.gz", "real/megatron_a100_tp8_rank0.json.gz",
        "edge/vllm_tpu_jax_2.trace.json.gz", "nsys/llamacpp_gemma4_e4b_q8_p8192_graph_nodes.sqlite",
        "nsys/mistralrs_gemma4_e4b_q8_p8192_graph_nodes.sqlite", "nsys/vllm_triton_moe_micro.sqlite"),
    [](const auto& info) {
      std::string name = fs::path(info.param).filename().string();
      for (char& c : name)
        if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
      return name;
    });

TEST(Categories, WhatDecidesMayStandDeepInTheName) {
  const CategoryRules rules = CategoryRules::built_in();
  const std::string shape =
      "void deep_gemm::fp8_gemm_kernel<4096u, 7168u, 64u, 160u, 128u, 32u, 4u, 128u, 128u, 1u, true, ";
  EXPECT_EQ(id_of(rules, shape + "(deep_gemm::GemmType)2>(__nv_bfloat16*)"), "moe_gemm");
  EXPECT_EQ(id_of(rules, shape + "(deep_gemm::GemmType)0>(__nv_bfloat16*)"), "dense_gemm");
  EXPECT_EQ(id_of(rules, "bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2"), "moe_gemm");
  EXPECT_EQ(id_of(rules, "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S"), "dense_gemm");
  EXPECT_EQ(id_of(rules, "void multimem_all_reduce_kernel<c10::BFloat16, 16>"), "communication");
  EXPECT_EQ(id_of(rules, "reduce_segments"), "attention");
  EXPECT_EQ(id_of(rules, "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<>>>"),
            "attention");
  EXPECT_EQ(id_of(rules, "void flash::FlashAttnFwdCombine<>"), "attention");
  EXPECT_EQ(id_of(rules, "xyzzy"), "other");
  EXPECT_EQ(id_of(rules, "xyzzy", WorkKind::memset), "memcpy");
}

TEST(Categories, AUsersRulesComeFirstAndMayOpenGroups) {
  CategoryRules rules = CategoryRules::built_in();
  rules.prepend("# mine\n[spec: Speculation]\n^eagle_*draft$ !head\n\n[attention]\nxyzzy\n", "my.rules");
  EXPECT_EQ(id_of(rules, "xyzzy_gemm"), "attention");
  EXPECT_EQ(id_of(rules, "eagle_small_draft"), "spec");
  EXPECT_EQ(id_of(rules, "eagle_head_draft"), "other");
  EXPECT_EQ(id_of(rules, "my_eagle_small_draft"), "other");
  EXPECT_EQ(rules.reason("eagle_small_draft", WorkKind::kernel), "my.rules line 3: ^eagle_*draft$");
  EXPECT_EQ(rules.categories().back().label, "Speculation");
}

TEST(Categories, BrokenRulesAreRefusedWithTheirLine) {
  const auto error = [](std::string_view text) -> std::string {
    try {
      CategoryRules rules = CategoryRules::built_in();
      rules.prepend(text, "my.rules");
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error("gemm\n").find("line 1"), std::string::npos);
  EXPECT_NE(error("[a]\n\n*\n").find("line 3"), std::string::npos);
  EXPECT_NE(error("[a\n").find("line 1"), std::string::npos);
  EXPECT_NE(error("[a]\nfoo bar\n").find("bar"), std::string::npos);
  EXPECT_NE(error("[]\n").find("line 1"), std::string::npos);
}

}  // namespace
}  // namespace fathom::trace

// config.json: every field is checked, other models are refused by name, and bad JSON is one line.
#include "formats/config.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"

namespace fathom {
namespace {

std::string fairy() {
  return read_file(FATHOM_SOURCE_DIR "/models/fairy/config.json");
}

/// The in-box config with `from` replaced by `to`.
std::string with(const std::string& from, const std::string& to) {
  std::string text = fairy();
  const size_t at = text.find(from);
  if (at == text.npos) throw std::logic_error("not in the config: " + from);
  return text.replace(at, from.size(), to);
}

std::string complaint(const std::string& text) {
  try {
    parse_config(text, "c");
  } catch (const Error& e) {
    std::string what = e.what();  // without the byte offset, which the edits shift
    if (what.rfind("c: byte ", 0) == 0) what.erase(3, what.find(": ", 8) - 1);
    return what;
  }
  return "no error";
}

TEST(Config, DefaultsFillWhatIsAbsent) {
  std::string text = with("\"expert_dtype\": \"fp4\",", "");
  for (const char* line : {"\"num_key_value_heads\": 1,", "\"n_shared_experts\": 1,", "\"hc_eps\": 1e-06,",
                           "\"norm_topk_prob\": true,", "\"tie_word_embeddings\": false,", "\"attention_bias\": false,",
                           "\"hidden_act\": \"silu\",", "\"pad_token_id\": 2,"}) {
    ASSERT_NE(text.find(line), text.npos) << line;
    text.replace(text.find(line), std::string(line).size(), "");
  }
  const ModelConfig c = parse_config(text, "c");
  EXPECT_EQ(c.expert_dtype, ExpertDtype::unstated);
  EXPECT_EQ(c.hc_eps, 1e-6);
  EXPECT_EQ(c.num_shared_experts, 1);
  EXPECT_EQ(c.pad_id, -1);
}

TEST(Config, EveryRequiredFieldIsRequired) {
  for (const char* key : {"vocab_size",
                          "hidden_size",
                          "num_hidden_layers",
                          "max_position_embeddings",
                          "hc_mult",
                          "hc_sinkhorn_iters",
                          "rms_norm_eps",
                          "bos_token_id",
                          "eos_token_id",
                          "num_attention_heads",
                          "head_dim",
                          "qk_rope_head_dim",
                          "q_lora_rank",
                          "o_groups",
                          "o_lora_rank",
                          "sliding_window",
                          "compress_ratios",
                          "index_n_heads",
                          "index_head_dim",
                          "index_topk",
                          "n_routed_experts",
                          "num_experts_per_tok",
                          "moe_intermediate_size",
                          "scoring_func",
                          "topk_method",
                          "routed_scaling_factor",
                          "swiglu_limit",
                          "rope_theta",
                          "compress_rope_theta",
                          "rope_scaling",
                          "quantization_config"}) {
    EXPECT_EQ(complaint(with(fmt::format("\"{}\"", key), fmt::format("\"_{}\"", key))),
              fmt::format("c: {} is missing", key));
  }
}

TEST(Config, OtherModelsAreRefusedByName) {
  const auto refused = [](const std::string& type, const std::string& architecture) {
    return complaint(
        fmt::format(R"({{"architectures":["{}"],"model_type":"{}","kv_lora_rank":512}})", architecture, type));
  };
  const std::string tail = ", a different architecture that fathom does not support (it runs DeepSeek-V4)";
  EXPECT_EQ(refused("deepseek_v41", "DeepseekV41ForCausalLM"), "c: this is DeepSeek-V4.1" + tail);
  EXPECT_EQ(refused("deepseek_v4", "DeepseekV41ForCausalLM"), "c: this is DeepSeek-V4.1" + tail);
  EXPECT_EQ(refused("deepseek_v32", "DeepseekV32ForCausalLM"), "c: this is DeepSeek-V3.2" + tail);
  EXPECT_EQ(refused("deepseek_v3", "DeepseekV3ForCausalLM"), "c: this is DeepSeek-V3" + tail);
  EXPECT_EQ(refused("kimi_k2", "DeepseekV3ForCausalLM"), "c: this is Kimi K2" + tail);
  EXPECT_EQ(refused("llama", "LlamaForCausalLM"),
            "c: model_type \"llama\", architecture \"LlamaForCausalLM\": fathom runs DeepSeek-V4 only (deepseek_v4, "
            "DeepseekV4ForCausalLM)");
  EXPECT_EQ(complaint("{}"), "c: neither model_type nor architectures is there: not the config of a model");
  EXPECT_EQ(complaint(R"({"dim":4096,"n_layers":43})"),
            "c: this is the inference/config.json of a checkpoint; fathom reads the config.json beside the shards");
  EXPECT_EQ(complaint(with("\"use_cache\": true", "\"engram_layers\": [1, 14]")),
            "c: engram fields belong to DeepSeek-V4.1, a different architecture that fathom does not support");
  EXPECT_EQ(complaint(with("\"use_cache\": true", "\"vision_config\": {}")),
            "c: text_config or vision_config: fathom runs the text models of DeepSeek-V4 only");
}

TEST(Config, ValuesOutOfRangeAreRefusedWithTheRange) {
  const std::pair<std::string, std::string> cases[] = {
      {"\"hidden_size\": 0", "c: hidden_size is 0, expected 128 to 65536"},
      {"\"hidden_size\": 200", "c: hidden_size is 200, expected a multiple of 128"},
      {"\"hidden_size\": 4294967552", "c: hidden_size is 4294967552, expected 128 to 65536"},
      {"\"hidden_size\": 256.0", "c: expected an integer, found 256.0"},
      {"\"hidden_size\": \"256\"", "c: expected a number, found \"\"256\",\\x0a  \"index_\""},
      {"\"head_dim\": 128", "c: head_dim is 128; DeepSeek-V4 has 512"},
      {"\"qk_rope_head_dim\": 32", "c: qk_rope_head_dim is 32; DeepSeek-V4 has 64"},
      {"\"num_key_value_heads\": 2", "c: num_key_value_heads is 2; DeepSeek-V4 has 1"},
      {"\"hc_mult\": 2", "c: hc_mult is 2; DeepSeek-V4 has 4"},
      {"\"hc_eps\": -1", "c: hc_eps is -1, expected 1e-20 to 0.01"},
      {"\"rms_norm_eps\": 1", "c: rms_norm_eps is 1, expected 1e-20 to 0.01"},
      {"\"o_groups\": 3", "c: num_attention_heads 4 is not a multiple of o_groups 3"},
      {"\"num_experts_per_tok\": 17", "c: num_experts_per_tok 17 exceeds n_routed_experts 16"},
      {"\"num_hash_layers\": 7", "c: num_hash_layers 7 exceeds num_hidden_layers 6"},
      {"\"num_hidden_layers\": 9",
       "c: compress_ratios has 8 entries for num_hidden_layers 9 (one a layer, then one "
       "for each draft stage)"},
      {"\"num_hidden_layers\": 5", "c: compress_ratios[5] is 4, but draft stages have 0"},
      {"\"eos_token_id\": 2048", "c: eos_token_id 2048 is outside the vocabulary of 2048"},
      {"\"eos_token_id\": []", "c: eos_token_id is empty"},
      {"\"scoring_func\": \"sigmoid\"", "c: scoring_func is \"sigmoid\", fathom supports \"sqrtsoftplus\""},
      {"\"expert_dtype\": \"int4\"", "c: expert_dtype is \"int4\", fathom supports \"fp4\" and \"fp8\""},
      {"\"swiglu_limit\": 0", "c: swiglu_limit is 0, expected 0.001 to 1000000"},
      {"\"swiglu_limit\": 1e999", "c: the number 1e999 is out of range"},
      {"\"swiglu_limit\": NaN", "c: expected a value, found \"NaN,\\x0a  \"tie_word\""},
      {"\"tie_word_embeddings\": true", "c: tie_word_embeddings is true; DeepSeek-V4 has false"},
      {"\"dspark_block_size\": 0", "c: dspark_block_size is 0, expected 1 to 64"},
      {"\"dspark_noise_token_id\": 5000", "c: dspark_noise_token_id 5000 is outside the vocabulary of 2048"},
      {"\"factor\": 0", "c: rope_scaling.factor is 0, expected 1 to 10000"},
      {"\"type\": \"linear\"", "c: rope_scaling.type is \"linear\", fathom supports \"yarn\""},
      {"\"beta_fast\": 1", "c: rope_scaling.beta_fast 1 is not above beta_slow 1"},
      {"\"quant_method\": \"gptq\"",
       "c: quantization_config.quant_method \"gptq\": fathom supports \"fp8\" (and "
       "\"modelopt\" with moe_quant_algo NVFP4)"},
      {"\"fmt\": \"e5m2\"", "c: quantization_config.fmt is \"e5m2\", fathom supports \"e4m3\""},
      {"\"scale_fmt\": \"float\"", "c: quantization_config.scale_fmt is \"float\", fathom supports \"ue8m0\""},
  };
  for (const auto& [line, expected] : cases) {
    const std::string key = line.substr(0, line.find(':') + 1), text = fairy();
    const size_t at = text.find(key), end = text.find_first_of(",\n", at);
    ASSERT_NE(at, text.npos) << key;
    EXPECT_EQ(complaint(text.substr(0, at) + line + text.substr(end)), expected);
  }
}

TEST(Config, RatiosAndTargetsMustFitTheLayers) {
  const std::string ratios = "0,\n    4,\n    128,\n    4,\n    128,\n    4,";
  EXPECT_EQ(complaint(with(ratios, "0,2,1,4,128,4,")),
            "c: compress_ratios[1] is 2, expected 0, 4 or 128 (1 and 2 belong to DeepSeek-V4.1)");
  EXPECT_EQ(complaint(with("3,\n    4,\n    5", "3,5,4")),
            "c: dspark_target_layer_ids must rise and stay below num_hidden_layers 6, found 4");
  EXPECT_EQ(complaint(with("3,\n    4,\n    5", "3,4,6")),
            "c: dspark_target_layer_ids must rise and stay below num_hidden_layers 6, found 6");
  EXPECT_EQ(complaint(with("\"dspark_markov_rank\": 64,", "")),
            "c: dspark_markov_rank is missing, but other dspark fields are there");
}

TEST(Config, Nvfp4RepacksAreRecognisedByTheirQuantizationConfig) {
  const std::string quant = "\"quant_method\": \"fp8\"";
  const std::string nvfp4 =
      quant + R"(, "quant_algo": "MIXED_PRECISION", "moe_quant_algo": "NVFP4", "group_size": 16, "ignore": ["*.attn.*"],
              "kv_cache_quant_algo": null, "config_groups": {"group_0": {"targets": ["Linear"]}}, "producer": {}, "new": 1)";
  const ModelConfig c = parse_config(with(quant, nvfp4), "c");
  EXPECT_EQ(c.quant, DeclaredQuant::modelopt_nvfp4);
  EXPECT_EQ(c.unknown_fields, std::vector<std::string>{"quantization_config.new"});
  EXPECT_EQ(complaint(with(quant, quant + R"(, "quant_algo": "NVFP4")")),
            "c: quantization_config.quant_algo \"NVFP4\": fathom supports MIXED_PRECISION with moe_quant_algo NVFP4");
  EXPECT_EQ(complaint(with(quant, quant + R"(, "moe_quant_algo": "INT4")")),
            "c: quantization_config.moe_quant_algo is \"INT4\", fathom supports \"NVFP4\"");
  EXPECT_EQ(complaint(with("128,\n      128", "32, 32")),
            "c: quantization_config.weight_block_size is [32, 32], fathom supports [128, 128] ([32, 32] belongs to "
            "DeepSeek-V4.1)");
}

TEST(Config, UnknownFieldsAreReportedAndNullCountsAsAbsent) {
  const ModelConfig c =
      parse_config(with("\"use_cache\": true", R"("use_cache": null, "novel_thing": {"a": [1, {}]})"), "c");
  EXPECT_EQ(c.unknown_fields, std::vector<std::string>{"novel_thing"});
  EXPECT_EQ(complaint(with("\"vocab_size\": 2048", "\"vocab_size\": null")), "c: vocab_size is missing");
}

TEST(Config, EndOfSequenceMayBeAList) {
  EXPECT_EQ(parse_config(with("\"eos_token_id\": 1", "\"eos_token_id\": [1, 7]"), "c").eos_ids, (std::vector{1, 7}));
}

TEST(Config, BadJsonIsOneLine) {
  EXPECT_EQ(complaint(""), "c: the JSON ends where an object was expected");
  EXPECT_EQ(complaint("[]"), "c: expected an object, found \"[]\"");
  EXPECT_EQ(complaint("{\"a\":1,}"), "c: expected a string, found \"}\"");
  EXPECT_EQ(complaint("{\"a\":01}"), "c: a number starts with 0");
  EXPECT_EQ(complaint("{\"a\":1,\"a\":2}"), "c: the name \"a\" appears twice");
  EXPECT_EQ(complaint("{\"a\":{\"b\":1,\"b\":2}}"), "c: the name \"b\" appears twice");
  EXPECT_EQ(complaint("{\"a\":-}"), "c: not a number");
  EXPECT_EQ(complaint("{\"a\":tru}"), "c: expected \"true\", found \"tru}\"");
  EXPECT_EQ(complaint("{} {}"), "c: \"{}\" after the end of the JSON");
  EXPECT_EQ(complaint("{\"a\":" + std::string(100000, '[')), "c: nested deeper than 32 levels");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  EXPECT_EQ(complaint(objects), "c: nested deeper than 32 levels");
  const std::string text = fairy();
  for (size_t n = 0; n + 2 < text.size(); n += 7) EXPECT_NE(complaint(text.substr(0, n)), "no error") << n;
}

}  // namespace
}  // namespace fathom

#include "engine/formats/hf_config.h"

#include <gtest/gtest.h>

#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/json_text.h"
#include "engine/formats/test_files.h"

namespace assay {
namespace {

using namespace testing_files;
using Change = std::function<void(nlohmann::ordered_json&)>;

nlohmann::ordered_json base(const std::string& family = "llama") {
  return tiny_model(family).config;
}

HfConfig parse(const nlohmann::ordered_json& j) {
  return parse_hf_config(j.dump(), "config.json");
}

TEST(HfConfig, BothSpellingsOfRopeGiveTheSameConfig) {
  auto v4 = base();
  v4["rope_theta"] = 500000.0;
  v4["rope_scaling"] = {{"rope_type", "llama3"},
                        {"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 64}};
  auto v5 = base();
  v5.erase("rope_theta");
  v5["rope_parameters"] = v4["rope_scaling"];
  v5["rope_parameters"]["rope_theta"] = 500000.0;
  for (const auto& j : {v4, v5}) {
    const RopeConfig r = parse(j).config.rope;
    EXPECT_EQ(r.theta, 500000.0);
    EXPECT_TRUE(r.llama3);
    EXPECT_EQ(r.factor, 8.0);
    EXPECT_EQ(r.low_freq_factor, 1.0);
    EXPECT_EQ(r.high_freq_factor, 4.0);
    EXPECT_EQ(r.original_context, 64.0);
    EXPECT_EQ(r.rotary, 16);
  }
  v4["rope_scaling"].erase("rope_type");
  v4["rope_scaling"]["type"] = "llama3";  // the oldest spelling
  EXPECT_TRUE(parse(v4).config.rope.llama3);
}

TEST(HfConfig, PartialRotaryFactorAtTheTopOrInside) {
  auto top = base("qwen3");
  top["partial_rotary_factor"] = 0.25;
  auto inside = base("qwen3");
  inside["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(parse(top).config.rope.rotary, 4);
  EXPECT_EQ(parse(inside).config.rope.rotary, 4);
}

TEST(HfConfig, NestedTextConfig) {
  nlohmann::ordered_json text = base("qwen3");
  text["model_type"] = "qwen3_vl_text";
  text["rope_scaling"] = {{"rope_type", "default"}, {"mrope_section", {3, 3, 2}}, {"mrope_interleaved", true}};
  const nlohmann::ordered_json j = {{"model_type", "qwen3_vl"}, {"text_config", text}, {"tie_word_embeddings", true}};
  const Config c = parse(j).config;
  EXPECT_EQ(c.family, "qwen3_vl");
  EXPECT_EQ(c.rope.mrope_section, (std::vector<int64_t>{3, 3, 2}));
  EXPECT_TRUE(c.tied);  // the outer key decides
  EXPECT_TRUE(c.qk_norm);
  EXPECT_EQ(c.eos, (std::vector<int64_t>{2}));
}

TEST(HfConfig, NormsOfOlmo2StandBehindItsBlocks) {
  const Config c = parse(base("olmo2")).config;
  EXPECT_TRUE(c.qk_norm && c.qk_norm_whole && c.post_norm);
  EXPECT_EQ(c.qk_norm_columns(c.heads), c.heads * c.head_dim);
  const Config q = parse(base("qwen3")).config;
  EXPECT_TRUE(q.qk_norm && !q.qk_norm_whole && !q.post_norm);
  EXPECT_EQ(q.qk_norm_columns(q.heads), q.head_dim);
  auto window = base("olmo2");
  window["sliding_window"] = 4096;  // olmo3's, whose layers slide
  EXPECT_NE(error_of([&] { parse(window); }).find("sliding_window: is in use"), std::string::npos);
}

TEST(HfConfig, Experts) {
  const Config c = parse(base("qwen3_moe")).config;
  EXPECT_EQ(c.experts, 6);
  EXPECT_EQ(c.experts_per_token, 2);
  EXPECT_EQ(c.expert_ffn, 32);
  EXPECT_TRUE(c.norm_topk_prob && c.qk_norm && c.has_experts(0) && c.has_experts(1));
  auto j = base("qwen3_moe");
  for (const char* key : {"num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"}) j.erase(key);
  j.erase("num_experts");
  j["num_local_experts"] = 16;  // the spelling of transformers 5
  const Config d = parse(j).config;
  EXPECT_EQ(d.experts, 16);
  EXPECT_EQ(d.experts_per_token, 8);  // Qwen3MoeConfig's defaults
  EXPECT_EQ(d.expert_ffn, 768);
  EXPECT_FALSE(d.norm_topk_prob);
  j["decoder_sparse_step"] = 2;
  EXPECT_TRUE(!parse(j).config.has_experts(0) && parse(j).config.has_experts(1));
}

TEST(HfConfig, Defaults) {
  auto j = base();
  for (const char* key : {"head_dim", "num_key_value_heads", "rope_theta", "hidden_act", "tie_word_embeddings",
                          "bos_token_id", "eos_token_id"})
    j.erase(key);
  const HfConfig hf = parse(j);
  EXPECT_EQ(hf.config.head_dim, 8);  // hidden / heads
  EXPECT_EQ(hf.config.kv_heads, 4);
  EXPECT_EQ(hf.config.rope.theta, 10000.0);
  EXPECT_FALSE(hf.config.tied);
  EXPECT_EQ(hf.config.bos, -1);
  EXPECT_TRUE(hf.config.eos.empty());
  EXPECT_FALSE(hf.qkv_bias);
  auto qwen = base("qwen3");
  qwen.erase("head_dim");
  EXPECT_EQ(parse(qwen).config.head_dim, 128);  // Qwen3Config's default
  auto bias = base();
  bias["attention_bias"] = true;
  EXPECT_TRUE(parse(bias).qkv_bias);
  EXPECT_TRUE(parse(bias).o_bias);
  EXPECT_TRUE(parse(base("qwen2")).qkv_bias);
  EXPECT_FALSE(parse(base("qwen2")).o_bias);
  auto eos = base();
  eos["eos_token_id"] = {2, 7};
  EXPECT_EQ(parse(eos).config.eos, (std::vector<int64_t>{2, 7}));
}

TEST(HfConfig, SlidingWindowThatIsNotInUseIsAccepted) {
  auto j = base("qwen2");
  j["sliding_window"] = 64;
  j["use_sliding_window"] = false;
  EXPECT_NO_THROW(parse(j));
  j["use_sliding_window"] = true;
  j["max_window_layers"] = 2;  // layers from 2 on would slide; there are 2
  EXPECT_NO_THROW(parse(j));
  j["max_window_layers"] = 1;
  EXPECT_NE(error_of([&] { parse(j); }).find("config.json: sliding_window: is in use"), std::string::npos);
}

struct Refused {
  const char* name;
  Change change;
  std::vector<std::string> says;
};

TEST(HfConfig, RefusesByNameWithWantedAndFound) {
  const std::vector<Refused> table = {
      {"family",
       [](auto& j) { j["model_type"] = "mixtral"; },
       {"config.json: model_type", "llama, olmo2, qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, qwen3_vl", "found \"mixtral\""}},
      {"no family", [](auto& j) { j.erase("model_type"); }, {"model_type: is missing"}},
      {"rope yarn",
       [](auto& j) {
         j["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
       },
       {"rope_scaling.rope_type", "\"default\" or \"llama3\"", "found \"yarn\""}},
      {"rope linear, old key",
       [](auto& j) {
         j["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
       },
       {"found \"linear\""}},
      {"rope contradiction",
       [](auto& j) {
         j["rope_parameters"] = {{"rope_theta", 1e6}};
       },
       {"rope_parameters.rope_theta", "contradicts", "wanted 10000, found 1000000"}},
      {"two rope types",
       [](auto& j) {
         j["rope_parameters"] = {{"rope_type", "default"}};
         j["rope_scaling"] = {{"rope_type", "llama3"}};
       },
       {"contradicts rope_scaling.rope_type"}},
      {"rope per layer type",
       [](auto& j) {
         j["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
       },
       {"per layer type"}},
      {"llama3 without factor",
       [](auto& j) {
         j["rope_scaling"] = {{"rope_type", "llama3"}};
       },
       {"rope_scaling.factor: is missing"}},
      {"llama3 low >= high",
       [](auto& j) {
         j["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 8},
                              {"low_freq_factor", 4},
                              {"high_freq_factor", 4},
                              {"original_max_position_embeddings", 64}};
       },
       {"llama3 rope scaling is not usable"}},
      {"act", [](auto& j) { j["hidden_act"] = "gelu"; }, {"hidden_act", "wanted \"silu\", found \"gelu\""}},
      {"mlp_bias", [](auto& j) { j["mlp_bias"] = true; }, {"mlp_bias"}},
      {"llama window", [](auto& j) { j["sliding_window"] = 4096; }, {"sliding_window: is in use", "4096"}},
      {"layer types",
       [](auto& j) {
         j["layer_types"] = {"full_attention", "sliding_attention"};
       },
       {"layer_types: layer 1", "\"sliding_attention\"", "Sliding-window"}},
      {"layer types short",
       [](auto& j) { j["layer_types"] = {"full_attention"}; },
       {"layer_types", "a list of 2", "1 entries"}},
      {"AWQ",
       [](auto& j) {
         j["quantization_config"] = {{"quant_method", "awq"}};
       },
       {"quantization_config", "quant_method \"awq\"", "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K"}},
      {"FP8",
       [](auto& j) {
         j["quantization_config"] = {{"quant_method", "fp8"}};
       },
       {"quant_method \"fp8\"", "F32, F16 or BF16"}},
      {"missing size", [](auto& j) { j.erase("hidden_size"); }, {"config.json: hidden_size: is missing"}},
      {"missing eps", [](auto& j) { j.erase("rms_norm_eps"); }, {"rms_norm_eps: is missing"}},
      {"layers 0", [](auto& j) { j["num_hidden_layers"] = 0; }, {"num_hidden_layers", "from 1 to 65536", "0"}},
      {"layers 2^60", [](auto& j) { j["num_hidden_layers"] = int64_t(1) << 60; }, {"1152921504606846976"}},
      {"hidden beyond int64", [](auto& j) { j["hidden_size"] = UINT64_MAX; }, {"hidden_size", "18446744073709551615"}},
      {"hidden as float", [](auto& j) { j["hidden_size"] = 64.5; }, {"hidden_size", "an integer", "64.5"}},
      {"hidden as text", [](auto& j) { j["hidden_size"] = "64"; }, {"hidden_size", "an integer"}},
      {"kv heads", [](auto& j) { j["num_key_value_heads"] = 3; }, {"key/value heads", "a divisor of 4", "found 3"}},
      {"eps", [](auto& j) { j["rms_norm_eps"] = -1e-5; }, {"epsilon"}},
      {"theta", [](auto& j) { j["rope_theta"] = 0; }, {"theta"}},
      {"odd head_dim", [](auto& j) { j["head_dim"] = 15; }, {"rotary width", "found 15"}},
      {"partial 1.5", [](auto& j) { j["partial_rotary_factor"] = 1.5; }, {"partial_rotary_factor"}},
      {"mrope sum",
       [](auto& j) {
         j["rope_scaling"] = {{"rope_type", "default"}, {"mrope_section", {4, 4, 4}}};
       },
       {"mrope_section", "add up to 8", "[4, 4, 4]"}},
      {"eos outside",
       [](auto& j) { j["eos_token_id"] = 50; },
       {"eos token id lies outside the vocabulary", "0 to 49", "50"}},
      {"eos in list outside",
       [](auto& j) {
         j["eos_token_id"] = {2, 50};
       },
       {"eos token id", "50"}},
      {"bos outside", [](auto& j) { j["bos_token_id"] = 99; }, {"bos token id", "99"}},
      {"eos list of thousands",
       [](auto& j) { j["eos_token_id"] = std::vector<int>(2000, 1); },
       {"eos_token_id: is absurd", "at most 1024", "2000"}},
      {"eos negative", [](auto& j) { j["eos_token_id"] = -1; }, {"eos_token_id"}},
      {"text_config no object", [](auto& j) { j["text_config"] = 3; }, {"text_config", "a JSON object"}},
  };
  for (const Refused& r : table) {
    auto j = base();
    r.change(j);
    const std::string error = error_of([&] { parse(j); });
    ASSERT_NE(error, "") << r.name;
    EXPECT_EQ(error.find("exit"), std::string::npos) << error;
    for (const std::string& part : r.says) EXPECT_NE(error.find(part), std::string::npos) << r.name << ": " << error;
  }
}

TEST(JsonText, RefusesWhatIsNotJson) {
  EXPECT_NE(error_of([] { parse_json_tree("{\"a\": ", "f.json"); }).find("f.json: byte 7: is not JSON"), std::string::npos);
  EXPECT_NE(error_of([] { parse_json_tree("", "f.json"); }).find("f.json: byte"), std::string::npos);
  EXPECT_NE(error_of([] { parse_json_tree("{\"a\": 1, \"a\": 2}", "f.json"); }).find("\"a\" appears twice"),
            std::string::npos);
  EXPECT_NO_THROW(parse_json_tree("{\"a\": {\"b\": 1}, \"b\": {\"b\": 1}}", "f.json"));
  EXPECT_NE(error_of([] { parse_json_tree(std::string(100000, '['), "f.json"); }).find("nested too deep"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_json_tree("{\"a\": \"\xff\"}", "f.json"); }).find("is not JSON"), std::string::npos);
  EXPECT_NE(error_of([] { parse_json_tree("{\"a\": 1e999}", "f.json"); }).find("is not JSON"), std::string::npos);
  EXPECT_NE(error_of([] { parse_hf_config("[]", "config.json"); }).find("a JSON object"), std::string::npos);
}

TEST(HfIndex, RefusesFilesOutsideTheFolder) {
  for (const char* file : {"../other.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "x.bin",
                           ".hidden.safetensors", "a\\b.safetensors"}) {
    const Json j = {{"weight_map", {{"t", file}}}};
    const std::string error = error_of([&] { parse_safetensors_index(j, "index.json"); });
    EXPECT_NE(error.find("index.json: weight_map: tensor \"t\" has no usable file"), std::string::npos)
        << file << ": " << error;
  }
  EXPECT_NE(error_of([] {
              parse_safetensors_index(Json{{"weight_map", {{"t", 3}}}}, "i");
            }).find("no string"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_safetensors_index(Json::object(), "i"); }).find("is missing"), std::string::npos);
  EXPECT_NE(error_of([] {
              parse_safetensors_index(Json{{"weight_map", Json::object()}}, "i");
            }).find("is empty"),
            std::string::npos);
  EXPECT_EQ(parse_safetensors_index(Json{{"weight_map", {{"t", "a.safetensors"}}}}, "i").at("t"), "a.safetensors");
}

}  // namespace
}  // namespace assay

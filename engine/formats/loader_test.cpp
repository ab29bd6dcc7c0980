#include "engine/formats/loader.h"

#include <gtest/gtest.h>

#include <cmath>

#include "engine/formats/gguf.h"
#include "engine/formats/readers.h"
#include "engine/formats/test_files.h"
#include "engine/formats/widen.h"

namespace assay {
namespace {

using namespace testing_files;
namespace fs = std::filesystem;

const fs::path kOfficial = fs::path(ASSAY_SOURCE_DIR) / "goldens/official";

Vector values(const Matrix& m) {
  return m.empty() ? Vector{} : widen(m.type, m.data, m.rows * m.columns);
}

void expect_equal(const Matrix& a, const Matrix& b, const std::string& name) {
  EXPECT_EQ(a.rows, b.rows) << name;
  EXPECT_EQ(a.columns, b.columns) << name;
  EXPECT_EQ(values(a), values(b)) << name;
}

void expect_equal_weights(const Weights& a, const Weights& b) {
  expect_equal(a.embed, b.embed, "embed");
  expect_equal(a.lm_head, b.lm_head, "lm_head");
  EXPECT_EQ(a.final_norm, b.final_norm);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); i++) {
    const LayerWeights &x = a.layers[i], &y = b.layers[i];
    const std::string l = "layer " + std::to_string(i) + " ";
    for (auto [name, m] : {std::pair{"q", &LayerWeights::q},
                           {"k", &LayerWeights::k},
                           {"v", &LayerWeights::v},
                           {"o", &LayerWeights::o},
                           {"gate", &LayerWeights::gate},
                           {"up", &LayerWeights::up},
                           {"down", &LayerWeights::down},
                           {"expert_gate", &LayerWeights::expert_gate},
                           {"expert_up", &LayerWeights::expert_up},
                           {"expert_down", &LayerWeights::expert_down}})
      expect_equal(x.*m, y.*m, l + name);
    EXPECT_EQ(x.router.empty(), y.router.empty());  // of another type in GGUF
    if (!x.router.empty()) {
      EXPECT_EQ(values(x.router), values(y.router)) << l;
    }
    for (auto [name, v] : {std::pair{"attn_norm", &LayerWeights::attn_norm},
                           {"q_bias", &LayerWeights::q_bias},
                           {"k_bias", &LayerWeights::k_bias},
                           {"v_bias", &LayerWeights::v_bias},
                           {"o_bias", &LayerWeights::o_bias},
                           {"q_norm", &LayerWeights::q_norm},
                           {"k_norm", &LayerWeights::k_norm},
                           {"ffn_norm", &LayerWeights::ffn_norm},
                           {"attn_post_norm", &LayerWeights::attn_post_norm},
                           {"ffn_post_norm", &LayerWeights::ffn_post_norm}})
      EXPECT_EQ(x.*v, y.*v) << l << name;
  }
}

/// Everything in a Config that moves a bit of the result.
void expect_equal_config(const Config& a, const Config& b) {
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ((std::vector{a.layers, a.hidden, a.heads, a.kv_heads, a.head_dim, a.ffn, a.vocab, a.context}),
            (std::vector{b.layers, b.hidden, b.heads, b.kv_heads, b.head_dim, b.ffn, b.vocab, b.context}));
  EXPECT_EQ(float(a.rms_eps), float(b.rms_eps));
  EXPECT_EQ(a.tied, b.tied);
  EXPECT_EQ((std::vector{a.qk_norm, a.qk_norm_whole, a.post_norm}),
            (std::vector{b.qk_norm, b.qk_norm_whole, b.post_norm}));
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ((std::vector{a.experts, a.experts_per_token, a.expert_ffn, a.shared_expert_ffn, int64_t(a.norm_topk_prob)}),
            (std::vector{b.experts, b.experts_per_token, b.expert_ffn, b.shared_expert_ffn, int64_t(b.norm_topk_prob)}));
  EXPECT_EQ(a.rope.theta, b.rope.theta);
  EXPECT_EQ(a.rope.rotary, b.rope.rotary);
  EXPECT_EQ(a.rope.llama3, b.rope.llama3);
  EXPECT_EQ(a.rope.mrope_section, b.rope.mrope_section);
  if (a.rope.llama3) {
    EXPECT_EQ(a.rope.factor, b.rope.factor);
    EXPECT_EQ(a.rope.low_freq_factor, b.rope.low_freq_factor);
    EXPECT_EQ(a.rope.high_freq_factor, b.rope.high_freq_factor);
    EXPECT_EQ(a.rope.original_context, b.rope.original_context);
  }
  EXPECT_EQ(a.bos, b.bos);
}

struct Case {
  const char* name;
  const char* family;
  int64_t layers, heads, kv_heads, head_dim, vocab;
  bool tied;
  const char* types;
};
constexpr Case kCases[] = {{"llama-base", "llama", 3, 4, 2, 16, 470, false, "BF16"},
                           {"llama-rope3", "llama", 3, 8, 2, 40, 333, true, "BF16"},
                           {"olmo2-base", "olmo2", 3, 6, 2, 16, 389, false, "BF16"},
                           {"qwen2-bias", "qwen2", 3, 4, 2, 16, 401, true, "F32"},
                           {"qwen3-k256", "qwen3", 3, 4, 1, 64, 275, true, "BF16"},
                           {"qwen3-odd", "qwen3", 4, 3, 1, 96, 677, false, "BF16"},
                           {"qwen3_5-k256", "qwen3_5", 4, 2, 1, 64, 300, true, "BF16 (F32 4)"},
                           {"qwen3_5-mtp", "qwen3_5", 4, 4, 2, 32, 310, false, "BF16"},
                           {"qwen3_5-odd", "qwen3_5", 6, 3, 1, 96, 411, false, "BF16"},
                           {"qwen3_5_moe-base", "qwen3_5_moe", 4, 4, 2, 32, 350, false, "BF16"},
                           {"qwen3_next-base", "qwen3_next", 4, 4, 2, 32, 350, false, "BF16"},
                           {"trained-hybrid", "qwen3_5", 8, 4, 2, 32, 320, true, "BF16"},
                           {"qwen3_moe-nonorm", "qwen3_moe", 3, 6, 2, 40, 301, true, "BF16"},
                           {"qwen3_moe-norm", "qwen3_moe", 3, 4, 2, 32, 420, false, "BF16"},
                           {"qwen3_vl-text", "qwen3_vl", 4, 4, 2, 32, 310, true, "BF16"},
                           {"trained-deep", "qwen3", 48, 2, 2, 32, 320, true, "BF16"},
                           {"trained-engine", "qwen3", 4, 4, 2, 64, 384, false, "BF16"},
                           {"trained-moe", "qwen3_moe", 6, 4, 2, 64, 320, true, "BF16"}};

TEST(Loader, LoadsEveryOfficialCaseOfItsFamilies) {
  for (const Case& c : kCases) {
    const Model m = load_model(kOfficial / c.name / "model");
    EXPECT_EQ(m.config.family, c.family) << c.name;
    EXPECT_EQ((std::vector{m.config.layers, m.config.heads, m.config.kv_heads, m.config.head_dim, m.config.vocab}),
              (std::vector{c.layers, c.heads, c.kv_heads, c.head_dim, c.vocab}))
        << c.name;
    EXPECT_EQ(m.config.tied, c.tied) << c.name;
    EXPECT_EQ(m.weights.lm_head.data == m.weights.embed.data, c.tied) << c.name;
    EXPECT_EQ(m.provenance.quantisation, c.types) << c.name;
    EXPECT_EQ(m.provenance.format, "hf");
    EXPECT_EQ(m.provenance.hash.size(), 32u);
    EXPECT_EQ(m.provenance.tokenizer_hash, "");
    EXPECT_FALSE(m.quantised());
    EXPECT_EQ(int64_t(m.weights.layers.size()), c.layers);
  }
}

TEST(Loader, RefusesOtherFamiliesByName) {
  TempDir dir;
  TinyModel m = tiny_model("qwen3");
  m.config["model_type"] = "qwen4";
  m.write(dir.path());
  const std::string error = error_of([&] { load_model(dir.path()); });
  EXPECT_NE(error.find("model_type: is not supported; wanted llama, olmo2, qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, qwen3_vl, found"),
            std::string::npos)
      << error;
}

TEST(Loader, GgufOfAnOfficialCaseEqualsItsFolder) {
  TempDir dir;
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const Model hf = load_model(kOfficial / c.name / "model");
    write_file(dir / "m.gguf", gguf_of(hf).build());
    const Model gguf = load_model(dir / "m.gguf");
    EXPECT_EQ(gguf.provenance.format, "gguf");
    expect_equal_config(hf.config, gguf.config);
    expect_equal_weights(hf.weights, gguf.weights);
  }
}

TEST(Loader, GgufRowsOfLlamaAreInterleavedInTheFile) {
  TempDir dir;
  tiny_model("llama").write(dir.path());
  const Model hf = load_model(dir.path());
  const std::string bytes = gguf_of(hf).build();
  const GgufFile f = GgufFile::parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "t");
  const GgufTensor* q = f.find_tensor("blk.0.attn_q.weight");
  const Vector file = widen(q->type, q->data, 64 * 32);
  const Vector ours = values(hf.weights.layers[0].q);
  // Head 1 (rows 16 to 31): file row 17 is its row 8, the partner of row 0 in the rotation.
  EXPECT_EQ(Vector(file.begin() + 17 * 32, file.begin() + 18 * 32),
            Vector(ours.begin() + 24 * 32, ours.begin() + 25 * 32));
  EXPECT_NE(file, ours);
  expect_equal_weights(hf.weights, load_gguf(f, "t").weights);
}

TEST(Loader, BiasesOfGgufAreUnpermutedToo) {
  TempDir dir;
  TinyModel m = tiny_model("qwen2");
  m.config["model_type"] = "llama";
  m.config["attention_bias"] = true;
  for (int i = 0; i < 2; i++)
    m.tensors.push_back({"model.layers." + std::to_string(i) + ".self_attn.o_proj.bias",
                         "F32",
                         {32},
                         raw(std::vector<float>(32, 0.5f))});
  m.write(dir.path());
  const Model hf = load_model(dir.path());
  EXPECT_EQ(hf.weights.layers[0].o_bias.size(), 32u);
  EXPECT_EQ(hf.weights.layers[0].q_bias.size(), 64u);
  write_file(dir / "m.gguf", gguf_of(hf).build());
  expect_equal_weights(hf.weights, load_model(dir / "m.gguf").weights);
}

/// Experts of a folder fused into two tensors per layer, as newer checkpoints have them.
TinyModel fused(TinyModel m) {
  for (int l = 0; l < 2; l++) {
    const std::string stem = "model.layers." + std::to_string(l) + ".mlp.experts.";
    std::string both, down;
    for (int e = 0; e < 6; e++) {
      const std::string x = stem + std::to_string(e) + ".";
      both += m.find(x + "gate_proj.weight").data + m.find(x + "up_proj.weight").data;
      down += m.find(x + "down_proj.weight").data;
      for (const char* p : {"gate_proj", "up_proj", "down_proj"}) m.erase(x + p + ".weight");
    }
    m.tensors.push_back({stem + "gate_up_proj", "F32", {6, 64, 32}, both});
    m.tensors.push_back({stem + "down_proj", "F32", {6, 32, 32}, down});
  }
  return m;
}

TEST(Loader, ExpertsOfOneTensorEachOrFusedAreTheSame) {
  TempDir dir;
  tiny_model("qwen3_moe").write(dir / "each");
  fused(tiny_model("qwen3_moe")).write(dir / "fused");
  const Model each = load_model(dir / "each"), joined = load_model(dir / "fused");
  expect_equal_weights(each.weights, joined.weights);
  const LayerWeights& l = each.weights.layers[1];
  EXPECT_EQ(l.expert_gate.rows, 6 * 32);
  EXPECT_TRUE(l.gate.empty());
  // Expert 4's up rows are its tensor's.
  const std::string want = tiny_model("qwen3_moe").find("model.layers.1.mlp.experts.4.up_proj.weight").data;
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(l.expert_up.row(4 * 32)), want.size()), want);
}

TEST(Loader, RefusesExpertsThatDoNotFit) {
  struct Refused {
    const char* name;
    std::function<void(TinyModel&)> change;
    const char* says;
  };
  const std::string e3 = "model.layers.1.mlp.experts.3.up_proj.weight";
  for (const Refused& r : std::vector<Refused>{
           {"missing", [&](auto& m) { m.erase(e3); }, "asks for tensor \"model.layers.1.mlp.experts.3.up_proj.weight\""},
           {"another type", [&](auto& m) { m.find(e3).dtype = "BF16", m.find(e3).data.resize(32 * 32 * 2); }, "experts of one layer have different types"},
           {"too many", [](auto& m) { m.config["num_experts"] = 5; }, "wanted [5, 32]"},
           {"per token", [](auto& m) { m.config["num_experts_per_tok"] = 7; }, "experts per token is absurd; wanted 1 to 6, found 7"},
           {"contradiction", [](auto& m) { m.config["num_local_experts"] = 7; }, "num_local_experts: contradicts num_experts"},
           {"dense layers", [](auto& m) { m.config["mlp_only_layers"] = {2}; }, "mlp_only_layers"},
           {"fused shape", [](auto& m) { m = fused(m); m.find("model.layers.0.mlp.experts.down_proj").shape = {6, 16, 64}; }, "wanted [6, 32, 32]"}}) {
    TempDir dir;
    TinyModel m = tiny_model("qwen3_moe");
    r.change(m);
    m.write(dir.path());
    const std::string error = error_of([&] { load_model(dir.path()); });
    EXPECT_NE(error.find(r.says), std::string::npos) << r.name << ": " << error;
  }
}

// Layers that the config says are dense have a dense FFN, and only folders can say so.
TEST(Loader, LayersMayBeDense) {
  TempDir dir;
  TinyModel m = tiny_model("qwen3_moe");
  const TinyModel dense = tiny_model("qwen3");
  for (const char* p : {"gate_proj", "up_proj", "down_proj"}) {
    for (int e = 0; e < 6; e++) m.erase("model.layers.0.mlp.experts." + std::to_string(e) + "." + p + ".weight");
    StTensor t = dense.tensors.front();
    for (const StTensor& d : dense.tensors)
      if (d.name == std::string("model.layers.0.mlp.") + p + ".weight") t = d;
    m.tensors.push_back(t);
  }
  m.erase("model.layers.0.mlp.gate.weight");
  for (int way = 0; way < 2; way++) {
    TinyModel one = m;
    if (way == 0)
      one.config["mlp_only_layers"] = {0};
    else
      one.config["decoder_sparse_step"] = 2;
    one.write(dir.path());
    const Model loaded = load_model(dir.path());
    EXPECT_TRUE(loaded.weights.layers[0].router.empty());
    EXPECT_FALSE(loaded.weights.layers[0].gate.empty());
    EXPECT_FALSE(loaded.weights.layers[1].router.empty());
    EXPECT_TRUE(loaded.config.has_experts(1) && !loaded.config.has_experts(0));
  }
}

TEST(Loader, ShardedFolderEqualsTheSingleFile) {
  TempDir a, b;
  const TinyModel m = tiny_model("qwen3");
  m.write(a.path());
  auto write_sharded = [&](size_t first) {
    write_file(b / "config.json", m.config.dump());
    std::vector<StTensor> one(m.tensors.begin(), m.tensors.begin() + long(first)),
        two(m.tensors.begin() + long(first), m.tensors.end());
    write_file(b / "model-00001-of-00002.safetensors", safetensors_bytes(one));
    write_file(b / "model-00002-of-00002.safetensors", safetensors_bytes(two));
    nlohmann::ordered_json map;
    for (auto& t : one) map[t.name] = "model-00001-of-00002.safetensors";
    for (auto& t : two) map[t.name] = "model-00002-of-00002.safetensors";
    return nlohmann::ordered_json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}};
  };
  auto index = write_sharded(7);
  const fs::path index_path = b / "model.safetensors.index.json";
  write_file(index_path, index.dump());
  expect_equal_weights(load_model(a.path()).weights, load_model(b.path()).weights);
  const std::string hash = load_model(b.path()).provenance.hash;
  EXPECT_EQ(hash, load_model(b.path()).provenance.hash);
  EXPECT_NE(hash, load_model(a.path()).provenance.hash);

  auto error = [&](auto change) {
    auto j = index;
    change(j);
    write_file(index_path, j.dump());
    return error_of([&] { load_model(b.path()); });
  };
  const std::string lm = "lm_head.weight";
  EXPECT_NE(error([&](auto& j) {
              j["weight_map"][lm] = "model-00003-of-00002.safetensors";
            }).find("names a file that is not there"),
            std::string::npos);
  EXPECT_NE(error([&](auto& j) { j["weight_map"][lm] = "../model.safetensors"; }).find("has no usable file"),
            std::string::npos);
  EXPECT_NE(error([&](auto& j) {
              j["weight_map"][lm] = "model-00001-of-00002.safetensors";
            }).find("contradicts model.safetensors.index.json"),
            std::string::npos);
  EXPECT_NE(error([&](auto& j) { j["weight_map"].erase(lm); }).find("found not listed"), std::string::npos);
  EXPECT_NE(error([&](auto& j) {
              j["weight_map"]["ghost"] = "model-00001-of-00002.safetensors";
            }).find("lists 1 tensor(s) that no file has"),
            std::string::npos);
}

struct Refused {
  const char* name;
  std::function<void(TinyModel&)> change;
  std::vector<std::string> says;
};

TEST(Loader, RefusesFoldersThatContradictThemselves) {
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  const std::vector<Refused> table = {
      // D18: a head_dim of hidden / heads, where the weights say otherwise.
      {"head_dim",
       [](auto& m) { m.config.erase("head_dim"); },
       {"layers.0.self_attn.q_proj.weight", "wanted [32, 32] = [heads * head_dim, hidden], found [64, 32]"}},
      {"vocab",
       [](auto& m) { m.config["vocab_size"] = 49; },
       {"embed_tokens", "wanted [49, 32] = [vocabulary, hidden], found [50, 32]"}},
      {"lm_head rows",
       [](auto& m) {
         m.find("lm_head.weight").shape = {49, 32};
         m.find("lm_head.weight").data.resize(49 * 128);
       },
       {"lm_head", "wanted [50, 32]", "found [49, 32]"}},
      {"transposed",
       [](auto& m) {
         m.find("model.layers.0.mlp.down_proj.weight").shape = {64, 32};
       },
       {"down_proj", "wanted [32, 64] = [hidden, ffn], found [64, 32]"}},
      {"norm",
       [](auto& m) {
         m.find("model.norm.weight").shape = {4, 8};
       },
       {"model.norm.weight", "wanted [32]", "found [4, 8]"}},
      {"kv heads",
       [](auto& m) { m.config["num_key_value_heads"] = 4; },
       {"k_proj", "wanted [64, 32]", "found [32, 32]"}},
      {"missing tensor",
       [&](auto& m) { m.erase(q); },
       {"config.json: asks for tensor \"" + q + "\"", "shape [64, 32]", "no such tensor"}},
      {"too few layers",
       [](auto& m) { m.config["num_hidden_layers"] = 1; },
       {"have no place in this llama model", "of 1 layers", "model.layers.1.input_layernorm.weight"}},
      {"too many layers",
       [](auto& m) { m.config["num_hidden_layers"] = 3; },
       {"asks for tensor \"model.layers.2.input_layernorm.weight\""}},
      {"another family",
       [](auto& m) { m.config["model_type"] = "qwen3"; },
       {"asks for tensor \"model.layers.0.self_attn.q_norm.weight\" (qwen3)"}},
      {"bias nobody asked for",
       [](auto& m) {
         m.tensors.push_back({"model.layers.0.self_attn.q_proj.bias", "F32", {64}, std::string(256, '\0')});
       },
       {"1 tensor(s)", "no place", "q_proj.bias"}},
      // D17: untied weights taken for tied, and the other way round.
      {"tied, other head",
       [](auto& m) { m.config["tie_word_embeddings"] = true; },
       {"tied to the embedding", "a head with other values"}},
      {"untied without a head", [](auto& m) { m.erase("lm_head.weight"); }, {"asks for tensor \"lm_head.weight\""}},
      {"integer weights",
       [](auto& m) {
         auto& t = m.find("model.layers.0.mlp.up_proj.weight");
         t.dtype = "I32";
       },
       {"up_proj", "F32, F16 or BF16", "I32"}},
      {"FP8 weights",
       [](auto& m) {
         auto& t = m.find("model.layers.0.mlp.up_proj.weight");
         t.dtype = "F8_E4M3";
         t.data.resize(64 * 32);
       },
       {"F8_E4M3"}},
      {"stands twice",
       [](auto& m) {
         auto t = m.find("model.norm.weight");
         t.name = "model.language_model.norm.weight";
         m.tensors.push_back(t);
       },
       {"stands twice"}},
  };
  for (const Refused& r : table) {
    TempDir dir;
    TinyModel m = tiny_model("llama");
    r.change(m);
    m.write(dir.path());
    const std::string error = error_of([&] { load_model(dir.path()); });
    ASSERT_NE(error, "") << r.name;
    EXPECT_EQ(error.find("exit"), std::string::npos) << error;
    for (const std::string& part : r.says) EXPECT_NE(error.find(part), std::string::npos) << r.name << ": " << error;
  }
}

TEST(Loader, AcceptsATiedHeadThatEqualsTheEmbedding) {
  TempDir dir;
  TinyModel m = tiny_model("llama");
  m.config["tie_word_embeddings"] = true;
  m.find("lm_head.weight").data = m.find("model.embed_tokens.weight").data;
  m.write(dir.path());
  const Model tied = load_model(dir.path());
  EXPECT_EQ(tied.weights.lm_head.data, tied.weights.embed.data);
}

TEST(Loader, SkipsStrayTensors) {
  TempDir dir;
  TinyModel m = tiny_model("llama");
  for (const char* name : {"model.visual.blocks.0.norm1.weight", "visual.merger.mlp.0.bias", "vision_tower.x",
                           "multi_modal_projector.linear.weight", "model.layers.0.self_attn.rotary_emb.inv_freq"})
    m.tensors.push_back({name, "F32", {4}, std::string(16, '\0')});
  m.tensors.push_back({"model.visual.ids", "I64", {2}, std::string(16, '\0')});
  m.write(dir.path());
  EXPECT_NO_THROW(load_model(dir.path()));
}

TEST(Loader, WidensF16AndBf16AndReadsOddAddresses) {
  TempDir dir;
  TinyModel m = tiny_model("llama");
  auto& norm = m.find("model.norm.weight");
  norm.dtype = "F16";
  std::vector<uint16_t> halves(32, 0x3c00);  // 1.0
  halves[1] = 0x0001;                        // 2^-24, the smallest subnormal
  halves[2] = 0x83ff;                        // the largest subnormal, negative
  halves[3] = 0x7bff;                        // 65504
  norm.data = raw(halves);
  auto& up = m.find("model.layers.0.mlp.up_proj.weight");
  up.dtype = "BF16";
  up.data = raw(std::vector<uint16_t>(64 * 32, 0xc040));  // -3.0
  write_file(dir / "config.json", m.config.dump());
  for (size_t padding : {0, 1, 2, 3}) {
    write_file(dir / "model.safetensors", safetensors_bytes(m.tensors, padding));
    const Model loaded = load_model(dir.path());
    EXPECT_EQ(loaded.weights.final_norm[0], 1.0f);
    EXPECT_EQ(loaded.weights.final_norm[1], 0x1p-24f);
    EXPECT_EQ(loaded.weights.final_norm[2], -0x3ffp-24f);
    EXPECT_EQ(loaded.weights.final_norm[3], 65504.0f);
    EXPECT_EQ(values(loaded.weights.layers[0].up), Vector(64 * 32, -3.0f));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(loaded.weights.embed.data) % 4, 0u);
  }
}

TEST(Loader, SaysWhatIsWrongWithTheFolder) {
  TempDir dir;
  EXPECT_NE(error_of([&] { load_model(dir / "absent"); }).find("can't be opened"), std::string::npos);
  EXPECT_NE(error_of([&] { load_model(dir.path()); }).find("no config.json"), std::string::npos);
  TinyModel m = tiny_model("llama");
  write_file(dir / "config.json", m.config.dump());
  EXPECT_NE(error_of([&] { load_model(dir.path()); }).find("has no weights"), std::string::npos);
  // B12: a header length that was guessed.
  const std::string good = safetensors_bytes(m.tensors);
  for (int64_t delta : {-8, -1, 1, 8, 1 << 20}) {
    uint64_t n;
    std::memcpy(&n, good.data(), 8);
    n += uint64_t(delta);
    write_file(dir / "model.safetensors", raw(n) + good.substr(8));
    const std::string error = error_of([&] { load_model(dir.path()); });
    EXPECT_NE(error.find("model.safetensors"), std::string::npos) << delta << ": " << error;
    EXPECT_NE(error.find("byte"), std::string::npos) << delta << ": " << error;
  }
  write_file(dir / "x.gguf", "not a model at all, but long enough to look at");
  EXPECT_NE(
      error_of([&] { load_model(dir / "x.gguf"); }).find("byte 0: is not a GGUF file; wanted \"GGUF\", found \"not \""),
      std::string::npos);
}

// A25: right code, another model's vocabulary in the folder.
class TokenizerCanary : public ::testing::Test {
 protected:
  TokenizerCanary() {
    tiny_model("llama").write(dir_.path());
    nlohmann::ordered_json vocab;
    for (int i = 3; i < 40; i++) vocab["t" + std::to_string(i)] = i;
    json_ = {{"added_tokens",
              {{{"id", 0}, {"content", "<unk>"}, {"special", true}},
               {{"id", 1}, {"content", "<s>"}, {"special", true}},
               {{"id", 2}, {"content", "</s>"}, {"special", true}}}},
             {"model", {{"type", "BPE"}, {"vocab", vocab}}}};
    settings_ = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}};
  }
  std::string error() {
    write_file(dir_ / "tokenizer.json", json_.dump());
    write_file(dir_ / "tokenizer_config.json", settings_.dump());
    return error_of([&] { model_ = load_model(dir_.path()); });
  }
  TempDir dir_;
  nlohmann::ordered_json json_, settings_;
  Model model_;
};

TEST_F(TokenizerCanary, AcceptsAPaddedVocabulary) {
  EXPECT_EQ(error(), "");  // 40 tokens, 50 rows
  const std::string hash = model_.provenance.tokenizer_hash;
  EXPECT_EQ(hash.size(), 32u);
  json_["model"]["vocab"]["t3"] = 4;
  json_["model"]["vocab"]["t4"] = 3;
  EXPECT_EQ(error(), "");
  EXPECT_NE(model_.provenance.tokenizer_hash, hash);  // a swap that keeps all counts shows in the hash
}

TEST_F(TokenizerCanary, RefusesTokensWithoutARow) {
  json_["model"]["vocab"]["big"] = 50;
  EXPECT_NE(error().find("token \"big\": its id has no row in the embedding; wanted 0 to 49 (vocab_size 50), found 50"),
            std::string::npos)
      << error();
}

TEST_F(TokenizerCanary, RefusesASmallerModelsVocabulary) {
  json_ = {{"added_tokens", nlohmann::ordered_json::array()},
           {"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}}}};
  EXPECT_NE(error().find("the config's eos token id is not a token of this tokenizer; wanted an id below 2, found 2"),
            std::string::npos)
      << error();
}

TEST_F(TokenizerCanary, RefusesSwappedSpecialIds) {
  std::swap(json_["added_tokens"][1]["id"], json_["added_tokens"][2]["id"]);
  EXPECT_NE(error().find("tokenizer_config.json: eos_token: \"</s>\" contradicts the config; wanted id 2, found id 1"),
            std::string::npos)
      << error();
}

TEST_F(TokenizerCanary, RefusesSpecialIdsThatAreOrdinaryTokens) {
  json_["added_tokens"][2]["id"] = 41;
  json_["model"]["vocab"]["x"] = 2;
  EXPECT_NE(error().find("the config's eos token id 2 is an ordinary token here"), std::string::npos) << error();
}

TEST_F(TokenizerCanary, RefusesASpecialTokenThatIsNotThere) {
  settings_["bos_token"] = "<|startoftext|>";
  EXPECT_NE(error().find("bos_token: \"<|startoftext|>\" contradicts the config; wanted id 1, found no such token"),
            std::string::npos)
      << error();
}

TEST_F(TokenizerCanary, GenerationConfigAddsEndIds) {
  write_file(dir_ / "generation_config.json", R"({"eos_token_id": [2, 0]})");
  settings_["eos_token"] = "<unk>";
  EXPECT_EQ(error(), "");
  EXPECT_EQ(model_.config.eos, (std::vector<int64_t>{2, 0}));
  write_file(dir_ / "generation_config.json", R"({"eos_token_id": 50})");
  EXPECT_NE(error().find("generation_config.json: eos_token_id: is not a token of this model"), std::string::npos);
}

}  // namespace
}  // namespace assay

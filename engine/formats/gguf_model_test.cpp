// What a GGUF file says about a model, held against itself; quantised blocks; rope divisors.
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "engine/formats/gguf.h"
#include "engine/formats/loader.h"
#include "engine/formats/quant.h"
#include "engine/formats/readers.h"
#include "engine/formats/rope_factors.h"
#include "engine/formats/test_files.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

using namespace testing_files;

GgufBuilder tiny_gguf(const std::string& family, const std::function<void(TinyModel&)>& change = {}) {
  TempDir dir;
  TinyModel m = tiny_model(family);
  if (change) change(m);
  m.write(dir.path());
  return gguf_of(load_model(dir.path()));
}

/// Loads from memory; the bytes are kept alive in the model.
Model load(const GgufBuilder& b) {
  auto bytes = std::make_shared<std::string>(b.build());
  Model m =
      load_gguf(GgufFile::parse(reinterpret_cast<const std::byte*>(bytes->data()), bytes->size(), "t.gguf"), "t.gguf");
  m.weights.storage.push_back(bytes);
  return m;
}

void add_vocabulary(GgufBuilder& b, size_t tokens) {
  std::vector<std::string> names;
  std::vector<int32_t> types(tokens, 1);
  for (size_t i = 0; i < tokens; i++) names.push_back("t" + std::to_string(i));
  for (size_t i = 0; i < std::min<size_t>(tokens, 3); i++) types[i] = 3;
  b.strings("tokenizer.ggml.tokens", names).array("tokenizer.ggml.token_type", kVI32, tokens, raw(types));
}

struct Refused {
  const char* name;
  std::function<void(GgufBuilder&)> change;
  std::vector<std::string> says;
};

void expect_refused(const std::string& family, const std::vector<Refused>& table) {
  for (const Refused& r : table) {
    GgufBuilder b = tiny_gguf(family);
    r.change(b);
    const std::string error = error_of([&] { load(b); });
    ASSERT_NE(error, "") << r.name;
    EXPECT_EQ(error.find("exit"), std::string::npos) << error;
    for (const std::string& part : r.says) EXPECT_NE(error.find(part), std::string::npos) << r.name << ": " << error;
  }
}

TEST(GgufModel, RefusesWhatTheEngineDoesNotDo) {
  expect_refused(
      "llama",
      {
          {"architecture",
           [](auto& b) { b.value("general.architecture").bytes = gguf_string("gemma3"); },
           {"general.architecture", "llama, olmo2, qwen2, qwen3, qwen3moe, qwen3vl", "\"gemma3\""}},
          {"no architecture", [](auto& b) { b.erase("general.architecture"); }, {"general.architecture", "is missing"}},
          {"projector",
           [](auto& b) { b.value("general.type").bytes = gguf_string("mmproj"); },
           {"general.type", "\"mmproj\""}},
          {"split", [](auto& b) { b.add("split.count", kVU16, raw(uint16_t(4))); }, {"split.count", "found 4", "Join"}},
          {"experts", [](auto& b) { b.u32("llama.expert_count", 8); }, {"expert_count", "found 8"}},
          {"window",
           [](auto& b) { b.u32("llama.attention.sliding_window", 512); },
           {"sliding_window", "is in use", "512"}},
          {"not causal",
           [](auto& b) { b.add("llama.attention.causal", kVBool, raw(uint8_t(0))); },
           {"attention.causal"}},
          {"yarn", [](auto& b) { b.str("llama.rope.scaling.type", "yarn"); }, {"rope.scaling.type", "\"yarn\""}},
          {"linear", [](auto& b) { b.f32("llama.rope.scaling.factor", 4); }, {"linear rope scaling", "found 4"}},
          {"partial rope",
           [](auto& b) { b.value("llama.rope.dimension_count").bytes = raw(uint32_t(8)); },
           {"rope.dimension_count", "wanted 16, found 8"}},
          {"value length",
           [](auto& b) { b.value("llama.attention.value_length").bytes = raw(uint32_t(32)); },
           {"value_length", "wanted 16, found 32"}},
          {"no layers", [](auto& b) { b.erase("llama.block_count"); }, {"\"llama.block_count\"", "is missing"}},
          {"layers 0",
           [](auto& b) { b.value("llama.block_count").bytes = raw(uint32_t(0)); },
           {"llama.block_count", "found 0"}},
          {"no eps",
           [](auto& b) { b.erase("llama.attention.layer_norm_rms_epsilon"); },
           {"layer_norm_rms_epsilon", "is missing"}},
          {"ffn per layer",
           [](auto& b) {
             b.erase("llama.feed_forward_length");
             b.array("llama.feed_forward_length", kVU32, 2, raw(std::vector<uint32_t>{64, 64}));
           },
           {"feed_forward_length", "an array of u32"}},
          {"head_dim assumed",
           [](auto& b) {
             b.erase("llama.attention.key_length");
             b.erase("llama.attention.value_length");
             b.erase("llama.rope.dimension_count");
           },
           {"attn_q", "wanted [32, 32]", "found [64, 32]"}},
          {"vocab_size",
           [](auto& b) { b.value("llama.vocab_size").bytes = raw(uint32_t(51)); },
           {"llama.vocab_size", "wanted 50, found 51"}},
          {"no embedding", [](auto& b) { b.erase("token_embd.weight"); }, {"token_embd.weight", "no such tensor"}},
          {"missing tensor",
           [](auto& b) { b.erase("blk.1.ffn_up.weight"); },
           {"asks for tensor \"blk.1.ffn_up.weight\""}},
          {"another tensor",
           [](auto& b) { b.tensor("blk.0.attn_q_norm.weight", {16}, kF32, std::string(64, '\0')); },
           {"no place", "attn_q_norm"}},
          {"layer too many",
           [](auto& b) { b.value("llama.block_count").bytes = raw(uint32_t(1)); },
           {"no place", "blk.1."}},
          {"norm type",
           [](auto& b) {
             auto& t = b.find("output_norm.weight");
             t.type = kQ8_0;
             t.data.resize(34);
           },
           {"output_norm", "F32, F16 or BF16", "Q8_0"}},
          {"eos outside",
           [](auto& b) { b.value("tokenizer.ggml.eos_token_id").bytes = raw(uint32_t(50)); },
           {"eos token id lies outside"}},
      });
}

TEST(GgufModel, VocabularyCanaries) {
  expect_refused("qwen3", {
                              {"too many tokens",
                               [](auto& b) { add_vocabulary(b, 51); },
                               {"more tokens than token_embd.weight has rows", "at most 50", "found 51"}},
                              {"another model's",
                               [](auto& b) { add_vocabulary(b, 2); },
                               {"tokenizer.ggml.eos_token_id", "an id below 2", "found 2", "Another model's"}},
                              {"token types",
                               [](auto& b) {
                                 add_vocabulary(b, 40);
                                 b.value("tokenizer.ggml.token_type").bytes =
                                     raw(uint32_t(kVI32)) + raw(uint64_t(1)) + raw(int32_t(1));
                               },
                               {"token_type", "wanted 40, found 1"}},
                              {"scores",
                               [](auto& b) {
                                 add_vocabulary(b, 40);
                                 b.array("tokenizer.ggml.scores", kVF32, 1, raw(1.0f));
                               },
                               {"scores", "wanted 40, found 1"}},
                              {"special is ordinary",
                               [](auto& b) {
                                 add_vocabulary(b, 40);
                                 b.value("tokenizer.ggml.eos_token_id").bytes = raw(uint32_t(9));
                               },
                               {"token \"t9\" is an ordinary one", "a control token"}},
                              {"tokens are numbers",
                               [](auto& b) { b.array("tokenizer.ggml.tokens", kVU32, 1, raw(uint32_t(1))); },
                               {"an array of strings"}},
                          });
  GgufBuilder b = tiny_gguf("qwen3");
  add_vocabulary(b, 40);
  b.u32("tokenizer.ggml.eot_token_id", 0);
  const Model m = load(b);
  EXPECT_EQ(m.config.eos, (std::vector<int64_t>{2, 0}));
  const std::string hash = m.provenance.tokenizer_hash;
  EXPECT_EQ(hash.size(), 32u);
  std::swap(b.values.front(), b.values.back());  // the order of keys in the file says nothing
  EXPECT_EQ(load(b).provenance.tokenizer_hash, hash);
  std::swap(b.value("tokenizer.ggml.eos_token_id").bytes, b.value("tokenizer.ggml.bos_token_id").bytes);
  EXPECT_NE(load(b).provenance.tokenizer_hash, hash);
}

/// Random blocks with finite scales.
std::string random_blocks(WeightType type, int64_t elements, std::mt19937& rng) {
  std::string bytes(row_bytes(type, elements), '\0');
  for (char& c : bytes) c = char(rng());
  const size_t block = block_bytes(type);
  for (size_t at = 0; at < bytes.size(); at += block) {
    const uint16_t scale = uint16_t(0x2c00 + rng() % 1024);
    const size_t d = type == WeightType::q6_k ? offsetof(BlockQ6_K, d) : 0;
    std::memcpy(bytes.data() + at + d, &scale, 2);
    if (type == WeightType::q4_1) std::memcpy(bytes.data() + at + 2, &scale, 2);
  }
  return bytes;
}

struct QuantRow {
  uint32_t number;
  WeightType type;
};
constexpr QuantRow kQuants[] = {
    {kQ8_0, WeightType::q8_0}, {kQ4_0, WeightType::q4_0}, {kQ4_1, WeightType::q4_1}, {kQ6_K, WeightType::q6_k}};

/// A llama model with hidden size 256, so that every block type fits, its q rows random blocks.
GgufBuilder quantised_gguf(QuantRow quant, std::mt19937& rng, std::string* q_rows) {
  GgufBuilder b = tiny_gguf("llama", [](TinyModel& m) {
    m.config["hidden_size"] = 256;
    for (StTensor& t : m.tensors) {
      for (int64_t& d : t.shape)
        d = d == 32 && t.name.find("v_proj") == std::string::npos && t.name.find("k_proj") == std::string::npos ? 256
                                                                                                                : d;
      if (t.name.find("v_proj") != std::string::npos || t.name.find("k_proj") != std::string::npos) t.shape[1] = 256;
      int64_t n = 1;
      for (int64_t d : t.shape) n *= d;
      t.data.assign(size_t(n) * 4, '\0');
    }
  });
  *q_rows = random_blocks(quant.type, 64 * 256, rng);
  auto& t = b.find("blk.0.attn_q.weight");
  t.type = quant.number;
  t.data = *q_rows;
  return b;
}

TEST(GgufModel, QuantisedRowsAreUnpermutedWhole) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  for (QuantRow quant : kQuants) {
    std::string rows;
    const Model m = load(quantised_gguf(quant, rng, &rows));
    const Matrix& q = m.weights.layers[0].q;
    EXPECT_EQ(q.type, quant.type);
    EXPECT_TRUE(m.quantised());
    const size_t row = row_bytes(quant.type, 256);
    for (int64_t head = 0; head < 4; head++)
      for (int64_t j = 0; j < 8; j++)
        for (int64_t half = 0; half < 2; half++)
          ASSERT_EQ(
              std::memcmp(q.row(head * 16 + half * 8 + j), rows.data() + size_t(head * 16 + 2 * j + half) * row, row),
              0)
              << name_of(quant.type) << " head " << head << " pair " << j << " half " << half;
    EXPECT_EQ(m.provenance.quantisation.rfind("F32 (" + std::string(name_of(quant.type)) + " 1)", 0), 0u)
        << m.provenance.quantisation;
  }
}

TEST(GgufModel, RefusesNonFiniteScalesWithTheirPlace) {
  std::mt19937 rng(7);
  for (QuantRow quant : kQuants) {
    for (uint16_t bits : {0x7c00, 0xfc00, 0x7e01, 0x7fff}) {
      std::string rows;
      GgufBuilder b = quantised_gguf(quant, rng, &rows);
      auto& t = b.find("blk.0.attn_q.weight");
      const int64_t per_row = 256 / block_elements(quant.type),
                    block = 3 * per_row + per_row - 1;  // file row 3, its last block
      const size_t d = quant.type == WeightType::q6_k ? offsetof(BlockQ6_K, d) : 0;
      std::memcpy(t.data.data() + size_t(block) * block_bytes(quant.type) + d, &bits, 2);
      const std::string error = error_of([&] { load(b); });
      EXPECT_NE(error.find("tensor \"blk.0.attn_q.weight\": row 3, block " + std::to_string(per_row - 1)),
                std::string::npos)
          << error;
      EXPECT_NE(error.find(std::string(name_of(quant.type)) + " scale d is not finite"), std::string::npos) << error;
    }
  }
  std::string rows;
  GgufBuilder b = quantised_gguf({kQ4_1, WeightType::q4_1}, rng, &rows);
  const uint16_t nan = 0xfe00;
  std::memcpy(b.find("blk.0.attn_q.weight").data.data() + 2, &nan, 2);
  EXPECT_NE(error_of([&] {
              load(b);
            }).find("row 0, block 0: the Q4_1 minimum m is not finite; wanted a finite binary16, found 0xfe00"),
            std::string::npos);
}

TEST(GgufModel, AcceptsSubnormalAndNegativeScales) {
  std::mt19937 rng(8);
  std::string rows;
  GgufBuilder b = quantised_gguf({kQ4_0, WeightType::q4_0}, rng, &rows);
  for (uint16_t bits : {0x0001, 0x8001, 0xbc00, 0x7bff, 0x0000}) {
    std::memcpy(b.find("blk.0.attn_q.weight").data.data(), &bits, 2);
    EXPECT_EQ(error_of([&] { load(b); }), "");
  }
}

// rope_freqs.weight: parameters that are recognised give the very frequencies of the Hugging Face side.
TEST(RopeFactors, PublishedParametersAreRecognised) {
  struct Row {
    double theta, factor, low, high, context;
    int64_t head_dim;
  };
  for (Row p : {Row{500000, 8, 1, 4, 8192, 128},
                {500000, 32, 1, 4, 8192, 64},
                {500000, 8, 1, 4, 8192, 64},
                {500000, 8, 1, 4, 64, 40},
                {500000, 16, 1, 4, 8192, 128},
                {10000, 4, 1, 4, 2048, 96},
                {1000000, 8, 1, 2, 4096, 128}}) {
    TempDir dir;
    TinyModel m = tiny_model("llama");
    m.config["head_dim"] = p.head_dim;
    m.config["rope_theta"] = p.theta;
    m.config["rope_scaling"] = {{"rope_type", "llama3"},
                                {"factor", p.factor},
                                {"low_freq_factor", p.low},
                                {"high_freq_factor", p.high},
                                {"original_max_position_embeddings", p.context}};
    for (StTensor& t : m.tensors) {
      for (auto [part, axis, heads] :
           {std::tuple{"q_proj", 0, 4}, {"k_proj", 0, 2}, {"v_proj", 0, 2}, {"o_proj", 1, 4}}) {
        if (t.name.find(part) != std::string::npos) t.shape[size_t(axis)] = heads * p.head_dim;
      }
      int64_t n = 1;
      for (int64_t d : t.shape) n *= d;
      t.data.resize(size_t(n) * 4);
    }
    m.write(dir.path());
    const Model hf = load_model(dir.path());
    const Model gguf = load(gguf_of(hf));
    ASSERT_TRUE(gguf.config.rope.llama3);
    EXPECT_EQ(make_rope_table(hf.config.rope, 0).inv_freq, make_rope_table(gguf.config.rope, 0).inv_freq)
        << "factor " << p.factor << " context " << p.context << " head_dim " << p.head_dim;
  }
}

TEST(RopeFactors, UnknownDivisorsAreRefused) {
  GgufBuilder b = tiny_gguf("llama");
  b.tensor("rope_freqs.weight", {8}, kF32, raw(std::vector<float>{1, 1, 1.5f, 2, 3, 4, 5, 8}));
  const std::string error = error_of([&] { load(b); });
  EXPECT_NE(error.find("rope_freqs.weight"), std::string::npos) << error;
  EXPECT_NE(error.find("found divisors from 1 to 8"), std::string::npos) << error;
  for (float bad : {0.0f, -1.0f, NAN, INFINITY}) {
    b.find("rope_freqs.weight").data = raw(std::vector<float>{1, 1, 1, bad, 1, 1, 1, 1});
    EXPECT_NE(error_of([&] { load(b); }).find("divisor 3 is not usable"), std::string::npos);
  }
  b.find("rope_freqs.weight").data = raw(std::vector<float>(8, 1.0f));
  EXPECT_FALSE(load(b).config.rope.llama3);
  b.find("rope_freqs.weight").ne = {4};
  EXPECT_NE(error_of([&] { load(b); }).find("wanted [8] of F32, found [4] of F32"), std::string::npos);
}

TEST(RopeFactors, ThetaComesBackAsTheDecimalItWas) {
  for (double theta : {10000.0, 500000.0, 5000000.0, 1e7, 12345.6, 0.1 + 10000}) {
    GgufBuilder b = tiny_gguf("llama", [&](TinyModel& m) { m.config["rope_theta"] = theta; });
    EXPECT_EQ(load(b).config.rope.theta, theta);
  }
}

// The layouts, by bytes written out by hand.
TEST(QuantBlocks, Layouts) {
  BlockQ8_0 q8;
  std::memset(&q8, 0, sizeof q8);
  q8.d = 0x3c00;
  q8.codes[31] = -128;
  std::string bytes(reinterpret_cast<const char*>(&q8), sizeof q8);
  EXPECT_EQ(bytes.substr(0, 2), std::string("\x00\x3c", 2));
  EXPECT_EQ(bytes[33], '\x80');
  BlockQ6_K q6;
  std::memset(&q6, 0, sizeof q6);
  q6.scales[15] = -1;
  q6.d = 0x1234;
  q6.high[63] = 0xc0;
  bytes.assign(reinterpret_cast<const char*>(&q6), sizeof q6);
  EXPECT_EQ(bytes[191], '\xc0');
  EXPECT_EQ(bytes[207], '\xff');
  EXPECT_EQ(bytes.substr(208), std::string("\x34\x12", 2));
  for (QuantRow q : kQuants) {
    const size_t size = q.type == WeightType::q8_0   ? sizeof(BlockQ8_0)
                        : q.type == WeightType::q4_0 ? sizeof(BlockQ4_0)
                        : q.type == WeightType::q4_1 ? sizeof(BlockQ4_1)
                                                     : sizeof(BlockQ6_K);
    EXPECT_EQ(block_bytes(q.type), size) << name_of(q.type);
    EXPECT_EQ(block_elements(q.type), q.type == WeightType::q6_k ? kKElements : kQuantGroup) << name_of(q.type);
  }
}

}  // namespace
}  // namespace assay

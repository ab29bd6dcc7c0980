// Random models: the same bytes however they are made, weights of the promised size, every type, shapes of real models.
#include "engine/formats/synth.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <cmath>
#include <cstring>
#include <set>

#include "engine/formats/gguf.h"
#include "engine/formats/loader.h"
#include "engine/formats/synth_blocks.h"
#include "engine/formats/test_files.h"
#include "engine/ops/common/rope_table.h"
#include "engine/ops/kernels.h"
#include "engine/session.h"

namespace assay {
namespace {

using namespace testing_files;

constexpr WeightType kTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                 WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                 WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

std::vector<std::byte> rows_of(const RandomMatrix& m, WeightType t, int64_t columns, int64_t begin, int64_t end) {
  std::vector<std::byte> out(size_t(end - begin) * row_bytes(t, columns));
  m.write(begin, end, out.data());
  return out;
}

/// A folder with a config.json of a small model whose columns divide into every block.
std::string small_config(const TempDir& dir, const std::string& family, int64_t hidden = 256, int64_t ffn = 512) {
  TinyModel m = tiny_model(family);
  m.config["hidden_size"] = hidden;
  m.config["intermediate_size"] = ffn;
  m.config["num_attention_heads"] = 8;
  m.config["head_dim"] = 32;
  m.config["vocab_size"] = 300;
  if (family == "qwen3_moe") m.config["moe_intermediate_size"] = 256;
  write_file(dir.path() / "config.json", m.config.dump());
  return (dir.path() / "config.json").string();
}

TEST(Synth, BytesOfARowDependOnNothingButItsPlace) {
  for (WeightType t : kTypes)
    for (int64_t columns :
         {int64_t(256), int64_t(768), t == WeightType::f16 || t == WeightType::f32 ? int64_t(37) : int64_t(512)}) {
      const RandomMatrix m(7, "blk.3.attn_q.weight", t, columns, 0.05);
      const auto all = rows_of(m, t, columns, 0, 9);
      const size_t row = row_bytes(t, columns);
      for (int64_t r = 0; r < 9; r++) {
        const auto one = rows_of(m, t, columns, r, r + 1);
        EXPECT_EQ(0, std::memcmp(one.data(), all.data() + size_t(r) * row, row)) << name_of(t) << " row " << r;
      }
      const auto same = rows_of(RandomMatrix(7, "blk.3.attn_q.weight", t, columns, 0.05), t, columns, 0, 9);
      EXPECT_EQ(same, all);
      EXPECT_NE(rows_of(RandomMatrix(8, "blk.3.attn_q.weight", t, columns, 0.05), t, columns, 0, 9), all)
          << "another seed";
      EXPECT_NE(rows_of(RandomMatrix(7, "blk.4.attn_q.weight", t, columns, 0.05), t, columns, 0, 9), all)
          << "another name";
      EXPECT_NE(std::memcmp(all.data(), all.data() + row, row), 0) << "rows repeat";
    }
}

TEST(Synth, WidenedWeightsHaveThePromisedSizeAndAreNeverAllZero) {
  constexpr int64_t kRows = 512, kColumns = 1024;
  for (WeightType t : kTypes)
    for (double rms : {1.0 / std::sqrt(4096.0), 1.0 / std::sqrt(12288.0 * 72)}) {
      const RandomMatrix m(3, "w", t, kColumns, rms);
      const auto bytes = rows_of(m, t, kColumns, 0, kRows);
      const Matrix matrix{t, kRows, kColumns, bytes.data()};
      std::vector<int32_t> ids;
      for (int32_t r = 0; r < kRows; r++) ids.push_back(r);
      std::vector<float> w(size_t(kRows * kColumns));
      kernels(Isa::scalar).embed({matrix, ids.data(), w.data()}, 0, kRows);
      double sum = 0, squares = 0, largest = 0;
      for (int64_t b = 0; b < kRows * kColumns / 32; b++) {
        double block = 0;
        for (int64_t i = 0; i < 32; i++) {
          const double x = double(w[size_t(32 * b + i)]);
          sum += x;
          block += x * x;
          largest = std::max(largest, std::abs(x));
        }
        ASSERT_GT(block, 0) << name_of(t) << ": a group of zeros";
        squares += block;
      }
      const double n = double(kRows * kColumns);
      EXPECT_NEAR(std::sqrt(squares / n) / rms, 1, 0.04) << name_of(t);
      EXPECT_LT(std::abs(sum / n), 0.02 * rms) << name_of(t);
      EXPECT_LT(largest, 8 * rms) << name_of(t);
    }
}

TEST(Synth, EveryCodeAndMostSubScalesAppear) {
  // What a kernel gets wrong for some codes only must be there to be got wrong.
  struct Region {
    WeightType type;
    size_t begin, end;
    size_t values;  // distinct bytes at least
  };
  for (const Region& r :
       {Region{WeightType::q8_0, 2, 34, 256}, Region{WeightType::q4_0, 2, 18, 256},
        Region{WeightType::q4_1, 4, 20, 256}, Region{WeightType::q5_0, 2, 6, 256}, Region{WeightType::q5_0, 6, 22, 256},
        Region{WeightType::q5_1, 4, 8, 256}, Region{WeightType::q5_1, 8, 24, 256}, Region{WeightType::q4_k, 4, 16, 240},
        Region{WeightType::q4_k, 16, 144, 256}, Region{WeightType::q5_k, 16, 48, 256},
        Region{WeightType::q5_k, 48, 176, 256}, Region{WeightType::q6_k, 0, 128, 256},
        Region{WeightType::q6_k, 128, 192, 256}, Region{WeightType::q6_k, 192, 208, 256 - 32}}) {
    const auto bytes = rows_of(RandomMatrix(1, "w", r.type, 2048, 0.02), r.type, 2048, 0, 64);
    std::set<std::byte> seen;
    for (size_t at = 0; at < bytes.size(); at += block_bytes(r.type))
      for (size_t i = r.begin; i < r.end; i++) seen.insert(bytes[at + i]);
    EXPECT_GE(seen.size(), r.values) << name_of(r.type) << " bytes " << r.begin;
  }
}

TEST(Synth, BytesArePinned) {
  // Goldens of synthetic models stand on these; whoever changes one changes kGenerator too.
  std::string all;
  for (WeightType t : kTypes) {
    const auto bytes = rows_of(RandomMatrix(1, "token_embd.weight", t, 1024, 1.0 / 32), t, 1024, 5, 21);
    all += std::string(name_of(t)) + " " + std::to_string(XXH3_64bits(bytes.data(), bytes.size())) + "\n";
  }
  const Vector v = random_vector(1, "output_norm.weight", 1000, 1, 0.5);
  all += "norm " + std::to_string(XXH3_64bits(v.data(), v.size() * sizeof(float))) + "\n";
  EXPECT_EQ(all, R"(F32 13612566428370573292
F16 193637976690406236
BF16 13678236770729748095
Q8_0 8499009311126712524
Q4_0 2298650259287048313
Q4_1 2125210122302854170
Q5_0 6374025920022022381
Q5_1 15024745405390077053
Q4_K 12769599744507752774
Q5_K 12230586833713030852
Q6_K 9789009971576339112
norm 17770594354282792845
)");
}

TEST(Synth, AModelHasTheSameBytesForAnyNumberOfThreads) {
  TempDir dir;
  const std::string config = small_config(dir, "qwen3");
  for (WeightType t : kTypes) {
    const SynthSpec spec{config, t, 11, 2};
    const Model a = make_synthetic_model(spec, 1), b = make_synthetic_model(spec, 3);
    EXPECT_EQ(a.provenance.hash, b.provenance.hash);
    for (size_t l = 0; l < 2; l++) {
      const LayerWeights &x = a.weights.layers[l], &y = b.weights.layers[l];
      for (Matrix LayerWeights::*m : {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v, &LayerWeights::o,
                                      &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down}) {
        ASSERT_EQ((x.*m).bytes(), (y.*m).bytes());
        EXPECT_EQ(0, std::memcmp((x.*m).data, (y.*m).data, (x.*m).bytes())) << name_of(t);
      }
      EXPECT_EQ(x.attn_norm, y.attn_norm);
      EXPECT_EQ(x.q_norm, y.q_norm);
    }
    EXPECT_NE(make_synthetic_model({config, t, 12, 2}).provenance.hash, a.provenance.hash);
  }
}

TEST(Synth, ValuesStayFiniteAndOfSensibleSizeThroughDeepModels) {
  TempDir dir;
  struct Sizes : Observer {
    void value(const Batch&, const Node& node, const float* data, std::span<const int64_t> rows,
               int64_t columns) override {
      double squares = 0;
      for (int64_t i = 0; i < int64_t(rows.size()) * columns; i++) {
        ASSERT_TRUE(std::isfinite(data[i])) << node.name();
        squares += double(data[i]) * double(data[i]);
      }
      const double rms = std::sqrt(squares / double(int64_t(rows.size()) * columns));
      EXPECT_GT(rms, 0.005) << node.name();
      EXPECT_LT(rms, 10) << node.name();
      values++;
    }
    int values = 0;
  };
  for (const char* family : {"llama", "qwen2", "qwen3"})
    for (WeightType t : {WeightType::q4_k, WeightType::f16, WeightType::q4_0, WeightType::q6_k}) {
      auto model = std::make_shared<Model>(make_synthetic_model({small_config(dir, family), t, 5, 24}));
      Engine engine(model, {.threads = 2, .context = 16});
      Batch batch;
      for (int32_t i = 0; i < 9; i++) batch.ids.push_back(i * 31 % 300);
      batch.segments = {{0, 0, 9, 0, 0}};
      batch.logit_rows = {0, 8};
      Sizes sizes;
      engine.forward(batch, &sizes);
      EXPECT_GT(sizes.values, 24 * 12) << family;
    }
}

TEST(Synth, ShapesOfPublishedModels) {
  const std::pair<const char*, double> billions[] = {
      {"0.6B", 0.596}, {"VL-2B", 1.721}, {"8B", 8.191}, {"OLMo2-1B", 1.485}, {"Qwen2.5-7B", 7.616}, {"30B-A3B", 30.53}, {"27B", 26.9}};
  ASSERT_EQ(synth_shapes().size(), std::size(billions));
  for (size_t i = 0; i < std::size(billions); i++) {
    const SynthShape& s = synth_shapes()[i];
    EXPECT_EQ(s.name, billions[i].first);
    EXPECT_NEAR(double(s.parameters()) / 1e9, billions[i].second, billions[i].second * 0.002) << s.name;
    if (!s.runs()) {
      EXPECT_NE(error_of([&] { synth_layout({std::string(s.name)}); }).find(std::string(s.family)), std::string::npos);
      continue;
    }
    int64_t elements = 0;
    const SynthLayout layout = synth_layout({std::string(s.name), WeightType::q4_k});
    for (const SynthTensor& t : layout.tensors) elements += t.shape.size() == 1 ? t.shape[0] : t.rows() * t.shape.back();
    EXPECT_EQ(elements, s.parameters()) << s.name;
    EXPECT_TRUE(layout.notes.empty());
    EXPECT_EQ(synth_layout({std::string(s.name), WeightType::q8_0, 1, 2}).config.layers, 2);
  }
}

TEST(Synth, ColumnsThatDontDivideGetAnotherTypeAndItIsSaid) {
  TempDir dir;
  const std::string config = small_config(dir, "qwen2", 96, 40);
  const SynthLayout l = synth_layout({config, WeightType::q4_k, 1, 1});
  for (const SynthTensor& t : l.tensors) {
    if (t.shape.size() == 1) continue;
    const WeightType wanted = t.shape[1] == 256  ? WeightType::q4_k
                              : t.shape[1] == 96 ? WeightType::q8_0
                                                 : WeightType::f16;
    EXPECT_EQ(t.type, wanted) << t.name;
  }
  ASSERT_EQ(l.notes.size(), 8u);  // all but o
  EXPECT_NE(l.notes.back().find("output.weight"), std::string::npos) << l.notes.back();
  EXPECT_NE(l.notes[6].find("blk.0.ffn_down.weight: 40 columns are no multiple of 256: F16 instead of Q4_K"),
            std::string::npos)
      << l.notes[6];
  const Model m = make_synthetic_model({config, WeightType::q4_k, 1, 1});
  EXPECT_EQ(m.weights.layers[0].o.type, WeightType::q4_k);
  EXPECT_EQ(m.weights.layers[0].q_bias.size(), 256u);
}

TEST(Synth, FileAndMemoryHoldTheSameModel) {
  TempDir dir;
  for (const char* family : {"llama", "olmo2", "qwen2", "qwen3", "qwen3_moe"})
    for (WeightType t : {WeightType::q5_k, WeightType::bf16, WeightType::q4_1}) {
      const SynthSpec spec{small_config(dir, family), t, 21, 2};
      const std::filesystem::path path = dir.path() / "m.gguf";
      const uint64_t bytes = write_synth_gguf(spec, path, true, 2);
      EXPECT_EQ(std::filesystem::file_size(path), bytes);
      const Model file = load_model(path), memory = make_synthetic_model(spec);
      const Config &a = file.config, &b = memory.config;
      EXPECT_EQ(a.family, b.family);
      EXPECT_EQ(a.context, b.context);
      EXPECT_EQ(a.rms_eps, double(float(b.rms_eps)));
      EXPECT_EQ(a.rope.theta, b.rope.theta);
      EXPECT_EQ(a.tied, b.tied);
      EXPECT_EQ(a.eos, b.eos);
      EXPECT_EQ(a.bos, b.bos);
      auto expect_equal = [&](const Matrix& x, const Matrix& y) {
        ASSERT_EQ(x.type, y.type);
        ASSERT_EQ(x.rows, y.rows);
        ASSERT_EQ(x.columns, y.columns);
        EXPECT_EQ(0, std::memcmp(x.data, y.data, x.bytes())) << family << " " << name_of(t);
      };
      expect_equal(file.weights.embed, memory.weights.embed);
      expect_equal(file.weights.lm_head, memory.weights.lm_head);
      EXPECT_EQ(file.weights.final_norm, memory.weights.final_norm);
      ASSERT_EQ(file.weights.layers.size(), 2u);
      for (size_t l = 0; l < 2; l++) {
        const LayerWeights &x = file.weights.layers[l], &y = memory.weights.layers[l];
        EXPECT_EQ(x.router.empty(), std::string(family) != "qwen3_moe");
        for (Matrix LayerWeights::*m : {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v, &LayerWeights::o,
                                        &LayerWeights::gate, &LayerWeights::up, &LayerWeights::down, &LayerWeights::router,
                                        &LayerWeights::expert_gate, &LayerWeights::expert_up, &LayerWeights::expert_down})
          if (!(x.*m).empty() || !(y.*m).empty()) expect_equal(x.*m, y.*m);
        for (Vector LayerWeights::*v :
             {&LayerWeights::attn_norm, &LayerWeights::ffn_norm, &LayerWeights::q_bias, &LayerWeights::k_bias,
              &LayerWeights::v_bias, &LayerWeights::q_norm, &LayerWeights::k_norm, &LayerWeights::attn_post_norm,
              &LayerWeights::ffn_post_norm})
          EXPECT_EQ(x.*v, y.*v) << family;
      }
      EXPECT_EQ(file.provenance.quantisation, memory.provenance.quantisation);
      EXPECT_NE(GgufFile::open(path).find("assay.source_hash"), nullptr);
      EXPECT_EQ(GgufFile::open(path).string("assay.source_hash"), memory.provenance.hash);
      EXPECT_NE(error_of([&] { write_synth_gguf(spec, path, false); }).find("is there already"), std::string::npos);
    }
}

TEST(Synth, Llama3RopeScalingGoesIntoTheFile) {
  TempDir dir;
  TinyModel m = tiny_model("llama");
  m.config["head_dim"] = 64;  // wide enough that all three bands have pairs
  m.config["rope_theta"] = 500000.0;
  m.config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", 32.0},
                              {"low_freq_factor", 1.0},
                              {"high_freq_factor", 4.0},
                              {"original_max_position_embeddings", 8192}};
  write_file(dir.path() / "config.json", m.config.dump());
  const SynthSpec spec{(dir.path() / "config.json").string(), WeightType::q8_0, 1, 1};
  write_synth_gguf(spec, dir.path() / "m.gguf", false, 1);
  const RopeConfig file = load_model(dir.path() / "m.gguf").config.rope,
                   memory = make_synthetic_model(spec, 1).config.rope;
  EXPECT_TRUE(file.llama3);
  EXPECT_EQ(make_rope_table(file, 1).inv_freq, make_rope_table(memory, 1).inv_freq);
}

TEST(Synth, TheTextFormIsReadAndRefused) {
  const SynthSpec s = parse_synth_spec("synth:VL-2B:q5_k:seed=9:layers=3");
  EXPECT_EQ(s.shape, "VL-2B");
  EXPECT_EQ(s.type, WeightType::q5_k);
  EXPECT_EQ(s.seed, 9u);
  EXPECT_EQ(s.layers, 3);
  EXPECT_EQ(s.text(), "synth:VL-2B:Q5_K:layers=3:seed=9");
  EXPECT_EQ(parse_synth_spec(s.text()).text(), s.text());
  const std::pair<const char*, const char*> bad[] = {{"synth:0.6B", "SHAPE:TYPE"},
                                                     {"synth::Q4_0", "SHAPE:TYPE"},
                                                     {"synth:0.6B:Q9", "Q4_0, Q4_1"},
                                                     {"synth:0.6B:Q4_0:layers=x", "\"x\""},
                                                     {"synth:0.6B:Q4_0:layers=", "malformed"},
                                                     {"synth:0.6B:Q4_0:layers=0", "layers=1"},
                                                     {"synth:0.6B:Q4_0:colour=1", "colour"},
                                                     {"synth:0.6B:Q4_0:layers=70000", "65536"},
                                                     {"synth:5B:Q4_0", "0.6B, VL-2B, 8B"},
                                                     {"synth:/nowhere:Q4_0", "/nowhere"}};
  for (auto [text, says] : bad) {
    const std::string error = error_of([&, t = text] { load_model(t); });
    EXPECT_NE(error.find(says), std::string::npos) << text << ": " << error;
    EXPECT_EQ(error.find("exit"), std::string::npos) << error;
  }
}

TEST(Synth, AModelPathMayBeASpec) {
  TempDir dir;
  const Model m = load_model("synth:" + small_config(dir, "llama") + ":Q8_0:layers=1");
  EXPECT_EQ(m.config.layers, 1);
  EXPECT_EQ(m.provenance.format, "synth");
  EXPECT_EQ(m.provenance.quantisation, "Q8_0 (F32 3)");
}

}  // namespace
}  // namespace assay

// Conversions keep what they may keep, say what they lose, and write files whose layout can't be mistaken (FAULTS A8).
#include "engine/formats/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>

#include "dumps/error.h"
#include "dumps/safetensors.h"
#include "engine/formats/artifact_keys.h"
#include "engine/formats/gguf.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/loader.h"
#include "engine/formats/quantise.h"
#include "engine/formats/readers.h"
#include "engine/formats/test_files.h"

namespace assay {
namespace {

using namespace testing_files;
namespace fs = std::filesystem;

fs::path official(const std::string& name) {
  return fs::path(ASSAY_SOURCE_DIR) / "goldens/official" / name / "model";
}
constexpr const char* kCases[] = {"llama-base", "llama-rope3", "olmo2-base", "qwen2-bias",
                                  "qwen3-k256", "qwen3-odd",   "qwen3_moe-nonorm", "qwen3_moe-norm", "qwen3_vl-text",
                                  "qwen3_5-k256", "qwen3_5-mtp", "qwen3_5_moe-base", "qwen3_next-base"};

std::vector<float> widened(const Matrix& m) {
  std::vector<float> out(size_t(m.rows * m.columns));
  for (int64_t r = 0; r < m.rows; r++) decode_row(m.type, m.row(r), m.columns, &out[size_t(r * m.columns)]);
  return out;
}

using NamedMatrix = std::pair<std::string, const Matrix*>;
std::vector<NamedMatrix> matrices(const Model& m) {
  std::vector<NamedMatrix> out = {{"embed", &m.weights.embed}, {"lm_head", &m.weights.lm_head}};
  out.emplace_back("mtp fc", &m.weights.mtp.fc);
  for (size_t i = 0; i <= m.weights.layers.size(); i++) {
    const LayerWeights& l = m.weights.layer(i);
    for (auto [name, w] : {std::pair{"q", &l.q},
                           {"k", &l.k},
                           {"v", &l.v},
                           {"o", &l.o},
                           {"gate", &l.gate},
                           {"up", &l.up},
                           {"down", &l.down},
                           {"gdn_qkv", &l.gdn_qkv},
                           {"gdn_z", &l.gdn_z},
                           {"gdn_b", &l.gdn_b},
                           {"gdn_a", &l.gdn_a},
                           {"gdn_qkvz", &l.gdn_qkvz},
                           {"gdn_ba", &l.gdn_ba},
                           {"gdn_out", &l.gdn_out},
                           {"shared_gate", &l.shared_gate},
                           {"shared_up", &l.shared_up},
                           {"shared_down", &l.shared_down},
                           {"router", &l.router},
                           {"expert_gate", &l.expert_gate},
                           {"expert_up", &l.expert_up},
                           {"expert_down", &l.expert_down}})
      if (!w->empty()) out.emplace_back("layer " + std::to_string(i) + " " + name, w);
  }
  return out;
}

/// The weight-decode check: the first matrix and element that differ; empty if none does.
std::string first_difference(const Model& a, const Model& b) {
  const auto x = matrices(a), y = matrices(b);
  if (x.size() != y.size()) return "number of matrices";
  for (size_t i = 0; i < x.size(); i++) {
    const auto u = widened(*x[i].second), v = widened(*y[i].second);
    for (size_t k = 0; k < u.size(); k++) {
      if (std::memcmp(&u[k], &v[k], 4) != 0) {
        return x[i].first + " row " + std::to_string(k / size_t(x[i].second->columns));
      }
    }
  }
  for (size_t i = 0; i <= a.weights.layers.size(); i++) {
    const LayerWeights &l = a.weights.layer(i), &r = b.weights.layer(i);
    for (auto v : {&LayerWeights::attn_norm, &LayerWeights::q_bias, &LayerWeights::k_bias, &LayerWeights::v_bias,
                   &LayerWeights::q_norm, &LayerWeights::k_norm, &LayerWeights::o_bias, &LayerWeights::ffn_norm,
                   &LayerWeights::attn_post_norm, &LayerWeights::ffn_post_norm, &LayerWeights::gdn_conv, &LayerWeights::gdn_decay,
                   &LayerWeights::gdn_norm})
      if (l.*v != r.*v) return "a vector of layer " + std::to_string(i);
  }
  for (auto v : {&MtpWeights::embed_norm, &MtpWeights::hidden_norm, &MtpWeights::norm})
    if (a.weights.mtp.*v != b.weights.mtp.*v) return "a norm of the MTP head";
  return a.weights.final_norm != b.weights.final_norm ? "final norm" : "";
}

void expect_equal_configs(const Config& a, const Config& b) {
  EXPECT_EQ(a.family, b.family);
  for (auto n : {&Config::layers, &Config::hidden, &Config::heads, &Config::kv_heads, &Config::head_dim, &Config::ffn,
                 &Config::vocab, &Config::context, &Config::bos})
    EXPECT_EQ(a.*n, b.*n);
  EXPECT_EQ(float(a.rms_eps), float(b.rms_eps));
  EXPECT_EQ(a.tied, b.tied);
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.qk_norm_whole, b.qk_norm_whole);
  EXPECT_EQ(a.post_norm, b.post_norm);
  EXPECT_EQ(a.eos, b.eos);
  for (auto n : {&Config::gdn_k_heads, &Config::gdn_v_heads, &Config::gdn_k_dim, &Config::gdn_v_dim, &Config::conv_width, &Config::mtp_layers,
                 &Config::shared_expert_ffn})
    EXPECT_EQ(a.*n, b.*n);
  EXPECT_EQ(a.gdn_layers, b.gdn_layers);
  EXPECT_EQ(a.rope.theta, b.rope.theta);
  EXPECT_EQ(a.experts, b.experts);
  EXPECT_EQ(a.experts_per_token, b.experts_per_token);
  EXPECT_EQ(a.expert_ffn, b.expert_ffn);
  EXPECT_EQ(a.norm_topk_prob, b.norm_topk_prob);
  EXPECT_EQ(a.rope.rotary, b.rope.rotary);
  EXPECT_EQ(a.rope.llama3, b.rope.llama3);
  EXPECT_EQ(a.rope.mrope_section, b.rope.mrope_section);
  if (!a.rope.llama3) return;
  EXPECT_EQ(a.rope.factor, b.rope.factor);
  EXPECT_EQ(a.rope.low_freq_factor, b.rope.low_freq_factor);
  EXPECT_EQ(a.rope.high_freq_factor, b.rope.high_freq_factor);
  EXPECT_EQ(a.rope.original_context, b.rope.original_context);
}

ConvertReport convert(const fs::path& from, const fs::path& to, std::optional<WeightType> type = {},
                      bool replace = false) {
  ConvertOptions o;
  o.type = type;
  o.replace = replace;
  o.threads = 2;
  return convert_model(from, to, o);
}

// Folder -> GGUF -> folder, each matrix as it is: nothing moves.
TEST(Convert, RoundTripsOfFloatModelsKeepEveryBit) {
  for (const char* name : kCases) {
    SCOPED_TRACE(name);
    TempDir dir;
    convert(official(name), dir / "m.gguf");
    convert(dir / "m.gguf", dir / "folder");
    convert(official(name), dir / "copy");
    const Model a = load_model(official(name)), b = load_model(dir / "m.gguf"), c = load_model(dir / "folder"),
                d = load_model(dir / "copy");
    for (const Model* m : {&b, &c, &d}) {
      EXPECT_EQ(first_difference(a, *m), "");
      expect_equal_configs(a.config, m->config);
    }
  }
}

// A GGUF file says by an interval which layers attend: another order is refused, and the error shows it.
TEST(Convert, AnIrregularOrderOfLayersIsRefused) {
  TempDir dir;
  const std::string error = error_of([&] { convert(official("qwen3_5-odd"), dir / "m.gguf"); });
  EXPECT_NE(error.find("LALLAL"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(dir / "m.gguf"));
  convert(official("qwen3_5-odd"), dir / "folder");
  EXPECT_EQ(first_difference(load_model(official("qwen3_5-odd")), load_model(dir / "folder")), "");
}

// Value heads lie by rank in a file: another order of rows is seen, and so are columns whose blocks do not let them be moved.
TEST(Convert, ValueHeadsAreReorderedInGguf) {
  TempDir dir;
  convert(official("qwen3_5-mtp"), dir / "m.gguf");
  const Model a = load_model(official("qwen3_5-mtp"));
  const GgufFile f = GgufFile::open(dir / "m.gguf");
  const GgufTensor* z = f.find_tensor("blk.0.attn_gate.weight");
  ASSERT_TRUE(z);
  const Matrix& ours = a.weights.layers[0].gdn_z;
  const int64_t d = a.config.gdn_v_dim;
  for (int64_t h = 0; h < a.config.gdn_v_heads; h++)   // (k0 r0, k0 r1, k1 r0, k1 r1) lies as (k0 r0, k1 r0, k0 r1, k1 r1)
    EXPECT_EQ(std::memcmp(z->data + size_t((h % 2 * 2 + h / 2) * d) * row_bytes(ours.type, ours.columns), ours.row(h * d), ours.bytes() / size_t(a.config.gdn_v_heads)), 0) << h;
  convert(official("qwen3_5-mtp"), dir / "q.gguf", WeightType::q8_0);
  EXPECT_TRUE(load_model(dir / "q.gguf").weights.layers[0].gdn_out_tiled);   // heads of 16 in blocks of 32
  EXPECT_FALSE(load_model(dir / "m.gguf").weights.layers[0].gdn_out_tiled);
}

// Routers choose experts: they stay as fine as they were, and GGUF has them in F32 as llama.cpp's converter writes them.
TEST(Convert, RoutersAreNeverQuantised) {
  TempDir dir;
  const ConvertReport report = convert(official("qwen3_moe-norm"), dir / "m.gguf", WeightType::q4_0);
  const Model m = load_model(dir / "m.gguf"), a = load_model(official("qwen3_moe-norm"));
  EXPECT_EQ(m.weights.layers[0].router.type, WeightType::f32);
  EXPECT_EQ(m.weights.layers[0].expert_down.type, WeightType::q4_0);
  EXPECT_EQ(widened(m.weights.layers[2].router), widened(a.weights.layers[2].router));
  EXPECT_TRUE(m.quantised());
  for (const ConvertedTensor& t : report.tensors) EXPECT_EQ(t.router, t.name.find("ffn_gate_inp") != std::string::npos);
  // A quantised one in a file is refused.
  TempDir tiny;
  tiny_model("qwen3_moe").write(tiny.path());
  GgufBuilder b = gguf_of(load_model(tiny.path()));
  b.find("blk.1.ffn_gate_inp.weight").type = kQ8_0;
  b.find("blk.1.ffn_gate_inp.weight").data = std::string(6 * 34, '\0');
  write_file(tiny / "q.gguf", b.build());
  EXPECT_NE(error_of([&] { load_model(tiny / "q.gguf"); }).find("a router has an unusable type"), std::string::npos);
}

// Dense layers among those of experts have no place in GGUF.
TEST(Convert, DenseLayersAmongExpertsAreRefusedForGguf) {
  TempDir dir;
  TinyModel m = tiny_model("qwen3_moe");
  for (const StTensor& t : tiny_model("qwen3").tensors)
    if (t.name.find("layers.0.mlp") != std::string::npos) m.tensors.push_back(t);
  std::erase_if(m.tensors, [](const StTensor& t) { return t.name.find("layers.0.mlp.experts") != std::string::npos || t.name == "model.layers.0.mlp.gate.weight"; });
  m.config["mlp_only_layers"] = {0};
  m.write(dir / "m");
  EXPECT_NE(error_of([&] { convert(dir / "m", dir / "m.gguf"); }).find("layer 0 is dense"), std::string::npos);
  convert(dir / "m", dir / "copy");
  EXPECT_EQ(first_difference(load_model(dir / "m"), load_model(dir / "copy")), "");
}

// Every type: what the file holds is what the encoder gives for the source's row, at its place, and the report's
// figures are those of the file.
TEST(Convert, EveryTypeHoldsTheEncodedRowsAtTheirPlaces) {
  for (const char* name : {"llama-base", "qwen3-k256"}) {
    const Model a = load_model(official(name));
    for (int i = 0; i <= int(WeightType::q6_k); i++) {
      const WeightType type = WeightType(i);
      SCOPED_TRACE(std::string(name) + " " + std::string(name_of(type)));
      TempDir dir;
      const ConvertReport report = convert(official(name), dir / "m.gguf", type);
      const Model b = load_model(dir / "m.gguf");
      const auto x = matrices(a), y = matrices(b);
      ASSERT_EQ(x.size(), y.size());
      for (size_t m = 0; m < x.size(); m++) {
        const Matrix &u = *x[m].second, &v = *y[m].second;
        EXPECT_EQ(v.type, fitting_type(type, u.columns)) << x[m].first;
        const auto wide = widened(u);
        std::vector<std::byte> row(row_bytes(v.type, v.columns));
        for (int64_t r = 0; r < u.rows; r += 7) {
          ASSERT_EQ(encode_row(v.type, &wide[size_t(r * u.columns)], u.columns, row.data()).what, nullptr);
          EXPECT_EQ(std::memcmp(row.data(), v.row(r), row.size()), 0) << x[m].first << " row " << r;
        }
      }
      const ConvertedTensor& embed = report.tensors.front();
      EXPECT_EQ(embed.name, "token_embd.weight");
      const auto u = widened(a.weights.embed), v = widened(b.weights.embed);
      const RowError e = row_error(u.data(), v.data(), int64_t(u.size()));
      if (e.noise == 0)
        EXPECT_EQ(embed.sqnr_db, INFINITY);
      else
        EXPECT_NEAR(embed.sqnr_db, sqnr_db(e.signal, e.noise), 1e-6);  // summed in another order
      const int64_t k = a.config.hidden, w = embed.worst_row;
      const RowError row = row_error(&u[size_t(w * k)], &v[size_t(w * k)], k);
      EXPECT_EQ(embed.worst_row_sqnr_db, sqnr_db(row.signal, row.noise));
      EXPECT_LE(embed.worst_row_sqnr_db, embed.sqnr_db);
    }
  }
}

TEST(Convert, QuantisedFilesAreWidenedIntoFolders) {
  TempDir dir;
  convert(official("llama-base"), dir / "q.gguf", WeightType::q5_1);
  convert(dir / "q.gguf", dir / "wide", WeightType::f32);
  convert(dir / "q.gguf", dir / "again.gguf");
  const Model q = load_model(dir / "q.gguf");
  EXPECT_EQ(first_difference(q, load_model(dir / "wide")), "");
  const Model again = load_model(dir / "again.gguf");
  EXPECT_EQ(first_difference(q, again), "");
  EXPECT_EQ(again.weights.layers[0].q.type, WeightType::q5_1);
}

TEST(Convert, FallbacksAreSaid) {
  TempDir dir;
  const ConvertReport report = convert(official("qwen3-odd"), dir / "m.gguf", WeightType::q4_k);
  int fallbacks = 0;
  for (const ConvertedTensor& t : report.tensors) {
    EXPECT_EQ(t.fallback, t.to != WeightType::q4_k);
    fallbacks += t.fallback;
  }
  EXPECT_GT(fallbacks, 0);
  ASSERT_FALSE(report.notes.empty());
  EXPECT_NE(report.notes[0].find("can't be Q4_K"), std::string::npos) << report.notes[0];
}

/// A copy of a case whose tensor has one element overwritten; returns the tensor's name.
std::string with_element(const TempDir& dir, const std::string& name, float value) {
  fs::copy(official(name), dir / "bad", fs::copy_options::recursive);
  size_t at = 0;
  std::string tensor;
  {
    const Safetensors st = Safetensors::open(dir / "bad/model.safetensors");
    const TensorView* t = st.find("model.layers.1.mlp.up_proj.weight");
    EXPECT_NE(t, nullptr);
    EXPECT_EQ(t->dtype, DType::f32);
    at = size_t(t->data - st.file()->data()) + 4 * size_t(3 * t->shape[1] + 5);
    tensor = "ffn_up";
  }
  std::fstream f(dir / "bad/model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(std::streamoff(at));
  f.write(reinterpret_cast<const char*>(&value), 4);
  return tensor;
}

TEST(Convert, NanInfAndOverflowAreRefusedByNameAndPlaceAndLeaveNothing) {
  for (float bad : {NAN, INFINITY}) {
    for (std::optional<WeightType> type : {std::optional<WeightType>(), {WeightType::q8_0}, {WeightType::f32}}) {
      TempDir dir;
      const std::string tensor = with_element(dir, "qwen2-bias", bad);
      const std::string error = error_of([&] { convert(dir / "bad", dir / "m.gguf", type); });
      EXPECT_NE(error.find("blk.1." + tensor + ".weight"), std::string::npos) << error;
      EXPECT_NE(error.find("row 3, column 5 is not finite"), std::string::npos) << error;
      EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
    }
  }
  TempDir dir;
  with_element(dir, "qwen2-bias", 70000.0f);
  const std::string error = error_of([&] { convert(dir / "bad", dir / "out", WeightType::f16); });
  EXPECT_NE(error.find("row 3, column 5 overflows F16"), std::string::npos) << error;
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);
}

TEST(Convert, OutputsAreKeptUnlessReplacedAndFoldersHoldNoBlocks) {
  TempDir dir;
  convert(official("llama-base"), dir / "m.gguf", WeightType::q8_0);
  EXPECT_NE(error_of([&] { convert(official("llama-base"), dir / "m.gguf"); }).find("is there already"),
            std::string::npos);
  convert(official("llama-base"), dir / "m.gguf", WeightType::q4_0, true);
  EXPECT_EQ(load_model(dir / "m.gguf").weights.embed.type, WeightType::q4_0);
  const std::string error = error_of([&] { convert(official("llama-base"), dir / "folder", WeightType::q8_0); });
  EXPECT_NE(error.find("F32, F16 or BF16"), std::string::npos) << error;
  EXPECT_FALSE(fs::exists(dir / "folder"));
  fs::create_directory(dir / "other");
  write_file(dir / "other/letters.txt", "mine");
  EXPECT_NE(error_of([&] { convert(official("llama-base"), dir / "other", {}, true); }).find("no model folder"),
            std::string::npos);
  EXPECT_TRUE(fs::exists(dir / "other/letters.txt"));
}

TEST(Convert, AFolderThatHoldsMoreThanAModelIsNotReplaced) {
  TempDir dir;
  const fs::path source = official("llama-base");
  convert(source, dir / "m");
  convert(source, dir / "m", WeightType::f32, true);
  EXPECT_EQ(load_model(dir / "m").weights.embed.type, WeightType::f32);
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1);  // nothing set aside stays
  write_file(dir / "m/README.md", "mine");
  EXPECT_NE(error_of([&] { convert(source, dir / "m", WeightType::f16, true); }).find("README.md"), std::string::npos);
  EXPECT_NE(error_of([&] { convert(source, dir / "m/.", WeightType::f16, true); }).find("no name"), std::string::npos);
  EXPECT_TRUE(fs::exists(dir / "m/README.md"));
  EXPECT_EQ(load_model(dir / "m").weights.embed.type, WeightType::f32);
  fs::create_directory(dir / "n.partial");  // what an ended run leaves is cleaned up, other things are not
  write_file(dir / "n.partial/letters.txt", "mine");
  EXPECT_NE(error_of([&] { convert(source, dir / "n"); }).find("letters.txt"), std::string::npos);
  EXPECT_TRUE(fs::exists(dir / "n.partial/letters.txt"));
}

// ---- A8: the layout that a file says and the one that the engine has.

/// The file of `path` with a metadata string or number replaced by another of the same length.
void patch(const fs::path& path, const std::string& key, const std::string& value) {
  size_t at = 0, length = 0;
  {
    const GgufFile f = GgufFile::open(path);
    const GgufValue* v = f.find(key);
    ASSERT_NE(v, nullptr) << key;
    const size_t prefix = v->type == GgufType::string ? 8 : 0;
    at = size_t(v->offset) + prefix;
    length = v->bytes.size() - prefix;
  }
  std::string bytes = value;
  bytes.resize(length, 'x');
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(std::streamoff(at));
  file.write(bytes.data(), std::streamsize(bytes.size()));
}

TEST(Artifact, EachLayoutKeyFlippedIsRefused) {
  TempDir dir;
  convert(official("llama-base"), dir / "good.gguf", WeightType::q4_0);
  load_model(dir / "good.gguf");
  struct Row {
    const char *key, *value, *says;
  };
  for (Row r : {Row{"assay.layout_version", "\x02", "wanted 1"},
                {"assay.layout.blocks", "rows", "wanted \"ggml\""},
                {"assay.layout.qk_rows", "halves", "wanted \"interleaved\""},
                {"assay.source_hash", "?", "32 hex digits"},
                {"assay.tokenizer_hash", "0000", "the tokenizer keys of this file"},
                {"tokenizer.ggml.pre", "gpt-2", "the tokenizer keys of this file"}}) {
    fs::copy_file(dir / "good.gguf", dir / "bad.gguf", fs::copy_options::overwrite_existing);
    std::string value = r.value;
    if (std::string(r.key) == "assay.layout_version") value.resize(4, '\0');
    patch(dir / "bad.gguf", r.key, value);
    const std::string error = error_of([&] { load_model(dir / "bad.gguf"); });
    EXPECT_NE(error.find(r.says), std::string::npos) << r.key << ": " << error;
    EXPECT_NE(error.find("bad.gguf"), std::string::npos) << error;
  }
}

TEST(Artifact, MissingKeysAreRefusedAndForeignFilesHaveNone) {
  TempDir dir;
  convert(official("llama-base"), dir / "good.gguf");
  // One key renamed: the list is incomplete.
  std::string bytes = read_text_file(dir / "good.gguf");
  const size_t at = bytes.find("assay.layout.blocks");
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, 19, "assay.layout.blockz");
  write_file(dir / "bad.gguf", bytes);
  EXPECT_NE(error_of([&] { load_model(dir / "bad.gguf"); }).find("is missing"), std::string::npos);
}

// The refusal bypassed: data that really lies in another layout is caught by decoding the weights.
TEST(Artifact, AnotherLayoutIsCaughtByWeightDecodeWhenTheRefusalIsBypassed) {
  TempDir dir;
  convert(official("llama-base"), dir / "good.gguf", WeightType::q4_0);
  const Model good = load_model(dir / "good.gguf");
  const int64_t head_dim = good.config.head_dim;
  auto planted = [&](auto change) {
    std::string bytes = read_text_file(dir / "good.gguf");
    {
      const GgufFile f = GgufFile::open(dir / "good.gguf");
      const GgufTensor* t = f.find_tensor("blk.1.attn_q.weight");
      std::string data(reinterpret_cast<const char*>(t->data), t->bytes);
      change(data, row_bytes(t->type, t->shape[1]));
      bytes.replace(size_t(t->offset), t->bytes, data);
    }
    write_file(dir / "bad.gguf", bytes);
    const GgufFile f = GgufFile::open(dir / "bad.gguf");
    return first_difference(good, load_gguf(f, "bad.gguf", false));
  };
  EXPECT_EQ(planted([](std::string&, size_t) {}), "");  // the check is clean on the good file
  // q rows in halves, as qwen files have them.
  const std::string halves = planted([&](std::string& data, size_t row) {
    const std::string file = data;
    for (int64_t r = 0; r < int64_t(file.size() / row); r++) {
      const int64_t in_head = r % head_dim, hf = r - in_head + (in_head % 2) * (head_dim / 2) + in_head / 2;
      data.replace(size_t(hf) * row, row, file.substr(size_t(r) * row, row));
    }
  });
  EXPECT_EQ(halves, "layer 1 q row 1");
  // Nibbles of neighbours in one byte instead of those 16 apart.
  const std::string neighbours = planted([&](std::string& data, size_t) {
    for (size_t b = 0; b < data.size(); b += 18) {
      uint8_t codes[32];
      for (size_t i = 0; i < 16; i++) {
        codes[i] = uint8_t(data[b + 2 + i]) & 15;
        codes[i + 16] = uint8_t(data[b + 2 + i]) >> 4;
      }
      for (size_t i = 0; i < 16; i++) data[b + 2 + i] = char(codes[2 * i] | codes[2 * i + 1] << 4);
    }
  });
  EXPECT_EQ(neighbours, "layer 1 q row 0");
}

}  // namespace
}  // namespace assay

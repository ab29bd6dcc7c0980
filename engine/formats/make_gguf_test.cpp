// tools/make_gguf.py against the readers: the same folder, read directly and through the file that the script writes.
// The script needs python3 with numpy (another one: ASSAY_PYTHON); without it these tests are not run, and say so.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "engine/formats/loader.h"
#include "engine/formats/quant.h"
#include "engine/formats/test_files.h"
#include "engine/formats/widen.h"
#include "engine/numerics.h"

namespace assay {
namespace {

using namespace testing_files;
namespace fs = std::filesystem;

std::string python() {
  const char* p = std::getenv("ASSAY_PYTHON");
  return p ? p : "python3";
}

bool has_numpy() {
  return std::system((python() + " -c 'import numpy' 2>/dev/null").c_str()) == 0;
}

fs::path folder(const std::string& name) {
  return fs::path(ASSAY_SOURCE_DIR) / "goldens/official" / name / "model";
}

Model convert(const TempDir& dir, const std::string& name, const std::string& type) {
  const fs::path out = dir / (name + "." + type + ".gguf");
  const std::string script = (fs::path(ASSAY_SOURCE_DIR) / "engine/formats/tools/make_gguf.py").string();
  const std::string command = python() + " '" + script + "' '" + folder(name).string() + "' '" + out.string() +
                              "' --type " + type + " 2>/dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
  return load_model(out);
}

/// The blocks of quant.h, decoded in double straight from the comments there.
std::vector<double> decoded(const Matrix& m) {
  std::vector<double> out;
  const int64_t blocks = m.rows * m.columns / block_elements(m.type);
  for (int64_t b = 0; b < blocks; b++) {
    const std::byte* p = m.data + size_t(b) * block_bytes(m.type);
    if (m.type == WeightType::q8_0) {
      BlockQ8_0 q;
      std::memcpy(&q, p, sizeof q);
      for (int8_t code : q.codes) out.push_back(double(f32_of_f16(q.d)) * code);
    } else if (m.type == WeightType::q4_0) {
      BlockQ4_0 q;
      std::memcpy(&q, p, sizeof q);
      for (int i = 0; i < 32; i++) {
        const int nibble = i < 16 ? q.codes[i] & 15 : q.codes[i - 16] >> 4;
        out.push_back(double(f32_of_f16(q.d)) * (nibble - 8));
      }
    } else if (m.type == WeightType::q4_1) {
      BlockQ4_1 q;
      std::memcpy(&q, p, sizeof q);
      for (int i = 0; i < 32; i++) {
        const int nibble = i < 16 ? q.codes[i] & 15 : q.codes[i - 16] >> 4;
        out.push_back(double(f32_of_f16(q.d)) * nibble + double(f32_of_f16(q.m)));
      }
    } else {
      BlockQ6_K q;
      std::memcpy(&q, p, sizeof q);
      for (int i = 0; i < 256; i++) {
        const int h = i / 128, t = i % 128 / 32, j = i % 32;
        const int low = q.low[64 * h + 32 * (t % 2) + j] >> (4 * (t / 2)) & 15,
                  high = q.high[32 * h + j] >> (2 * t) & 3;
        out.push_back(double(f32_of_f16(q.d)) * q.scales[i / 16] * ((low | high << 4) - 32));
      }
    }
  }
  return out;
}

TEST(MakeGguf, FloatFilesEqualTheFolder) {
  if (!has_numpy()) GTEST_SKIP() << "not run: python3 with numpy is needed";
  TempDir dir;
  for (const char* name : {"llama-base", "llama-rope3", "qwen2-bias", "qwen3-k256", "qwen3-odd", "qwen3_vl-text"}) {
    SCOPED_TRACE(name);
    const Model hf = load_model(folder(name));
    for (const char* type : {"f32", "bf16"}) {
      if (std::string(type) == "bf16" && hf.provenance.quantisation != "BF16") continue;  // values need not fit
      const Model gguf = convert(dir, name, type);
      auto values = [](const Matrix& m) { return widen(m.type, m.data, m.rows * m.columns); };
      ASSERT_EQ(gguf.weights.layers.size(), hf.weights.layers.size());
      EXPECT_EQ(values(gguf.weights.embed), values(hf.weights.embed));
      EXPECT_EQ(values(gguf.weights.lm_head), values(hf.weights.lm_head));
      for (size_t i = 0; i < hf.weights.layers.size(); i++) {
        const LayerWeights &a = hf.weights.layers[i], &b = gguf.weights.layers[i];
        for (auto m : {&LayerWeights::q, &LayerWeights::k, &LayerWeights::v, &LayerWeights::o, &LayerWeights::gate,
                       &LayerWeights::up, &LayerWeights::down})
          EXPECT_EQ(values(a.*m), values(b.*m)) << "layer " << i;
        EXPECT_EQ(a.q_bias, b.q_bias);
        EXPECT_EQ(a.k_bias, b.k_bias);
        EXPECT_EQ(a.q_norm, b.q_norm);
        EXPECT_EQ(a.attn_norm, b.attn_norm);
      }
      EXPECT_EQ(gguf.config.rope.llama3, hf.config.rope.llama3);
      EXPECT_EQ(gguf.config.rope.theta, hf.config.rope.theta);
      EXPECT_EQ(gguf.config.tied, hf.config.tied);
      if (!hf.config.rope.llama3) continue;
      EXPECT_EQ(gguf.config.rope.factor, hf.config.rope.factor);
      EXPECT_EQ(gguf.config.rope.original_context, hf.config.rope.original_context);
    }
  }
}

TEST(MakeGguf, QuantisedBlocksDecodeNearTheFolder) {
  if (!has_numpy()) GTEST_SKIP() << "not run: python3 with numpy is needed";
  TempDir dir;
  // Half a step over the RMS of normal values: 8 bits about 0.006, 4 bits 0.1, 6 bits 0.02. A wrong nibble or scale
  // gives errors of the order of 1.
  struct Row {
    const char *name, *type;
    double most;
  };
  for (Row r : {Row{"llama-base", "q8_0", 0.01},
                {"llama-base", "q4_0", 0.15},
                {"llama-base", "q4_1", 0.15},
                {"qwen3-k256", "q6_k", 0.03},
                {"qwen3-k256", "q4_1", 0.15}}) {
    const Model hf = load_model(folder(r.name)), gguf = convert(dir, r.name, r.type);
    EXPECT_TRUE(gguf.quantised());
    for (auto m : {&LayerWeights::q, &LayerWeights::k, &LayerWeights::down}) {
      const Matrix &a = hf.weights.layers[1].*m, &b = gguf.weights.layers[1].*m;
      const Vector wanted = widen(a.type, a.data, a.rows * a.columns);
      const std::vector<double> found = decoded(b);
      ASSERT_EQ(found.size(), wanted.size());
      double error = 0, scale = 0;
      for (size_t i = 0; i < found.size(); i++) {
        error += (found[i] - wanted[i]) * (found[i] - wanted[i]);
        scale += double(wanted[i]) * wanted[i];
      }
      EXPECT_LT(std::sqrt(error / scale), r.most) << r.name << " " << r.type;
      EXPECT_GT(error, 0) << r.type;
    }
  }
}

}  // namespace
}  // namespace assay

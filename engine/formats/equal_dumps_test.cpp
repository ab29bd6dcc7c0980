// A Hugging Face folder and an exact GGUF of the same weights give equal values at every node, equal ids and equal
// state.
#include <gtest/gtest.h>
#include <xxhash.h>

#include "engine/formats/loader.h"
#include "engine/formats/test_files.h"
#include "engine/session.h"

namespace assay {
namespace {

using namespace testing_files;

/// One line per node that ran: its name and the hash of its bytes.
class HashObserver : public GenerateObserver {
 public:
  void value(const Batch&, const Node& node, const float* data, std::span<const int64_t> rows,
             int64_t columns) override {
    const size_t bytes = rows.size() * size_t(columns) * sizeof(float);
    lines.push_back(node.name() + " " + std::to_string(XXH3_64bits(data, bytes)));
  }
  void after_decode(const Engine& engine, int32_t, int slot, const Generated&) override {
    lines.push_back("state " + engine.state_hash(slot));
  }
  std::vector<std::string> lines;
};

struct Result {
  std::vector<std::string> lines;
  std::vector<int32_t> greedy;
};

Result result_of(const std::filesystem::path& path) {
  EngineOptions options;
  options.threads = 1;
  options.kv = KvType::f32;
  options.context = 64;
  Engine engine(std::make_shared<const Model>(load_model(path)), options);
  HashObserver observer;
  const std::vector<Request> requests = {{{5, 17, 3, 99, 42, 250, 8}, 4, {}}};
  const auto generated = generate(engine, requests, {}, &observer);
  return {observer.lines, generated[0].greedy};
}

TEST(EqualDumps, HuggingFaceFolderAndGguf) {
  TempDir dir;
  for (const char* name : {"llama-base", "llama-rope3", "olmo2-base", "qwen2-bias", "qwen3-k256", "qwen3-odd",
                           "qwen3_moe-nonorm", "qwen3_moe-norm", "qwen3_vl-text"}) {
    SCOPED_TRACE(name);
    const auto folder = std::filesystem::path(ASSAY_SOURCE_DIR) / "goldens/official" / name / "model";
    write_file(dir / "m.gguf", gguf_of(load_model(folder)).build());
    const Result hf = result_of(folder), gguf = result_of(dir / "m.gguf");
    ASSERT_GT(hf.lines.size(), 5u * 30);  // prefill and four decode passes, at least 30 nodes each
    EXPECT_EQ(hf.lines, gguf.lines);
    EXPECT_EQ(hf.greedy.size(), 5u);
    EXPECT_EQ(hf.greedy, gguf.greedy);
  }
}

// The transforms are seen by that comparison: a file whose q rows stay as they are gives other values from q_proj on.
TEST(EqualDumps, AMissingPermutationIsNoticed) {
  TempDir dir;
  const auto folder = std::filesystem::path(ASSAY_SOURCE_DIR) / "goldens/official/llama-base/model";
  const Model m = load_model(folder);
  GgufBuilder b = gguf_of(m);
  const Matrix& q = m.weights.layers[0].q;
  b.find("blk.0.attn_q.weight").data.assign(reinterpret_cast<const char*>(q.data), q.bytes());
  write_file(dir / "m.gguf", b.build());
  const Result hf = result_of(folder), gguf = result_of(dir / "m.gguf");
  ASSERT_EQ(hf.lines.size(), gguf.lines.size());
  size_t first = 0;
  while (first < hf.lines.size() && hf.lines[first] == gguf.lines[first]) first++;
  ASSERT_LT(first, hf.lines.size());
  EXPECT_EQ(hf.lines[first].substr(0, hf.lines[first].find(' ')), "layer.0/q_proj");
}

}  // namespace
}  // namespace assay

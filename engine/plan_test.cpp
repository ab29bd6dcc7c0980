// A plan is held against what happens: the engine's own count of every class, and the memory of the process.
#include "engine/plan.h"

#include <gtest/gtest.h>

#include "engine/formats/synth.h"
#include "engine/formats/test_files.h"
#include "engine/limits.h"
#include "engine/process_memory.h"

namespace assay {
namespace {

using namespace testing_files;

std::string config_file(const TempDir& dir, const std::string& family, int64_t layers = 2) {
  TinyModel m = tiny_model(family);
  m.config["hidden_size"] = 256;
  m.config["intermediate_size"] = 768;
  m.config["num_attention_heads"] = 8;
  m.config["head_dim"] = 32;
  m.config["vocab_size"] = 300;
  m.config["num_hidden_layers"] = layers;
  if (family == "qwen3_moe") m.config["moe_intermediate_size"] = 256;
  write_file(dir.path() / "config.json", m.config.dump());
  return (dir.path() / "config.json").string();
}

/// Runs one pass of `rows` rows and then decodes until the context is full.
void fill(Engine& engine, int64_t rows) {
  Batch b;
  for (int64_t i = 0; i < rows; i++) b.ids.push_back(int32_t(i % 300));
  b.segments = {{0, 0, rows, 0, 0}};
  b.logit_rows = {rows - 1};
  engine.forward(b);
  for (int64_t p = rows; p < engine.options().context; p++) {
    Batch d;
    d.pass = Pass::decode;
    d.ids = {int32_t(p % 300)};
    d.segments = {{0, p, 1, 0, 0}};
    d.logit_rows = {0};
    engine.forward(d);
  }
}

TEST(Plan, EveryClassIsWhatTheEngineCounts) {
  TempDir dir;
  int plans = 0;
  for (WeightType t : {WeightType::f16, WeightType::q8_0, WeightType::q4_0, WeightType::q6_k})
    for (Activations a : {Activations::s16, Activations::s8, Activations::f32})
      for (Isa isa : {Isa::scalar, best_isa()}) {
        const char* family = plans % 6 < 2 ? "qwen2" : plans % 6 < 4 ? "qwen3" : "qwen3_moe";
        const int64_t rows = plans % 5 < 3 ? 9 : 1;
        const SynthSpec spec{config_file(dir, family), t, 3, 2};
        EngineOptions o;
        o.isa = isa;
        o.threads = 2;
        o.kv = rows == 1 ? KvType::f32 : KvType::f16;
        o.slots = 3;
        o.context = rows + 3;
        o.activations = a;
        const ModelOutline outline = outline_synthetic_model(spec);
        const MemoryPlan plan = plan_memory(outline, o, rows);
        auto model = std::make_shared<Model>(make_synthetic_model(spec, 1));
        Engine engine(model, o);
        fill(engine, rows);
        const EngineMemory real = engine.memory();
        const std::string where = std::string(family) + " " + std::string(name_of(t)) + " " + std::string(name_of(a)) +
                                  " " + std::string(name_of(isa)) + " rows " + std::to_string(rows);
        EXPECT_EQ(plan.engine.panels, real.panels) << where;
        EXPECT_EQ(plan.engine.kv, real.kv) << where;
        EXPECT_EQ(plan.engine.rope, real.rope) << where;
        EXPECT_EQ(plan.engine.values, real.values) << where;
        EXPECT_EQ(plan.engine.quantised, real.quantised) << where;
        EXPECT_EQ(plan.engine.scratch, real.scratch) << where;
        EXPECT_EQ(plan.engine.experts, real.experts) << where;
        size_t vectors = model->weights.final_norm.size();
        for (const LayerWeights& l : model->weights.layers)
          vectors += l.attn_norm.size() + l.ffn_norm.size() + l.q_norm.size() + l.k_norm.size() + l.q_bias.size() +
                     l.k_bias.size() + l.v_bias.size() + l.attn_post_norm.size() + l.ffn_post_norm.size();
        EXPECT_EQ(plan.vectors, vectors * sizeof(float)) << where;
        plans++;
      }
  EXPECT_EQ(plans, 4 * 3 * 2);
}

TEST(Plan, OutlinesSayWhatLoadingMapsAndCopies) {
  TempDir dir;
  const SynthSpec spec{config_file(dir, "llama"), WeightType::q8_0, 3, 2};
  const std::filesystem::path path = dir.path() / "m.gguf";
  write_synth_gguf(spec, path, false, 1);
  const ModelOutline gguf = outline_model(path);
  EXPECT_EQ(gguf.mapped_bytes, std::filesystem::file_size(path));
  EXPECT_EQ(gguf.copied_bytes, 2 * (256 + 64) * 8 * 34u);  // q and k of two layers, whose rows are put back
  EXPECT_EQ(gguf.model.provenance.hash, "");
  EXPECT_EQ(gguf.model.weights.layers[1].down.bytes(), 256 * 24 * 34u);
  EXPECT_EQ(gguf.model.provenance.quantisation, load_model(path).provenance.quantisation);

  tiny_model("qwen2").write(dir.path() / "hf");
  const ModelOutline hf = outline_model(dir.path() / "hf");
  EXPECT_EQ(hf.mapped_bytes, std::filesystem::file_size(dir.path() / "hf" / "model.safetensors"));
  EXPECT_EQ(hf.copied_bytes, 0u);
  EXPECT_EQ(hf.model.config.hidden, 32);

  const ModelOutline synth = outline_model(spec.text());
  EXPECT_EQ(synth.mapped_bytes, 0u);
  size_t matrices = 0;
  const SynthLayout layout = synth_layout(spec);
  for (const SynthTensor& t : layout.tensors)
    if (t.shape.size() == 2) matrices += t.bytes();
  EXPECT_EQ(synth.copied_bytes, matrices);
  EXPECT_EQ(synth.model.weights.layers[0].attn_norm, make_synthetic_model(spec, 1).weights.layers[0].attn_norm);

  // A header of an odd length puts every tensor at an odd address; what contradicts the config is found all the same.
  TinyModel odd = tiny_model("qwen2");
  std::filesystem::create_directories(dir.path() / "odd");
  write_file(dir.path() / "odd" / "config.json", odd.config.dump());
  write_file(dir.path() / "odd" / "model.safetensors", safetensors_bytes(odd.tensors, 1));
  EXPECT_GT(outline_model(dir.path() / "odd").copied_bytes, 0u);
  odd.config["hidden_size"] = 64;
  write_file(dir.path() / "odd" / "config.json", odd.config.dump());
  EXPECT_NE(error_of([&] { outline_model(dir.path() / "odd"); }).find("contradicts"), std::string::npos);
}

/// Bytes by which a new process grows while it makes a model and an engine and fills the context; -1: it could not be told.
[[maybe_unused]] double growth_of(const SynthSpec& spec, const EngineOptions& options, int64_t rows) {
  double grown = -1;
  measured_in_child(grown, [&](double& out) {
    const uint64_t before = process_memory("VmRSS");
    Engine engine(std::make_shared<Model>(make_synthetic_model(spec, 2)), options);
    fill(engine, rows);
    out = double(process_memory("VmRSS")) - double(before);
  });
  return grown;
}

TEST(Plan, TheProcessHasWhatWasPlanned) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have memory of their own";
#else
  if (process_memory("VmRSS") == 0) GTEST_SKIP() << "no VmRSS in /proc/self/status";
  for (Activations a : {Activations::s16, Activations::f32}) {
    const SynthSpec spec{"0.6B", WeightType::q4_0, 1, 2};
    EngineOptions o;
    o.threads = 2;
    o.context = 64;
    o.activations = a;
    const MemoryPlan plan = plan_memory(outline_synthetic_model(spec), o, 48);
    // Packing is an upper bound. Heap arenas of threads and pages once touched by the loader belong to the process, not
    // to the model: some megabytes whatever the model's size.
    constexpr double kProcess = 8 << 20;
    const double used = growth_of(spec, o, 48), least = double(plan.total() - plan.packing);
    EXPECT_GT(used, 0.98 * least) << "activations " << name_of(a);
    EXPECT_LT(used, 1.02 * double(plan.total()) + kProcess) << "activations " << name_of(a);
  }
#endif
}

TEST(Plan, RefusesWhatNoEngineCanHave) {
  TempDir dir;
  const ModelOutline m = outline_synthetic_model({config_file(dir, "qwen3"), WeightType::q8_0, 1, 1});
  EngineOptions o;
  o.slots = 0;
  EXPECT_NE(error_of([&] { plan_memory(m, o, 1); }).find("--slots"), std::string::npos);
  o.slots = 1;
  o.context = 8;
  EXPECT_NE(error_of([&] { plan_memory(m, o, 9); }).find("--rows"), std::string::npos);
  o.context = -1;
  EXPECT_NE(error_of([&] { plan_memory(m, o, 1); }).find("--ctx"), std::string::npos);
  o.context = (int64_t(1) << 23) + 1;  // where angles end (ops/common/rope_table.h)
  EXPECT_NE(error_of([&] { plan_memory(m, o, 1); }).find("2^23"), std::string::npos);
}

TEST(Limits, BoundsByHand) {
  TempDir dir;
  const ModelOutline m = outline_synthetic_model({config_file(dir, "qwen3"), WeightType::q8_0, 1, 1});
  const Limits l = limits_of(build_program(m.model), 100, 10, KvType::f16);
  // 8 heads and 2 kv heads of 32, hidden 256, ffn 768, vocab 300, all Q8_0 (34 bytes per 32).
  const int64_t matrices = 256 * 256 + 2 * 64 * 256 + 256 * 256 + 3 * 768 * 256;
  const int64_t vectors = 4 * (2 * 256 + 2 * 32 + 256);
  EXPECT_EQ(l.kv_bytes_per_position, 2 * 64 * 2);
  EXPECT_EQ(l.decode.weight_bytes, (matrices + 300 * 256 + 256) / 32 * 34 + vectors);  // head, and one row of embed
  EXPECT_EQ(l.decode.moved(), l.decode.weight_bytes + 101 * l.kv_bytes_per_position);  // 100 read, one written
  EXPECT_EQ(l.prefill.weight_bytes, (matrices + 300 * 256 + 10 * 256) / 32 * 34 + vectors);
  // By s16: two int8 products per weight; 2 operations each. Everything else is f32.
  const int64_t head = 300 * 256;
  EXPECT_EQ(l.decode_work.int8, 4 * (matrices + head));
  EXPECT_EQ(l.decode_work.f32, l.decode.operations - 2 * (matrices + head));
  EXPECT_EQ(l.prefill_work.int8, 4 * (10 * matrices + head));  // logits of the last row
  const Limits s8 = limits_of(build_program(m.model), 100, 10, KvType::f16, 1, Activations::s8);
  EXPECT_EQ(s8.decode_work.int8, 2 * (matrices + head));
  const Limits f32 = limits_of(build_program(m.model), 100, 10, KvType::f16, 1, Activations::f32);
  EXPECT_EQ(f32.decode_work.int8, 0);
  EXPECT_EQ(f32.decode_work.f32, f32.decode.operations);
  // Four sequences read the weights once, an embedding row each, and four caches.
  const Limits four = limits_of(build_program(m.model), 100, 10, KvType::f16, 4);
  EXPECT_EQ(four.decode.weight_bytes, l.decode.weight_bytes + 3 * 256 / 32 * 34);
  EXPECT_EQ(four.decode.state_read, 4 * l.decode.state_read);
  EXPECT_EQ(four.kv_bytes_per_position, l.kv_bytes_per_position);
  EXPECT_EQ(four.decode_work.int8, 4 * l.decode_work.int8);

  EXPECT_DOUBLE_EQ(l.decode_at_most({1e9}), 1e9 / double(l.decode.moved()));
  EXPECT_DOUBLE_EQ(four.decode_at_most({1e9}), 4 * 1e9 / double(four.decode.moved()));
  EXPECT_DOUBLE_EQ(l.prefill_at_most({1e9}), 10 * 1e9 / double(l.prefill.moved()));
  EXPECT_DOUBLE_EQ(l.prefill_at_most({1e15, 1e12}), 10 * 1e12 / double(l.prefill_work.int8));
  EXPECT_DOUBLE_EQ(l.prefill_at_most({1e15, 0, 1e9}), 10 * 1e9 / double(l.prefill_work.f32));
  EXPECT_EQ(Limits::bound(l.decode, l.decode_work, {1e9, 1e15, 1e15}).by, "bytes");
  EXPECT_EQ(Limits::bound(l.decode, l.decode_work, {1e15, 1e9, 1e15}).by, "int8 products");
  EXPECT_EQ(Limits::bound(l.decode, l.decode_work, {1e15, 1e15, 1e9}).by, "f32 operations");
  ASSERT_NE(find_device("h200"), nullptr);
  EXPECT_EQ(find_device("h200")->rates.bandwidth, 4.8e12);
  EXPECT_EQ(find_device("z80"), nullptr);
  EXPECT_GT(l.prefill.operations, 10 * 2 * matrices);

  // Counted by another program: bytes of weights per token, of an untied embedding nothing.
  const std::pair<const char*, double> gigabytes[] = {{"synth:VL-2B:Q4_0", 0.968},
                                                      {"synth:VL-2B:Q8_0", 1.828},
                                                      {"synth:8B:Q4_0", 4.258},
                                                      {"synth:8B:Q8_0", 8.042},
                                                      {"synth:8B:F16", 15.14}};
  for (auto [spec, wanted] : gigabytes) {
    const Limits real = limits_of(build_program(outline_model(spec).model), 1, 1, KvType::f16);
    EXPECT_NEAR(double(real.decode.weight_bytes) / 1e9, wanted, 0.001 * wanted) << spec;
  }
}

}  // namespace
}  // namespace assay

// A plan for a device against what the backend and the emulated module then have, class by class.
#include <gtest/gtest.h>

#include "engine/counting_device.h"
#include "engine/device_backend.h"
#include "engine/formats/synth.h"
#include "engine/formats/test_files.h"
#include "engine/ops/common/rope_table.h"
#include "engine/plan.h"
#include "engine/process_memory.h"

namespace assay {
namespace {

using namespace testing_files;

std::string config_file(const TempDir& dir, const std::string& family) {
  TinyModel m = tiny_model(family);
  m.config["hidden_size"] = 256;
  m.config["intermediate_size"] = 512;
  m.config["num_attention_heads"] = 8;
  m.config["head_dim"] = 32;
  m.config["vocab_size"] = 300;
  m.config["num_hidden_layers"] = 3;
  write_file(dir.path() / "config.json", m.config.dump());
  return (dir.path() / "config.json").string();
}

std::string module() {
  const std::filesystem::path path = built_module("simt");
  EXPECT_TRUE(std::filesystem::exists(path)) << path << ": the target assay_simt builds it";
  return path.string();
}

EngineOptions options_for(int slots, KvType kv, Activations activations, uint64_t budget) {
  EngineOptions o;
  o.threads = 1;
  o.slots = slots;
  o.context = 24;
  o.kv = kv;
  o.activations = activations;
  o.device.module = module();
  o.device.budget = budget;
  return o;
}

MemoryPlan planned(const ModelOutline& outline, const EngineOptions& o, int64_t rows) {
  const PlanDevice device = open_for_plan(o.device);
  EXPECT_EQ(device.instead_of, "");
  return plan_memory(outline, o, rows, &device);
}

PassTraffic forward(Engine& engine, Pass pass, const std::vector<int>& slots, int64_t rows) {
  Batch b;
  b.pass = pass;
  for (int s : slots) {
    b.segments.push_back({s, engine.length(s), rows, s, 0});
    for (int64_t i = 0; i < rows; i++) b.ids.push_back(int32_t((7 * i + s) % 300));
    b.logit_rows.push_back(int64_t(b.ids.size()) - 1);
  }
  Trace trace;
  engine.forward(b, nullptr, &trace);
  return trace.traffic.back();
}

struct Case {
  const char* family;
  WeightType type;
  int slots;
  KvType kv;
  Activations activations;
  bool streamed;
};

TEST(DevicePlan, EveryClassIsWhatTheBackendHas) {
  const Case cases[] = {{"qwen3", WeightType::q4_0, 1, KvType::f16, Activations::s16, false},
                        {"qwen3", WeightType::q4_0, 3, KvType::f16, Activations::s16, true},
                        {"qwen2", WeightType::q6_k, 3, KvType::f32, Activations::s8, false},
                        {"qwen2", WeightType::q8_0, 1, KvType::bf16, Activations::s16, true},
                        {"llama", WeightType::f16, 2, KvType::f16, Activations::s16, false},
                        {"llama", WeightType::f16, 2, KvType::f32, Activations::s16, true}};
  for (const Case& k : cases) {
    SCOPED_TRACE(std::string(k.family) + " " + std::string(name_of(k.type)) + (k.streamed ? " streamed" : ""));
    TempDir dir;
    const SynthSpec spec{config_file(dir, k.family), k.type, 3, 0};
    const ModelOutline outline = outline_synthetic_model(spec);
    constexpr int64_t kRows = 17;
    EngineOptions o = options_for(k.slots, k.kv, k.activations, 0);
    if (k.streamed) {
      const BudgetRange range = planned(outline, o, kRows).device->budget;
      ASSERT_LT(range.least, range.all);
      o.device.budget = range.least + (range.all - range.least) / 3;
    }
    const MemoryPlan plan = planned(outline, o, kRows);
    ASSERT_TRUE(plan.device);
    const DevicePlan& p = *plan.device;

    const uint64_t free = Device(DeviceModule::load(o.device.module), 0).free_bytes();
    Engine engine(std::make_shared<Model>(make_synthetic_model(spec, 1)), o);
    ASSERT_NE(engine.device(), nullptr) << engine.device_problem();
    forward(engine, Pass::prefill, {0}, kRows);
    forward(engine, Pass::decode, {0}, 1);
    std::vector<int> all;
    for (int s = 0; s < k.slots; s++) all.push_back(s);
    forward(engine, Pass::decode, all, 1);
    const PassTraffic step = forward(engine, Pass::decode, all, 1);

    const DeviceBytes real = engine.device()->memory();
    EXPECT_EQ(p.bytes.weights, real.weights);
    EXPECT_EQ(p.bytes.window, real.window);
    EXPECT_EQ(p.bytes.staging, real.staging);
    EXPECT_EQ(p.bytes.vectors, real.vectors);
    EXPECT_EQ(p.bytes.rope, real.rope);
    EXPECT_EQ(p.bytes.kv, real.kv);
    EXPECT_EQ(p.bytes.gdn, real.gdn);
    EXPECT_EQ(p.bytes.values, real.values);
    EXPECT_EQ(p.bytes.io, real.io);
    EXPECT_EQ(plan.pinned, real.host_io);
    // What the module itself says is gone: every class, its scratch, and nothing else but the rounding of each
    // allocation.
    const uint64_t used = free - engine.device()->device().free_bytes();
    const AssayCounters c = engine.device()->device().counters();
    EXPECT_GE(used, p.total());
    EXPECT_LE(used, p.total() + 256 * (c.allocations - c.frees));
    EXPECT_GT(p.scratch, 0u);

    const WeightPlan& w = engine.device()->weights().plan();
    EXPECT_EQ(p.resident, w.resident);
    EXPECT_EQ(p.offered, w.offered);
    EXPECT_EQ(p.resident < p.offered, k.streamed);
    EXPECT_EQ(p.layers_resident < 3, k.streamed);
    EXPECT_EQ(p.step_upload_bytes, step.upload_bytes);
    EXPECT_EQ(p.step_uploads, step.uploads);
    if (k.streamed) {
      EXPECT_GE(p.step_upload_bytes, w.streamed_bytes);
    }

    const EngineMemory host = engine.memory();
    EXPECT_EQ(plan.engine.panels, host.panels);
    EXPECT_EQ(plan.engine.kv, host.kv);
    EXPECT_EQ(plan.engine.rope, host.rope);
    EXPECT_EQ(plan.engine.values, host.values);
    EXPECT_EQ(plan.engine.quantised, host.quantised);
    EXPECT_EQ(plan.engine.scratch, host.scratch);
    EXPECT_EQ(plan.engine.experts, host.experts);
  }
}

/// Loading a file onto a device takes the file's pages and the classes of the plan, and no copy of a weight in between.
TEST(DevicePlan, LoadingTakesNoMoreOfTheHostThanPlanned) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers have memory of their own";
#else
  if (process_memory("VmHWM") == 0) GTEST_SKIP() << "no VmHWM";
  TempDir dir;
  const std::filesystem::path file = dir.path() / "m.gguf";
  write_synth_gguf({"0.6B", WeightType::q4_0, 1, 2}, file, false, 1);
  const EngineOptions o = options_for(1, KvType::f16, Activations::s16, 0);
  double grown = -1;
  measured_in_child(grown, [&](double& out) {
    const uint64_t before = process_memory("VmHWM");
    const Model model = load_model(file);
    const Program program = build_program(model);
    const Config& c = model.config;
    std::vector<std::unique_ptr<std::byte[]> > storage;
    std::vector<KvLayer> caches;
    const std::vector<GdnLayer> states(size_t(c.layers));
    for (int64_t l = 0; l < c.layers; l++) {
      KvLayer layer{o.kv, o.slots, c.kv_heads, o.context, c.head_dim, nullptr, nullptr};
      for (std::byte** half : {&layer.k, &layer.v}) {
        storage.emplace_back(new std::byte[size_t(o.slots * c.kv_heads * o.context * c.head_dim) * size_of(o.kv)]);
        *half = storage.back().get();
      }
      caches.push_back(layer);
    }
    const RopeTable rope = make_rope_table(c.rope, o.context);
    const CountingDevice device(std::make_shared<Device>(DeviceModule::load(o.device.module), 0), uint64_t(1) << 40);
    const DeviceBackend backend(device.device(), model, program, o.device, o.activations, caches, states, rope, false);
    out = double(process_memory("VmHWM") - before);
  });
  const MemoryPlan plan =
      planned(outline_model(file), o, 4);  // not before the fork: the emulation lives in this process
  EXPECT_EQ(plan.mapped, std::filesystem::file_size(file));
  constexpr double kProcess = 8 << 20;  // the module, heap arenas
  ASSERT_GT(double(plan.mapped), 4 * kProcess);
  EXPECT_GT(grown, 0);
  EXPECT_LT(grown, double(plan.total() + MemoryPlan::load_scratch()) + kProcess);
#endif
}

TEST(DevicePlan, RefusesABudgetThatHoldsNotEvenAWindow) {
  TempDir dir;
  const ModelOutline outline = outline_synthetic_model({config_file(dir, "qwen3"), WeightType::q4_0, 3, 0});
  EngineOptions o = options_for(1, KvType::f16, Activations::s16, 0);
  const BudgetRange range = planned(outline, o, 4).device->budget;
  o.device.budget = range.least - 1;
  const std::string words = error_of([&] { planned(outline, o, 4); });
  EXPECT_NE(words.find("--vram-budget"), std::string::npos) << words;
  EXPECT_NE(words.find("at least " + std::to_string(range.least) + " bytes"), std::string::npos) << words;
  o.device.budget = range.least;  // and the words are true
  EXPECT_GT(planned(outline, o, 4).device->bytes.window, 0u);
  o.device.budget = range.all;
  EXPECT_EQ(planned(outline, o, 4).device->bytes.window, 0u);
}

TEST(DevicePlan, WhereNoDeviceIsTheEmulationOfTheSameSourcesIsAsked) {
  DeviceOptions o;
  o.module = "/nowhere/libtheirs.so";
  EXPECT_NE(error_of([&] { open_for_plan(o); }).find("no such module"), std::string::npos);

  // A module that finds no device.
  const auto emulation = DeviceModule::load(module());
  AssayModule table = emulation->table();
  table.open = [](int32_t, AssayDevice**) { return int(ASSAY_ERROR); };
  table.error = [](const AssayDevice*) { return "no device for this test"; };
  DeviceModule::plant("planted-without-a-device", &table);
  o.module = "planted-without-a-device";
  const PlanDevice asked = open_for_plan(o);
  EXPECT_NE(asked.instead_of.find("no device for this test"), std::string::npos) << asked.instead_of;
  EXPECT_EQ(asked.device->info().emulated, 1);
  EXPECT_FALSE(asked.free_bytes.has_value());
  table.sources = "of others";  // whose sizes nobody can guess
  const std::string words = error_of([&] { open_for_plan(o); });
  EXPECT_NE(words.find("the module's to tell"), std::string::npos) << words;
  DeviceModule::plant("planted-without-a-device", nullptr);
}

}  // namespace
}  // namespace assay

// Host memory of loading a quantised model onto a device: a process of its own loads one, and its largest size is held
// against what is stated of it (engine/plan.h). A loader that unpacks weights on the host has the same bytes and needs
// another machine.
#include <fmt/format.h>
#include <malloc.h>

#include <fstream>

#include "conformance/faults/device_probe.h"
#include "conformance/integration/quantised.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/synth.h"
#include "engine/plan.h"
#include "engine/process_memory.h"

namespace assay::device_faults {
namespace {

/// Heaps of threads and pages that a loader once touched belong to the process, not to the model: as in
/// engine/plan_test.cpp.
constexpr uint64_t kProcess = 8 << 20;

/// What the process that loads tells the one that judges.
struct Grown {
  uint64_t host = 0;    // by how much its resident memory grew, at most
  uint64_t device = 0;  // memory that the module gave, where the host is the device
  uint64_t pinned = 0;
  char problem[256] = {};
};

/// Runs `load` in a child process.
template <class Load>
Grown in_a_process(Load&& load) {
  malloc_trim(0);  // what was freed here would be used again there, and not be counted
  Grown g;
  const bool told = measured_in_child(g, [&](Grown& out) {
    try {
      load(out);
    } catch (const std::exception& e) {
      fmt::format_to_n(out.problem, sizeof out.problem - 1, "{}", e.what());
    }
  });
  if (!told) fmt::format_to_n(g.problem, sizeof g.problem - 1, "the process that loads has ended without a word");
  return g;
}

/// qwen2 with 8 million weights in Q4_0: unpacked to f32 they are four times what kProcess forgives.
std::filesystem::path synthetic_model(const CheckContext& c) {
  const std::filesystem::path file = c.work / "synthetic.gguf", config = c.work / "config.json";
  if (std::filesystem::exists(file)) return file;
  nlohmann::json j = nlohmann::json::parse(read_text_file(case_dir(c, official_case(kCase)) / "model" / "config.json"));
  j.update({{"hidden_size", 512},
            {"intermediate_size", 2048},
            {"num_attention_heads", 8},
            {"num_hidden_layers", 2},
            {"layer_types", {"full_attention", "full_attention"}}});
  std::ofstream(config) << j.dump();
  write_synth_gguf({config.string(), WeightType::q4_0, 1, 0}, file, false, 1);
  return file;
}

}  // namespace

Finding host_memory_of(const CheckContext& c, const std::filesystem::path& real, const Way& w, const Plant* plant) {
  Finding f;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  f.not_run = "needs a build without sanitizers, which have memory of their own";
  return f;
#endif
  if (process_memory("VmHWM") == 0) {
    f.not_run = "needs VmHWM in /proc/self/status";
    return f;
  }
  const std::filesystem::path file = synthetic_model(c);
  EngineOptions options = w.spec.engine;
  options.threads = 1;
  options.context = 64;
  const MemoryPlan plan = plan_memory(outline_model(file), options, 1);
  {  // once on a small model: the fibers of the emulation, or a driver's own memory, stay
    DeviceRun small(c, real, w, nullptr);
    small.start(w, nullptr);
  }
  const Grown g = in_a_process([&](Grown& out) {
    const uint64_t before = process_memory("VmRSS");
    DeviceRun run(c, real, w, plant);
    run.spec.engine.threads = options.threads;
    run.spec.engine.context = options.context;
    Way loading = w;
    loading.model = std::make_shared<Model>(load_model(file));
    Engine& e = run.start(loading, plant);
    if (!e.device()) throw Error(ErrorKind::internal, "host memory", "there is no device: " + e.device_problem());
    if (e.device()->device().info().emulated) out.device = kept.allocated;
    for (const auto& [host, bytes] : kept.inputs) out.pinned += bytes;
    out.host = process_memory("VmHWM") - before;
  });
  const double mb = 1e6;
  const uint64_t stated = plan.copies + plan.vectors + plan.engine.kv + plan.engine.rope + plan.load_scratch() +
                          g.pinned + kProcess,
                 most = plan.mapped + stated + g.device;
  f.note = fmt::format(
      "grew by {:.1f} MB; file {:.1f} MB, stated scratch {:.1f} MB, memory of the emulated device {:.1f} MB",
      double(g.host) / mb, double(plan.mapped) / mb, double(stated) / mb, double(g.device) / mb);
  f.failed = g.problem[0] != 0 || g.host > most;
  if (g.problem[0])
    f.place = g.problem;
  else if (f.failed)
    f.place = fmt::format("the process grows by {:.1f} MB while it loads, wanted at most {:.1f} MB",
                          double(g.host) / mb, double(most) / mb);
  return f;
}

}  // namespace assay::device_faults

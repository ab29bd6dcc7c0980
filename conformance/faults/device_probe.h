// What faults of running on a device share: a module that misbehaves, ways to run, and what is looked at. Such a fault
// goes into the emulated module, whose table is handed to the loader with some members replaced, so that no GPU is
// needed; with --module it goes into that module instead. Checks are "device/<way of running>/<what is looked at>", on
// the official case qwen2-bias:
//   bytes        every value and state against the CPU's dump of the same run (byte_exact)
//   answers      ids, last logits and state with nothing captured, against the CPU's
//   state        caches of sequences whose passes interleave, against the CPU's
//   layers       no two layers of one dump have the same bytes (needs no baseline)
//   executors    which nodes ran where
//   offload      the same by phase and rows of a pass, against the approved table (offload.h)
//   traffic      uploads of every pass; allocations, frees, waits and replays of steady decode passes
//   residency    all weights are resident, or a notice says how many are
//   status       what a steady decode pass moves is its inputs alone, by the counters: for who reads no words
//   load         what the loader and the planner of memory say before anything runs
//   host-memory  by how much a process grows while it loads a quantised model onto the device
// and "kernel/<op>/simt" of the registry at the planted module, "kernel/<op>/races" with every access of its kernels
// watched.
#pragma once
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "conformance/check.h"
#include "conformance/faults/plants.h"
#include "conformance/integration/cases.h"
#include "engine/device_backend.h"

namespace assay::device_faults {

// ---- a module that misbehaves (planted_module.cpp)

/// What the replaced members of a table know of each other. They are C functions: one module is planted at a time per
/// thread.
struct ModuleMemory {
  const AssayModule* real = nullptr;
  uint64_t uploads = 0, allocations = 0, allocated = 0;  // and bytes, host memory of steps not counted
  uint64_t other_uploads = 0;                            // those that are no pass's inputs
  std::map<const void*, uint64_t> inputs;  // host memory of steps: what comes from there are a pass's inputs
  const void* uploaded = nullptr;          // host memory of the last upload that is none of those
  std::vector<AssayPlace> places;          // of the last upload of inputs
  void* places_at = nullptr;
  std::map<void*, std::pair<void*, std::vector<AssayPlace>>>
      frozen;                                            // by graph: where its inputs lie, and what they were
  std::map<void*, uint64_t> longest_upload;              // of inputs, by where they go
  std::vector<void*> stash;                              // memory to free in a step
  std::map<void*, std::pair<uint64_t, int>> handed_out;  // size and users of memory that a pool gave away
  void* first_graph = nullptr;                           // captured and not released
  bool capturing = false;
  int64_t captured_rows = 0;                 // of the first attention that was captured
  std::vector<std::vector<float>> unpacked;  // weights that a loader keeps on the host
  Engine* engine = nullptr;                  // for plants that need both
};
extern thread_local ModuleMemory kept;

/// Whether the memory is a pass's inputs, and the places with which they begin.
bool is_input(const void* host);
size_t places_in(const void* host, uint64_t bytes);
/// Device memory as floats on the host and back; calls that a capture forbids.
std::vector<float> fetch(AssayDevice* d, const float* from, int64_t n);

using AlterTable = void (*)(AssayModule&);

/// While it lives, `name` loads as the real module with a table as `alter` makes it (null: unchanged).
class PlantedModule {
 public:
  PlantedModule(const std::filesystem::path& real, std::filesystem::path name, AlterTable alter);
  ~PlantedModule();
  PlantedModule(const PlantedModule&) = delete;

 private:
  std::shared_ptr<const DeviceModule> real_;
  AssayModule table_;
  std::filesystem::path name_;
};

// ---- ways to run (device_ways.cpp)

struct Way;
/// How a fault goes in. Members that are null leave things as they are.
struct Plant {
  AlterTable module = nullptr;
  void (*spec)(DumpSpec&, const Way&) = nullptr;  // after the way has set it up
  void (*engine)(Engine&) = nullptr;
  const char* build = nullptr;  // the emulated module, built with the fault in its sources: a file's name in kernels/
  bool plain_build = false;     // Fault::plain_build; what is built from other sources always needs one
};

inline constexpr const char* kCase = "qwen2-bias";  // the official case that runs

struct Way {
  std::shared_ptr<const Model> model;
  DumpSpec spec;
  BudgetRange range = {};  // of the model's weights on the device
  std::vector<int64_t> chunks = {0};
  bool streams = false;  // a notice that weights stream is part of it
};
/// Error{malformed} for a name that is none.
Way way_named(const CheckContext& c, const std::string& name, const std::filesystem::path& real);

/// One engine with the module, planted or not, and what was said while it was made.
struct DeviceRun {
  PlantedModule module;
  std::vector<std::string> notices;
  DumpSpec spec;
  std::unique_ptr<Engine> engine;

  DeviceRun(const CheckContext& c, const std::filesystem::path& real, const Way& w, const Plant* plant);
  /// Throws what the engine throws.
  Engine& start(const Way& w, const Plant* plant);
};

// ---- what is looked at

/// What check `id` says of the device with the fault, or (null) as it should be: device_probe.cpp. The latter is looked
/// at once per process.
Finding judged(const CheckContext& c, const std::string& id, const Plant* plant);
Finding host_memory_of(const CheckContext& c, const std::filesystem::path& real, const Way& w,
                       const Plant* plant);  // device_memory.cpp

/// Appends a fault that is judged so.
void add(std::vector<Fault>& out, const char* id, const char* what, How how, Plant plant, const char* note = "");

}  // namespace assay::device_faults

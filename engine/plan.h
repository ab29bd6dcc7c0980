// Memory of a model and its engine, on the host and on a device, before anything is loaded. Engine::memory() and
// DeviceBackend::memory() count the same classes in a running engine; tests hold the two against each other, and their
// sums against what the process and the module have.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "engine/device_weights.h"
#include "engine/formats/loader.h"
#include "engine/session.h"

namespace assay {

/// What a plan for a device asks: the device itself or, where there is none, the emulation made of the same sources.
struct PlanDevice {
  std::shared_ptr<Device> device;      // on which nothing has run: its scratch is told by what planning adds to it
  std::optional<uint64_t> free_bytes;  // of the device that the model will run on, beside nothing; none: it is not here
  std::string instead_of;              // why another device is asked; "": it is the one
};
/// Opens options.module. Where that can't be had, and it is the build's own module or made of the same sources, opens
/// the emulation of this build; else throws as Device, saying what to do.
PlanDevice open_for_plan(const DeviceOptions& options);

struct DevicePlan {
  DeviceBytes bytes;
  uint64_t scratch = 0;           // of the module: activations as integers, partial sums of attention
  BudgetRange budget;             // for weights, window and staging
  int matrices = 0, offered = 0;  // distinct ones of the program; those that the module takes
  int resident = 0;               // of those offered
  int64_t layers_resident = 0;    // layers all of whose matrices are
  uint64_t step_uploads = 0, step_upload_bytes = 0;  // of a decode pass of all slots
  int nodes = 0, nodes_on_cpu = 0;                   // of the program; those that the device does not do
  uint64_t total() const { return bytes.total() + scratch; }
};

struct MemoryPlan {
  size_t mapped = 0;   // files, mapped read-only: the system may drop these pages and read them again
  size_t copies = 0;   // matrices in memory of their own: synthetic, permuted or badly aligned ones
  size_t vectors = 0;  // norms and biases, widened to f32
  EngineMemory engine;
  size_t packing = 0;  // what the workers of float linears pack tokens and weights into: at most
  std::optional<DevicePlan> device;
  size_t pinned = 0;  // host memory of the device's own, for inputs and results
  size_t total() const { return mapped + copies + vectors + engine.total() + packing + pinned; }
  /// What a load needs of the host for a while: nothing. A device's weights go from the file's pages to the device,
  /// which packs them out of its staging buffer; the panels of a CPU are written in place.
  static constexpr size_t load_scratch() { return 0; }
};

/// Of passes with up to `rows` token rows, the logits of the last row, and `options.context` positions in use
/// (0: the model's maximum). With `device`, the passes are run on a device that counts (counting_device.h): a prefill
/// of `rows`, a decode of all slots together, one of a single slot. Errors as of Engine's constructor; Error{usage}
/// where a budget holds neither the weights nor a window of them.
MemoryPlan plan_memory(const ModelOutline& model, const EngineOptions& options, int64_t rows,
                       const PlanDevice* device = nullptr);

/// Bytes of memory that this process could get now without swapping (MemAvailable of /proc/meminfo, bounded by the
/// control group's limit); 0: unknown.
size_t available_memory();

}  // namespace assay

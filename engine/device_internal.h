// What the files of DeviceBackend share and nobody else sees.
#pragma once
#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/device_backend.h"

namespace assay {

/// A value that fits the f16 cache leaves a layer's overflow word as a fill with bytes of 0x7f left it.
inline constexpr int64_t kNoOverflow = 0x7f7f7f7f7f7f7f7f;

/// Whether any router of a pass is told what to choose: that is put in place on the host.
inline bool forces_experts(const Batch& b) {
  return std::any_of(b.experts.begin(), b.experts.end(), [](const auto& e) { return e != nullptr; });
}

/// Row-sized memory: a buffer per value, shared by values whose lives don't overlap, or one each.
struct DeviceBackend::Values {
  bool keep = false;
  std::vector<int> buffer_of;        // per value
  std::vector<int64_t> columns;      // per buffer
  std::vector<bool> of_logits;       // per buffer: its rows are logit rows
  std::vector<DeviceMemory> memory;
  DeviceMemory gathered;             // input rows of logits
  DeviceMemory hidden;               // what an MTP pass was given
  DeviceMemory inputs, host_inputs;  // places, spans, ids, entries behind rows, logit rows
  int64_t rows = 0, logit_rows = 0;
};

struct DeviceBackend::Graph {
  void* graph = nullptr;
  std::vector<std::pair<const DeviceStep*, std::string>> ran;   // each step with its kernels
};

struct DeviceBackend::Plan {
  std::vector<DeviceStep> steps;
  std::vector<bool> materialised;    // per value
  std::vector<int> last_use;         // per value: index of the last step that reads it
  Values shared, kept;
  std::map<std::tuple<int64_t, int64_t, bool, int64_t, size_t, bool>, Graph> graphs;   // by rows, logit rows, kept, longest, spans, of the MTP head
  bool whole = true;                 // no node has fallen back so far
};

struct DeviceBackend::Run {
  const PassState& pass;
  HostSide* host;
  Plan& plan;
  Values& values;
  int64_t rows, logit_rows;
  int64_t longest = 0;               // upper bound of positions + 1
  bool capturing = false;
  std::vector<bool> on_device{};     // per value
  Graph* recording = nullptr;
  const float* logits = nullptr;     // on the device
  bool logits_on_host = false;
  std::vector<std::pair<size_t, int32_t>> timed{};   // trace entries of steps, and their marks: 2 n before, 2 n + 1 behind
  const AssayPlace* places = nullptr;
  const AssaySpan* spans = nullptr;
  const int32_t *ids = nullptr, *after = nullptr, *logit_index = nullptr;
};

}  // namespace assay

// Weights on a device: resident ones, uploaded and packed once, and a window of equal buffers through which the others stream.
#pragma once
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/device.h"
#include "engine/program.h"

namespace assay {

/// Where each matrix of a program lives, decided before anything is loaded.
struct WeightPlan {
  struct Entry {
    const Matrix* matrix;
    uint64_t packed = 0;      // bytes on the device; 0: the module refuses it, the CPU does its nodes
    bool resident = false;
  };
  std::vector<Entry> entries;          // distinct matrices, in the order in which a pass first needs them
  uint64_t resident_bytes = 0;
  uint64_t streamed_bytes = 0;         // of the file, uploaded by every pass
  uint64_t buffer_bytes = 0;           // of one buffer of the window; 0: nothing streams
  int buffers = 0;
  uint64_t raw_bytes = 0;              // staging: the largest matrix as the file has it
  int resident = 0, offered = 0;       // matrices
  uint64_t device_bytes() const { return resident_bytes + buffer_bytes * uint64_t(buffers) + raw_bytes; }
};

/// What a DeviceBackend has of its device, in bytes, as asked for so far. The module's scratch and graphs are its own.
struct DeviceBytes {
  uint64_t weights = 0;    // resident matrices, packed
  uint64_t window = 0;     // buffers through which the others stream
  uint64_t staging = 0;    // a matrix as the file has it, while it is packed
  uint64_t vectors = 0;    // norms and biases
  uint64_t rope = 0;       // cos and sin of every position
  uint64_t kv = 0;         // caches of all slots and layers
  uint64_t gdn = 0;        // recurrent states of all slots and layers, and what verify passes keep of them
  uint64_t values = 0;     // buffers of node values, of every geometry of passes that has run
  uint64_t io = 0;         // inputs and results of passes
  uint64_t host_io = 0;    // the same in the device's own host memory; not part of the total
  uint64_t total() const { return weights + window + staging + vectors + rope + kv + gdn + values + io; }
};

/// The window holds what one step reads and the matrix before it.
inline constexpr int kWindowBuffers = 4;

/// Bytes for weights, window and staging: with all resident, and the least with which anything runs on the device.
struct BudgetRange {
  uint64_t least = 0, all = 0;
};
BudgetRange budget_range(const Program& program, const std::function<uint64_t(const Matrix&)>& packed_bytes);

/// `budget`: bytes for weights, the window and staging together. Keeps as much resident as fits beside a window; throws
/// Error{usage} where not even a window fits, with the least that would.
/// `packed_bytes(matrix)` is the module's answer.
WeightPlan plan_weights(const Program& program, uint64_t budget, const std::function<uint64_t(const Matrix&)>& packed_bytes);

class DeviceWeights {
 public:
  /// Uploads and packs the resident ones unless `preload` is off: then each is when first needed.
  DeviceWeights(Device& device, WeightPlan plan, bool preload);
  const WeightPlan& plan() const { return plan_; }
  /// Adds weights, window, staging and vectors.
  void count(DeviceBytes& bytes) const;

  /// Whether the device can have the matrix at all, and whether it lies there already.
  bool offered(const Matrix& m) const;
  bool resident(const Matrix& m) const;
  /// The matrix on the device, streamed into the window where it isn't resident: it stays until kWindowBuffers - 1 others came.
  AssayWeight get(const Matrix& m);
  /// A vector of the model (norm, bias), uploaded when first asked for.
  const float* get(const Vector& v);
  /// For planted faults: what a window that evicts the wrong layer would do.
  bool plant_stale_window = false;
  /// For planted faults: the matrix is taken to lie on the device no more, and is uploaded again when it is asked for.
  void forget(const Matrix& m);

 private:
  struct Place {
    uint64_t packed = 0;
    bool resident = false, loaded = false;
    DeviceMemory memory;      // resident ones
    int buffer = -1;          // streamed ones: where they lie now
  };
  void load(const Matrix& m, void* to);
  Device& device_;
  WeightPlan plan_;
  std::unordered_map<const std::byte*, Place> places_;
  std::unordered_map<const float*, DeviceMemory> vectors_;
  std::vector<DeviceMemory> window_;
  std::vector<const std::byte*> in_window_;   // what each buffer holds
  int next_ = 0;
  DeviceMemory raw_;
};

}  // namespace assay

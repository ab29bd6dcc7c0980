// Speed of one op alone: the kernel of a node on random operands, on the CPU or on a device, held against what must
// move.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/device.h"
#include "engine/session.h"

namespace assay {

/// A node's op with its shape, and where in a model it stands.
struct OpShape {
  OpKind op = OpKind::linear;
  std::string name;  // the phases that it stands for, joined by "+"; the op's own where there is no model
  WeightType type = WeightType::q4_0;  // linear, embed
  int64_t rows = 0, columns = 0;       // linear, embed: of the matrix. Else columns of the value that is read
  int64_t heads = 0, kv_heads = 0, head_dim = 0, rotary = 0;
  int64_t count = 1;            // nodes of a layer that it stands for; 0: outside of layers (embed, final_norm, logits)
  bool requested_rows = false;  // logits: a row of each sequence
  // linear as a device fuses it (engine/abi.h, AssayLinear): rows of further matrices that share its input, and what is
  // in front and behind.
  std::vector<int64_t> more;
  bool norm = false, gated = false, residual = false;
  bool fused() const { return !more.empty() || norm || gated || residual; }
  int64_t matrices() const { return 1 + int64_t(more.size()); }
  int64_t rows_of(int64_t matrix) const { return matrix == 0 ? rows : more[size_t(matrix - 1)]; }
  std::string text() const;  // "4096x12288", "32/8x128", "4096+1024+1024x4096"
};

/// "linear", "rms_norm", ... as name_of(OpKind). `shape`: OUTPUTSxINPUTS of linear, VOCABxHIDDEN of embed, HEADSxDIM of
/// head_norm and rope, HEADS/KV_HEADSxDIM of attention, KV_HEADSxDIM of kv_store, COLUMNS of the others. Error{usage}:
/// how it should look.
OpShape parse_op(const std::string& op, const std::string& shape, WeightType type);
/// Distinct ops and shapes of a model's layer 0 and of what stands outside of layers, in execution order. `names`: ops
/// or phases; "all": everything. Error{usage} for a name that the model has not. `fused`: products in the groups of
/// device_plan.h, `gated` as there; the other nodes one by one.
std::vector<OpShape> ops_of(const Model& model, const std::vector<std::string>& names, bool fused = false,
                            bool gated = false);

struct OpBenchSpec {
  EngineOptions engine;  // isa, threads, kv, activations; device.module: runs there
  std::vector<OpShape> shapes;
  std::vector<int64_t> rows;  // token rows
  int64_t depth = 0;          // positions in the cache before these rows
  bool prefill = false;       // the rows are one sequence's; else each is a sequence of its own
  int repetitions = 5;        // rounds over all copies, after one that is not counted
  uint64_t cold_bytes =
      uint64_t(256) << 20;  // of weights or caches, in copies one after another, so that no cache serves them
  uint64_t seed = 1;
};

struct OpResult {
  size_t shape = 0;     // index into the spec's
  int64_t rows = 0;     // token rows of the pass
  int64_t op_rows = 0;  // of the op: the same, but one of a prefill's logits
  int copies = 0;       // of its weight or cache, each run once per round
  std::vector<double>
      all_seconds;  // of one run: CPU each; device the mean of each round, whose launches follow one another in a graph
  double seconds = 0;     // their median; an emulation's clock may not have moved
  double bytes = 0;       // weight, cache, inputs and output, each once
  double operations = 0;  // engine/cost.h
  std::string variant;    // the kernel; of a refused op ""
  bool refused = false;
  double per_second(double amount) const { return seconds > 0 ? amount / seconds : 0; }
};

struct OpReport {
  std::vector<OpResult> results;  // by rows, then by shape
  std::string device;             // its name; "" on the CPU
  double reference_gbps = 0;      // plain read (CPU) or copy (device), measured between the results
};

/// Error{usage}, Error{memory}; Error{io} where there is no such device: nothing falls back to the CPU.
OpReport bench_ops(const OpBenchSpec& spec);
/// `layers` and `model` of the model that the shapes come from; 0 and "": given by hand.
std::string render(const OpReport& report, const OpBenchSpec& spec, const std::string& model, int64_t layers);
std::vector<nlohmann::ordered_json> records(const OpReport& report, const OpBenchSpec& spec, const std::string& model);

/// One op made ready on one machine.
class OpRig {
 public:
  virtual ~OpRig() = default;
  /// Runs `result.copies` copies at `result.op_rows` rows, `repetitions` times and once before; fills in all_seconds,
  /// variant, refused.
  virtual void measure(OpResult& result, int repetitions) = 0;
};

/// What a rig works on: a program of `copies` nodes of one op, with random operands.
struct OpCase {
  OpCase() = default;
  OpCase(const OpCase&) = delete;  // its program points into it
  OpShape shape;
  int copies = 0;
  int64_t most_rows = 0, context = 0, slots = 0;
  Config config;
  Program program;  // nodes [0, copies): the op. Behind them one kv_store, which cost_of asks
  // Weights and caches of each copy, a copy's matrices one after another. For a device all copies are the same bytes at
  // one place: it makes its own.
  std::vector<Matrix> weights;
  std::vector<std::vector<float>> inputs;  // [most_rows, columns] each
  Vector vector;                           // of norms
  std::vector<KvLayer> caches;
  std::vector<std::shared_ptr<const void>> storage;
  std::vector<int32_t> ids;  // [most_rows], of embed
  std::vector<RowPlace> places(int64_t rows, int64_t depth, bool prefill) const;
};
std::unique_ptr<OpCase> make_case(const OpShape& shape, const OpBenchSpec& spec);
std::unique_ptr<OpRig> cpu_rig(const OpCase& c, const OpBenchSpec& spec);                     // op_rigs.cpp
std::unique_ptr<OpRig> device_rig(const OpCase& c, const OpBenchSpec& spec, Device& device);  // op_rigs.cpp

}  // namespace assay

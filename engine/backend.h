// Running the nodes of a program: what a batch is, what a node sees, and the trace that says which code ran.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "dumps/names.h"
#include "engine/forced_experts.h"
#include "engine/ops/kernels.h"
#include "engine/program.h"

namespace assay {

struct RopeTable;
class ThreadPool;

/// Consecutive token rows of one sequence. Prefill chunk, batched decode and verification are all lists of these; no op lets
/// one row's bits depend on another row's presence.
struct Segment {
  int32_t slot = 0;
  int64_t position = 0;   // of the first row
  int64_t rows = 0;
  int32_t prompt = 0;     // logical coordinates, for observers: whose rows these are,
  int64_t step = 0;       // and which step of the pass
};

struct Batch {
  Pass pass = Pass::prefill;
  std::vector<int32_t> ids;          // one per row, segment after segment
  std::vector<Segment> segments;
  std::vector<int64_t> logit_rows;   // rising; rows whose logits are computed
  const float* hidden = nullptr;     // mtp passes: [rows, hidden], what Engine::hidden() gave for the rows before
  std::vector<std::shared_ptr<const ForcedExperts>> experts;   // one per segment (null: its routers choose), or none
  bool ids_only = false;             // of the logits nothing is wanted but the greedy ids (Engine::greedy)
  int64_t rows() const { return int64_t(ids.size()); }
};

struct NodeContext;
/// Puts the batch's forced experts in place of what a topk node chose. For what runs in a node's place, too (planted faults).
void force_experts(NodeContext& c);

/// The rows of expert e in a matrix of all experts behind each other.
Matrix expert_of(const Matrix& all, int64_t experts, int64_t e);

/// What a node sees when it runs. Inputs and output are [rows, columns of their value], f32.
struct NodeContext {
  const Node& node;
  const Program& program;
  const Config& config;
  const Batch& batch;
  int64_t rows;
  std::vector<const float*> inputs;
  float* output;                     // null for state writes
  int64_t columns;                   // of the output
  std::span<const int32_t> ids;      // of these rows
  std::span<const RowPlace> places;
  std::span<const int64_t> positions;
  const KvLayer* cache;              // of the node's layer; null outside layers
  const RopeTable* rope;
  const GdnLayer* gdn = nullptr;     // of the node's layer; null outside layers
  std::span<const RowSpan> spans = {};   // the batch's segments
};

class Observer;
struct Trace;

/// What every node of one physical pass shares.
struct PassState {
  const Batch& batch;
  std::vector<RowPlace> places;             // per row
  std::vector<int64_t> positions, all_rows; // per row: place.position; 0, 1, 2 ...
  Observer* observer;
  Trace* trace;
  int64_t physical;
  std::vector<RowSpan> spans = {};          // per segment
  /// Of a batch: places, positions, rows, spans.
  static PassState of(const Batch& batch, Observer* observer, Trace* trace);
};

/// One executed node of one physical pass.
struct TraceEntry {
  Pass pass;
  int64_t physical_pass;             // counts forward calls of the engine
  int node;                          // index in the program
  std::string_view backend;          // "cpu", "cuda", "simt" (the emulated device)
  std::string variant;               // kernel that ran: "avx2", or the name of a planted fault
  int64_t rows;
  double seconds;                    // wall time of the node; 0 where a device runs a whole pass without waiting
};
/// What one physical pass moved and asked of a device.
struct PassTraffic {
  Pass pass;
  int64_t physical_pass;
  uint64_t launches, uploads, upload_bytes, downloads, download_bytes, allocations, frees, syncs, replays;
};
struct Trace {
  std::vector<TraceEntry> entries;
  std::vector<PassTraffic> traffic;  // of passes with a device
  int64_t passes = 0;
  /// Distinct "backend/variant" of all entries, with how many nodes each ran.
  std::vector<std::pair<std::string, int64_t>> variants() const;
};

/// What the CPU does for a device pass: it owns the host side of values and runs single nodes.
class HostSide {
 public:
  virtual ~HostSide() = default;
  /// Room for a value on the host, held until drop().
  virtual float* make(ValueId value, int64_t floats) = 0;
  virtual const float* value(ValueId value) const = 0;     // null: not on the host
  virtual void drop(ValueId value) = 0;
  /// Runs node i on the CPU; its inputs are on the host. Makes its output there.
  virtual void run(size_t node) = 0;
};

/// Rows of a pass sorted by expert, and what their products need: memory that passes share.
struct ExpertRows {
  std::vector<int64_t> first;       // [experts + 1]: where an expert's rows begin in `row`
  std::vector<int64_t> row;         // row * chosen + rank, expert after expert, rising within one
  std::vector<int64_t> used;        // experts that have rows, rising
  std::vector<float> x, y;          // gathered inputs, products, in the order of `row`
  std::vector<std::byte> codes;     // gathered inputs as integers
  std::vector<float> scales;
  std::vector<int32_t> sums;
  size_t bytes() const {
    return (first.capacity() + row.capacity() + used.capacity()) * sizeof(int64_t) +
           (x.capacity() + y.capacity() + scales.capacity() + sums.capacity()) * sizeof(float) + codes.capacity();
  }
};

/// Runs nodes on the CPU, with the kernels of one instruction set and a pool of threads.
class CpuBackend {
 public:
  CpuBackend(Isa isa, int threads);   // threads 0: all cores. Throws Error{usage} for an ISA this CPU lacks.
  CpuBackend(const Kernels& table, int threads);   // for planted kernels; the table must outlive the backend
  ~CpuBackend();
  /// Repacks the quantised weights that linear nodes of `program` use (ops/panel.h), unless their activations are f32 or the
  /// set is scalar, which reads the file's blocks. Not `now`: each when it is first needed, if it ever is (a device does the
  /// others). Throws Error{memory} with the bytes it wanted. Once, before run().
  void prepare(const Program& program, Activations activations, bool now = true);
  size_t panel_bytes() const { return panel_bytes_; }
  /// A matrix repacked, panel_bytes(m) bytes; null where its blocks are read as they lie.
  const std::byte* panels(const Matrix& m) const;
  size_t quantised_bytes() const;     // of activations as integers, as large as a pass has needed so far
  size_t scratch_bytes() const;       // of attention, all workers; without what linear packs
  size_t expert_bytes() const { return expert_rows_.bytes(); }   // rows gathered by expert
  void begin_pass() { quantised_value_ = kNoValue; }   // values of an earlier pass are no longer known
  void run(NodeContext& c);           // Error{numeric} where a finite k or v overflows an f16 cache
  Isa isa() const { return kernels_->isa; }
  /// What the trace calls the code that runs a node: "avx2"; "avx2+s16" for a quantised linear.
  std::string variant(const Node& node) const;
  int threads() const;

 private:
  void start(int threads);
  void quant_linear(NodeContext& c);
  void expert_linear(NodeContext& c);
  void topk(NodeContext& c);
  const QuantisedRows& quantised_input(const NodeContext& c, int64_t rows, int64_t columns, int code_bytes);
  void repack_all(const std::vector<Matrix>& matrices);
  const Kernels* kernels_;
  Activations activations_ = Activations::f32;
  std::unordered_map<const std::byte*, const std::byte*> panels_;      // by where the matrix lies
  std::vector<std::shared_ptr<std::byte[]>> panel_storage_;
  size_t panel_bytes_ = 0;
  ValueId quantised_value_ = kNoValue;      // what `quantised_` holds: q, k and v share an input, gate and up another
  QuantisedRows quantised_{};
  std::vector<std::byte> quantised_codes_;
  std::vector<float> quantised_scales_;
  std::vector<int32_t> quantised_sums_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<std::vector<float>> scratch_;  // attention, one per worker
  ExpertRows expert_rows_;
};

}  // namespace assay

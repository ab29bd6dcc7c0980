// A model as a program: the ordered list of op nodes that is one forward pass. families/ build programs; everything else
// (running, capturing, comparing, replaying, grafting, planting faults, fusing, benching) is an operation on this list.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "dumps/names.h"
#include "engine/model.h"

namespace assay {

enum class OpKind : uint8_t { embed, rms_norm, head_norm, linear, rope, kv_store, attention, silu_mul, add,
                              sigmoid_mul, sigmoid, l2_norm, gated_norm, decay, conv, delta_rule, columns, hidden,
                              topk, topk_weights, expert_linear, expert_sum, gated_add };
std::string_view name_of(OpKind op);

/// "layer.3/", "mtp.0/", or "" outside layers.
std::string layer_stem(int layer, bool mtp);

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct NodeContext;  // backend.h: what a node sees when it runs

/// Columns [from + i*stride, + width) of an input become columns [to + i*width, + width) of the output, for i < count.
struct ColumnRun {
  int input = 0;  // of the node's inputs
  int64_t from = 0, stride = 0, to = 0, count = 1, width = 0;
};

/// One op. What it means, in which order it sums, and its bound stand in engine/ops/<op>.h.
struct Node {
  OpKind op;
  int layer = -1;                   // -1: not part of a layer; the MTP head's layer stands behind the model's
  bool mtp = false;                 // runs in passes of the MTP head, and only there
  std::string phase;                // names the output: "q_rope"; for a state write the act: "kv_store"
  std::vector<ValueId> inputs;
  ValueId output = kNoValue;        // kNoValue: writes state only
  const Matrix* weight = nullptr;   // linear, embed, expert_linear
  const Vector* vector = nullptr;   // bias of linear (null: none), weight of rms_norm and head_norm
  int64_t heads = 0, head_dim = 0;  // norms per head, rope, attention, kv_store (heads = kv heads), delta_rule (values)
  int64_t k_heads = 0, k_dim = 0;   // delta_rule
  int64_t input_offset = 0;         // l2_norm: the first head's first column in the input
  int64_t input_stride = 0;         // head_norm: from head to head in the input; 0: head_dim
  double eps = 0;                   // norms but l2_norm
  bool scaled = false;              // l2_norm: times 1 / sqrt(head_dim)
  std::vector<ColumnRun> runs;      // columns
  int64_t experts = 0, chosen = 0;  // topk, topk_weights, expert_linear, expert_sum: of all, and of each row
  bool normalised = false;          // topk_weights: divided by their sum
  bool requested_rows_only = false; // logits: computed for the rows that the batch asks for
  /// Set by planted faults only: runs instead of the backend's kernel. The trace names it `variant`.
  std::function<void(NodeContext&)> replacement;
  std::string variant;

  bool runs_in(Pass pass) const { return mtp == (pass >= Pass::mtp_prefill); }
  std::string name() const { return layer_stem(layer, mtp) + phase; }
};

/// What a node writes: `columns` features per token row, f32.
struct Value {
  std::string phase;
  int layer = -1;
  int64_t columns = 0;
  std::string axes;                 // meaning of the columns: "hidden", "head*head_dim", "ffn", "vocab"
  bool ids = false;                 // whole numbers, exact in f32; a dump has them as I64
  bool mtp = false;                 // of the MTP head
  std::string also = {};            // another phase that this is too: ffn_out of a mixture without shared expert
};

struct Program {
  std::vector<Node> nodes;          // in execution order; inputs come from earlier nodes
  std::vector<Value> values;
  /// What an MTP head reads: final_norm of the model's passes, mtp_norm of the head's own. kNoValue: there is no head.
  ValueId hidden = kNoValue, mtp_hidden = kNoValue;
  /// The node that writes (layer, phase); nullptr if the family has no such phase.
  const Node* find(int layer, std::string_view phase) const;
  Node* find(int layer, std::string_view phase);
};

/// Builds a Program in lines that read as the architecture. The model must outlive the program.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(const Config& config) : config_(config) {}
  void enter_layer(int layer) { layer_ = layer; }
  void leave_layers() { layer_ = -1; }
  /// What follows is the MTP head's; `hidden` is the model's value that it reads.
  void enter_mtp(ValueId hidden);
  void leave_mtp(ValueId hidden);   // of the head itself

  ValueId embed(const char* phase, const Matrix& table);
  ValueId rms_norm(const char* phase, ValueId x, const Vector& w);
  /// Over head_dim, per head; `stride`: columns from head to head in x, 0: head_dim.
  ValueId head_norm(const char* phase, ValueId x, int64_t heads, const Vector& w, int64_t stride = 0);
  ValueId linear(const char* phase, ValueId x, const Matrix& w, const Vector& bias, const char* axes);
  ValueId rope(const char* phase, ValueId x, int64_t heads);
  void kv_store(ValueId k, ValueId v);                                               // into this layer's cache
  ValueId attention(const char* phase, ValueId q);                                   // over this layer's cache
  ValueId silu_mul(const char* phase, ValueId gate, ValueId up);                     // silu(gate) * up
  ValueId add(const char* phase, ValueId a, ValueId b);
  ValueId logits(ValueId x, const Matrix& w);                                        // linear, for requested rows
  ValueId sigmoid_mul(const char* phase, ValueId a, ValueId gate);                   // a * sigmoid(gate)
  ValueId sigmoid(const char* phase, ValueId x);
  ValueId columns(const char* phase, std::vector<ValueId> inputs, std::vector<ColumnRun> runs, const char* axes);
  ValueId hidden(const char* phase);                                                 // rows that an MTP pass was given
  // Of a gated DeltaNet layer; conv and delta_rule read and write its state.
  ValueId conv(const char* phase, ValueId qkv, const Vector& w);
  ValueId l2_norm(const char* phase, ValueId conv, int64_t first_column, bool scaled);   // of key heads
  ValueId decay(const char* phase, ValueId a, const Vector& w);
  ValueId delta_rule(const char* phase, ValueId q, ValueId k, ValueId v, ValueId beta, ValueId decay);
  ValueId gated_norm(const char* phase, ValueId x, ValueId z, const Vector& w);
  // Mixture of experts: which experts a row goes to [chosen], with which weights [chosen], by rank; the product of each with
  // its own rows of w (all experts behind each other), [chosen * w.rows / experts], of x itself or of x's part of that rank.
  ValueId topk(const char* phase, ValueId logits);
  ValueId topk_weights(const char* phase, ValueId logits, ValueId ids);
  ValueId expert_linear(const char* phase, ValueId x, ValueId ids, const Matrix& w, const char* axes);
  ValueId expert_sum(const char* phase, ValueId x, ValueId weights);
  ValueId gated_add(const char* phase, ValueId gate, ValueId shared, ValueId x);     // sigmoid(gate) * shared + x
  void also(ValueId v, const char* phase) { program_.values[size_t(v)].also = phase; }
  Program finish() { return std::move(program_); }

 private:
  Node& node(OpKind op, const char* phase, std::vector<ValueId> inputs);
  ValueId output(Node& n, int64_t columns, std::string axes);
  const Config& config_;
  int layer_ = -1;
  bool mtp_ = false;
  Program program_;
};

/// The program of a model's family (families/). Throws Error{malformed} for a family that is not known, with the known ones.
Program build_program(const Model& model);

}  // namespace assay

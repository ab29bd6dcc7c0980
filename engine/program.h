// A model as a program: the ordered list of op nodes that is one forward pass. families/ build programs; everything else
// (running, capturing, comparing, replaying, grafting, planting faults, fusing, benching) is an operation on this list.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/model.h"

namespace assay {

enum class OpKind : uint8_t { embed, rms_norm, head_norm, linear, rope, kv_store, attention, silu_mul, add,
                              topk, topk_weights, expert_linear, expert_sum, gated_add };
std::string_view name_of(OpKind op);

using ValueId = int32_t;
inline constexpr ValueId kNoValue = -1;

struct NodeContext;  // backend.h: what a node sees when it runs

/// One op. What it means, in which order it sums, and its bound stand in engine/ops/<op>.h.
struct Node {
  OpKind op;
  int layer = -1;                   // -1: not part of a layer
  std::string phase;                // names the output: "q_rope"; for a state write the act: "kv_store"
  std::vector<ValueId> inputs;
  ValueId output = kNoValue;        // kNoValue: writes state only
  const Matrix* weight = nullptr;   // linear, embed, expert_linear
  const Vector* vector = nullptr;   // bias of linear (null: none), weight of rms_norm and head_norm
  int64_t heads = 0, head_dim = 0;  // head_norm, rope, attention, kv_store (heads = kv heads)
  double eps = 0;                   // norms
  int64_t experts = 0, chosen = 0;  // topk, topk_weights, expert_linear, expert_sum: of all, and of each row
  bool normalised = false;          // topk_weights: divided by their sum
  bool requested_rows_only = false; // logits: computed for the rows that the batch asks for
  /// Set by planted faults only: runs instead of the backend's kernel. The trace names it `variant`.
  std::function<void(NodeContext&)> replacement;
  std::string variant;

  std::string name() const { return (layer < 0 ? "" : "layer." + std::to_string(layer) + "/") + phase; }
};

/// What a node writes: `columns` features per token row, f32.
struct Value {
  std::string phase;
  int layer = -1;
  int64_t columns = 0;
  std::string axes;                 // meaning of the columns: "hidden", "head*head_dim", "ffn", "vocab"
  bool ids = false;                 // whole numbers, exact in f32; a dump has them as I64
  std::string also = {};            // another phase that this is too: ffn_out of a mixture without shared expert
};

struct Program {
  std::vector<Node> nodes;          // in execution order; inputs come from earlier nodes
  std::vector<Value> values;
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

  ValueId embed(const char* phase, const Matrix& table);
  ValueId rms_norm(const char* phase, ValueId x, const Vector& w);
  ValueId head_norm(const char* phase, ValueId x, int64_t heads, const Vector& w);   // over head_dim, per head
  ValueId linear(const char* phase, ValueId x, const Matrix& w, const Vector& bias, const char* axes);
  ValueId rope(const char* phase, ValueId x, int64_t heads);
  void kv_store(ValueId k, ValueId v);                                               // into this layer's cache
  ValueId attention(const char* phase, ValueId q);                                   // over this layer's cache
  ValueId silu_mul(const char* phase, ValueId gate, ValueId up);                     // silu(gate) * up
  ValueId add(const char* phase, ValueId a, ValueId b);
  ValueId logits(ValueId x, const Matrix& w);                                        // linear, for requested rows
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
  Program program_;
};

/// The program of a model's family (families/). Throws Error{malformed} for a family that is not known, with the known ones.
Program build_program(const Model& model);

}  // namespace assay

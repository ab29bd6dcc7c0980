// What one pass through a node must do, whatever the machine: operations, and bytes that have to move at least once.
// Bench, limits and plans count by this one function.
#pragma once
#include <cstdint>
#include <span>

#include "engine/backend.h"
#include "engine/program.h"

namespace assay {

/// The token rows of a pass as far as cost depends on them.
struct PassLoad {
  int64_t rows = 0;        // token rows
  int64_t logit_rows = 0;  // rows whose logits are wanted
  int64_t positions = 0;   // sum over rows of the cached positions that the row attends to, its own included
  int64_t cached = 0;      // sum over segments of their last position + 1: positions that must be read at least once
  KvType kv = KvType::f16;
  int64_t sequences = 1;  // segments: states that do not grow are read and written once per segment

  /// Prefill of `rows` tokens of one sequence from position `first` on, with the logits of the last row; rows = 1:
  /// decode.
  static PassLoad of_sequence(int64_t first, int64_t rows, KvType kv);
  static PassLoad of(const Batch& batch, KvType kv);
};

struct NodeCost {
  /// Additions, multiplications, divisions, roots and comparisons in f32 of the rule's own formula; an fma is two, an
  /// exp counts as one. Of a quantised linear: 2 per weight and row, whatever integers they are done in.
  int64_t operations = 0;
  int64_t weight_bytes = 0;  // as the model stores them; once per pass (embed: the rows that are looked up)
  int64_t state_read = 0;    // KV cache: every position in use once per pass
  int64_t state_written = 0;
  int64_t value_bytes = 0;  // inputs and output, f32: they need not leave the caches of a CPU

  /// Bytes that memory must deliver or take, values aside.
  int64_t moved() const { return weight_bytes + state_read + state_written; }
  NodeCost& operator+=(const NodeCost& o);
};

NodeCost cost_of(const Node& node, const Program& program, const PassLoad& load);
/// The sum over all nodes.
NodeCost cost_of(const Program& program, const PassLoad& load);

}  // namespace assay

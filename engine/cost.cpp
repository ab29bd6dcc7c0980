#include "engine/cost.h"

#include <algorithm>

namespace assay {

PassLoad PassLoad::of_sequence(int64_t first, int64_t rows, KvType kv) {
  const int64_t last = first + rows;
  return {rows, 1, (first + 1 + last) * rows / 2, last, kv};
}

PassLoad PassLoad::of(const Batch& batch, KvType kv) {
  PassLoad out{0, int64_t(batch.logit_rows.size()), 0, 0, kv};
  for (const Segment& s : batch.segments) {
    const PassLoad one = of_sequence(s.position, s.rows, kv);
    out.rows += one.rows;
    out.positions += one.positions;
    out.cached += one.cached;
  }
  out.sequences = int64_t(batch.segments.size());
  return out;
}

NodeCost& NodeCost::operator+=(const NodeCost& o) {
  operations += o.operations;
  weight_bytes += o.weight_bytes;
  state_read += o.state_read;
  state_written += o.state_written;
  value_bytes += o.value_bytes;
  return *this;
}

NodeCost cost_of(const Node& node, const Program& program, const PassLoad& load) {
  const int64_t rows = node.requested_rows_only ? load.logit_rows : load.rows;
  const int64_t columns = node.output == kNoValue ? 0 : program.values[size_t(node.output)].columns;
  NodeCost c;
  if (rows == 0) return c;
  c.value_bytes = rows * columns * 4;
  for (ValueId v : node.inputs) c.value_bytes += rows * program.values[size_t(v)].columns * 4;
  if (node.vector) c.weight_bytes = int64_t(node.vector->size()) * 4;
  switch (node.op) {
    case OpKind::embed:
      c.weight_bytes = rows * int64_t(row_bytes(node.weight->type, node.weight->columns));
      break;
    case OpKind::linear:
      c.operations = 2 * rows * node.weight->rows * node.weight->columns;
      if (node.vector) c.operations += rows * columns;
      c.weight_bytes += int64_t(node.weight->bytes());
      break;
    case OpKind::rms_norm:
    case OpKind::head_norm: {
      const int64_t sums = node.op == OpKind::rms_norm ? 1 : node.heads;
      c.operations = rows * (4 * columns + 4 * sums);  // fma, x * r, * w; / K, + eps, sqrt, 1 /
      break;
    }
    case OpKind::rope:
      c.operations = rows * 3 * columns;  // per column one product and one fma; columns beyond `rotary` pass, and count
      break;
    case OpKind::kv_store:
      c.state_written = 2 * rows * node.heads * node.head_dim * int64_t(size_of(load.kv));
      break;
    case OpKind::attention:
      // Per query head and position: dot 2 D, scale, max, subtraction, exp, sum, mix 2 D; per column one division.
      c.operations = load.positions * node.heads * (4 * node.head_dim + 5) + rows * columns;
      if (const Node* store = program.find(node.layer, "kv_store"))  // which knows the number of kv heads
        c.state_read = 2 * load.cached * store->heads * store->head_dim * int64_t(size_of(load.kv));
      break;
    case OpKind::silu_mul:
      c.operations = rows * 5 * columns;  // -x, exp, 1 +, x /, * up
      break;
    case OpKind::add:
      c.operations = rows * columns;
      break;
    case OpKind::sigmoid_mul:
    case OpKind::sigmoid:
      c.operations = rows * (node.op == OpKind::sigmoid ? 4 : 5) * columns;  // -x, exp, 1 +, 1 /, * a
      break;
    case OpKind::decay:
      c.operations = rows * 11 * columns;  // + dt, exp, of log1p 6, * rate, and the branches
      break;
    case OpKind::l2_norm:
      c.operations = rows * (3 * columns + 3 * node.heads);  // fma, x * r; + 1e-6, sqrt, 1 /
      if (node.scaled) c.operations += rows * columns;
      break;
    case OpKind::gated_norm:
      c.operations = rows * (9 * columns + 4 * node.heads);  // an RMS norm and silu_mul
      break;
    case OpKind::conv: {
      const int64_t width = int64_t(node.vector->size()) / columns;
      c.operations = rows * (2 * width + 4) * columns;
      c.state_read = c.state_written = load.sequences * width * columns * 4;
      break;
    }
    case OpKind::delta_rule: {
      // Per element of the state: * exp(g), and three fma.
      const int64_t state = node.heads * node.k_dim * node.head_dim;
      c.operations = rows * (7 * state + 2 * columns + node.heads);
      c.state_read = c.state_written = load.sequences * state * 4;
      break;
    }
    case OpKind::columns:
    case OpKind::hidden:
      break;  // bytes alone
    case OpKind::topk:
      break;  // comparisons
    case OpKind::topk_weights:
      c.operations = rows * (3 * node.experts + 3 * node.chosen);  // x - max, exp, sum; / sum, total, / total
      break;
    case OpKind::expert_linear: {
      c.operations = 2 * rows * node.chosen * (node.weight->rows / node.experts) * node.weight->columns;
      // Each expert is read once, and no row reads more than its own: what rows that part all the way would need.
      const int64_t experts = std::min(node.experts, rows * node.chosen);
      c.weight_bytes += experts * int64_t(node.weight->bytes() / size_t(node.experts));
      break;
    }
    case OpKind::expert_sum:
      c.operations = 2 * rows * node.chosen * columns;
      break;
    case OpKind::gated_add:
      c.operations = rows * (2 * columns + 4);  // an fma per column; -x, exp, 1 +, 1 / per row
      break;
  }
  return c;
}

NodeCost cost_of(const Program& program, const PassLoad& load) {
  NodeCost sum;
  for (const Node& n : program.nodes)
    if (!n.mtp) sum += cost_of(n, program, load);
  return sum;
}

}  // namespace assay

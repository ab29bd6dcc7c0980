#include "engine/program.h"

#include <utility>

#include "dumps/error.h"

namespace assay {

std::string_view name_of(OpKind op) {
  switch (op) {
    case OpKind::embed: return "embed";
    case OpKind::rms_norm: return "rms_norm";
    case OpKind::head_norm: return "head_norm";
    case OpKind::linear: return "linear";
    case OpKind::rope: return "rope";
    case OpKind::kv_store: return "kv_store";
    case OpKind::attention: return "attention";
    case OpKind::silu_mul: return "silu_mul";
    case OpKind::add: return "add";
    case OpKind::sigmoid_mul:
      return "sigmoid_mul";
    case OpKind::sigmoid:
      return "sigmoid";
    case OpKind::l2_norm:
      return "l2_norm";
    case OpKind::gated_norm:
      return "gated_norm";
    case OpKind::decay:
      return "decay";
    case OpKind::conv:
      return "conv";
    case OpKind::delta_rule:
      return "delta_rule";
    case OpKind::columns:
      return "columns";
    case OpKind::hidden:
      return "hidden";
    case OpKind::topk: return "topk";
    case OpKind::topk_weights: return "topk_weights";
    case OpKind::expert_linear: return "expert_linear";
    case OpKind::expert_sum: return "expert_sum";
    case OpKind::gated_add: return "gated_add";
  }
  return "?";
}

std::string layer_stem(int layer, bool mtp) {
  return layer < 0 ? "" : mtp ? "mtp.0/" : "layer." + std::to_string(layer) + "/";
}

const Node* Program::find(int layer, std::string_view phase) const {
  for (const Node& n : nodes)
    if (n.layer == layer && n.phase == phase) return &n;
  return nullptr;
}
Node* Program::find(int layer, std::string_view phase) {
  return const_cast<Node*>(std::as_const(*this).find(layer, phase));
}

Node& ProgramBuilder::node(OpKind op, const char* phase, std::vector<ValueId> inputs) {
  Node n;
  n.op = op;
  n.layer = layer_;
  n.mtp = mtp_;
  n.phase = phase;
  n.inputs = std::move(inputs);
  for (ValueId v : n.inputs)
    if (v < 0 || v >= ValueId(program_.values.size()))
      throw Error(ErrorKind::internal, n.name(), "input is not a value of an earlier node");
  program_.nodes.push_back(std::move(n));
  return program_.nodes.back();
}

ValueId ProgramBuilder::output(Node& n, int64_t columns, std::string axes) {
  n.output = ValueId(program_.values.size());
  program_.values.push_back({n.phase, n.layer, columns, std::move(axes)});
  program_.values.back().mtp = n.mtp;
  return n.output;
}

ValueId ProgramBuilder::embed(const char* phase, const Matrix& table) {
  Node& n = node(OpKind::embed, phase, {});
  n.weight = &table;
  return output(n, table.columns, "hidden");
}

ValueId ProgramBuilder::rms_norm(const char* phase, ValueId x, const Vector& w) {
  Node& n = node(OpKind::rms_norm, phase, {x});
  n.vector = &w;
  n.eps = config_.rms_eps;
  return output(n, program_.values[x].columns, program_.values[x].axes);
}

ValueId ProgramBuilder::head_norm(const char* phase, ValueId x, int64_t heads, const Vector& w, int64_t stride) {
  Node& n = node(OpKind::head_norm, phase, {x});
  n.vector = &w;
  n.heads = heads;
  n.head_dim = config_.head_dim;
  n.input_stride = stride;
  n.eps = config_.rms_eps;
  return output(n, heads * config_.head_dim, stride ? "head*head_dim" : program_.values[x].axes);
}

ValueId ProgramBuilder::linear(const char* phase, ValueId x, const Matrix& w, const Vector& bias, const char* axes) {
  Node& n = node(OpKind::linear, phase, {x});
  n.weight = &w;
  n.vector = bias.empty() ? nullptr : &bias;
  return output(n, w.rows, axes);
}

ValueId ProgramBuilder::rope(const char* phase, ValueId x, int64_t heads) {
  Node& n = node(OpKind::rope, phase, {x});
  n.heads = heads;
  n.head_dim = config_.head_dim;
  return output(n, program_.values[x].columns, program_.values[x].axes);
}

void ProgramBuilder::kv_store(ValueId k, ValueId v) {
  Node& n = node(OpKind::kv_store, "kv_store", {k, v});
  n.heads = config_.kv_heads;
  n.head_dim = config_.head_dim;
}

ValueId ProgramBuilder::attention(const char* phase, ValueId q) {
  Node& n = node(OpKind::attention, phase, {q});
  n.heads = config_.heads;
  n.head_dim = config_.head_dim;
  return output(n, program_.values[q].columns, program_.values[q].axes);
}

ValueId ProgramBuilder::silu_mul(const char* phase, ValueId gate, ValueId up) {
  return output(node(OpKind::silu_mul, phase, {gate, up}), program_.values[gate].columns, program_.values[gate].axes);
}

ValueId ProgramBuilder::add(const char* phase, ValueId a, ValueId b) {
  return output(node(OpKind::add, phase, {a, b}), program_.values[a].columns, program_.values[a].axes);
}

ValueId ProgramBuilder::logits(ValueId x, const Matrix& w) {
  Node& n = node(OpKind::linear, "logits", {x});
  n.weight = &w;
  n.requested_rows_only = true;
  return output(n, w.rows, "vocab");
}

void ProgramBuilder::enter_mtp(ValueId hidden) {
  mtp_ = true;
  program_.hidden = hidden;
}
void ProgramBuilder::leave_mtp(ValueId hidden) {
  mtp_ = false;
  program_.mtp_hidden = hidden;
}

ValueId ProgramBuilder::sigmoid_mul(const char* phase, ValueId a, ValueId gate) {
  return output(node(OpKind::sigmoid_mul, phase, {a, gate}), program_.values[a].columns, program_.values[a].axes);
}

ValueId ProgramBuilder::sigmoid(const char* phase, ValueId x) {
  return output(node(OpKind::sigmoid, phase, {x}), program_.values[x].columns, program_.values[x].axes);
}

ValueId ProgramBuilder::columns(const char* phase, std::vector<ValueId> inputs, std::vector<ColumnRun> runs,
                                const char* axes) {
  Node& n = node(OpKind::columns, phase, std::move(inputs));
  int64_t columns = 0;
  for (ColumnRun& r : runs) {
    r.to = columns;
    columns += r.count * r.width;
  }
  n.runs = std::move(runs);
  return output(n, columns, axes);
}

ValueId ProgramBuilder::hidden(const char* phase) {
  return output(node(OpKind::hidden, phase, {}), config_.hidden, "hidden");
}

ValueId ProgramBuilder::conv(const char* phase, ValueId qkv, const Vector& w) {
  Node& n = node(OpKind::conv, phase, {qkv});
  n.vector = &w;
  return output(n, program_.values[qkv].columns, program_.values[qkv].axes);
}

ValueId ProgramBuilder::l2_norm(const char* phase, ValueId conv, int64_t first_column, bool scaled) {
  Node& n = node(OpKind::l2_norm, phase, {conv});
  n.heads = config_.gdn_k_heads;
  n.head_dim = config_.gdn_k_dim;
  n.input_offset = first_column;
  n.scaled = scaled;
  return output(n, n.heads * n.head_dim, "k_head*k_dim");
}

ValueId ProgramBuilder::decay(const char* phase, ValueId a, const Vector& w) {
  Node& n = node(OpKind::decay, phase, {a});
  n.vector = &w;
  return output(n, program_.values[a].columns, program_.values[a].axes);
}

ValueId ProgramBuilder::delta_rule(const char* phase, ValueId q, ValueId k, ValueId v, ValueId beta, ValueId decay) {
  Node& n = node(OpKind::delta_rule, phase, {q, k, v, beta, decay});
  n.heads = config_.gdn_v_heads;
  n.head_dim = config_.gdn_v_dim;
  n.k_heads = config_.gdn_k_heads;
  n.k_dim = config_.gdn_k_dim;
  return output(n, program_.values[v].columns, program_.values[v].axes);
}

ValueId ProgramBuilder::gated_norm(const char* phase, ValueId x, ValueId z, const Vector& w) {
  Node& n = node(OpKind::gated_norm, phase, {x, z});
  n.vector = &w;
  n.heads = config_.gdn_v_heads;
  n.head_dim = config_.gdn_v_dim;
  n.eps = config_.rms_eps;
  return output(n, program_.values[x].columns, program_.values[x].axes);
}

ValueId ProgramBuilder::topk(const char* phase, ValueId logits) {
  Node& n = node(OpKind::topk, phase, {logits});
  n.experts = config_.experts;
  n.chosen = config_.experts_per_token;
  const ValueId ids = output(n, n.chosen, "expert_rank");
  program_.values[size_t(ids)].ids = true;
  return ids;
}

ValueId ProgramBuilder::topk_weights(const char* phase, ValueId logits, ValueId ids) {
  Node& n = node(OpKind::topk_weights, phase, {logits, ids});
  n.experts = config_.experts;
  n.chosen = config_.experts_per_token;
  n.normalised = config_.norm_topk_prob;
  return output(n, n.chosen, "expert_rank");
}

ValueId ProgramBuilder::expert_linear(const char* phase, ValueId x, ValueId ids, const Matrix& w, const char* axes) {
  Node& n = node(OpKind::expert_linear, phase, {x, ids});
  n.weight = &w;
  n.experts = config_.experts;
  n.chosen = config_.experts_per_token;
  return output(n, n.chosen * (w.rows / n.experts), axes);
}

ValueId ProgramBuilder::expert_sum(const char* phase, ValueId x, ValueId weights) {
  Node& n = node(OpKind::expert_sum, phase, {x, weights});
  n.experts = config_.experts;
  n.chosen = config_.experts_per_token;
  return output(n, program_.values[size_t(x)].columns / n.chosen, "hidden");
}

ValueId ProgramBuilder::gated_add(const char* phase, ValueId gate, ValueId shared, ValueId x) {
  return output(node(OpKind::gated_add, phase, {gate, shared, x}), program_.values[size_t(x)].columns,
                program_.values[size_t(x)].axes);
}

}  // namespace assay

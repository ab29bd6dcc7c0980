// DeviceBackend: from nodes to the argument structs of engine/abi.h.
#include <algorithm>
#include <cmath>

#include "dumps/error.h"
#include "engine/device_internal.h"
#include "engine/ops/common/rope_table.h"

namespace assay {

const float* DeviceBackend::input(Run& r, ValueId v, bool probe) {
  if (probe) return nullptr;
  float* to = output(r, v);
  if (!r.on_device[size_t(v)]) {
    const float* from = r.host->value(v);
    if (!from) throw Error(ErrorKind::internal, program_.values[size_t(v)].phase, "a value that is nowhere");
    device_->upload(to, from, size_t(r.rows * program_.values[size_t(v)].columns) * sizeof(float));
    r.on_device[size_t(v)] = true;
  }
  return to;
}

float* DeviceBackend::output(Run& r, ValueId v) { return r.values.memory[size_t(r.values.buffer_of[size_t(v)])].as<float>(); }

AssayWeight DeviceBackend::weight(const Matrix& m, bool probe) {
  if (probe) return {int32_t(m.type), 0, m.rows, m.columns, nullptr};
  return weights_.get(m);
}

int DeviceBackend::run_linears(Run& r, const DeviceStep& step, bool probe) {
  const AssayModule& t = device_->table();
  const Node& first = program_.nodes[size_t(step.linears[0])];
  if (!t.linear) return ASSAY_REFUSED;
  for (int l : step.linears)
    if (!weights_.offered(*program_.nodes[size_t(l)].weight)) return ASSAY_REFUSED;
  AssayLinear a{};
  a.activations = int32_t(is_quantised(first.weight->type) ? activations_ : Activations::f32);
  a.count = int32_t(step.linears.size());
  a.rows = probe ? 0 : first.requested_rows_only ? r.logit_rows : r.rows;
  const ValueId x = step.norm >= 0 ? program_.nodes[size_t(step.norm)].inputs[0] : first.inputs[0];
  a.x = input(r, x, probe);
  for (int i = 0; i < a.count; i++) {
    const Node& n = program_.nodes[size_t(step.linears[size_t(i)])];
    a.w[i] = weight(*n.weight, probe);
    if (n.vector) a.bias[i] = weights_.get(*n.vector);
    if (!probe) a.y[i] = output(r, n.output);
  }
  if (step.norm >= 0) {
    a.norm = weights_.get(*program_.nodes[size_t(step.norm)].vector);
    a.eps = float(program_.nodes[size_t(step.norm)].eps);
  }
  if (step.act >= 0) {
    a.gated = 1;
    a.y[1] = nullptr;
    if (!probe) a.y[0] = output(r, program_.nodes[size_t(step.act)].output);
  }
  if (step.residual >= 0) {
    const Node& add = program_.nodes[size_t(step.residual)];
    const ValueId other = add.inputs[0] == first.output ? add.inputs[1] : add.inputs[0];
    a.residual = probe ? reinterpret_cast<const float*>(&a) : input(r, other, false);   // a probe asks for the form alone
    if (!probe) a.y[0] = output(r, add.output);
  }
  if (!probe && first.requested_rows_only && r.logit_rows != r.rows) {  // the wanted rows of the one input
    if (!t.gather) return ASSAY_REFUSED;
    AssayGather g{a.x, r.logit_index, r.values.gathered.as<float>(), r.logit_rows, first.weight->columns};
    const int result = t.gather(device_->handle(), &g);
    if (result != ASSAY_DONE) return result;
    a.x = g.y;
  }
  const int result = t.linear(device_->handle(), &a);
  if (result == ASSAY_DONE && !probe && first.requested_rows_only) r.logits = a.y[0];
  return result;
}

int DeviceBackend::run_heads(Run& r, const DeviceStep& step, bool probe) {
  const AssayModule& t = device_->table();
  if (!t.heads) return ASSAY_REFUSED;
  const Node& rope = program_.nodes[size_t(step.q_rope)];
  const Node& k_rope = program_.nodes[size_t(step.q_rope + 1)];
  const Node& store = program_.nodes[size_t(step.q_rope + 2)];
  const bool normed = step.nodes[0] != step.q_rope;
  const Node& first = program_.nodes[size_t(step.nodes[0])];
  AssayHeads a{};
  a.cache = caches_[size_t(rope.layer)];
  a.heads = rope.heads;
  a.rotary = model_.config.rope.rotary;
  if (normed) {
    a.q_norm = weights_.get(*first.vector);
    a.k_norm = weights_.get(*program_.nodes[size_t(step.nodes[1])].vector);
    a.eps = float(first.eps);
  }
  if (!probe) {
    a.rows = r.rows;
    a.q = input(r, normed ? first.inputs[0] : rope.inputs[0], false);
    a.k = input(r, normed ? program_.nodes[size_t(step.nodes[1])].inputs[0] : k_rope.inputs[0], false);
    a.v = input(r, store.inputs[1], false);
    a.q_out = output(r, rope.output);
    a.places = r.places;
    a.cos = cos_.as<const float>();
    a.sin = sin_.as<const float>();
    a.overflow = tail_.as<int64_t>() + rope.layer;
  }
  if (step.attention >= 0) return run_attention(r, program_.nodes[size_t(step.attention)], &a, probe);
  return t.heads(device_->handle(), &a);
}

/// heads: what is fused in front, or null.
int DeviceBackend::run_attention(Run& r, const Node& n, const AssayHeads* heads, bool probe) {
  const AssayModule& t = device_->table();
  if (!t.attention) return ASSAY_REFUSED;
  AssayAttention a{};
  a.cache = caches_[size_t(n.layer)];
  a.heads = n.heads;
  a.longest = probe ? 1 : r.longest;
  a.scale = float(1.0 / std::sqrt(double(n.head_dim)));
  a.heads_of = heads;
  if (!probe) {
    a.q = heads ? heads->q_out : input(r, n.inputs[0], false);
    a.y = output(r, n.output);
    a.places = r.places;
    a.rows = r.rows;
  }
  return t.attention(device_->handle(), &a);
}

/// The layer's states as kernels take them; without memory where it has none or nothing runs.
AssayStates DeviceBackend::states_of(Run& r, int layer, bool probe) const {
  const GdnLayer& g = host_states_[size_t(layer)];
  AssayStates s{};
  s.entries = states_.entries();
  s.width = g.width, s.channels = g.channels, s.v_heads = g.v_heads, s.k_dim = g.k_dim, s.v_dim = g.v_dim;
  s.stride = states_.stride();
  if (probe) return s;
  s.conv = states_.conv(layer);
  s.state = states_.state(layer);
  s.spans = r.spans;
  s.after = r.after;
  s.span_count = int64_t(r.pass.spans.size());
  return s;
}

int DeviceBackend::run_recurrence(Run& r, const DeviceStep& step, bool probe) {
  const AssayModule& t = device_->table();
  if (!t.delta_rule) return ASSAY_REFUSED;
  const auto node = [&](int behind) -> const Node& { return program_.nodes[size_t(step.recurrence - behind)]; };
  const Node &rule = node(0), &decay = node(1), &beta = node(2), &q = node(5);
  AssayDeltaRule a{};
  a.rows = probe ? 0 : r.rows;
  a.k_heads = rule.k_heads;
  a.states = states_of(r, rule.layer, probe);
  a.conv = probe ? reinterpret_cast<const float*>(&a) : input(r, q.inputs[0], false);   // a probe asks for the form alone
  a.b = input(r, beta.inputs[0], probe);
  a.a = input(r, decay.inputs[0], probe);
  a.decay_w = weights_.get(*decay.vector);
  a.scale = float(1.0 / std::sqrt(double(q.head_dim)));
  if (!probe) a.y = output(r, rule.output);
  return t.delta_rule(device_->handle(), &a);
}

int DeviceBackend::run_experts(Run& r, const DeviceStep& step, bool probe) {
  const AssayModule& t = device_->table();
  const Node& first = program_.nodes[size_t(step.experts[0])];
  if (!t.expert_linear) return ASSAY_REFUSED;
  for (int e : step.experts)
    if (!weights_.offered(*program_.nodes[size_t(e)].weight)) return ASSAY_REFUSED;
  AssayExpertLinear a{};
  a.activations = int32_t(is_quantised(first.weight->type) ? activations_ : Activations::f32);
  a.count = int32_t(step.experts.size());
  a.rows = probe ? 0 : r.rows;
  a.experts = first.experts;
  a.chosen = first.chosen;
  a.by_rank = program_.values[size_t(first.inputs[0])].columns != first.weight->columns;
  a.gated = step.act >= 0;
  a.x = input(r, first.inputs[0], probe);
  a.ids = input(r, first.inputs[1], probe);
  for (int i = 0; i < a.count; i++) {
    const Node& n = program_.nodes[size_t(step.experts[size_t(i)])];
    a.w[i] = weight(*n.weight, probe);
    if (!probe && step.act < 0) a.y[i] = output(r, n.output);
  }
  if (!probe && step.act >= 0) a.y[0] = output(r, program_.nodes[size_t(step.act)].output);
  return t.expert_linear(device_->handle(), &a);
}

int DeviceBackend::run_router(Run& r, const DeviceStep& step, bool probe) {
  const AssayModule& t = device_->table();
  const Node &topk = program_.nodes[size_t(step.nodes[0])], &weights = program_.nodes[size_t(step.nodes[1])];
  if (!t.topk || forces_experts(r.pass.batch)) return ASSAY_REFUSED;   // forced experts are put in place on the host
  AssayRouter a{};
  a.logits = input(r, topk.inputs[0], probe);
  // A probe asks for the form alone.
  a.ids = probe ? nullptr : output(r, topk.output);
  a.weights = probe ? reinterpret_cast<float*>(&a) : output(r, weights.output);
  a.rows = probe ? 0 : r.rows;
  a.experts = topk.experts;
  a.chosen = topk.chosen;
  a.normalised = weights.normalised;
  return t.topk(device_->handle(), &a);
}

/// A sum of products with what is added to it: expert_sum or gated_add, then add.
int DeviceBackend::run_added(Run& r, const DeviceStep& step, bool probe) {
  const Node &sum = program_.nodes[size_t(step.nodes[0])], &add = program_.nodes[size_t(step.residual)];
  const ValueId other = add.inputs[0] == sum.output ? add.inputs[1] : add.inputs[0];
  const float* residual = probe ? reinterpret_cast<const float*>(&sum) : input(r, other, false);   // a probe asks for the form alone
  return sum.op == OpKind::gated_add ? run_gated_add(r, sum, residual, probe ? nullptr : output(r, add.output), probe)
                                     : run_expert_sum(r, sum, residual, probe ? nullptr : output(r, add.output), probe);
}
int DeviceBackend::run_expert_sum(Run& r, const Node& n, const float* residual, float* y, bool probe) {
  if (!device_->table().expert_sum) return ASSAY_REFUSED;
  const AssayExpertSum a{input(r, n.inputs[1], probe), input(r, n.inputs[0], probe), y, probe ? 0 : r.rows, n.chosen,
                         program_.values[size_t(n.output)].columns, residual};
  return device_->table().expert_sum(device_->handle(), &a);
}
int DeviceBackend::run_gated_add(Run& r, const Node& n, const float* residual, float* y, bool probe) {
  if (!device_->table().gated_add) return ASSAY_REFUSED;
  const AssayGatedAdd a{input(r, n.inputs[0], probe), input(r, n.inputs[1], probe), input(r, n.inputs[2], probe), y, probe ? 0 : r.rows,
                        program_.values[size_t(n.output)].columns, residual};
  return device_->table().gated_add(device_->handle(), &a);
}

int DeviceBackend::run_single(Run& r, const Node& n, bool probe) {
  const AssayModule& t = device_->table();
  AssayDevice* d = device_->handle();
  if (n.replacement || (options_.refuse && options_.refuse(n))) return ASSAY_REFUSED;
  const int64_t rows = probe ? 0 : r.rows;
  const auto in = [&](size_t i) { return input(r, n.inputs[i], probe); };
  const auto out = [&] { return probe ? nullptr : output(r, n.output); };
  const int64_t columns = n.output == kNoValue ? 0 : program_.values[size_t(n.output)].columns;
  switch (n.op) {
    case OpKind::embed: {
      // One row of a table that isn't there is not worth the table.
      if (!t.embed || !weights_.resident(*n.weight)) return ASSAY_REFUSED;
      const AssayEmbed a{weight(*n.weight, probe), r.ids, out(), rows};
      return t.embed(d, &a);
    }
    case OpKind::rms_norm:
    case OpKind::head_norm: {
      if (!t.norm) return ASSAY_REFUSED;
      const bool heads = n.op == OpKind::head_norm;
      const AssayNorm a{in(0), weights_.get(*n.vector), out(), rows, columns, heads ? n.heads : 0, n.head_dim, float(n.eps),
                        int32_t(n.input_stride)};
      return t.norm(d, &a);
    }
    case OpKind::linear: {
      DeviceStep alone;
      alone.nodes = alone.linears = {int(&n - program_.nodes.data())};
      return run_linears(r, alone, probe);
    }
    case OpKind::rope: {
      if (!t.rope) return ASSAY_REFUSED;
      const AssayRope a{in(0), out(), r.places, cos_.as<const float>(), sin_.as<const float>(), rows, n.heads, n.head_dim,
                        model_.config.rope.rotary};
      return t.rope(d, &a);
    }
    case OpKind::kv_store: {
      if (!t.kv_store) return ASSAY_REFUSED;
      const AssayKvStore a{in(0), in(1), r.places, caches_[size_t(n.layer)], rows, probe ? nullptr : tail_.as<int64_t>() + n.layer};
      return t.kv_store(d, &a);
    }
    case OpKind::attention: return run_attention(r, n, nullptr, probe);
    case OpKind::silu_mul:
    case OpKind::sigmoid_mul:
    case OpKind::add: {
      const auto op = n.op == OpKind::add ? t.add : n.op == OpKind::silu_mul ? t.silu_mul : t.sigmoid_mul;
      if (!op) return ASSAY_REFUSED;
      const AssayBinary a{in(0), in(1), out(), rows, columns};
      return op(d, &a);
    }
    case OpKind::sigmoid: {
      if (!t.sigmoid) return ASSAY_REFUSED;
      const AssayUnary a{in(0), out(), rows, columns};
      return t.sigmoid(d, &a);
    }
    case OpKind::l2_norm: {
      if (!t.l2_norm) return ASSAY_REFUSED;
      const float scale = n.scaled ? float(1.0 / std::sqrt(double(n.head_dim))) : 1.0f;
      const AssayL2Norm a{probe ? nullptr : in(0) + n.input_offset, out(), rows, program_.values[size_t(n.inputs[0])].columns, n.heads,
                          n.head_dim, scale, 0};
      return t.l2_norm(d, &a);
    }
    case OpKind::gated_norm: {
      if (!t.gated_norm) return ASSAY_REFUSED;
      const AssayGatedNorm a{in(0), in(1), weights_.get(*n.vector), out(), rows, n.heads, n.head_dim, float(n.eps), 0};
      return t.gated_norm(d, &a);
    }
    case OpKind::decay: {
      if (!t.decay) return ASSAY_REFUSED;
      const AssayDecay a{in(0), weights_.get(*n.vector), out(), rows, columns};
      return t.decay(d, &a);
    }
    case OpKind::conv: {
      if (!t.conv) return ASSAY_REFUSED;
      const AssayConv a{in(0), weights_.get(*n.vector), out(), rows, states_of(r, n.layer, probe)};
      return t.conv(d, &a);
    }
    case OpKind::delta_rule: {
      if (!t.delta_rule) return ASSAY_REFUSED;
      const AssayDeltaRule a{in(0), in(1), in(2), in(3), in(4), out(), rows, n.k_heads, states_of(r, n.layer, probe), nullptr, nullptr, nullptr,
                             nullptr, 0, 0};
      return t.delta_rule(d, &a);
    }
    case OpKind::columns: {
      AssayColumns a{};
      if (!t.columns || n.runs.size() > std::size(a.runs)) return ASSAY_REFUSED;
      for (const ColumnRun& run : n.runs)
        a.runs[a.count++] = {in(size_t(run.input)), program_.values[size_t(n.inputs[size_t(run.input)])].columns,
                             run.from, run.stride, run.to, run.count, run.width};
      a.y = out(), a.rows = rows, a.columns = columns;
      return t.columns(d, &a);
    }
    case OpKind::hidden:
      if (!t.copy) return ASSAY_REFUSED;
      return probe ? int(ASSAY_DONE) : t.copy(d, out(), r.values.hidden.data(), size_t(rows * columns) * sizeof(float));
    case OpKind::topk: {
      if (!t.topk || forces_experts(r.pass.batch)) return ASSAY_REFUSED;
      const AssayRouter a{in(0), out(), nullptr, rows, n.experts, n.chosen, 0, 0};
      return t.topk(d, &a);
    }
    case OpKind::topk_weights: {
      if (!t.topk_weights) return ASSAY_REFUSED;
      const AssayRouter a{in(0), const_cast<float*>(in(1)), out(), rows, n.experts, n.chosen, n.normalised, 0};
      return t.topk_weights(d, &a);
    }
    case OpKind::expert_linear: {
      DeviceStep alone;
      alone.nodes = alone.experts = {int(&n - program_.nodes.data())};
      return run_experts(r, alone, probe);
    }
    case OpKind::expert_sum: return run_expert_sum(r, n, nullptr, out(), probe);
    case OpKind::gated_add: return run_gated_add(r, n, nullptr, out(), probe);
  }
  return ASSAY_REFUSED;
}

int DeviceBackend::run_step(Run& r, const DeviceStep& step, bool probe) {
  if (step.single()) return run_single(r, program_.nodes[size_t(step.nodes[0])], probe);
  if (step.q_rope >= 0) return run_heads(r, step, probe);
  if (step.recurrence >= 0) return run_recurrence(r, step, probe);
  if (!step.experts.empty()) return run_experts(r, step, probe);
  if (!step.linears.empty()) return run_linears(r, step, probe);
  return step.residual >= 0 ? run_added(r, step, probe) : run_router(r, step, probe);
}

}  // namespace assay

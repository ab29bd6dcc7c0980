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

bool device_may_run(const Node& n) {
  switch (n.op) {
    case OpKind::embed:
    case OpKind::rms_norm:
    case OpKind::linear:
    case OpKind::rope:
    case OpKind::kv_store:
    case OpKind::attention:
    case OpKind::silu_mul:
    case OpKind::add: return true;
    case OpKind::head_norm: return n.input_stride == 0;   // heads that lie apart: queries beside their gates
    default: return false;   // mixtures of experts and gated DeltaNet
  }
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
      if (!t.norm || n.input_stride) return ASSAY_REFUSED;
      const bool heads = n.op == OpKind::head_norm;
      const AssayNorm a{in(0), weights_.get(*n.vector), out(), rows, columns, heads ? n.heads : 0, n.head_dim, float(n.eps), 0};
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
    case OpKind::add: {
      const auto op = n.op == OpKind::add ? t.add : t.silu_mul;
      if (!op) return ASSAY_REFUSED;
      const AssayBinary a{in(0), in(1), out(), rows, columns};
      return op(d, &a);
    }
    case OpKind::sigmoid_mul:
    case OpKind::sigmoid:
    case OpKind::l2_norm:
    case OpKind::gated_norm:
    case OpKind::decay:
    case OpKind::conv:
    case OpKind::delta_rule:
    case OpKind::columns:
    case OpKind::hidden:
      return ASSAY_REFUSED;  // no module has them yet
    case OpKind::topk:
    case OpKind::topk_weights:
    case OpKind::expert_linear:
    case OpKind::expert_sum:
    case OpKind::gated_add: return ASSAY_REFUSED;   // abi.h has none of them: the CPU's
  }
  return ASSAY_REFUSED;
}

int DeviceBackend::run_step(Run& r, const DeviceStep& step, bool probe) {
  if (step.single()) return run_single(r, program_.nodes[size_t(step.nodes[0])], probe);
  return step.q_rope >= 0 ? run_heads(r, step, probe) : run_linears(r, step, probe);
}

}  // namespace assay

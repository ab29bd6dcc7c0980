#include "engine/device_plan.h"

#include <algorithm>

namespace assay {

std::vector<ValueId> DeviceStep::outputs(const Program& p) const {
  std::vector<ValueId> out;
  if ((!linears.empty() || !experts.empty()) && act < 0 && residual < 0) {
    for (int l : linears.empty() ? experts : linears) out.push_back(p.nodes[size_t(l)].output);
  } else if (nodes.size() == 2 && p.nodes[size_t(nodes[1])].op == OpKind::topk_weights) {
    for (int n : nodes) out.push_back(p.nodes[size_t(n)].output);
  } else if (q_rope >= 0) {
    out.push_back(p.nodes[size_t(q_rope)].output);
    if (attention >= 0) out.push_back(p.nodes[size_t(attention)].output);
  } else if (p.nodes[size_t(nodes.back())].output != kNoValue) {
    out.push_back(p.nodes[size_t(nodes.back())].output);
  }
  return out;
}

namespace {

class Planner {
 public:
  Planner(const Program& p, const StepOptions& o) : p_(p), o_(o), uses_(p.values.size(), 0) {
    for (const Node& n : p.nodes)
      for (ValueId v : n.inputs) uses_[size_t(v)]++;
    for (ValueId v : {p.hidden, p.mtp_hidden})
      if (v != kNoValue) uses_[size_t(v)]++;   // the host reads it
  }

  std::vector<DeviceStep> run() {
    std::vector<DeviceStep> out;
    for (int i = 0; i < int(p_.nodes.size());) {
      DeviceStep step;
      step.nodes = {i};
      if (o_.fused)
        for (DeviceStep& candidate : candidates(i))
          if (!o_.supported || o_.supported(candidate)) {
            step = std::move(candidate);
            break;
          }
      i = step.nodes.back() + 1;
      out.push_back(std::move(step));
    }
    return out;
  }

 private:
  const Node* at(int i, OpKind op) const {
    if (i >= int(p_.nodes.size())) return nullptr;
    const Node& n = p_.nodes[size_t(i)];
    return n.op == op && !n.replacement ? &n : nullptr;
  }
  /// Whether `count` readers, all inside the group, are all that a value has.
  bool inner(ValueId v, int count) const { return uses_[size_t(v)] == count; }

  /// Linears from i on that read `input` and can share a launch: one type, one width, the same rows.
  std::vector<int> linears_of(int i, ValueId input) const {
    std::vector<int> out;
    for (int k = i; out.size() < 3; k++) {
      const Node* n = at(k, OpKind::linear);
      if (!n || n->inputs[0] != input) break;
      const Node& first = p_.nodes[size_t(i)];
      if (n->weight->type != first.weight->type || n->requested_rows_only != first.requested_rows_only) break;
      out.push_back(k);
    }
    return out;
  }

  static DeviceStep linear_step(int norm, const std::vector<int>& linears, int act = -1, int residual = -1) {
    DeviceStep s;
    if (norm >= 0) s.nodes.push_back(norm);
    s.nodes.insert(s.nodes.end(), linears.begin(), linears.end());
    if (act >= 0) s.nodes.push_back(act);
    if (residual >= 0) s.nodes.push_back(residual);
    s.norm = norm;
    s.linears = linears;
    s.act = act;
    s.residual = residual;
    return s;
  }

  /// silu_mul right behind gate and up, which nothing else reads; -1: none.
  int act_behind(const std::vector<int>& linears) const {
    if (!o_.gated || linears.size() != 2) return -1;
    const int i = linears[1] + 1;
    const Node* n = at(i, OpKind::silu_mul);
    if (!n) return -1;
    const Node &gate = p_.nodes[size_t(linears[0])], &up = p_.nodes[size_t(linears[1])];
    const bool wired = n->inputs[0] == gate.output && n->inputs[1] == up.output && gate.weight->rows == up.weight->rows &&
                       !gate.vector && !up.vector;
    return wired && inner(gate.output, 1) && inner(up.output, 1) ? i : -1;
  }
  /// add right behind a linear, whose value nothing else reads; -1: none.
  int residual_behind(int linear) const {
    const Node* n = at(linear + 1, OpKind::add);
    const Node& l = p_.nodes[size_t(linear)];
    if (!n || l.requested_rows_only || n->inputs[0] == n->inputs[1]) return -1;
    return std::count(n->inputs.begin(), n->inputs.end(), l.output) == 1 && inner(l.output, 1) ? linear + 1 : -1;
  }

  /// [q_norm, k_norm,] q_rope, k_rope, kv_store from i on.
  bool heads_step(int i, DeviceStep& s) const {
    const Node *qn = at(i, OpKind::head_norm), *kn = qn ? at(i + 1, OpKind::head_norm) : nullptr;
    if (qn && !kn) return false;
    const int r = qn ? i + 2 : i;
    const Node *q = at(r, OpKind::rope), *k = at(r + 1, OpKind::rope), *store = at(r + 2, OpKind::kv_store);
    if (!q || !k || !store || store->inputs[0] != k->output || !inner(k->output, 1)) return false;
    if (qn && (q->inputs[0] != qn->output || k->inputs[0] != kn->output || !inner(qn->output, 1) || !inner(kn->output, 1) ||
               qn->eps != kn->eps || qn->input_stride || kn->input_stride))
      return false;
    for (int n = i; n <= r + 2; n++) s.nodes.push_back(n);
    s.q_rope = r;
    return true;
  }

  /// A gated DeltaNet's recurrence with what makes its operands of the convolution.
  void recurrence_step(int i, std::vector<DeviceStep>& out) const {
    const Node *q = at(i, OpKind::l2_norm), *k = at(i + 1, OpKind::l2_norm), *v = at(i + 2, OpKind::columns), *beta = at(i + 3, OpKind::sigmoid),
               *decay = at(i + 4, OpKind::decay), *rule = at(i + 5, OpKind::delta_rule);
    if (!q || !k || !v || !beta || !decay || !rule) return;
    const ValueId conv = q->inputs[0];
    const int64_t keys = rule->k_heads * rule->k_dim;
    if (rule->inputs != std::vector<ValueId>{q->output, k->output, v->output, beta->output, decay->output}) return;
    if (k->inputs[0] != conv || v->inputs != std::vector<ValueId>{conv} || q->input_offset != 0 || k->input_offset != keys || !q->scaled ||
        k->scaled || v->runs.size() != 1 || v->runs[0].from != 2 * keys || v->runs[0].count != 1)
      return;
    for (const Node* n : {q, k, v, beta, decay})
      if (!inner(n->output, 1)) return;
    DeviceStep s;
    for (int n = i; n <= i + 5; n++) s.nodes.push_back(n);
    s.recurrence = i + 5;
    out.push_back(std::move(s));
  }

  /// Of a mixture of experts: choosing and weighing; gate and up, with their act where passes have one row; a sum and what it is
  /// added to.
  void mixture_steps(int i, std::vector<DeviceStep>& out) const {
    const auto step = [&](int last) {
      DeviceStep s;
      for (int n = i; n <= last; n++) s.nodes.push_back(n);
      return s;
    };
    if (const Node *topk = at(i, OpKind::topk), *w = topk ? at(i + 1, OpKind::topk_weights) : nullptr;
        w && w->inputs[0] == topk->inputs[0] && w->inputs[1] == topk->output)
      out.push_back(step(i + 1));
    if (const Node *gate = at(i, OpKind::expert_linear), *up = gate ? at(i + 1, OpKind::expert_linear) : nullptr;
        up && up->inputs == gate->inputs && up->weight->type == gate->weight->type) {
      const Node* act = o_.gated ? at(i + 2, OpKind::silu_mul) : nullptr;
      DeviceStep both = step(i + 1);
      both.experts = {i, i + 1};
      if (act && act->inputs[0] == gate->output && act->inputs[1] == up->output && gate->weight->rows == up->weight->rows &&
          inner(gate->output, 1) && inner(up->output, 1)) {
        out.push_back(both);
        out.back().nodes.push_back(i + 2);
        out.back().act = i + 2;
      }
      out.push_back(std::move(both));
    }
    const Node* sum = at(i, OpKind::expert_sum) ? at(i, OpKind::expert_sum) : at(i, OpKind::gated_add);
    const Node* add = sum ? at(i + 1, OpKind::add) : nullptr;
    if (add && add->inputs[0] != add->inputs[1] && std::count(add->inputs.begin(), add->inputs.end(), sum->output) == 1 &&
        inner(sum->output, 1)) {
      out.push_back(step(i + 1));
      out.back().residual = i + 1;
    }
  }

  /// Groups that begin with node i, largest first.
  std::vector<DeviceStep> candidates(int i) const {
    std::vector<DeviceStep> out;
    if (const Node* norm = at(i, OpKind::rms_norm)) {
      const std::vector<int> linears = linears_of(i + 1, norm->output);
      if (!linears.empty() && inner(norm->output, int(linears.size()))) {
        if (const int act = act_behind(linears); act >= 0) out.push_back(linear_step(i, linears, act));
        out.push_back(linear_step(i, linears));
      }
    }
    if (const Node* first = at(i, OpKind::linear)) {
      const std::vector<int> linears = linears_of(i, first->inputs[0]);
      if (const int act = act_behind(linears); act >= 0) out.push_back(linear_step(-1, linears, act));
      if (linears.size() > 1) out.push_back(linear_step(-1, linears));
      if (const int residual = residual_behind(i); residual >= 0) out.push_back(linear_step(-1, {i}, -1, residual));
    }
    mixture_steps(i, out);
    recurrence_step(i, out);
    DeviceStep heads;
    if (heads_step(i, heads)) {
      const int behind = heads.nodes.back() + 1;
      if (const Node* a = at(behind, OpKind::attention); a && a->inputs[0] == p_.nodes[size_t(heads.q_rope)].output) {
        out.push_back(heads);
        out.back().nodes.push_back(behind);
        out.back().attention = behind;
      }
      out.push_back(std::move(heads));
    }
    return out;
  }

  const Program& p_;
  const StepOptions& o_;
  std::vector<int> uses_;
};

}  // namespace

std::vector<DeviceStep> plan_steps(const Program& program, const StepOptions& options) {
  return Planner(program, options).run();
}

}  // namespace assay

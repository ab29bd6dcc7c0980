// Faults of mixtures of experts: which branch runs, who is chosen, with what weight, by which matrix.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "conformance/faults/faults.h"
#include "conformance/faults/plants.h"
#include "engine/numerics.h"
#include "engine/replay.h"

namespace assay {
namespace {

using Inner = std::function<void(NodeContext&)>;

int last_mixture(Engine& e) {
  int layer = -1;
  for (const Node& n : e.program().nodes)
    if (n.op == OpKind::expert_sum) layer = std::max(layer, n.layer);
  return layer;
}

/// A11: the dense branch on a layer of experts: expert 0 alone, no router.
void dense_ffn(Engine& e) {
  Program& p = e.plantable_program();
  CpuBackend* backend = &e.plantable_backend();
  int places = 0;
  for (int layer = 0; layer < int(e.model().config.layers); layer++) {
    Node* router = p.find(layer, "router_logits");
    if (!router) continue;
    places++;
    const ValueId h = router->inputs[0], routed = p.find(layer, "moe_out")->output, down = p.find(layer, "expert_down_proj")->output;
    for (auto [from, to] : {std::pair{"expert_gate_proj", "gate_proj"}, {"expert_up_proj", "up_proj"}, {"expert_act", "ffn_act"},
                            {"expert_down_proj", "down_proj"}}) {
      Node* n = p.find(layer, from);
      Value& v = p.values[size_t(n->output)];
      v.columns /= e.model().config.experts_per_token;
      v.phase = n->phase = to;
      n->variant = "dense-ffn";
      std::shared_ptr<const Matrix> own;
      if (n->weight) {
        own = std::make_shared<const Matrix>(expert_of(*n->weight, n->experts, 0));
        n->op = OpKind::linear;
        n->weight = own.get();
        n->inputs = {n->inputs[0] == h ? h : n->inputs[0]};
      }
      n->replacement = [own, backend](NodeContext& c) { backend->run(c); };
    }
    p.find(layer, "ffn_residual")->inputs[1] = down;
    std::erase_if(p.nodes, [&](const Node& n) {
      return n.layer == layer && (n.output == routed || n.phase.starts_with("router_"));
    });
  }
  if (places == 0) throw NoPlace("dense-ffn");
}

/// A21: in the last layer each expert's rows begin one row too late.
void last_layer_stride(Engine& e) {
  const int layer = last_mixture(e);
  if (layer < 0) throw NoPlace("last-layer-stride");
  wrap_node(e, *e.plantable_program().find(layer, "expert_up_proj"), [](NodeContext& c, const Inner& inner) {
    Node other = c.node;
    Matrix moved = *c.node.weight;
    const int64_t own = moved.rows / c.node.experts, k = c.node.chosen;
    inner(c);
    // The product of the next row: outputs move up by one, the last one is the next expert's first.
    Matrix next = moved;
    other.weight = &next;
    std::vector<float> ids(c.inputs[1], c.inputs[1] + c.rows * k);
    for (float& id : ids) id = float((int64_t(id) + 1) % c.node.experts);
    std::vector<float> neighbour(size_t(c.rows * c.columns));
    NodeContext n{other, c.program, c.config, c.batch, c.rows, {c.inputs[0], ids.data()}, neighbour.data(), c.columns, c.ids, c.places, c.positions, c.cache, c.rope};
    inner(n);
    for (int64_t pair = 0; pair < c.rows * k; pair++) {
      float* y = c.output + pair * own;
      std::memmove(y, y + 1, size_t(own - 1) * sizeof(float));
      y[own - 1] = neighbour[size_t(pair * own)];
    }
  });
  e.plantable_program().find(layer, "expert_up_proj")->variant = "last-layer-stride";
}

/// A28: the halves of a merged gate and up projection are taken for each other.
void gate_up_swapped(Engine& e) {
  Program& p = e.plantable_program();
  CpuBackend* backend = &e.plantable_backend();
  int places = 0;
  for (int layer = 0; layer < int(e.model().config.layers); layer++) {
    Node *gate = p.find(layer, "expert_gate_proj"), *up = p.find(layer, "expert_up_proj");
    if (!gate) continue;
    std::swap(gate->weight, up->weight);
    for (Node* n : {gate, up}) {
      n->replacement = [backend](NodeContext& c) { backend->run(c); };
      n->variant = "gate-up-swapped";
    }
    places++;
  }
  if (places == 0) throw NoPlace("gate-up-swapped");
}

/// D14: of equal logits the higher id is chosen.
void tie_higher_id(const TopkArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    std::vector<float> back(size_t(a.experts)), ids(size_t(a.chosen));
    for (int64_t i = 0; i < a.experts; i++) back[size_t(i)] = a.logits[t * a.experts + a.experts - 1 - i];
    kernels(Isa::scalar).topk({back.data(), ids.data(), a.experts, a.chosen}, 0, 1);
    for (int64_t r = 0; r < a.chosen; r++) a.ids[t * a.chosen + r] = ids[size_t(r)] < 0 ? -1.0f : float(a.experts - 1) - ids[size_t(r)];
  }
}

/// The row's best expert that was not chosen takes the place of the last that was.
void swap_last(NodeContext& c, int64_t row) {
  const Node& n = c.node;
  const float* x = c.inputs[0] + row * n.experts;
  float* ids = c.output + row * n.chosen;
  int64_t best = -1;
  for (int64_t i = 0; i < n.experts; i++)
    if (std::find(ids, ids + n.chosen, float(i)) == ids + n.chosen && (best < 0 || x[i] > x[best])) best = i;
  if (best >= 0) ids[n.chosen - 1] = float(best);
}

/// How much the last chosen expert of a row is ahead of the best of the others.
float margin(const NodeContext& c, int64_t row) {
  const Node& n = c.node;
  const float* x = c.inputs[0] + row * n.experts;
  std::vector<float> order(x, x + n.experts);
  std::sort(order.begin(), order.end(), std::greater<>());
  return n.chosen < n.experts ? order[size_t(n.chosen - 1)] - order[size_t(n.chosen)] : std::numeric_limits<float>::infinity();
}

/// D14: at one layer two experts are swapped in every row.
void experts_swapped(Engine& e) {
  Node* n = e.plantable_program().find(1, "router_topk_ids");
  if (!n || n->chosen == n->experts) throw NoPlace("experts-swapped");
  wrap_node(e, *n, [](NodeContext& c, const Inner& inner) {
    inner(c);
    for (int64_t r = 0; r < c.rows; r++) swap_last(c, r);
  });
  n->variant = "experts-swapped";
}

/// D15: the chosen weights are divided by their sum where they should not be, and the other way round.
void norm_otherwise(Engine& e) {
  int places = 0;
  CpuBackend* backend = &e.plantable_backend();
  for (Node& n : e.plantable_program().nodes)
    if (n.op == OpKind::topk_weights) {
      n.normalised = !n.normalised;
      n.replacement = [backend](NodeContext& c) { backend->run(c); };
      n.variant = "norm-otherwise";
      places++;
    }
  if (places == 0) throw NoPlace("norm-otherwise");
}

/// D15: the division by the sum of the chosen, but by the sum before the last one came to it.
void weights_sum_short(const TopkWeightsArgs& a, int64_t begin, int64_t end) {
  TopkWeightsArgs plain = a;
  plain.normalised = false;
  kernels(Isa::scalar).topk_weights(plain, begin, end);
  for (int64_t t = begin; t < end && a.normalised; t++) {
    float total = 0;
    for (int64_t r = 0; r + (a.chosen > 1) < a.chosen; r++) total = add_f32(total, a.y[t * a.chosen + r]);
    for (int64_t r = 0; r < a.chosen; r++) a.y[t * a.chosen + r] = div_f32(a.y[t * a.chosen + r], total);
  }
}

/// D16: the router's logits are rounded to bf16 before the choice.
void router_bf16(Engine& e) {
  replace(e, OpKind::topk, "router-bf16", [](NodeContext& c, CpuBackend& b) {
    std::vector<float> rounded(c.inputs[0], c.inputs[0] + c.rows * c.node.experts);
    for (float& x : rounded) x = f32_of_bf16(bf16_of_f32(x));
    run_on(c, b, rounded);
  });
}

/// E8: of all rows of prompt 5's prefill (in trained-moe the nearest of all is there) the one whose choice is nearest, at layer
/// 2, goes to the other expert.
void flip_nearest(Engine& e, const char* name) {
  Node* n = e.plantable_program().find(2, "router_topk_ids");
  if (!n || n->chosen == n->experts) throw NoPlace(name);
  wrap_node(e, *n, [](NodeContext& c, const Inner& inner) {
    inner(c);
    if (c.batch.pass != Pass::prefill || c.batch.segments[0].prompt != 5) return;
    int64_t nearest = 0;
    for (int64_t r = 1; r < c.rows; r++)
      if (margin(c, r) < margin(c, nearest)) nearest = r;
    swap_last(c, nearest);
  });
  n->variant = name;
}

/// E8: and behind the flip a layer's residual leaves out its last row of the pass.
void flip_hides_fault(Engine& e) {
  flip_nearest(e, "flip-hides-fault");
  Node* n = e.plantable_program().find(3, "attn_residual");
  if (!n) throw NoPlace("flip-hides-fault");
  wrap_node(e, *n, [](NodeContext& c, const Inner& inner) {
    inner(c);
    float* last = c.output + (c.rows - 1) * c.columns;
    if (c.batch.pass == Pass::prefill && c.batch.segments[0].prompt == 5) last[3] = last[3] * 1.01f;
  });
  n->variant = "flip-hides-fault";
}

}  // namespace

void add_moe_faults(std::vector<Fault>& out) {
  out.push_back({"A11/dense-ffn", "the dense FFN branch runs on layers of experts", How::program, "", dense_ffn});
  out.push_back({"A21/last-layer-stride", "in the last layer each expert's rows begin one row too late", How::program, "", last_layer_stride});
  out.push_back({"A28/gate-up-swapped", "the halves of a merged gate and up projection are taken for each other", How::program, "", gate_up_swapped});
  Fault tie{"D14/tie-higher-id", "of equal router logits the higher id is chosen", How::kernel,
            "the tiny models have no ties: only the kernel's own cases do"};
  tie.kernels = [](Kernels& k) { k.topk = tie_higher_id; };
  out.push_back(tie);
  out.push_back({"D14/experts-swapped", "at one layer the last chosen expert and the best of the others are swapped", How::program,
                 "one verdict with its regret; what other experts made is not compared, and no wall of red", experts_swapped});
  out.push_back({"D15/norm-otherwise", "norm_topk_prob the other way", How::program, "", norm_otherwise});
  Fault sum{"D15/sum-short", "the chosen weights are divided by the sum of all but the last", How::kernel};
  sum.kernels = [](Kernels& k) { k.topk_weights = weights_sum_short; };
  out.push_back(sum);
  out.push_back({"D16/router-bf16", "router logits are rounded to bf16 before the choice", How::value, "", router_bf16});
  out.push_back({"E8/flip-alone", "one row near a tie goes to the other expert", How::program,
                 "a baseline that runs with the target's experts judges all the rest: the flip is counted, with its regret",
                 [](Engine& e) { flip_nearest(e, "flip-alone"); }});
  out.push_back({"E8/flip-hides-fault", "one row near a tie goes to the other expert, and behind it a residual is wrong", How::program,
                 "free-running comparisons end at the flip; with forced experts the fault behind it is found", flip_hides_fault});
}

}  // namespace assay

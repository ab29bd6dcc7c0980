// Faults of wiring, order and options: the program's nodes are rewritten, or get another body.
#include <cmath>
#include <cstring>

#include "conformance/faults/faults.h"
#include "conformance/faults/plants.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

/// Runs the backend's own kernel on columns that were moved, and moves its output back: new column j was old from[j].
void run_permuted(NodeContext& c, CpuBackend& backend, const std::vector<int64_t>& from) {
  const int64_t n = int64_t(from.size());
  std::vector<float> moved(c.rows * n);
  for (int64_t r = 0; r < c.rows; r++)
    for (int64_t j = 0; j < n; j++) moved[r * n + j] = c.inputs[0][r * n + from[j]];
  run_on(c, backend, moved);
  std::vector<float> row(n);
  for (int64_t r = 0; r < c.rows; r++) {
    std::memcpy(row.data(), c.output + r * n, n * sizeof(float));
    for (int64_t j = 0; j < n; j++) c.output[r * n + from[j]] = row[j];
  }
}

/// B3: pairs (2j, 2j+1) instead of (j, j + R/2).
void rope_pairs(Engine& e) {
  replace(e, OpKind::rope, "rope-pairs", [](NodeContext& c, CpuBackend& b) {
    const int64_t half = c.config.rope.rotary / 2, d = c.node.head_dim;
    std::vector<int64_t> from(c.node.heads * d);
    for (int64_t h = 0; h < c.node.heads; h++)
      for (int64_t j = 0; j < d; j++)
        from[h * d + j] = h * d + (j < half ? 2 * j : j < 2 * half ? 2 * (j - half) + 1 : j);
    run_permuted(c, b, from);
  });
}

/// B11: the norm's sum of squares runs straight through the row instead of over 256 lanes.
void norm_order(Engine& e) {
  replace(e, OpKind::rms_norm, "norm-order", [](NodeContext& c, CpuBackend&) {
    for (int64_t r = 0; r < c.rows; r++) {
      const float* x = c.inputs[0] + r * c.columns;
      float sum = 0;
      for (int64_t k = 0; k < c.columns; k++) sum = std::fma(x[k], x[k], sum);
      const float s = 1.0f / std::sqrt(sum / float(c.columns) + float(c.node.eps));
      for (int64_t k = 0; k < c.columns; k++) c.output[r * c.columns + k] = (x[k] * s) * (*c.node.vector)[k];
    }
  });
}

/// D17: the embedding is used as lm_head though the model has one of its own.
void lm_head_ignored(Engine& e) {
  Node* n = e.plantable_program().find(-1, "logits");
  if (!n || e.model().config.tied) throw NoPlace("lm-head-ignored");
  n->weight = &e.model().weights.embed;
  CpuBackend* backend = &e.plantable_backend();
  n->replacement = [backend](NodeContext& c) { backend->run(c); };
  n->variant = "lm-head-ignored";
}

/// D19: query head h reads kv head h mod kv_heads (tile) instead of h / group (repeat).
void gqa_tile(Engine& e) {
  const Config& m = e.model().config;
  if (m.kv_heads == 1 || m.kv_heads == m.heads) throw NoPlace("gqa-tile");
  replace(e, OpKind::attention, "gqa-tile", [](NodeContext& c, CpuBackend& b) {
    const int64_t kv = c.config.kv_heads, group = c.node.heads / kv, d = c.node.head_dim;
    std::vector<int64_t> from(c.node.heads * d);
    for (int64_t h = 0; h < c.node.heads; h++)
      for (int64_t j = 0; j < d; j++) from[((h % kv) * group + h / kv) * d + j] = h * d + j;
    run_permuted(c, b, from);
  });
}

/// A12, A15: 8-bit activations where 16 were asked for, in all passes or in prefill alone.
void s8_activations(Engine& e, const std::string& fault, bool prefill_only) {
  if (e.options().activations != Activations::s16) throw NoPlace(fault);
  auto coarse = std::make_shared<CpuBackend>(e.options().isa, e.options().threads);
  coarse->prepare(e.program(), Activations::s8);
  CpuBackend* own = &e.plantable_backend();
  int places = 0;
  for (Node& n : e.plantable_program().nodes) {
    if (n.op != OpKind::linear || !is_quantised(n.weight->type)) continue;
    n.replacement = [coarse, own, prefill_only](NodeContext& c) {
      CpuBackend& b = prefill_only && c.batch.pass != Pass::prefill ? *own : *coarse;
      b.begin_pass();  // neither backend sees every node: what it quantised last may be another value by now
      b.run(c);
    };
    n.variant = fault;
    places++;
  }
  if (places == 0) throw NoPlace(fault);
}

/// E6: the norms' epsilon of another family.
void other_eps(Engine& e) {
  int places = 0;
  for (Node& n : e.plantable_program().nodes)
    if (n.eps == 1e-6) {
      n.eps = 1e-5;
      places++;
    }
  if (places == 0) throw NoPlace("eps-1e-5");
}

/// A33: what was to lie behind a gate already runs: the norm multiplies by its weight first. (x*w)*s and (x*s)*w agree
/// within an ULP, so that no tolerance tells them apart.
void gate_leaks_norm(Engine& e) {
  replace(e, OpKind::rms_norm, "gate-leaks-norm", [](NodeContext& c, CpuBackend& b) {
    b.run(c);
    const std::vector<float>& w = *c.node.vector;
    for (int64_t r = 0; r < c.rows; r++) {
      const float* x = c.inputs[0] + r * c.columns;
      double sum = 0;
      for (int64_t k = 0; k < c.columns; k++) sum += double(x[k]) * x[k];
      const float s = float(1 / std::sqrt(sum / double(c.columns) + c.node.eps));
      for (int64_t k = 0; k < c.columns; k++) c.output[r * c.columns + k] = (x[k] * w[size_t(k)]) * s;
    }
  });
}

/// A33: the scores' scale already moved to the queries, as the gated kernel wants them.
void gate_leaks_scale(Engine& e) {
  replace(e, OpKind::attention, "gate-leaks-scale", [](NodeContext& c, CpuBackend& b) {
    const float scale = float(1.0 / std::sqrt(double(c.node.head_dim))), back = 1.0f / scale;
    std::vector<float> q(c.inputs[0], c.inputs[0] + c.rows * c.columns);
    for (float& x : q) x = x * scale * back;
    run_on(c, b, q);
  });
}

/// B15: the changed code sits behind an early return. A run that asks for the scalar kernels gets the fast ones: its
/// bytes are right, and whoever compares the two compares one with itself.
void early_return(Engine& e) {
  if (e.options().isa != Isa::scalar || best_isa() == Isa::scalar)
    return;  // the other side of the A/B is as it should be
  auto fast = std::make_shared<CpuBackend>(best_isa(), e.options().threads);
  fast->prepare(e.program(), e.options().activations);
  for (Node& n : e.plantable_program().nodes) {
    n.variant = fast->variant(n);  // the trace says which code ran, and this ran
    n.replacement = [fast](NodeContext& c) {
      fast->begin_pass();
      fast->run(c);
    };
  }
}

}  // namespace

void add_program_faults(std::vector<Fault>& out) {
  out.push_back({"B3/rope-pairs", "RoPE turns pairs (2j, 2j+1) instead of (j, j + R/2)", How::program, "", rope_pairs});
  out.push_back({"B11/norm-order", "the RMS norm's sum runs in another order", How::kernel, "", norm_order});
  out.push_back({"D17/lm-head-ignored", "the embedding is used as lm_head though the model has its own", How::program,
                 "", lm_head_ignored});
  out.push_back(
      {"D19/gqa-tile", "query head h reads kv head h mod kv_heads instead of h / group", How::program, "", gqa_tile});
  Fault s8{"A12/s8-activations", "8-bit activations where 16-bit ones were asked for", How::option,
           "greedy text survives it, so that greedy text must not be its judge",
           [](Engine& e) { s8_activations(e, "s8-activations", false); }};
  s8.slow = true;
  out.push_back(s8);
  Fault prefill{"A15/s8-prefill", "8-bit activations in prefill alone", How::option,
                "told by the likelihood of each kind of pass",
                [](Engine& e) { s8_activations(e, "s8-prefill", true); }};
  prefill.slow = true;
  out.push_back(prefill);
  out.push_back({"E6/eps-1e-5", "the norms add 1e-5 instead of 1e-6", How::option, "", other_eps});
  const char* kGate =
      "a first step that should change nothing is held to byte equality: its values are within every tolerance";
  out.push_back({"A33/gate-leaks-norm", "with the gate off, the norm already multiplies by its weight first",
                 How::program, kGate, gate_leaks_norm});
  out.push_back({"A33/gate-leaks-scale", "with the gate off, queries already pass through the new scaling",
                 How::program, kGate, gate_leaks_scale});
  out.push_back({"B15/early-return", "the changed code sits behind an early return: the old code runs on both sides",
                 How::program,
                 "equal bytes of two builds prove nothing where the trace does not show that the changed code ran",
                 early_return});
}

}  // namespace assay

#include "conformance/faults/faults.h"

#include <cmath>
#include <cstring>

#include "conformance/faults/kernel_faults.h"
#include "dumps/error.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

/// Gives every node of a kind (of one layer, or of all: layer < -1) a body that runs instead of the backend's kernel.
int replace(Engine& engine, OpKind op, const char* variant, std::function<void(NodeContext&, CpuBackend&)> body) {
  int replaced = 0;
  CpuBackend* backend = &engine.plantable_backend();
  for (Node& n : engine.plantable_program().nodes)
    if (n.op == op) {
      n.replacement = [body, backend](NodeContext& c) { body(c, *backend); };
      n.variant = variant;
      replaced++;
    }
  return replaced;
}

void require(int places, const char* fault) {
  if (places == 0) throw Error(ErrorKind::usage, fault, "this model has no place for the fault: it was not planted");
}

/// Runs the backend's own kernel on columns that were moved, and moves its output back: new column j was old column from[j].
void run_permuted(NodeContext& c, CpuBackend& backend, const std::vector<int64_t>& from) {
  const int64_t n = int64_t(from.size());
  std::vector<float> moved(c.rows * n);
  for (int64_t r = 0; r < c.rows; r++)
    for (int64_t j = 0; j < n; j++) moved[r * n + j] = c.inputs[0][r * n + from[j]];
  const float* input = c.inputs[0];
  c.inputs[0] = moved.data();
  backend.run(c);
  c.inputs[0] = input;
  std::vector<float> row(n);
  for (int64_t r = 0; r < c.rows; r++) {
    std::memcpy(row.data(), c.output + r * n, n * sizeof(float));
    for (int64_t j = 0; j < n; j++) c.output[r * n + from[j]] = row[j];
  }
}

/// B3: pairs (2j, 2j+1) instead of (j, j + R/2).
void rope_pairs(Engine& e) {
  require(replace(e, OpKind::rope, "rope-pairs", [](NodeContext& c, CpuBackend& b) {
    const int64_t half = c.config.rope.rotary / 2, d = c.node.head_dim;
    std::vector<int64_t> from(c.node.heads * d);
    for (int64_t h = 0; h < c.node.heads; h++)
      for (int64_t j = 0; j < d; j++)
        from[h * d + j] = h * d + (j < half ? 2 * j : j < 2 * half ? 2 * (j - half) + 1 : j);
    run_permuted(c, b, from);
  }), "rope-pairs");
}

/// B11: the norm's sum of squares runs straight through the row instead of over 256 lanes.
void norm_order(Engine& e) {
  require(replace(e, OpKind::rms_norm, "norm-order", [](NodeContext& c, CpuBackend&) {
    for (int64_t r = 0; r < c.rows; r++) {
      const float* x = c.inputs[0] + r * c.columns;
      float sum = 0;
      for (int64_t k = 0; k < c.columns; k++) sum = std::fma(x[k], x[k], sum);
      const float s = 1.0f / std::sqrt(sum / float(c.columns) + float(c.node.eps));
      for (int64_t k = 0; k < c.columns; k++) c.output[r * c.columns + k] = (x[k] * s) * (*c.node.vector)[k];
    }
  }), "norm-order");
}

/// D17: the embedding is used as lm_head though the model has one of its own.
void lm_head_ignored(Engine& e) {
  Node* n = e.plantable_program().find(-1, "logits");
  if (!n || e.model().config.tied) require(0, "lm-head-ignored");
  n->weight = &e.model().weights.embed;
  CpuBackend* backend = &e.plantable_backend();
  n->replacement = [backend](NodeContext& c) { backend->run(c); };
  n->variant = "lm-head-ignored";
}

/// D19: query head h reads kv head h mod kv_heads (tile) instead of h / group (repeat).
void gqa_tile(Engine& e) {
  const Config& m = e.model().config;
  if (m.kv_heads == 1 || m.kv_heads == m.heads) require(0, "gqa-tile");
  require(replace(e, OpKind::attention, "gqa-tile", [](NodeContext& c, CpuBackend& b) {
    const int64_t kv = c.config.kv_heads, group = c.node.heads / kv, d = c.node.head_dim;
    std::vector<int64_t> from(c.node.heads * d);
    for (int64_t h = 0; h < c.node.heads; h++)
      for (int64_t j = 0; j < d; j++) from[((h % kv) * group + h / kv) * d + j] = h * d + j;
    run_permuted(c, b, from);
  }), "gqa-tile");
}

bool is_quantised_linear(const Node& n) { return n.op == OpKind::linear && is_quantised(n.weight->type); }

/// Gives every linear node with quantised weights a body.
void replace_quantised(Engine& e, const std::string& fault, const std::function<void(NodeContext&)>& body) {
  int places = 0;
  if (e.options().activations != Activations::f32)
    for (Node& n : e.plantable_program().nodes)
      if (is_quantised_linear(n)) {
        n.replacement = body;
        n.variant = fault;
        places++;
      }
  require(places, fault.c_str());
}

/// A faulty kernel in a whole model: it runs every quantised linear node, whatever instruction set the rest runs on.
void plant_kernels(Engine& e, const std::string& fault) {
  const Kernels planted = planted_kernels(fault);
  const Activations kind = e.options().activations;
  replace_quantised(e, fault, [planted, kind](NodeContext& c) {
    const Matrix& w = *c.node.weight;
    const int code_bytes = code_bytes_for(planted.isa, w.type, kind);
    std::vector<std::byte> codes(size_t(c.rows * w.columns * code_bytes));
    std::vector<float> scales(size_t(c.rows * w.columns / 32));
    std::vector<int32_t> sums(2 * scales.size());
    const QuantisedRows x{kind, code_bytes, c.rows, w.columns, codes.data(), scales.data(), sums.data()};
    planted.quantise({c.inputs[0], x}, 0, int64_t(scales.size()));
    planted.quant_linear({w, nullptr, x, c.node.vector ? c.node.vector->data() : nullptr, c.output}, 0, (w.rows + 15) / 16);
  });
}

/// A12, A15: 8-bit activations where 16 were asked for, in all passes or in prefill alone.
void s8_activations(Engine& e, const char* fault, bool prefill_only) {
  if (e.options().activations != Activations::s16) require(0, fault);
  auto coarse = std::make_shared<CpuBackend>(e.options().isa, e.options().threads);
  coarse->prepare(e.program(), Activations::s8);
  CpuBackend* own = &e.plantable_backend();
  replace_quantised(e, fault, [coarse, own, prefill_only](NodeContext& c) {
    CpuBackend& b = prefill_only && c.batch.pass != Pass::prefill ? *own : *coarse;
    b.begin_pass();   // neither backend sees every node: what it quantised last may be another value by now
    b.run(c);
  });
}

/// E6: the norms' epsilon of another family.
void other_eps(Engine& e) {
  int places = 0;
  for (Node& n : e.plantable_program().nodes)
    if (n.eps == 1e-6) {
      n.eps = 1e-5;
      places++;
    }
  require(places, "eps-1e-5");
}

}  // namespace

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> out = {
      {"rope-pairs", "B3", "RoPE turns pairs (2j, 2j+1) instead of (j, j + R/2)", rope_pairs},
      {"norm-order", "B11", "the RMS norm's sum runs in another order", norm_order},
      {"lm-head-ignored", "D17", "the embedding is used as lm_head though the model has its own", lm_head_ignored},
      {"gqa-tile", "D19", "query head h reads kv head h mod kv_heads instead of h / group", gqa_tile},
      {"s8-activations", "A12", "8-bit activations where 16-bit ones were asked for",
       [](Engine& e) { s8_activations(e, "s8-activations", false); }, true},
      {"s8-prefill", "A15", "8-bit activations in prefill alone", [](Engine& e) { s8_activations(e, "s8-prefill", true); }, true},
      {"eps-1e-5", "E6", "the norms add 1e-5 instead of 1e-6", other_eps},
    };
    for (const KernelFault& f : kernel_faults())
      out.push_back({f.name, f.row, f.what, [name = f.name](Engine& e) { plant_kernels(e, name); }, false});
    return out;
  }();
  return all;
}

void plant(Engine& engine, const std::string& name) {
  std::string known;
  for (const Fault& f : faults()) {
    if (f.name == name) return f.apply(engine);
    known += (known.empty() ? "" : ", ") + f.name;
  }
  throw Error(ErrorKind::usage, "--plant", "unknown fault", "one of " + known, "\"" + name + "\"");
}

}  // namespace assay

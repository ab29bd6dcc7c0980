#include "conformance/faults/faults.h"

#include <set>

namespace assay {

std::string_view name_of(How h) {
  switch (h) {
    case How::program:
      return "program";
    case How::state:
      return "state";
    case How::value:
      return "value";
    case How::option:
      return "option";
    case How::kernel:
      return "kernel";
    case How::artifact:
      return "artifact";
    case How::comparator:
      return "comparator";
    case How::mutation:
      return "mutation";
  }
  return "?";
}

const std::vector<Fault>& faults() {
  static const std::vector<Fault> all = [] {
    std::vector<Fault> out;
    add_program_faults(out);
    add_state_faults(out);
    add_hybrid_faults(out);
    add_kernel_faults(out);
    add_tail_faults(out);
    add_artifact_faults(out);
    add_tokenizer_faults(out);
    add_comparator_faults(out);
    add_moe_faults(out);
    add_subject_faults(out);
    add_device_weight_faults(out);
    add_device_graph_faults(out);
    add_device_kernel_faults(out);
    std::set<std::string> names;
    for (const Fault& f : out)
      if (!names.insert(f.name()).second) throw Error(ErrorKind::internal, f.id, "two faults of the same name");
    return out;
  }();
  return all;
}

const Fault& fault_named(const std::string& name) {
  std::string known;
  for (const Fault& f : faults()) {
    if (f.name() == name || f.id == name) return f;
    known += (known.empty() ? "" : ", ") + f.name();
  }
  throw Error(ErrorKind::usage, "--plant", "unknown fault", "one of " + known, "\"" + name + "\"");
}

Kernels planted_kernels(const Fault& fault) {
  Kernels k = kernels(Isa::scalar);
  fault.kernels(k);
  return k;
}

namespace {

/// Whether a node runs one of the kernels that differ between the two tables.
bool runs_changed(const Node& n, Activations kind, const Kernels& a, const Kernels& b) {
  switch (n.op) {
    case OpKind::embed:
      return a.embed != b.embed;
    case OpKind::rms_norm:
      return a.rms_norm != b.rms_norm;
    case OpKind::head_norm:
      return a.head_norm != b.head_norm;
    case OpKind::linear:
      if (is_quantised(n.weight->type) && kind != Activations::f32)
        return a.quantise != b.quantise || a.quant_linear != b.quant_linear;
      return a.linear != b.linear;
    case OpKind::rope:
      return a.rope != b.rope;
    case OpKind::kv_store:
      return a.kv_store != b.kv_store;
    case OpKind::attention:
      return a.attention != b.attention;
    case OpKind::silu_mul:
      return a.silu_mul != b.silu_mul;
    case OpKind::add:
      return a.add != b.add;
    case OpKind::sigmoid_mul:
      return a.sigmoid_mul != b.sigmoid_mul;
    case OpKind::sigmoid:
      return a.sigmoid != b.sigmoid;
    case OpKind::l2_norm:
      return a.l2_norm != b.l2_norm;
    case OpKind::gated_norm:
      return a.gated_norm != b.gated_norm;
    case OpKind::decay:
      return a.decay != b.decay;
    case OpKind::conv:
      return a.conv != b.conv;
    case OpKind::delta_rule:
      return a.delta_rule != b.delta_rule;
    case OpKind::columns:
    case OpKind::hidden:
      return false;  // copies
    case OpKind::topk:
      return a.topk != b.topk;
    case OpKind::topk_weights:
      return a.topk_weights != b.topk_weights;
    case OpKind::expert_linear:
      if (is_quantised(n.weight->type) && kind != Activations::f32)
        return a.quantise != b.quantise || a.quant_linear != b.quant_linear;
      return a.linear != b.linear;
    case OpKind::expert_sum:
      return a.expert_sum != b.expert_sum;
    case OpKind::gated_add:
      return a.gated_add != b.gated_add;
  }
  return false;
}

/// Faulty kernels in a whole model, whatever instruction set the rest runs on.
void plant_kernels(Engine& e, const Fault& fault) {
  struct Planted {
    Kernels table;
    CpuBackend backend;
    Planted(const Kernels& t, int threads) : table(t), backend(table, threads) {}
  };
  const auto planted = std::make_shared<Planted>(planted_kernels(fault), e.options().threads);
  planted->backend.prepare(e.program(), e.options().activations);
  int places = 0;
  for (Node& n : e.plantable_program().nodes)
    if (runs_changed(n, e.options().activations, planted->table, kernels(Isa::scalar))) {
      n.replacement = [planted](NodeContext& c) {
        planted->backend
            .begin_pass();  // it does not see every node: what it quantised last may be another value by now
        planted->backend.run(c);
      };
      n.variant = fault.name();
      places++;
    }
  if (places == 0) throw NoPlace(fault.id);
}

}  // namespace

void plant(Engine& engine, const std::string& name) {
  const Fault& f = fault_named(name);
  if (f.engine) return f.engine(engine);
  if (f.kernels) return plant_kernels(engine, f);
  throw Error(ErrorKind::usage, "--plant", "is not planted into an engine: its own check judges it", "", f.id,
              "Next: assay faults --filter " + f.id);
}

}  // namespace assay

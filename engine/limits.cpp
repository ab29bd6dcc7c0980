#include "engine/limits.h"

namespace assay {
namespace {

Work work_of(const Program& program, const PassLoad& load, Activations activations) {
  Work w;
  for (const Node& n : program.nodes) {
    const NodeCost c = cost_of(n, program, load);
    if ((n.op != OpKind::linear && n.op != OpKind::expert_linear) || !is_quantised(n.weight->type) || activations == Activations::f32) {
      w.f32 += c.operations;
      continue;
    }
    const int64_t rows = n.requested_rows_only ? load.logit_rows : load.rows;
    const int64_t outputs = n.op == OpKind::linear ? n.weight->rows : n.chosen * (n.weight->rows / n.experts);
    const int64_t products = 2 * rows * outputs * n.weight->columns;
    w.int8 += activations == Activations::s16 ? 2 * products : products;
    w.f32 += c.operations - products;  // the bias
  }
  return w;
}

}  // namespace

// Tera-operations of dense matrices: where a vendor gives figures "with sparsity" they are halved. SXM boards at their
// full power; boost clocks: what runs for long is slower.
std::span<const KnownDevice> known_devices() {
  static constexpr KnownDevice kDevices[] = {
      {"h200", "NVIDIA H200 SXM", {4.8e12, 1979e12, 67e12}, 141e9, "NVIDIA H200 data sheet (INT8 3,958 with sparsity)"},
      {"h100", "NVIDIA H100 SXM", {3.35e12, 1979e12, 67e12}, 80e9, "NVIDIA H100 data sheet (INT8 3,958 with sparsity)"},
      {"a100", "NVIDIA A100 SXM 80GB", {2.039e12, 624e12, 19.5e12}, 80e9, "NVIDIA A100 data sheet"},
      {"l40s", "NVIDIA L40S", {0.864e12, 733e12, 91.6e12}, 48e9, "NVIDIA L40S data sheet"},
      {"rtx4090",
       "NVIDIA GeForce RTX 4090",
       {1.008e12, 660.6e12, 82.6e12},
       24e9,
       "NVIDIA Ada GPU architecture, appendix A"},
      {"rtx5090",
       "NVIDIA GeForce RTX 5090",
       {1.792e12, 838e12, 104.8e12},
       32e9,
       "NVIDIA RTX Blackwell GPU architecture, appendix A"},
  };
  return kDevices;
}

const KnownDevice* find_device(std::string_view name) {
  for (const KnownDevice& d : known_devices())
    if (d.name == name) return &d;
  return nullptr;
}

Bound Limits::bound(const NodeCost& cost, const Work& work, const Rates& rates) {
  Bound b;
  const auto take = [&](double amount, double rate, std::string_view by) {
    if (rate > 0 && amount / rate > b.seconds) b = {amount / rate, by};
  };
  take(double(cost.moved()), rates.bandwidth, "bytes");
  take(double(work.int8), rates.int8, "int8 products");
  take(double(work.f32), rates.f32, "f32 operations");
  return b;
}

Limits limits_of(const Program& program, int64_t context, int64_t prompt, KvType kv, int64_t batch,
                 Activations activations) {
  Limits l;
  l.context = context;
  l.batch = batch;
  l.prompt = prompt;
  const PassLoad decode{batch, batch, batch * context, batch * context, kv};
  const PassLoad prefill = PassLoad::of_sequence(0, prompt, kv);
  l.decode = cost_of(program, decode);
  l.prefill = cost_of(program, prefill);
  l.decode_work = work_of(program, decode, activations);
  l.prefill_work = work_of(program, prefill, activations);
  l.kv_bytes_per_position = l.decode.state_written / batch;
  return l;
}

}  // namespace assay

// The device's part of a plan: the backend itself, run on a device that counts.
#include <algorithm>
#include <map>
#include <set>

#include "dumps/error.h"
#include "engine/counting_device.h"
#include "engine/device_backend.h"
#include "engine/ops/common/rope_table.h"
#include "engine/plan_internal.h"

namespace assay {
namespace {

/// Addresses at which nothing lies: the device's weights tell matrices apart by them, and an outline's have none of
/// their own.
void give_addresses(Model& m) {
  uintptr_t next = uintptr_t(1) << 45;
  const auto give = [&](Matrix& w) {
    if (w.empty()) return;
    w.data = reinterpret_cast<const std::byte*>(next);
    next += (w.bytes() + 255) / 256 * 256;
  };
  give(m.weights.embed);
  for (size_t i = 0; i <= m.weights.layers.size(); i++) {
    LayerWeights& l = m.weights.layer(i);
    for (Matrix* w : {&l.q, &l.k, &l.v, &l.o, &l.gdn_qkv, &l.gdn_z, &l.gdn_b, &l.gdn_a, &l.gdn_out, &l.gate, &l.up, &l.down,
                      &l.router, &l.expert_gate, &l.expert_up, &l.expert_down, &l.shared_gate, &l.shared_up, &l.shared_down,
                      &l.shared_expert_gate})
      give(*w);
  }
  give(m.weights.mtp.fc);
  if (m.config.tied)
    m.weights.lm_head = m.weights.embed;
  else
    give(m.weights.lm_head);
}

/// Sequences [first, first + slots), each with `rows` rows from `position` on, the logits of each one's last row.
Batch batch_of(Pass pass, int slots, int64_t position, int64_t rows) {
  Batch b;
  b.pass = pass;
  b.ids.assign(size_t(slots * rows), 0);
  for (int s = 0; s < slots; s++) {
    b.segments.push_back({s, position, rows, s, 0});
    b.logit_rows.push_back((s + 1) * rows - 1);
  }
  return b;
}

PassTraffic run(DeviceBackend& backend, CountingHost& host, const Batch& batch) {
  Trace trace;
  const PassState pass = PassState::of(batch, nullptr, &trace);
  host.begin(batch.rows(), int64_t(batch.logit_rows.size()));
  backend.forward(pass, host);
  return trace.traffic.back();
}

}  // namespace

PlanDevice open_for_plan(const DeviceOptions& options) {
  std::string sources, problem;
  std::error_code ignored;
  const bool ours = std::filesystem::path(options.module) == built_module("cuda");
  if (!ours || std::filesystem::exists(options.module, ignored)) {
    const auto module = DeviceModule::load(options.module);
    sources = module->table().sources ? module->table().sources : "";
    try {
      auto device = std::make_shared<Device>(module, options.ordinal);
      const uint64_t free = device->free_bytes();
      return {std::move(device), free, ""};
    } catch (const Error& e) {
      problem = e.what();
    }
  } else {
    problem = options.module + ": no such module";
  }
  const std::filesystem::path emulation = built_module("simt");
  if (std::filesystem::exists(emulation, ignored)) {
    const auto module = DeviceModule::load(emulation);
    const std::string here = module->table().sources ? module->table().sources : "";
    if (sources.empty() ? ours : sources == here) return {std::make_shared<Device>(module, 0), std::nullopt, problem};
  }
  throw Error(ErrorKind::io, "--module",
              "sizes on the device are the module's to tell, and it can't be asked (" + problem + ")",
              "a device, or the emulation made of the same sources (" + emulation.string() + ")", "neither",
              "--module FILE names another module.");
}

DevicePlan plan_device(const Model& outline, const EngineOptions& options, int64_t rows, const PlanDevice& device,
                       CountingHost& host, size_t& pinned) {
  Model model = outline;
  give_addresses(model);
  const Program program = build_program(model);
  const Config& c = model.config;
  std::vector<KvLayer> caches;
  std::vector<GdnLayer> states;
  static std::byte nothing;
  for (int64_t l = 0; l < c.state_layers(); l++) {
    caches.push_back(kv_layer_of(c, l, options));
    caches.back().k = caches.back().v = &nothing;
    states.push_back(gdn_layer_of(c, l, options));
  }
  RopeTable rope;
  rope.context = options.context;
  rope.pairs = c.rope.rotary / 2;
  rope.cos.resize(size_t(rope.context * rope.pairs));
  rope.sin.resize(rope.cos.size());
  DeviceOptions o = options.device;
  o.notice = nullptr;  // the plan says it
  if (o.shadow) o.fused = false;
  o.shadow = false;  // nothing is there to be looked at
  // All that is needed, and no more than 2^60: it is multiplied.
  CountingDevice counting(device.device, device.free_bytes.value_or(uint64_t(1) << 60));
  DevicePlan p;
  {
    DeviceBackend backend(counting.device(), model, program, o, options.activations, caches, states, rope, false);
    run(backend, host, batch_of(Pass::prefill, 1, 0, rows));
    const int64_t next = std::min(rows, options.context - 1);
    PassTraffic step = run(backend, host, batch_of(Pass::decode, 1, next, 1));
    if (options.slots > 1) {
      run(backend, host, batch_of(Pass::decode, options.slots, next, 1));
      step = run(backend, host, batch_of(Pass::decode, options.slots, next, 1));
    } else {
      step = run(backend, host, batch_of(Pass::decode, 1, next, 1));
    }
    p.bytes = backend.memory();
    p.step_uploads = step.uploads;
    p.step_upload_bytes = step.upload_bytes;
    const WeightPlan& w = backend.weights().plan();
    p.matrices = int(w.entries.size());
    p.offered = w.offered;
    p.resident = w.resident;
    std::set<const std::byte*> absent;
    for (const auto& e : w.entries)
      if (!e.resident) absent.insert(e.matrix->data);
    std::set<int> broken;
    for (const Node& n : program.nodes)
      if (n.weight && absent.contains(n.weight->data)) broken.insert(n.layer);
    broken.erase(-1);
    p.layers_resident = c.layers - int64_t(broken.size());
    pinned = p.bytes.host_io;
  }
  p.scratch = counting.scratch_bytes();
  p.budget = budget_range(program, [&](const Matrix& m) { return device.device->packed_bytes(m); });
  p.nodes = int(program.nodes.size());
  for (size_t i = 0; i < program.nodes.size(); i++) p.nodes_on_cpu += host.ran(i);
  return p;
}

}  // namespace assay

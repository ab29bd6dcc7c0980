// DeviceBackend: what it holds. Steps and buffers of a pass are planned here; device_ops.cpp fills in arguments, device_pass.cpp
// runs passes.
#include "engine/device_backend.h"

#include <algorithm>
#include <cstring>

#include "dumps/error.h"
#include "engine/device_internal.h"
#include "engine/ops/common/rope_table.h"

namespace assay {

static_assert(sizeof(AssayPlace) == sizeof(RowPlace) && offsetof(AssayPlace, position) == offsetof(RowPlace, position));
static_assert(int(WeightType::q6_k) == ASSAY_Q6_K && int(WeightType::q8_0) == ASSAY_Q8_0 && int(WeightType::bf16) == ASSAY_BF16);
static_assert(int(KvType::f32) == ASSAY_F32 && int(KvType::f16) == ASSAY_F16 && int(KvType::bf16) == ASSAY_BF16);
static_assert(int(Activations::s16) == ASSAY_ACTIVATIONS_S16 && int(Activations::f32) == ASSAY_ACTIVATIONS_F32);

DeviceBackend::DeviceBackend(std::shared_ptr<Device> device, const Model& model, const Program& program, DeviceOptions options,
                             Activations activations, const std::vector<KvLayer>& caches, const std::vector<GdnLayer>& states,
                             const RopeTable& rope, bool poison)
    : device_(std::move(device)), model_(model), program_(program), options_(std::move(options)), activations_(activations),
      host_caches_(caches), host_states_(states), rope_(rope), poison_(poison),
      weights_(*device_,
               plan_weights(program,
                            [&] {
                              if (options_.budget) return options_.budget;
                              // What caches, tables and the values of long passes need is left alone.
                              uint64_t kv = 0;
                              for (const KvLayer& l : caches) kv += 2 * uint64_t(l.elements()) * size_of(l.type);
                              for (const GdnLayer& g : states) kv += uint64_t(g.slots * g.floats()) * sizeof(float);
                              const uint64_t free = device_->free_bytes(), rest = kv + (rope.cos.size() + rope.sin.size()) * 4;
                              return free > rest ? (free - rest) / 10 * 9 : 0;
                            }(),
                            [&](const Matrix& m) { return device_->packed_bytes(m); }),
               options_.preload),
      states_(*device_, states, poison) {
  if (options_.shadow) options_.fused = options_.graph = false;
  if (options_.timed) options_.graph = false;
  for (const Node& n : program_.nodes)
    if (n.vector) weights_.get(*n.vector);
  if (!rope_.cos.empty()) {
    cos_ = device_->allocate(rope_.cos.size() * sizeof(float), "rope table");
    sin_ = device_->allocate(rope_.sin.size() * sizeof(float), "rope table");
    device_->upload(cos_.data(), rope_.cos.data(), cos_.bytes());
    device_->upload(sin_.data(), rope_.sin.data(), sin_.bytes());
  }
  for (size_t l = 0; l < host_caches_.size(); l++) {
    const KvLayer& h = host_caches_[l];
    const size_t bytes = size_t(h.elements()) * size_of(h.type);
    AssayCache c{int32_t(h.type), 0, h.slots, h.kv_heads, h.context, h.head_dim, nullptr, nullptr};
    for (void** half : {&c.k, &c.v}) {
      if (bytes == 0) continue;   // a layer without attention
      cache_memory_.push_back(device_->allocate(bytes, "layer." + std::to_string(l) + "'s cache"));
      *half = cache_memory_.back().data();
      if (poison_) device_->fill(*half, 0xff, bytes);
    }
    caches_.push_back(c);
  }
  const size_t slots = host_caches_.empty() ? 0 : size_t(host_caches_[0].slots);
  device_only_.assign(host_caches_.size(), std::vector<bool>(slots, false));
  written_.assign(slots, 0);
  mtp_written_.assign(slots, 0);
  device_->finish();
  const WeightPlan& w = weights_.plan();
  if (w.buffers && options_.notice)
    options_.notice("only " + std::to_string(w.resident) + " of " + std::to_string(w.offered) + " weights are resident on the device: " +
                    std::to_string(w.streamed_bytes) + " bytes are uploaded by every pass");
}

DeviceBackend::~DeviceBackend() { replan(); }

void DeviceBackend::replan() {
  forget_graphs();
  rows_.reset();
  one_row_.reset();
}

/// All graphs of a plan, or those with kept values, or those without.
void DeviceBackend::forget_graphs(Plan& plan, std::optional<bool> kept) {
  std::erase_if(plan.graphs, [&](const auto& g) {
    if (kept && std::get<2>(g.first) != *kept) return false;
    device_->table().release_graph(device_->handle(), g.second.graph);
    return true;
  });
}
void DeviceBackend::forget_graphs() {
  for (Plan* plan : {rows_.get(), one_row_.get()})
    if (plan) forget_graphs(*plan);
}

DeviceBackend::Plan& DeviceBackend::plan_of(const Batch& batch) {
  const bool one = batch.rows() == 1 && batch.pass != Pass::prefill && batch.pass != Pass::mtp_prefill;
  std::unique_ptr<Plan>& plan = one ? one_row_ : rows_;
  if (!plan) plan = make_plan(one);
  return *plan;
}

std::unique_ptr<DeviceBackend::Plan> DeviceBackend::make_plan(bool one_row) {
  auto plan = std::make_unique<Plan>();
  const Batch none;
  StepOptions o;
  o.fused = options_.fused;
  o.gated = one_row;
  o.supported = [&](const DeviceStep& s) {
    for (int n : s.nodes)
      if (options_.refuse && options_.refuse(program_.nodes[size_t(n)])) return false;
    const PassState no_pass = PassState::of(none, nullptr, nullptr);
    Run r{no_pass, nullptr, *plan, plan->shared, 0, 0};
    return device_->done(run_step(r, s, true), "a probe of " + program_.nodes[size_t(s.nodes.front())].name());
  };
  plan->steps = plan_steps(program_, o);
  plan->materialised.assign(program_.values.size(), false);
  plan->last_use.assign(program_.values.size(), -1);
  for (size_t s = 0; s < plan->steps.size(); s++) {
    for (ValueId v : plan->steps[s].outputs(program_)) plan->materialised[size_t(v)] = true;
    for (int n : plan->steps[s].nodes)
      for (ValueId v : program_.nodes[size_t(n)].inputs) plan->last_use[size_t(v)] = int(s);
  }
  for (ValueId v : {program_.hidden, program_.mtp_hidden})
    if (v != kNoValue) plan->last_use[size_t(v)] = int(plan->steps.size());   // the host reads it behind the pass
  for (Values* values : {&plan->shared, &plan->kept}) {
    values->keep = values == &plan->kept;
    values->buffer_of.assign(program_.values.size(), -1);
    std::vector<bool> used;
    for (size_t s = 0; s < plan->steps.size(); s++) {
      // Inner values have buffers too: a group that is refused after all runs node by node.
      for (int n : plan->steps[s].nodes) {
        const Node& node = program_.nodes[size_t(n)];
        if (node.output == kNoValue) continue;
        const int64_t columns = program_.values[size_t(node.output)].columns;
        int best = -1;
        for (int b = 0; b < int(used.size()) && !values->keep; b++) {
          if (used[size_t(b)] || values->of_logits[size_t(b)] != node.requested_rows_only) continue;
          const auto distance = [&](int x) { return std::abs(values->columns[size_t(x)] - columns); };
          if (best < 0 || distance(b) < distance(best)) best = b;
        }
        if (best < 0) {
          best = int(used.size());
          used.push_back(false);
          values->columns.push_back(columns);
          values->of_logits.push_back(node.requested_rows_only);
        }
        values->columns[size_t(best)] = std::max(values->columns[size_t(best)], columns);
        used[size_t(best)] = true;
        values->buffer_of[size_t(node.output)] = best;
      }
      // Only behind the step: its kernels read all inputs while they write.
      for (size_t v = 0; v < program_.values.size(); v++)
        if (values->buffer_of[v] >= 0 && plan->last_use[v] == int(s)) used[size_t(values->buffer_of[v])] = false;
    }
    values->memory.resize(values->columns.size());
  }
  return plan;
}

DeviceBytes DeviceBackend::memory() const {
  DeviceBytes b;
  weights_.count(b);
  b.rope = cos_.bytes() + sin_.bytes();
  for (const DeviceMemory& m : cache_memory_) b.kv += m.bytes();
  b.gdn = states_.bytes();
  for (const Plan* plan : {rows_.get(), one_row_.get()})
    for (const Values* v : {plan ? &plan->shared : nullptr, plan ? &plan->kept : nullptr}) {
      if (!v) continue;
      for (const DeviceMemory& m : v->memory) b.values += m.bytes();
      b.values += v->gathered.bytes() + v->hidden.bytes();
      b.io += v->inputs.bytes();
      b.host_io += v->host_inputs.bytes();
    }
  b.io += tail_.bytes();
  b.host_io += host_tail_.bytes() + host_logits_.bytes();
  return b;
}

bool DeviceBackend::materialises(const Batch& batch, ValueId value) { return plan_of(batch).materialised.at(size_t(value)); }

/// Grows what passes of this size need; graphs that point into what moved are void.
void DeviceBackend::prepare(Plan& plan, Values& v, int64_t rows, int64_t logit_rows) {
  if (rows > v.rows || logit_rows > v.logit_rows) {
    forget_graphs(plan, v.keep);
    v.rows = std::max(rows, v.rows);
    v.logit_rows = std::max(logit_rows, v.logit_rows);
    for (size_t b = 0; b < v.memory.size(); b++) {
      const size_t bytes = size_t(v.of_logits[b] ? v.logit_rows : v.rows) * size_t(v.columns[b]) * sizeof(float);
      if (v.memory[b].bytes() >= bytes) continue;
      v.memory[b] = DeviceMemory();
      v.memory[b] = device_->allocate(bytes, "values of a pass of " + std::to_string(v.rows) + " rows");
      if (poison_) device_->fill(v.memory[b].data(), 0xff, bytes);
    }
    int64_t widest = 0;
    for (const Node& n : program_.nodes)
      if (n.requested_rows_only) widest = std::max(widest, program_.values[size_t(n.inputs[0])].columns);
    if (widest) {
      v.gathered = DeviceMemory();
      v.gathered = device_->allocate(size_t(std::max<int64_t>(v.logit_rows, 1) * widest) * sizeof(float), "rows of logits");
    }
    const size_t inputs = size_t(v.rows) * (sizeof(AssayPlace) + sizeof(AssaySpan) + 2 * sizeof(int32_t)) + size_t(v.logit_rows) * sizeof(int32_t);
    if (program_.hidden != kNoValue) {
      v.hidden = DeviceMemory();
      v.hidden = device_->allocate(size_t(v.rows * model_.config.hidden) * sizeof(float), "hidden states of a pass");
    }
    v.inputs = DeviceMemory();
    v.host_inputs = DeviceMemory();
    v.inputs = device_->allocate(inputs, "inputs of a pass");
    v.host_inputs = device_->allocate_host(inputs, "inputs of a pass");
  }
  const int64_t layers = int64_t(caches_.size());
  const size_t tail = size_t(layers) * sizeof(int64_t) + size_t(std::max<int64_t>(v.logit_rows, 1)) * sizeof(int32_t);
  if (tail_.bytes() < tail) {
    forget_graphs();
    tail_ = DeviceMemory();
    host_tail_ = DeviceMemory();
    tail_ = device_->allocate(tail, "results of a pass");
    host_tail_ = device_->allocate_host(tail, "results of a pass");
  }
  AssayLimits want = reserved_;
  want.rows = std::max(want.rows, rows);
  for (const Node& n : program_.nodes)
    if (n.op == OpKind::linear || n.op == OpKind::expert_linear) want.columns = std::max(want.columns, n.weight->columns);
  want.experts = model_.config.experts;
  want.chosen = model_.config.experts_per_token;
  want.heads = model_.config.heads;
  want.head_dim = model_.config.head_dim;
  want.context = host_caches_.empty() ? 0 : host_caches_[0].context;
  if (std::memcmp(&want, &reserved_, sizeof want) != 0 && device_->table().reserve) {
    forget_graphs();
    device_->done(device_->table().reserve(device_->handle(), &want), "scratch of the device");
    reserved_ = want;
  }
}

/// Positions [from, to) of a slot.
void DeviceBackend::copy_state(int layer, int slot, int64_t from, int64_t to, bool to_device) {
  const KvLayer& h = host_caches_[size_t(layer)];
  const AssayCache& c = caches_[size_t(layer)];
  if (from >= to) return;
  const size_t element = size_of(h.type);
  for (int64_t head = 0; head < h.kv_heads; head++) {
    const size_t at = size_t(h.offset(slot, head, from)) * element, bytes = size_t((to - from) * h.head_dim) * element;
    for (const auto& [host, device] : {std::pair{h.k, c.k}, std::pair{h.v, c.v}}) {
      if (to_device)
        device_->upload(static_cast<std::byte*>(device) + at, host + at, bytes);
      else
        device_->download(host + at, static_cast<std::byte*>(device) + at, bytes);
    }
  }
}

void DeviceBackend::state_is_on_device(const PassState& pass, int layer) {
  for (const Segment& s : pass.batch.segments) device_only_[size_t(layer)][size_t(s.slot)] = true;
}

void DeviceBackend::state_to_host(int layer) {
  bool any = false;
  std::vector<bool>& behind = device_only_.at(size_t(layer));
  for (size_t s = 0; s < behind.size(); s++) {
    if (!behind[s]) continue;
    if (states_.has(layer))
      states_.to_host(layer, int(s), DeviceStates::Part::both);
    else
      copy_state(layer, int(s), 0, written_of(layer)[s], false);
    behind[s] = false;
    any = true;
  }
  if (any) device_->finish();
}

void DeviceBackend::state_from_host(int layer, int slot, int64_t length) {
  if (states_.has(layer))
    states_.to_device(layer, slot, DeviceStates::Part::both);
  else
    copy_state(layer, slot, 0, length, true);
  written_of(layer)[size_t(slot)] = length;
  device_only_[size_t(layer)][size_t(slot)] = false;
  device_->finish();
}

void DeviceBackend::roll_back(int slot, int64_t rows) {
  states_.roll_back(slot, rows);
  for (size_t l = 0; l < host_states_.size(); l++)
    if (states_.has(int(l))) device_only_[l][size_t(slot)] = true;
}

void DeviceBackend::truncate(int slot, int64_t length, bool mtp) {
  const size_t layers = size_t(model_.config.layers), first = mtp ? layers : 0, last = mtp ? caches_.size() : std::min(layers, caches_.size());
  int64_t& written = (mtp ? mtp_written_ : written_)[size_t(slot)];
  if (poison_ && length < written)
    for (size_t l = first; l < last; l++)
      for (int64_t head = 0; head < caches_[l].kv_heads; head++) {
        const AssayCache& c = caches_[l];
        const size_t element = c.type == ASSAY_F32 ? 4 : 2;
        const size_t at = size_t(((slot * c.kv_heads + head) * c.context + length) * c.head_dim) * element;
        const size_t bytes = size_t((written - length) * c.head_dim) * element;
        device_->fill(static_cast<std::byte*>(c.k) + at, 0xff, bytes);
        device_->fill(static_cast<std::byte*>(c.v) + at, 0xff, bytes);
      }
  written = std::min(length, written);
  if (length == 0 && !mtp) states_.forget(slot);
  if (length == 0)
    for (size_t l = first; l < last; l++) device_only_[l][size_t(slot)] = false;
}

}  // namespace assay

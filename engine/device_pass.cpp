// DeviceBackend: one pass, queued step by step or replayed as a graph; what the device refuses goes to the CPU.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "dumps/error.h"
#include "engine/device_internal.h"
#include "engine/session.h"

namespace assay {
namespace {
bool writes_state(const Node& n) { return n.op == OpKind::kv_store || n.op == OpKind::conv || n.op == OpKind::delta_rule; }
/// Passes that come again and again with as many rows: decoding, and few rows that are verified or drafted.
bool repeats(const Batch& b) {
  constexpr int64_t kFewRows = 16;
  if (forces_experts(b) || b.pass == Pass::prefill || b.pass == Pass::mtp_prefill) return false;
  return b.pass == Pass::decode || b.rows() <= kFewRows;
}
DeviceStates::Part part_of(const Node& n) { return n.op == OpKind::conv ? DeviceStates::Part::conv : DeviceStates::Part::state; }
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
}  // namespace

/// The node's part of its layer's states, as the pass found it: this node alone changes it.
void DeviceBackend::recurrent_to_host(Run& r, const Node& n) {
  bool any = false;
  for (const Segment& s : r.pass.batch.segments)
    if (device_only_[size_t(n.layer)][size_t(s.slot)]) {
      states_.to_host(n.layer, s.slot, part_of(n));
      any = true;
    }
  if (any) device_->finish();
}

void DeviceBackend::run_on_cpu(Run& r, int i) {
  const Node& n = program_.nodes[size_t(i)];
  bool wait = false;
  for (ValueId v : n.inputs)
    if (!r.host->value(v)) {
      const int64_t floats = r.rows * program_.values[size_t(v)].columns;
      device_->download(r.host->make(v, floats), output(r, v), size_t(floats) * sizeof(float));
      wait = true;
    }
  if (wait) device_->finish();
  const bool recurrent = n.op == OpKind::conv || n.op == OpKind::delta_rule;
  const bool touches_state = n.layer >= 0 && !states_.has(n.layer) && (n.op == OpKind::kv_store || n.op == OpKind::attention || n.replacement);
  if (touches_state) state_to_host(n.layer);
  if (recurrent) recurrent_to_host(r, n);
  r.host->run(size_t(i));
  if (recurrent)
    for (const Segment& s : r.pass.batch.segments) states_.to_device(n.layer, s.slot, part_of(n));
  // Later nodes may read it on the device: the new rows, or whatever a planted node has changed.
  if (touches_state && (n.op == OpKind::kv_store || n.replacement))
    for (const Segment& s : r.pass.batch.segments) copy_state(n.layer, s.slot, n.replacement ? 0 : s.position, s.position + s.rows, true);
  if (n.output != kNoValue) r.on_device[size_t(n.output)] = false;
  if (n.requested_rows_only) {
    r.logits = nullptr;
    r.logits_on_host = true;
  }
  if (r.pass.observer && n.output != kNoValue) {
    const std::vector<int64_t>& rows = n.requested_rows_only ? r.pass.batch.logit_rows : r.pass.all_rows;
    if (!rows.empty()) r.pass.observer->value(r.pass.batch, n, r.host->value(n.output), rows, program_.values[size_t(n.output)].columns);
  }
}

/// Runs the node's inputs, as the device had them, through the CPU and holds the device's output against it.
void DeviceBackend::shadow(Run& r, int i) {
  const Node& n = program_.nodes[size_t(i)];
  const int64_t rows = n.requested_rows_only ? r.logit_rows : r.rows;
  std::vector<float> got;
  if (n.output != kNoValue) {
    got.resize(size_t(rows * program_.values[size_t(n.output)].columns));
    device_->download(got.data(), output(r, n.output), got.size() * sizeof(float));
  }
  std::vector<std::byte> k, v;
  const KvLayer* cache = n.layer < 0 ? nullptr : &host_caches_[size_t(n.layer)];
  for (ValueId in : n.inputs)
    if (!r.host->value(in)) {
      const int64_t floats = r.rows * program_.values[size_t(in)].columns;
      device_->download(r.host->make(in, floats), output(r, in), size_t(floats) * sizeof(float));
    }
  device_->finish();
  if (n.op == OpKind::kv_store || n.op == OpKind::attention) {
    state_is_on_device(r.pass, n.layer);
    state_to_host(n.layer);
  }
  const auto differ = [&](const std::string& where, double device, double cpu) {
    throw Error(ErrorKind::numeric, n.name(), "device and CPU part on the same inputs, " + where, std::to_string(cpu) + " (cpu)",
                std::to_string(device) + " (" + std::string(device_->table().variant(device_->handle())) + ")",
                "assay check --scope kernel --module judges the op alone.");
  };
  if (n.op == OpKind::kv_store) {
    const size_t bytes = size_t(cache->slots * cache->kv_heads * cache->context * cache->head_dim) * size_of(cache->type);
    k.assign(cache->k, cache->k + bytes);
    v.assign(cache->v, cache->v + bytes);
    r.host->run(size_t(i));
    for (const Segment& s : r.pass.batch.segments)
      for (int64_t h = 0; h < cache->kv_heads; h++) {
        const size_t at = size_t(cache->offset(s.slot, h, s.position)) * size_of(cache->type);
        const size_t part = size_t(s.rows * cache->head_dim) * size_of(cache->type);
        for (const auto& [mine, half] : {std::pair{&k, cache->k}, std::pair{&v, cache->v}})
          if (std::memcmp(mine->data() + at, half + at, part) != 0)
            differ(std::string(half == cache->k ? "k" : "v") + " of kv head " + std::to_string(h), 0, 0);
      }
    return;
  }
  r.host->run(size_t(i));
  if (n.output == kNoValue) return;
  const float* want = r.host->value(n.output);
  const int64_t columns = program_.values[size_t(n.output)].columns;
  for (size_t e = 0; e < got.size(); e++)
    if (std::memcmp(&got[e], &want[e], sizeof(float)) != 0 && !(std::isnan(got[e]) && std::isnan(want[e])))
      differ("row " + std::to_string(int64_t(e) / columns) + ", column " + std::to_string(int64_t(e) % columns), got[e], want[e]);
  r.on_device[size_t(n.output)] = true;
  if (n.op != OpKind::conv && n.op != OpKind::delta_rule) return;
  // The host had the state that the device had: every node is looked at, none leaves it behind.
  const GdnLayer& g = host_states_[size_t(n.layer)];
  for (const Segment& s : r.pass.batch.segments) {
    const float* const at = n.op == OpKind::conv ? g.conv_of(s.slot) : g.state_of(s.slot);
    const std::vector<float> cpu(at, at + (n.op == OpKind::conv ? g.conv_floats() : g.state_floats()));
    states_.left_to_host(n.layer, s.slot, part_of(n));
    device_->finish();
    for (size_t e = 0; e < cpu.size(); e++)
      if (std::memcmp(&cpu[e], &at[e], sizeof(float)) != 0)
        differ("slot " + std::to_string(s.slot) + ", element " + std::to_string(e) + " of the state behind it", at[e], cpu[e]);
    device_only_[size_t(n.layer)][size_t(s.slot)] = false;
  }
}

/// Brings a step's outputs to the host and shows them.
void DeviceBackend::observe(Run& r, const DeviceStep& step) {
  std::vector<std::pair<const Node*, float*>> shown;
  for (ValueId v : step.outputs(program_)) {
    const auto node = std::find_if(step.nodes.begin(), step.nodes.end(), [&](int n) { return program_.nodes[size_t(n)].output == v; });
    const Node& n = program_.nodes[size_t(*node)];
    const int64_t floats = (n.requested_rows_only ? r.logit_rows : r.rows) * program_.values[size_t(v)].columns;
    if (floats == 0) continue;
    float* at = r.host->make(v, floats);
    device_->download(at, output(r, v), size_t(floats) * sizeof(float));
    shown.emplace_back(&n, at);
  }
  device_->finish();
  for (const auto& [n, at] : shown)
    r.pass.observer->value(r.pass.batch, *n, at, n->requested_rows_only ? r.pass.batch.logit_rows : r.pass.all_rows,
                           program_.values[size_t(n->output)].columns);
}

void DeviceBackend::note(Run& r, const DeviceStep& step, double seconds) {
  if (!r.recording && !r.pass.trace) return;
  const std::string variant = device_->table().variant(device_->handle());
  if (r.recording) {
    r.recording->ran.emplace_back(&step, variant);
    return;
  }
  for (int n : step.nodes)
    r.pass.trace->entries.push_back({r.pass.batch.pass, r.pass.physical, n, name(), variant, r.rows, n == step.nodes.back() ? seconds : 0});
}

/// Queues every step; false: one was refused while a graph is recorded.
bool DeviceBackend::run_all(Run& r) {
  const bool watched = r.pass.observer && !r.values.keep && !r.capturing;
  for (size_t s = 0; s < r.plan.steps.size(); s++) {
    const DeviceStep& step = r.plan.steps[s];
    const Node& first = program_.nodes[size_t(step.nodes[0])];
    const bool logits = program_.nodes[size_t(step.nodes.back())].requested_rows_only;
    if (!first.runs_in(r.pass.batch.pass) || (logits && r.logit_rows == 0)) continue;
    if (poison_)
      for (ValueId v : step.outputs(program_)) {
        const int64_t rows = logits ? r.logit_rows : r.rows;
        device_->fill(output(r, v), 0xff, size_t(rows * program_.values[size_t(v)].columns) * sizeof(float));
      }
    const double start = r.pass.trace ? now() : 0;
    const int32_t mark = int32_t(s);
    const bool timed = options_.timed && r.pass.trace && device_->table().mark && r.plan.steps.size() <= 2048;
    if (timed) device_->done(device_->table().mark(device_->handle(), 2 * mark), "mark");
    if (device_->done(run_step(r, step, false), first.name())) {
      for (ValueId v : step.outputs(program_)) r.on_device[size_t(v)] = true;
      for (int n : step.nodes)
        if (writes_state(program_.nodes[size_t(n)]) && !r.capturing) state_is_on_device(r.pass, program_.nodes[size_t(n)].layer);
      if (timed) {
        device_->done(device_->table().mark(device_->handle(), 2 * mark + 1), "mark");
        r.timed.emplace_back(r.pass.trace->entries.size() + step.nodes.size() - 1, mark);
      }
      note(r, step, r.pass.trace ? now() - start : 0);
      if (options_.shadow) shadow(r, step.nodes[0]);
      if (watched) observe(r, step);
    } else {
      if (r.capturing) return false;
      if (!forces_experts(r.pass.batch)) r.plan.whole = false;
      for (int n : step.nodes) {
        const Node& node = program_.nodes[size_t(n)];
        DeviceStep alone;
        alone.nodes = {n};
        if (!step.single() && device_->done(run_single(r, node, false), node.name())) {
          if (node.output != kNoValue) r.on_device[size_t(node.output)] = true;
          if (writes_state(node)) state_is_on_device(r.pass, node.layer);
          note(r, alone, 0);
          if (watched && node.output != kNoValue) observe(r, alone);
        } else {
          run_on_cpu(r, n);
        }
      }
    }
    for (int n : step.nodes)
      for (ValueId v : program_.nodes[size_t(n)].inputs)
        if (r.plan.last_use[size_t(v)] == int(s)) r.host->drop(v);
    if (watched || options_.shadow)
      for (ValueId v : step.outputs(program_))
        if (r.on_device[size_t(v)] && r.plan.last_use[size_t(v)] < 0 && !logits) r.host->drop(v);
  }
  if (r.logits && device_->table().argmax) {
    const AssayArgmax a{r.logits, reinterpret_cast<int32_t*>(tail_.as<int64_t>() + caches_.size()), r.logit_rows, model_.config.vocab};
    if (!device_->done(device_->table().argmax(device_->handle(), &a), "argmax"))
      throw Error(ErrorKind::io, device_->module().path().string(), "its argmax refuses a row of " + std::to_string(a.columns) + " logits");
  }
  return true;
}

/// One upload: places, spans, ids, entries behind rows, logit rows, in this order.
void DeviceBackend::upload_inputs(Run& r) {
  const size_t rows = size_t(r.rows);
  const size_t spans = rows * sizeof(AssayPlace), ids = spans + r.pass.spans.size() * sizeof(AssaySpan);
  const size_t after = ids + rows * sizeof(int32_t), logit_rows = after + rows * sizeof(int32_t);
  std::byte* h = r.values.host_inputs.data();
  std::memset(h, 0, spans);
  for (size_t i = 0; i < rows; i++) {
    const AssayPlace place{r.pass.places[i].slot, 0, r.pass.places[i].position};
    std::memcpy(h + i * sizeof place, &place, sizeof place);
  }
  std::memcpy(h + ids, r.pass.batch.ids.data(), rows * sizeof(int32_t));
  if (r.pass.batch.pass < Pass::mtp_prefill &&
      states_.begin(r.pass, reinterpret_cast<AssaySpan*>(h + spans), reinterpret_cast<int32_t*>(h + after)))
    forget_graphs();
  for (size_t i = 0; i < size_t(r.logit_rows); i++) {
    const int32_t row = int32_t(r.pass.batch.logit_rows[i]);
    std::memcpy(h + logit_rows + i * sizeof row, &row, sizeof row);
  }
  std::byte* d = r.values.inputs.data();
  device_->upload(d, h, logit_rows + size_t(r.logit_rows) * sizeof(int32_t));
  r.places = reinterpret_cast<const AssayPlace*>(d);
  r.spans = reinterpret_cast<const AssaySpan*>(d + spans);
  r.ids = reinterpret_cast<const int32_t*>(d + ids);
  r.after = reinterpret_cast<const int32_t*>(d + after);
  r.logit_index = reinterpret_cast<const int32_t*>(d + logit_rows);
  if (r.pass.batch.hidden) device_->upload(r.values.hidden.data(), r.pass.batch.hidden, rows * size_t(model_.config.hidden) * sizeof(float));
}

/// What the host wants to know of a pass: logits, ids, whether a value did not fit the cache.
const float* DeviceBackend::finish_pass(Run& r) {
  const size_t layers = caches_.size(), tail = layers * sizeof(int64_t) + size_t(r.logits ? r.logit_rows : 0) * sizeof(int32_t);
  greedy_.clear();
  if (tail) device_->download(host_tail_.data(), tail_.data(), tail);
  const bool wanted = r.logits && !(r.pass.batch.ids_only && device_->table().argmax);
  if (wanted) {
    const size_t bytes = size_t(r.logit_rows * model_.config.vocab) * sizeof(float);
    if (host_logits_.bytes() < bytes) {
      host_logits_ = DeviceMemory();
      host_logits_ = device_->allocate_host(bytes, "logits");
    }
    device_->download(host_logits_.data(), r.logits, bytes);
  }
  device_->finish();
  for (size_t l = 0; l < layers; l++) {
    const int64_t at = host_tail_.as<int64_t>()[l];
    if (at == kNoOverflow) continue;
    const KvLayer& c = host_caches_[l];
    const int64_t columns = c.kv_heads * c.head_dim, half = r.rows * columns;
    const bool is_v = at >= half;
    if (at < 0 || at >= 2 * half)
      throw Error(ErrorKind::internal, "layer." + std::to_string(l) + "/kv_store", "the device reports an overflow outside of the pass",
                  "0 to " + std::to_string(2 * half - 1), std::to_string(at));
    const int64_t row = (at % half) / columns, column = (at % half) % columns;
    throw Error(ErrorKind::numeric, "layer." + std::to_string(l) + (is_v ? "/v_proj" : "/k_rope"),
                "position " + std::to_string(r.pass.positions[size_t(row)]) + ", column " + std::to_string(column) +
                    ": the value does not fit the f16 cache",
                "at most 65504 in magnitude", "a larger one on the device", "--kv f32 or --kv bf16 hold it.");
  }
  if (!r.logits) return nullptr;
  const auto* ids = reinterpret_cast<const int32_t*>(host_tail_.as<int64_t>() + layers);
  if (device_->table().argmax) greedy_.assign(ids, ids + r.logit_rows);
  if (!wanted && greedy_.empty() && r.logit_rows > 0)
    throw Error(ErrorKind::internal, "logits", "no ids were chosen on the device, and the logits were not asked for");
  return wanted ? host_logits_.as<const float>() : nullptr;
}

/// One graph serves all replays up to it: few graphs, and those of short sequences may have kernels of their own.
int64_t DeviceBackend::bound_of_replays(int64_t longest) const {
  const int64_t context = host_caches_.empty() ? longest : host_caches_[0].context;
  for (int64_t bound : {128, 256})
    if (longest <= bound) return std::min(bound, context);
  return context;
}

const float* DeviceBackend::forward(const PassState& pass, HostSide& host) {
  const AssayModule& t = device_->table();
  const AssayCounters before = device_->counters();
  Plan& plan = plan_of(pass.batch);
  const bool graph = options_.graph && repeats(pass.batch) && plan.whole && options_.preload && !options_.shadow &&
                     weights_.plan().buffers == 0 && t.capture_begin && t.capture_end && t.replay && t.release_graph;
  Values& values = graph && pass.observer && !device_->plant_shared_capture ? plan.kept : plan.shared;
  const int64_t rows = pass.batch.rows(), logit_rows = int64_t(pass.batch.logit_rows.size());
  prepare(plan, values, rows, logit_rows);
  Run r{pass, &host, plan, values, rows, logit_rows};
  r.on_device.assign(program_.values.size(), false);
  for (int64_t p : pass.positions) r.longest = std::max(r.longest, p + 1);
  if (graph) r.longest = bound_of_replays(r.longest);
  const bool mtp = pass.batch.pass >= Pass::mtp_prefill;
  for (const Segment& s : pass.batch.segments) (mtp ? mtp_written_ : written_)[size_t(s.slot)] = s.position + s.rows;
  upload_inputs(r);
  const auto body = [&] {
    if (!caches_.empty()) device_->fill(tail_.data(), 0x7f, caches_.size() * sizeof(int64_t));
    return run_all(r);
  };
  bool replayed = false;
  if (graph) {
    const auto key = std::tuple(rows, logit_rows, values.keep, r.longest, pass.spans.size(), mtp);
    if (!plan.graphs.contains(key)) {
      Graph g;
      r.recording = &g;
      r.capturing = true;
      device_->done(t.capture_begin(device_->handle()), "capture");
      bool whole = false;
      try {
        whole = body();
      } catch (...) {   // what failed is told; the capture must not outlive it
        t.capture_end(device_->handle(), &g.graph);
        if (g.graph) t.release_graph(device_->handle(), g.graph);
        throw;
      }
      device_->done(t.capture_end(device_->handle(), &g.graph), "capture");
      r.recording = nullptr;
      r.capturing = false;
      if (!whole) {   // a step that the CPU has to do: nothing has run yet, and nothing is captured any more
        t.release_graph(device_->handle(), g.graph);
        plan.whole = false;
        return forward(pass, host);
      }
      plan.graphs.emplace(key, std::move(g));
    }
    if (const auto it = plan.graphs.find(key); it != plan.graphs.end()) {
      device_->done(t.replay(device_->handle(), it->second.graph), "replay");
      replayed = true;
      for (const auto& [step, ran] : it->second.ran) {
        for (ValueId v : step->outputs(program_)) r.on_device[size_t(v)] = true;
        for (int n : step->nodes) {
          const Node& node = program_.nodes[size_t(n)];
          if (writes_state(node)) state_is_on_device(pass, node.layer);
          if (pass.trace) pass.trace->entries.push_back({pass.batch.pass, pass.physical, n, name(), ran, rows, 0});
          if (node.requested_rows_only) r.logits = output(r, node.output);
        }
        if (pass.observer) {
          observe(r, *step);
          for (ValueId v : step->outputs(program_)) host.drop(v);
        }
      }
    }
  }
  if (!replayed) body();
  if (!mtp) states_.end(pass);
  const float* logits = finish_pass(r);
  for (const auto& [entry, mark] : r.timed)
    device_->done(t.elapsed(device_->handle(), 2 * mark, 2 * mark + 1, &pass.trace->entries.at(entry).seconds), "elapsed");
  if (r.logits_on_host)
    for (const Node& n : program_.nodes)
      if (n.requested_rows_only && n.runs_in(pass.batch.pass)) logits = host.value(n.output);
  if (const ValueId hidden = mtp ? program_.mtp_hidden : program_.hidden; hidden != kNoValue && r.on_device[size_t(hidden)]) {
    const int64_t floats = rows * program_.values[size_t(hidden)].columns;
    device_->download(host.make(hidden, floats), output(r, hidden), size_t(floats) * sizeof(float));
    device_->finish();
  }
  if (pass.trace) {
    const AssayCounters c = device_->counters();
    pass.trace->traffic.push_back({pass.batch.pass, pass.physical, c.launches - before.launches, c.uploads - before.uploads,
                                   c.upload_bytes - before.upload_bytes, c.downloads - before.downloads,
                                   c.download_bytes - before.download_bytes, c.allocations - before.allocations, c.frees - before.frees,
                                   c.syncs - before.syncs, c.replays - before.replays});
  }
  return logits;
}

}  // namespace assay

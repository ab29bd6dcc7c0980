#include "engine/plan.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <string>

#include "dumps/error.h"
#include "engine/ops/panel.h"
#include "engine/plan_internal.h"
#include "engine/thread_pool.h"

namespace assay {
namespace {

size_t vector_bytes(const Weights& w) {
  size_t floats = w.final_norm.size();
  for (const Vector* v : {&w.mtp.embed_norm, &w.mtp.hidden_norm, &w.mtp.norm}) floats += v->size();
  for (size_t i = 0; i <= w.layers.size(); i++) {
    const LayerWeights& l = w.layer(i);
    for (const Vector* v : {&l.attn_norm, &l.q_bias, &l.k_bias, &l.v_bias, &l.q_norm, &l.k_norm, &l.o_bias, &l.ffn_norm,
                            &l.attn_post_norm, &l.ffn_post_norm, &l.gdn_conv, &l.gdn_decay, &l.gdn_norm})
      floats += v->size();
  }
  return floats * sizeof(float);
}

size_t read_number(const char* path, const std::string& key) {
  std::ifstream in(path);
  std::string word;
  while (in >> word) {
    if (key.empty()) return word.find_first_not_of("0123456789") == std::string::npos ? std::stoull(word) : 0;
    size_t kilobytes = 0;
    if (word == key && in >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

}  // namespace

CountingHost::CountingHost(const Program& program) : program_(program) {
  buffer_of_.assign(program.values.size(), -1);
  ran_.assign(program.nodes.size(), false);
}

/// By the engine's own rule of choosing them (Engine::make).
float* CountingHost::make(ValueId value, int64_t floats) {
  static float nothing;
  int& buffer = buffer_of_[size_t(value)];
  if (buffer >= 0) return &nothing;
  std::vector<bool> used(sizes_.size(), false);
  for (int b : buffer_of_)
    if (b >= 0) used[size_t(b)] = true;
  buffer = choose_buffer(sizes_, used, floats);
  if (buffer < 0) {
    buffer = int(sizes_.size());
    sizes_.push_back(0);
  }
  sizes_[size_t(buffer)] = std::max(sizes_[size_t(buffer)], floats);
  return &nothing;
}
const float* CountingHost::value(ValueId value) const {
  static constexpr float kNothing = 0;
  return buffer_of_[size_t(value)] < 0 ? nullptr : &kNothing;
}
void CountingHost::drop(ValueId value) {
  buffer_of_[size_t(value)] = -1;
}
void CountingHost::run(size_t node) {
  const Node& n = program_.nodes[node];
  ran_[node] = true;
  if (n.output != kNoValue)
    make(n.output, (n.requested_rows_only ? logit_rows_ : rows_) * program_.values[size_t(n.output)].columns);
}
void CountingHost::begin(int64_t rows, int64_t logit_rows) {
  rows_ = rows;
  logit_rows_ = logit_rows;
  std::fill(buffer_of_.begin(), buffer_of_.end(), -1);
}
size_t CountingHost::bytes() const {
  size_t floats = 0;
  for (int64_t s : sizes_) floats += size_t(s);
  return floats * sizeof(float);
}

/// A whole pass on the CPU, of the model or of its MTP head.
static void run_all(const Program& p, CountingHost& host, Pass pass) {
  std::vector<int> last_use(p.values.size(), -1);
  for (size_t i = 0; i < p.nodes.size(); i++)
    for (ValueId v : p.nodes[i].inputs) last_use[size_t(v)] = int(i);
  for (size_t i = 0; i < p.nodes.size(); i++) {
    if (!p.nodes[i].runs_in(pass)) continue;
    host.run(i);
    for (ValueId v : p.nodes[i].inputs)
      if (last_use[size_t(v)] == int(i)) host.drop(v);
  }
}

MemoryPlan plan_memory(const ModelOutline& outline, const EngineOptions& options, int64_t rows,
                       const PlanDevice* device) {
  const Model& m = outline.model;
  const Config& c = m.config;
  EngineOptions o = options;
  check_options(o, c);
  if (rows < 1 || rows > o.context)
    throw Error(ErrorKind::usage, "--rows", "out of range", "1 to the context, " + std::to_string(o.context),
                std::to_string(rows));
  // sin_f64 ends there (rope_table.h).
  if (o.context > int64_t(1) << 23)
    throw Error(ErrorKind::usage, "--ctx", "out of range of the rotary embedding", "at most 2^23",
                std::to_string(o.context));
  const Program program = build_program(m);
  const size_t threads = size_t(o.threads ? o.threads : usable_cpus());

  MemoryPlan p;
  p.mapped = outline.mapped_bytes;
  p.copies = outline.copied_bytes;
  p.vectors = vector_bytes(m.weights);
  for (int64_t l = 0; l < c.state_layers(); l++) {
    p.engine.kv += 2 * size_t(kv_layer_of(c, l, o).elements()) * size_of(o.kv);
    const GdnLayer g = gdn_layer_of(c, l, o);
    p.engine.gdn += size_t(g.slots * g.floats()) * sizeof(float);
  }
  p.engine.rope = size_t(o.context * (c.rope.rotary / 2)) * 2 * sizeof(float);
  CountingHost host(program);
  if (device) {
    p.device = plan_device(m, o, rows, *device, host, p.pinned);
  } else {
    const auto pass = [&](int64_t of_rows) {
      for (Pass p : {Pass::prefill, Pass::mtp_prefill}) {
        if (p == Pass::mtp_prefill && program.hidden == kNoValue) continue;
        host.begin(of_rows, 1);
        run_all(program, host, p);
      }
    };
    pass(rows);
    // Buffers stay from pass to pass, and a later one may choose others and let them grow.
    for (size_t before = 0; before != host.bytes();) {
      before = host.bytes();
      pass(1);
    }
  }
  p.engine.values = host.bytes();

  const bool integers = o.activations != Activations::f32;
  size_t codes = 0, scales = 0;
  struct {  // ExpertRows, backend.h
    int64_t x = 0, y = 0, places = 0, groups = 0;
    size_t codes = 0;
    size_t bytes() const { return size_t(x + y + 3 * groups) * sizeof(float) + size_t(places) * sizeof(int64_t) + codes; }
  } gathered;
  int64_t widest = 0;  // columns of a linear in floats
  std::set<const Matrix*> repacked;  // the head's logits are the model's matrix
  for (size_t i = 0; i < program.nodes.size(); i++) {
    const Node& n = program.nodes[i];
    if (!host.ran(i)) continue;  // a device does it
    if (n.op == OpKind::attention)
      p.engine.scratch = threads * size_t(attention_scratch_floats(o.context, c.head_dim)) * sizeof(float);
    if (n.op != OpKind::linear && n.op != OpKind::expert_linear) continue;
    const Matrix& w = *n.weight;
    const bool experts = n.op == OpKind::expert_linear;
    // Rows of the input: of an expert_linear one per token, or one per token and rank.
    const int64_t tokens = n.requested_rows_only ? 1 : rows * (program.values[size_t(n.inputs[0])].columns / w.columns);
    const int64_t pairs = rows * n.chosen;
    if (experts) {
      gathered.y = std::max(gathered.y, pairs * (w.rows / n.experts));
      gathered.places = std::max(gathered.places, 2 * n.experts + 1 + pairs);
    }
    if (!integers || !is_quantised(w.type)) {
      widest = std::max(widest, w.columns);
      if (experts) gathered.x = std::max(gathered.x, pairs * w.columns);
      continue;
    }
    if (o.isa != Isa::scalar && repacked.insert(&w).second) p.engine.panels += experts ? size_t(n.experts) * panel_bytes(expert_of(w, n.experts, 0)) : panel_bytes(w);
    if (experts) {
      gathered.codes = std::max(gathered.codes, size_t(pairs * w.columns) * size_t(code_bytes_for(o.isa, w.type, o.activations)));
      gathered.groups = std::max(gathered.groups, pairs * (w.columns / 32));
    }
    codes = std::max(codes, size_t(tokens * w.columns) * size_t(code_bytes_for(o.isa, w.type, o.activations)));
    scales = std::max(scales, size_t(tokens * (w.columns / 32)) * (sizeof(float) + 2 * sizeof(int32_t)));
  }
  p.engine.quantised = codes + scales;
  p.engine.experts = gathered.bytes();
  // A worker's rows of packed tokens and weights: 28 at most with many tokens, one with few (ops/linear.cpp).
  p.packing = threads * size_t(widest) * (rows > 3 && o.isa != Isa::scalar ? 28 : 1) * sizeof(float);
  return p;
}

size_t available_memory() {
  const size_t machine = read_number("/proc/meminfo", "MemAvailable:");
  const size_t limit = read_number("/sys/fs/cgroup/memory.max", ""),
               used = read_number("/sys/fs/cgroup/memory.current", "");
  if (limit == 0) return machine;
  return std::min(machine, limit > used ? limit - used : 0);
}

}  // namespace assay

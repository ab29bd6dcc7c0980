#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>

#include "dumps/error.h"
#include "engine/device_backend.h"
#include "engine/ops/common/rope_table.h"
#include "engine/session.h"
#include "engine/verified.h"

namespace assay {

std::vector<std::pair<std::string, int64_t>> Trace::variants() const {
  std::vector<std::pair<std::string, int64_t>> out;
  for (const TraceEntry& e : entries) {
    std::string name = std::string(e.backend) + "/" + e.variant;
    auto it = std::find_if(out.begin(), out.end(), [&](auto& p) { return p.first == name; });
    if (it == out.end())
      out.emplace_back(name, 1);
    else
      it->second++;
  }
  return out;
}

PassState PassState::of(const Batch& batch, Observer* observer, Trace* trace) {
  PassState pass{batch, {}, {}, {}, observer, trace, trace ? trace->passes++ : 0};
  for (const Segment& s : batch.segments) {
    pass.spans.push_back({s.slot, int64_t(pass.all_rows.size()), s.rows});
    for (int64_t r = 0; r < s.rows; r++) {
      pass.places.push_back({s.slot, s.position + r});
      pass.positions.push_back(s.position + r);
      pass.all_rows.push_back(int64_t(pass.all_rows.size()));
    }
  }
  return pass;
}

void check_options(EngineOptions& o, const Config& c) {
  if (o.slots < 1) throw Error(ErrorKind::usage, "--slots", "too few slots", ">= 1", std::to_string(o.slots));
  if (o.context == 0) o.context = c.context;
  if (o.context < 1 || o.context > (int64_t(1) << 32))
    throw Error(ErrorKind::usage, "--ctx", "context out of range", "1 to 2^32", std::to_string(o.context));
}

int choose_buffer(const std::vector<int64_t>& sizes, const std::vector<bool>& used, int64_t floats) {
  int best = -1;
  for (int b = 0; b < int(sizes.size()); b++) {
    if (used[b]) continue;
    const int64_t size = sizes[b], held = best < 0 ? 0 : sizes[best];
    if (best < 0 || (size >= floats ? held < floats || size < held : held < floats && size > held)) best = b;
  }
  return best;
}

Engine::Engine(std::shared_ptr<const Model> model, EngineOptions options) : Engine(model, build_program(*model), options) {}

Engine::Engine(std::shared_ptr<const Model> model, Program program, EngineOptions options)
    : model_(std::move(model)), options_(options), program_(std::move(program)) {
  const Config& c = model_->config;
  check_options(options_, c);
  backend_ = std::make_unique<CpuBackend>(options_.isa, options_.threads);
  backend_->prepare(program_, options_.activations, options_.device.module.empty());
  rope_ = std::make_unique<RopeTable>(make_rope_table(c.rope, options_.context));
  allocate_state();
  buffer_of_.assign(program_.values.size(), -1);
  if (!options_.device.module.empty()) {
    try {
      auto device = std::make_shared<Device>(DeviceModule::load(options_.device.module), options_.device.ordinal);
      device_ = std::make_unique<DeviceBackend>(std::move(device), *model_, program_, options_.device, options_.activations, caches_, gdn_, *rope_,
                                                options_.poison);
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::usage) throw;   // an option that no device could follow
      device_problem_ = e.what();
      if (options_.device.notice) options_.device.notice("no device, the CPU runs everything (the same bytes): " + device_problem_);
    }
  }
}

Engine::~Engine() = default;

void Engine::check(const Batch& batch) const {
  const Config& c = model_->config;
  if (batch.pass >= Pass::mtp_prefill && (!has_mtp() || !batch.hidden))
    throw Error(ErrorKind::usage, "batch", has_mtp() ? "a pass of the MTP head has no hidden states" : "the model has no MTP head");
  int64_t rows = 0;
  std::vector<bool> seen(options_.slots, false);
  for (const Segment& s : batch.segments) {
    const std::string where = "prompt " + std::to_string(s.prompt);
    if (s.slot < 0 || s.slot >= options_.slots)
      throw Error(ErrorKind::usage, where, "no such slot", "0 to " + std::to_string(options_.slots - 1), std::to_string(s.slot));
    if (seen[s.slot]) throw Error(ErrorKind::usage, where, "two segments of one batch in slot " + std::to_string(s.slot));
    seen[s.slot] = true;
    if (s.rows < 1) throw Error(ErrorKind::usage, where, "empty segment");
    const int64_t length = batch.pass >= Pass::mtp_prefill ? mtp_lengths_[s.slot] : lengths_[s.slot];
    if (s.position != length)
      throw Error(ErrorKind::usage, where, "segment does not continue its slot", "position " + std::to_string(length),
                  std::to_string(s.position));
    if (s.position + s.rows > options_.context)
      throw Error(ErrorKind::usage, where, "context overflow",
                  "at most " + std::to_string(options_.context) + " positions per slot",
                  std::to_string(s.position + s.rows), "A larger --ctx, a shorter prompt or fewer decode steps fit.");
    rows += s.rows;
  }
  if (rows != batch.rows() || rows == 0)
    throw Error(ErrorKind::usage, "batch", "ids and segments disagree", std::to_string(rows) + " ids", std::to_string(batch.rows()));
  for (size_t i = 0; i < batch.ids.size(); i++)
    if (batch.ids[i] < 0 || batch.ids[i] >= c.vocab)
      throw Error(ErrorKind::usage, "token id " + std::to_string(i) + " of the batch", "outside the vocabulary",
                  "0 to " + std::to_string(c.vocab - 1), std::to_string(batch.ids[i]));
  if (!batch.experts.empty() && batch.experts.size() != batch.segments.size())
    throw Error(ErrorKind::internal, "batch", "forced experts and segments disagree");
  for (size_t i = 0; i < batch.logit_rows.size(); i++)
    if (batch.logit_rows[i] < 0 || batch.logit_rows[i] >= rows || (i && batch.logit_rows[i] <= batch.logit_rows[i - 1]))
      throw Error(ErrorKind::internal, "logit_rows", "not rising or outside the batch");
}

float* Engine::make(ValueId value, int64_t floats) {
  if (buffer_of_[value] >= 0) return buffers_[buffer_of_[value]].data();
  std::vector<bool> used(buffers_.size(), false);
  for (int b : buffer_of_)
    if (b >= 0) used[b] = true;
  std::vector<int64_t> sizes;
  for (const auto& b : buffers_) sizes.push_back(int64_t(b.size()));
  int best = choose_buffer(sizes, used, floats);
  if (best < 0) {
    buffers_.emplace_back();
    best = int(buffers_.size()) - 1;
  }
  if (int64_t(buffers_[best].size()) < floats) buffers_[best].resize(floats);
  buffer_of_[value] = best;
  return buffers_[best].data();
}

const float* Engine::value(ValueId value) const { return buffer_of_[value] < 0 ? nullptr : buffers_[buffer_of_[value]].data(); }
void Engine::drop(ValueId value) { buffer_of_[value] = -1; }

void Engine::run(size_t i) {
  const Node& node = program_.nodes[i];
  const PassState& pass = *pass_;
  const bool some = node.requested_rows_only;
  const std::vector<int64_t>& rows = some ? pass.batch.logit_rows : pass.all_rows;
  NodeContext ctx{node, program_, model_->config, pass.batch, int64_t(rows.size()), {}, nullptr, 0, pass.batch.ids, pass.places,
                  pass.positions, node.layer < 0 ? nullptr : &caches_[node.layer], rope_.get(),
                  node.layer < 0 ? nullptr : &gdn_[node.layer], pass.spans};
  for (ValueId v : node.inputs) ctx.inputs.push_back(value(v));
  if (some && rows.size() != pass.all_rows.size()) {  // pick the wanted rows of the one input
    const int64_t k = program_.values[node.inputs[0]].columns;
    gathered_.resize(rows.size() * k);
    for (size_t r = 0; r < rows.size(); r++)
      std::memcpy(&gathered_[r * k], ctx.inputs[0] + rows[r] * k, k * sizeof(float));
    ctx.inputs[0] = gathered_.data();
  }
  if (node.output != kNoValue) {
    ctx.columns = program_.values[node.output].columns;
    const int64_t floats = ctx.rows * ctx.columns;
    ctx.output = make(node.output, floats);
    // A new buffer may have moved none of the others: vectors of vectors keep their data. Inputs stay valid.
    if (options_.poison) std::fill_n(ctx.output, floats, std::numeric_limits<float>::quiet_NaN());
  }
  if (pass.batch.pass == Pass::verify && (node.op == OpKind::conv || node.op == OpKind::delta_rule)) keep_inputs(i, ctx);
  const auto start = std::chrono::steady_clock::now();
  if (node.replacement)
    node.replacement(ctx);
  else
    backend_->run(ctx);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  if (pass.trace)
    pass.trace->entries.push_back({pass.batch.pass, pass.physical, int(i), "cpu",
                                   node.replacement ? node.variant : backend_->variant(node), ctx.rows, elapsed.count()});
  if (node.output != kNoValue && (node.output == program_.hidden || node.output == program_.mtp_hidden))
    hidden_.assign(ctx.output, ctx.output + ctx.rows * ctx.columns);
}

const float* Engine::forward(const Batch& batch, Observer* observer, Trace* trace) {
  check(batch);
  const PassState pass = PassState::of(batch, observer, trace);
  hidden_.clear();
  begin_state(batch);
  std::fill(buffer_of_.begin(), buffer_of_.end(), -1);
  backend_->begin_pass();
  pass_ = &pass;
  const float* logits = nullptr;
  if (device_) {
    logits = device_->forward(pass, *this);
    const ValueId wanted = batch.pass >= Pass::mtp_prefill ? program_.mtp_hidden : program_.hidden;
    if (wanted != kNoValue && hidden_.empty())
      hidden_.assign(value(wanted), value(wanted) + batch.rows() * program_.values[wanted].columns);
  } else {
    last_use_.assign(program_.values.size(), -1);   // of the program as it now is: a planted fault may have rewired it
    for (size_t i = 0; i < program_.nodes.size(); i++)
      for (ValueId v : program_.nodes[i].inputs) last_use_[v] = int(i);
    for (size_t i = 0; i < program_.nodes.size(); i++) {
      const Node& node = program_.nodes[i];
      if (!node.runs_in(batch.pass)) continue;
      const std::vector<int64_t>& rows = node.requested_rows_only ? batch.logit_rows : pass.all_rows;
      if (rows.empty()) continue;
      run(i);
      if (observer && node.output != kNoValue)
        observer->value(batch, node, value(node.output), rows, program_.values[node.output].columns);
      if (node.requested_rows_only) logits = value(node.output);
      for (ValueId v : node.inputs)
        if (last_use_[v] == int(i)) drop(v);
    }
  }
  pass_ = nullptr;
  logits_ = logits;
  for (const Segment& s : batch.segments) (batch.pass >= Pass::mtp_prefill ? mtp_lengths_ : lengths_)[s.slot] += s.rows;
  return logits;
}

bool Engine::materialises(const Batch& batch, ValueId value) const { return !device_ || device_->materialises(batch, value); }

int32_t Engine::greedy(int64_t row) const {
  if (device_ && !device_->greedy().empty()) return device_->greedy()[size_t(row)];
  const int64_t vocab = model_->config.vocab;
  return argmax({logits_ + row * vocab, size_t(vocab)}).value_or(-1);
}

Program& Engine::plantable_program() {
  if (device_) device_->replan();
  return program_;
}

}  // namespace assay

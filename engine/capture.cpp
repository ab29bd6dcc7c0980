#include "engine/capture.h"

#include <sys/utsname.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <thread>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/device_backend.h"
#include "engine/numerics.h"
#include "engine/version.h"

namespace assay {
namespace {

std::string value_name(const Value& v) { return layer_stem(v.layer, v.mtp) + v.phase; }

/// Passes whose tensors hold all rows of a prompt, however they were cut.
bool is_prefill(Pass pass) { return pass == Pass::prefill || pass == Pass::mtp_prefill; }

std::string value_tensor(int32_t prompt, Pass pass, int64_t step, const Value& v, std::string_view phase) {
  return tensor_name(prompt, pass, step, v.mtp && v.layer >= 0 ? 0 : v.layer, phase);
}

std::string cpu_model() {
  std::string line, model = "unknown CPU";
  if (FILE* f = std::fopen("/proc/cpuinfo", "r")) {
    char buffer[512];
    while (std::fgets(buffer, sizeof buffer, f)) {
      line = buffer;
      if (line.rfind("model name", 0) == 0 && line.find(": ") != std::string::npos) {
        model = line.substr(line.find(": ") + 2);
        model.erase(model.find_last_not_of(" \n") + 1);
        break;
      }
    }
    std::fclose(f);
  }
  return model;
}

}  // namespace

DType cache_dtype(KvType t) { return t == KvType::f32 ? DType::f32 : t == KvType::f16 ? DType::f16 : DType::bf16; }

bool CaptureOptions::wants(int layer, std::string_view phase) const {
  if (layer >= 0 && !layers.empty() &&
      std::none_of(layers.begin(), layers.end(), [&](auto& r) { return layer >= r.first && layer <= r.second; }))
    return false;
  return phases.empty() || std::any_of(phases.begin(), phases.end(), [&](auto& g) { return glob_match(g, phase); });
}

DumpWriter::Options DumpFolder::writer_options() const {
  DumpWriter::Options o;
  o.dir = out;
  o.mode = mode;
  o.replace = replace;
  o.sync = sync;
  o.partial = !capture.phases.empty() || !capture.layers.empty();
  o.when_full = "write less (--mode stats, --filter, --layers)";
  for (const std::string& glob : capture.phases) o.filter += (o.filter.empty() ? "" : ",") + glob;
  return o;
}

Capture::Capture(DumpWriter& writer, const Engine& engine, const std::vector<Request>& requests, CaptureOptions options)
    : writer_(writer), engine_(engine), requests_(requests), options_(std::move(options)) {}

void CaptureOptions::check(const Program& program) const {
  for (const std::string& glob : phases) {
    bool used = glob_match(glob, "logits_last");
    for (const char* what : {"k", "v", "conv_state", "recurrent_state"}) used = used || (state && glob_match(glob, what));
    for (const Value& v : program.values) used = used || glob_match(glob, v.phase) || (!v.also.empty() && glob_match(glob, v.also));
    if (!used) {
      std::string known;
      for (const Value& v : program.values)
        if (v.layer <= 0) known += (known.empty() ? "" : ", ") + v.phase;
      throw Error(ErrorKind::usage, "--filter", "no phase matches", known, in_quotes(glob));
    }
  }
}

void Capture::declare_pass(const Batch& batch, int32_t prompt, int64_t step) {
  const Pass pass = batch.pass;
  if (!declared_.insert({pass, prompt, step}).second) return;
  const Program& program = engine_.program();
  int64_t rows = 1;
  for (const Segment& s : batch.segments)
    if (s.prompt == prompt) rows = is_prefill(pass) ? int64_t(requests_[prompt].ids.size()) : s.rows;
  std::vector<TensorDecl> tensors;
  std::vector<std::string> inner;
  for (size_t i = 0; i < program.nodes.size(); i++) {
    const Node& n = program.nodes[i];
    if (n.output == kNoValue || !n.runs_in(pass)) continue;
    const Value& v = program.values[n.output];
    if (!engine_.materialises(batch, n.output)) {
      for (const std::string& phase : {v.phase, v.also})
        if (!phase.empty() && options_.wants(v.layer, phase)) inner.push_back(value_tensor(prompt, pass, step, v, phase));
      continue;
    }
    TensorDecl d;
    d.order = int64_t(i);
    d.role = "phase";
    d.axes = {"token", v.axes};
    for (ValueId in : n.inputs) d.inputs.push_back(value_name(program.values[in]));
    if (n.op == OpKind::attention)
      for (const char* half : {"k", "v"}) d.inputs.push_back("state:" + layer_stem(n.layer, n.mtp) + half);
    if (n.op == OpKind::conv) d.inputs.push_back("state:" + layer_stem(n.layer, n.mtp) + "conv_state");
    if (n.op == OpKind::delta_rule) d.inputs.push_back("state:" + layer_stem(n.layer, n.mtp) + "recurrent_state");
    d.name = value_tensor(prompt, pass, step, v, v.phase);
    d.shape = {rows, v.columns};
    if (v.ids) d.dtype = DType::i64;
    const bool last_alone = n.requested_rows_only && pass == Pass::mtp_prefill;   // the rows before it predict what is known
    if (options_.wants(v.layer, v.phase) && !last_alone) tensors.push_back(d);
    if (!v.also.empty() && options_.wants(v.layer, v.also)) {
      tensors.push_back(d);
      tensors.back().name = value_tensor(prompt, pass, step, v, v.also);
    }
    if (n.requested_rows_only && is_prefill(pass) && options_.wants(-1, "logits_last")) {
      d.name = tensor_name(prompt, pass, step, -1, "logits_last");
      d.shape = {1, v.columns};
      d.order = int64_t(i) + 1;
      tensors.push_back(d);
    }
  }
  if (!tensors.empty()) writer_.declare(tensors);
  writer_.not_materialised(inner);
}

void Capture::value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows, int64_t columns) {
  // A group that was refused after all brings its inner values too: what a dump holds does not hang on that.
  if (!engine_.materialises(batch, node.output)) return;
  const Value& v = engine_.program().values[node.output];
  int64_t start = 0;   // batch row where the segment starts
  size_t r = 0;        // index into rows
  for (const Segment& s : batch.segments) {
    const size_t first = r;
    while (r < rows.size() && rows[r] < start + s.rows) r++;
    if (r > first) {
      declare_pass(batch, s.prompt, s.step);
      const int64_t row0 = is_prefill(batch.pass) ? s.position + rows[first] - start : 0;
      const float* at = data + int64_t(first) * columns;
      std::vector<int64_t> ids;
      const void* rows_data = at;
      if (v.ids) {
        ids.assign(at, at + int64_t(r - first) * columns);
        rows_data = ids.data();
      }
      for (const std::string& phase : {v.phase, v.also})
        if (!phase.empty() && options_.wants(v.layer, phase) && !(node.requested_rows_only && batch.pass == Pass::mtp_prefill))
          writer_.write_rows(value_tensor(s.prompt, batch.pass, s.step, v, phase), row0, int64_t(r - first), rows_data);
      const bool last = is_prefill(batch.pass) && s.position + s.rows == int64_t(requests_[s.prompt].ids.size());
      if (node.requested_rows_only && last && options_.wants(-1, "logits_last"))
        writer_.write_rows(tensor_name(s.prompt, batch.pass, s.step, -1, "logits_last"), 0, 1,
                           data + int64_t(r - 1) * columns);
    }
    start += s.rows;
  }
}

void Capture::write_state(const Engine& engine, int32_t prompt, int slot, const char* when) {
  const Config& c = engine.model().config;
  const bool after_decode = std::string_view(when) == "after_decode";
  for (int l = 0; l < int(after_decode ? c.state_layers() : c.layers); l++) {
    const bool mtp = l >= c.layers;
    const std::string stem = layer_stem(l, mtp), layer = stem.substr(0, stem.size() - 1);
    if (mtp && engine.mtp_length(slot) == 0) continue;   // its passes were not asked for
    const KvLayer& kv = engine.kv(l);
    for (const char* half : {"k", "v"}) {
      if (kv.elements() == 0 || !options_.wants(l, half)) continue;
      TensorDecl d;
      d.name = state_name(prompt, when, layer, half);
      d.dtype = cache_dtype(kv.type);
      d.shape = {kv.kv_heads, mtp ? engine.mtp_length(slot) : engine.length(slot), kv.head_dim};
      d.order = l * 2 + (*half == 'v');
      d.inputs = {stem + (*half == 'k' ? "k_rope" : "v_proj")};
      d.role = "state";
      d.axes = {"kv_head", "position", "head_dim"};
      writer_.declare({d});
      const std::byte* base = *half == 'k' ? kv.k : kv.v;
      for (int64_t h = 0; h < kv.kv_heads; h++)
        writer_.write_rows(d.name, h, 1, base + size_t(kv.offset(slot, h, 0)) * size_of(kv.type));
    }
    const GdnLayer& g = engine.gdn(l);
    if (g.floats() == 0) continue;
    if (options_.wants(l, "conv_state")) {
      std::vector<float> by_channel(size_t(g.conv_floats()));
      for (int64_t t = 0; t < g.width; t++)
        for (int64_t channel = 0; channel < g.channels; channel++)
          by_channel[size_t(channel * g.width + t)] = g.conv_of(slot)[t * g.channels + channel];
      TensorDecl d;
      d.name = state_name(prompt, when, layer, "conv_state");
      d.shape = {g.channels, g.width};
      d.order = l * 2;
      d.inputs = {stem + "gdn_qkv"};
      d.role = "state";
      d.axes = {"channel", "oldest first"};
      writer_.write(d, by_channel.data());
    }
    if (options_.wants(l, "recurrent_state")) {
      TensorDecl d;
      d.name = state_name(prompt, when, layer, "recurrent_state");
      d.shape = {g.v_heads, g.k_dim, g.v_dim};
      d.order = l * 2 + 1;
      for (const char* phase : {"gdn_k", "gdn_v", "gdn_beta", "gdn_decay"}) d.inputs.push_back(stem + phase);
      d.role = "state";
      d.axes = {"v_head", "d_k", "d_v"};
      writer_.write(d, g.state_of(slot));
    }
  }
}

void Capture::write_ids(int32_t prompt, const char* name, const std::vector<int32_t>& ids) {
  const std::vector<int64_t> wide(ids.begin(), ids.end());
  TensorDecl d;
  d.name = "prompt" + std::to_string(prompt) + "/" + name;
  d.dtype = DType::i64;
  d.shape = {int64_t(wide.size())};
  d.role = "ids";
  d.axes = {"token"};
  writer_.write(d, wide.data());
}

void Capture::after_prefill(const Engine& engine, int32_t prompt, int slot) {
  if (options_.state) write_state(engine, prompt, slot, "after_prefill");
}

void Capture::after_decode(const Engine& engine, int32_t prompt, int slot, const Generated& g) {
  if (options_.state && requests_[prompt].decode > 0) write_state(engine, prompt, slot, "after_decode");
  write_ids(prompt, "ids", requests_[prompt].ids);
  write_ids(prompt, "greedy_ids", g.greedy);
}

/// The epsilon of the norms as the program has it, rounded as it is used; a list where they differ.
static nlohmann::ordered_json eps_of(const Program& program) {
  nlohmann::ordered_json found = nlohmann::ordered_json::array();
  for (const Node& n : program.nodes)
    if ((n.op == OpKind::rms_norm || n.op == OpKind::head_norm || n.op == OpKind::gated_norm) && std::find(found.begin(), found.end(), double(float(n.eps))) == found.end())
      found.push_back(double(float(n.eps)));
  return found.size() == 1 ? nlohmann::ordered_json(found[0]) : found;
}

void describe(nlohmann::ordered_json& manifest, const Engine& engine, const std::vector<Request>& requests,
              const std::vector<Generated>& generated, const GenerateOptions& generate) {
  const Config& c = engine.model().config;
  const Provenance& p = engine.model().provenance;
  utsname host{};
  uname(&host);
  manifest["engine"] = {{"name", "assay"}, {"version", kVersion}, {"source_hash", kSourceHash}, {"numerics", kNumericsVersion}};
  manifest["device"] = {{"backend", "cpu"}, {"name", cpu_model()}, {"arch", host.machine},
                        {"isa", name_of(engine.backend().isa())}, {"threads", engine.backend().threads()}};
  if (const DeviceBackend* d = engine.device()) {
    const AssayDeviceInfo& info = d->device().info();
    const DeviceOptions& o = d->options();
    manifest["device"]["backend"] = d->name();
    manifest["device"]["name"] = info.name;
    manifest["device"]["arch"] = info.architecture;
    manifest["device"]["driver"] = info.driver;
    manifest["device"]["module"] = {{"name", d->device().table().name}, {"sources", d->device().table().sources},
                                    {"fused", o.fused}, {"graph", o.graph}};
  } else if (!engine.device_problem().empty()) {
    manifest["device"]["problem"] = engine.device_problem();
  }
  manifest["model"] = {{"path", p.path}, {"format", p.format}, {"hash", p.hash}, {"family", c.family},
                       {"quantisation", p.quantisation}, {"tokenizer_hash", p.tokenizer_hash}};
  nlohmann::ordered_json rope = {{"theta", c.rope.theta}, {"rotary", c.rope.rotary}, {"type", c.rope.llama3 ? "llama3" : "default"}};
  if (c.rope.llama3) {
    rope["factor"] = c.rope.factor;
    rope["low_freq_factor"] = c.rope.low_freq_factor;
    rope["high_freq_factor"] = c.rope.high_freq_factor;
    rope["original_context"] = c.rope.original_context;
  }
  const Activations activations = engine.model().quantised() ? engine.options().activations : Activations::f32;
  manifest["options"] = {{"activations", name_of(activations)}, {"kv", name_of(engine.options().kv)}, {"context", engine.options().context},
                         {"slots", engine.options().slots}, {"slot", generate.slot}, {"chunk", generate.chunk},
                         {"batch", generate.batch}, {"rms_eps", eps_of(engine.program())}, {"attention_scale_head_dim", c.head_dim},
                         {"rope", rope}, {"tied", c.tied}};
  nlohmann::ordered_json planted = nlohmann::ordered_json::array();
  for (const Node& n : engine.program().nodes)
    if (n.replacement && std::find(planted.begin(), planted.end(), n.variant) == planted.end()) planted.push_back(n.variant);
  if (!planted.empty()) manifest["planted_faults"] = planted;
  nlohmann::ordered_json prompts = nlohmann::ordered_json::array();
  for (size_t i = 0; i < requests.size(); i++)
    prompts.push_back({{"name", "prompt" + std::to_string(i)}, {"length", requests[i].ids.size()}, {"ids", requests[i].ids},
                       {"decode", requests[i].decode}, {"forced", requests[i].forced.size()},
                       {"forced_experts", requests[i].experts != nullptr}, {"fed_ids", generated[i].fed},
                       {"greedy_ids", generated[i].greedy}});
  for (size_t i = 0; i < requests.size() && generate.mtp && engine.has_mtp(); i++) {
    prompts[i]["mtp_draft_ids"] = generated[i].mtp_drafts;
    prompts[i]["mtp_decode_ids"] = generated[i].mtp_ids;
  }
  manifest["prompts"] = prompts;
}

}  // namespace assay

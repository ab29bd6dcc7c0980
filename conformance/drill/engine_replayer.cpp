#include "conformance/drill/at.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "conformance/drill/operand_watch.h"
#include "conformance/faults/faults.h"
#include "dumps/error.h"
#include "dumps/metrics.h"
#include "dumps/names.h"
#include "dumps/text.h"
#include "engine/formats/loader.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

std::string value_name(const Value& v) {
  return (v.layer < 0 ? "" : "layer." + std::to_string(v.layer) + "/") + v.phase;
}

/// A value of a manifest by its JSON pointer, or null.
const Json* look(const Json& manifest, const char* pointer) {
  const Json::json_pointer p(pointer);
  return manifest.is_object() && manifest.contains(p) ? &manifest[p] : nullptr;
}

template <typename T, size_t n>
std::optional<T> by_name(const T (&all)[n], const Json* name) {
  if (name && name->is_string())
    for (T t : all)
      if (name_of(t) == name->get<std::string>()) return t;
  return std::nullopt;
}

}  // namespace

DumpOrigin origin_of(const Dump& dump, const std::string& model_hash) {
  DumpOrigin out;
  const Json& m = dump.manifest();
  const Json *engine = look(m, "/engine/name"), *hash = look(m, "/model/hash"), *prompts = look(m, "/prompts"),
             *options = look(m, "/options");
  if (!engine || *engine != "assay") {
    out.why_not =
        "made by " + (engine && engine->is_string() ? engine->get<std::string>() : std::string("another engine"));
    return out;
  }
  if (!hash || *hash != model_hash) {
    out.why_not = "made with another model file than --model";
    return out;
  }
  constexpr KvType kCaches[] = {KvType::f32, KvType::f16, KvType::bf16};
  constexpr Activations kKinds[] = {Activations::s16, Activations::s8, Activations::f32};
  constexpr Isa kIsas[] = {Isa::scalar, Isa::avx2, Isa::avx512, Isa::avx512vnni, Isa::neon};
  try {
    const auto kv = by_name(kCaches, look(m, "/options/kv"));
    const auto kind = by_name(kKinds, look(m, "/options/activations"));
    if (!kv || !kind || !prompts || !options) throw Error(ErrorKind::malformed, "manifest", "options are missing");
    out.spec.engine.kv = *kv;
    out.spec.engine.activations = *kind;
    out.spec.engine.context = options->value("context", int64_t(0));
    out.spec.engine.slots = options->value("slots", 1);
    out.spec.engine.poison = options->value("poison", false);
    out.spec.generate.chunk = options->value("chunk", int64_t(0));
    out.spec.generate.batch = options->value("batch", false);
    out.spec.generate.slot = options->value("slot", 0);
    // A set that this machine lacks is answered by the best one it has: all give the same bits.
    if (const auto isa = by_name(kIsas, look(m, "/device/isa")); isa && isa_supported(*isa)) out.spec.engine.isa = *isa;
    for (const Json& p : *prompts) {
      Request r;
      r.ids = p.at("ids").get<std::vector<int32_t>>();
      r.decode = p.at("decode").get<int64_t>();
      r.forced = p.at("fed_ids").get<std::vector<int32_t>>();
      out.spec.requests.push_back(std::move(r));
    }
    if (const Json* planted = look(m, "/planted_faults")) out.plants = planted->get<std::vector<std::string>>();
  } catch (const std::exception& e) {
    throw Error(ErrorKind::malformed, (dump.path() / "manifest.json").string(),
                std::string("does not say how the dump was made: ") + e.what());
  }
  out.ours = true;
  return out;
}

Rewrite plant_all(std::vector<std::string> names) {
  return [names = std::move(names)](Engine& e) {
    for (const std::string& name : names) plant(e, name);
  };
}

EngineReplayer::EngineReplayer(const Dump& base, const Dump& target, Options options)
    : model_(std::make_shared<Model>(load_model(options.model))),
      options_(std::move(options)),
      clean_(build_program(*model_)),
      base_{base, origin_of(base, model_->provenance.hash), {}, {}, ""},
      target_{target, origin_of(target, model_->provenance.hash), {}, {}, ""} {
  for (SideState* s : {&base_, &target_}) {
    s->origin.spec.engine.threads = options_.threads;
    // Forced experts are what the dump holds (origin_of does not know the model's layers).
    for (size_t i = 0; s->origin.ours && i < s->origin.spec.requests.size(); i++) {
      const Json* forced = look(s->dump.manifest(), fmt::format("/prompts/{}/forced_experts", i).c_str());
      if (forced && forced->is_boolean() && forced->get<bool>())
        s->origin.spec.requests[i].experts = forced_experts(s->dump, fmt::format("prompt{}", i), model_->config);
    }
    if (!s->origin.ours && options_.engine) s->origin.spec.engine = *options_.engine;
    if (!s->origin.ours && !options_.engine) s->origin.spec.engine.kv = KvType::f32;
  }
  if (options_.isa) target_.origin.spec.engine.isa = *options_.isa;
}

EngineReplayer::~EngineReplayer() = default;

std::string EngineReplayer::about() const {
  const DumpOrigin& t = target_.origin;
  std::string out = fmt::format("assay, {} {}, cpu {}", model_->config.family, model_->provenance.quantisation,
                                name_of(t.spec.engine.isa));
  if (t.ours) return out + "; the target is run again" + (t.plants.empty() ? "" : " with its planted faults");
  return out + "; the target was " + t.why_not;
}

Rewrite EngineReplayer::target_plant() const {
  return options_.plant ? options_.plant : plant_all(target_.origin.plants);
}

std::unique_ptr<Engine> EngineReplayer::engine_of(Side side) const {
  if (side == Side::base) return make_engine(model_, base_.origin.spec);
  // A fault may write into weights: the target has a model of its own, so that ours stays what the file says.
  auto engine = make_engine(std::make_shared<Model>(load_model(options_.model)), target_.origin.spec);
  target_plant()(*engine);
  return engine;
}

std::optional<EngineReplayer::At> EngineReplayer::place(const std::string& name) const {
  const auto n = parse_tensor_name(name);
  if (!n || n->pass.empty() || n->is_state()) return std::nullopt;
  const auto pass = pass_from_name(n->pass);
  if (!pass || (*pass != Pass::prefill && *pass != Pass::decode)) return std::nullopt;
  At at;
  at.name = name;
  at.prefix = n->prompt + "/" + n->pass + "/" + n->step + "/";
  at.prompt = n->prompt_number();
  at.pass = *pass;
  at.step = n->step_number();
  at.last_only = n->phase == "logits_last";
  const std::optional<int> layer = n->layer_number();
  if (!layer) return std::nullopt;
  at.node = clean_.find(*layer, at.last_only ? "logits" : n->phase);
  if (!at.node || at.node->output == kNoValue) return std::nullopt;
  for (const Side side : {Side::base, Side::target}) {
    const DumpTensor* t = side_of(side).dump.find(name);
    if (t) at.rows = t->rows();
    const DumpTensor* ids = side_of(side).dump.find(n->prompt + "/ids");
    const auto& requests = side_of(side).origin.spec.requests;
    const int64_t length = ids                                    ? ids->elements()
                           : at.prompt < int64_t(requests.size()) ? int64_t(requests[size_t(at.prompt)].ids.size())
                                                                  : -1;
    if (at.pass == Pass::decode || at.last_only) {
      if (length < 0) continue;
      at.first_position = at.pass == Pass::decode ? length + at.step : length - 1;
    }
  }
  if (at.rows < 1 || (at.pass == Pass::decode && at.first_position == 0)) return std::nullopt;
  return at;
}

std::optional<std::vector<std::string>> EngineReplayer::inputs(const std::string& name) const {
  const auto at = place(name);
  if (!at) return std::nullopt;
  std::vector<std::string> out;
  for (ValueId v : at->node->inputs) out.push_back(at->prefix + value_name(clean_.values[size_t(v)]));
  if (at->node->op == OpKind::attention)
    for (const char* half : {"k", "v"}) out.push_back(fmt::format("state:layer.{}/{}", at->node->layer, half));
  return out;
}

namespace {

/// Passes on the values of one prompt under their logical names.
class Keeper : public GenerateObserver {
 public:
  using Sink =
      std::function<void(const std::string& name, int64_t row0, int64_t rows, const float* data, int64_t columns)>;
  Keeper(int32_t prompt, std::function<bool(const Node&)> wants, Sink sink,
         std::function<void(const Node&, const Batch&)> after)
      : prompt_(prompt), wants_(std::move(wants)), sink_(std::move(sink)), after_(std::move(after)) {}
  void value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows,
             int64_t columns) override {
    after_(node, batch);
    if (!wants_(node)) return;
    int64_t start = 0;
    size_t r = 0;
    for (const Segment& s : batch.segments) {
      const size_t first = r;
      while (r < rows.size() && rows[r] < start + s.rows) r++;
      if (r > first && s.prompt == prompt_) {
        const int64_t row0 = batch.pass == Pass::prefill ? s.position + rows[first] - start : 0;
        sink_(tensor_name(s.prompt, batch.pass, s.step, node.layer, node.phase), row0, int64_t(r - first),
              data + int64_t(first) * columns, columns);
      }
      start += s.rows;
    }
  }

 private:
  int32_t prompt_;
  std::function<bool(const Node&)> wants_;
  Sink sink_;
  std::function<void(const Node&, const Batch&)> after_;
};

}  // namespace

/// Runs a side up to the node's pass and keeps what the node depends on; the target's operands are watched. True: an
/// operand became wrong while the engine ran, and only tracking would say behind which node.
bool EngineReplayer::run_once(Side side, const At& at, bool track) {
  SideState& s = side_of(side);
  DumpSpec spec = s.origin.spec;
  if (!spec.generate.batch) spec.requests.resize(size_t(at.prompt) + 1);
  Request& r = spec.requests[size_t(at.prompt)];
  r.decode = at.pass == Pass::prefill ? 0 : std::min(r.decode, at.step + 1);
  r.forced.resize(std::min(r.forced.size(), size_t(r.decode)));
  std::unique_ptr<Engine> engine = engine_of(side);
  const auto wants = [&](const Node& n) {
    if (n.layer == at.node->layer && n.phase == at.node->phase) return true;
    if (at.node->op == OpKind::attention && n.layer == at.node->layer && (n.phase == "k_rope" || n.phase == "v_proj"))
      return true;
    return std::any_of(at.node->inputs.begin(), at.node->inputs.end(), [&](ValueId v) {
      const Value& x = clean_.values[size_t(v)];
      return x.layer == n.layer && x.phase == n.phase;
    });
  };
  s.kept.clear();
  std::optional<OperandWatch> watch;
  if (side == Side::target) {
    OperandWatch::Known known;
    known.cache_rows = [&](const char* phase, int64_t rows) {
      std::vector<float> out;
      const std::string stem = fmt::format("prompt{}/", at.prompt),
                        rest = fmt::format("/layer.{}/{}", at.node->layer, phase);
      for (int64_t step = -1; step <= (at.pass == Pass::decode ? at.step : -1); step++) {
        const auto it = s.kept.find(stem + (step < 0 ? "prefill/0" : fmt::format("decode/{}", step)) + rest);
        if (it == s.kept.end()) return std::vector<float>();
        out.insert(out.end(), it->second.x.begin(), it->second.x.end());
        if (int64_t(out.size()) > rows * it->second.columns) out.resize(size_t(rows * it->second.columns));
      }
      return out;
    };
    known.input_rows = [&](const std::string& value, int64_t position, int64_t rows) {
      const auto it = s.kept.find(at.prefix + value);
      const int64_t row0 = at.pass == Pass::prefill ? position : 0;
      if (it == s.kept.end() || it->second.rows < row0 + rows) return std::vector<float>();
      const auto from = it->second.x.begin() + row0 * it->second.columns;
      return std::vector<float>(from, from + rows * it->second.columns);
    };
    watch.emplace(*engine, *model_, clean_, OperandWatch::Node{*at.node, at.prompt, at.pass, at.step}, std::move(known),
                  track);
  }
  Keeper keeper(
      at.prompt, wants,
      [&](const std::string& name, int64_t row0, int64_t rows, const float* data, int64_t columns) {
        Values& v = s.kept[name];
        v.columns = columns;
        v.rows = row0 + rows;
        v.x.resize(size_t(v.rows * columns));
        std::memcpy(&v.x[size_t(row0 * columns)], data, size_t(rows * columns) * sizeof(float));
      },
      [&](const Node& n, const Batch& b) {
        if (watch) watch->after(n, b);
      });
  GenerateOptions options = spec.generate;
  options.all_logits = at.node->requested_rows_only && !at.last_only;
  generate(*engine, spec.requests, options, &keeper);
  if (at.node->requested_rows_only && at.last_only) {  // only the last row was computed, and lies at its position
    Values& v = s.kept[at.prefix + "logits"];
    v.x.erase(v.x.begin(), v.x.end() - std::min<std::ptrdiff_t>(v.columns, std::ptrdiff_t(v.x.size())));
    v.rows = 1;
  }
  if (!watch) return false;
  const bool again = watch->wants_tracking();
  operands_ = watch->take();
  return again;
}

void EngineReplayer::run_again(Side side, const At& at) {
  SideState& s = side_of(side);
  if (s.run_for == at.name) return;
  s.run_for = at.name;
  if (!s.origin.ours || size_t(at.prompt) >= s.origin.spec.requests.size()) return;
  if (run_once(side, at, false)) run_once(side, at, true);
}

/// A value of one side in f32: from the dump, or from running the side again. Null: not to be had.
const EngineReplayer::Values* EngineReplayer::value(Side side, const At& at, const std::string& name) {
  SideState& s = side_of(side);
  if (const auto it = s.read.find(name); it != s.read.end()) return &it->second;
  const DumpTensor* t = s.dump.find(name);
  if (t && t->data && (is_float(t->dtype) || t->dtype == DType::i64)) {  // ids are whole numbers in f32 here
    Values v{t->rows(), t->columns(), {}};
    v.x.resize(size_t(t->elements()));
    for (int64_t i = 0; i < t->elements(); i++) v.x[size_t(i)] = float(value_at(t->dtype, t->data, i));
    return &(s.read[name] = std::move(v));
  }
  run_again(side, at);
  const auto it = s.kept.find(name);
  return it == s.kept.end() ? nullptr : &it->second;
}

std::optional<std::vector<float>> EngineReplayer::base_value(const std::string& node) {
  const auto at = place(node);
  const Values* v = at ? value(Side::base, *at, node) : nullptr;
  return v ? std::optional(v->x) : std::nullopt;
}

EngineOptions EngineReplayer::options_of(Side side) const {
  return side_of(side).origin.spec.engine;
}

/// Rows [first, first + rows) of the node's tensor with one side's values, and weights and tables of the source.
std::optional<NodeCase> EngineReplayer::make_case(const At& at, Side side, int64_t first, int64_t rows,
                                                  const EngineOptions& options) {
  const Node& n = *at.node;
  NodeCase c;
  c.config = model_->config;
  c.options = options;
  c.node = n;
  c.pass = at.pass;
  c.step = at.step;
  c.first_position = at.first_position + first;
  c.rows = rows;
  c.columns = clean_.values[size_t(n.output)].columns;
  for (ValueId id : n.inputs) {
    const Value& v = clean_.values[size_t(id)];
    const Values* x = value(side, at, at.prefix + value_name(v));
    const int64_t row = at.last_only && x ? x->rows - 1 : first;
    if (!x || x->columns != v.columns || x->rows < row + rows) return std::nullopt;
    c.inputs.emplace_back(x->x.begin() + row * v.columns, x->x.begin() + (row + rows) * v.columns);
  }
  if (n.op == OpKind::embed) {
    const DumpTensor* ids = side_of(side).dump.find(fmt::format("prompt{}/ids", at.prompt));
    const auto& requests = side_of(side).origin.spec.requests;
    for (int64_t r = 0; r < rows; r++) {
      const int64_t p = c.first_position + r;
      if (at.pass == Pass::prefill && ids && ids->data && ids->dtype == DType::i64 && p < ids->elements()) {
        int64_t id;
        std::memcpy(&id, ids->data + 8 * p, 8);
        c.ids.push_back(int32_t(id));
      } else if (size_t(at.prompt) < requests.size()) {
        const Request& q = requests[size_t(at.prompt)];
        const bool prompt = p < int64_t(q.ids.size());
        if (!prompt && size_t(p) - q.ids.size() >= q.forced.size()) return std::nullopt;
        c.ids.push_back(prompt ? q.ids[size_t(p)] : q.forced[size_t(p) - q.ids.size()]);
      } else {
        return std::nullopt;
      }
      if (c.ids.back() < 0 || c.ids.back() >= n.weight->rows) return std::nullopt;
    }
  }
  if (n.weight) c.weight = *n.weight;
  if (n.vector) c.vector = *n.vector;
  c.storage = {model_};
  if (n.op == OpKind::rope) {
    const RopeTable table = make_rope_table(c.config.rope, c.positions());
    const auto from = c.first_position * table.pairs;
    c.cos.assign(table.cos.begin() + from, table.cos.end());
    c.sin.assign(table.sin.begin() + from, table.sin.end());
  }
  /// Rows 0 .. positions of what this layer computed under a name.
  const auto history = [&](const std::string& phase, int64_t width) -> std::optional<std::vector<float>> {
    const std::string stem = fmt::format("prompt{}/", at.prompt), rest = fmt::format("layer.{}/{}", n.layer, phase);
    const Values* x = value(side, at, stem + "prefill/0/" + rest);
    if (!x || x->columns != width) return std::nullopt;
    std::vector<float> all(x->x.begin(), x->x.end());
    for (int64_t s = 0; at.pass == Pass::decode && s <= at.step; s++) {
      const Values* y = value(side, at, fmt::format("{}decode/{}/{}", stem, s, rest));
      if (!y || y->columns != width || y->rows != 1) return std::nullopt;
      all.insert(all.end(), y->x.begin(), y->x.end());
    }
    if (int64_t(all.size()) < c.positions() * width) return std::nullopt;
    return all;
  };
  if (n.op == OpKind::attention) {
    const int64_t width = c.config.kv_heads * c.config.head_dim;
    const auto k = history("k_rope", width), v = history("v_proj", width);
    if (!k || !v) return std::nullopt;
    store_rows(c.config, options.kv, c.positions(), k->data(), v->data(), c.k, c.v);
  }
  if (n.op == OpKind::conv) {
    const int64_t width = c.config.conv_width, channels = c.columns;
    c.conv_state.assign(size_t(width * channels), 0.0f);
    const auto inputs = history(clean_.values[size_t(n.inputs[0])].phase, channels);
    if (!inputs) return std::nullopt;
    for (int64_t t = std::max<int64_t>(0, width - c.first_position); t < width; t++)
      std::copy_n(inputs->begin() + (c.first_position - width + t) * channels, channels, c.conv_state.begin() + t * channels);
  }
  if (n.op == OpKind::delta_rule) {   // by the scalar kernel on the rows before
    c.recurrent_state.assign(size_t(n.heads * n.k_dim * n.head_dim), 0.0f);
    std::vector<std::vector<float>> in;
    for (ValueId id : n.inputs) {
      auto rows_of = history(clean_.values[size_t(id)].phase, clean_.values[size_t(id)].columns);
      if (!rows_of) return std::nullopt;
      in.push_back(std::move(*rows_of));
    }
    std::vector<float> nobody_reads(size_t(c.first_position * c.columns));
    const RowSpan span{0, 0, c.first_position};
    const DeltaRuleArgs a{in[0].data(), in[1].data(), in[2].data(), in[3].data(), in[4].data(), nobody_reads.data(), c.recurrent_state.data(), &span,
                          n.k_heads,    n.heads,      n.k_dim,      n.head_dim};
    kernels(Isa::scalar).delta_rule(a, 0, n.heads * delta_blocks(n.head_dim));
  }
  return c;
}

std::optional<Replay> EngineReplayer::replay_rows(const At& at, Side inputs, int64_t first, int64_t rows) {
  const bool as_target = inputs == Side::base;  // the target's kernel, held against the base's value
  const EngineOptions options = options_of(Side::target);
  const auto c = make_case(at, inputs, first, rows, options);
  const Values* want = value(inputs, at, at.last_only ? at.prefix + "logits" : at.name);
  if (at.last_only && !want) want = value(inputs, at, at.name);
  if (!c || !want || want->columns != c->columns) return std::nullopt;
  const NodeRun run = run_case(*c, as_target ? target_plant() : Rewrite());
  Replay out;
  out.variant = run.variant;
  out.isa = name_of(options.isa);
  out.first_row = first;
  out.rows = rows;
  out.columns = c->columns;
  out.got = run.value;
  canonicalise(DType::f32, out.got.data(), int64_t(out.got.size()));
  const int64_t row = at.last_only ? want->rows - 1 : first;
  if (want->rows < row + rows) return std::nullopt;
  std::vector<float> expected(want->x.begin() + row * c->columns, want->x.begin() + (row + rows) * c->columns);
  canonicalise(DType::f32, expected.data(), int64_t(expected.size()));
  const auto* bytes = reinterpret_cast<const std::byte*>(expected.data());
  out.expected.assign(bytes, bytes + expected.size() * sizeof(float));
  return out;
}

std::optional<Replay> EngineReplayer::replay(const std::string& name, Side inputs) {
  const auto at = place(name);
  if (!at) return std::nullopt;
  // In the pieces that the target was run in: what a kernel does may depend on a pass's rows, which is a fault to be
  // seen.
  const int64_t chunk = side_of(Side::target).origin.spec.generate.chunk;
  const int64_t step = at->pass == Pass::prefill && !at->last_only && chunk > 0 ? chunk : at->rows;
  std::optional<Replay> out;
  for (int64_t first = 0; first < at->rows; first += step) {
    auto part = replay_rows(*at, inputs, first, std::min(step, at->rows - first));
    if (!part) return std::nullopt;
    if (!out) {
      out = std::move(part);
      continue;
    }
    out->rows += part->rows;
    out->got.insert(out->got.end(), part->got.begin(), part->got.end());
    out->expected.insert(out->expected.end(), part->expected.begin(), part->expected.end());
  }
  return out;
}

std::vector<Operand> EngineReplayer::operands(const std::string& name) {
  const auto at = place(name);
  if (!at) return {};
  run_again(Side::target, *at);
  return operands_;
}

std::string EngineReplayer::not_reproducible(const std::string& name) {
  const auto at = place(name);
  if (!at) return "";
  const DumpTensor* t = target_.dump.find(name);
  run_again(Side::target, *at);
  const auto it = target_.kept.find(at->last_only ? at->prefix + "logits" : name);
  if (!t || it == target_.kept.end()) return "the run has no such value";
  std::vector<float> x = it->second.x;
  if (int64_t(x.size()) != t->elements()) return "another number of rows";
  canonicalise(DType::f32, x.data(), int64_t(x.size()));
  if (!t->xxh3_128.empty())
    return xxh3_128_hex(x.data(), x.size() * sizeof(float)) == t->xxh3_128 ? "" : "its hash differs";
  if (!t->data || t->dtype != DType::f32) return "";
  for (int64_t i = 0; i < t->elements(); i++)
    if (std::memcmp(&x[size_t(i)], t->data + 4 * i, 4) != 0)
      return fmt::format("element {}: {:.9g}, the dump holds {:.9g}", i, x[size_t(i)], value_at(t->dtype, t->data, i));
  return "";
}

}  // namespace assay

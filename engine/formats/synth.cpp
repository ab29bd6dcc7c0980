#include "engine/formats/synth.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/formats/assemble.h"
#include "engine/formats/hf_config.h"
#include "engine/formats/provenance.h"
#include "engine/formats/quantise.h"
#include "engine/formats/synth_blocks.h"
#include "engine/large_memory.h"
#include "engine/thread_pool.h"

namespace assay {
namespace {

constexpr std::string_view kPrefix = "synth:";
constexpr const char* kForm = "synth:SHAPE:TYPE[:layers=N][:seed=S], like synth:0.6B:Q4_0:layers=2";
/// Part of every model's hash: a change of any made byte is another version (synth_test.cpp pins the bytes).
constexpr const char* kGenerator = "assay synth 1";

// Shapes of Qwen3-0.6B, Qwen3-VL-2B (its text decoder), Qwen3-8B, OLMo-2-0425-1B, Qwen2.5-7B, Qwen3-30B-A3B and Qwen3.5-27B: their
// config.json.
constexpr SynthShape kShapes[] = {
    {"0.6B", "qwen3", 1024, 28, 16, 8, 128, 3072, 151936, true, 1e6, 40960},
    {"VL-2B", "qwen3_vl", 2048, 28, 16, 8, 128, 6144, 151936, true, 5e6, 262144},
    {"8B", "qwen3", 4096, 36, 32, 8, 128, 12288, 151936, false, 1e6, 40960},
    {"OLMo2-1B", "olmo2", 2048, 16, 16, 16, 128, 8192, 100352, false, 5e5, 4096},
    {"Qwen2.5-7B", "qwen2", 3584, 28, 28, 4, 128, 18944, 152064, false, 1e6, 32768},
    {"30B-A3B", "qwen3_moe", 2048, 48, 32, 4, 128, 6144, 151936, false, 1e6, 40960, 128, 8, 768},
    {"27B", "qwen3_5", 5120, 64, 24, 4, 256, 17408, 248320, false, 1e7, 262144, 0, 0, 0, 4, 16, 48, 128, 4},
};

bool same_name(std::string_view a, std::string_view b) {
  auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; };
  return a.size() == b.size() &&
         std::equal(a.begin(), a.end(), b.begin(), [&](char x, char y) { return lower(x) == lower(y); });
}

Config config_of(const SynthShape& s) {
  Config c;
  c.family = s.family;
  c.layers = s.layers;
  c.hidden = s.hidden;
  c.heads = s.heads;
  c.kv_heads = s.kv_heads;
  c.head_dim = s.head_dim;
  c.ffn = s.ffn;
  c.vocab = s.vocab;
  c.context = s.context;
  c.rms_eps = 1e-6;
  c.tied = s.tied;
  set_wiring(c);
  c.qkv_bias = c.family == "qwen2";
  c.rope.theta = s.theta;
  c.rope.rotary = s.head_dim;
  c.experts = s.experts;
  c.experts_per_token = s.experts_used;
  c.expert_ffn = s.expert_ffn;
  c.norm_topk_prob = s.experts > 0;
  if (s.attention_interval > 0) {
    for (int64_t i = 0; i < s.layers; i++) c.gdn_layers.push_back((i + 1) % s.attention_interval != 0);
    c.gdn_k_heads = s.gdn_k_heads;
    c.gdn_v_heads = s.gdn_v_heads;
    c.gdn_k_dim = c.gdn_v_dim = s.gdn_dim;
    c.conv_width = s.conv;
    c.rope.rotary = s.head_dim / 4;
    c.rope.mrope_section = {11, 11, 10};
  }
  if (c.family == "qwen3_vl") c.rope.mrope_section = {24, 20, 20};
  c.eos = {s.vocab - 1};
  return c;
}

/// Config and o_bias of the shape, before --layers.
std::pair<Config, bool> find_shape(const std::string& shape) {
  std::string known;
  for (const SynthShape& s : kShapes) {
    if (same_name(s.name, shape)) {
      if (!s.runs())
        throw Error(ErrorKind::usage, "shape " + std::string(s.name),
                    fmt::format("the engine does not run its family {}", s.family), supported_families());
      return {config_of(s), false};
    }
    known += fmt::format("{}, ", s.name);
  }
  std::error_code ignored;
  std::filesystem::path path = shape;
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  if (!std::filesystem::is_regular_file(path, ignored))
    throw Error(ErrorKind::usage, "shape", "is neither a known one nor a config.json", known + "or a file",
                in_quotes(shape));
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  if (!in) throw Error(ErrorKind::io, path.string(), "can't be read");
  HfConfig hf = parse_hf_config(text.str(), path.string());
  return {hf.config, hf.o_bias};
}

class LayoutBuilder {
 public:
  LayoutBuilder(const Config& c, bool o_bias, WeightType type) : c_(c), o_bias_(o_bias), type_(type) {}

  SynthLayout build() {
    const TensorNames& n = kGgufNames;
    matrix(n.embed, c_.vocab, c_.hidden);
    for (int64_t i = 0; i < c_.layers; i++) layer(i, n.layer + std::to_string(i) + ".");
    norm(n.final_norm, c_.hidden);
    if (!c_.tied) matrix(n.lm_head, c_.vocab, c_.hidden);
    out_.config = c_;
    out_.o_bias = o_bias_;
    return std::move(out_);
  }

 private:
  void layer(int64_t i, const std::string& stem) {
    const TensorNames& n = kGgufNames;
    auto weight = [&](const char* name) { return stem + name + ".weight"; };
    auto bias = [&](const char* name, int64_t rows) {
      out_.tensors.push_back({stem + name + ".bias", {rows}, WeightType::f32, 0.5, 0});
    };
    const int64_t q_rows = c_.q_rows(), kv_rows = c_.kv_heads * c_.head_dim;
    const double residual = 1 / std::sqrt(2.0 * double(c_.layers));
    if (!c_.post_norm) norm(weight(n.attn_norm), c_.hidden);
    if (c_.is_gdn(i)) {
      delta_net(stem, residual);
      feed_forward(i, stem, residual);
      return;
    }
    matrix(weight(n.q), q_rows, c_.hidden);
    matrix(weight(n.k), kv_rows, c_.hidden);
    matrix(weight(n.v), kv_rows, c_.hidden);
    if (c_.qkv_bias) {
      bias(n.q, q_rows);
      bias(n.k, kv_rows);
      bias(n.v, kv_rows);
    }
    matrix(weight(n.o), c_.hidden, c_.heads * c_.head_dim, residual);
    if (o_bias_) bias(n.o, c_.hidden);
    if (c_.qk_norm) {
      norm(weight(n.q_norm), c_.qk_norm_columns(c_.heads));
      norm(weight(n.k_norm), c_.qk_norm_columns(c_.kv_heads));
    }
    feed_forward(i, stem, residual);
  }

  void delta_net(const std::string& stem, double residual) {
    const TensorNames& n = kGgufNames;
    auto weight = [&](const char* name) { return stem + name + ".weight"; };
    matrix(weight(n.gdn_qkv), c_.gdn_channels(), c_.hidden);
    matrix(weight(n.gdn_z), c_.gdn_v_columns(), c_.hidden);
    if (c_.family == "qwen3_next") {
      matrix(weight(n.gdn_ba), 2 * c_.gdn_v_heads, c_.hidden);
    } else {
      matrix(weight(n.gdn_b), c_.gdn_v_heads, c_.hidden);
      matrix(weight(n.gdn_a), c_.gdn_v_heads, c_.hidden);
    }
    out_.tensors.push_back({weight(n.gdn_conv), {c_.gdn_channels(), c_.conv_width}, WeightType::f32, 1 / std::sqrt(double(c_.conv_width)), 0});
    // A state that forgets a tenth to nine tenths of itself in a step, about.
    out_.tensors.push_back({stem + n.gdn_a_log, {c_.gdn_v_heads}, WeightType::f32, 0.9, -1});
    out_.tensors.push_back({stem + n.gdn_dt, {c_.gdn_v_heads}, WeightType::f32, 0.5, 0});
    norm(weight(n.gdn_norm), c_.gdn_v_dim);
    matrix(weight(n.gdn_out), c_.hidden, c_.gdn_v_columns(), residual);
  }

  void feed_forward(int64_t i, const std::string& stem, double residual) {
    const TensorNames& n = kGgufNames;
    auto weight = [&](const char* name) { return stem + name + ".weight"; };
    if (c_.post_norm) {
      // Behind the product, the norm alone sets how much a layer adds.
      norm(weight(n.attn_post_norm), c_.hidden, residual);
      norm(weight(n.ffn_post_norm), c_.hidden, residual);
    } else {
      norm(weight(c_.gated_attention ? n.attn_post_norm : n.ffn_norm), c_.hidden);
    }
    if (c_.has_experts(i)) {
      experts(stem, residual);
      return;
    }
    matrix(weight(n.gate), c_.ffn, c_.hidden);
    matrix(weight(n.up), c_.ffn, c_.hidden);
    matrix(weight(n.down), c_.hidden, c_.ffn, residual);
  }

  void experts(const std::string& stem, double residual) {
    const TensorNames& n = kGgufNames;
    auto weight = [&](const char* name) { return stem + name + ".weight"; };
    auto router = [&](const char* name, int64_t rows) {
      out_.tensors.push_back({weight(name), {rows, c_.hidden}, WeightType::f32, 1 / std::sqrt(double(c_.hidden)), 0});
    };
    auto all = [&](const char* name, int64_t rows, int64_t columns, double factor = 1) {
      matrix(weight(name), rows, columns, factor);
      out_.tensors.back().shape = {c_.experts, rows, columns};
    };
    router(n.router, c_.experts);
    all(n.expert_gate, c_.expert_ffn, c_.hidden);
    all(n.expert_up, c_.expert_ffn, c_.hidden);
    all(n.expert_down, c_.hidden, c_.expert_ffn, residual);
    if (c_.shared_expert_ffn == 0) return;
    matrix(weight(n.shared_gate), c_.shared_expert_ffn, c_.hidden);
    matrix(weight(n.shared_up), c_.shared_expert_ffn, c_.hidden);
    matrix(weight(n.shared_down), c_.hidden, c_.shared_expert_ffn, residual);
    router(n.shared_expert_gate, 1);
  }

  void norm(std::string name, int64_t n, double factor = 1) {
    out_.tensors.push_back({std::move(name), {n}, WeightType::f32, 0.5 * factor, factor});
  }

  void matrix(std::string name, int64_t rows, int64_t columns, double factor = 1) {
    const WeightType t = fitting_type(type_, columns);
    if (t != type_)
      out_.notes.push_back(fmt::format("{}: {} columns are no multiple of {}: {} instead of {}", name, columns,
                                       block_elements(type_), name_of(t), name_of(type_)));
    out_.tensors.push_back({std::move(name), {rows, columns}, t, factor / std::sqrt(double(columns)), 0});
  }

  const Config& c_;
  bool o_bias_;
  WeightType type_;
  SynthLayout out_;
};

uint64_t parse_count(const std::string& text, const std::string& where) {
  uint64_t v = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), v);
  if (error != std::errc() || end != text.data() + text.size())
    throw Error(ErrorKind::usage, where, "malformed number", "a whole number", in_quotes(text));
  return v;
}

}  // namespace

std::span<const SynthShape> synth_shapes() {
  return kShapes;
}

bool SynthShape::runs() const {
  return family == "qwen3_5" || family == "qwen2" || family == "qwen3" || family == "qwen3_moe" || family == "qwen3_vl" || family == "olmo2";
}

int64_t SynthShape::parameters() const {
  const int64_t q = heads * head_dim, kv = kv_heads * head_dim;
  const bool hybrid = attention_interval > 0;
  const int64_t attention_layers = hybrid ? layers / attention_interval : layers;
  // Hybrid models have a gate beside each query.
  // Of q and k per head, or over all heads (olmo2); qwen2 has biases of q, k and v instead.
  const int64_t qk_norms = family == "olmo2" ? q + kv : family == "qwen2" ? q + 2 * kv : 2 * head_dim;
  const int64_t attention = hidden * (q * (hybrid ? 2 : 1) + 2 * kv) + q * hidden + qk_norms;
  const int64_t gdn_k = gdn_k_heads * gdn_dim, gdn_v = gdn_v_heads * gdn_dim, mixed = 2 * gdn_k + gdn_v;
  // qkv, z, b and a, conv, decay and dt bias, norm, out.
  const int64_t gdn =
      hidden * (mixed + gdn_v + 2 * gdn_v_heads) + conv * mixed + 2 * gdn_v_heads + gdn_dim + gdn_v * hidden;
  const int64_t feed_forward = experts ? hidden * experts + experts * 3 * hidden * expert_ffn : 3 * hidden * ffn;
  return vocab * hidden * (tied ? 1 : 2) + hidden + layers * (2 * hidden + feed_forward) +
         attention_layers * attention + (layers - attention_layers) * gdn;
}

std::string SynthSpec::text() const {
  std::string out = fmt::format("{}{}:{}", kPrefix, shape, name_of(type));
  if (layers) out += fmt::format(":layers={}", layers);
  return out + fmt::format(":seed={}", seed);
}

bool is_synth_spec(std::string_view model) {
  return model.substr(0, kPrefix.size()) == kPrefix;
}

SynthSpec parse_synth_spec(const std::string& text) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t colon = std::min(text.find(':', at), text.size());
    parts.push_back(text.substr(at, colon - at));
    at = colon + 1;
  }
  if (parts.size() < 3 || parts[0] + ":" != kPrefix || parts[1].empty())
    throw Error(ErrorKind::usage, "model", "is no synthetic model", kForm, in_quotes(text));
  SynthSpec s;
  s.shape = parts[1];
  s.type = weight_type_from_name(parts[2], in_quotes(text));
  for (size_t i = 3; i < parts.size(); i++) {
    const size_t equals = std::min(parts[i].find('='), parts[i].size());
    const std::string key = parts[i].substr(0, equals), value = parts[i].substr(std::min(equals + 1, parts[i].size()));
    if (key == "layers")
      s.layers = int64_t(std::min<uint64_t>(parse_count(value, in_quotes(text)), INT64_MAX));
    else if (key == "seed")
      s.seed = parse_count(value, in_quotes(text));
    else
      throw Error(ErrorKind::usage, in_quotes(text), "unknown setting", kForm, in_quotes(parts[i]));
    if (key == "layers" && s.layers == 0)
      throw Error(ErrorKind::usage, in_quotes(text), "a model has layers", "layers=1 or more", "0");
  }
  return s;
}

size_t SynthTensor::bytes() const {
  return shape.size() == 1 ? size_t(shape[0]) * sizeof(float) : size_t(rows()) * row_bytes(type, shape.back());
}

SynthLayout synth_layout(const SynthSpec& spec) {
  constexpr int64_t kMaxLayers = 1 << 16;
  auto [config, o_bias] = find_shape(spec.shape);
  if (spec.layers < 0 || spec.layers > kMaxLayers)
    throw Error(ErrorKind::usage, "layers", "out of range", fmt::format("1 to {}", kMaxLayers),
                std::to_string(spec.layers));
  if (spec.layers) {
    config.layers = spec.layers;
    if (const size_t known = config.gdn_layers.size(); known > 0) {  // the pattern goes on
      std::vector<bool> kinds;
      for (int64_t i = 0; i < spec.layers; i++) kinds.push_back(config.gdn_layers[size_t(i) % known]);
      config.gdn_layers = kinds;
    }
  }
  config.mtp_layers = 0;  // random drafts are worth nothing
  return LayoutBuilder(config, o_bias, spec.type).build();
}

std::string synth_hash(const SynthLayout& layout, uint64_t seed) {
  std::string identity = fmt::format("{}\n{}\n", kGenerator, seed);
  for (const SynthTensor& t : layout.tensors)
    identity += fmt::format("{} {} {}\n", t.name, shape_text(t.shape), name_of(t.type));
  const Config& c = layout.config;
  const RopeConfig& r = c.rope;
  identity += fmt::format("{} {} {} {} {} {} {} {} {}", c.family, c.heads, c.kv_heads, c.head_dim, c.rms_eps, r.theta,
                          r.rotary, r.llama3, r.factor);
  if (!c.gdn_layers.empty()) identity += fmt::format(" {} {} {}", c.gdn_k_heads, c.gdn_k_dim, fmt::join(c.gdn_layers, ""));
  if (c.experts > 0) identity += fmt::format(" {} {}", c.experts_per_token, c.norm_topk_prob);
  return hash_pieces({{identity.data(), identity.size()}});
}

namespace {

/// Without `fill`, matrices have no bytes and all point to one place.
Model build_model(const SynthSpec& spec, int threads, bool fill, size_t* matrix_bytes) {
  const SynthLayout layout = synth_layout(spec);
  constexpr size_t kAlign = 64;
  std::vector<size_t> offsets;
  size_t total = 0;
  for (const SynthTensor& t : layout.tensors) {
    offsets.push_back(total);
    if (fill || t.shape.size() == 1) total += (t.bytes() + kAlign - 1) / kAlign * kAlign;
    if (t.shape.size() > 1) *matrix_bytes += t.bytes();
  }
  // Its pages are not touched here, so that each lies where the thread that fills it wants it.
  const std::shared_ptr<std::byte[]> storage = allocate_large(total);
  if (!storage)
    throw Error(ErrorKind::memory, spec.text(), "the weights do not fit", bytes_text(total), "",
                "layers=N makes it smaller.");

  TensorSet tensors;
  ThreadPool pool(fill ? threads : 1);
  for (size_t i = 0; i < layout.tensors.size(); i++) {
    const SynthTensor& t = layout.tensors[i];
    std::byte* data = storage.get() + offsets[i] % total;
    if (t.shape.size() == 1) {
      const Vector v = random_vector(spec.seed, t.name, t.shape[0], t.centre, t.size);
      std::memcpy(data, v.data(), v.size() * sizeof(float));
    } else if (fill) {
      constexpr size_t kTask = 1 << 18;  // bytes that are worth a task
      const RandomMatrix random(spec.seed, t.name, t.type, t.shape.back(), t.size);
      const size_t row = row_bytes(t.type, t.shape.back());
      pool.parallel_for(t.rows(), int64_t(kTask / row),
                        [&](int64_t begin, int64_t end, int) { random.write(begin, end, data + size_t(begin) * row); });
    }
    tensors.add({t.name, spec.text(), t.name, t.type, t.shape, data, t.bytes()});
  }

  Model m;
  m.config = layout.config;
  m.weights =
      assemble(layout.config, tensors, {&kGgufNames, spec.text(), layout.config.qkv_bias, layout.o_bias, false, false, !fill});
  m.weights.storage.push_back(std::shared_ptr<const void>(storage, storage.get()));
  m.provenance = {spec.text(), "synth", synth_hash(layout, spec.seed), quantisation_summary(tensors.all()), ""};
  return m;
}

}  // namespace

Model make_synthetic_model(const SynthSpec& spec, int threads) {
  size_t ignored = 0;
  return build_model(spec, threads, true, &ignored);
}

ModelOutline outline_synthetic_model(const SynthSpec& spec) {
  ModelOutline out;
  out.model = build_model(spec, 1, false, &out.copied_bytes);
  return out;
}

}  // namespace assay

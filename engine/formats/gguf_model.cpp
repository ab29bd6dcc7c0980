// From a parsed GGUF file to a Model: llama.cpp's metadata keys and tensor names (gguf-py/gguf/constants.py) and the
// undoing of its converter's transforms (convert_hf_to_gguf.py).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/formats/artifact_keys.h"
#include "engine/formats/assemble.h"
#include "engine/formats/gguf.h"
#include "engine/formats/hf_config.h"
#include "engine/formats/provenance.h"
#include "engine/formats/readers.h"
#include "engine/formats/rope_factors.h"
#include "engine/formats/widen.h"

namespace assay {
namespace {

struct Architecture {
  const char* name;
  const char* family;
};
constexpr Architecture kArchitectures[] = {
    {"llama", "llama"}, {"olmo2", "olmo2"}, {"qwen2", "qwen2"}, {"qwen3", "qwen3"},
    {"qwen35", "qwen3_5"}, {"qwen35moe", "qwen3_5_moe"}, {"qwen3moe", "qwen3_moe"}, {"qwen3next", "qwen3_next"}, {"qwen3vl", "qwen3_vl"}};

std::string known_architectures() {
  std::string out;
  for (const Architecture& a : kArchitectures) out += (out.empty() ? "" : ", ") + std::string(a.name);
  return out;
}

class GgufModel {
 public:
  explicit GgufModel(const GgufFile& f, bool outline = false) : f_(f), outline_(outline) {}

  Model load(const std::string& path, bool check_artifact) {
    architecture();
    if (check_artifact) check_artifact_keys(f_, c_.family);
    config();
    tokenizer();
    TensorSet tensors;
    for (const GgufTensor& t : f_.tensors()) {
      if (t.name == kRopeFreqs) continue;  // read by config()
      tensors.add({t.name, f_.name(), t.name, t.type, t.shape, t.data, t.bytes});
    }
    AssembleOptions options{&kGgufNames, "the metadata of " + f_.name(), c_.qkv_bias, o_bias_, c_.family == "llama", true, outline_, &copied_bytes};
    Model m;
    m.weights = assemble(c_, tensors, options);
    m.config = c_;
    if (f_.file()) m.weights.storage.push_back(f_.file());
    m.provenance = {path, "gguf", outline_ ? "" : hash_pieces({{f_.data(), f_.size()}}), quantisation_summary(tensors.all()),
                    tokenizer_hash(f_)};
    return m;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& what, const std::string& wanted,
                           const std::string& found, const std::string& hint = {}) const {
    throw Error(ErrorKind::malformed, f_.where(key), what, wanted, found, hint);
  }
  std::string arch_key(const char* suffix) const { return arch_ + "." + suffix; }
  int64_t required(const char* suffix) const {
    auto v = f_.integer(arch_key(suffix), 1, kMaxDim);
    if (!v) refuse(arch_key(suffix), "is missing", "an integer", "no such key");
    return *v;
  }

  void architecture() {
    if (auto type = f_.string("general.type"); type && *type != "model") {
      refuse("general.type", "is not a model's", "\"model\"", in_quotes(*type));
    }
    if (f_.integer("split.count", 0, 65535).value_or(1) > 1) {
      refuse("split.count", "GGUF files in several parts are not supported", "1",
             std::to_string(*f_.integer("split.count", 0, 65535)), "Join the parts first (llama-gguf-split --merge)");
    }
    auto arch = f_.string("general.architecture");
    if (!arch) refuse("general.architecture", "is missing", known_architectures(), "no such key");
    for (const Architecture& a : kArchitectures) {
      if (*arch == a.name) c_.family = a.family;
    }
    if (c_.family.empty())
      refuse("general.architecture", "is not supported", known_architectures(), in_quotes(*arch));
    arch_ = *arch;
  }

  void config() {
    c_.layers = required("block_count");
    c_.hidden = required("embedding_length");
    // Of qwen35moe it is left out by some converters: no layer is dense.
    c_.ffn = c_.family == "qwen3_5_moe" ? f_.integer(arch_key("feed_forward_length"), 1, kMaxDim).value_or(512) : required("feed_forward_length");
    c_.context = required("context_length");
    c_.heads = required("attention.head_count");
    c_.kv_heads = f_.integer(arch_key("attention.head_count_kv"), 1, kMaxDim).value_or(c_.heads);
    c_.head_dim = f_.integer(arch_key("attention.key_length"), 1, kMaxDim).value_or(c_.hidden / c_.heads);
    auto value_length = f_.integer(arch_key("attention.value_length"), 1, kMaxDim);
    if (value_length && *value_length != c_.head_dim) {
      refuse(arch_key("attention.value_length"), "differs from the key length", std::to_string(c_.head_dim),
             std::to_string(*value_length));
    }
    auto eps = f_.number(arch_key("attention.layer_norm_rms_epsilon"));
    if (!eps) refuse(arch_key("attention.layer_norm_rms_epsilon"), "is missing", "a number", "no such key");
    c_.rms_eps = *eps;
    refuse_unsupported();
    if (has_experts(c_.family)) experts();
    if (is_hybrid(c_.family)) hybrid();

    const GgufTensor* embed = f_.find_tensor(kGgufNames.embed);
    if (!embed || embed->shape.size() != 2) {
      throw Error(ErrorKind::malformed, f_.name(), fmt::format("tensor \"{}\" is not usable", kGgufNames.embed),
                  "shape [vocabulary, hidden]", embed ? shape_text(embed->shape) : "no such tensor");
    }
    c_.vocab = embed->shape[0];
    const std::string key = arch_key("vocab_size");
    if (auto stated = f_.integer(key, 1, kMaxDim); stated && *stated != c_.vocab) {
      refuse(key, "contradicts the rows of token_embd.weight", std::to_string(c_.vocab), std::to_string(*stated));
    }
    // The converter leaves the head out where it is the embedding.
    c_.tied = f_.find_tensor(kGgufNames.lm_head) == nullptr;
    set_wiring(c_);
    // GGUF has no key for biases: they are there or not, and then in all layers (assemble() asks for each).
    c_.qkv_bias = c_.family == "qwen2" || f_.find_tensor("blk.0.attn_q.bias") != nullptr;
    o_bias_ = f_.find_tensor("blk.0.attn_output.bias") != nullptr;
    rope();
    special_ids();
    check_config(c_, f_.name());
  }

  /// Every layer has experts: llama.cpp's qwen3moe knows no dense ones. It also divides the weights by their sum whatever the
  /// file says; expert_weights_norm, its key in other architectures, is written by convert for models that don't.
  void experts() {
    c_.experts = required("expert_count");
    c_.experts_per_token = required("expert_used_count");
    c_.expert_ffn = f_.integer(arch_key("expert_feed_forward_length"), 1, kMaxDim).value_or(c_.ffn / c_.experts_per_token);
    c_.norm_topk_prob = f_.boolean(arch_key("expert_weights_norm")).value_or(true);
    if (is_hybrid(c_.family)) c_.shared_expert_ffn = f_.integer(arch_key("expert_shared_feed_forward_length"), 0, kMaxDim).value_or(c_.expert_ffn);
    if (auto scale = f_.number(arch_key("expert_weights_scale")); scale && *scale != 0.0 && *scale != 1.0) {
      refuse(arch_key("expert_weights_scale"), "is not supported", "1, or no such key", fmt::format("{}", *scale));
    }
    constexpr int64_t kSoftmax = 1;  // llama.cpp, enum llama_expert_gating_func_type; 0: not said
    if (auto gating = f_.integer(arch_key("expert_gating_func"), 0, kMaxDim); gating && *gating != 0 && *gating != kSoftmax) {
      refuse(arch_key("expert_gating_func"), "is not supported", "1 (softmax), or no such key", std::to_string(*gating));
    }
  }

  /// llama.cpp's hybrids attend in every full_attention_interval-th layer; the MTP head's layer is counted among the blocks.
  void hybrid() {
    c_.mtp_layers = f_.integer(arch_key("nextn_predict_layers"), 0, kMaxDim).value_or(0);
    if (c_.mtp_layers > 1 || c_.mtp_layers >= c_.layers) {
      refuse(arch_key("nextn_predict_layers"), "is not supported", "0 or 1, and another block", std::to_string(c_.mtp_layers));
    }
    c_.layers -= c_.mtp_layers;
    const int64_t interval = f_.integer(arch_key("full_attention_interval"), 1, kMaxDim).value_or(4);
    for (int64_t i = 0; i < c_.layers; i++) c_.gdn_layers.push_back((i + 1) % interval != 0);
    c_.gdn_k_heads = required("ssm.group_count");
    c_.gdn_v_heads = required("ssm.time_step_rank");
    c_.gdn_k_dim = required("ssm.state_size");
    c_.conv_width = required("ssm.conv_kernel");
    const int64_t values = required("ssm.inner_size");
    if (values % c_.gdn_v_heads != 0) {
      refuse(arch_key("ssm.inner_size"), "is no whole number of value heads", fmt::format("a multiple of {}", c_.gdn_v_heads), std::to_string(values));
    }
    c_.gdn_v_dim = values / c_.gdn_v_heads;
  }

  /// What a model of these architectures may ask for and the engine does not do.
  void refuse_unsupported() {
    const bool of_experts = has_experts(c_.family);
    if (auto n = f_.integer(arch_key("expert_count"), 0, kMaxDim); n && *n > 0 && !of_experts) {
      refuse(arch_key("expert_count"), "mixtures of experts are not supported in this architecture", "0",
             std::to_string(*n));
    }
    if (auto w = f_.integer(arch_key("attention.sliding_window"), 0, INT64_MAX); w && *w > 0) {
      refuse(arch_key("attention.sliding_window"), "is in use", "0 or no such key", std::to_string(*w),
             "Sliding-window attention is not supported");
    }
    if (!f_.boolean(arch_key("attention.causal")).value_or(true)) {
      refuse(arch_key("attention.causal"), "is not supported", "true", "false");
    }
    if (auto type = f_.string(arch_key("rope.scaling.type")); type && *type != "none") {
      refuse(arch_key("rope.scaling.type"), "is not supported", "\"none\" (llama3 scaling comes as rope_freqs.weight)",
             in_quotes(*type));
    }
    for (const char* suffix : {"rope.scaling.factor", "rope.scale_linear"}) {
      if (auto s = f_.number(arch_key(suffix)); s && *s != 1.0 && *s != 0.0) {
        refuse(arch_key(suffix), "linear rope scaling is not supported", "1", fmt::format("{}", *s));
      }
    }
  }

  void rope() {
    RopeConfig& r = c_.rope;
    const std::string base = arch_key("rope.freq_base");
    if (auto theta = f_.number(base)) {
      r.theta = f_.find(base)->type == GgufType::f32 ? shortest_decimal(float(*theta)) : *theta;
    }
    r.rotary = f_.integer(arch_key("rope.dimension_count"), 1, kMaxDim).value_or(c_.head_dim);
    if (r.rotary != c_.head_dim && !is_hybrid(c_.family)) {
      // llama.cpp would turn dims (j, j + rotary/2), or neighbours in llama files; no converter of these families
      // writes that.
      refuse(arch_key("rope.dimension_count"), "differs from the head dimension", std::to_string(c_.head_dim),
             std::to_string(r.rotary));
    }
    if (auto sections = f_.integers(arch_key("rope.dimension_sections"))) {
      r.mrope_section = *sections;  // four: time, height, width, and a stream that these models leave at 0
      if (r.mrope_section.size() == 4 && r.mrope_section[3] == 0) r.mrope_section.pop_back();
    }
    check_config(c_, f_.name());  // before the frequencies are computed from it
    const GgufTensor* freqs = f_.find_tensor(kRopeFreqs);
    if (!freqs) return;
    const std::string where = fmt::format("{}: tensor \"{}\"", f_.name(), kRopeFreqs);
    if (freqs->shape != std::vector<int64_t>{r.rotary / 2} || is_quantised(freqs->type)) {
      throw Error(ErrorKind::malformed, where, "is not usable", fmt::format("[{}] of F32", r.rotary / 2),
                  fmt::format("{} of {}", shape_text(freqs->shape), name_of(freqs->type)));
    }
    const Vector factors = widen(freqs->type, freqs->data, freqs->shape[0]);
    for (size_t j = 0; j < factors.size(); j++) {
      if (!(factors[j] > 0 && std::isfinite(factors[j]))) {
        throw Error(ErrorKind::malformed, where, fmt::format("divisor {} is not usable", j), "a finite number above 0",
                    fmt::format("{}", factors[j]));
      }
    }
    if (std::all_of(factors.begin(), factors.end(), [](float f) { return f == 1.0f; })) return;
    auto llama3 = recognise_llama3(r, factors);
    if (!llama3) {
      throw Error(ErrorKind::malformed, where, "no known rope scaling gives these divisors",
                  "llama3 scaling with parameters that are powers of two (low 1, high 4, original context 8192 in the "
                  "published models)",
                  fmt::format("divisors from {} to {}", *std::min_element(factors.begin(), factors.end()),
                              *std::max_element(factors.begin(), factors.end())));
    }
    r = *llama3;
  }

  void special_ids() {
    auto id = [&](const char* key) { return f_.integer(key, 0, UINT32_MAX); };
    if (auto bos = id("tokenizer.ggml.bos_token_id")) c_.bos = *bos;
    for (const char* key :
         {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
      auto v = id(key);
      if (v && std::find(c_.eos.begin(), c_.eos.end(), *v) == c_.eos.end()) c_.eos.push_back(*v);
    }
  }

  /// Canaries over the vocabulary that the file carries (README.md, "Canaries").
  void tokenizer() {
    const std::string key = "tokenizer.ggml.tokens";
    auto tokens = f_.strings(key);
    if (!tokens) return;
    const int64_t count = int64_t(tokens->size());
    if (count > c_.vocab) {
      refuse(key, "has more tokens than token_embd.weight has rows", fmt::format("at most {}", c_.vocab),
             std::to_string(count), "Another model's vocabulary may be in this file");
    }
    auto types = f_.integers("tokenizer.ggml.token_type");
    if (types && int64_t(types->size()) != count) {
      refuse("tokenizer.ggml.token_type", "contradicts tokenizer.ggml.tokens", std::to_string(count),
             std::to_string(types->size()));
    }
    if (const GgufValue* scores = f_.find("tokenizer.ggml.scores"); scores && int64_t(scores->count) != count) {
      refuse("tokenizer.ggml.scores", "contradicts tokenizer.ggml.tokens", std::to_string(count),
             std::to_string(scores->count));
    }
    for (const char* special : {"bos", "eos", "eot", "eom", "unknown", "padding", "separator"}) {
      const std::string id_key = fmt::format("tokenizer.ggml.{}_token_id", special);
      auto id = f_.integer(id_key, 0, UINT32_MAX);
      if (!id) continue;
      if (*id >= count) {
        refuse(id_key, "is not a token of this vocabulary", fmt::format("an id below {}", count), std::to_string(*id),
               "Another model's vocabulary may be in this file");
      }
      constexpr int64_t kNormal = 1, kByte = 6;  // llama.cpp, enum llama_token_type
      const bool ends_or_starts = std::string(special)[0] == 'e' || std::string(special) == "bos";
      const int64_t type = types ? (*types)[size_t(*id)] : 0;
      if (ends_or_starts && (type == kNormal || type == kByte)) {
        refuse(id_key, fmt::format("token {} is an ordinary one", in_quotes((*tokens)[size_t(*id)], 40)),
               "a control token", fmt::format("token type {}", type), "Another model's vocabulary may be in this file");
      }
    }
  }

  const GgufFile& f_;
  std::string arch_;
  Config c_;
  bool o_bias_ = false;
  bool outline_;

 public:
  size_t copied_bytes = 0;
};

}  // namespace

double shortest_decimal(float x) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, x).ptr;
  double d = 0;
  std::from_chars(text, end, d);
  return d;
}

ModelOutline outline_gguf(const GgufFile& file, const std::string& path) {
  GgufModel reader(file, true);
  Model m = reader.load(path, true);
  return {std::move(m), file.size(), reader.copied_bytes};
}

Model load_gguf(const GgufFile& file, const std::string& path, bool check_artifact) {
  return GgufModel(file).load(path, check_artifact);
}

}  // namespace assay

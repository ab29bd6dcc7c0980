#include "engine/formats/hf_config.h"
#include "engine/formats/assemble.h"

#include <fmt/format.h>

#include <cmath>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/json_text.h"

namespace assay {
namespace {

// A dimension beyond this is absurd, and below it no product of two overflows int64.

std::string family_of(const JsonReader& outer, const JsonReader& text) {
  for (const JsonReader* r : {&outer, &text}) {
    auto type = r->string("model_type");
    if (!type) continue;
    for (const char* known :
         {"llama", "olmo2", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl"})
      if (*type == known) return *type;
    for (const char* text_of : {"qwen3_5", "qwen3_5_moe", "qwen3_vl"})
      if (*type == std::string(text_of) + "_text") return text_of;
    throw Error(ErrorKind::malformed, r->where("model_type"), "is not supported", supported_families(),
                in_quotes(*type));
  }
  throw Error(ErrorKind::malformed, outer.where("model_type"), "is missing", "one of " + supported_families(),
              "no such key");
}

void refuse_quantised_checkpoint(const JsonReader& r) {
  auto q = r.object("quantization_config");
  if (!q) return;
  throw Error(ErrorKind::malformed, r.where("quantization_config"), "this quantised checkpoint format is not supported",
              "weights of type F32, F16 or BF16",
              "quant_method " + in_quotes(q->string("quant_method").value_or("(none)")),
              "Quantised weights are read from GGUF: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K");
}

/// Every layer must attend over everything before it: the engine has no sliding window.
void refuse_sliding_window(const JsonReader& r, const Config& c) {
  const char* hint = "Sliding-window attention is not supported";
  if (c.gated_attention) return;  // the hybrids' layer_types say another thing (parse_hybrid)
  if (const Json* types = r.find("layer_types")) {
    if (!types->is_array() || int64_t(types->size()) != c.layers) {
      throw Error(ErrorKind::malformed, r.where("layer_types"), "contradicts num_hidden_layers",
                  fmt::format("a list of {} layer types", c.layers),
                  types->is_array() ? fmt::format("{} entries", types->size()) : "no list");
    }
    for (size_t i = 0; i < types->size(); i++) {
      const Json& type = (*types)[i];
      if (!type.is_string() || type.get<std::string>() != "full_attention") {
        throw Error(ErrorKind::malformed, r.where("layer_types"), fmt::format("layer {} is not supported", i),
                    "\"full_attention\"", type.is_string() ? in_quotes(type.get<std::string>()) : "no string", hint);
      }
    }
    return;
  }
  auto window = r.integer("sliding_window", 0, INT64_MAX);
  // llama and olmo2 have no switch for it: a window that is set is a window in use.
  const bool switchless = c.family == "llama" || c.family == "olmo2";
  const bool used = r.boolean("use_sliding_window").value_or(switchless);
  if (!window || !used) return;
  const int64_t first = switchless ? 0 : r.integer("max_window_layers", 0, kMaxDim).value_or(28);
  if (first >= c.layers) return;  // transformers: layers from max_window_layers on slide
  throw Error(ErrorKind::malformed, r.where("sliding_window"), "is in use", "null, or use_sliding_window false",
              std::to_string(*window), hint);
}

/// The object that holds rope_type, factor, ...; rope_parameters (transformers 5) wins over rope_scaling (4).
std::optional<JsonReader> rope_object(const JsonReader& r) {
  auto parameters = r.object("rope_parameters");
  auto scaling = r.object("rope_scaling");
  if (parameters && parameters->find("full_attention")) {
    throw Error(ErrorKind::malformed, r.where("rope_parameters"), "rotary settings per layer type are not supported",
                "one set of settings", "an object per layer type");
  }
  if (parameters && scaling) {
    const char* key = "rope_type";
    auto a = parameters->string(key), b = scaling->string(key);
    if (a && b && *a != *b) {
      throw Error(ErrorKind::malformed, parameters->where(key), "contradicts rope_scaling." + std::string(key),
                  in_quotes(*b), in_quotes(*a));
    }
  }
  return parameters ? parameters : scaling;
}

/// A setting that may stand at the top or inside the rotary object; both, with different values, is a contradiction.
std::optional<double> rope_number(const JsonReader& r, const std::optional<JsonReader>& rope, const char* key) {
  auto outer = r.number(key);
  auto inner = rope ? rope->number(key) : std::nullopt;
  if (outer && inner && *outer != *inner) {
    throw Error(ErrorKind::malformed, rope->where(key), fmt::format("contradicts {} at the top", key),
                fmt::format("{}", *outer), fmt::format("{}", *inner));
  }
  return inner ? inner : outer;
}

void parse_rope(const JsonReader& r, Config& c) {
  auto rope = rope_object(r);
  RopeConfig& out = c.rope;
  out.theta =
      rope_number(r, rope, "rope_theta").value_or(10000.0);  // the default of all configuration classes' base
  const double partial = rope_number(r, rope, "partial_rotary_factor").value_or(is_hybrid(c.family) ? 0.25 : 1.0);
  if (!(partial > 0 && partial <= 1)) {
    throw Error(ErrorKind::malformed, r.where("partial_rotary_factor"), "is not a usable value", "above 0, at most 1",
                fmt::format("{}", partial));
  }
  out.rotary = int64_t(double(c.head_dim) * partial);
  if (!rope) return;

  auto type = rope->string("rope_type");
  if (!type) type = rope->string("type");  // the spelling before transformers 4.43
  if (type == "llama3") {
    out.llama3 = true;
    out.factor = rope->required_number("factor");
    out.low_freq_factor = rope->required_number("low_freq_factor");
    out.high_freq_factor = rope->required_number("high_freq_factor");
    auto original = rope_number(r, rope, "original_max_position_embeddings");
    out.original_context = original ? *original : rope->required_number("original_max_position_embeddings");
  } else if (type && *type != "default") {
    throw Error(ErrorKind::malformed, rope->where("rope_type"), "is not supported", "\"default\" or \"llama3\"",
                in_quotes(*type));
  }
  if (const Json* sections = rope->find("mrope_section")) {
    if (!sections->is_array()) {
      throw Error(ErrorKind::malformed, rope->where("mrope_section"), "has the wrong type", "a list of integers",
                  "no list");
    }
    for (const Json& s : *sections) {
      if (!s.is_number_unsigned() || s.get<uint64_t>() > uint64_t(kMaxDim)) {
        throw Error(ErrorKind::malformed, rope->where("mrope_section"), "is not a usable value", "a list of sizes",
                    in_quotes(s.dump(), 40));
      }
      out.mrope_section.push_back(s.get<int64_t>());
    }
  }
}

/// Mixture of experts, as Qwen3MoeConfig has it. Where a key is absent, its class's default holds.
void parse_experts(const JsonReader& r, Config& c) {
  const auto experts = r.integer("num_experts", 1, kMaxExperts), local = r.integer("num_local_experts", 1, kMaxExperts);
  if (experts && local && *experts != *local) {
    throw Error(ErrorKind::malformed, r.where("num_local_experts"), "contradicts num_experts", std::to_string(*experts),
                std::to_string(*local));
  }
  c.experts = experts ? *experts : local.value_or(128);
  c.experts_per_token = r.integer("num_experts_per_tok", 1, kMaxExperts).value_or(8);
  c.expert_ffn = r.integer("moe_intermediate_size", 1, kMaxDim).value_or(768);
  // Qwen3NextConfig's default is true, and qwen3_5_moe has no other way.
  c.norm_topk_prob = r.boolean("norm_topk_prob").value_or(is_hybrid(c.family));
  if (is_hybrid(c.family)) c.shared_expert_ffn = r.integer("shared_expert_intermediate_size", 0, kMaxDim).value_or(512);
  c.sparse_step = r.integer("decoder_sparse_step", 1, kMaxDim).value_or(1);
  if (const Json* dense = r.find("mlp_only_layers")) {
    for (const Json& layer : *dense) {
      if (!dense->is_array() || !layer.is_number_unsigned() || layer.get<uint64_t>() >= uint64_t(c.layers)) {
        throw Error(ErrorKind::malformed, r.where("mlp_only_layers"), "is not a usable value",
                    fmt::format("a list of layers below {}", c.layers),
                    in_quotes(dense->dump(-1, ' ', true, Json::error_handler_t::replace), 40));
      }
      c.dense_layers.push_back(layer.get<int64_t>());
    }
  }
}

/// Hybrids of gated DeltaNet and gated attention, as Qwen3NextConfig and Qwen3_5TextConfig have them. Where a key is
/// absent, their classes' default holds.
void parse_hybrid(const JsonReader& r, Config& c) {
  c.gdn_layers.resize(size_t(c.layers));
  if (const Json* types = r.find("layer_types")) {
    if (!types->is_array() || int64_t(types->size()) != c.layers) {
      throw Error(ErrorKind::malformed, r.where("layer_types"), "contradicts num_hidden_layers",
                  fmt::format("a list of {} layer types", c.layers),
                  types->is_array() ? fmt::format("{} entries", types->size()) : "no list");
    }
    for (size_t i = 0; i < types->size(); i++) {
      const std::string type = (*types)[i].is_string() ? (*types)[i].get<std::string>() : "";
      if (type != "full_attention" && type != "linear_attention") {
        throw Error(ErrorKind::malformed, r.where("layer_types"), fmt::format("layer {} is not supported", i),
                    "\"full_attention\" or \"linear_attention\"", type.empty() ? "no string" : in_quotes(type));
      }
      c.gdn_layers[i] = type == "linear_attention";
    }
  } else {
    const int64_t interval = r.integer("full_attention_interval", 1, kMaxDim).value_or(4);
    for (int64_t i = 0; i < c.layers; i++) c.gdn_layers[size_t(i)] = (i + 1) % interval != 0;
  }
  c.gdn_k_heads = r.integer("linear_num_key_heads", 1, kMaxDim).value_or(16);
  c.gdn_v_heads = r.integer("linear_num_value_heads", 1, kMaxDim).value_or(32);
  c.gdn_k_dim = r.integer("linear_key_head_dim", 1, kMaxDim).value_or(128);
  c.gdn_v_dim = r.integer("linear_value_head_dim", 1, kMaxDim).value_or(128);
  c.conv_width = r.integer("linear_conv_kernel_dim", 1, kMaxDim).value_or(4);
  if (!r.boolean("attn_output_gate").value_or(true)) {
    throw Error(ErrorKind::malformed, r.where("attn_output_gate"), "is not supported", "true", "false");
  }
  // The weights say whether the head is there: many folders leave it out and keep the key.
  c.mtp_layers = r.integer("mtp_num_hidden_layers", 0, kMaxDim).value_or(1);
  if (c.mtp_layers > 1) {
    throw Error(ErrorKind::malformed, r.where("mtp_num_hidden_layers"), "is not supported", "0 or 1",
                std::to_string(c.mtp_layers));
  }
  if (r.boolean("mtp_use_dedicated_embeddings").value_or(false)) {
    throw Error(ErrorKind::malformed, r.where("mtp_use_dedicated_embeddings"), "is not supported", "false", "true");
  }
}

std::vector<int64_t> parse_ids(const JsonReader& r, const char* key) {
  const Json* v = r.find(key);
  std::vector<int64_t> ids;
  if (!v) return ids;
  if (!v->is_array()) return {*r.integer(key, 0, kMaxDim)};
  if (v->size() > kMaxSpecialIds) {
    throw Error(ErrorKind::malformed, r.where(key), "is absurd", fmt::format("at most {} ids", kMaxSpecialIds),
                std::to_string(v->size()));
  }
  for (const Json& id : *v) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > uint64_t(kMaxDim)) {
      throw Error(ErrorKind::malformed, r.where(key), "is not a usable value", "a token id or a list of token ids",
                  in_quotes(id.dump(-1, ' ', true, Json::error_handler_t::replace), 40));
    }
    ids.push_back(id.get<int64_t>());
  }
  return ids;
}

}  // namespace

bool is_hybrid(const std::string& family) {
  return family == "qwen3_5" || family == "qwen3_5_moe" || family == "qwen3_next";
}
bool has_experts(const std::string& family) {
  return family == "qwen3_moe" || family == "qwen3_5_moe" || family == "qwen3_next";
}

std::string supported_families() {
  return "llama, olmo2, qwen2, qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, qwen3_vl";
}

HfConfig parse_hf_config(std::string_view text, const std::string& name) {
  const Json json = parse_json_tree(text, name);
  const JsonReader outer(json, name);
  const JsonReader r = outer.object("text_config").value_or(outer);
  HfConfig out;
  Config& c = out.config;
  c.family = family_of(outer, r);
  refuse_quantised_checkpoint(outer);
  refuse_quantised_checkpoint(r);

  c.layers = r.required_integer("num_hidden_layers", 1, 1 << 16);
  c.hidden = r.required_integer("hidden_size", 1, kMaxDim);
  c.heads = r.required_integer("num_attention_heads", 1, kMaxDim);
  c.kv_heads = r.integer("num_key_value_heads", 1, kMaxDim).value_or(c.heads);
  // Where the key is absent, transformers' qwen3 classes mean 128 and the others hidden_size / num_attention_heads.
  // (Qwen3MoeConfig has no default: its attention takes hidden_size / num_attention_heads.)
  const bool qwen3 = c.family == "qwen3" || c.family == "qwen3_vl";
  const bool hybrid = is_hybrid(c.family), moe = has_experts(c.family);
  c.head_dim = r.integer("head_dim", 1, kMaxDim).value_or(qwen3 ? 128 : hybrid ? 256 : c.hidden / c.heads);
  // qwen3_5_moe has no dense layer and no such key.
  c.ffn = c.family == "qwen3_5_moe" ? r.integer("intermediate_size", 1, kMaxDim).value_or(512)
                                    : r.required_integer("intermediate_size", 1, kMaxDim);
  c.vocab = r.required_integer("vocab_size", 1, kMaxDim);
  c.context = r.required_integer("max_position_embeddings", 1, kMaxDim);
  c.rms_eps = r.required_number("rms_norm_eps");
  // The head belongs to the outer model, so its key decides; text_config repeats it in some checkpoints.
  c.tied = outer.boolean("tie_word_embeddings").value_or(r.boolean("tie_word_embeddings").value_or(false));
  set_wiring(c);

  const bool attention_bias = r.boolean("attention_bias").value_or(false);
  out.qkv_bias = c.qkv_bias = c.family == "qwen2" || attention_bias;
  out.o_bias = c.family != "qwen2" && attention_bias;
  if (r.boolean("mlp_bias").value_or(false)) {
    throw Error(ErrorKind::malformed, r.where("mlp_bias"), "is not supported", "false", "true");
  }
  const std::string act = r.string("hidden_act").value_or("silu");
  if (act != "silu") {
    throw Error(ErrorKind::malformed, r.where("hidden_act"), "is not supported", "\"silu\"", in_quotes(act));
  }
  refuse_sliding_window(r, c);
  if (moe) parse_experts(r, c);
  if (hybrid) parse_hybrid(r, c);
  parse_rope(r, c);

  auto bos = parse_ids(r.has("bos_token_id") ? r : outer, "bos_token_id");
  if (bos.size() > 1) {
    throw Error(ErrorKind::malformed, r.where("bos_token_id"), "is not a usable value", "one token id",
                fmt::format("{} ids", bos.size()));
  }
  if (!bos.empty()) c.bos = bos[0];
  c.eos = parse_ids(r.has("eos_token_id") ? r : outer, "eos_token_id");
  check_config(c, name);
  return out;
}

void set_wiring(Config& c) {
  const bool olmo2 = c.family == "olmo2";
  const bool hybrid = is_hybrid(c.family);
  c.qk_norm = c.family == "qwen3" || c.family == "qwen3_moe" || c.family == "qwen3_vl" || hybrid || olmo2;
  c.gated_attention = c.norm_plus_one = hybrid;
  c.qk_norm_whole = c.post_norm = olmo2;
}

void check_config(const Config& c, const std::string& name) {
  auto refuse = [&](const std::string& what, const std::string& wanted, const std::string& found) {
    throw Error(ErrorKind::malformed, name, what, wanted, found);
  };
  for (auto [what, value] : {std::pair{"the number of layers", c.layers},
                             {"the hidden size", c.hidden},
                             {"the number of query heads", c.heads},
                             {"the number of key/value heads", c.kv_heads},
                             {"the head dimension", c.head_dim},
                             {"the feed-forward size", c.ffn},
                             {"the vocabulary size", c.vocab},
                             {"the context length", c.context}}) {
    if (value < 1 || value > kMaxDim) {
      refuse(fmt::format("{} is absurd", what), fmt::format("1 to {}", kMaxDim), std::to_string(value));
    }
  }
  if (c.experts > 0) {
    for (auto [what, value, most] : {std::tuple{"the number of experts", c.experts, kMaxExperts},
                                     {"the number of experts per token", c.experts_per_token, c.experts},
                                     {"the inner size of an expert", c.expert_ffn, kMaxDim},
                                     {"decoder_sparse_step", c.sparse_step, kMaxDim}}) {
      if (value < 1 || value > most) refuse(fmt::format("{} is absurd", what), fmt::format("1 to {}", most), std::to_string(value));
    }
    if (c.shared_expert_ffn < 0 || c.shared_expert_ffn > kMaxDim)
      refuse("the inner size of the shared expert is absurd", fmt::format("0 to {}", kMaxDim), std::to_string(c.shared_expert_ffn));
  }
  if (is_hybrid(c.family)) {
    for (auto [what, value] : {std::pair{"the number of key heads", c.gdn_k_heads},
                               {"the number of value heads", c.gdn_v_heads},
                               {"the dimension of a key head", c.gdn_k_dim},
                               {"the dimension of a value head", c.gdn_v_dim},
                               {"the width of the convolution", c.conv_width}}) {
      if (value < 1 || value > kMaxDim)
        refuse(fmt::format("{} of the gated DeltaNet is absurd", what), fmt::format("1 to {}", kMaxDim),
               std::to_string(value));
    }
    if (c.gdn_v_heads % c.gdn_k_heads != 0)
      refuse("key heads do not divide value heads", fmt::format("a divisor of {}", c.gdn_v_heads),
             std::to_string(c.gdn_k_heads));
  }
  if (c.heads % c.kv_heads != 0) {
    refuse("key/value heads do not divide query heads", fmt::format("a divisor of {}", c.heads),
           std::to_string(c.kv_heads));
  }
  if (!(c.rms_eps > 0 && c.rms_eps < 1)) {
    refuse("the epsilon of the RMS norm is absurd", "above 0, below 1", fmt::format("{}", c.rms_eps));
  }
  const RopeConfig& r = c.rope;
  if (r.rotary < 2 || r.rotary % 2 != 0 || r.rotary > c.head_dim) {
    refuse("the rotary width is not usable", fmt::format("an even number from 2 to head_dim {}", c.head_dim),
           std::to_string(r.rotary));
  }
  if (!(std::isfinite(r.theta) && r.theta >= 1))
    refuse("rope theta is not usable", "at least 1", fmt::format("{}", r.theta));
  if (r.llama3 && !(r.factor >= 1 && r.low_freq_factor > 0 && r.high_freq_factor > r.low_freq_factor &&
                    r.original_context >= 1 && std::isfinite(r.factor * r.high_freq_factor * r.original_context))) {
    refuse("llama3 rope scaling is not usable",
           "factor >= 1, 0 < low_freq_factor < high_freq_factor, original context >= 1",
           fmt::format("factor {}, low {}, high {}, original context {}", r.factor, r.low_freq_factor,
                       r.high_freq_factor, r.original_context));
  }
  if (!r.mrope_section.empty()) {
    int64_t sum = 0;
    for (int64_t s : r.mrope_section) sum += s;
    if (r.mrope_section.size() != 3 || sum != r.rotary / 2) {
      refuse("mrope_section contradicts the rotary width", fmt::format("three sizes that add up to {}", r.rotary / 2),
             shape_text(r.mrope_section));
    }
  }
  for (int64_t id : c.eos) {
    if (id < 0 || id >= c.vocab) {
      refuse("the eos token id lies outside the vocabulary", fmt::format("0 to {}", c.vocab - 1), std::to_string(id));
    }
  }
  if (c.bos < -1 || c.bos >= c.vocab) {
    refuse("the bos token id lies outside the vocabulary", fmt::format("0 to {}", c.vocab - 1), std::to_string(c.bos));
  }
}

}  // namespace assay

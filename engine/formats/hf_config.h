// config.json of a Hugging Face folder -> Config. Both spellings of the rotary settings (rope_theta and rope_scaling of
// transformers 4; rope_parameters of transformers 5) and the nested text_config of vision-language models.
// Source: transformers configuration_llama.py, _olmo2.py, _qwen2.py, _qwen3.py, _qwen3_moe.py, _qwen3_vl.py, modeling_rope_utils.py.
#pragma once
#include <string>
#include <string_view>

#include "engine/model.h"

namespace assay {

struct HfConfig {
  Config config;
  bool qkv_bias = false;  // tensors *_proj.bias of q, k, v exist
  bool o_bias = false;    // and of o
};

/// Throws Error{malformed} with file and key, wanted and found. What the engine does not do is refused by name: other
/// families, rope types other than default and llama3, activations other than silu, sliding windows in use, quantised
/// checkpoints.
HfConfig parse_hf_config(std::string_view text, const std::string& name);

/// Sets the flags of Config that follow from its family alone, whatever file it came from.
void set_wiring(Config& config);

/// Checks that hold for any source of a Config: ranges, kv_heads divides heads, an even rotary width, mrope sections,
/// special ids inside the vocabulary. `name` is the file to blame.
void check_config(const Config& config, const std::string& name);

/// Families with gated DeltaNet layers, and families with mixtures of experts.
bool is_hybrid(const std::string& family);
bool has_experts(const std::string& family);

/// "llama, olmo2, qwen2, ..."
std::string supported_families();

}  // namespace assay

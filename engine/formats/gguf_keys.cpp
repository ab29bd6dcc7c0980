#include "engine/formats/gguf_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace assay {
namespace {

void put_utf8(std::string& out, int code) {  // below U+0800
  if (code < 0x80) {
    out += char(code);
  } else {
    out += char(0xc0 | code >> 6);
    out += char(0x80 | (code & 63));
  }
}

/// GPT-2's printable characters for the 256 bytes (openai/gpt-2, encoder.py, bytes_to_unicode).
std::vector<std::string> byte_tokens() {
  std::vector<std::string> out;
  int other = 256;
  for (int b = 0; b < 256; b++) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    std::string token;
    put_utf8(token, printable ? b : other++);
    out.push_back(token);
  }
  return out;
}

}  // namespace

std::optional<int64_t> attention_interval(const Config& c) {
  for (int64_t interval = 1; interval <= c.layers + 1; interval++) {
    bool fits = true;
    for (int64_t i = 0; i < c.layers; i++) fits = fits && c.is_gdn(i) == ((i + 1) % interval != 0);
    if (fits) return interval;
  }
  return std::nullopt;
}

void put_config_keys(GgufWriter& file, const Config& c, const std::string& name, WeightType type) {
  std::string arch = c.family;   // qwen3_5_moe: qwen35moe
  std::erase(arch, '_');
  auto u32 = [&](const char* key, int64_t value) { file.u32(arch + "." + key, uint32_t(value)); };
  file.string("general.architecture", arch);
  file.string("general.type", "model");
  file.string("general.name", name);
  file.u32("general.file_type", gguf_file_type(type));
  file.u32("general.quantization_version", 2);
  u32("block_count", c.state_layers());
  u32("context_length", c.context);
  u32("embedding_length", c.hidden);
  u32("feed_forward_length", c.ffn);
  u32("attention.head_count", c.heads);
  u32("attention.head_count_kv", c.kv_heads);
  u32("attention.key_length", c.head_dim);
  u32("attention.value_length", c.head_dim);
  file.f32(arch + ".attention.layer_norm_rms_epsilon", float(c.rms_eps));
  u32("vocab_size", c.vocab);
  u32("rope.dimension_count", c.rope.rotary);
  file.f32(arch + ".rope.freq_base", float(c.rope.theta));
  if (c.experts > 0) {
    u32("expert_count", c.experts);
    u32("expert_used_count", c.experts_per_token);
    u32("expert_feed_forward_length", c.expert_ffn);
    if (c.shared_expert_ffn > 0) u32("expert_shared_feed_forward_length", c.shared_expert_ffn);
    if (!c.norm_topk_prob) file.boolean(arch + ".expert_weights_norm", false);  // without it they are (gguf_model.cpp)
  }
  if (!c.gdn_layers.empty()) {
    u32("full_attention_interval", attention_interval(c).value_or(0));
    u32("ssm.conv_kernel", c.conv_width);
    u32("ssm.state_size", c.gdn_k_dim);
    u32("ssm.group_count", c.gdn_k_heads);
    u32("ssm.time_step_rank", c.gdn_v_heads);
    u32("ssm.inner_size", c.gdn_v_columns());
    if (c.mtp_layers > 0) u32("nextn_predict_layers", c.mtp_layers);
  }
  if (!c.rope.mrope_section.empty()) {  // GGUF has a fourth stream, which these models don't use
    std::vector<int32_t> sections(c.rope.mrope_section.begin(), c.rope.mrope_section.end());
    sections.resize(4, 0);
    file.i32s(arch + ".rope.dimension_sections", sections);
  }
}

void put_placeholder_tokenizer(GgufWriter& file, const Config& c) {
  constexpr int32_t kNormal = 1, kControl = 3, kUnused = 5;  // llama.cpp, enum llama_token_type
  std::vector<std::string> tokens;
  std::vector<std::string> merges;
  if (c.vocab > 257) {
    tokens = byte_tokens();
    merges = {tokens[' '] + " t"};
    tokens.push_back(tokens[' '] + "t");
  }
  std::vector<int32_t> types(tokens.size(), kNormal);
  for (int64_t id = int64_t(tokens.size()); id < c.vocab; id++) {
    tokens.push_back(fmt::format("<d{}>", id));
    types.push_back(kUnused);
  }
  for (int64_t id : c.eos) types[size_t(id)] = kControl;
  if (c.bos >= 0) types[size_t(c.bos)] = kControl;
  file.string("tokenizer.ggml.model", "gpt2");
  file.string("tokenizer.ggml.pre", "qwen2");
  file.strings("tokenizer.ggml.tokens", tokens);
  file.i32s("tokenizer.ggml.token_type", types);
  file.strings("tokenizer.ggml.merges", merges);
  if (c.bos >= 0) file.u32("tokenizer.ggml.bos_token_id", uint32_t(c.bos));
  const char* const ends[] = {"eos", "eot", "eom"};  // GGUF has three ids that end a text
  for (size_t i = 0; i < std::min(c.eos.size(), std::size(ends)); i++) {
    file.u32(fmt::format("tokenizer.ggml.{}_token_id", ends[i]), uint32_t(c.eos[i]));
  }
  file.boolean("tokenizer.ggml.add_bos_token", false);
}

}  // namespace assay

// From named tensors of any file format to Weights. Every tensor that the family needs is looked up by its name, its
// shape is checked against the config, wanted and found, and what nobody asked for is refused: a tensor that is
// silently ignored is how a bias or a norm gets lost.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/model.h"

namespace assay {

inline constexpr int64_t kMaxDim = int64_t{1} << 30;  // of any dimension or count that a config may state
inline constexpr int64_t kMaxExperts = 1 << 16;       // their ids are exact in f32

/// A tensor as a file brought it. `shape` is row-major ([rows, columns] for matrices, [n] for vectors).
struct SourceTensor {
  std::string name;
  std::string file;  // for messages
  std::string key;   // canonical name: without "model.language_model." and the like
  WeightType type = WeightType::f32;
  std::vector<int64_t> shape;
  const std::byte* data = nullptr;
  size_t bytes = 0;
  bool used = false;
};

/// How a format names the tensors of a decoder. Layer tensors are `layer` + number + "." + name + ".weight" or ".bias".
struct TensorNames {
  const char *embed, *final_norm, *lm_head;  // complete names
  const char* layer;
  const char *attn_norm, *q, *k, *v, *o, *q_norm, *k_norm, *ffn_norm, *gate, *up, *down;
  const char *attn_post_norm, *ffn_post_norm;
  // Mixture of experts. Of a folder the experts stand in tensors of their own kinds: assemble.cpp, experts().
  const char *router, *expert_gate, *expert_up, *expert_down;
  const char *shared_gate, *shared_up, *shared_down, *shared_expert_gate;
  // Gated DeltaNet. The names of the decay's two vectors are complete.
  const char *gdn_qkv, *gdn_z, *gdn_b, *gdn_a, *gdn_qkvz, *gdn_ba, *gdn_conv, *gdn_norm, *gdn_out, *gdn_a_log, *gdn_dt;
  // The MTP head; its layer is a layer of the model's kind.
  const char *mtp_fc, *mtp_embed_norm, *mtp_hidden_norm, *mtp_norm;
};

/// llama.cpp's, of GGUF files (gguf-py/gguf/constants.py).
inline constexpr TensorNames kGgufNames = {.embed = "token_embd.weight",
                                           .final_norm = "output_norm.weight",
                                           .lm_head = "output.weight",
                                           .layer = "blk.",
                                           .attn_norm = "attn_norm",
                                           .q = "attn_q",
                                           .k = "attn_k",
                                           .v = "attn_v",
                                           .o = "attn_output",
                                           .q_norm = "attn_q_norm",
                                           .k_norm = "attn_k_norm",
                                           .ffn_norm = "ffn_norm",
                                           .gate = "ffn_gate",
                                           .up = "ffn_up",
                                           .down = "ffn_down",
                                           .attn_post_norm = "post_attention_norm",
                                           .ffn_post_norm = "post_ffw_norm",
                                           .router = "ffn_gate_inp",
                                           .expert_gate = "ffn_gate_exps",
                                           .expert_up = "ffn_up_exps",
                                           .expert_down = "ffn_down_exps",
                                           .shared_gate = "ffn_gate_shexp",
                                           .shared_up = "ffn_up_shexp",
                                           .shared_down = "ffn_down_shexp",
                                           .shared_expert_gate = "ffn_gate_inp_shexp",
                                           .gdn_qkv = "attn_qkv",
                                           .gdn_z = "attn_gate",
                                           .gdn_b = "ssm_beta",
                                           .gdn_a = "ssm_alpha",
                                           .gdn_qkvz = "",  // in two: gdn_qkv and gdn_z
                                           .gdn_ba = "ssm_ba",
                                           .gdn_conv = "ssm_conv1d",
                                           .gdn_norm = "ssm_norm",
                                           .gdn_out = "ssm_out",
                                           .gdn_a_log = "ssm_a",  // -exp(A_log)
                                           .gdn_dt = "ssm_dt.bias",
                                           .mtp_fc = "nextn.eh_proj",  // in the block behind the model's layers
                                           .mtp_embed_norm = "nextn.enorm",
                                           .mtp_hidden_norm = "nextn.hnorm",
                                           .mtp_norm = "nextn.shared_head_norm"};

/// Hugging Face's, of folders.
inline constexpr TensorNames kHfNames = {.embed = "model.embed_tokens.weight",
                                         .final_norm = "model.norm.weight",
                                         .lm_head = "lm_head.weight",
                                         .layer = "model.layers.",
                                         .attn_norm = "input_layernorm",
                                         .q = "self_attn.q_proj",
                                         .k = "self_attn.k_proj",
                                         .v = "self_attn.v_proj",
                                         .o = "self_attn.o_proj",
                                         .q_norm = "self_attn.q_norm",
                                         .k_norm = "self_attn.k_norm",
                                         .ffn_norm = "post_attention_layernorm",
                                         .gate = "mlp.gate_proj",
                                         .up = "mlp.up_proj",
                                         .down = "mlp.down_proj",
                                         // olmo2's; in the other families the first of the two names ffn_norm
                                         .attn_post_norm = "post_attention_layernorm",
                                         .ffn_post_norm = "post_feedforward_layernorm",
                                         .router = "mlp.gate",
                                         .expert_gate = "gate_proj",  // mlp.experts.<e>.gate_proj
                                         .expert_up = "up_proj",
                                         .expert_down = "down_proj",
                                         .shared_gate = "mlp.shared_expert.gate_proj",
                                         .shared_up = "mlp.shared_expert.up_proj",
                                         .shared_down = "mlp.shared_expert.down_proj",
                                         .shared_expert_gate = "mlp.shared_expert_gate",
                                         .gdn_qkv = "linear_attn.in_proj_qkv",
                                         .gdn_z = "linear_attn.in_proj_z",
                                         .gdn_b = "linear_attn.in_proj_b",
                                         .gdn_a = "linear_attn.in_proj_a",
                                         .gdn_qkvz = "linear_attn.in_proj_qkvz",
                                         .gdn_ba = "linear_attn.in_proj_ba",
                                         .gdn_conv = "linear_attn.conv1d",
                                         .gdn_norm = "linear_attn.norm",
                                         .gdn_out = "linear_attn.out_proj",
                                         .gdn_a_log = "linear_attn.A_log",
                                         .gdn_dt = "linear_attn.dt_bias",
                                         .mtp_fc = "mtp.fc",
                                         .mtp_embed_norm = "mtp.pre_fc_norm_embedding",
                                         .mtp_hidden_norm = "mtp.pre_fc_norm_hidden",
                                         .mtp_norm = "mtp.norm"};

/// Of a folder, where experts are: `layer` + number + "." + this, then "<e>.gate_proj.weight" and so on of each, or all of
/// them fused, "gate_up_proj" [experts, 2 * expert_ffn, hidden] (gate first) and "down_proj" [experts, hidden, expert_ffn].
inline constexpr const char* kHfExperts = "mlp.experts.";

/// Where a file of that names has the MTP head's layer: "mtp.layers.0.", or the block behind the model's.
std::string mtp_layer_stem(const TensorNames& names, const Config& config);
/// Of a vector or matrix of the head beside its layer, complete.
std::string mtp_name(const TensorNames& names, const Config& config, const char* name);

/// llama.cpp's tensor of llama3 rope divisors, [rotary/2] of F32 (rope_factors.h).
inline constexpr const char* kRopeFreqs = "rope_freqs.weight";

struct AssembleOptions {
  const TensorNames* names = nullptr;
  std::string config_name;  // what the shapes are held against: "config.json", "the metadata"
  bool qkv_bias = false;
  bool o_bias = false;
  bool permuted_qk = false;  // llama files of GGUF: q and k rows of a head lie interleaved (formats/README.md)
  bool reordered_v_heads = false;  // qwen35 files of GGUF: value heads are ordered by rank (gguf_v_head)
  bool outline = false;      // no matrix is read or copied: types, shapes and sizes only (loader.h, outline_model)
  size_t* copied_bytes = nullptr;  // gets the bytes of matrices that are held as copies
};

class TensorSet {
 public:
  /// Throws Error{malformed} if the key is there already.
  void add(SourceTensor tensor);
  SourceTensor* find(const std::string& key);
  std::vector<SourceTensor>& all() { return tensors_; }

 private:
  std::vector<SourceTensor> tensors_;
  std::unordered_map<std::string, size_t> index_;
};

/// Marks the tensors that it uses. Adds owned copies to `weights.storage`; mappings are the caller's to add.
/// Throws Error{malformed}: a missing tensor, a shape that contradicts the config, tied weights that differ, unused
/// tensors, non-finite scales of quantised blocks.
Weights assemble(const Config& config, TensorSet& tensors, const AssembleOptions& options);

/// llama files of GGUF: the Hugging Face row that q and k of the file have in row r. Within a head, file row 2*j + half
/// is row half * head_dim/2 + j (convert_hf_to_gguf.py, LlamaModel.permute).
inline int64_t hf_row_of(int64_t r, int64_t head_dim) {
  const int64_t in_head = r % head_dim;
  return r - in_head + (in_head % 2) * (head_dim / 2) + in_head / 2;
}

/// Where GGUF files of qwen35 and qwen35moe have value head h: [rank within its key head][key head] for ours [key head][rank]
/// (conversion/qwen.py, _reorder_v_heads). Files of qwen3next keep the order.
inline int64_t gguf_v_head(const Config& c, int64_t h) {
  const int64_t group = c.gdn_v_heads / c.gdn_k_heads;
  return c.family == "qwen3_next" ? h : h % group * c.gdn_k_heads + h / group;
}

/// "Q4_1 (Q8_0 1, F32 61)": the type of most bytes among the used tensors, then the others with their counts.
std::string quantisation_summary(const std::vector<SourceTensor>& tensors);

}  // namespace assay

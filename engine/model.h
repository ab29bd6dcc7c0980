// The whole data model on one page: what a model is (Config, Weights) and what a running sequence holds (KvCache).
// Every tensor is named here with its shape. Read this first, then families/, which say how the pieces are wired.
//
// Shapes are [rows, columns] row-major. A weight matrix is [outputs, inputs]: one row makes one output feature.
// Row order is Hugging Face's; readers undo what other formats do to it (formats/README.md).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

/// How the elements of a weight matrix are stored. Quantised types are blocks of 32 (K-quants: 256) along a row, in ggml's
/// file layout (formats/quant.h).
enum class WeightType : uint8_t { f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k };
std::string_view name_of(WeightType t);
bool is_quantised(WeightType t);
int64_t block_elements(WeightType t);          // 1, 32 or 256
size_t block_bytes(WeightType t);
inline size_t row_bytes(WeightType t, int64_t columns) { return size_t(columns / block_elements(t)) * block_bytes(t); }

/// A weight matrix in memory that the Weights own or map: read-only, row after row without padding.
struct Matrix {
  WeightType type = WeightType::f32;
  int64_t rows = 0;      // outputs
  int64_t columns = 0;   // inputs, the dimension that is summed over
  const std::byte* data = nullptr;
  bool empty() const { return data == nullptr; }
  size_t bytes() const { return size_t(rows) * row_bytes(type, columns); }
  const std::byte* row(int64_t r) const { return data + size_t(r) * row_bytes(type, columns); }
};
using Vector = std::vector<float>;  // norm weights and biases, widened to f32 at load; empty: the model has none

/// Rotary embedding. `rotary` dims of each head turn in pairs (j, j + rotary/2); the rest pass unchanged.
struct RopeConfig {
  double theta = 10000.0;
  int64_t rotary = 0;                 // head_dim * partial_rotary_factor
  bool llama3 = false;                // scaling in the order of transformers' _compute_llama3_parameters
  double factor = 1, low_freq_factor = 1, high_freq_factor = 4;
  double original_context = 8192;
  std::vector<int64_t> mrope_section; // sizes of the temporal, height, width streams; on text all three are the position
};

struct Config {
  std::string family;        // "llama", "olmo2", "qwen2", "qwen3", "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl"
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;         // query heads
  int64_t kv_heads = 0;      // divides heads; query head h reads kv head h / (heads / kv_heads)
  int64_t head_dim = 0;      // need not be hidden / heads
  int64_t ffn = 0;
  int64_t vocab = 0;         // rows of embed and lm_head
  int64_t context = 0;       // max_position_embeddings
  double rms_eps = 0;        // rounded to f32 where it is used
  bool tied = false;         // lm_head is embed
  bool qkv_bias = false;     // qwen2
  bool qk_norm = false;      // qwen3, olmo2: q and k are normalised before RoPE
  bool qk_norm_whole = false;  // olmo2: over all heads of a token together; else over each head alone
  bool post_norm = false;    // olmo2: a norm behind attention and FFN, none before them
  // Mixture of experts; experts 0: every layer's FFN is dense, of width ffn.
  int64_t experts = 0;
  int64_t experts_per_token = 0;    // each row's k, 1 to experts
  int64_t expert_ffn = 0;           // inner width of one expert
  bool norm_topk_prob = false;      // the k weights are divided by their sum
  int64_t shared_expert_ffn = 0;    // inner width of the expert that every row has besides; 0: none
  int64_t sparse_step = 1;          // layers i with (i + 1) % sparse_step == 0 have experts,
  std::vector<int64_t> dense_layers;  // but for these (mlp_only_layers)
  // Hybrids (qwen3_5, qwen3_next): layers of a gated DeltaNet among those of attention.
  std::vector<bool> gdn_layers;     // [layers]; empty: every layer attends
  int64_t gdn_k_heads = 0, gdn_v_heads = 0;  // value head h uses key head h / (gdn_v_heads / gdn_k_heads)
  int64_t gdn_k_dim = 0, gdn_v_dim = 0;      // of one head
  int64_t conv_width = 0;           // taps of the causal convolution
  bool gated_attention = false;     // rows of q are [head][query, gate]; the gate's sigmoid multiplies what attention gives
  bool norm_plus_one = false;       // files of Hugging Face keep RMS norm weights less 1 (not the gated DeltaNet's)
  int64_t mtp_layers = 0;           // 1: there is a head that predicts one token more (multi-token prediction)
  RopeConfig rope;
  int64_t bos = -1;                 // -1: none
  std::vector<int64_t> eos;

  /// Columns that q's or k's norm runs over, given their heads: the length of its weight.
  int64_t qk_norm_columns(int64_t of_heads) const { return qk_norm_whole ? of_heads * head_dim : head_dim; }
  bool is_gdn(int64_t layer) const { return size_t(layer) < gdn_layers.size() && gdn_layers[size_t(layer)]; }
  /// Rows of q: heads*head_dim, or [head][query, gate].
  int64_t q_rows() const { return heads * head_dim * (gated_attention ? 2 : 1); }
  int64_t gdn_k_columns() const { return gdn_k_heads * gdn_k_dim; }
  int64_t gdn_v_columns() const { return gdn_v_heads * gdn_v_dim; }
  /// Of the convolution: q of all key heads, k of all key heads, v of all value heads.
  int64_t gdn_channels() const { return 2 * gdn_k_columns() + gdn_v_columns(); }
  /// Layers that have a place in the state: the model's, then the MTP head's.
  int64_t state_layers() const { return layers + mtp_layers; }
  /// Whether a layer's FFN is a mixture of experts.
  bool has_experts(int64_t layer) const;
};

struct LayerWeights {
  Vector attn_norm;                // [hidden]; empty: olmo2
  Matrix q, k, v;                  // [q_rows(), hidden], [kv_heads*head_dim, hidden] twice; empty in a layer of a gated DeltaNet
  Vector q_bias, k_bias, v_bias;   // [rows of q, k, v], qwen2
  Vector q_norm, k_norm;           // [head_dim], qwen3; [heads*head_dim] and [kv_heads*head_dim], olmo2
  Matrix o;                        // [hidden, heads*head_dim]
  Vector o_bias;                   // [hidden], llama with attention_bias
  Vector attn_post_norm;           // [hidden], olmo2
  // A gated DeltaNet instead of attention.
  Matrix gdn_qkv;                  // [gdn_channels(), hidden]: q of all key heads, k of all key heads, v of all value heads
  Matrix gdn_z;                    // [gdn_v_columns(), hidden]
  Matrix gdn_b, gdn_a;             // [gdn_v_heads, hidden]
  Vector gdn_conv;                 // [conv_width, gdn_channels()], the oldest input's tap first
  Vector gdn_decay;                // [2, gdn_v_heads]: -exp(A_log), then dt_bias
  Vector gdn_norm;                 // [gdn_v_dim]
  Matrix gdn_qkvz, gdn_ba;         // qwen3_next, instead of qkv, z, b and a: [key head][q, k, v and z of its value heads], [key head][b, a]
  Matrix gdn_out;                  // [hidden, gdn_v_columns()]; empty: the layer attends
  bool gdn_out_tiled = false;      // its columns have value heads as GGUF orders them, and its blocks do not let them be moved
  Vector ffn_norm;                 // [hidden]; empty: olmo2
  Matrix gate, up;                 // [ffn, hidden]; empty in a layer of experts
  Matrix down;                     // [hidden, ffn]
  // A layer of experts: the matrices of all experts behind each other, expert e's rows at e * (rows / experts), as GGUF has them.
  Matrix router;                   // [experts, hidden]; empty: the layer is dense
  Matrix expert_gate, expert_up;   // [experts*expert_ffn, hidden]
  Matrix expert_down;              // [experts*hidden, expert_ffn]
  Matrix shared_gate, shared_up;   // [shared_expert_ffn, hidden]; empty: no shared expert
  Matrix shared_down;              // [hidden, shared_expert_ffn]
  Matrix shared_expert_gate;       // [1, hidden]
  Vector ffn_post_norm;            // [hidden], olmo2
};

/// The head of multi-token prediction: from the hidden state of token t and token t+1 to the logits of token t+2. Its embedding
/// and lm_head are the model's.
struct MtpWeights {
  Vector embed_norm, hidden_norm;  // [hidden]
  Matrix fc;                       // [hidden, 2*hidden]: of the normalised embedding, then the normalised hidden state; empty: no head
  LayerWeights layer;              // of attention
  Vector norm;                     // [hidden]
};

struct Weights {
  Matrix embed;                    // [vocab, hidden]
  std::vector<LayerWeights> layers;
  MtpWeights mtp;
  Vector final_norm;               // [hidden]
  Matrix lm_head;                  // [vocab, hidden]; the same bytes as embed when tied
  std::vector<std::shared_ptr<const void>> storage;  // mappings and repacked copies that the matrices point into
  /// Layer i, or behind the last one the MTP head's.
  const LayerWeights& layer(size_t i) const { return i < layers.size() ? layers[i] : mtp.layer; }
  LayerWeights& layer(size_t i) { return i < layers.size() ? layers[i] : mtp.layer; }
};

/// Where a model came from; goes into every dump's manifest.
struct Provenance {
  std::string path;                // as given
  std::string format;              // "hf", "gguf"
  std::string hash;                // XXH3-128 over the weight files' bytes in name order, 32 hex digits
  std::string quantisation;        // "BF16", "Q4_1 (Q6_K 1, F32 61)": the type of most bytes, then the others with counts
  std::string tokenizer_hash;      // XXH3-128 of tokenizer.json or of the GGUF's tokenizer keys; empty: the folder has none
};

struct Model {
  Config config;
  Weights weights;
  Provenance provenance;
  bool quantised() const;          // any weight matrix is
};

/// What the activations of a quantised weight become: 16-bit integers per group of 32 (the default), 8-bit ones, or floats
/// with the weight widened (NUMERICS.md).
enum class Activations : uint8_t { s16, s8, f32 };
std::string_view name_of(Activations a);

/// Element type of the KV cache: values are rounded (nearest even) when stored and widened exactly before use.
enum class KvType : uint8_t { f32, f16, bf16 };
std::string_view name_of(KvType t);
size_t size_of(KvType t);

/// K and V of one layer for all slots: [slot][kv_head][position][head_dim], position < context. Position p of a slot is valid
/// while p < the slot's length (Engine); everything else is never read.
struct KvLayer {
  KvType type = KvType::f16;
  int64_t slots = 0, kv_heads = 0, context = 0, head_dim = 0;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  int64_t offset(int64_t slot, int64_t kv_head, int64_t position) const {  // in elements
    return ((slot * kv_heads + kv_head) * context + position) * head_dim;
  }
  int64_t elements() const { return slots * kv_heads * context * head_dim; }  // of k, and of v; 0: the layer does not attend
};

/// What a gated DeltaNet layer has seen, of all slots: it grows with no position, and no position can be taken out of it.
struct GdnLayer {
  int64_t slots = 0, width = 0, channels = 0, v_heads = 0, k_dim = 0, v_dim = 0;
  float* conv = nullptr;   // [slot][width][channels]: the convolution's last inputs, oldest first, +0 before the first
  float* state = nullptr;  // [slot][v_head][k_dim][v_dim]
  int64_t conv_floats() const { return width * channels; }             // of one slot
  int64_t state_floats() const { return v_heads * k_dim * v_dim; }     // of one slot; 0: the layer attends
  int64_t floats() const { return conv_floats() + state_floats(); }
  float* conv_of(int64_t slot) const { return conv + slot * conv_floats(); }
  float* state_of(int64_t slot) const { return state + slot * state_floats(); }
};

}  // namespace assay

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
  std::string family;        // "llama", "olmo2", "qwen2", "qwen3", "qwen3_moe", "qwen3_vl"
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
  RopeConfig rope;
  int64_t bos = -1;                 // -1: none
  std::vector<int64_t> eos;

  /// Columns that q's or k's norm runs over, given their heads: the length of its weight.
  int64_t qk_norm_columns(int64_t of_heads) const { return qk_norm_whole ? of_heads * head_dim : head_dim; }
  /// Whether a layer's FFN is a mixture of experts.
  bool has_experts(int64_t layer) const;
};

struct LayerWeights {
  Vector attn_norm;                // [hidden]; empty: olmo2
  Matrix q, k, v;                  // [heads*head_dim, hidden], [kv_heads*head_dim, hidden] twice
  Vector q_bias, k_bias, v_bias;   // [rows of q, k, v], qwen2
  Vector q_norm, k_norm;           // [head_dim], qwen3; [heads*head_dim] and [kv_heads*head_dim], olmo2
  Matrix o;                        // [hidden, heads*head_dim]
  Vector o_bias;                   // [hidden], llama with attention_bias
  Vector attn_post_norm;           // [hidden], olmo2
  Vector ffn_norm;                 // [hidden]; empty: olmo2
  Matrix gate, up;                 // [ffn, hidden]; empty in a layer of experts
  Matrix down;                     // [hidden, ffn]
  // A layer of experts: the matrices of all experts behind each other, expert e's rows at e * (rows / experts), as in GGUF.
  Matrix router;                   // [experts, hidden]; empty: the layer is dense
  Matrix expert_gate, expert_up;   // [experts*expert_ffn, hidden]
  Matrix expert_down;              // [experts*hidden, expert_ffn]
  Matrix shared_gate, shared_up;   // [shared_expert_ffn, hidden]; empty: no shared expert
  Matrix shared_down;              // [hidden, shared_expert_ffn]
  Matrix shared_expert_gate;       // [1, hidden]
  Vector ffn_post_norm;            // [hidden], olmo2
};

struct Weights {
  Matrix embed;                    // [vocab, hidden]
  std::vector<LayerWeights> layers;
  Vector final_norm;               // [hidden]
  Matrix lm_head;                  // [vocab, hidden]; the same bytes as embed when tied
  std::vector<std::shared_ptr<const void>> storage;  // mappings and repacked copies that the matrices point into
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
};

}  // namespace assay

// A checkpoint as the oracle sees it: Config and the raw bytes of named tensors from the file readers, everything else
// its own. Matrices are widened to double a few rows at a time while they are used, so that a checkpoint of any size
// needs the memory of a few rows per thread; files are mapped.
#pragma once
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/model.h"
#include "oracle/ops.h"

namespace assay::oracle {

/// One decoder layer. Shapes as in engine/model.h, rows in Hugging Face order; absent vectors are empty.
struct LayerWeights64 {
  std::vector<double> attn_norm, ffn_norm;     // [hidden]; empty in olmo2, which has these instead:
  std::vector<double> attn_post_norm, ffn_post_norm;
  std::vector<double> q_norm, k_norm;          // [head_dim], qwen3; [heads*head_dim], [kv_heads*head_dim], olmo2
  std::vector<double> q_bias, k_bias, v_bias;  // [rows of q, k, v], qwen2
  std::vector<double> o_bias;                  // [hidden], llama with attention_bias
  WeightRows q, k, v, o, gate, up, down;
  // A layer of experts (rows of router 0: a dense one): all experts behind each other, as engine/model.h has them.
  WeightRows router, expert_gate, expert_up, expert_down;
  // A gated DeltaNet (rows of gdn_out not 0) instead of attention, value heads grouped by their key head.
  WeightRows gdn_qkv, gdn_z, gdn_b, gdn_a;     // rows 0 in qwen3_next, which has these instead:
  WeightRows gdn_qkvz, gdn_ba;                 // [key head][q, k, v, z], [key head][b, a]
  WeightRows gdn_out;
  Matrix64 gdn_conv;                           // [channels, width], the oldest input's tap first
  std::vector<double> gdn_rate, gdn_dt;        // [value heads]: -exp(A_log), dt_bias
  std::vector<double> gdn_norm;                // [value dim]
  WeightRows shared_gate, shared_up, shared_down, shared_expert_gate;  // rows 0: no shared expert
};

/// The head of multi-token prediction.
struct MtpWeights64 {
  std::vector<double> embed_norm, hidden_norm, norm;  // [hidden]
  WeightRows fc;                                      // [hidden, 2*hidden]: of the embedding, of the hidden state
  LayerWeights64 layer;
};

class Weights64 {
 public:
  /// A Hugging Face folder, a GGUF file or a synth spec (engine/formats/synth.h). Config, names and shapes are checked
  /// by the readers (outline_model): throws what they throw.
  static Weights64 open(const std::filesystem::path& path);
  /// The raw bytes of a model that an engine holds already, rows in Hugging Face order as its reader left them. For
  /// random weights, which no file has. The model must stay: it is shared.
  static Weights64 of(std::shared_ptr<const Model> model);

  const Config& config() const;
  /// Path, format, hash of the files, quantisation: for manifests.
  const Provenance& provenance() const;

  // Everything below points into this object's mappings and lives as long as one of its copies.
  WeightRows embed() const;                // [vocab, hidden]
  WeightRows lm_head() const;              // [vocab, hidden]; the embedding where tied
  std::vector<double> final_norm() const;  // [hidden]
  LayerWeights64 layer(int64_t index) const;
  MtpWeights64 mtp() const;                // of a config with mtp_layers

  struct Source;  // weights.cpp

 private:
  std::shared_ptr<const Source> source_;
};

}  // namespace assay::oracle

// Dense decoders: llama, qwen2, qwen3 and the text decoder of qwen3_vl.
// Sources: transformers modeling_llama.py, modeling_qwen2.py, modeling_qwen3.py, modeling_qwen3_vl.py;
// RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864, GQA arXiv:2305.13245, SwiGLU arXiv:2002.05202.
#include "engine/families/families.h"

namespace assay {
namespace {

/// x + down(silu(gate(h)) * up(h)), h = norm(x).
ValueId swiglu_block(ProgramBuilder& b, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("ffn_norm", x, w.ffn_norm);
  ValueId gate = b.linear("gate_proj", h, w.gate, {}, "ffn");
  ValueId up = b.linear("up_proj", h, w.up, {}, "ffn");
  ValueId act = b.silu_mul("ffn_act", gate, up);
  ValueId y = b.linear("down_proj", act, w.down, {}, "hidden");
  return b.add("ffn_residual", x, y);
}

/// From rotated q and k on: the cache, attention over it, the output projection, the residual.
ValueId attend(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x, ValueId q, ValueId k, ValueId v) {
  q = b.rope("q_rope", q, c.heads);
  k = b.rope("k_rope", k, c.kv_heads);
  b.kv_store(k, v);
  ValueId context = b.attention("attn_context", q);
  ValueId y = b.linear("o_proj", context, w.o, w.o_bias, "hidden");
  return b.add("attn_residual", x, y);
}

/// Attention of llama and qwen2: projections (qwen2: with biases), RoPE, softmax(q.k)v.
ValueId attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId q = b.linear("q_proj", h, w.q, w.q_bias, "head*head_dim");
  ValueId k = b.linear("k_proj", h, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", h, w.v, w.v_bias, "kv_head*head_dim");
  return attend(b, c, w, x, q, k, v);
}

/// Attention of qwen3: q and k are normalised per head before RoPE.
ValueId normed_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId q = b.linear("q_proj", h, w.q, w.q_bias, "head*head_dim");
  ValueId k = b.linear("k_proj", h, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", h, w.v, w.v_bias, "kv_head*head_dim");
  q = b.head_norm("q_norm", q, c.heads, w.q_norm);
  k = b.head_norm("k_norm", k, c.kv_heads, w.k_norm);
  return attend(b, c, w, x, q, k, v);
}

using Block = ValueId (*)(ProgramBuilder&, const Config&, const LayerWeights&, ValueId);

/// embed, layers of attention and SwiGLU, final norm, lm_head.
Program decoder(const Model& m, Block attention) {
  ProgramBuilder b(m.config);
  ValueId x = b.embed("embed", m.weights.embed);
  for (size_t i = 0; i < m.weights.layers.size(); i++) {
    b.enter_layer(int(i));
    x = attention(b, m.config, m.weights.layers[i], x);
    x = swiglu_block(b, m.weights.layers[i], x);
  }
  b.leave_layers();
  x = b.rms_norm("final_norm", x, m.weights.final_norm);
  b.logits(x, m.weights.lm_head);
  return b.finish();
}

}  // namespace

Program llama(const Model& m) { return decoder(m, attention_block); }
Program qwen2(const Model& m) { return decoder(m, attention_block); }
Program qwen3(const Model& m) { return decoder(m, normed_attention_block); }
/// On text the three position streams of mrope are equal, so that its rotation is qwen3's (ops/rope_table.h).
Program qwen3_vl_text(const Model& m) { return decoder(m, normed_attention_block); }

}  // namespace assay

// Dense decoders: llama, olmo2, qwen2, qwen3 and the text decoder of qwen3_vl.
// Sources: transformers modeling_llama.py, modeling_olmo2.py, modeling_qwen2.py, modeling_qwen3.py,
// modeling_qwen3_vl.py; RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864, GQA arXiv:2305.13245, SwiGLU arXiv:2002.05202.
#include "engine/families/families.h"

namespace assay {
namespace {

/// down(silu(gate(h)) * up(h)).
ValueId swiglu(ProgramBuilder& b, const LayerWeights& w, ValueId h) {
  ValueId gate = b.linear("gate_proj", h, w.gate, {}, "ffn");
  ValueId up = b.linear("up_proj", h, w.up, {}, "ffn");
  ValueId act = b.silu_mul("ffn_act", gate, up);
  return b.linear("down_proj", act, w.down, {}, "hidden");
}

/// x + swiglu(norm(x)).
ValueId swiglu_block(ProgramBuilder& b, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("ffn_norm", x, w.ffn_norm);
  return b.add("ffn_residual", x, swiglu(b, w, h));
}

/// FFN of olmo2: x + norm(swiglu(x)).
ValueId post_normed_swiglu_block(ProgramBuilder& b, const LayerWeights& w, ValueId x) {
  ValueId y = b.rms_norm("ffn_post_norm", swiglu(b, w, x), w.ffn_post_norm);
  return b.add("ffn_residual", x, y);
}

/// From q and k before RoPE to the output projection: the cache, and attention over it.
ValueId attend(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId q, ValueId k, ValueId v) {
  q = b.rope("q_rope", q, c.heads);
  k = b.rope("k_rope", k, c.kv_heads);
  b.kv_store(k, v);
  ValueId context = b.attention("attn_context", q);
  return b.linear("o_proj", context, w.o, w.o_bias, "hidden");
}

/// Attention of llama and qwen2: projections (qwen2: with biases), RoPE, softmax(q.k)v.
ValueId attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId q = b.linear("q_proj", h, w.q, w.q_bias, "head*head_dim");
  ValueId k = b.linear("k_proj", h, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", h, w.v, w.v_bias, "kv_head*head_dim");
  return b.add("attn_residual", x, attend(b, c, w, q, k, v));
}

/// Attention of qwen3: q and k are normalised per head before RoPE.
ValueId normed_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId q = b.linear("q_proj", h, w.q, w.q_bias, "head*head_dim");
  ValueId k = b.linear("k_proj", h, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", h, w.v, w.v_bias, "kv_head*head_dim");
  q = b.head_norm("q_norm", q, c.heads, w.q_norm);
  k = b.head_norm("k_norm", k, c.kv_heads, w.k_norm);
  return b.add("attn_residual", x, attend(b, c, w, q, k, v));
}

/// Attention of olmo2: no norm before it; q and k are normalised over all heads together; its output is normalised.
ValueId post_normed_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId q = b.linear("q_proj", x, w.q, w.q_bias, "head*head_dim");
  ValueId k = b.linear("k_proj", x, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", x, w.v, w.v_bias, "kv_head*head_dim");
  q = b.rms_norm("q_norm", q, w.q_norm);
  k = b.rms_norm("k_norm", k, w.k_norm);
  ValueId y = b.rms_norm("attn_post_norm", attend(b, c, w, q, k, v), w.attn_post_norm);
  return b.add("attn_residual", x, y);
}

using Attention = ValueId (*)(ProgramBuilder&, const Config&, const LayerWeights&, ValueId);
using Ffn = ValueId (*)(ProgramBuilder&, const LayerWeights&, ValueId);

/// embed, layers of attention and SwiGLU, final norm, lm_head.
Program decoder(const Model& m, Attention attention, Ffn ffn = swiglu_block) {
  ProgramBuilder b(m.config);
  ValueId x = b.embed("embed", m.weights.embed);
  for (size_t i = 0; i < m.weights.layers.size(); i++) {
    b.enter_layer(int(i));
    x = attention(b, m.config, m.weights.layers[i], x);
    x = ffn(b, m.weights.layers[i], x);
  }
  b.leave_layers();
  x = b.rms_norm("final_norm", x, m.weights.final_norm);
  b.logits(x, m.weights.lm_head);
  return b.finish();
}

}  // namespace

Program llama(const Model& m) { return decoder(m, attention_block); }
Program olmo2(const Model& m) { return decoder(m, post_normed_attention_block, post_normed_swiglu_block); }
Program qwen2(const Model& m) { return decoder(m, attention_block); }
Program qwen3(const Model& m) { return decoder(m, normed_attention_block); }
/// On text the three position streams of mrope are equal, so that its rotation is qwen3's (ops/rope_table.h).
Program qwen3_vl_text(const Model& m) { return decoder(m, normed_attention_block); }

}  // namespace assay

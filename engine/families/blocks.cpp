#include "engine/families/blocks.h"

namespace assay {

ValueId swiglu(ProgramBuilder& b, const LayerWeights& w, ValueId h) {
  ValueId gate = b.linear("gate_proj", h, w.gate, {}, "ffn");
  ValueId up = b.linear("up_proj", h, w.up, {}, "ffn");
  ValueId act = b.silu_mul("ffn_act", gate, up);
  return b.linear("down_proj", act, w.down, {}, "hidden");
}

ValueId swiglu_block(ProgramBuilder& b, const Config&, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("ffn_norm", x, w.ffn_norm);
  return b.add("ffn_residual", x, swiglu(b, w, h));
}

ValueId post_normed_swiglu_block(ProgramBuilder& b, const Config&, const LayerWeights& w, ValueId x) {
  ValueId y = b.rms_norm("ffn_post_norm", swiglu(b, w, x), w.ffn_post_norm);
  return b.add("ffn_residual", x, y);
}

ValueId context_of(ProgramBuilder& b, const Config& c, ValueId q, ValueId k, ValueId v) {
  q = b.rope("q_rope", q, c.heads);
  k = b.rope("k_rope", k, c.kv_heads);
  b.kv_store(k, v);
  return b.attention("attn_context", q);
}

ValueId attend(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId q, ValueId k, ValueId v) {
  return b.linear("o_proj", context_of(b, c, q, k, v), w.o, w.o_bias, "hidden");
}

ValueId gated_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId q = b.linear("q_proj", h, w.q, w.q_bias, "head*(query, gate)");
  ValueId k = b.linear("k_proj", h, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", h, w.v, w.v_bias, "kv_head*head_dim");
  ValueId gate =
      b.columns("attn_gate", {q}, {{0, c.head_dim, 2 * c.head_dim, 0, c.heads, c.head_dim}}, "head*head_dim");
  q = b.head_norm("q_norm", q, c.heads, w.q_norm, 2 * c.head_dim);
  k = b.head_norm("k_norm", k, c.kv_heads, w.k_norm);
  ValueId gated = b.sigmoid_mul("attn_gated", context_of(b, c, q, k, v), gate);
  return b.add("attn_residual", x, b.linear("o_proj", gated, w.o, w.o_bias, "hidden"));
}

ValueId attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId q = b.linear("q_proj", h, w.q, w.q_bias, "head*head_dim");
  ValueId k = b.linear("k_proj", h, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", h, w.v, w.v_bias, "kv_head*head_dim");
  return b.add("attn_residual", x, attend(b, c, w, q, k, v));
}

ValueId normed_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId q = b.linear("q_proj", h, w.q, w.q_bias, "head*head_dim");
  ValueId k = b.linear("k_proj", h, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", h, w.v, w.v_bias, "kv_head*head_dim");
  q = b.head_norm("q_norm", q, c.heads, w.q_norm);
  k = b.head_norm("k_norm", k, c.kv_heads, w.k_norm);
  return b.add("attn_residual", x, attend(b, c, w, q, k, v));
}

ValueId post_normed_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId q = b.linear("q_proj", x, w.q, w.q_bias, "head*head_dim");
  ValueId k = b.linear("k_proj", x, w.k, w.k_bias, "kv_head*head_dim");
  ValueId v = b.linear("v_proj", x, w.v, w.v_bias, "kv_head*head_dim");
  q = b.rms_norm("q_norm", q, w.q_norm);
  k = b.rms_norm("k_norm", k, w.k_norm);
  ValueId y = b.rms_norm("attn_post_norm", attend(b, c, w, q, k, v), w.attn_post_norm);
  return b.add("attn_residual", x, y);
}

Program decoder(const Model& m, Block attention, Block ffn) {
  ProgramBuilder b(m.config);
  ValueId x = b.embed("embed", m.weights.embed);
  for (size_t i = 0; i < m.weights.layers.size(); i++) {
    b.enter_layer(int(i));
    x = attention(b, m.config, m.weights.layers[i], x);
    x = ffn(b, m.config, m.weights.layers[i], x);
  }
  b.leave_layers();
  x = b.rms_norm("final_norm", x, m.weights.final_norm);
  b.logits(x, m.weights.lm_head);
  if (m.config.mtp_layers > 0) mtp_head(b, m, attention, ffn, x);
  return b.finish();
}

}  // namespace assay

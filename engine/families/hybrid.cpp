// Hybrids of gated DeltaNet and gated attention: qwen3_5.
// Sources: transformers modeling_qwen3_5.py, modeling_qwen3_next.py; Gated Delta Networks arXiv:2412.06464.
#include "engine/families/blocks.h"
#include "engine/families/families.h"

namespace assay {
namespace {

/// From the convolution's inputs to x + out: what attention's place is taken by. Value head h uses key head
/// h / (v_heads / k_heads).
ValueId delta_net(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x, ValueId qkv, ValueId z, ValueId beta,
                  ValueId a) {
  const int64_t keys = c.gdn_k_columns(), values = c.gdn_v_columns();
  ValueId conv = b.conv("gdn_conv", qkv, w.gdn_conv);
  ValueId q = b.l2_norm("gdn_q", conv, 0, true);
  ValueId k = b.l2_norm("gdn_k", conv, keys, false);
  ValueId v = b.columns("gdn_v", {conv}, {{0, 2 * keys, 0, 0, 1, values}}, "v_head*v_dim");
  beta = b.sigmoid("gdn_beta", beta);
  ValueId decay = b.decay("gdn_decay", a, w.gdn_decay);
  ValueId core = b.delta_rule("gdn_core", q, k, v, beta, decay);
  ValueId normed = b.gated_norm("gdn_norm", core, z, w.gdn_norm);
  return b.add("attn_residual", x, b.linear("gdn_out", normed, w.gdn_out, {}, "hidden"));
}

/// qwen3_5: a projection for each of qkv, z, b and a.
ValueId delta_net_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId qkv = b.linear("gdn_qkv", h, w.gdn_qkv, {}, "channel");
  ValueId z = b.linear("gdn_z", h, w.gdn_z, {}, "v_head*v_dim");
  ValueId beta = b.linear("gdn_b", h, w.gdn_b, {}, "v_head");
  ValueId a = b.linear("gdn_a", h, w.gdn_a, {}, "v_head");
  return delta_net(b, c, w, x, qkv, z, beta, a);
}

/// A layer's own kind, as the config's layer_types have it.
ValueId hybrid_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  return w.gdn_out.empty() ? gated_attention_block(b, c, w, x) : delta_net_block(b, c, w, x);
}

}  // namespace

Program qwen3_5(const Model& m) { return decoder(m, hybrid_block); }

}  // namespace assay

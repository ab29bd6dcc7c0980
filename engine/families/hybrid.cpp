// Hybrids of gated DeltaNet and gated attention: qwen3_5; with mixtures of experts qwen3_5_moe and qwen3_next.
// Sources: transformers modeling_qwen3_5.py, modeling_qwen3_next.py; Gated Delta Networks arXiv:2412.06464.
#include "engine/families/blocks.h"
#include "engine/families/families.h"

namespace assay {
namespace {

/// Value heads in the order of a GGUF file, [rank within the key head][key head], for a matrix whose columns have it.
ValueId tiled(ProgramBuilder& b, const Config& c, ValueId x) {
  const int64_t group = c.gdn_v_heads / c.gdn_k_heads;
  std::vector<ColumnRun> runs;
  for (int64_t rank = 0; rank < group; rank++)
    runs.push_back({0, rank * c.gdn_v_dim, group * c.gdn_v_dim, 0, c.gdn_k_heads, c.gdn_v_dim});
  return b.columns("gdn_tiled", {x}, std::move(runs), "rank*k_head*v_dim");
}

/// From the convolution's inputs to x + out: what attention's place is taken by. Value head h uses key head
/// h / (v_heads / k_heads).
ValueId delta_net(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x, ValueId qkv, ValueId z,
                  ValueId beta, ValueId a) {
  const int64_t keys = c.gdn_k_columns(), values = c.gdn_v_columns();
  ValueId conv = b.conv("gdn_conv", qkv, w.gdn_conv);
  ValueId q = b.l2_norm("gdn_q", conv, 0, true);
  ValueId k = b.l2_norm("gdn_k", conv, keys, false);
  ValueId v = b.columns("gdn_v", {conv}, {{0, 2 * keys, 0, 0, 1, values}}, "v_head*v_dim");
  beta = b.sigmoid("gdn_beta", beta);
  ValueId decay = b.decay("gdn_decay", a, w.gdn_decay);
  ValueId core = b.delta_rule("gdn_core", q, k, v, beta, decay);
  ValueId normed = b.gated_norm("gdn_norm", core, z, w.gdn_norm);
  if (w.gdn_out_tiled) normed = tiled(b, c, normed);
  return b.add("attn_residual", x, b.linear("gdn_out", normed, w.gdn_out, {}, "hidden"));
}

/// qwen3_5 has a projection for each of qkv, z, b and a. qwen3_next has one for q, k, v and z and one for b and a,
/// grouped by key head; of some GGUF files q, k, v and z come apart all the same.
ValueId delta_net_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  const int64_t dim = c.gdn_k_dim, heads = c.gdn_k_heads, group = c.gdn_v_heads / heads, values = group * c.gdn_v_dim,
                row = 2 * dim + 2 * values;
  ValueId h = b.rms_norm("attn_norm", x, w.attn_norm);
  ValueId qkv, z, beta, a;
  if (w.gdn_qkvz.empty()) {
    qkv = b.linear("gdn_qkv", h, w.gdn_qkv, {}, "channel");
    z = b.linear("gdn_z", h, w.gdn_z, {}, "v_head*v_dim");
  } else {
    ValueId qkvz = b.linear("gdn_qkvz", h, w.gdn_qkvz, {}, "k_head*(q, k, v, z)");
    qkv = b.columns("gdn_qkv", {qkvz},
                    {{0, 0, row, 0, heads, dim}, {0, dim, row, 0, heads, dim}, {0, 2 * dim, row, 0, heads, values}},
                    "channel");
    z = b.columns("gdn_z", {qkvz}, {{0, 2 * dim + values, row, 0, heads, values}}, "v_head*v_dim");
  }
  if (w.gdn_ba.empty()) {
    beta = b.linear("gdn_b", h, w.gdn_b, {}, "v_head");
    a = b.linear("gdn_a", h, w.gdn_a, {}, "v_head");
  } else {
    ValueId ba = b.linear("gdn_ba", h, w.gdn_ba, {}, "k_head*(b, a)");
    beta = b.columns("gdn_b", {ba}, {{0, 0, 2 * group, 0, heads, group}}, "v_head");
    a = b.columns("gdn_a", {ba}, {{0, group, 2 * group, 0, heads, group}}, "v_head");
  }
  return delta_net(b, c, w, x, qkv, z, beta, a);
}

/// A layer's own kind, as the config's layer_types have it.
ValueId hybrid_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  return w.gdn_out.empty() ? gated_attention_block(b, c, w, x) : delta_net_block(b, c, w, x);
}

}  // namespace

Program qwen3_5(const Model& m) {
  return decoder(m, hybrid_block);
}
Program qwen3_5_moe(const Model& m) {
  return decoder(m, hybrid_block, mixture_block);
}
Program qwen3_next(const Model& m) {
  return decoder(m, hybrid_block, mixture_block);
}

}  // namespace assay

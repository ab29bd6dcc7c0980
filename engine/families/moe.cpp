// Mixture of experts: qwen3_moe, and the FFN that other families build on.
// Sources: transformers modeling_qwen3_moe.py, modeling_qwen3_next.py (shared expert); arXiv:1701.06538.
#include "engine/families/blocks.h"
#include "engine/families/families.h"

namespace assay {

ValueId experts(ProgramBuilder& b, const LayerWeights& w, ValueId h) {
  ValueId logits = b.linear("router_logits", h, w.router, {}, "expert");
  ValueId ids = b.topk("router_topk_ids", logits);
  ValueId weights = b.topk_weights("router_topk_weights", logits, ids);
  ValueId gate = b.expert_linear("expert_gate_proj", h, ids, w.expert_gate, "expert_rank*expert_ffn");
  ValueId up = b.expert_linear("expert_up_proj", h, ids, w.expert_up, "expert_rank*expert_ffn");
  ValueId act = b.silu_mul("expert_act", gate, up);
  ValueId down = b.expert_linear("expert_down_proj", act, ids, w.expert_down, "expert_rank*hidden");
  return b.expert_sum("moe_out", down, weights);
}

ValueId mixture(ProgramBuilder& b, const LayerWeights& w, ValueId h) {
  ValueId routed = experts(b, w, h);
  if (w.shared_gate.empty()) {
    b.also(routed, "ffn_out");
    return routed;
  }
  ValueId opening = b.linear("shared_expert_gate", h, w.shared_expert_gate, {}, "1");
  ValueId gate = b.linear("shared_gate_proj", h, w.shared_gate, {}, "ffn");
  ValueId up = b.linear("shared_up_proj", h, w.shared_up, {}, "ffn");
  ValueId act = b.silu_mul("shared_act", gate, up);
  ValueId shared = b.linear("shared_expert_out", act, w.shared_down, {}, "hidden");
  return b.gated_add("ffn_out", opening, shared, routed);
}

ValueId mixture_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x) {
  if (w.router.empty()) return swiglu_block(b, c, w, x);
  ValueId h = b.rms_norm("ffn_norm", x, w.ffn_norm);
  return b.add("ffn_residual", x, mixture(b, w, h));
}

Program qwen3_moe(const Model& m) {
  return decoder(m, normed_attention_block, mixture_block);
}

}  // namespace assay

// The head of multi-token prediction (qwen3_5): row t joins the embedding of token t+1 with the hidden state of token t
// (the model's final norm; in a draft, the head's own norm of the row before), sits at position t of a cache of its
// own, and gives the logits of token t+2. Embedding and lm_head are the model's. Sources: vLLM qwen3_next_mtp.py,
// SGLang qwen3_next_mtp.py; DeepSeek-V3 arXiv:2412.19437, section 2.2.
#include "engine/families/blocks.h"

namespace assay {

void mtp_head(ProgramBuilder& b, const Model& m, Block attention, Block ffn, ValueId final_norm) {
  const MtpWeights& w = m.weights.mtp;
  b.enter_mtp(final_norm);
  ValueId embed = b.embed("mtp_embed", m.weights.embed);
  ValueId hidden = b.hidden("mtp_hidden");
  embed = b.rms_norm("mtp_embed_norm", embed, w.embed_norm);
  hidden = b.rms_norm("mtp_hidden_norm", hidden, w.hidden_norm);
  const int64_t width = m.config.hidden;
  ValueId both =
      b.columns("mtp_concat", {embed, hidden}, {{0, 0, 0, 0, 1, width}, {1, 0, 0, 0, 1, width}}, "embedding, hidden");
  ValueId x = b.linear("mtp_fc", both, w.fc, {}, "hidden");
  b.enter_layer(int(m.config.layers));
  x = attention(b, m.config, w.layer, x);
  x = ffn(b, m.config, w.layer, x);
  b.leave_layers();
  x = b.rms_norm("mtp_norm", x, w.norm);
  b.logits(x, m.weights.lm_head);
  b.leave_mtp(x);
}

}  // namespace assay

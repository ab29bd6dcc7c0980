// Dense decoders: llama, olmo2, qwen2, qwen3 and the text decoder of qwen3_vl.
// Sources: transformers modeling_llama.py, modeling_olmo2.py, modeling_qwen2.py, modeling_qwen3.py,
// modeling_qwen3_vl.py.
#include "engine/families/blocks.h"
#include "engine/families/families.h"

namespace assay {

Program llama(const Model& m) { return decoder(m, attention_block); }
Program olmo2(const Model& m) { return decoder(m, post_normed_attention_block, post_normed_swiglu_block); }
Program qwen2(const Model& m) { return decoder(m, attention_block); }
Program qwen3(const Model& m) { return decoder(m, normed_attention_block); }
/// On text the three position streams of mrope are equal, so that its rotation is qwen3's (ops/rope_table.h).
Program qwen3_vl_text(const Model& m) { return decoder(m, normed_attention_block); }

}  // namespace assay

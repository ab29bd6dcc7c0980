// The blocks that families share: halves of a decoder layer, each from the residual stream to the residual stream, and
// the loop over the layers. Sources: RMSNorm arXiv:1910.07467, RoPE arXiv:2104.09864, GQA arXiv:2305.13245, SwiGLU
// arXiv:2002.05202; transformers modeling_llama.py, modeling_olmo2.py, modeling_qwen3.py.
#pragma once
#include "engine/program.h"

namespace assay {

/// Half of a layer: x [rows, hidden] to x + what the half makes of it.
using Block = ValueId (*)(ProgramBuilder&, const Config&, const LayerWeights&, ValueId x);

/// Attention of llama and qwen2: projections (qwen2: with biases), RoPE, softmax(q.k)v.
ValueId attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x);
/// Attention of qwen3: q and k are normalised per head before RoPE.
ValueId normed_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x);
/// Attention of olmo2: no norm before it; q and k are normalised over all heads together; its output is normalised.
ValueId post_normed_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x);
/// Attention of the hybrids: rows of q are [head][query, gate]; the gate's sigmoid multiplies the context.
ValueId gated_attention_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x);
/// From q and k before RoPE to the context: the cache, and attention over it.
ValueId context_of(ProgramBuilder& b, const Config& c, ValueId q, ValueId k, ValueId v);
/// From q and k before RoPE to the output projection: the cache, and attention over it.
ValueId attend(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId q, ValueId k, ValueId v);

/// down(silu(gate(h)) * up(h)).
ValueId swiglu(ProgramBuilder& b, const LayerWeights& w, ValueId h);
/// x + swiglu(norm(x)).
ValueId swiglu_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x);
/// FFN of olmo2: x + norm(swiglu(x)).
ValueId post_normed_swiglu_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x);

/// The head of multi-token prediction: one layer of these blocks over an embedding and a hidden state (mtp.cpp).
void mtp_head(ProgramBuilder& b, const Model& m, Block attention, Block ffn, ValueId final_norm);

/// The routed experts of h: for each row, those that its router chooses, weighted and added in rank order.
ValueId experts(ProgramBuilder& b, const LayerWeights& w, ValueId h);
/// experts(h), and where there is a shared expert, that too: sigmoid(g(h)) * swiglu(h) more.
ValueId mixture(ProgramBuilder& b, const LayerWeights& w, ValueId h);
/// x + mixture(norm(x)); of a dense layer swiglu_block.
ValueId mixture_block(ProgramBuilder& b, const Config& c, const LayerWeights& w, ValueId x);

/// embed, layers of attention and FFN, final norm, lm_head; an MTP head where the model has one.
Program decoder(const Model& m, Block attention, Block ffn = swiglu_block);

}  // namespace assay

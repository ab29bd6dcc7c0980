// gguf_of(): the test-side converter from a loaded model to GGUF. It is a _test.cpp so that it is linked into tests
// only.
#include <cmath>

#include "engine/formats/gguf_writer.h"
#include "engine/formats/test_files.h"
#include "engine/formats/widen.h"

namespace assay::testing_files {
namespace {

/// convert_hf_to_gguf.py, LlamaModel.permute: reshape(heads, 2, head_dim/2, -1).swapaxes(1, 2). File row 2*j + half of
/// a head is row half*head_dim/2 + j.
std::string permuted(const std::string& rows, size_t row_bytes, int64_t head_dim) {
  std::string out;
  const int64_t n = int64_t(rows.size() / row_bytes);
  for (int64_t head = 0; head < n / head_dim; head++)
    for (int64_t j = 0; j < head_dim / 2; j++)
      for (int64_t half = 0; half < 2; half++)
        out += rows.substr(size_t(head * head_dim + half * (head_dim / 2) + j) * row_bytes, row_bytes);
  return out;
}

/// generate_extra_tensors of the same converter, in float32 as there.
std::vector<float> llama3_divisors(const RopeConfig& r) {
  std::vector<float> out;
  const double low_wavelen = r.original_context / r.low_freq_factor,
               high_wavelen = r.original_context / r.high_freq_factor;
  for (int64_t j = 0; j < r.rotary / 2; j++) {
    const float exponent = float(2 * j) / float(r.rotary);
    const float freq = 1.0f / std::pow(float(r.theta), exponent);
    const float wavelen = float(2 * 3.14159265358979323846) / freq;
    if (double(wavelen) < high_wavelen) {
      out.push_back(1);
    } else if (double(wavelen) > low_wavelen) {
      out.push_back(float(r.factor));
    } else {
      const float smooth = (float(r.original_context) / wavelen - float(r.low_freq_factor)) /
                           float(r.high_freq_factor - r.low_freq_factor);
      out.push_back(1 / ((1 - smooth) / float(r.factor) + smooth));
    }
  }
  return out;
}

}  // namespace

GgufBuilder gguf_of(const Model& model) {
  const Config& c = model.config;
  GgufBuilder b;
  const std::string a = c.family == "qwen3_vl" ? "qwen3vl" : c.family == "qwen3_moe" ? "qwen3moe" : c.family;
  const bool llama = c.family == "llama";
  b.str("general.architecture", a).str("general.type", "model");
  b.u32(a + ".block_count", uint32_t(c.layers)).u32(a + ".context_length", uint32_t(c.context));
  b.u32(a + ".embedding_length", uint32_t(c.hidden)).u32(a + ".feed_forward_length", uint32_t(c.ffn));
  b.u32(a + ".attention.head_count", uint32_t(c.heads)).u32(a + ".attention.head_count_kv", uint32_t(c.kv_heads));
  b.u32(a + ".attention.key_length", uint32_t(c.head_dim)).u32(a + ".attention.value_length", uint32_t(c.head_dim));
  b.f32(a + ".attention.layer_norm_rms_epsilon", float(c.rms_eps)).f32(a + ".rope.freq_base", float(c.rope.theta));
  if (llama) b.u32(a + ".rope.dimension_count", uint32_t(c.rope.rotary)).u32(a + ".vocab_size", uint32_t(c.vocab));
  if (!c.rope.mrope_section.empty()) {
    std::vector<int32_t> sections(c.rope.mrope_section.begin(), c.rope.mrope_section.end());
    sections.push_back(0);
    b.array(a + ".rope.dimension_sections", kVI32, sections.size(), raw(sections));
  }
  if (c.experts > 0) {
    b.u32(a + ".expert_count", uint32_t(c.experts)).u32(a + ".expert_used_count", uint32_t(c.experts_per_token));
    b.u32(a + ".expert_feed_forward_length", uint32_t(c.expert_ffn));
    if (!c.norm_topk_prob) b.add(a + ".expert_weights_norm", kVBool, raw(uint8_t(0)));
  }
  if (c.bos >= 0) b.u32("tokenizer.ggml.bos_token_id", uint32_t(c.bos));
  if (!c.eos.empty()) b.u32("tokenizer.ggml.eos_token_id", uint32_t(c.eos[0]));

  auto matrix = [&](const std::string& name, const Matrix& m, bool permute) {
    std::string bytes(reinterpret_cast<const char*>(m.data), m.bytes());
    if (permute) bytes = permuted(bytes, row_bytes(m.type, m.columns), c.head_dim);
    b.tensor(name, {uint64_t(m.columns), uint64_t(m.rows)}, gguf_type_number(m.type), bytes);
  };
  auto vector = [&](const std::string& name, const Vector& v, bool permute = false) {
    if (!v.empty()) b.tensor(name, {v.size()}, kF32, permute ? permuted(raw(v), 4, c.head_dim) : raw(v));
  };
  if (c.rope.llama3) vector("rope_freqs.weight", llama3_divisors(c.rope));
  matrix("token_embd.weight", model.weights.embed, false);
  for (size_t i = 0; i < model.weights.layers.size(); i++) {
    const LayerWeights& l = model.weights.layers[i];
    const std::string p = "blk." + std::to_string(i) + ".";
    vector(p + "attn_norm.weight", l.attn_norm);
    matrix(p + "attn_q.weight", l.q, llama);
    matrix(p + "attn_k.weight", l.k, llama);
    matrix(p + "attn_v.weight", l.v, false);
    vector(p + "attn_q.bias", l.q_bias, llama);
    vector(p + "attn_k.bias", l.k_bias, llama);
    vector(p + "attn_v.bias", l.v_bias);
    vector(p + "attn_q_norm.weight", l.q_norm);
    vector(p + "attn_k_norm.weight", l.k_norm);
    matrix(p + "attn_output.weight", l.o, false);
    vector(p + "attn_output.bias", l.o_bias);
    vector(p + "post_attention_norm.weight", l.attn_post_norm);
    vector(p + "ffn_norm.weight", l.ffn_norm);
    if (l.router.empty()) {
      matrix(p + "ffn_gate.weight", l.gate, false);
      matrix(p + "ffn_up.weight", l.up, false);
      matrix(p + "ffn_down.weight", l.down, false);
    } else {
      // The converter writes routers as F32, and all experts of a layer as one tensor.
      const Vector router = widen(l.router.type, l.router.data, l.router.rows * l.router.columns);
      b.tensor(p + "ffn_gate_inp.weight", {uint64_t(c.hidden), uint64_t(c.experts)}, kF32, raw(router));
      for (auto [name, m] : {std::pair{"ffn_gate_exps", &l.expert_gate}, {"ffn_up_exps", &l.expert_up}, {"ffn_down_exps", &l.expert_down}}) {
        matrix(p + name + ".weight", *m, false);
        b.tensors.back().ne = {uint64_t(m->columns), uint64_t(m->rows / c.experts), uint64_t(c.experts)};
      }
    }
    vector(p + "post_ffw_norm.weight", l.ffn_post_norm);
  }
  vector("output_norm.weight", model.weights.final_norm);
  if (!c.tied) matrix("output.weight", model.weights.lm_head, false);
  return b;
}

}  // namespace assay::testing_files

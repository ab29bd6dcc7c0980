// A synthetic model as a GGUF file: made and written piece by piece, so that no model is too large.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "engine/formats/artifact_keys.h"
#include "engine/formats/assemble.h"
#include "engine/formats/gguf_keys.h"
#include "engine/formats/gguf_writer.h"
#include "engine/formats/rope_factors.h"
#include "engine/formats/synth.h"
#include "engine/formats/synth_blocks.h"
#include "engine/thread_pool.h"

namespace assay {

uint64_t write_synth_gguf(const SynthSpec& spec, const std::filesystem::path& path, bool replace, int threads) {
  const SynthLayout layout = synth_layout(spec);
  const Config& c = layout.config;
  GgufWriter file(path, replace);
  put_config_keys(file, c, spec.text(), spec.type);
  put_placeholder_tokenizer(file, c);
  put_artifact_keys(file, c.family, synth_hash(layout, spec.seed));
  for (const SynthTensor& t : layout.tensors) file.tensor(t.name, t.type, t.shape);
  const Vector divisors = c.rope.llama3 ? llama3_divisors(c.rope) : Vector{};
  if (!divisors.empty()) file.tensor(kRopeFreqs, WeightType::f32, {int64_t(divisors.size())});
  file.begin();
  if (!divisors.empty()) file.write(layout.tensors.size(), 0, divisors.data(), divisors.size() * sizeof(float));

  // Where the row r of the file, and the block b of a row of ssm_out, comes from: value heads as the converter orders them.
  const auto v_head = [&](int64_t of_head, int64_t before, int64_t r) {
    if (r < before || c.gdn_k_heads == c.gdn_v_heads || c.family == "qwen3_next") return r;
    const int64_t h = (r - before) / of_head;
    for (int64_t ours = 0; ours < c.gdn_v_heads; ours++)
      if (gguf_v_head(c, ours) == h) return before + ours * of_head + (r - before) % of_head;
    return r;
  };
  const auto file_row = [&](const std::string& name, int64_t r) {
    const auto is = [&](const char* part) { return name.find(std::string(".") + part) != std::string::npos; };
    if (c.gdn_layers.empty()) return r;
    if (is("attn_qkv.") || is("ssm_conv1d.")) return v_head(c.gdn_v_dim, 2 * c.gdn_k_columns(), r);
    if (is("attn_gate.")) return v_head(c.gdn_v_dim, 0, r);
    if (is("ssm_beta.") || is("ssm_alpha.") || is("ssm_dt.") || name.ends_with(".ssm_a")) return v_head(1, 0, r);
    return r;
  };
  ThreadPool pool(threads);
  for (size_t i = 0; i < layout.tensors.size(); i++) {
    const SynthTensor& t = layout.tensors[i];
    if (t.shape.size() == 1) {
      Vector v = random_vector(spec.seed, t.name, t.shape[0], t.centre, t.size);
      const bool permuted = c.family == "llama" && (t.name.ends_with("attn_q.bias") || t.name.ends_with("attn_k.bias"));
      if (permuted) {
        const Vector hf = v;
        for (size_t r = 0; r < v.size(); r++) v[r] = hf[size_t(hf_row_of(int64_t(r), c.head_dim))];
      }
      if (!c.gdn_layers.empty()) {
        const Vector ours = v;
        for (size_t r = 0; r < v.size(); r++) v[r] = ours[size_t(file_row(t.name, int64_t(r)))];
      }
      file.write(i, 0, v.data(), v.size() * sizeof(float));
      continue;
    }
    constexpr size_t kTask = 1 << 20;  // bytes per write
    const RandomMatrix random(spec.seed, t.name, t.type, t.shape.back(), t.size);
    const size_t row = row_bytes(t.type, t.shape.back());
    const bool permuted =
        c.family == "llama" && (t.name.ends_with("attn_q.weight") || t.name.ends_with("attn_k.weight"));
    pool.parallel_for(t.rows(), std::max<int64_t>(1, int64_t(kTask / row)), [&](int64_t begin, int64_t end, int) {
      std::vector<std::byte> bytes(size_t(end - begin) * row);
      if (permuted)
        for (int64_t r = begin; r < end; r++) {
          const int64_t hf = hf_row_of(r, c.head_dim);
          random.write(hf, hf + 1, bytes.data() + size_t(r - begin) * row);
        }
      else if (!c.gdn_layers.empty())
        for (int64_t r = begin; r < end; r++) {
          const int64_t ours = file_row(t.name, r);
          std::byte* to = bytes.data() + size_t(r - begin) * row;
          random.write(ours, ours + 1, to);
          const int64_t block = block_elements(t.type);
          if (!t.name.ends_with(".ssm_out.weight") || c.gdn_v_dim % block != 0) continue;  // tiled as it is (assemble.cpp)
          const std::vector<std::byte> plain(to, to + row);
          for (int64_t k = 0; k < t.shape.back(); k += block)
            std::memcpy(to + size_t(k / block) * block_bytes(t.type), plain.data() + size_t(v_head(c.gdn_v_dim, 0, k) / block) * block_bytes(t.type), block_bytes(t.type));
        }
      else
        random.write(begin, end, bytes.data());
      file.write(i, size_t(begin) * row, bytes.data(), bytes.size());
    });
  }
  file.finish();
  return file.file_bytes();
}

}  // namespace assay

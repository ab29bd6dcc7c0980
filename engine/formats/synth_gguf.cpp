// A synthetic model as a GGUF file: made and written piece by piece, so that no model is too large.
#include <fmt/format.h>

#include <algorithm>

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
      else
        random.write(begin, end, bytes.data());
      file.write(i, size_t(begin) * row, bytes.data(), bytes.size());
    });
  }
  file.finish();
  return file.file_bytes();
}

}  // namespace assay

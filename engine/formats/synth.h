// Models with random weights in the exact shape of real ones: for speed, memory and equality of bits at real width.
// The weights are a function of (seed, tensor name, row, block), see synth_blocks.h; a model in memory and the GGUF
// file of the same spec have the same bytes.
//
// Sizes: every matrix has a root mean square of 1 / sqrt(columns), so that it keeps the size of a vector; those that
// end a residual branch (o, down) are smaller by 1 / sqrt(2 * layers), as GPT-2 initialises them. Norm weights lie in
// 0.5 to 1.5, biases in -0.5 to 0.5.
#pragma once
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/formats/loader.h"
#include "engine/model.h"

namespace assay {

/// What to make. Text form: "synth:SHAPE:TYPE[:layers=N][:seed=S]", which stands wherever a model's path may.
struct SynthSpec {
  std::string shape;  // a name of synth_shapes(), or the path of a config.json
  WeightType type = WeightType::q8_0;
  uint64_t seed = 1;
  int64_t layers = 0;  // 0: the shape's own
  std::string text() const;
};
bool is_synth_spec(std::string_view model);  // begins with "synth:"
/// Throws Error{usage} that shows the form, or the known types.
SynthSpec parse_synth_spec(const std::string& text);

/// A published model's shape. Those whose family the engine does not run yet are here too, and refused when made.
struct SynthShape {
  std::string_view name, family;
  int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
  bool tied;
  double theta;
  int64_t context;
  int64_t experts = 0, experts_used = 0, expert_ffn = 0;  // mixture of experts: replaces ffn
  // Hybrid: all layers but every `attention_interval`-th are gated DeltaNet, whose q, k, v have these heads.
  int64_t attention_interval = 0, gdn_k_heads = 0, gdn_v_heads = 0, gdn_dim = 0, conv = 0;
  bool runs() const;           // the engine has the family
  int64_t parameters() const;  // elements of all tensors
};
std::span<const SynthShape> synth_shapes();

/// One tensor of the model, under its GGUF name, rows in Hugging Face order.
struct SynthTensor {
  std::string name;
  std::vector<int64_t> shape;  // [rows, columns], [experts, rows, columns], or [n] of a vector
  WeightType type;             // vectors: F32
  double size;                 // matrices: root mean square; vectors: half their range
  double centre;               // vectors: 1 of norms (smaller of those behind a block), 0 of biases
  size_t bytes() const;
  int64_t rows() const { return shape.size() == 3 ? shape[0] * shape[1] : shape[0]; }  // of a matrix
};
struct SynthLayout {
  Config config;
  bool o_bias = false;
  std::vector<SynthTensor> tensors;  // in file order
  std::vector<std::string> notes;    // tensors whose columns don't divide into blocks, and the type they have instead
};
/// Throws Error{usage} for an unknown shape or one whose family the engine does not run, Error{malformed} for a bad
/// config.json.
SynthLayout synth_layout(const SynthSpec& spec);

/// Of the seed, all tensors, the config and the version of the generator, which fix every byte: 32 hex digits. The
/// bytes themselves are not read for it.
std::string synth_hash(const SynthLayout& layout, uint64_t seed);

/// The model in memory. Its provenance: path = spec.text(), format "synth", hash = synth_hash. `threads` 0: all cores.
/// Throws as synth_layout(), and Error{memory}.
Model make_synthetic_model(const SynthSpec& spec, int threads = 0);
/// As outline_model() (loader.h); nothing of the size of a matrix is made.
ModelOutline outline_synthetic_model(const SynthSpec& spec);

/// The same as a GGUF file that llama.cpp loads, with a placeholder vocabulary. Returns its bytes. Memory: some MB per
/// thread. Throws as synth_layout() and GgufWriter.
uint64_t write_synth_gguf(const SynthSpec& spec, const std::filesystem::path& path, bool replace, int threads = 0);

}  // namespace assay

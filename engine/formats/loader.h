// Loading a model: a Hugging Face folder or a GGUF file. Every shape is checked once here, wanted against found, so
// that no inference code has a shape branch; files are trusted in nothing (formats/README.md "Canaries").
#pragma once
#include <filesystem>

#include "engine/model.h"

namespace assay {

/// `path`: a folder with config.json and *.safetensors (single or sharded by model.safetensors.index.json), a .gguf
/// file, or "synth:SHAPE:TYPE..." for random weights (formats/synth.h). Weights of files are memory-mapped. Throws
/// Error{malformed} with offset or tensor, wanted and found; unsupported tensor types and families are refused by name
/// with the supported list.
Model load_model(const std::filesystem::path& path);

/// A model of which nothing but headers and norms is read: config, types and shapes are right, no matrix's values may be
/// looked at, and the provenance has no hash.
struct ModelOutline {
  Model model;
  size_t mapped_bytes = 0;  // of the files that load_model() maps
  size_t copied_bytes = 0;  // of matrices that it holds as copies: made ones, permuted ones, badly aligned ones
};
/// For plans before loading. Throws as load_model().
ModelOutline outline_model(const std::filesystem::path& path);

}  // namespace assay

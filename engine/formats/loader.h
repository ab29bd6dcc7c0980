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

}  // namespace assay

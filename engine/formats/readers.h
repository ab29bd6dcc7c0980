// The readers behind load_model().
#pragma once
#include <filesystem>

#include "engine/formats/loader.h"

namespace assay {

class GgufFile;

/// A Hugging Face folder. Throws as load_model().
Model load_hf_folder(const std::filesystem::path& dir);
/// As outline_model().
ModelOutline outline_hf_folder(const std::filesystem::path& dir);
ModelOutline outline_gguf(const GgufFile& file, const std::string& path);
/// A GGUF file that is already parsed. `path` goes into the provenance. The file's bytes must outlive the model's
/// weights.
Model load_gguf(const GgufFile& file, const std::string& path);

}  // namespace assay

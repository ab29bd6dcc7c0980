// The readers behind load_model().
#pragma once
#include <filesystem>

#include "engine/model.h"

namespace assay {

class GgufFile;

/// A Hugging Face folder. Throws as load_model().
Model load_hf_folder(const std::filesystem::path& dir);
/// A GGUF file that is already parsed. `path` goes into the provenance. The file's bytes must outlive the model's
/// weights.
Model load_gguf(const GgufFile& file, const std::string& path);

}  // namespace assay

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
/// weights. `check_artifact` false: the layout keys of our own files are not looked at (artifact_keys.h), which only
/// tests that plant a wrong layout want.
Model load_gguf(const GgufFile& file, const std::string& path, bool check_artifact = true);

/// GGUF keeps rope theta as f32 where config.json has a decimal. The shortest decimal that rounds to that f32 is the
/// number that the converter read, whenever it had up to six digits; read as double it equals the Hugging Face side's.
double shortest_decimal(float x);

}  // namespace assay

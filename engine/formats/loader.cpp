#include "engine/formats/loader.h"

#include "engine/formats/gguf.h"
#include "engine/formats/readers.h"
#include "engine/formats/synth.h"

namespace assay {

Model load_model(const std::filesystem::path& path) {
  if (is_synth_spec(path.native())) return make_synthetic_model(parse_synth_spec(path.native()));
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return load_hf_folder(path);
  return load_gguf(GgufFile::open(path), path.string());
}

ModelOutline outline_model(const std::filesystem::path& path) {
  if (is_synth_spec(path.native())) return outline_synthetic_model(parse_synth_spec(path.native()));
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return outline_hf_folder(path);
  return outline_gguf(GgufFile::open(path), path.string());
}

}  // namespace assay

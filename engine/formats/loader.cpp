#include "engine/formats/loader.h"

#include "dumps/error.h"
#include "engine/formats/readers.h"

namespace fs = std::filesystem;

namespace assay {

Model load_model(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return load_hf_folder(path);
  throw Error(ErrorKind::malformed, path.string(), "is not a model", "a Hugging Face folder", "something else");
}

}  // namespace assay

// The official cases of families that this engine runs, and how to run one.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "conformance/runner.h"

namespace assay {

struct OfficialCase {
  const char* name;     // folder below goldens/official
  const char* family;
  int64_t tensors;      // golden tensors that max_rel must compare (all but ids and the top-k lists)
  int64_t prompts;
  bool trained;         // brings a corpus with NLL, needle prompts and margins
  bool gguf = true;     // a GGUF file can say its config
};
const std::vector<OfficialCase>& official_cases();

std::filesystem::path case_dir(const CheckContext& c, const OfficialCase& oc);
/// Loaded once per process and path.
std::shared_ptr<const Model> shared_model(const std::filesystem::path& path);
/// A spec that runs the case's prompts and decode steps with f32 caches and poisoned scratch, capturing everything, as
/// the context alters it.
DumpSpec case_spec(const CheckContext& c, const OfficialCase& oc, bool forced);

}  // namespace assay

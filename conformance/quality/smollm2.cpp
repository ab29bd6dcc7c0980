#include "conformance/quality/smollm2.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/integration/cases.h"
#include "dumps/error.h"

namespace assay {

std::filesystem::path smollm2_path(const CheckContext& c) { return c.root / ".cache" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"; }

bool smollm2_present(const CheckContext& c) { return std::filesystem::exists(smollm2_path(c)); }
std::string smollm2_how() { return "SmolLM2 is not there; ci/fetch-smollm2 fetches it (90 MB)"; }
std::shared_ptr<const Model> smollm2_model(const CheckContext& c) { return shared_model(smollm2_path(c)); }

DumpSpec smollm2_spec(const CheckContext& c, size_t prompts, int64_t decode) {
  const std::filesystem::path path = c.root / "goldens" / "llamacpp" / "smollm2.json";
  std::ifstream in(path);
  if (!in) throw Error(ErrorKind::malformed, path.string(), "can't be read");
  DumpSpec s;
  const nlohmann::json golden = nlohmann::json::parse(in);
  for (const auto& p : golden.at("variants").at("f32").at("cases")) {
    if (s.requests.size() == prompts) break;
    s.requests.push_back({p.at("prompt_ids").get<std::vector<int32_t>>(), decode, {}});
  }
  s.engine.isa = c.isa;
  s.engine.threads = c.threads;
  s.engine.kv = KvType::f32;
  s.engine.activations = Activations::f32;
  s.capture.state = true;
  return s;
}

}  // namespace assay

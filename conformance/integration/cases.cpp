#include "conformance/integration/cases.h"

#include <map>

namespace assay {

const std::vector<OfficialCase>& official_cases() {
  static const std::vector<OfficialCase> all = {
      {"llama-base", "llama", 275, 4, false},    {"llama-rope3", "llama", 275, 4, false},
      {"olmo2-base", "olmo2", 299, 4, false},    {"qwen2-bias", "qwen2", 275, 4, false},
      {"qwen3-k256", "qwen3", 299, 4, false},
      {"qwen3-odd", "qwen3", 373, 4, false},     {"qwen3_moe-nonorm", "qwen3_moe", 311, 4, false},
      {"qwen3_moe-norm", "qwen3_moe", 311, 4, false}, {"qwen3_vl-text", "qwen3_vl", 373, 4, false},
      {"trained-deep", "qwen3", 728, 6, true},   {"trained-engine", "qwen3", 519, 6, true},
      {"trained-moe", "qwen3_moe", 647, 6, true},
      {"qwen3_5-k256", "qwen3_5", 425, 4, false}, {"qwen3_5-mtp", "qwen3_5", 661, 4, false},
      {"qwen3_5-odd", "qwen3_5", 609, 4, false, false}, {"qwen3_5_moe-base", "qwen3_5_moe", 473, 4, false},
      {"qwen3_next-base", "qwen3_next", 489, 4, false}, {"trained-hybrid", "qwen3_5", 1022, 6, true},
  };
  return all;
}

std::filesystem::path case_dir(const CheckContext& c, const OfficialCase& oc) { return c.root / "goldens" / "official" / oc.name; }

std::shared_ptr<const Model> shared_model(const std::filesystem::path& path) {
  static std::map<std::filesystem::path, std::shared_ptr<const Model>> loaded;
  std::shared_ptr<const Model>& m = loaded[path];
  if (!m) m = std::make_shared<Model>(load_model(path));
  return m;
}

DumpSpec case_spec(const CheckContext& c, const OfficialCase& oc, bool forced) {
  DumpSpec s;
  s.requests = official_requests(case_dir(c, oc), forced);
  s.engine.isa = c.isa;
  s.engine.threads = c.threads;
  s.engine.kv = KvType::f32;
  s.engine.poison = true;
  s.capture.state = true;
  s.sync = false;
  if (c.alter) c.alter(s);
  return s;
}

}  // namespace assay

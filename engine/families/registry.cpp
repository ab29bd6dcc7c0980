#include "dumps/error.h"
#include "engine/families/families.h"

namespace assay {
namespace {
struct Family {
  const char* name;
  Program (*build)(const Model&);
};
constexpr Family kFamilies[] = {{"llama", llama},         {"olmo2", olmo2},           {"qwen2", qwen2},
                                {"qwen3", qwen3},         {"qwen3_5", qwen3_5},       {"qwen3_5_moe", qwen3_5_moe},
                                {"qwen3_moe", qwen3_moe}, {"qwen3_next", qwen3_next}, {"qwen3_vl", qwen3_vl_text}};
}  // namespace

Program build_program(const Model& model) {
  std::string known;
  for (const Family& f : kFamilies) {
    if (model.config.family == f.name) return f.build(model);
    known += (known.empty() ? "" : ", ") + std::string(f.name);
  }
  throw Error(ErrorKind::malformed, model.provenance.path, "unknown model family", "one of " + known,
              "\"" + model.config.family + "\"");
}

}  // namespace assay

#include "engine/forced_experts.h"

#include <algorithm>
#include <cstring>

#include "dumps/error.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay {

std::shared_ptr<const ForcedExperts> forced_experts(const Dump& dump, const std::string& prompt, const Config& c) {
  const std::string where = dump.path().string();
  auto out = std::make_shared<ForcedExperts>();
  out->chosen = c.experts_per_token;
  out->layers.resize(size_t(c.layers));
  if (c.experts == 0)
    throw Error(ErrorKind::usage, "forced experts", "the model has none to choose", "a mixture of experts", c.family);
  int64_t positions = -1;
  for (int64_t l = 0; l < c.layers; l++) {
    if (!c.has_experts(l)) continue;
    std::vector<int32_t>& ids = out->layers[size_t(l)];
    for (int64_t step = -1;; step++) {
      const std::string name = prompt + (step < 0 ? "/prefill/0" : "/decode/" + std::to_string(step)) + "/layer." +
                               std::to_string(l) + "/router_topk_ids";
      const DumpTensor* t = dump.find(name);
      if (!t && step >= 0) break;
      if (!t || !t->data)
        throw Error(ErrorKind::usage, where, "does not say which experts were chosen: " + name, "values of router_topk_ids",
                    t ? "hashes alone" : "no such tensor", "assay dump --filter 'router_*' --mode full writes them.");
      if (t->dtype != DType::i64 || t->columns() != c.experts_per_token)
        throw Error(ErrorKind::malformed, where + ": " + name, "does not fit the model",
                    "I64, " + std::to_string(c.experts_per_token) + " experts a row",
                    std::string(name_of(t->dtype)) + " " + shape_text(t->shape));
      for (int64_t r = 0; r < t->rows(); r++) {
        for (int64_t k = 0; k < t->columns(); k++) {
          int64_t id;
          std::memcpy(&id, t->data + 8 * (r * t->columns() + k), 8);
          const bool twice = std::find(ids.end() - k, ids.end(), int32_t(id)) != ids.end();
          if (id < 0 || id >= c.experts || twice)
            throw Error(ErrorKind::malformed, where + ": " + name, "row " + std::to_string(r) + ", rank " + std::to_string(k) +
                        (twice ? ": an expert that the row has already" : ": no expert"),
                        "0 to " + std::to_string(c.experts - 1) + ", each once", std::to_string(id));
          ids.push_back(int32_t(id));
        }
      }
    }
    const int64_t mine = int64_t(ids.size()) / c.experts_per_token;
    if (positions >= 0 && mine != positions)
      throw Error(ErrorKind::malformed, where, "choices of layer " + std::to_string(l) + " of " + prompt + " end elsewhere",
                  std::to_string(positions) + " positions, as the layer before", std::to_string(mine));
    positions = mine;
  }
  return out;
}

}  // namespace assay

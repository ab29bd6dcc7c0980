#include "engine/model.h"

#include <algorithm>

namespace assay {

bool Config::has_experts(int64_t layer) const {
  return experts > 0 && (layer + 1) % sparse_step == 0 &&
         std::find(dense_layers.begin(), dense_layers.end(), layer) == dense_layers.end();
}

bool Model::quantised() const {
  auto q = [](const Matrix& m) { return !m.empty() && is_quantised(m.type); };
  if (q(weights.embed) || q(weights.lm_head)) return true;
  for (const LayerWeights& l : weights.layers)
    for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.expert_gate, &l.expert_up,
                            &l.expert_down, &l.shared_gate, &l.shared_up, &l.shared_down, &l.shared_expert_gate})
      if (q(*m)) return true;
  return false;
}

}  // namespace assay

#include "engine/model.h"

namespace assay {

bool Model::quantised() const {
  auto q = [](const Matrix& m) { return !m.empty() && is_quantised(m.type); };
  if (q(weights.embed) || q(weights.lm_head)) return true;
  for (const LayerWeights& l : weights.layers)
    for (const Matrix* m : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down})
      if (q(*m)) return true;
  return false;
}

}  // namespace assay

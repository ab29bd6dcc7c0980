// What a gated DeltaNet's state keeps of itself in a step, as a log: y = rate * softplus(x + dt), rate = -exp(A_log).
// One value per head and row: there is one form, the scalar one.
#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

void decay(const DecayArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    for (int64_t h = 0; h < a.heads; h++) {
      a.y[t * a.heads + h] = mul_f32(a.w[h], softplus_f32(add_f32(a.x[t * a.heads + h], a.w[a.heads + h])));
    }
  }
}

}  // namespace assay::inline ASSAY_ISA

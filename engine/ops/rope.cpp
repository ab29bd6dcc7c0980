// Rotary embedding of the first `rotary` dims of each head in pairs (j, j + rotary/2); the rest pass unchanged.
// y0 = fma(x0, c, -(x1*s)), y1 = fma(x1, c, x0*s). y may be x.
#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

void rope(const RopeArgs& a, int64_t begin, int64_t end) {
  const int64_t pairs = a.rotary / 2;
  for (int64_t t = begin; t < end; t++) {
    const float* c = a.cos + a.positions[t] * pairs;
    const float* s = a.sin + a.positions[t] * pairs;
    for (int64_t h = 0; h < a.heads; h++) {
      const float* x = a.x + (t * a.heads + h) * a.head_dim;
      float* y = a.y + (t * a.heads + h) * a.head_dim;
      for (int64_t j = 0; j < pairs; j++) {
        const float x0 = x[j], x1 = x[j + pairs];
        y[j] = fma_f32(x0, c[j], -mul_f32(x1, s[j]));
        y[j + pairs] = fma_f32(x1, c[j], mul_f32(x0, s[j]));
      }
      for (int64_t d = a.rotary; d < a.head_dim; d++) y[d] = x[d];
    }
  }
}

}  // namespace assay::inline ASSAY_ISA

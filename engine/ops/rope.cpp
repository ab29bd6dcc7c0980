// Rotary embedding of the first `rotary` dims of each head in pairs (j, j + rotary/2); the rest pass unchanged.
// y0 = fma(x0, c, -(x1*s)), y1 = fma(x1, c, x0*s). y may be x.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

#ifdef ASSAY_ISA_scalar

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

#else

void rope(const RopeArgs& a, int64_t begin, int64_t end) {
  const int64_t pairs = a.rotary / 2;
  for (int64_t t = begin; t < end; t++) {
    const float* cos = a.cos + a.positions[t] * pairs;
    const float* sin = a.sin + a.positions[t] * pairs;
    for (int64_t h = 0; h < a.heads; h++) {
      const float* x = a.x + (t * a.heads + h) * a.head_dim;
      float* y = a.y + (t * a.heads + h) * a.head_dim;
      for (int64_t j = 0; j < pairs; j += kLanes) {
        const int64_t n = pairs - j;
        const vf x0 = v_load_n(x + j, n), x1 = v_load_n(x + pairs + j, n);
        const vf c = v_load_n(cos + j, n), s = v_load_n(sin + j, n);
        v_store_n(y + j, v_fma(x0, c, v_negate(v_mul(x1, s))), n);
        v_store_n(y + pairs + j, v_fma(x1, c, v_mul(x0, s)), n);
      }
      for (int64_t d = a.rotary; d < a.head_dim; d += kLanes) {
        v_store_n(y + d, v_load_n(x + d, a.head_dim - d), a.head_dim - d);
      }
    }
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

// RMS norm: r = 1 / sqrt(sum/K + eps), y = (x * r) * w, with K rounded to f32.
// rms_norm: the sum of x*x over `columns` by the float rule. head_norm: over the head_dim of each head by the head rule
// (32 accumulators by d mod 32, fold 16 .. 1, add +0).
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

ASSAY_NUMERICS_FN float reciprocal_rms(float sum, int64_t count, float eps) {
  return div_f32(1.0f, sqrt_f32(add_f32(div_f32(sum, (float)count), eps)));
}

#ifdef ASSAY_ISA_scalar

ASSAY_NUMERICS_FN void norm_one(const float* x, const float* w, float* y, int64_t count, float eps, int lanes) {
  float acc[kFloatLanes] = {};
  for (int64_t k = 0; k < count; k++) acc[k % lanes] = fma_f32(x[k], x[k], acc[k % lanes]);
  const float r = reciprocal_rms(fold_halves(acc, lanes), count, eps);
  for (int64_t k = 0; k < count; k++) y[k] = mul_f32(mul_f32(x[k], r), w[k]);
}

void rms_norm(const NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    norm_one(a.x + t * a.columns, a.w, a.y + t * a.columns, a.columns, a.eps, kFloatLanes);
  }
}

void head_norm(const NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.heads; i < end * a.heads; i++) {
    norm_one(a.x + i * a.head_dim, a.w, a.y + i * a.head_dim, a.head_dim, a.eps, kHeadLanes);
  }
}

#else

template <int kVectors>
ASSAY_V void norm_one(const float* x, const float* w, float* y, int64_t count, float eps) {
  vf acc[kVectors];
  ASSAY_UNROLL for (int v = 0; v < kVectors; v++) acc[v] = v_zero();
  int64_t k = 0;
  for (; k + kVectors * kLanes <= count; k += kVectors * kLanes) {
    ASSAY_UNROLL for (int v = 0; v < kVectors; v++) {
      const vf xs = v_load(x + k + v * kLanes);
      acc[v] = v_fma(xs, xs, acc[v]);
    }
  }
  for (int v = 0; k < count; v++, k += kLanes) {
    const vf xs = v_load_n(x + k, count - k);
    acc[v] = v_fma(xs, xs, acc[v]);
  }
  const vf r = v_set(reciprocal_rms(fold_vectors<kVectors>(acc), count, eps));
  for (k = 0; k < count; k += kLanes) {
    v_store_n(y + k, v_mul(v_mul(v_load_n(x + k, count - k), r), v_load_n(w + k, count - k)), count - k);
  }
}

void rms_norm(const NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    norm_one<kFloatVectors>(a.x + t * a.columns, a.w, a.y + t * a.columns, a.columns, a.eps);
  }
}

void head_norm(const NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.heads; i < end * a.heads; i++) {
    norm_one<kHeadVectors>(a.x + i * a.head_dim, a.w, a.y + i * a.head_dim, a.head_dim, a.eps);
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

// RMS norm: r = 1 / sqrt(sum/K + eps), y = (x * r) * w, with K rounded to f32.
// rms_norm: the sum of x*x over `columns` by the float rule. head_norm: over the head_dim of each head by the head rule
// (32 accumulators by d mod 32, fold 16 .. 1, add +0), and so are
// l2_norm: r = 1 / sqrt(sum + 1e-6), y = (x * r) * scale (of k the scale is 1, and the product changes nothing), and
// gated_norm: y = ((x * r) * w) * silu(z), r as of the RMS norm.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

ASSAY_NUMERICS_FN float reciprocal_rms(float sum, int64_t count, float eps) {
  return div_f32(1.0f, sqrt_f32(add_f32(div_f32(sum, (float)count), eps)));
}
ASSAY_NUMERICS_FN float reciprocal_l2(float sum) {
  return div_f32(1.0f, sqrt_f32(add_f32(sum, 1e-6f)));
}

#ifdef ASSAY_ISA_scalar

ASSAY_NUMERICS_FN float sum_of_squares(const float* x, int64_t count, int lanes) {
  float acc[kFloatLanes] = {};
  for (int64_t k = 0; k < count; k++) acc[k % lanes] = fma_f32(x[k], x[k], acc[k % lanes]);
  return fold_halves(acc, lanes);
}
ASSAY_NUMERICS_FN void norm_one(const float* x, const float* w, float* y, int64_t count, float eps, int lanes) {
  const float r = reciprocal_rms(sum_of_squares(x, count, lanes), count, eps);
  for (int64_t k = 0; k < count; k++) y[k] = mul_f32(mul_f32(x[k], r), w[k]);
}
ASSAY_NUMERICS_FN void norm_row(const float* x, const float* w, float* y, int64_t count, float eps) {
  norm_one(x, w, y, count, eps, kFloatLanes);
}
ASSAY_NUMERICS_FN void norm_head(const float* x, const float* w, float* y, int64_t count, float eps) {
  norm_one(x, w, y, count, eps, kHeadLanes);
}
ASSAY_NUMERICS_FN void l2_head(const float* x, float* y, int64_t count, float scale) {
  const float r = reciprocal_l2(sum_of_squares(x, count, kHeadLanes));
  for (int64_t k = 0; k < count; k++) y[k] = mul_f32(mul_f32(x[k], r), scale);
}
ASSAY_NUMERICS_FN void gated_head(const float* x, const float* w, const float* z, float* y, int64_t count, float eps) {
  const float r = reciprocal_rms(sum_of_squares(x, count, kHeadLanes), count, eps);
  for (int64_t k = 0; k < count; k++) y[k] = mul_f32(mul_f32(mul_f32(x[k], r), w[k]), silu_f32(z[k]));
}

#else

template <int kVectors>
ASSAY_V float sum_of_squares(const float* x, int64_t count) {
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
  return fold_vectors<kVectors>(acc);
}
template <int kVectors>
ASSAY_V void norm_one(const float* x, const float* w, float* y, int64_t count, float eps) {
  const vf r = v_set(reciprocal_rms(sum_of_squares<kVectors>(x, count), count, eps));
  for (int64_t k = 0; k < count; k += kLanes) {
    v_store_n(y + k, v_mul(v_mul(v_load_n(x + k, count - k), r), v_load_n(w + k, count - k)), count - k);
  }
}
ASSAY_V void norm_row(const float* x, const float* w, float* y, int64_t count, float eps) {
  norm_one<kFloatVectors>(x, w, y, count, eps);
}
ASSAY_V void norm_head(const float* x, const float* w, float* y, int64_t count, float eps) {
  norm_one<kHeadVectors>(x, w, y, count, eps);
}
ASSAY_V void l2_head(const float* x, float* y, int64_t count, float scale) {
  const vf r = v_set(reciprocal_l2(sum_of_squares<kHeadVectors>(x, count))), s = v_set(scale);
  for (int64_t k = 0; k < count; k += kLanes) {
    v_store_n(y + k, v_mul(v_mul(v_load_n(x + k, count - k), r), s), count - k);
  }
}
ASSAY_V void gated_head(const float* x, const float* w, const float* z, float* y, int64_t count, float eps) {
  const vf r = v_set(reciprocal_rms(sum_of_squares<kHeadVectors>(x, count), count, eps));
  for (int64_t k = 0; k < count; k += kLanes) {
    const int64_t n = count - k;
    const vf normed = v_mul(v_mul(v_load_n(x + k, n), r), v_load_n(w + k, n));
    v_store_n(y + k, v_mul(normed, v_silu(v_load_n(z + k, n))), n);
  }
}

#endif

void rms_norm(const NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) norm_row(a.x + t * a.columns, a.w, a.y + t * a.columns, a.columns, a.eps);
}

void head_norm(const NormArgs& a, int64_t begin, int64_t end) {
  const int64_t row = a.x_columns ? a.x_columns : a.heads * a.head_dim, head = a.x_stride ? a.x_stride : a.head_dim;
  for (int64_t t = begin; t < end; t++) {
    for (int64_t h = 0; h < a.heads; h++) {
      norm_head(a.x + t * row + h * head, a.w, a.y + (t * a.heads + h) * a.head_dim, a.head_dim, a.eps);
    }
  }
}

void l2_norm(const L2NormArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    for (int64_t h = 0; h < a.heads; h++) {
      l2_head(a.x + t * a.x_columns + h * a.head_dim, a.y + (t * a.heads + h) * a.head_dim, a.head_dim, a.scale);
    }
  }
}

void gated_norm(const GatedNormArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.heads; i < end * a.heads; i++) {
    const int64_t at = i * a.head_dim;
    gated_head(a.x + at, a.w, a.z + at, a.y + at, a.head_dim, a.eps);
  }
}

}  // namespace assay::inline ASSAY_ISA

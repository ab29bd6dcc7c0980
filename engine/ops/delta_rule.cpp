// The gated delta rule of one value head, step by step over the rows of a sequence; S [d_k, d_v] is the slot's state:
//   S = S * exp(decay)
//   kv = k . S              per column, by the head rule over d_k: 32 accumulators by i mod 32, fold 16 .. 1, add +0
//   delta = (v - kv) * beta
//   S = fma(k, delta, S)
//   y = q . S               by the head rule
// Value head h reads key head h / (v_heads / k_heads). Columns do not meet: a lane of a vector is a column, and the
// fold by halves is done as a binary counter, lanes visited in bit-reversed order, so that few sums live at a time.
// NaNs of the state are stored as the canonical one.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

#ifdef ASSAY_ISA_scalar

ASSAY_NUMERICS_FN void delta_column(const float* q, const float* k, float v, float beta, float kept, float* s,
                                    int64_t d_k, int64_t d_v, float* y) {
  float acc[kHeadLanes] = {};
  for (int64_t i = 0; i < d_k; i++) {
    s[i * d_v] = mul_f32(s[i * d_v], kept);
    acc[i % kHeadLanes] = fma_f32(k[i], s[i * d_v], acc[i % kHeadLanes]);
  }
  const float delta = mul_f32(sub_f32(v, fold_halves(acc, kHeadLanes)), beta);
  float out[kHeadLanes] = {};
  for (int64_t i = 0; i < d_k; i++) {
    const float next = fma_f32(k[i], delta, s[i * d_v]);
    s[i * d_v] = is_nan(next) ? canonical_nan() : next;
    out[i % kHeadLanes] = fma_f32(q[i], next, out[i % kHeadLanes]);
  }
  *y = fold_halves(out, kHeadLanes);
}

ASSAY_NUMERICS_FN void delta_block(const float* q, const float* k, const float* v, float beta, float kept, float* s,
                                   int64_t d_k, int64_t d_v, int64_t first, int64_t last, float* y) {
  for (int64_t j = first; j < last; j++) delta_column(q, k, v[j], beta, kept, s + j, d_k, d_v, y + j);
}

#else

template <int kVectors>
struct Columns {
  vf v[kVectors];
};

/// S *= kept, and k . S without the +0.
template <int kVectors, int kStride>
ASSAY_V Columns<kVectors> decayed_dot(const float* k, vf kept, float* s, int64_t d_k, int64_t d_v, int64_t n,
                                      int lane) {
  if constexpr (kStride == kHeadLanes) {
    Columns<kVectors> acc;
    ASSAY_UNROLL for (int c = 0; c < kVectors; c++) acc.v[c] = v_zero();
    for (int64_t i = lane; i < d_k; i += kHeadLanes) {
      const vf ki = v_set(k[i]);
      ASSAY_UNROLL for (int c = 0; c < kVectors; c++) {
        float* at = s + i * d_v + c * kLanes;
        const vf x = v_mul(v_load_n(at, n - c * kLanes), kept);
        v_store_n(at, x, n - c * kLanes);
        acc.v[c] = v_fma(ki, x, acc.v[c]);
      }
    }
    return acc;
  } else {
    Columns<kVectors> low = decayed_dot<kVectors, 2 * kStride>(k, kept, s, d_k, d_v, n, lane);
    const Columns<kVectors> high = decayed_dot<kVectors, 2 * kStride>(k, kept, s, d_k, d_v, n, lane + kStride);
    ASSAY_UNROLL for (int c = 0; c < kVectors; c++) low.v[c] = v_add(low.v[c], high.v[c]);
    return low;
  }
}

/// S = fma(k, delta, S), and q . S without the +0.
template <int kVectors, int kStride>
ASSAY_V Columns<kVectors> updated_dot(const float* q, const float* k, const Columns<kVectors>& delta, float* s,
                                      int64_t d_k, int64_t d_v, int64_t n, int lane) {
  if constexpr (kStride == kHeadLanes) {
    Columns<kVectors> acc;
    ASSAY_UNROLL for (int c = 0; c < kVectors; c++) acc.v[c] = v_zero();
    for (int64_t i = lane; i < d_k; i += kHeadLanes) {
      const vf ki = v_set(k[i]), qi = v_set(q[i]);
      ASSAY_UNROLL for (int c = 0; c < kVectors; c++) {
        float* at = s + i * d_v + c * kLanes;
        const vf x = v_fma(ki, delta.v[c], v_load_n(at, n - c * kLanes));
        v_store_n(at, v_nan_from(x, x), n - c * kLanes);
        acc.v[c] = v_fma(qi, x, acc.v[c]);
      }
    }
    return acc;
  } else {
    Columns<kVectors> low = updated_dot<kVectors, 2 * kStride>(q, k, delta, s, d_k, d_v, n, lane);
    const Columns<kVectors> high = updated_dot<kVectors, 2 * kStride>(q, k, delta, s, d_k, d_v, n, lane + kStride);
    ASSAY_UNROLL for (int c = 0; c < kVectors; c++) low.v[c] = v_add(low.v[c], high.v[c]);
    return low;
  }
}

/// Columns from s, v and y on: kVectors whole vectors, or one of which n columns are meant.
template <int kVectors>
ASSAY_V void delta_columns(const float* q, const float* k, const float* v, float beta, float kept, float* s,
                           int64_t d_k, int64_t d_v, int64_t n, float* y) {
  Columns<kVectors> delta = decayed_dot<kVectors, 1>(k, v_set(kept), s, d_k, d_v, n, 0);
  ASSAY_UNROLL for (int c = 0; c < kVectors; c++) {
    const vf kv = v_add(delta.v[c], v_zero());
    delta.v[c] = v_mul(v_sub(v_load_n(v + c * kLanes, n - c * kLanes), kv), v_set(beta));
  }
  const Columns<kVectors> out = updated_dot<kVectors, 1>(q, k, delta, s, d_k, d_v, n, 0);
  ASSAY_UNROLL for (int c = 0; c < kVectors; c++) {
    v_store_n(y + c * kLanes, v_add(out.v[c], v_zero()), n - c * kLanes);
  }
}

static void delta_block(const float* q, const float* k, const float* v, float beta, float kept, float* s, int64_t d_k,
                        int64_t d_v, int64_t first, int64_t last, float* y) {
  int64_t j = first;
  for (; j + 2 * kLanes <= last; j += 2 * kLanes) {
    delta_columns<2>(q, k, v + j, beta, kept, s + j, d_k, d_v, 2 * kLanes, y + j);
  }
  for (; j < last; j += kLanes) delta_columns<1>(q, k, v + j, beta, kept, s + j, d_k, d_v, last - j, y + j);
}

#endif

void delta_rule(const DeltaRuleArgs& a, int64_t begin, int64_t end) {
  const int64_t blocks = delta_blocks(a.d_v), group = a.v_heads / a.k_heads;
  for (int64_t item = begin; item < end; item++) {
    const RowSpan& span = a.spans[item / blocks / a.v_heads];
    const int64_t head = item / blocks % a.v_heads, first = item % blocks * kDeltaBlock, last = first + kDeltaBlock;
    float* s = a.state + (span.slot * a.v_heads + head) * a.d_k * a.d_v;
    for (int64_t r = span.first; r < span.first + span.rows; r++) {
      const int64_t key = (r * a.k_heads + head / group) * a.d_k, value = (r * a.v_heads + head) * a.d_v;
      delta_block(a.q + key, a.k + key, a.v + value, a.beta[r * a.v_heads + head],
                  exp_f32(a.decay[r * a.v_heads + head]), s, a.d_k, a.d_v, first, last < a.d_v ? last : a.d_v,
                  a.y + value);
    }
  }
}

}  // namespace assay::inline ASSAY_ISA

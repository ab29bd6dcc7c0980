// The small ops of a mixture of experts; the experts' products are linear's and quant_linear's (cpu_backend.cpp).
// topk: the `chosen` largest logits of a row, by falling value, ties to the lower id (-0 counts as +0). A row with a
// NaN chooses nothing: every id is -1.
// topk_weights: p_e = exp(x_e - max) / sum over all experts, of the chosen ones. max by the integer order of floats;
// the sum by the float rule, lane = e mod 256. `normalised`: t = +0, t = t + p_r in rank order, then p_r / t. The
// weight of no expert (id -1) is NaN. expert_sum: acc = +0, acc = fma(w_r, y_r, acc) in rank order. gated_add: y =
// fma(1 / (1 + exp(-gate)), shared, x), one gate per row.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

void topk(const TopkArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    const float* x = a.logits + t * a.experts;
    float* ids = a.ids + t * a.chosen;
    bool nan = false;
    for (int64_t e = 0; e < a.experts; e++) nan = nan || is_nan(x[e]);
    int64_t last = -1;  // the id of the rank before
    for (int64_t r = 0; r < a.chosen; r++) {
      int64_t best = -1;
      for (int64_t e = 0; e < a.experts && !nan; e++) {
        const bool behind = r == 0 || x[e] < x[last] || (x[e] == x[last] && e > last);  // not chosen yet
        if (behind && (best < 0 || x[e] > x[best])) best = e;
      }
      ids[r] = (float)best;
      last = best;
    }
  }
}

/// p[e] = exp(x[e] - largest).
ASSAY_NUMERICS_FN void exponentials(const float* x, int64_t count, float largest, float* p) {
#ifdef ASSAY_ISA_scalar
  for (int64_t e = 0; e < count; e++) p[e] = exp_f32(sub_f32(x[e], largest));
#else
  const vf max = v_set(largest);
  for (int64_t e = 0; e < count; e += kLanes) {
    v_store_n(p + e, v_exp(v_sub(v_load_n(x + e, count - e), max)), count - e);
  }
#endif
}

void topk_weights(const TopkWeightsArgs& a, int64_t begin, int64_t end) {
  float* p = thread_scratch(a.experts);
  for (int64_t t = begin; t < end; t++) {
    const float* x = a.logits + t * a.experts;
    const float* ids = a.ids + t * a.chosen;
    float* y = a.y + t * a.chosen;
    int32_t largest = ordered_of(x[0]);
    for (int64_t e = 1; e < a.experts; e++) {
      const int32_t o = ordered_of(x[e]);
      largest = largest > o ? largest : o;
    }
    exponentials(x, a.experts, float_of_ordered(largest), p);
    float acc[kFloatLanes] = {};
    for (int64_t e = 0; e < a.experts; e++) acc[e % kFloatLanes] = add_f32(acc[e % kFloatLanes], p[e]);
    const float sum = fold_halves(acc, kFloatLanes);
    float total = 0.0f;
    for (int64_t r = 0; r < a.chosen; r++) {
      const bool is_expert = ids[r] >= 0 && ids[r] < (float)a.experts;
      y[r] = is_expert ? div_f32(p[(int64_t)ids[r]], sum) : canonical_nan();
      total = add_f32(total, y[r]);
    }
    for (int64_t r = 0; r < a.chosen && a.normalised; r++) y[r] = div_f32(y[r], total);
  }
}

#ifdef ASSAY_ISA_scalar

void expert_sum(const ExpertSumArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    for (int64_t c = 0; c < a.columns; c++) {
      float acc = 0.0f;
      for (int64_t r = 0; r < a.chosen; r++) {
        acc = fma_f32(a.weights[t * a.chosen + r], a.x[(t * a.chosen + r) * a.columns + c], acc);
      }
      a.y[t * a.columns + c] = acc;
    }
  }
}

void gated_add(const GatedAddArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    const float gate = sigmoid_f32(a.gate[t]);
    for (int64_t i = t * a.columns; i < (t + 1) * a.columns; i++) a.y[i] = fma_f32(gate, a.shared[i], a.x[i]);
  }
}

#else

void expert_sum(const ExpertSumArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    const float* w = a.weights + t * a.chosen;
    const float* x = a.x + t * a.chosen * a.columns;
    for (int64_t c = 0; c < a.columns; c += kLanes) {
      vf acc = v_zero();
      for (int64_t r = 0; r < a.chosen; r++) {
        acc = v_fma(v_set(w[r]), v_load_n(x + r * a.columns + c, a.columns - c), acc);
      }
      v_store_n(a.y + t * a.columns + c, acc, a.columns - c);
    }
  }
}

void gated_add(const GatedAddArgs& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; t++) {
    const vf gate = v_set(sigmoid_f32(a.gate[t]));
    for (int64_t c = 0; c < a.columns; c += kLanes) {
      const int64_t i = t * a.columns + c, left = a.columns - c;
      v_store_n(a.y + i, v_fma(gate, v_load_n(a.shared + i, left), v_load_n(a.x + i, left)), left);
    }
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

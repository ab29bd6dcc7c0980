// y[t][n] = sum over k of w[n][k] * x[t][k] by the float rule, then bias[n] in one add. Quantised rows are widened first.
// Float rule: accumulator k mod 256, acc = fma(w, x, acc), increasing k, start +0; fold 128 .. 1; add +0.
// Bound against exact sums: 2^-24 * (ceil(K/256) + 9) * sum |w x| + e, e = 2^-149 per rounding, + 2^-24 |y| with a bias.
#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

void linear(const LinearArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.w.columns, row_size = bytes_of_row(a.w.type, columns);
  float* w = thread_scratch(columns);
  for (int64_t n = begin; n < end; n++) {
    for (int64_t k = 0; k < columns; k++) w[k] = weight_at(a.w.type, a.w.data + n * row_size, k);
    for (int64_t t = 0; t < a.tokens; t++) {
      const float* x = a.x + t * columns;
      float acc[kFloatLanes] = {};
      for (int64_t k = 0; k < columns; k++) acc[k % kFloatLanes] = fma_f32(w[k], x[k], acc[k % kFloatLanes]);
      const float y = fold_halves(acc, kFloatLanes);
      a.y[t * a.w.rows + n] = a.bias ? add_f32(y, a.bias[n]) : y;
    }
  }
}

}  // namespace assay::inline ASSAY_ISA

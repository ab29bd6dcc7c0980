// silu_mul: y = (a / (1 + exp(-a))) * b. add: y = a + b. y may be a or b.
#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

void silu_mul(const BinaryArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.columns; i < end * a.columns; i++) a.y[i] = mul_f32(silu_f32(a.a[i]), a.b[i]);
}

void add(const BinaryArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.columns; i < end * a.columns; i++) a.y[i] = add_f32(a.a[i], a.b[i]);
}

}  // namespace assay::inline ASSAY_ISA

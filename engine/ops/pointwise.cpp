// silu_mul: y = (a / (1 + exp(-a))) * b. add: y = a + b. y may be a or b.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

#ifdef ASSAY_ISA_scalar

void silu_mul(const BinaryArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.columns; i < end * a.columns; i++) a.y[i] = mul_f32(silu_f32(a.a[i]), a.b[i]);
}

void add(const BinaryArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.columns; i < end * a.columns; i++) a.y[i] = add_f32(a.a[i], a.b[i]);
}

#else

void silu_mul(const BinaryArgs& a, int64_t begin, int64_t end) {
  const int64_t last = end * a.columns;
  for (int64_t i = begin * a.columns; i < last; i += kLanes) {
    v_store_n(a.y + i, v_mul(v_silu(v_load_n(a.a + i, last - i)), v_load_n(a.b + i, last - i)), last - i);
  }
}

void add(const BinaryArgs& a, int64_t begin, int64_t end) {
  const int64_t last = end * a.columns;
  for (int64_t i = begin * a.columns; i < last; i += kLanes) {
    v_store_n(a.y + i, v_add(v_load_n(a.a + i, last - i), v_load_n(a.b + i, last - i)), last - i);
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

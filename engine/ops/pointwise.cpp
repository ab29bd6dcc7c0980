// silu_mul: y = (a / (1 + exp(-a))) * b. sigmoid_mul: y = a * (1 / (1 + exp(-b))). sigmoid: y = 1 / (1 + exp(-x)).
// add: y = a + b. y may be an input.
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

void sigmoid_mul(const BinaryArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.columns; i < end * a.columns; i++) a.y[i] = mul_f32(a.a[i], sigmoid_f32(a.b[i]));
}

void sigmoid(const SigmoidArgs& a, int64_t begin, int64_t end) {
  for (int64_t i = begin * a.columns; i < end * a.columns; i++) a.y[i] = sigmoid_f32(a.x[i]);
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

void sigmoid_mul(const BinaryArgs& a, int64_t begin, int64_t end) {
  const int64_t last = end * a.columns;
  for (int64_t i = begin * a.columns; i < last; i += kLanes) {
    v_store_n(a.y + i, v_mul(v_load_n(a.a + i, last - i), v_sigmoid(v_load_n(a.b + i, last - i))), last - i);
  }
}

void sigmoid(const SigmoidArgs& a, int64_t begin, int64_t end) {
  const int64_t last = end * a.columns;
  for (int64_t i = begin * a.columns; i < last; i += kLanes) {
    v_store_n(a.y + i, v_sigmoid(v_load_n(a.x + i, last - i)), last - i);
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

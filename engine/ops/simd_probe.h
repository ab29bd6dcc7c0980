// For simd_test.cpp: the functions of simd.h, each applied to arrays, for one instruction set. Linked into the tests
// only.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/ops/kernels.h"

namespace assay {

/// What one call computes from whole vectors a, b, c (n a multiple of 16, of 128 for fold_8) into out; see
/// simd_probe.cpp for each.
enum class Simd {
  load_store,
  load_first,
  store_first,
  add,
  sub,
  mul,
  div,
  fma,
  max,
  min,
  nan_from,
  negate,
  exp,
  silu,
  to_int,
  to_float,
  int_add,
  int_sub,
  int_and,
  int_or,
  int_xor,
  int_max,
  shl_23,
  srl_16,
  sra_31,
  srl_by,
  bits_of,
  abs_bits,
  any_negative,
  fold,
  fold_8,
  max_ordered,
  load_u8,
  load_i8,
  load_u16,
  store_u16,
  load_f16,
  load_bf16,
  load_f16_first,
  load_bf16_first,
  to_f16,
  to_bf16,
  count
};
struct SimdProbe {
  int lanes;
  /// `count` is the argument of the *_first functions, 0 < count < lanes.
  void (*run)(Simd what, const float* a, const float* b, const float* c, float* out, int64_t n, int64_t count);
};
/// nullptr: the scalar set has no vectors.
const SimdProbe* simd_probe(Isa isa);

}  // namespace assay

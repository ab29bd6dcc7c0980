// What the AVX2 and AVX-512 forms of simd.h share: 8 values side by side, of AVX2 instructions in both.
#pragma once
#include <immintrin.h>

#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

using vf8 = __m256;   // 8 f32
using vi8 = __m256i;  // 8 i32

ASSAY_V vf8 vf8_set(float x) {
  return _mm256_set1_ps(x);
}
ASSAY_V vf8 vf8_add(vf8 a, vf8 b) {
  return _mm256_add_ps(a, b);
}
ASSAY_V vf8 vf8_mul(vf8 a, vf8 b) {
  return _mm256_mul_ps(a, b);
}
ASSAY_V void vf8_store(float* p, vf8 x) {
  _mm256_storeu_ps(p, x);
}
ASSAY_V vi8 vf8_ordered(vf8 x) {  // ordered_of (numerics.h)
  const __m256i bits = _mm256_castps_si256(x);
  return _mm256_xor_si256(bits, _mm256_and_si256(_mm256_srai_epi32(bits, 31), _mm256_set1_epi32(0x7fffffff)));
}
ASSAY_V vi8 vi8_set(int32_t x) {
  return _mm256_set1_epi32(x);
}
ASSAY_V vi8 vi8_max(vi8 a, vi8 b) {
  return _mm256_max_epi32(a, b);
}
ASSAY_V int32_t vi8_max_of(vi8 x) {  // the largest element
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}
ASSAY_V float s_load_f16(const std::byte* p) {
  return _cvtsh_ss(load_u16(p));
}

/// Fold by halves of 8 lanes: 4, 2, 1.
ASSAY_V float fold_of_8(__m256 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
/// The same fold for 8 vectors of 8 at once: element i of the result is the fold of r[i].
ASSAY_V vf8 fold_8x8(const __m256* r) {
  __m256 half[4], quarter[2];
  for (int i = 0; i < 4; i++) {  // [r_i lanes 0-3 | r_(i+4) lanes 0-3] + [lanes 4-7 of both]
    half[i] = _mm256_add_ps(_mm256_permute2f128_ps(r[i], r[i + 4], 0x20), _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
  for (int i = 0; i < 2; i++) {  // pairs (0,1) of r_i and r_(i+2) + pairs (2,3)
    quarter[i] =
        _mm256_add_ps(_mm256_shuffle_ps(half[i], half[i + 2], 0x44), _mm256_shuffle_ps(half[i], half[i + 2], 0xee));
  }
  // now [r_i: 0,1; r_(i+2): 0,1 | r_(i+4), r_(i+6)] for i = 0, 1; elements 0 of all + elements 1
  const __m256 sum =
      _mm256_add_ps(_mm256_shuffle_ps(quarter[0], quarter[1], 0x88), _mm256_shuffle_ps(quarter[0], quarter[1], 0xdd));
  return _mm256_permutevar8x32_ps(sum, _mm256_setr_epi32(0, 2, 1, 3, 4, 6, 5, 7));  // r_0 r_2 r_1 r_3 in each half
}

}  // namespace assay::inline ASSAY_ISA

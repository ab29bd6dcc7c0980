// simd.h for AVX2 (with FMA and F16C).
#pragma once
#include "engine/ops/simd_x86.h"

namespace assay::inline ASSAY_ISA {

constexpr int kLanes = 8;
using vf = __m256;
using vi = __m256i;
constexpr int kRegisters = 16;

ASSAY_V __m256i first(int64_t n) {  // all ones in the first n
  return _mm256_cmpgt_epi32(_mm256_set1_epi32((int32_t)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
ASSAY_V vf v_zero() {
  return _mm256_setzero_ps();
}
ASSAY_V vf v_set(float x) {
  return _mm256_set1_ps(x);
}
ASSAY_V vf v_load(const float* p) {
  return _mm256_loadu_ps(p);
}
ASSAY_V vf v_load_first(const float* p, int64_t n) {
  return _mm256_maskload_ps(p, first(n));
}
ASSAY_V void v_store(float* p, vf x) {
  _mm256_storeu_ps(p, x);
}
ASSAY_V void v_store_first(float* p, vf x, int64_t n) {
  _mm256_maskstore_ps(p, first(n), x);
}
ASSAY_V vf v_add(vf a, vf b) {
  return _mm256_add_ps(a, b);
}
ASSAY_V vf v_sub(vf a, vf b) {
  return _mm256_sub_ps(a, b);
}
ASSAY_V vf v_mul(vf a, vf b) {
  return _mm256_mul_ps(a, b);
}
ASSAY_V vf v_div(vf a, vf b) {
  return _mm256_div_ps(a, b);
}
ASSAY_V vf v_fma(vf a, vf b, vf c) {
  return _mm256_fmadd_ps(a, b, c);
}
ASSAY_V vf v_max(vf a, vf b) {
  return _mm256_max_ps(a, b);
}
ASSAY_V vf v_min(vf a, vf b) {
  return _mm256_min_ps(a, b);
}
ASSAY_V vf v_nan_from(vf x, vf y) {
  return _mm256_blendv_ps(y, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}
ASSAY_V vi v_bits(vf x) {
  return _mm256_castps_si256(x);
}
ASSAY_V vf vi_float_bits(vi x) {
  return _mm256_castsi256_ps(x);
}
ASSAY_V vi v_to_int(vf x) {
  return _mm256_cvttps_epi32(x);
}
ASSAY_V vf vi_to_float(vi x) {
  return _mm256_cvtepi32_ps(x);
}
ASSAY_V vi vi_set(int32_t x) {
  return _mm256_set1_epi32(x);
}
ASSAY_V vi vi_add(vi a, vi b) {
  return _mm256_add_epi32(a, b);
}
ASSAY_V vi vi_sub(vi a, vi b) {
  return _mm256_sub_epi32(a, b);
}
ASSAY_V vi vi_and(vi a, vi b) {
  return _mm256_and_si256(a, b);
}
ASSAY_V vi vi_or(vi a, vi b) {
  return _mm256_or_si256(a, b);
}
ASSAY_V vi vi_xor(vi a, vi b) {
  return _mm256_xor_si256(a, b);
}
ASSAY_V vi vi_max(vi a, vi b) {
  return _mm256_max_epi32(a, b);
}
template <int kBits>
ASSAY_V vi vi_shl(vi a) {
  return _mm256_slli_epi32(a, kBits);
}
template <int kBits>
ASSAY_V vi vi_srl(vi a) {
  return _mm256_srli_epi32(a, kBits);
}
template <int kBits>
ASSAY_V vi vi_sra(vi a) {
  return _mm256_srai_epi32(a, kBits);
}
ASSAY_V vi vi_srl_by(vi a, int count) {
  return _mm256_srl_epi32(a, _mm_cvtsi32_si128(count));
}
ASSAY_V vi vi_bits_of(uint32_t x) {
  return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int32_t)x), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
                          _mm256_set1_epi32(1));
}
ASSAY_V bool vi_any_negative(vi a) {
  return _mm256_movemask_ps(_mm256_castsi256_ps(a)) != 0;
}
ASSAY_V vi vi_load_u8(const std::byte* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
ASSAY_V vi vi_load_i8(const std::byte* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
ASSAY_V vi vi_load_u16(const std::byte* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ASSAY_V void vi_store_u16(std::byte* p, vi x) {
  const __m256i low = _mm256_and_si256(x, _mm256_set1_epi32(0xffff));
  const __m128i packed = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), packed);
}
ASSAY_V vf v_load_f16(const std::byte* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ASSAY_V vi v_f16_bits(vf x) {
  return _mm256_cvtepu16_epi32(_mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ASSAY_V float v_fold(vf x) {
  return fold_of_8(x);
}
ASSAY_V vf8 v_fold_8(const vf* r) {
  return fold_8x8(r);
}

}  // namespace assay::inline ASSAY_ISA

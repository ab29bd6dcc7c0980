// simd.h for AVX-512 (F, BW, DQ, VL).
#pragma once
#include "engine/ops/simd_x86.h"

namespace assay::inline ASSAY_ISA {

constexpr int kLanes = 16;
using vf = __m512;   // kLanes f32
using vi = __m512i;  // kLanes i32
constexpr int kRegisters = 32;

ASSAY_V __mmask16 first(int64_t n) {
  return (__mmask16)((1u << n) - 1u);
}
ASSAY_V vf v_zero() {
  return _mm512_setzero_ps();
}
ASSAY_V vf v_set(float x) {
  return _mm512_set1_ps(x);
}
ASSAY_V vf v_load(const float* p) {
  return _mm512_loadu_ps(p);
}
ASSAY_V vf v_load_first(const float* p, int64_t n) {
  return _mm512_maskz_loadu_ps(first(n), p);
}
ASSAY_V void v_store(float* p, vf x) {
  _mm512_storeu_ps(p, x);
}
ASSAY_V void v_store_first(float* p, vf x, int64_t n) {
  _mm512_mask_storeu_ps(p, first(n), x);
}
ASSAY_V vf v_add(vf a, vf b) {
  return _mm512_add_ps(a, b);
}
ASSAY_V vf v_sub(vf a, vf b) {
  return _mm512_sub_ps(a, b);
}
ASSAY_V vf v_mul(vf a, vf b) {
  return _mm512_mul_ps(a, b);
}
ASSAY_V vf v_div(vf a, vf b) {
  return _mm512_div_ps(a, b);
}
ASSAY_V vf v_fma(vf a, vf b, vf c) {
  return _mm512_fmadd_ps(a, b, c);
}
ASSAY_V vf v_max(vf a, vf b) {
  return _mm512_max_ps(a, b);
}
ASSAY_V vf v_min(vf a, vf b) {
  return _mm512_min_ps(a, b);
}
ASSAY_V vf v_nan_from(vf x, vf y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), y,
                              _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000)));
}
ASSAY_V vi v_bits(vf x) {
  return _mm512_castps_si512(x);
}
ASSAY_V vf vi_float_bits(vi x) {
  return _mm512_castsi512_ps(x);
}
ASSAY_V vi v_to_int(vf x) {
  return _mm512_cvttps_epi32(x);
}
ASSAY_V vf vi_to_float(vi x) {
  return _mm512_cvtepi32_ps(x);
}
ASSAY_V vi vi_set(int32_t x) {
  return _mm512_set1_epi32(x);
}
ASSAY_V vi vi_add(vi a, vi b) {
  return _mm512_add_epi32(a, b);
}
ASSAY_V vi vi_sub(vi a, vi b) {
  return _mm512_sub_epi32(a, b);
}
ASSAY_V vi vi_and(vi a, vi b) {
  return _mm512_and_si512(a, b);
}
ASSAY_V vi vi_or(vi a, vi b) {
  return _mm512_or_si512(a, b);
}
ASSAY_V vi vi_xor(vi a, vi b) {
  return _mm512_xor_si512(a, b);
}
ASSAY_V vi vi_max(vi a, vi b) {
  return _mm512_max_epi32(a, b);
}
template <int kBits>
ASSAY_V vi vi_shl(vi a) {
  return _mm512_slli_epi32(a, kBits);
}
template <int kBits>
ASSAY_V vi vi_srl(vi a) {
  return _mm512_srli_epi32(a, kBits);
}
template <int kBits>
ASSAY_V vi vi_sra(vi a) {
  return _mm512_srai_epi32(a, kBits);
}
ASSAY_V vi vi_srl_by(vi a, int count) {
  return _mm512_srl_epi32(a, _mm_cvtsi32_si128(count));
}
ASSAY_V vi vi_bits_of(uint32_t x) {
  return _mm512_and_si512(_mm512_srlv_epi32(_mm512_set1_epi32((int32_t)x),
                                            _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)),
                          _mm512_set1_epi32(1));
}
ASSAY_V bool vi_any_negative(vi a) {
  return _mm512_movepi32_mask(a) != 0;
}
ASSAY_V vi vi_load_u8(const std::byte* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ASSAY_V vi vi_load_i8(const std::byte* p) {
  return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
ASSAY_V vi vi_load_u16(const std::byte* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ASSAY_V void vi_store_u16(std::byte* p, vi x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
}
ASSAY_V vf v_load_f16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ASSAY_V vi v_f16_bits(vf x) {
  return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ASSAY_V __m256 v_fold_to_8(vf x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}
ASSAY_V float v_fold(vf x) {
  return fold_of_8(v_fold_to_8(x));
}
ASSAY_V vf8 v_fold_8(const vf* r) {
  __m256 eight[8];
  ASSAY_UNROLL for (int i = 0; i < 8; i++) eight[i] = v_fold_to_8(r[i]);
  return fold_8x8(eight);
}

}  // namespace assay::inline ASSAY_ISA

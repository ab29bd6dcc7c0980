// A vector of f32 in the machine's own width, for the SIMD form that every op has once for AVX2 and AVX-512. Kept thin:
// one function, one instruction or a few, and everything that can be is composed from them once. Each is held to scalar
// code by simd_test.cpp. Only op files include this.
//
// A sum's order never depends on kLanes: the 256 (32) accumulators of a rule are kFloatLanes/kLanes (kHeadLanes/kLanes)
// vectors, and lanes that get no product may take fma(0, 0, acc), which changes no byte of a fold (NUMERICS.md).
#pragma once
#include <immintrin.h>

#include "engine/ops/op.h"

#define ASSAY_V [[maybe_unused]] __attribute__((always_inline)) static inline
#ifdef __clang__
#define ASSAY_UNROLL _Pragma("clang loop unroll(full)")  // of the loop that follows, whose count is a constant
#else
#define ASSAY_UNROLL _Pragma("GCC unroll 64")
#endif

namespace assay::inline ASSAY_ISA {

#if defined(ASSAY_ISA_avx512)

constexpr int kLanes = 16;
using vf = __m512;   // kLanes f32
using vi = __m512i;  // kLanes i32

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
}  // others: +0
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
}  // a > b ? a : b, so b where a is NaN
ASSAY_V vf v_min(vf a, vf b) {
  return _mm512_min_ps(a, b);
}  // a < b ? a : b
ASSAY_V vf v_nan_from(vf x, vf y) {  // y, canonical NaN where x is NaN
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
}  // exact integers only
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
ASSAY_V vi vi_bits_of(uint32_t x) {  // bit i of x in lane i, as 0 or 1
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
ASSAY_V void vi_store_u16(std::byte* p, vi x) {  // low halves
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
}
ASSAY_V vf v_load_f16(const std::byte* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
ASSAY_V vi v_f16_bits(vf x) {  // rounded to nearest even; a NaN stays some NaN
  return _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ASSAY_V __m256 v_fold_to_8(vf x) {
  return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

#else

constexpr int kLanes = 8;
using vf = __m256;
using vi = __m256i;

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
ASSAY_V vi vi_bits_of(uint32_t x) {  // bit i of x in lane i, as 0 or 1
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
ASSAY_V __m256 v_fold_to_8(vf x) {
  return x;
}

#endif

// ---- composed once from the above, or of AVX2 instructions in both sets

constexpr int kFloatVectors = kFloatLanes / kLanes;  // accumulators of the float rule
constexpr int kHeadVectors = kHeadLanes / kLanes;    // of the head rule

ASSAY_V vf v_negate(vf x) {
  return vi_float_bits(vi_xor(v_bits(x), vi_set((int32_t)0x80000000u)));
}
ASSAY_V vi vi_abs_bits(vf x) {
  return vi_and(v_bits(x), vi_set(0x7fffffff));
}

/// Fold by halves inside one vector of 8: 4, 2, 1.
ASSAY_V float fold_8(__m256 x) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
}
/// Fold by halves inside one vector: kLanes/2 ... 1. Without the +0.
ASSAY_V float v_fold(vf x) {
  return fold_8(v_fold_to_8(x));
}

/// The same fold for 8 vectors of 8 at once: element i of the result is the fold of r[i].
ASSAY_V __m256 fold_8x8(const __m256* r) {
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

/// The largest of 8 elements.
ASSAY_V int32_t max_of_8(__m256i x) {
  __m128i s = _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  s = _mm_max_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(s, _mm_shuffle_epi32(s, 0xb1)));
}

/// exp_f32 of numerics.h, operation by operation.
ASSAY_V vf v_exp(vf x) {
  vf c = v_min(v_max(x, v_set(-104.0f)), v_set(89.0f));
  vf nf = v_sub(v_fma(c, v_set(0x1.715476p+0f), v_set(12582912.0f)), v_set(12582912.0f));
  nf = v_max(nf, v_set(-149.0f));
  vf r = v_fma(nf, v_set(-0x1.62e4p-1f), c);
  r = v_fma(nf, v_set(-0x1.7f7d1cp-20f), r);
  vf p = v_set(0x1.685028p-10f);
  p = v_fma(p, r, v_set(0x1.123bf8p-7f));
  p = v_fma(p, r, v_set(0x1.555b9ap-5f));
  p = v_fma(p, r, v_set(0x1.55548ep-3f));
  p = v_fma(p, r, v_set(0x1.fffff8p-2f));
  p = v_fma(p, r, v_set(1.0f));
  vi n = v_to_int(nf);
  const vi top = vi_max(vi_sra<7>(n), vi_set(0));  // n = 128 only
  n = vi_sub(n, top);
  const vi half = vi_sra<1>(n), bias = vi_set(127);
  const vf a = vi_float_bits(vi_shl<23>(vi_add(half, bias)));
  const vf b = vi_float_bits(vi_shl<23>(vi_add(vi_sub(n, half), bias)));
  const vf y = v_fma(v_mul(p, a), v_mul(r, b), v_mul(a, b));
  return v_nan_from(x, v_mul(y, vi_float_bits(vi_shl<23>(vi_add(top, bias)))));
}
ASSAY_V vf v_silu(vf x) {
  return v_div(x, v_add(v_set(1.0f), v_exp(v_negate(x))));
}

// Loads of all lanes, or of the first n (others +0).
ASSAY_V vf v_load_n(const float* p, int64_t n) {
  return n >= kLanes ? v_load(p) : v_load_first(p, n);
}
ASSAY_V void v_store_n(float* p, vf x, int64_t n) {
  if (n >= kLanes)
    v_store(p, x);
  else
    v_store_first(p, x, n);
}
ASSAY_V vf v_load_bf16(const std::byte* p) {
  return vi_float_bits(vi_shl<16>(vi_load_u16(p)));
}
ASSAY_V vf v_load_f16_first(const std::byte* p, int64_t n) {
  std::byte padded[2 * kLanes] = {};
  memcpy(padded, p, (size_t)(2 * n));
  return v_load_f16(padded);
}
ASSAY_V vf v_load_bf16_first(const std::byte* p, int64_t n) {
  std::byte padded[2 * kLanes] = {};
  memcpy(padded, p, (size_t)(2 * n));
  return v_load_bf16(padded);
}

/// Bits of f16_of_f32 and bf16_of_f32, canonical NaN included.
ASSAY_V vi v_to_f16(vf x) {
  const vi nan = vi_sra<31>(vi_sub(vi_set(0x7f800000), vi_abs_bits(x)));  // all ones where x is NaN
  return vi_or(vi_and(nan, vi_set(0x7e00)), vi_and(vi_xor(nan, vi_set(-1)), v_f16_bits(x)));
}
ASSAY_V vi v_to_bf16(vf x) {
  const vi u = v_bits(x), nan = vi_sra<31>(vi_sub(vi_set(0x7f800000), vi_abs_bits(x)));
  const vi rounded = vi_srl<16>(vi_add(vi_add(u, vi_set(0x7fff)), vi_and(vi_srl<16>(u), vi_set(1))));
  return vi_or(vi_and(nan, vi_set(0x7fc0)), vi_and(vi_xor(nan, vi_set(-1)), rounded));
}

/// Where the group of 32 that starts at column k begins in a row (of K-quants: its block).
template <WeightType kType>
ASSAY_V const std::byte* place_of(const std::byte* row, int64_t k) {
  if constexpr (kType == WeightType::f32) return row + 4 * k;
  if constexpr (kType == WeightType::f16 || kType == WeightType::bf16) return row + 2 * k;
  if constexpr (kType == WeightType::q8_0) return row + k / kQuantGroup * (int64_t)sizeof(BlockQ8_0);
  if constexpr (kType == WeightType::q4_0) return row + k / kQuantGroup * (int64_t)sizeof(BlockQ4_0);
  if constexpr (kType == WeightType::q4_1) return row + k / kQuantGroup * (int64_t)sizeof(BlockQ4_1);
  if constexpr (kType == WeightType::q5_0) return row + k / kQuantGroup * (int64_t)sizeof(BlockQ5_0);
  if constexpr (kType == WeightType::q5_1) return row + k / kQuantGroup * (int64_t)sizeof(BlockQ5_1);
  if constexpr (kType == WeightType::q4_k) return row + k / kKElements * (int64_t)sizeof(BlockQ4_K);
  if constexpr (kType == WeightType::q5_k) return row + k / kKElements * (int64_t)sizeof(BlockQ5_K);
  if constexpr (kType == WeightType::q6_k) return row + k / kKElements * (int64_t)sizeof(BlockQ6_K);
}

/// Elements k .. k+kLanes of a widened weight row (op.h, weight_at, same bits but for the payload of a NaN); k is a
/// multiple of kLanes. Of a quantised type the whole row may be read so; of others while k + kLanes <= columns.
template <WeightType kType>
ASSAY_V vf weight_vector(const std::byte* row, int64_t k) {
  const int i = (int)(k % kQuantGroup);  // 0 or a multiple of kLanes
  if constexpr (kType == WeightType::f32) return v_load(reinterpret_cast<const float*>(row + 4 * k));
  if constexpr (kType == WeightType::f16) return v_load_f16(row + 2 * k);
  if constexpr (kType == WeightType::bf16) return v_load_bf16(row + 2 * k);
  if constexpr (kType == WeightType::q8_0) {
    const std::byte* b = place_of<kType>(row, k);
    return v_mul(v_set(_cvtsh_ss(load_u16(b))), vi_to_float(vi_load_i8(b + offsetof(BlockQ8_0, codes) + i)));
  }
  if constexpr (kType == WeightType::q4_0 || kType == WeightType::q4_1) {
    constexpr bool kMin = kType == WeightType::q4_1;
    const std::byte* b = place_of<kType>(row, k);
    const vi pairs = vi_load_u8(b + (kMin ? offsetof(BlockQ4_1, codes) : offsetof(BlockQ4_0, codes)) + i % 16);
    const vi code = i < 16 ? vi_and(pairs, vi_set(15)) : vi_srl<4>(pairs);
    const vf d = v_set(_cvtsh_ss(load_u16(b)));
    if constexpr (kMin) return v_fma(d, vi_to_float(code), v_set(_cvtsh_ss(load_u16(b + offsetof(BlockQ4_1, m)))));
    return v_mul(d, vi_to_float(vi_sub(code, vi_set(8))));
  }
  if constexpr (kType == WeightType::q5_0 || kType == WeightType::q5_1) {
    constexpr bool kMin = kType == WeightType::q5_1;
    constexpr size_t kHigh = kMin ? offsetof(BlockQ5_1, high) : offsetof(BlockQ5_0, high);
    const std::byte* b = place_of<kType>(row, k);
    const vi pairs = vi_load_u8(b + kHigh + 4 + i % 16);
    const vi low = i < 16 ? vi_and(pairs, vi_set(15)) : vi_srl<4>(pairs);
    const vi code = vi_or(low, vi_shl<4>(vi_bits_of(load_u32(b + kHigh) >> i)));
    const vf d = v_set(_cvtsh_ss(load_u16(b)));
    if constexpr (kMin) return v_fma(d, vi_to_float(code), v_set(_cvtsh_ss(load_u16(b + offsetof(BlockQ5_1, m)))));
    return v_mul(d, vi_to_float(vi_sub(code, vi_set(16))));
  }
  if constexpr (kType == WeightType::q4_k || kType == WeightType::q5_k) {
    constexpr bool kFive = kType == WeightType::q5_k;
    const std::byte* b = place_of<kType>(row, k);
    const int g = (int)(k % kKElements / kQuantGroup);
    const vi pairs =
        vi_load_u8(b + (kFive ? offsetof(BlockQ5_K, codes) : offsetof(BlockQ4_K, codes)) + 32 * (g / 2) + i);
    vi code = g % 2 == 0 ? vi_and(pairs, vi_set(15)) : vi_srl<4>(pairs);
    if constexpr (kFive) {
      const vi high = vi_and(vi_srl_by(vi_load_u8(b + offsetof(BlockQ5_K, high) + i), g), vi_set(1));
      code = vi_or(code, vi_shl<4>(high));
    }
    return v_fma(v_set(k_group_scale(b, g)), vi_to_float(code), v_set(k_group_minimum(b, g)));
  }
  if constexpr (kType == WeightType::q6_k) {
    const std::byte* b = place_of<kType>(row, k);
    const int r = (int)(k % kKElements), half = r / 128, quarter = r % 128 / 32;
    vi low = vi_load_u8(b + 64 * half + 32 * (quarter % 2) + i),
       high = vi_load_u8(b + offsetof(BlockQ6_K, high) + 32 * half + i);
    if (quarter >= 2) low = vi_srl<4>(low);
    high = quarter == 0 ? vi_shl<4>(high) : quarter == 1 ? vi_shl<2>(high) : quarter == 2 ? high : vi_srl<2>(high);
    const vi code = vi_or(vi_and(low, vi_set(15)), vi_and(high, vi_set(0x30)));
    const float d = _cvtsh_ss(load_u16(b + offsetof(BlockQ6_K, d)));
    const float scale = mul_f32(d, (float)load_i8(b + offsetof(BlockQ6_K, scales) + r / 16));
    return v_mul(v_set(scale), vi_to_float(vi_sub(code, vi_set(32))));
  }
}
/// The first n < kLanes elements at k, others +0: the end of a row of f32, f16 or bf16. (Quantised rows end on a
/// group.)
template <WeightType kType>
ASSAY_V vf weight_vector_first(const std::byte* row, int64_t k, int64_t n) {
  if constexpr (kType == WeightType::f32) return v_load_first(reinterpret_cast<const float*>(row + 4 * k), n);
  if constexpr (kType == WeightType::f16) return v_load_f16_first(row + 2 * k, n);
  if constexpr (kType == WeightType::bf16) return v_load_bf16_first(row + 2 * k, n);
  return v_zero();
}
template <WeightType kType>
ASSAY_V vf weight_vector_n(const std::byte* row, int64_t k, int64_t n) {
  return n >= kLanes ? weight_vector<kType>(row, k) : weight_vector_first<kType>(row, k, n);
}

/// Folds the accumulators of a rule by halves and adds +0.
template <int kVectors>
ASSAY_V float fold_vectors(vf* acc) {
  ASSAY_UNROLL for (int half = kVectors / 2; half >= 1; half /= 2) {
    ASSAY_UNROLL for (int i = 0; i < half; i++) acc[i] = v_add(acc[i], acc[i + half]);
  }
  return add_f32(v_fold(acc[0]), 0.0f);
}

}  // namespace assay::inline ASSAY_ISA

// Integer products for quant_linear.cpp, beside simd.h. A lane is 32 bits of one output row: two words or four bytes.
#pragma once
#include "engine/ops/simd.h"

namespace assay::inline ASSAY_ISA {

/// Keeps a sum where the source has it. GCC otherwise gathers all products of a loop first and adds them later, through
/// memory, at half the speed.
#if defined(ASSAY_ISA_neon)
#define ASSAY_IN_PLACE(x) asm volatile("" : "+w"(x))
#else
#define ASSAY_IN_PLACE(x) asm volatile("" : "+v"(x))
#endif

#if defined(ASSAY_ISA_avx512)

ASSAY_V vi vi_load(const void* p) {
  return _mm512_loadu_si512(p);
}
ASSAY_V vi vi_spread(const void* p) {  // the 32 bits at p in every lane
  int32_t v;
  memcpy(&v, p, 4);
  return _mm512_set1_epi32(v);
}
template <int kBits>
ASSAY_V vi vi_srl16(vi a) {  // words
  return _mm512_srli_epi16(a, kBits);
}
/// acc + a.word0 * b.word0 + a.word1 * b.word1, signed words.
ASSAY_V vi vi_dot_words(vi acc, vi a, vi b) {
#if defined(ASSAY_ISA_avx512vnni)
  acc = _mm512_dpwssd_epi32(acc, a, b);
#else
  acc = _mm512_add_epi32(acc, _mm512_madd_epi16(a, b));
#endif
  ASSAY_IN_PLACE(acc);
  return acc;
}
#if defined(ASSAY_ISA_avx512vnni)
/// acc + the four products of an unsigned byte of a and a signed byte of b.
ASSAY_V vi vi_dot_bytes(vi acc, vi a, vi b) {
  acc = _mm512_dpbusd_epi32(acc, a, b);
  ASSAY_IN_PLACE(acc);
  return acc;
}
#else
/// words + products of neighbouring bytes, a unsigned, b signed: the caller keeps the words from overflowing.
ASSAY_V vi vi_dot_byte_pairs(vi words, vi a, vi b) {
  words = _mm512_add_epi16(words, _mm512_maddubs_epi16(a, b));
  ASSAY_IN_PLACE(words);
  return words;
}
#endif

#elif defined(ASSAY_ISA_avx2)

ASSAY_V vi vi_load(const void* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
ASSAY_V vi vi_spread(const void* p) {
  int32_t v;
  memcpy(&v, p, 4);
  return _mm256_set1_epi32(v);
}
template <int kBits>
ASSAY_V vi vi_srl16(vi a) {
  return _mm256_srli_epi16(a, kBits);
}
ASSAY_V vi vi_dot_words(vi acc, vi a, vi b) {
  acc = _mm256_add_epi32(acc, _mm256_madd_epi16(a, b));
  ASSAY_IN_PLACE(acc);
  return acc;
}
ASSAY_V vi vi_dot_byte_pairs(vi words, vi a, vi b) {
  words = _mm256_add_epi16(words, _mm256_maddubs_epi16(a, b));
  ASSAY_IN_PLACE(words);
  return words;
}

#else  // NEON

ASSAY_V vi vi_load(const void* p) {
  return load_as<vi>(p);
}
ASSAY_V vi vi_spread(const void* p) {
  return vi_set(load_as<int32_t>(p));
}
template <int kBits>
ASSAY_V vi vi_srl16(vi a) {
  return vreinterpretq_s32_u16(vshrq_n_u16(vreinterpretq_u16_s32(a), kBits));
}
ASSAY_V vi vi_dot_words(vi acc, vi a, vi b) {
  const int16x8_t x = vreinterpretq_s16_s32(a), y = vreinterpretq_s16_s32(b);
  acc = vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y)));
  ASSAY_IN_PLACE(acc);
  return acc;
}
/// a's bytes are below 128 (code_bytes_for), so that they are signed bytes too.
ASSAY_V vi vi_dot_byte_pairs(vi words, vi a, vi b) {
  const int8x16_t x = vreinterpretq_s8_s32(a), y = vreinterpretq_s8_s32(b);
  const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(x), vget_low_s8(y)), vmull_high_s8(x, y));
  words = vreinterpretq_s32_s16(vaddq_s16(vreinterpretq_s16_s32(words), pairs));
  ASSAY_IN_PLACE(words);
  return words;
}

#endif

}  // namespace assay::inline ASSAY_ISA

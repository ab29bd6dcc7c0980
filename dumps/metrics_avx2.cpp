// AVX2 forms of the inner loops. Every function here is static and carries its target attribute, and none calls an inline
// function of a header but the intrinsics: nothing compiled for AVX2 can win at link time and run on a lesser machine.
#include "dumps/metrics_kernels.h"

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#include <cpuid.h>
#include <immintrin.h>

#define ASSAY_AVX2 __attribute__((target("avx2,f16c")))

namespace assay::metrics {
namespace {

ASSAY_AVX2 bool equal16(const uint16_t* b, const uint16_t* t, int64_t n, uint16_t inf_bits, uint16_t* max_bits) {
  const __m256i abs = _mm256_set1_epi16(0x7fff);
  __m256i top = _mm256_setzero_si256();
  int64_t i = 0;
  while (i + 16 <= n) {
    const int64_t stop = i + 1024 + 16 <= n ? i + 1024 : n - 15;
    __m256i differ = _mm256_setzero_si256();
    for (; i < stop; i += 16) {
      const __m256i x = _mm256_loadu_si256((const __m256i*)(b + i)), y = _mm256_loadu_si256((const __m256i*)(t + i));
      differ = _mm256_or_si256(differ, _mm256_xor_si256(x, y));
      top = _mm256_max_epu16(top, _mm256_and_si256(x, abs));
    }
    if (!_mm256_testz_si256(differ, differ)) return false;
  }
  uint16_t lanes[16], best = *max_bits;
  _mm256_storeu_si256((__m256i*)lanes, top);
  for (int j = 0; j < 16; j++) best = lanes[j] > best ? lanes[j] : best;
  for (; i < n; i++) {
    if (b[i] != t[i]) return false;
    const uint16_t m = b[i] & 0x7fff;
    best = m > best ? m : best;
  }
  if (best >= inf_bits) return false;
  *max_bits = best;
  return true;
}

ASSAY_AVX2 bool equal32(const uint32_t* b, const uint32_t* t, int64_t n, uint32_t* max_bits) {
  const __m256i abs = _mm256_set1_epi32(0x7fffffff);
  __m256i top0 = _mm256_setzero_si256(), top1 = top0;
  int64_t i = 0;
  while (i + 16 <= n) {
    const int64_t stop = i + 512 + 16 <= n ? i + 512 : n - 15;
    __m256i differ = _mm256_setzero_si256();
    for (; i < stop; i += 16) {
      const __m256i x0 = _mm256_loadu_si256((const __m256i*)(b + i)), y0 = _mm256_loadu_si256((const __m256i*)(t + i));
      const __m256i x1 = _mm256_loadu_si256((const __m256i*)(b + i + 8));
      const __m256i y1 = _mm256_loadu_si256((const __m256i*)(t + i + 8));
      differ = _mm256_or_si256(differ, _mm256_or_si256(_mm256_xor_si256(x0, y0), _mm256_xor_si256(x1, y1)));
      top0 = _mm256_max_epu32(top0, _mm256_and_si256(x0, abs));
      top1 = _mm256_max_epu32(top1, _mm256_and_si256(x1, abs));
    }
    if (!_mm256_testz_si256(differ, differ)) return false;
  }
  uint32_t lanes[8], best = *max_bits;
  _mm256_storeu_si256((__m256i*)lanes, _mm256_max_epu32(top0, top1));
  for (int j = 0; j < 8; j++) best = lanes[j] > best ? lanes[j] : best;
  for (; i < n; i++) {
    if (b[i] != t[i]) return false;
    const uint32_t m = b[i] & 0x7fffffffu;
    best = m > best ? m : best;
  }
  if (best >= 0x7f800000u) return false;
  *max_bits = best;
  return true;
}

ASSAY_AVX2 bool equal64(const uint64_t* b, const uint64_t* t, int64_t n, uint64_t* max_bits) {
  const __m256i abs = _mm256_set1_epi64x(0x7fffffffffffffffLL);
  __m256i top = _mm256_setzero_si256();
  int64_t i = 0;
  while (i + 4 <= n) {
    const int64_t stop = i + 256 + 4 <= n ? i + 256 : n - 3;
    __m256i differ = _mm256_setzero_si256();
    for (; i < stop; i += 4) {
      const __m256i x = _mm256_loadu_si256((const __m256i*)(b + i)), y = _mm256_loadu_si256((const __m256i*)(t + i));
      differ = _mm256_or_si256(differ, _mm256_xor_si256(x, y));
      const __m256i m = _mm256_and_si256(x, abs);
      top = _mm256_blendv_epi8(top, m, _mm256_cmpgt_epi64(m, top));
    }
    if (!_mm256_testz_si256(differ, differ)) return false;
  }
  uint64_t lanes[4], best = *max_bits;
  _mm256_storeu_si256((__m256i*)lanes, top);
  for (int j = 0; j < 4; j++) best = lanes[j] > best ? lanes[j] : best;
  for (; i < n; i++) {
    if (b[i] != t[i]) return false;
    const uint64_t m = b[i] & 0x7fffffffffffffffULL;
    best = m > best ? m : best;
  }
  if (best >= 0x7ff0000000000000ULL) return false;
  *max_bits = best;
  return true;
}

// The remainder of a row, padded with equal zeros: a zero adds +0 to its accumulator, which keeps the bits of the sum (sums
// of squares are never -0); the counts of the padding are taken off again by the caller.
struct Tail {
  alignas(32) float b[8], t[8];
};

ASSAY_AVX2 void row_f32(const float* b, const float* t, int64_t n, RowSums* sums) {
  const __m256i abs = _mm256_set1_epi32(0x7fffffff);
  const __m256d abs64 = _mm256_castsi256_pd(_mm256_set1_epi64x(0x7fffffffffffffffLL));
  __m256d d_lo = _mm256_loadu_pd(sums->diff2), d_hi = _mm256_loadu_pd(sums->diff2 + 4);
  __m256d b_lo = _mm256_loadu_pd(sums->base2), b_hi = _mm256_loadu_pd(sums->base2 + 4);
  __m256d top_d = _mm256_setzero_pd();
  __m256i top_b = _mm256_setzero_si256(), top_t = top_b;
  int64_t equal = 0, le1 = 0, le4 = 0, padding = 0;
  int64_t i = 0;
  Tail tail;
  while (i < n) {
    // Counters are 32 bits wide and count down: at most 2^20 steps before they are emptied.
    const int64_t stop = n - i > (8 << 20) ? i + (8 << 20) : n;
    __m256i c_eq = _mm256_setzero_si256(), c_1 = c_eq, c_4 = c_eq;
    for (; i < stop; i += 8) {
      const float *pb = b + i, *pt = t + i;
      if (n - i < 8) {
        for (int64_t j = 0; j < 8; j++) {
          tail.b[j] = j < n - i ? pb[j] : 0.0f;
          tail.t[j] = j < n - i ? pt[j] : 0.0f;
        }
        padding = 8 - (n - i);
        pb = tail.b;
        pt = tail.t;
      }
      const __m256 x = _mm256_loadu_ps(pb), y = _mm256_loadu_ps(pt);
      const __m256d x0 = _mm256_cvtps_pd(_mm256_castps256_ps128(x)), x1 = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
      const __m256d y0 = _mm256_cvtps_pd(_mm256_castps256_ps128(y)), y1 = _mm256_cvtps_pd(_mm256_extractf128_ps(y, 1));
      const __m256d d0 = _mm256_and_pd(_mm256_sub_pd(y0, x0), abs64), d1 = _mm256_and_pd(_mm256_sub_pd(y1, x1), abs64);
      top_d = _mm256_max_pd(_mm256_max_pd(d0, d1), top_d);
      d_lo = _mm256_add_pd(d_lo, _mm256_mul_pd(d0, d0));
      d_hi = _mm256_add_pd(d_hi, _mm256_mul_pd(d1, d1));
      b_lo = _mm256_add_pd(b_lo, _mm256_mul_pd(x0, x0));
      b_hi = _mm256_add_pd(b_hi, _mm256_mul_pd(x1, x1));
      const __m256i xi = _mm256_castps_si256(x), yi = _mm256_castps_si256(y);
      top_b = _mm256_max_epu32(top_b, _mm256_and_si256(xi, abs));
      top_t = _mm256_max_epu32(top_t, _mm256_and_si256(yi, abs));
      const __m256i sx = _mm256_srai_epi32(xi, 31), sy = _mm256_srai_epi32(yi, 31);
      const __m256i ox = _mm256_sub_epi32(_mm256_xor_si256(xi, _mm256_and_si256(sx, abs)), sx);
      const __m256i oy = _mm256_sub_epi32(_mm256_xor_si256(yi, _mm256_and_si256(sy, abs)), sy);
      // |difference| wraps to INT_MIN for 2^31, which as unsigned is far above 4.
      const __m256i u = _mm256_abs_epi32(_mm256_sub_epi32(ox, oy));
      c_eq = _mm256_add_epi32(c_eq, _mm256_cmpeq_epi32(xi, yi));
      c_1 = _mm256_add_epi32(c_1, _mm256_cmpeq_epi32(_mm256_min_epu32(u, _mm256_set1_epi32(1)), u));
      c_4 = _mm256_add_epi32(c_4, _mm256_cmpeq_epi32(_mm256_min_epu32(u, _mm256_set1_epi32(4)), u));
    }
    alignas(32) int32_t l0[8], l1[8], l4[8];
    _mm256_store_si256((__m256i*)l0, c_eq);
    _mm256_store_si256((__m256i*)l1, c_1);
    _mm256_store_si256((__m256i*)l4, c_4);
    for (int j = 0; j < 8; j++) {
      equal -= l0[j];
      le1 -= l1[j];
      le4 -= l4[j];
    }
  }
  _mm256_storeu_pd(sums->diff2, d_lo);
  _mm256_storeu_pd(sums->diff2 + 4, d_hi);
  _mm256_storeu_pd(sums->base2, b_lo);
  _mm256_storeu_pd(sums->base2 + 4, b_hi);
  sums->equal += equal - padding;
  sums->ulp_le_1 += le1 - padding;
  sums->ulp_le_4 += le4 - padding;
  alignas(32) double td[4];
  _mm256_store_pd(td, top_d);
  for (int j = 0; j < 4; j++) sums->max_diff = td[j] > sums->max_diff ? td[j] : sums->max_diff;
  alignas(32) float tb[8], tt[8];
  _mm256_store_si256((__m256i*)tb, top_b);
  _mm256_store_si256((__m256i*)tt, top_t);
  for (int j = 0; j < 8; j++) {
    // The magnitudes are ordered as integers, so a NaN or Inf anywhere has come out on top of its lane.
    if (!(tb[j] < __builtin_inff()) || !(tt[j] < __builtin_inff())) sums->non_finite = true;
    sums->max_base = tb[j] > sums->max_base ? tb[j] : sums->max_base;
  }
}

ASSAY_AVX2 void row_f64(const double* b, const double* t, int64_t n, RowSums* sums) {
  const __m256d abs = _mm256_castsi256_pd(_mm256_set1_epi64x(0x7fffffffffffffffLL));
  const __m256d inf = _mm256_set1_pd(__builtin_inf());
  __m256d d_lo = _mm256_loadu_pd(sums->diff2), d_hi = _mm256_loadu_pd(sums->diff2 + 4);
  __m256d b_lo = _mm256_loadu_pd(sums->base2), b_hi = _mm256_loadu_pd(sums->base2 + 4);
  __m256d top_d = _mm256_setzero_pd(), top_b = top_d, finite = _mm256_cmp_pd(top_d, top_d, _CMP_EQ_OQ);
  __m256i c_eq = _mm256_setzero_si256();
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256d x0 = _mm256_loadu_pd(b + i), x1 = _mm256_loadu_pd(b + i + 4);
    const __m256d y0 = _mm256_loadu_pd(t + i), y1 = _mm256_loadu_pd(t + i + 4);
    const __m256d d0 = _mm256_and_pd(_mm256_sub_pd(y0, x0), abs), d1 = _mm256_and_pd(_mm256_sub_pd(y1, x1), abs);
    const __m256d m0 = _mm256_and_pd(x0, abs), m1 = _mm256_and_pd(x1, abs);
    const __m256d z0 = _mm256_and_pd(y0, abs), z1 = _mm256_and_pd(y1, abs);
    top_d = _mm256_max_pd(_mm256_max_pd(d0, d1), top_d);
    top_b = _mm256_max_pd(_mm256_max_pd(m0, m1), top_b);
    finite = _mm256_and_pd(finite, _mm256_and_pd(_mm256_cmp_pd(m0, inf, _CMP_LT_OQ), _mm256_cmp_pd(m1, inf, _CMP_LT_OQ)));
    finite = _mm256_and_pd(finite, _mm256_and_pd(_mm256_cmp_pd(z0, inf, _CMP_LT_OQ), _mm256_cmp_pd(z1, inf, _CMP_LT_OQ)));
    d_lo = _mm256_add_pd(d_lo, _mm256_mul_pd(d0, d0));
    d_hi = _mm256_add_pd(d_hi, _mm256_mul_pd(d1, d1));
    b_lo = _mm256_add_pd(b_lo, _mm256_mul_pd(x0, x0));
    b_hi = _mm256_add_pd(b_hi, _mm256_mul_pd(x1, x1));
    c_eq = _mm256_add_epi64(c_eq, _mm256_castpd_si256(_mm256_cmp_pd(x0, y0, _CMP_EQ_OQ)));
    c_eq = _mm256_add_epi64(c_eq, _mm256_castpd_si256(_mm256_cmp_pd(x1, y1, _CMP_EQ_OQ)));
  }
  _mm256_storeu_pd(sums->diff2, d_lo);
  _mm256_storeu_pd(sums->diff2 + 4, d_hi);
  _mm256_storeu_pd(sums->base2, b_lo);
  _mm256_storeu_pd(sums->base2 + 4, b_hi);
  alignas(32) int64_t le[4];
  alignas(32) double td[4], tb[4];
  _mm256_store_si256((__m256i*)le, c_eq);
  _mm256_store_pd(td, top_d);
  _mm256_store_pd(tb, top_b);
  if (_mm256_movemask_pd(finite) != 15) sums->non_finite = true;
  for (int j = 0; j < 4; j++) {
    sums->equal -= le[j];
    sums->max_diff = td[j] > sums->max_diff ? td[j] : sums->max_diff;
    sums->max_base = tb[j] > sums->max_base ? tb[j] : sums->max_base;
  }
  if (i < n) kGeneric.row_f64(b + i, t + i, n - i, sums);
}

ASSAY_AVX2 void ulp32(const uint32_t* b, const uint32_t* t, int64_t n, RowSums* sums) {
  const __m256i abs = _mm256_set1_epi32(0x7fffffff);
  int64_t i = 0, equal = 0, le1 = 0, le4 = 0;
  while (i + 8 <= n) {
    const int64_t stop = n - i > (8 << 20) ? i + (8 << 20) : n - 7;
    __m256i c_eq = _mm256_setzero_si256(), c_1 = c_eq, c_4 = c_eq;
    for (; i < stop; i += 8) {
      const __m256i xi = _mm256_loadu_si256((const __m256i*)(b + i)), yi = _mm256_loadu_si256((const __m256i*)(t + i));
      const __m256i sx = _mm256_srai_epi32(xi, 31), sy = _mm256_srai_epi32(yi, 31);
      const __m256i ox = _mm256_sub_epi32(_mm256_xor_si256(xi, _mm256_and_si256(sx, abs)), sx);
      const __m256i oy = _mm256_sub_epi32(_mm256_xor_si256(yi, _mm256_and_si256(sy, abs)), sy);
      const __m256i u = _mm256_abs_epi32(_mm256_sub_epi32(ox, oy));
      c_eq = _mm256_add_epi32(c_eq, _mm256_cmpeq_epi32(xi, yi));
      c_1 = _mm256_add_epi32(c_1, _mm256_cmpeq_epi32(_mm256_min_epu32(u, _mm256_set1_epi32(1)), u));
      c_4 = _mm256_add_epi32(c_4, _mm256_cmpeq_epi32(_mm256_min_epu32(u, _mm256_set1_epi32(4)), u));
    }
    alignas(32) int32_t l0[8], l1[8], l4[8];
    _mm256_store_si256((__m256i*)l0, c_eq);
    _mm256_store_si256((__m256i*)l1, c_1);
    _mm256_store_si256((__m256i*)l4, c_4);
    for (int j = 0; j < 8; j++) {
      equal -= l0[j];
      le1 -= l1[j];
      le4 -= l4[j];
    }
  }
  sums->equal += equal;
  sums->ulp_le_1 += le1;
  sums->ulp_le_4 += le4;
  if (i < n) kGeneric.ulp32(b + i, t + i, n - i, sums);
}

ASSAY_AVX2 void ulp16(const uint16_t* b, const uint16_t* t, int64_t n, RowSums* sums) {
  const __m256i abs = _mm256_set1_epi16(0x7fff);
  int64_t i = 0, equal = 0, le1 = 0, le4 = 0;
  while (i + 16 <= n) {
    const int64_t stop = n - i > (16 << 14) ? i + (16 << 14) : n - 15;
    __m256i c_eq = _mm256_setzero_si256(), c_1 = c_eq, c_4 = c_eq;
    for (; i < stop; i += 16) {
      const __m256i xi = _mm256_loadu_si256((const __m256i*)(b + i)), yi = _mm256_loadu_si256((const __m256i*)(t + i));
      const __m256i sx = _mm256_srai_epi16(xi, 15), sy = _mm256_srai_epi16(yi, 15);
      const __m256i ox = _mm256_sub_epi16(_mm256_xor_si256(xi, _mm256_and_si256(sx, abs)), sx);
      const __m256i oy = _mm256_sub_epi16(_mm256_xor_si256(yi, _mm256_and_si256(sy, abs)), sy);
      const __m256i u = _mm256_abs_epi16(_mm256_sub_epi16(ox, oy));
      c_eq = _mm256_add_epi16(c_eq, _mm256_cmpeq_epi16(xi, yi));
      c_1 = _mm256_add_epi16(c_1, _mm256_cmpeq_epi16(_mm256_min_epu16(u, _mm256_set1_epi16(1)), u));
      c_4 = _mm256_add_epi16(c_4, _mm256_cmpeq_epi16(_mm256_min_epu16(u, _mm256_set1_epi16(4)), u));
    }
    alignas(32) int16_t l0[16], l1[16], l4[16];
    _mm256_store_si256((__m256i*)l0, c_eq);
    _mm256_store_si256((__m256i*)l1, c_1);
    _mm256_store_si256((__m256i*)l4, c_4);
    for (int j = 0; j < 16; j++) {
      equal -= l0[j];
      le1 -= l1[j];
      le4 -= l4[j];
    }
  }
  sums->equal += equal;
  sums->ulp_le_1 += le1;
  sums->ulp_le_4 += le4;
  if (i < n) kGeneric.ulp16(b + i, t + i, n - i, sums);
}

ASSAY_AVX2 void bf16_to_f32(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i w = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(x + i)));
    _mm256_storeu_si256((__m256i*)(y + i), _mm256_slli_epi32(w, 16));
  }
  if (i < n) kGeneric.bf16_to_f32(x + i, y + i, n - i);
}

ASSAY_AVX2 void f16_to_f32(const uint16_t* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + i))));
  if (i < n) kGeneric.f16_to_f32(x + i, y + i, n - i);
}

ASSAY_AVX2 void f32_to_f64(const float* x, double* y, int64_t n) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) _mm256_storeu_pd(y + i, _mm256_cvtps_pd(_mm_loadu_ps(x + i)));
  for (; i < n; i++) y[i] = x[i];
}

ASSAY_AVX2 void f64_to_f32(const double* x, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) _mm_storeu_ps(y + i, _mm256_cvtpd_ps(_mm256_loadu_pd(x + i)));
  for (; i < n; i++) y[i] = float(x[i]);
}

ASSAY_AVX2 void f32_to_bf16(const float* x, uint16_t* y, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256i w = _mm256_loadu_si256((const __m256i*)(x + i));
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(w, 16), _mm256_set1_epi32(1));
    const __m256i r = _mm256_srli_epi32(_mm256_add_epi32(w, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    _mm_storeu_si128((__m128i*)(y + i), _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1)));
  }
  if (i < n) kGeneric.f32_to_bf16(x + i, y + i, n - i);
}

}  // namespace

const Kernels* avx2_kernels() {
  static const Kernels kernels = {equal16,     equal32,    equal64,    row_f32,    row_f64,         ulp16,      ulp32,
                                  kGeneric.ulp64, bf16_to_f32, f16_to_f32, f32_to_f64, f64_to_f32, f32_to_bf16};
  unsigned a = 0, b = 0, c = 0, d = 0;
  // F16C: CPUID leaf 1, ECX bit 29 (not every compiler knows its name).
  static const bool has = __builtin_cpu_supports("avx2") && __get_cpuid(1, &a, &b, &c, &d) && (c >> 29 & 1u);
  return has ? &kernels : nullptr;
}

}  // namespace assay::metrics

#else
namespace assay::metrics {
const Kernels* avx2_kernels() { return nullptr; }
}  // namespace assay::metrics
#endif

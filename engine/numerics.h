// The only float arithmetic that may be shared: elementary functions, conversions and folds of NUMERICS.md, from IEEE
// +, *,
// /, sqrt, fma and integer bits alone. g++, clang and nvcc (host and device) compile this file and get the same bits.
// Compile with -ffp-contract=off (nvcc: -fmad=false -prec-div=true -prec-sqrt=true -ftz=false); every fma is explicit.
//
// Coefficients come from tools/fit_polynomials.py. Measured errors stand beside each function and are held by
// numerics_test.cpp. A NaN in gives the canonical NaN (0x7fc00000) out where a function says so; elsewhere a NaN is a
// NaN and its bits mean nothing.
//
// Everything is static and lies in a namespace of its own per instruction set: an inline function compiled with AVX-512
// must never be the one that the linker keeps for everybody (NUMERICS.md "ISA files").
#pragma once
#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define ASSAY_NUMERICS_FN static __host__ __device__ __forceinline__
#else
#define ASSAY_NUMERICS_FN [[maybe_unused]] static inline
#endif
#ifndef ASSAY_ISA
#define ASSAY_NUMERICS_NAMESPACE portable
#else
#define ASSAY_NUMERICS_NAMESPACE ASSAY_ISA
#endif

namespace assay {
inline namespace ASSAY_NUMERICS_NAMESPACE {

/// The version of NUMERICS.md that this file implements; echoed in every manifest.
static constexpr int kNumericsVersion = 0;

// ---------------------------------------------------------------------------------------------------------------------
// Bits and IEEE operations. On the device the intrinsics cannot be contracted, whatever the flags say.

ASSAY_NUMERICS_FN uint32_t bits_of(float x) {
#ifdef __CUDA_ARCH__
  return __float_as_uint(x);
#else
  uint32_t u;
  std::memcpy(&u, &x, 4);
  return u;
#endif
}
ASSAY_NUMERICS_FN float float_of(uint32_t u) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(u);
#else
  float x;
  std::memcpy(&x, &u, 4);
  return x;
#endif
}
ASSAY_NUMERICS_FN uint64_t bits_of(double x) {
  uint64_t u;
  memcpy(&u, &x, 8);
  return u;
}
ASSAY_NUMERICS_FN double double_of(uint64_t u) {
  double x;
  memcpy(&x, &u, 8);
  return x;
}
/// One rounding. Without FMA in the instruction set the C library computes it: slow and right.
ASSAY_NUMERICS_FN float fma_f32(float a, float b, float c) {
#ifdef __CUDA_ARCH__
  return __fmaf_rn(a, b, c);
#else
  return __builtin_fmaf(a, b, c);
#endif
}
ASSAY_NUMERICS_FN float add_f32(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fadd_rn(a, b);
#else
  return a + b;
#endif
}
ASSAY_NUMERICS_FN float sub_f32(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fsub_rn(a, b);
#else
  return a - b;
#endif
}
ASSAY_NUMERICS_FN float mul_f32(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fmul_rn(a, b);
#else
  return a * b;
#endif
}
ASSAY_NUMERICS_FN float div_f32(float a, float b) {
#ifdef __CUDA_ARCH__
  return __fdiv_rn(a, b);
#else
  return a / b;
#endif
}
ASSAY_NUMERICS_FN float sqrt_f32(float a) {
#ifdef __CUDA_ARCH__
  return __fsqrt_rn(a);
#else
  return __builtin_sqrtf(a);
#endif
}

#define ASSAY_CANONICAL_NAN 0x7fc00000u
ASSAY_NUMERICS_FN bool is_nan(float x) {
  return (bits_of(x) & 0x7fffffffu) > 0x7f800000u;
}
ASSAY_NUMERICS_FN bool is_finite(float x) {
  return (bits_of(x) & 0x7f800000u) != 0x7f800000u;
}
ASSAY_NUMERICS_FN float canonical_nan() {
  return float_of(ASSAY_CANONICAL_NAN);
}

/// Order of floats as integers: ordered_of(a) < ordered_of(b) for a < b; -0 below +0; a positive NaN above +Inf, a
/// negative one below -Inf. Its own inverse: float_of_ordered.
ASSAY_NUMERICS_FN int32_t ordered_of(float x) {
  int32_t i = (int32_t)bits_of(x);
  return i ^ ((i >> 31) & 0x7fffffff);
}
ASSAY_NUMERICS_FN float float_of_ordered(int32_t i) {
  return float_of((uint32_t)(i ^ ((i >> 31) & 0x7fffffff)));
}

// ---------------------------------------------------------------------------------------------------------------------
// Sums: lanes and folds (NUMERICS.md "Float rule", "Head rule").

static constexpr int kFloatLanes = 256, kHeadLanes = 32;

/// Folds by halves: lanes/2, lanes/4, ... 1, then adds +0. `lanes` is a power of two. Destroys acc.
ASSAY_NUMERICS_FN float fold_halves(float* acc, int lanes) {
  for (int half = lanes / 2; half >= 1; half /= 2) {
    for (int i = 0; i < half; i++) acc[i] = add_f32(acc[i], acc[i + half]);
  }
  return add_f32(acc[0], 0.0f);
}

// ---------------------------------------------------------------------------------------------------------------------
// Conversions, round to nearest even, by integer code. Narrowing a NaN gives the canonical one (0x7e00, 0x7fc0).

/// Exact.
ASSAY_NUMERICS_FN float f32_of_f16(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 0x3ffu;
  if (exponent == 31) return float_of(mantissa ? ASSAY_CANONICAL_NAN : (sign | 0x7f800000u));
  if (exponent == 0) return float_of(sign | bits_of(mul_f32((float)(int32_t)mantissa, 0x1p-24f)));  // exact
  return float_of(sign | ((exponent + 112) << 23) | (mantissa << 13));
}
/// Values of 65520 and more become Inf; denormals are rounded once.
ASSAY_NUMERICS_FN uint16_t f16_of_f32(float x) {
  uint32_t u = bits_of(x), sign = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return 0x7e00;
  if (u >= 0x47800000u) return (uint16_t)(sign | 0x7c00u);
  if (u >= 0x38800000u) {  // a normal f16, or one that rounds up to Inf
    uint32_t r = u + 0xfffu + ((u >> 13) & 1u);
    return (uint16_t)(sign | ((r - 0x38000000u) >> 13));
  }
  uint32_t shift = 126 - (u >> 23);  // from units of the f32's last place to units of 2^-24
  if (shift > 24) return (uint16_t)sign;
  uint32_t m = (u & 0x7fffffu) | 0x800000u, q = m >> shift, rest = m & ((1u << shift) - 1), half = 1u << (shift - 1);
  q += (rest > half || (rest == half && (q & 1u))) ? 1u : 0u;
  return (uint16_t)(sign | q);
}
/// Exact.
ASSAY_NUMERICS_FN float f32_of_bf16(uint16_t b) {
  if ((b & 0x7fffu) > 0x7f80u) return canonical_nan();
  return float_of((uint32_t)b << 16);
}
ASSAY_NUMERICS_FN uint16_t bf16_of_f32(float x) {
  uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return 0x7fc0;
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

// ---------------------------------------------------------------------------------------------------------------------
// Elementary functions, f32.

/// (e^r - 1) / r, |r| <= ln2/2 and a little.
ASSAY_NUMERICS_FN float exp_polynomial_f32(float r) {
  float p = 0x1.685028p-10f;
  p = fma_f32(p, r, 0x1.123bf8p-7f);
  p = fma_f32(p, r, 0x1.555b9ap-5f);
  p = fma_f32(p, r, 0x1.55548ep-3f);
  p = fma_f32(p, r, 0x1.fffff8p-2f);
  return fma_f32(p, r, 1.0f);
}

/// e^x. NaN: canonical NaN. Overflow (x > 88.7228394) and +Inf: +Inf. Underflow is gradual with one rounding; -Inf: +0.
/// x = n ln2 + r, |r| <= ln2/2 (Cody-Waite, the first part of 15 bits so that its product is exact), e^r = 1 + r p(r).
/// 2^n = a b with both factors normal, so that fma(p a, r b, a b) rounds (1 + r p) 2^n once, for a denormal result too.
/// n = 128 is taken as 127 and doubled. The clamps do the rest: below n = -149 the polynomial runs a little outside its
/// interval, where the result is the smallest denormal or 0. Within 0.83 ulp; denormal results within 0.54.
ASSAY_NUMERICS_FN float exp_f32(float x) {
  if (is_nan(x)) return canonical_nan();
  x = x > -104.0f ? x : -104.0f;
  x = x < 89.0f ? x : 89.0f;
  float nf = sub_f32(fma_f32(x, 0x1.715476p+0f, 12582912.0f), 12582912.0f);  // 1.5 * 2^23: rounds to an integer
  nf = nf > -149.0f ? nf : -149.0f;
  float r = fma_f32(nf, -0x1.62e4p-1f, x);
  r = fma_f32(nf, -0x1.7f7d1cp-20f, r);
  float p = exp_polynomial_f32(r);
  int32_t n = (int32_t)nf, top = n > 127 ? 1 : 0;
  n -= top;
  int32_t half = n >> 1;  // towards -Inf
  float a = float_of((uint32_t)(half + 127) << 23), b = float_of((uint32_t)(n - half + 127) << 23);
  float y = fma_f32(mul_f32(p, a), mul_f32(r, b), mul_f32(a, b));
  return mul_f32(y, float_of((uint32_t)(top + 127) << 23));
}

/// exp_f32(x) for -80 < x < 80, the same bits: 2^n and the result are far from denormal and from Inf, so that n is an integer
/// added to the exponent and nothing needs a clamp (attention_test.cpp of cuda/ holds both against each other).
ASSAY_NUMERICS_FN float exp_near_f32(float x) {
  const float shifted = fma_f32(x, 0x1.715476p+0f, 12582912.0f), n = sub_f32(shifted, 12582912.0f);
  float r = fma_f32(n, -0x1.62e4p-1f, x);
  r = fma_f32(n, -0x1.7f7d1cp-20f, r);
  // The shift leaves the low bits of the magic sum: n.
  return float_of(bits_of(fma_f32(exp_polynomial_f32(r), r, 1.0f)) + (bits_of(shifted) << 23));
}

/// Natural logarithm. NaN or x < 0: canonical NaN. +-0: -Inf. +Inf: +Inf.
/// x = 2^e (1 + f), 1 + f in [2/3, 4/3). log(1+f) = f + f^2 p(f); e ln2 + f is kept in two parts. Within 0.81 ulp.
ASSAY_NUMERICS_FN float log_f32(float x) {
  uint32_t u = bits_of(x);
  if (is_nan(x) || (u > 0x80000000u)) return canonical_nan();
  if ((u & 0x7fffffffu) == 0) return float_of(0xff800000u);
  if (u == 0x7f800000u) return x;
  int32_t e = 0;
  if (u < 0x00800000u) {
    u = bits_of(mul_f32(x, 8388608.0f));
    e = -23;
  }
  u -= 0x3f2aaaabu;
  e += (int32_t)u >> 23;
  float f = sub_f32(float_of((u & 0x7fffffu) + 0x3f2aaaabu), 1.0f), ef = (float)e;
  float p = -0x1.03037ap-3f;
  p = fma_f32(p, f, 0x1.1ee68ap-3f);
  p = fma_f32(p, f, -0x1.f56284p-4f);
  p = fma_f32(p, f, 0x1.1eb8dep-3f);
  p = fma_f32(p, f, -0x1.55884ep-3f);
  p = fma_f32(p, f, 0x1.99d268p-3f);
  p = fma_f32(p, f, -0x1.ffff6ap-3f);
  p = fma_f32(p, f, 0x1.5555p-2f);
  p = fma_f32(p, f, -0.5f);
  float tail = mul_f32(mul_f32(f, f), p);
  if (e == 0) return add_f32(f, tail);
  float head = mul_f32(ef, 0x1.62e4p-1f);                               // exact: 8 bits times 15
  float sum = add_f32(head, f), lost = sub_f32(f, sub_f32(sum, head));  // |head| > |f|: exact
  return add_f32(sum, add_f32(tail, fma_f32(ef, 0x1.7f7d1cp-20f, lost)));
}

/// log(1 + y). y < -1 or NaN: canonical NaN; +Inf: +Inf. Within 2.5 ulp, as are sigmoid, silu (above x = -88.72, where
/// exp(-x) overflows) and softplus.
ASSAY_NUMERICS_FN float log1p_f32(float y) {
  float u = add_f32(1.0f, y);
  if (u == 1.0f) return y;
  if (bits_of(u) == 0x7f800000u) return u;
  float l = log_f32(u);
  if (is_nan(l)) return canonical_nan();
  return mul_f32(l, div_f32(y, sub_f32(u, 1.0f)));
}
ASSAY_NUMERICS_FN float sigmoid_f32(float x) {
  return div_f32(1.0f, add_f32(1.0f, exp_f32(-x)));
}
/// -Inf gives NaN, as the formula says.
ASSAY_NUMERICS_FN float silu_f32(float x) {
  return div_f32(x, add_f32(1.0f, exp_f32(-x)));
}
ASSAY_NUMERICS_FN float softplus_f32(float x) {
  return x > 20.0f ? x : log1p_f32(exp_f32(x));
}

// ---------------------------------------------------------------------------------------------------------------------
// Elementary functions, f64, for tables made on the host. No fma: +, -, * and / only.

/// 2^x. NaN: NaN. Overflow: +Inf. A denormal result is rounded twice. Within 1.1 ulp; exact for integers.
ASSAY_NUMERICS_FN double exp2_f64(double x) {
  if (x != x) return x;
  if (x >= 1024.0) return double_of(0x7ff0000000000000u);
  if (x < -1076.0) return 0.0;
  double n = (x + 0x1.8p52) - 0x1.8p52, f = x - n;  // |f| <= 1/2, exact
  double p = 0x1.d48bab76c6261p-36;
  p = p * f + 0x1.eb078dac7a012p-32;
  p = p * f + 0x1.e4c37dbb8c8edp-28;
  p = p * f + 0x1.b5241c748619ep-24;
  p = p * f + 0x1.62c02560d10fbp-20;
  p = p * f + 0x1.ffcbfcde5e964p-17;
  p = p * f + 0x1.430912f7a9ea0p-13;
  p = p * f + 0x1.5d87fe788835cp-10;
  p = p * f + 0x1.3b2ab6fba50fep-7;
  p = p * f + 0x1.c6b08d704a185p-5;
  p = p * f + 0x1.ebfbdff82c58ep-3;
  p = p * f + 0x1.62e42fefa39efp-1;
  double y = 1.0 + f * p;
  int64_t i = (int64_t)n, half = i / 2;
  y *= double_of((uint64_t)(half + 1023) << 52);
  return y * double_of((uint64_t)(i - half + 1023) << 52);
}

/// Base-2 logarithm. NaN or x < 0: NaN. 0: -Inf. +Inf: +Inf. Exact for powers of two. Within 0.9 ulp.
/// x = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)); s = f / (2 + f); log(1+f) = f - (f^2/2 - s (f^2/2 + R(s^2))), its
/// leading part with 32 low bits cleared so that the product with the leading part of 1/ln2 is exact.
ASSAY_NUMERICS_FN double log2_f64(double x) {
  uint64_t u = bits_of(x);
  if (x != x || (x < 0.0)) return double_of(0x7ff8000000000000u);
  if (x == 0.0) return double_of(0xfff0000000000000u);
  if (u == 0x7ff0000000000000u) return x;
  int64_t e = 0;
  if (u < 0x0010000000000000u) {
    u = bits_of(x * 0x1p54);
    e = -54;
  }
  u -= 0x3fe6a09e667f3bcdu;  // sqrt(1/2)
  e += (int64_t)u >> 52;
  double f = double_of((u & 0x000fffffffffffffu) + 0x3fe6a09e667f3bcdu) - 1.0;
  double half = 0.5 * f * f, s = f / (2.0 + f), z = s * s;
  double r = 0x1.2f0f4cbb2f684p-3;
  r = r * z + 0x1.39a0b1c03dbcbp-3;
  r = r * z + 0x1.746649e261b8dp-3;
  r = r * z + 0x1.c71c51ceeacd2p-3;
  r = r * z + 0x1.24924942423edp-2;
  r = r * z + 0x1.999999997f6eep-2;
  r = r * z + 0x1.5555555555594p-1;
  r = r * z;
  double hi = double_of(bits_of(f - half) & 0xffffffff00000000u);
  double lo = (f - hi) - half + s * (half + r);
  double value_hi = hi * 0x1.71547p+0;
  double value_lo = (lo + hi) * 0x1.94ae0bf85ddf4p-22 + lo * 0x1.71547p+0;
  double w = (double)e + value_hi;
  value_lo += ((double)e - w) + value_hi;
  return w + value_lo;
}

/// The remainder of x by pi/2 in two parts, and the low two bits of the quotient. |x| <= 2^23.
/// pi/2 is cut into 30 + 30 + 30 + 53 bits: the quotient has 23 bits, so the first three products are exact; every sum
/// keeps what it loses.
struct ReducedAngle {
  double high, low;
  int quadrant;
};
ASSAY_NUMERICS_FN ReducedAngle reduce_angle(double x) {
  double n = (x * 0x1.45f306dc9c883p-1 + 0x1.8p52) - 0x1.8p52;
  double a = x - n * 0x1.921fb548p+0;  // exact
  double b = n * -0x1.de973dc8p-31, c = n * -0x1.9d9cceb8p-62, d = n * -0x1.1fc8f8cbb5bf7p-93;
  double s = a - b, t = s - a, lost = (a - (s - t)) - (b + t);
  double s2 = s - c, t2 = s2 - s, lost2 = (s - (s2 - t2)) - (c + t2);
  double low = (lost + lost2) - d;
  double high = s2 + low;
  return {high, (s2 - high) + low, (int)((int64_t)n & 3)};
}
/// sin(r.high + r.low), |r| <= pi/4 and a little.
ASSAY_NUMERICS_FN double sin_reduced(double x, double low) {
  double z = x * x;
  double p = 0x1.5d8fa7fd5c9d2p-33;
  p = p * z + -0x1.ae5e594b78a4cp-26;
  p = p * z + 0x1.71de3564d2b7bp-19;
  p = p * z + -0x1.a01a019bf7efap-13;
  p = p * z + 0x1.111111110f77dp-7;
  p = p * z + -0x1.5555555555548p-3;
  // d sin = cos dx, cos = 1 - z/2
  return x + (x * z * p + (low - 0.5 * z * low));
}
ASSAY_NUMERICS_FN double cos_reduced(double x, double low) {
  double z = x * x;
  double p = -0x1.8fa9952065738p-37;
  p = p * z + 0x1.1ee9e15f38979p-29;
  p = p * z + -0x1.27e4f7f8eae3ap-22;
  p = p * z + 0x1.a01a019c97777p-16;
  p = p * z + -0x1.6c16c16c1504bp-10;
  p = p * z + 0x1.555555555554bp-5;
  double half = 0.5 * z, w = 1.0 - half;
  return w + (((1.0 - w) - half) + (z * z * p - x * low));
}
/// Angles in radians, |x| <= 2^23; beyond that, and for Inf and NaN: NaN. Within 0.8 ulp.
ASSAY_NUMERICS_FN double sin_f64(double x) {
  if (!(x <= 0x1p23 && x >= -0x1p23)) return double_of(0x7ff8000000000000u);
  ReducedAngle r = reduce_angle(x);
  double y = (r.quadrant & 1) ? cos_reduced(r.high, r.low) : sin_reduced(r.high, r.low);
  return (r.quadrant & 2) ? -y : y;
}
ASSAY_NUMERICS_FN double cos_f64(double x) {
  if (!(x <= 0x1p23 && x >= -0x1p23)) return double_of(0x7ff8000000000000u);
  ReducedAngle r = reduce_angle(x);
  double y = (r.quadrant & 1) ? sin_reduced(r.high, r.low) : cos_reduced(r.high, r.low);
  return ((r.quadrant + 1) & 2) ? -y : y;
}

}  // namespace ASSAY_NUMERICS_NAMESPACE
}  // namespace assay

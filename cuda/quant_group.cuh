// One group of a packed row as operands of integer products, and its terms of the rule (engine/NUMERICS.md, "Quantised
// weights"): what quant_gemv.cu, quant_few.cu and quant_gemm.cu share.
//
// Conversions without instructions for them: a product accumulator starts at kMagicBits, so that its bits are the float
// kMagic + F d, F = kCodeFactor (|F d| <= 128 * 128 * 32 < 2^22 for a digit), and
//   s8:  fma(v, 1/F, -kMagic/F) is d, exact; or in one step sw d = fma(sw/F, v, -(sw/F) kMagic), rounded once: the addend is
//        exact, since sw has at most 18 significant bits (11 of binary16, 7 of a scale) and 3 * 2^22 adds 2; sw/F >= 2^-28.
//   s16: c = fma(hi, 256/F, -257 kMagic/F) = 256 d_hi - kMagic/F is exact (a multiple of 256 below 2^28), and
//        fma(lo, 1/F, c) = 256 d_hi + d_lo rounded once: the conversion of the rule.
// Where d = 0 this gives sw d = +0 and the rule -0 if sw < 0: no accumulator changes by it, none is ever -0.
#pragma once
#include <string>

#include "cuda/layout.cuh"

namespace assay {

/// Signed words hold this times w.
template <int32_t kType>
constexpr float kCodeFactor = kType == ASSAY_Q4_0 ? 16.0f : kType == ASSAY_Q5_0 ? 8.0f : kType == ASSAY_Q6_K ? 4.0f : 1.0f;

/// Whether the two halves of a group are terms of their own.
constexpr bool type_terms_of_halves(int32_t type) { return type == ASSAY_Q6_K; }

/// Word q = 0..3 of a group's codes: `low` becomes codes 4 q .. 4 q + 3, `high` codes 16 + 4 q .. as signed bytes, kCodeFactor
/// times w. `upper` is the group's word of high bits, Q6_K: of the two halves.
template <int32_t kType>
__device__ __forceinline__ void signed_words(uint32_t codes, uint2 upper, int q, uint32_t& low, uint32_t& high) {
  static_assert(kType != ASSAY_Q8_0, "its words are signed bytes as they lie");
  if constexpr (kType == ASSAY_Q4_0) {
    low = (codes << 4) & 0xf0f0f0f0u;
    high = codes & 0xf0f0f0f0u;
  } else if constexpr (type_code_bits(kType) == 4) {
    low = codes & 0x0f0f0f0fu;
    high = (codes >> 4) & 0x0f0f0f0fu;
  } else if constexpr (kType == ASSAY_Q5_0) {
    low = ((codes << 3) & 0x78787878u) | ((upper.x << (7 - q)) & 0x80808080u);
    high = ((codes >> 1) & 0x78787878u) | ((upper.x << (3 - q)) & 0x80808080u);
  } else if constexpr (type_code_bits(kType) == 5) {
    low = (codes & 0x0f0f0f0fu) | ((upper.x << (4 - q)) & 0x10101010u);
    high = ((codes >> 4) & 0x0f0f0f0fu) | ((upper.x >> q) & 0x10101010u);
  } else {
    low = ((codes << 2) & 0x3c3c3c3cu) | ((upper.x << (6 - 2 * q)) & 0xc0c0c0c0u);
    high = ((codes >> 2) & 0x3c3c3c3cu) | ((upper.y << (6 - 2 * q)) & 0xc0c0c0c0u);
  }
}

/// The float of an unsigned byte, exact.
__device__ __forceinline__ float float_of_byte(uint32_t byte) { return sub_f32(float_of(0x4b000000u | byte), 8388608.0f); }

/// Scales of a group as they lie in the planes: its 2 or 4 bytes, and its block's word of `super`.
template <int32_t kType>
__device__ __forceinline__ WidenedScales widened_scales(uint32_t scale, uint32_t super) {
  if constexpr (kType == ASSAY_Q6_K) {
    const float d = widen_f16(super & 0xffffu);
    const uint32_t s = scale ^ 0x8080u;  // int8 + 128
    return {mul_f32(d, sub_f32(float_of(0x4b000000u | (s & 0xffu)), 8388736.0f)),
            mul_f32(d, sub_f32(float_of(0x4b000000u | (s >> 8 & 0xffu)), 8388736.0f)), 0.0f};
  } else if constexpr (type_k_quant(kType)) {
    const float s = mul_f32(widen_f16(super & 0xffffu), float_of_byte(scale & 0xffu));
    return {s, s, -mul_f32(widen_f16(super >> 16), float_of_byte(scale >> 8 & 0xffu))};
  } else {
    const float d = widen_f16(scale & 0xffffu);
    return {d, d, type_has_minimum(kType) ? widen_f16(scale >> 16) : 0.0f};
  }
}

/// (float)d of the rule from product accumulators of one or two digits, each started at kMagicBits once.
template <int32_t kType, int kDigits>
__device__ __forceinline__ float float_of_dot(const int* digits) {
  constexpr float f = 1.0f / kCodeFactor<kType>;
  if constexpr (kDigits == 1) {
    return kCodeFactor<kType> == 1.0f ? add_f32(float_of((uint32_t)digits[0]), -kMagic)
                                      : fma_f32(float_of((uint32_t)digits[0]), f, -kMagic * f);
  } else {
    const float c = fma_f32(float_of((uint32_t)digits[0]), 256.0f * f, -257.0f * kMagic * f);
    return kCodeFactor<kType> == 1.0f ? add_f32(float_of((uint32_t)digits[1]), c)
                                      : fma_f32(float_of((uint32_t)digits[1]), f, c);
  }
}
/// acc + s * (sw * d), as the rule rounds it.
template <int32_t kType, int kDigits>
__device__ __forceinline__ float add_term(float acc, float s, float sw, const int* digits) {
  return fma_f32(s, mul_f32(sw, float_of_dot<kType, kDigits>(digits)), acc);
}

/// sw and -sw kMagic, both over kCodeFactor: made once per row and group, used for many tokens.
struct OneStepScale {
  float scale, offset;
};
template <int32_t kType>
__device__ __forceinline__ OneStepScale one_step_scale(float sw) {
  const float scale = mul_f32(sw, 1.0f / kCodeFactor<kType>);
  return {scale, mul_f32(scale, -kMagic)};
}
/// As add_term for one digit.
__device__ __forceinline__ float add_term(float acc, float s, OneStepScale w, int digit) {
  return fma_f32(s, fma_f32(w.scale, float_of((uint32_t)digit), w.offset), acc);
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

/// The terms of one group of one row, by dp4a. codes: the parts of the group; x: [digit][half] of the activations' codes, s
/// their scale, sum the float of their sum (types with a minimum).
template <int32_t kType, int kDigits>
__device__ __forceinline__ float add_group(float acc, const uint4* codes, uint2 upper, const WidenedScales& w,
                                           const uint4 (*x)[2], float s, float sum) {
  constexpr bool kHalves = type_terms_of_halves(kType);
  int low[kDigits], high[kDigits];
#pragma unroll
  for (int d = 0; d < kDigits; d++) low[d] = kMagicBits, high[d] = kHalves ? kMagicBits : 0;
#pragma unroll
  for (int q = 0; q < 4; q++) {
    uint32_t a = word_of(codes[0], q), b = 0;
    if constexpr (kType == ASSAY_Q8_0) {
      b = word_of(codes[1], q);
    } else {
      signed_words<kType>(a, upper, q, a, b);
    }
#pragma unroll
    for (int d = 0; d < kDigits; d++) {
      low[d] = dp4a_s8(a, word_of(x[d][0], q), low[d]);
      high[d] = dp4a_s8(b, word_of(x[d][1], q), high[d]);
    }
  }
  if constexpr (kHalves) {
    acc = add_term<kType, kDigits>(acc, s, w.low, low);
    return add_term<kType, kDigits>(acc, s, w.high, high);
  } else {
#pragma unroll
    for (int d = 0; d < kDigits; d++) low[d] += high[d];
    acc = add_term<kType, kDigits>(acc, s, w.low, low);
    return type_has_minimum(kType) ? fma_f32(s, mul_f32(w.minimum, sum), acc) : acc;
  }
}

/// One group of 16 rows as operand A of mma_s8_k32, as thread 4 r + q of a warp holds it: rows r and r + 8.
template <int32_t kType, int kDigits>
struct WeightFragment {
  uint32_t a[4];
  WidenedScales scales[2];
  OneStepScale one_step[2][2];  // one digit: [row][half]

  /// Row r + 8 i: word q of its codes (Q8_0: of both parts), its high bits, scale and super as they lie in the planes.
  __device__ __forceinline__ void set(int i, uint32_t codes, uint32_t second_part, uint2 upper, int q, uint32_t scale, uint32_t super) {
    if constexpr (kType == ASSAY_Q8_0) {
      a[i] = codes;
      a[2 + i] = second_part;
    } else {
      signed_words<kType>(codes, upper, q, a[i], a[2 + i]);
    }
    scales[i] = widened_scales<kType>(scale, super);
    if constexpr (kDigits == 1) {
      one_step[i][0] = one_step_scale<kType>(scales[i].low);
      if constexpr (type_terms_of_halves(kType)) one_step[i][1] = one_step_scale<kType>(scales[i].high);
    }
  }
  /// The integer dots with 8 tokens, each with kMagicBits added; [e]: [0..1] row r and tokens 2 q, 2 q + 1, [2..3] row r + 8.
  static constexpr int kTerms = type_terms_of_halves(kType) ? 2 : 1;
  struct Dots {
    int of[kTerms][kDigits][4];
  };
  __device__ __forceinline__ void multiply(Dots& dots, const uint2* b) const {  // b: operand B of each digit
#pragma unroll
    for (int d = 0; d < kDigits; d++) {
      if constexpr (kTerms == 2) {
        mma_s8_k16(dots.of[0][d], a[0], a[1], b[d].x, kMagicBits);
        mma_s8_k16(dots.of[1][d], a[2], a[3], b[d].y, kMagicBits);
      } else {
        mma_s8_k32(dots.of[0][d], a, b[d].x, b[d].y, kMagicBits);
      }
    }
  }
  /// Adds their terms to acc, ordered as they are; s, sum: scales and sums of the two tokens.
  __device__ __forceinline__ void add(float* acc, const Dots& dots, const float* s, const float* sum) const {
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const WidenedScales& w = scales[e / 2];
#pragma unroll
      for (int term = 0; term < kTerms; term++) {
        if constexpr (kDigits == 1) {
          acc[e] = add_term(acc[e], s[e % 2], one_step[e / 2][term], dots.of[term][0][e]);
        } else {
          const int digits[2] = {dots.of[term][0][e], dots.of[term][1][e]};
          acc[e] = add_term<kType, 2>(acc[e], s[e % 2], term ? w.high : w.low, digits);
        }
      }
      if constexpr (type_has_minimum(kType)) acc[e] = fma_f32(s[e % 2], mul_f32(w.minimum, sum[e % 2]), acc[e]);
    }
  }
};

/// "gemv_q4_0_s16"
inline std::string variant_name(const char* kernel, int32_t type, int digits) {
  constexpr const char* kTypes[ASSAY_TYPES] = {"f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"};
  return std::string(kernel) + "_" + kTypes[type] + (digits == 2 ? "_s16" : "_s8");
}

/// Calls fn.template operator()<type, digits>() for the type and kind of activations at hand. False: not quantised.
template <class F>
bool with_type_and_digits(int32_t type, int32_t activations, F&& fn) {
  const auto of_type = [&]<int32_t kType>() {
    if (activations == ASSAY_ACTIVATIONS_S16) {
      fn.template operator()<kType, 2>();
    } else {
      fn.template operator()<kType, 1>();
    }
    return true;
  };
  switch (type) {
    case ASSAY_Q8_0: return of_type.template operator()<ASSAY_Q8_0>();
    case ASSAY_Q4_0: return of_type.template operator()<ASSAY_Q4_0>();
    case ASSAY_Q4_1: return of_type.template operator()<ASSAY_Q4_1>();
    case ASSAY_Q5_0: return of_type.template operator()<ASSAY_Q5_0>();
    case ASSAY_Q5_1: return of_type.template operator()<ASSAY_Q5_1>();
    case ASSAY_Q4_K: return of_type.template operator()<ASSAY_Q4_K>();
    case ASSAY_Q5_K: return of_type.template operator()<ASSAY_Q5_K>();
    case ASSAY_Q6_K: return of_type.template operator()<ASSAY_Q6_K>();
    default: return false;
  }
}

}  // namespace assay

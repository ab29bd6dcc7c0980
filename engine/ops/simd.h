// A vector of f32 in the machine's own width, for the SIMD form that every op has once for all sets. Kept thin: one
// function, one instruction or a few (simd_avx512.h, simd_avx2.h, simd_neon.h), and everything that can be is composed
// from them once, here. Each is held to scalar code by simd_test.cpp. Only op files include this.
//
// A sum's order never depends on kLanes: the 256 (32) accumulators of a rule are kFloatLanes/kLanes (kHeadLanes/kLanes)
// vectors, and lanes that get no product may take fma(0, 0, acc), which changes no byte of a fold (NUMERICS.md).
//
// Every set defines: kLanes, kRegisters (vector registers of the machine), vf and vi (kLanes f32 and i32), vf8 and vi8
// (8 values, whatever kLanes is), and, where the name does not say all:
//   v_load_first       the first n < kLanes; others +0. Touches nothing behind them, as v_store_first
//   v_max, v_min       a > b ? a : b, a < b ? a : b, so b where one is NaN
//   v_nan_from(x, y)   y, the canonical NaN where x is NaN
//   v_to_int           of exact integers only
//   vi_to_float        rounded to nearest even
//   vi_srl_by          a shift that is known at run time
//   vi_bits_of(x)      bit i of x in lane i, as 0 or 1
//   vi_store_u16       the low halves
//   v_f16_bits         rounded to nearest even; a NaN stays some NaN
//   s_load_f16         one f16, widened
//   v_fold             the fold by halves inside one vector: kLanes/2 ... 1. Without the +0
//   v_fold_8(r)        the same for 8 vectors at once: element i of the result is the fold of r[i]
//   vf8_ordered        ordered_of (numerics.h)
#pragma once
#define ASSAY_V [[maybe_unused]] __attribute__((always_inline)) static inline
#ifdef __clang__
#define ASSAY_UNROLL _Pragma("clang loop unroll(full)")  // of the loop that follows, whose count is a constant
#else
#define ASSAY_UNROLL _Pragma("GCC unroll 64")
#endif

#include "engine/ops/op.h"
#if defined(ASSAY_ISA_avx512)
#include "engine/ops/simd_avx512.h"
#elif defined(ASSAY_ISA_avx2)
#include "engine/ops/simd_avx2.h"
#elif defined(ASSAY_ISA_neon)
#include "engine/ops/simd_neon.h"
#else
#error "no vectors of this instruction set"
#endif

namespace assay::inline ASSAY_ISA {

// ---- composed once from the above

constexpr int kFloatVectors = kFloatLanes / kLanes;  // accumulators of the float rule
constexpr int kHeadVectors = kHeadLanes / kLanes;    // of the head rule

ASSAY_V vf v_negate(vf x) {
  return vi_float_bits(vi_xor(v_bits(x), vi_set((int32_t)0x80000000u)));
}
ASSAY_V vi vi_abs_bits(vf x) {
  return vi_and(v_bits(x), vi_set(0x7fffffff));
}
/// Asks for the cache line of p. Never faults.
ASSAY_V void prefetch(const std::byte* p) {
  __builtin_prefetch(p);
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
ASSAY_V vf v_sigmoid(vf x) {
  return v_div(v_set(1.0f), v_add(v_set(1.0f), v_exp(v_negate(x))));
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
  return group_block(kType, row, k / kQuantGroup);
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
    return v_mul(v_set(s_load_f16(b)), vi_to_float(vi_load_i8(b + offsetof(BlockQ8_0, codes) + i)));
  }
  if constexpr (kType == WeightType::q4_0 || kType == WeightType::q4_1) {
    constexpr bool kMin = kType == WeightType::q4_1;
    const std::byte* b = place_of<kType>(row, k);
    const vi pairs = vi_load_u8(b + (kMin ? offsetof(BlockQ4_1, codes) : offsetof(BlockQ4_0, codes)) + i % 16);
    const vi code = i < 16 ? vi_and(pairs, vi_set(15)) : vi_srl<4>(pairs);
    const vf d = v_set(s_load_f16(b));
    if constexpr (kMin) return v_fma(d, vi_to_float(code), v_set(s_load_f16(b + offsetof(BlockQ4_1, m))));
    return v_mul(d, vi_to_float(vi_sub(code, vi_set(8))));
  }
  if constexpr (kType == WeightType::q5_0 || kType == WeightType::q5_1) {
    constexpr bool kMin = kType == WeightType::q5_1;
    constexpr size_t kHigh = kMin ? offsetof(BlockQ5_1, high) : offsetof(BlockQ5_0, high);
    const std::byte* b = place_of<kType>(row, k);
    const vi pairs = vi_load_u8(b + kHigh + 4 + i % 16);
    const vi low = i < 16 ? vi_and(pairs, vi_set(15)) : vi_srl<4>(pairs);
    const vi code = vi_or(low, vi_shl<4>(vi_bits_of(load_u32(b + kHigh) >> i)));
    const vf d = v_set(s_load_f16(b));
    if constexpr (kMin) return v_fma(d, vi_to_float(code), v_set(s_load_f16(b + offsetof(BlockQ5_1, m))));
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
    const float d = s_load_f16(b + offsetof(BlockQ6_K, d));
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

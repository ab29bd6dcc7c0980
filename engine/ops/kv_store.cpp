// Rounds k and v rows (nearest even) into the cache at their places. A NaN is stored as the canonical one, in f32 too.
// A finite value that does not fit f16 is stored as Inf and reported.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

/// *place = min(*place, value), by any number of threads.
ASSAY_NUMERICS_FN void lower_to(int64_t* place, int64_t value) {
  int64_t seen = __atomic_load_n(place, __ATOMIC_RELAXED);
  while (value < seen && !__atomic_compare_exchange_n(place, &seen, value, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

#ifdef ASSAY_ISA_scalar

/// Stores one head's row; returns the first column that overflows, or -1.
ASSAY_NUMERICS_FN int64_t store_row(KvType type, const float* x, std::byte* out, int64_t count) {
  int64_t overflow = -1;
  for (int64_t d = 0; d < count; d++) {
    if (type == KvType::f32) {
      const float v = is_nan(x[d]) ? canonical_nan() : x[d];
      memcpy(out + 4 * d, &v, 4);
      continue;
    }
    const uint16_t bits = type == KvType::f16 ? f16_of_f32(x[d]) : bf16_of_f32(x[d]);
    memcpy(out + 2 * d, &bits, 2);
    if (type == KvType::f16 && (bits & 0x7fffu) == 0x7c00u && is_finite(x[d]) && overflow < 0) overflow = d;
  }
  return overflow;
}

#else

template <KvType kType>
ASSAY_V int64_t store_row_of(const float* x, std::byte* out, int64_t count) {
  int64_t overflow = -1;
  for (int64_t d = 0; d < count; d += kLanes) {
    const int64_t n = count - d < kLanes ? count - d : kLanes;
    const vf xs = v_load_n(x + d, n);
    if constexpr (kType == KvType::f32) {
      v_store_n(reinterpret_cast<float*>(out + 4 * d), v_nan_from(xs, xs), n);
    } else {
      std::byte bits[2 * kLanes];
      vi_store_u16(bits, kType == KvType::f16 ? v_to_f16(xs) : v_to_bf16(xs));
      memcpy(out + 2 * d, bits, (size_t)(2 * n));
    }
    if constexpr (kType == KvType::f16) {  // 65520 <= |x| < Inf in any lane?
      const vi magnitude = vi_abs_bits(xs);
      const vi low = vi_sub(vi_set(0x477fefff), magnitude), high = vi_sub(magnitude, vi_set(0x7f800000));
      if (overflow < 0 && vi_any_negative(vi_and(low, high))) {
        for (int64_t i = n - 1; i >= 0; i--) {
          if (is_finite(x[d + i]) && (f16_of_f32(x[d + i]) & 0x7fffu) == 0x7c00u) overflow = d + i;
        }
      }
    }
  }
  return overflow;
}
ASSAY_V int64_t store_row(KvType type, const float* x, std::byte* out, int64_t count) {
  if (type == KvType::f32) return store_row_of<KvType::f32>(x, out, count);
  return type == KvType::f16 ? store_row_of<KvType::f16>(x, out, count) : store_row_of<KvType::bf16>(x, out, count);
}

#endif

void kv_store(const KvStoreArgs& a, int64_t begin, int64_t end) {
  const KvLayer& c = a.cache;
  const int64_t columns = c.kv_heads * c.head_dim, element = c.type == KvType::f32 ? 4 : 2;
  for (int64_t row = begin; row < end; row++) {
    for (int which = 0; which < 2; which++) {
      const float* x = (which == 0 ? a.k : a.v) + row * columns;
      std::byte* base = which == 0 ? c.k : c.v;
      for (int64_t h = 0; h < c.kv_heads; h++) {
        const int64_t at = ((a.places[row].slot * c.kv_heads + h) * c.context + a.places[row].position) * c.head_dim;
        const int64_t overflow = store_row(c.type, x + h * c.head_dim, base + at * element, c.head_dim);
        if (overflow >= 0) lower_to(a.overflow, (which * a.rows + row) * columns + h * c.head_dim + overflow);
      }
    }
  }
}

}  // namespace assay::inline ASSAY_ISA

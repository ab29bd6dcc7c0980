// What happens to one element of a q, k or v head: shared by rope.cu, kv_store.cu and their fusion, heads.cu.
#pragma once
#include "cuda/prim.cuh"
#include "engine/abi.h"

namespace assay {

struct Pair {
  float first, second;
};
/// Turns the pair (j, j + rotary/2) by an angle of the table.
__device__ __forceinline__ Pair turn(Pair x, float cos, float sin) {
  return {fma_f32(x.first, cos, -mul_f32(x.second, sin)), fma_f32(x.second, cos, mul_f32(x.first, sin))};
}

/// Where element 0 of a head's row lies in K and in V, in elements.
__device__ __forceinline__ int64_t cache_offset(const AssayCache& c, AssayPlace place, int64_t kv_head) {
  return ((place.slot * c.kv_heads + kv_head) * c.context + place.position) * c.head_dim;
}
/// Rounds to nearest even; a NaN becomes the canonical one. True: a finite value that f16 does not hold, stored as Inf.
__device__ __forceinline__ bool store_cached(int32_t type, void* base, int64_t at, float x) {
  if (type == ASSAY_F32) {
    static_cast<float*>(base)[at] = is_nan(x) ? canonical_nan() : x;
    return false;
  }
  const uint16_t bits = type == ASSAY_F16 ? f16_of_f32(x) : bf16_of_f32(x);
  static_cast<uint16_t*>(base)[at] = bits;
  return type == ASSAY_F16 && (bits & 0x7fffu) == 0x7c00u && is_finite(x);
}

inline bool is_cache_type(int32_t type) { return type == ASSAY_F32 || type == ASSAY_F16 || type == ASSAY_BF16; }

}  // namespace assay

// What happens to a q, k or v head and to one element of it: shared by rope.cu, kv_store.cu and their fusions, heads.cu and
// attention_short.cu.
#pragma once
#include "cuda/float_rule.cuh"
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

/// Elements of a head, a norm's weights, that a thread of a warp has loaded at once: t, t + 32 ...; +0 behind the end.
constexpr int kHeldDims = 8;
struct HeldDims {
  float x[kHeldDims];
};
__device__ __forceinline__ HeldDims hold_dims(const float* x, int64_t dims) {
  HeldDims h;
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) {
    const int64_t d = lane_of_warp() + 32 * i;
    h.x[i] = x != nullptr && d < dims ? x[d] : 0.0f;
  }
  return h;
}

/// A warp makes one head: head_norm with `norm` unless that is null (`weights`: what is held of it), then rope of the first
/// `rotary` elements, then write(d, value) for each. Order of sums: the head rule, thread = accumulator (d mod 32). A pair of
/// rope lies in two threads unless rotary/2 is a multiple of 32, so the normed head goes through `values`, shared memory of
/// head_dim floats; x is read before anything is written, an element of `values` before that element is.
template <class Write>
__device__ __forceinline__ void make_head(const AssayHeads& a, AssayPlace place, const float* x, const float* norm,
                                          const HeldDims& weights, int64_t rotary, float* values, Write&& write) {
  const int t = lane_of_warp();
  const int64_t dims = a.cache.head_dim, pairs = rotary / 2;
  HeldDims held = hold_dims(x, dims);
  const float *cos = a.cos + place.position * pairs, *sin = a.sin + place.position * pairs;
  constexpr int kHeldPairs = 2;  // angles that are under way while the norm is computed
  float first_cos[kHeldPairs], first_sin[kHeldPairs];
#pragma unroll
  for (int i = 0; i < kHeldPairs; i++) {
    const bool real = t + 32 * i < pairs;
    first_cos[i] = real ? cos[t + 32 * i] : 0.0f;
    first_sin[i] = real ? sin[t + 32 * i] : 0.0f;
  }
  if (norm != nullptr) {
    float acc = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeldDims; i++) acc = fma_f32(held.x[i], held.x[i], acc);  // 0 * 0 changes no sum of squares
    for (int64_t d = t + 32 * kHeldDims; d < dims; d += 32) acc = fma_f32(x[d], x[d], acc);
    const float r = reciprocal_rms(fold_warp(acc), dims, a.eps);
#pragma unroll
    for (int i = 0; i < kHeldDims; i++) held.x[i] = mul_f32(mul_f32(held.x[i], r), weights.x[i]);
    for (int64_t d = t + 32 * kHeldDims; d < dims; d += 32) values[d] = mul_f32(mul_f32(x[d], r), norm[d]);
  } else {
    for (int64_t d = t + 32 * kHeldDims; d < dims; d += 32) values[d] = x[d];
  }
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) {
    if (t + 32 * i < dims) values[t + 32 * i] = held.x[i];
  }
  sync_warp();

  const auto turn_pair = [&](int64_t j, float c, float s) {
    const Pair turned = turn({values[j], values[j + pairs]}, c, s);
    write(j, turned.first);
    write(j + pairs, turned.second);
  };
#pragma unroll
  for (int i = 0; i < kHeldPairs; i++) {
    if (t + 32 * i < pairs) turn_pair(t + 32 * i, first_cos[i], first_sin[i]);
  }
  for (int64_t j = t + 32 * kHeldPairs; j < pairs; j += 32) turn_pair(j, cos[j], sin[j]);
  for (int64_t d = rotary + t; d < dims; d += 32) write(d, values[d]);
}

inline bool is_cache_type(int32_t type) { return type == ASSAY_F32 || type == ASSAY_F16 || type == ASSAY_BF16; }

}  // namespace assay

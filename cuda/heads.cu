// What lies between the q, k, v products and attention, in one launch: head_norm of q and k where they have weights, rope of
// both, kv_store of k (as it is then) and v. Its bytes, the report of an overflow included, are those of norm.cu, rope.cu and
// kv_store.cu one after the other.
//
// A warp per head of a row: heads of q, then of k, then of v. Order of sums: the head rule, thread = accumulator (d mod 32).
// A pair of rope lies in two threads unless rotary/2 is a multiple of 32, so the normed head goes through shared memory, which
// also makes q_out = q harmless: a warp has read its head before it writes.
// Bytes per element: 4 read, 4 (q) or those of the cache written.
// PRECOND: as kv_store.cu.
#include "cuda/device.h"
#include "cuda/float_rule.cuh"
#include "cuda/head_parts.cuh"

namespace assay {
namespace {

constexpr int kHeadThreads = 128, kHeadsPerBlock = kHeadThreads / 32;
constexpr int kHeldDims = 8;  // elements of a head that a thread loads at once

/// Shared: a head's floats per warp.
__global__ __launch_bounds__(kHeadThreads) void heads_kernel(AssayHeads a) {
  SHARED_BYTES(shared);
  const AssayCache& c = a.cache;
  const int t = lane_of_warp(), warp = warp_of_block();
  const int64_t item = (int64_t)blockIdx.x * kHeadsPerBlock + warp, per_row = a.heads + 2 * c.kv_heads;
  const int64_t row = item / per_row, head = item % per_row, dims = c.head_dim;
  const bool is_q = head < a.heads, is_v = head >= a.heads + c.kv_heads;
  const int64_t kv_head = is_q ? 0 : is_v ? head - a.heads - c.kv_heads : head - a.heads;
  const int64_t from = is_q ? (row * a.heads + head) * dims : (row * c.kv_heads + kv_head) * dims;
  const float* weights = is_q ? a.q_norm : is_v ? nullptr : a.k_norm;
  float* values = reinterpret_cast<float*>(shared) + warp * dims;
  let_next_start();
  float weight[kHeldDims], held[kHeldDims];
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) weight[i] = weights != nullptr && t + 32 * i < dims ? weights[t + 32 * i] : 0.0f;
  wait_for_previous();
  if (row >= a.rows) return;

  const AssayPlace place = a.places[row];
  const float* x = (is_q ? a.q : is_v ? a.v : a.k) + from;
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) held[i] = t + 32 * i < dims ? x[t + 32 * i] : 0.0f;
  if (weights != nullptr) {
    float acc = 0.0f;
#pragma unroll
    for (int i = 0; i < kHeldDims; i++) acc = fma_f32(held[i], held[i], acc);  // 0 * 0 changes no sum of squares
    for (int64_t d = t + 32 * kHeldDims; d < dims; d += 32) acc = fma_f32(x[d], x[d], acc);
    const float r = reciprocal_rms(fold_warp(acc), dims, a.eps);
#pragma unroll
    for (int i = 0; i < kHeldDims; i++) held[i] = mul_f32(mul_f32(held[i], r), weight[i]);
    for (int64_t d = t + 32 * kHeldDims; d < dims; d += 32) values[d] = mul_f32(mul_f32(x[d], r), weights[d]);
  } else {
    for (int64_t d = t + 32 * kHeldDims; d < dims; d += 32) values[d] = x[d];
  }
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) {
    if (t + 32 * i < dims) values[t + 32 * i] = held[i];
  }
  sync_warp();

  const int64_t to = is_q ? from : cache_offset(c, place, kv_head);
  const auto write = [&](int64_t d, float value) {
    if (is_q) {
      a.q_out[to + d] = value;
    } else if (store_cached(c.type, is_v ? c.v : c.k, to + d, value)) {
      atomic_min(a.overflow, (is_v ? a.rows * c.kv_heads * dims : 0) + from + d);
    }
  };
  const int64_t rotary = is_v ? 0 : a.rotary, pairs = rotary / 2;
  const float *cos = a.cos + place.position * pairs, *sin = a.sin + place.position * pairs;
  for (int64_t j = t; j < pairs; j += 32) {
    const Pair turned = turn({values[j], values[j + pairs]}, cos[j], sin[j]);
    write(j, turned.first);
    write(j + pairs, turned.second);
  }
  for (int64_t d = rotary + t; d < dims; d += 32) write(d, values[d]);
}

}  // namespace

int heads(AssayDevice& d, const AssayHeads& a) {
  const AssayCache& c = a.cache;
  const int64_t blocks = (a.rows * (a.heads + 2 * c.kv_heads) + kHeadsPerBlock - 1) / kHeadsPerBlock;
  const size_t shared = sizeof(float) * kHeadsPerBlock * (size_t)c.head_dim;
  if (!is_cache_type(c.type) || c.head_dim < 1 || shared > d.shared_limit || a.heads < 1 || c.kv_heads < 1 || a.rotary < 0 ||
      a.rotary % 2 != 0 || a.rotary > c.head_dim || blocks > INT32_MAX)
    return ASSAY_REFUSED;
  if (a.rows == 0) return ASSAY_DONE;
  return launch(d, "heads", Overlap::yes, heads_kernel, dim3((unsigned)blocks), kHeadThreads, shared, a);
}

}  // namespace assay

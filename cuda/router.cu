// topk: ids of the largest logits of a row, by falling value, ties to the lower id, -0 counting as +0; all -1 where the row holds
// a NaN. topk_weights: p = exp(x - max) / sum over all experts, of the chosen ones; the sum by the float rule, lane = id mod 256;
// `normalised`: divided by their sum in rank order. engine/ops/moe.cpp. Both in one launch where both are asked for.
//
// A warp per row. A logit becomes a key of 64 bits, its value in the high half, ordered as an integer (+0 added first), the id's
// complement in the low half: the largest key that is below the last rank's is the next rank's. A thread has the keys of ids
// t, t + 32, ... and knows its largest; only the thread that gave one away looks for its next.
// Bytes: 4 per expert and row, read again from L1 by every rank's winner.
// PRECOND: 1 <= chosen <= experts < 2^24.
#include "cuda/device.h"
#include "cuda/float_rule.cuh"

namespace assay {
namespace {

constexpr int kThreads = 128, kRowsPerBlock = kThreads / 32;

__device__ __forceinline__ uint64_t key_of(float x, int64_t id) {
  const uint32_t order = (uint32_t)ordered_of(add_f32(x, 0.0f)) ^ 0x80000000u;
  return (uint64_t)order << 32 | (uint32_t)~(uint32_t)id;
}

/// The thread's largest key below `limit`; 0: it has none. No key of a number is 0.
__device__ __forceinline__ uint64_t largest_below(const float* x, int64_t experts, uint64_t limit) {
  uint64_t best = 0;
  for (int64_t e = lane_of_warp(); e < experts; e += 32) {
    const uint64_t key = key_of(x[e], e);
    best = key < limit && key > best ? key : best;
  }
  return best;
}

__device__ __forceinline__ void choose(const float* x, float* ids, int64_t experts, int64_t chosen) {
  const int t = lane_of_warp();
  int nan = 0;
  for (int64_t e = t; e < experts; e += 32) nan |= is_nan(x[e]) ? 1 : 0;
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) nan |= shuffle_xor(nan, half);
  uint64_t mine = largest_below(x, experts, ~(uint64_t)0);
  for (int64_t r = 0; r < chosen; r++) {
    uint64_t best = mine;
#pragma unroll
    for (int half = 16; half >= 1; half /= 2) {
      const uint64_t other = shuffle_xor(best, half);
      best = other > best ? other : best;
    }
    if (t == 0) ids[r] = nan ? -1.0f : (float)(int32_t)~(uint32_t)best;
    if (mine == best) mine = largest_below(x, experts, best);
  }
}

__device__ __forceinline__ void weigh(const float* x, const float* ids, float* y, int64_t experts, int64_t chosen, bool normalised) {
  const int t = lane_of_warp();
  int32_t largest = INT32_MIN;
  for (int64_t e = t; e < experts; e += 32) {
    const int32_t o = ordered_of(x[e]);
    largest = largest > o ? largest : o;
  }
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) {
    const int32_t other = shuffle_xor(largest, half);
    largest = largest > other ? largest : other;
  }
  const float max = float_of_ordered(largest);
  float acc[8] = {};  // lanes t + 32 i
  for (int64_t first = 0; first < experts; first += kFloatLanes) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int64_t e = first + t + 32 * i;
      if (e < experts) acc[i] = add_f32(acc[i], exp_f32(sub_f32(x[e], max)));
    }
  }
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; i++) acc[i] = add_f32(acc[i], acc[i + half]);
  }
  const float sum = fold_warp(acc[0]);
  for (int64_t first = 0; first < chosen; first += 32) {
    const int64_t r = first + t;
    if (r >= chosen) continue;
    const float id = ids[r];
    y[r] = id < 0 ? canonical_nan() : div_f32(exp_f32(sub_f32(x[(int64_t)id], max)), sum);
  }
  if (!normalised) return;
  sync_warp();
  float total = 0.0f;
  for (int64_t r = 0; r < chosen; r++) total = add_f32(total, y[r]);
  sync_warp();
  for (int64_t r = t; r < chosen; r += 32) y[r] = div_f32(y[r], total);
}

template <bool kChoose>
__global__ __launch_bounds__(kThreads) void router_kernel(const AssayRouter a) {
  let_next_start();
  wait_for_previous();
  const int64_t row = (int64_t)blockIdx.x * kRowsPerBlock + warp_of_block();
  if (row >= a.rows) return;
  const float* x = a.logits + row * a.experts;
  float* ids = a.ids + row * a.chosen;
  if constexpr (kChoose) {
    choose(x, ids, a.experts, a.chosen);
    if (a.weights == nullptr) return;
    sync_warp();
  }
  weigh(x, ids, a.weights + row * a.chosen, a.experts, a.chosen, a.normalised != 0);
}

template <bool kChoose>
int route(AssayDevice& d, const char* name, const AssayRouter& a) {
  const int64_t blocks = (a.rows + kRowsPerBlock - 1) / kRowsPerBlock;
  if (a.experts < 1 || a.experts >= 1 << 24 || a.chosen < 1 || a.chosen > a.experts || blocks > INT32_MAX) return ASSAY_REFUSED;
  if (blocks == 0) return ASSAY_DONE;
  return launch(d, name, Overlap::yes, router_kernel<kChoose>, dim3((unsigned)blocks), kThreads, 0, a);
}

}  // namespace

int topk(AssayDevice& d, const AssayRouter& a) { return route<true>(d, a.weights ? "topk_and_weights" : "topk", a); }
int topk_weights(AssayDevice& d, const AssayRouter& a) { return route<false>(d, "topk_weights", a); }

}  // namespace assay

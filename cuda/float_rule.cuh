// Sums of the float rule and the head rule whose accumulators lie in the threads of a warp (engine/NUMERICS.md). Sums of two
// are exchanged, so every thread ends with the whole: a + b and b + a are the same bits, NaNs excepted.
#pragma once
#include "cuda/prim.cuh"

namespace assay {

/// The thread's warp in its block. The shuffle tells the compiler that it is the same for the whole warp, so that loops and
/// branches over it need no code for warps whose threads part.
__device__ __forceinline__ int warp_of_block() { return shuffle((int)threadIdx.x / 32, 0); }

/// Head rule, and the end of every fold: thread = accumulator. Folds 16, 8, 4, 2, 1 and adds +0.
__device__ __forceinline__ float fold_warp(float acc) {
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) acc = add_f32(acc, shuffle_xor(acc, half));
  return add_f32(acc, 0.0f);
}

/// Float rule: thread t holds accumulators 8 t .. 8 t + 7. Accumulators 128, 64 and 32 apart are 16, 8 and 4 threads apart: of
/// each such pair of threads, one goes on with the lower half of the values and the other with the upper half, so 4 + 2 + 1
/// shuffles fold them. Then a thread holds one value, of element 4 (bit 4 of t) + 2 (bit 3) + (bit 2), and accumulators 16 and
/// 8 apart are 2 and 1 threads apart; 4, 2 and 1 apart: again 16, 8 and 4.
__device__ __forceinline__ float fold_warp_eights(const float* acc) {
  const int t = lane_of_warp();
  float four[4], two[2];
  const bool upper = (t & 16) != 0;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float keep = upper ? acc[i + 4] : acc[i], give = upper ? acc[i] : acc[i + 4];
    four[i] = add_f32(keep, shuffle_xor(give, 16));
  }
  const bool upper_two = (t & 8) != 0;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float keep = upper_two ? four[i + 2] : four[i], give = upper_two ? four[i] : four[i + 2];
    two[i] = add_f32(keep, shuffle_xor(give, 8));
  }
  const bool upper_one = (t & 4) != 0;
  const float keep = upper_one ? two[1] : two[0], give = upper_one ? two[0] : two[1];
  float y = add_f32(keep, shuffle_xor(give, 4));
  y = add_f32(y, shuffle_xor(y, 2));
  y = add_f32(y, shuffle_xor(y, 1));
  y = add_f32(y, shuffle_xor(y, 16));
  y = add_f32(y, shuffle_xor(y, 8));
  y = add_f32(y, shuffle_xor(y, 4));
  return add_f32(y, 0.0f);
}

/// Float rule: the block has 256 threads, thread = accumulator, `scratch` 256 floats. Every warp folds all of them by itself,
/// which saves a second barrier. One barrier inside; another must come before `scratch` is written again.
__device__ __forceinline__ float fold_block(float acc, float* scratch) {
  scratch[threadIdx.x] = acc;
  sync_block();
  const float* mine = scratch + lane_of_warp();
  float part[4];
#pragma unroll
  for (int i = 0; i < 4; i++) part[i] = add_f32(mine[32 * i], mine[32 * i + 128]);
  return fold_warp(add_f32(add_f32(part[0], part[2]), add_f32(part[1], part[3])));
}

/// 1 / sqrt(sum/count + eps), count rounded to f32.
__device__ __forceinline__ float reciprocal_rms(float sum, int64_t count, float eps) {
  return div_f32(1.0f, sqrt_f32(add_f32(div_f32(sum, (float)count), eps)));
}

}  // namespace assay

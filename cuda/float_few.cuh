// Float rule, 2 to 16 token rows: a warp computes 4 weight rows times 4 tokens, thread t of it holds accumulators 8 t .. 8 t + 7
// of each product, 128 registers. More tokens pass in groups of 4 while the weights are in the second cache.
//
// One block per multiprocessor that stays; a task is the 4 rows of each of its warps times a group of tokens. Chunks of 256
// columns go through a ring of stages in shared memory: x for all warps, weights for the thread that copied them. One barrier
// per stage says that x has come and that the stage before is free.
// Bytes: the weights once (from the second cache once per 4 tokens); x once per task, a quarter of a bf16 task's weights.
#pragma once
#include "cuda/device.h"
#include "cuda/float_matrices.cuh"
#include "cuda/float_rule.cuh"

namespace assay {
namespace {

constexpr int kFewWarps = 8;  // per block at most
constexpr int kFewRows = 4, kFewTokens = 4, kFewStages = 4, kFewStageX = kFewTokens * 1024;
constexpr size_t few_stage_bytes(int32_t type, int threads) {
  return kFewStageX + (size_t)kFewRows * float_words(type) * 16 * threads;
}

/// Shared: stages of x, [token][place_of_x4], and weights, [row][word][thread] 16 bytes.
template <int32_t kType>
__global__ __launch_bounds__(32 * kFewWarps) void float_few_kernel(FloatMatrices m, const float* x, int tokens, bool aligned) {
  SHARED_BYTES(shared);
  constexpr int kWords = float_words(kType);
  const int t = lane_of_warp(), warp = warp_of_block(), threads = (int)blockDim.x, rows_of_block = threads / 32 * kFewRows;
  const int groups = (tokens + kFewTokens - 1) / kFewTokens, tasks = (m.total + rows_of_block - 1) / rows_of_block * groups;
  const size_t stage_bytes = few_stage_bytes(kType, threads);
  const auto first_row = [&](int task) { return task / groups * rows_of_block + warp * kFewRows; };
  let_next_start();

  // Weights and x are copied by functions of their own, each with its place in the tasks, since only weights may be read before
  // the kernel before has ended.
  struct Place {
    int task, k, stage;
  };
  const int columns = m.columns;
  const auto advance = [&](Place& p) {
    p.stage = p.stage + 1 == kFewStages ? 0 : p.stage + 1;
    p.k += 256;
    if (p.k < columns) return;
    p.k = 0;
    p.task += (int)gridDim.x;
  };
  Place weights_at{(int)blockIdx.x, 0, 0}, x_at = weights_at;
  const unsigned char* from[kFewRows];
  const auto copy_weights = [&] {
    if (weights_at.task >= tasks) return;
    if (weights_at.k == 0) {
#pragma unroll
      for (int r = 0; r < kFewRows; r++) {
        const int number = first_row(weights_at.task) + r;  // behind the last: the last one's, for products nobody stores
        const FloatRow row = row_of(m, number < m.total ? number : m.total - 1);
        from[r] = m.w[row.matrix].data + row.n * m.w[row.matrix].layout.codes_row + t * (kWords * 16);
      }
    }
    uint4* to = reinterpret_cast<uint4*>(shared + weights_at.stage * stage_bytes + kFewStageX) + threadIdx.x;
    const bool real = weights_at.k + 8 * t < columns;
#pragma unroll
    for (int r = 0; r < kFewRows; r++) {
#pragma unroll
      for (int i = 0; i < kWords; i++) {
        copy_async_or_zero<16>(to + (r * kWords + i) * threads, real ? from[r] + 16 * i : m.w[0].data, real);
      }
      from[r] += 32 * kWords * 16;
    }
    advance(weights_at);
  };
  int x_token = 0;
  const auto copy_x = [&] {
    if (x_at.task < tasks) {
      if (x_at.k == 0) x_token = x_at.task % groups * kFewTokens;
      float4* to = reinterpret_cast<float4*>(shared + x_at.stage * stage_bytes);
      for (int i = (int)threadIdx.x; i < kFewTokens * 64; i += threads) {
        const bool token_real = x_token + i / 64 < tokens;
        const float* row = token_real ? x + (int64_t)(x_token + i / 64) * columns : x;
        copy_x4(to + place_of_x4((unsigned)i), row, x_at.k + 4 * (i % 64), columns, token_real, aligned);
      }
      advance(x_at);
    }
    copy_commit();
  };
  for (int i = 0; i < kFewStages - 1; i++) copy_weights();
  wait_for_previous();
  for (int i = 0; i < kFewStages - 1; i++) copy_x();

  int stage = 0;
  for (int task = (int)blockIdx.x; task < tasks; task += (int)gridDim.x) {
    float acc[kFewRows][kFewTokens][8] = {};
    for (int k = 0; k < columns; k += 256) {
      copy_wait<kFewStages - 2>();
      sync_block();
      copy_weights();
      copy_x();
      const float4* xs = reinterpret_cast<const float4*>(shared + stage * stage_bytes) + t;
      const uint4* ws = reinterpret_cast<const uint4*>(shared + stage * stage_bytes + kFewStageX) + threadIdx.x;
      float w[kFewRows][8];
#pragma unroll
      for (int r = 0; r < kFewRows; r++) {
        uint4 words[kWords];
#pragma unroll
        for (int i = 0; i < kWords; i++) words[i] = ws[(r * kWords + i) * threads];
        widen_words<kType>(words, w[r]);
      }
#pragma unroll
      for (int s = 0; s < kFewTokens; s++) {
        const float4 low = xs[s * 64], high = xs[s * 64 + 32];
#pragma unroll
        for (int r = 0; r < kFewRows; r++) step_eight(acc[r][s], w[r], low, high);
      }
      stage = stage + 1 == kFewStages ? 0 : stage + 1;
    }
    // Thread 4 r + s writes the product of row r and token s.
    float mine = 0.0f;
#pragma unroll
    for (int r = 0; r < kFewRows; r++) {
#pragma unroll
      for (int s = 0; s < kFewTokens; s++) {
        const float product = fold_warp_eights(acc[r][s]);
        mine = t == r * kFewTokens + s ? product : mine;
      }
    }
    const int number = first_row(task) + t / kFewTokens, token = task % groups * kFewTokens + t % kFewTokens;
    if (t < kFewRows * kFewTokens && number < m.total && token < tokens) {
      const FloatRow row = row_of(m, number);
      write_product(m, row, token, added_to(m, row, token), mine);
    }
  }
}

inline bool few_fits(const AssayDevice& d, int32_t type) {
  return kFewStages * few_stage_bytes(type, 32 * kFewWarps) <= d.shared_limit;
}

template <int32_t kType>
int float_few(AssayDevice& d, const char* variant, const FloatMatrices& m, const float* x, int tokens, bool aligned) {
  // As many warps as give every multiprocessor about the same number of rows.
  const int most = d.processors * kFewWarps * kFewRows, rounds = (m.total + most - 1) / most;
  const int warps = (m.total + d.processors * rounds * kFewRows - 1) / (d.processors * rounds * kFewRows);
  const int tasks = (m.total + warps * kFewRows - 1) / (warps * kFewRows) * ((tokens + kFewTokens - 1) / kFewTokens);
  const int threads = warps * 32;
  return launch(d, variant, Overlap::yes, float_few_kernel<kType>, dim3((unsigned)(tasks < d.processors ? tasks : d.processors)),
                threads, kFewStages * few_stage_bytes(kType, threads), m, x, tokens, aligned);
}

}  // namespace
}  // namespace assay

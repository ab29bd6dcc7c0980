// Float rule, one token row: a warp per weight row, thread t of it holds accumulators 8 t .. 8 t + 7 of the 256 and reads the
// eight elements of every chunk of 256 that belong to them, 16 bytes (f32: 32) side by side with its neighbours'.
//
// One block per multiprocessor that stays; its warps walk the rows, as many warps as give every multiprocessor the same number
// of rows (a little less at the end). x lies in shared memory, padded with zeros. Weights are read into registers four 16-byte
// words at a time, two such batches ahead of their use: across the ends of rows, and while the kernel before still runs.
// Bytes: the weights once; x once per multiprocessor.
#pragma once
#include "cuda/device.h"
#include "cuda/float_matrices.cuh"
#include "cuda/float_rule.cuh"

namespace assay {
namespace {

constexpr int kGemvWarps = 16;  // per block at most: two such blocks, one of the next kernel, find room
/// Chunks of 256 columns in a batch, a multiple of which x is padded to.
constexpr int gemv_batch(int32_t type) { return type == kAnyQuantised ? 1 : 4 / float_words(type); }
constexpr int64_t gemv_x_bytes(int32_t type, int columns) {
  const int64_t batch = 256 * gemv_batch(type);
  return (columns + batch - 1) / batch * batch * 4;
}

/// x into shared memory, zeros behind its end.
__device__ __forceinline__ void stage_x(const float* x, int columns, int64_t bytes, bool aligned, float4* xs) {
  for (int i = (int)threadIdx.x; i < bytes / 16; i += (int)blockDim.x) {
    copy_x4(xs + place_of_x4((unsigned)i), x, 4 * i, columns, true, aligned);
  }
  copy_commit();
  copy_wait<0>();
  sync_block();
}

/// Shared: x.
template <int32_t kType>
__global__ __launch_bounds__(32 * kGemvWarps, 2) void float_gemv_kernel(FloatMatrices m, const float* x, bool aligned) {
  SHARED_BYTES(shared);
  constexpr int kWords = float_words(kType), kBatch = gemv_batch(kType);
  const int t = lane_of_warp(), warps = (int)blockDim.x / 32, columns = m.columns;
  const int first = (int)blockIdx.x * warps + warp_of_block(), stride = (int)gridDim.x * warps;
  float4* xs = reinterpret_cast<float4*>(shared);
  let_next_start();

  struct Batch {
    uint4 words[kBatch][kWords];
  };
  int ahead = first, ahead_k = 0;
  const uint4* from = nullptr;
  const auto read = [&](Batch& b) {
    if (ahead >= m.total) return;
    if (ahead_k == 0) {
      const FloatRow row = row_of(m, ahead);
      from = reinterpret_cast<const uint4*>(m.w[row.matrix].data + row.n * m.w[row.matrix].layout.codes_row) + t * kWords;
    }
    const bool whole = ahead_k + kBatch * 256 <= columns;
#pragma unroll
    for (int c = 0; c < kBatch; c++) {
#pragma unroll
      for (int i = 0; i < kWords; i++) {
        // A row is padded with zeros to a multiple of 8 elements. Behind that both sides are zeros.
        const bool real = whole || ahead_k + c * 256 + 8 * t < columns;
        b.words[c][i] = real ? load_once(from + c * 32 * kWords + i) : make_uint4(0, 0, 0, 0);
      }
    }
    from += kBatch * 32 * kWords;
    ahead_k += kBatch * 256;
    if (ahead_k < columns) return;
    ahead_k = 0;
    ahead += stride;
  };
  Batch even, odd;
  read(even);
  read(odd);
  wait_for_previous();
  stage_x(x, columns, gemv_x_bytes(kType, columns), aligned, xs);

  int number = first, k = 0;
  Added added{};
  float acc[8];
  const auto use = [&](const Batch& b) {
    if (k == 0) {
      added = added_to(m, row_of(m, number), 0);
#pragma unroll
      for (int i = 0; i < 8; i++) acc[i] = 0.0f;
    }
    const float4* mine = xs + k / 4 + t;
#pragma unroll
    for (int c = 0; c < kBatch; c++) {
      float w[8];
      widen_words<kType>(b.words[c], w);
      step_eight(acc, w, mine[c * 64], mine[c * 64 + 32]);
    }
    k += kBatch * 256;
    if (k < columns) return;
    const float product = fold_warp_eights(acc);
    if (t == 0) write_product(m, row_of(m, number), 0, added, product);
    k = 0;
    number += stride;
  };
  while (number < m.total) {
    use(even);
    read(even);
    if (number >= m.total) break;
    use(odd);
    read(odd);
  }
}

/// Quantised weights, widened: as above, but nothing is read ahead.
__global__ __launch_bounds__(32 * kGemvWarps) void float_gemv_quantised_kernel(FloatMatrices m, const float* x, bool aligned) {
  SHARED_BYTES(shared);
  const int t = lane_of_warp(), warps = (int)blockDim.x / 32;
  const int first = (int)blockIdx.x * warps + warp_of_block(), stride = (int)gridDim.x * warps;
  float4* xs = reinterpret_cast<float4*>(shared);
  let_next_start();
  wait_for_previous();
  stage_x(x, m.columns, gemv_x_bytes(kAnyQuantised, m.columns), aligned, xs);
  for (int number = first; number < m.total; number += stride) {
    const FloatRow row = row_of(m, number);
    float acc[8] = {};
    for (int k = 8 * t; k < m.columns; k += 256) {
      float w[8];
      widen_8(m.w[row.matrix], row.n, k, w);
      const float4* mine = xs + k / 256 * 64 + t;
      step_eight(acc, w, mine[0], mine[32]);
    }
    const float product = fold_warp_eights(acc);
    if (t == 0) write_product(m, row, 0, added_to(m, row, 0), product);
  }
}

inline bool gemv_fits(const AssayDevice& d, int32_t type, int columns) {
  return gemv_x_bytes(type, columns) <= (int64_t)d.shared_limit;
}

template <int32_t kType>
int float_gemv(AssayDevice& d, const char* variant, const FloatMatrices& m, const float* x, bool aligned) {
  const int rounds = (m.total + d.processors * kGemvWarps - 1) / (d.processors * kGemvWarps);
  const int warps = (m.total + d.processors * rounds - 1) / (d.processors * rounds), blocks = (m.total + warps - 1) / warps;
  const dim3 grid((unsigned)(blocks < d.processors ? blocks : d.processors));
  const auto kernel = [] {
    if constexpr (kType == kAnyQuantised) {
      return float_gemv_quantised_kernel;
    } else {
      return float_gemv_kernel<kType>;
    }
  }();
  return launch(d, variant, Overlap::yes, kernel, grid, warps * 32, (size_t)gemv_x_bytes(kType, m.columns), m, x, aligned);
}

}  // namespace
}  // namespace assay

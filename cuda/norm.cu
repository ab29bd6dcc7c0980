// RMS norm: r = 1 / sqrt(sum/K + eps), y = (x * r) * w. engine/ops/norm.cpp.
//
// rms_norm: a block of 256 threads per row, thread = accumulator (k mod 256), so each thread reads every 256th element: 128
// bytes side by side per warp. Up to 32 elements stay in registers between the sum and the product: columns <= 8192 are read
// once; what lies beyond is read again. Wider loads would bring a thread elements of other accumulators.
// head_norm: a warp per head of a row, thread = accumulator (d mod 32), 8 elements in registers.
// Order of sums: fma in increasing k, fold by halves, + 0 (float_rule.cuh).
// Bytes: 8 per element, and w once per row from the caches.
#include "cuda/device.h"
#include "cuda/float_rule.cuh"

namespace assay {
namespace {

constexpr int kNormThreads = 256, kHeadsPerBlock = kNormThreads / 32;
constexpr int kHeldColumns = 32, kHeldDims = 8;  // elements that a thread keeps in registers

__global__ __launch_bounds__(kNormThreads) void rms_norm_kernel(const float* x, const float* w, float* y, int64_t columns,
                                                                float eps) {
  SHARED_BYTES(shared);
  const int t = (int)threadIdx.x;
  const float* from = x + (int64_t)blockIdx.x * columns;
  float* to = y + (int64_t)blockIdx.x * columns;
  let_next_start();
  float weight[kHeldColumns], held[kHeldColumns];
#pragma unroll
  for (int i = 0; i < kHeldColumns; i++) weight[i] = t + kNormThreads * i < columns ? w[t + kNormThreads * i] : 0.0f;
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kHeldColumns; i++) held[i] = t + kNormThreads * i < columns ? from[t + kNormThreads * i] : 0.0f;
  float acc = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeldColumns; i++) acc = fma_f32(held[i], held[i], acc);  // 0 * 0 changes no sum of squares
  for (int64_t k = t + kNormThreads * kHeldColumns; k < columns; k += kNormThreads) acc = fma_f32(from[k], from[k], acc);
  const float r = reciprocal_rms(fold_block(acc, reinterpret_cast<float*>(shared)), columns, eps);
#pragma unroll
  for (int i = 0; i < kHeldColumns; i++) {
    if (t + kNormThreads * i < columns) to[t + kNormThreads * i] = mul_f32(mul_f32(held[i], r), weight[i]);
  }
  for (int64_t k = t + kNormThreads * kHeldColumns; k < columns; k += kNormThreads) to[k] = mul_f32(mul_f32(from[k], r), w[k]);
}

/// `heads`: of all rows together.
__global__ __launch_bounds__(kNormThreads) void head_norm_kernel(const float* x, const float* w, float* y, int64_t heads,
                                                                 int64_t head_dim, float eps) {
  const int t = lane_of_warp();
  const int64_t head = (int64_t)blockIdx.x * kHeadsPerBlock + warp_of_block();
  let_next_start();
  float weight[kHeldDims], held[kHeldDims];
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) weight[i] = t + 32 * i < head_dim ? w[t + 32 * i] : 0.0f;
  wait_for_previous();
  if (head >= heads) return;
  const float* from = x + head * head_dim;
  float* to = y + head * head_dim;
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) held[i] = t + 32 * i < head_dim ? from[t + 32 * i] : 0.0f;
  float acc = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) acc = fma_f32(held[i], held[i], acc);
  for (int64_t d = t + 32 * kHeldDims; d < head_dim; d += 32) acc = fma_f32(from[d], from[d], acc);
  const float r = reciprocal_rms(fold_warp(acc), head_dim, eps);
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) {
    if (t + 32 * i < head_dim) to[t + 32 * i] = mul_f32(mul_f32(held[i], r), weight[i]);
  }
  for (int64_t d = t + 32 * kHeldDims; d < head_dim; d += 32) to[d] = mul_f32(mul_f32(from[d], r), w[d]);
}

}  // namespace

int norm(AssayDevice& d, const AssayNorm& a) {
  if (a.rows == 0) return ASSAY_DONE;
  if (a.heads == 0) {
    if (a.rows > INT32_MAX || a.columns < 1) return ASSAY_REFUSED;
    return launch(d, "rms_norm", Overlap::yes, rms_norm_kernel, dim3((unsigned)a.rows), kNormThreads,
                  kNormThreads * sizeof(float), a.x, a.w, a.y, a.columns, a.eps);
  }
  const int64_t heads = a.rows * a.heads, blocks = (heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
  if (blocks > INT32_MAX || a.head_dim < 1) return ASSAY_REFUSED;
  return launch(d, "head_norm", Overlap::yes, head_norm_kernel, dim3((unsigned)blocks), kNormThreads, 0, a.x, a.w, a.y, heads,
                a.head_dim, a.eps);
}

}  // namespace assay

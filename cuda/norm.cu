// RMS norm: r = 1 / sqrt(sum/K + eps), y = (x * r) * w. engine/ops/norm.cpp. Per head, too: l2_norm, r = 1 / sqrt(sum + 1e-6),
// y = (x * r) * scale; gated_norm, y = ((x * r) * w) * silu(z).
//
// rms_norm: a block of 256 threads per row, thread = accumulator (k mod 256), so each thread reads every 256th element: 128
// bytes side by side per warp. Up to 32 elements stay in registers between the sum and the product: columns <= 8192 are read
// once; what lies beyond is read again. Wider loads would bring a thread elements of other accumulators.
// Norms per head: a warp per head of a row, thread = accumulator (d mod 32), 8 elements in registers. Heads of head_norm and
// l2_norm may lie apart in x.
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

/// Heads of one kind of norm: head h of row t begins at t * x_row + h * x_head of x, and y is dense.
struct Heads {
  const float *x, *w, *z;  // w: head_norm and gated_norm; z: gated_norm
  float* y;
  int64_t count, per_row;  // heads: of all rows, of one
  int64_t x_row, x_head, head_dim;
  float eps, scale;  // scale: l2_norm
};
enum class HeadNorm : uint8_t { rms, l2, gated };

template <HeadNorm kNorm>
__global__ __launch_bounds__(kNormThreads) void head_norm_kernel(const Heads a) {
  const int t = lane_of_warp();
  const int64_t head = (int64_t)blockIdx.x * kHeadsPerBlock + warp_of_block(), head_dim = a.head_dim;
  let_next_start();
  float weight[kHeldDims], held[kHeldDims];
  if constexpr (kNorm != HeadNorm::l2) {
#pragma unroll
    for (int i = 0; i < kHeldDims; i++) weight[i] = t + 32 * i < head_dim ? a.w[t + 32 * i] : 0.0f;
  }
  wait_for_previous();
  if (head >= a.count) return;
  const float* from = a.x + head / a.per_row * a.x_row + head % a.per_row * a.x_head;
  const float* z = kNorm == HeadNorm::gated ? a.z + head * head_dim : nullptr;
  float* to = a.y + head * head_dim;
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) held[i] = t + 32 * i < head_dim ? from[t + 32 * i] : 0.0f;
  float acc = 0.0f;
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) acc = fma_f32(held[i], held[i], acc);
  for (int64_t d = t + 32 * kHeldDims; d < head_dim; d += 32) acc = fma_f32(from[d], from[d], acc);
  const float sum = fold_warp(acc);
  const float r = kNorm == HeadNorm::l2 ? div_f32(1.0f, sqrt_f32(add_f32(sum, 1e-6f))) : reciprocal_rms(sum, head_dim, a.eps);
  const auto normed = [&](int64_t d, float x, float w) {
    const float y = mul_f32(mul_f32(x, r), kNorm == HeadNorm::l2 ? a.scale : w);
    to[d] = kNorm == HeadNorm::gated ? mul_f32(y, silu_f32(z[d])) : y;
  };
#pragma unroll
  for (int i = 0; i < kHeldDims; i++) {
    if (t + 32 * i < head_dim) normed(t + 32 * i, held[i], kNorm == HeadNorm::l2 ? 0.0f : weight[i]);
  }
  for (int64_t d = t + 32 * kHeldDims; d < head_dim; d += 32) normed(d, from[d], kNorm == HeadNorm::l2 ? 0.0f : a.w[d]);
}

template <HeadNorm kNorm>
int norm_heads(AssayDevice& d, const char* name, const Heads& a) {
  const int64_t blocks = (a.count + kHeadsPerBlock - 1) / kHeadsPerBlock;
  if (blocks > INT32_MAX || a.head_dim < 1 || a.per_row < 1) return ASSAY_REFUSED;
  if (a.count == 0) return ASSAY_DONE;
  return launch(d, name, Overlap::yes, head_norm_kernel<kNorm>, dim3((unsigned)blocks), kNormThreads, 0, a);
}

}  // namespace

int norm(AssayDevice& d, const AssayNorm& a) {
  if (a.rows == 0) return ASSAY_DONE;
  if (a.heads == 0) {
    if (a.rows > INT32_MAX || a.columns < 1) return ASSAY_REFUSED;
    return launch(d, "rms_norm", Overlap::yes, rms_norm_kernel, dim3((unsigned)a.rows), kNormThreads,
                  kNormThreads * sizeof(float), a.x, a.w, a.y, a.columns, a.eps);
  }
  const int64_t x_head = a.stride ? a.stride : a.head_dim;
  return norm_heads<HeadNorm::rms>(d, "head_norm", {a.x, a.w, nullptr, a.y, a.rows * a.heads, a.heads, a.heads * x_head, x_head,
                                                    a.head_dim, a.eps, 1.0f});
}

int l2_norm(AssayDevice& d, const AssayL2Norm& a) {
  return norm_heads<HeadNorm::l2>(d, "l2_norm", {a.x, nullptr, nullptr, a.y, a.rows * a.heads, a.heads, a.x_columns, a.head_dim,
                                                 a.head_dim, 0.0f, a.scale});
}

int gated_norm(AssayDevice& d, const AssayGatedNorm& a) {
  return norm_heads<HeadNorm::gated>(d, "gated_norm", {a.x, a.w, a.z, a.y, a.rows * a.heads, a.heads, a.heads * a.head_dim,
                                                       a.head_dim, a.head_dim, a.eps, 1.0f});
}

}  // namespace assay

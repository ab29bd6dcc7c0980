// What the kernels of float_linear.cu share: the matrices of one launch, and weights from bytes to floats.
#pragma once
#include "cuda/layout.cuh"

namespace assay {

/// Stands for "a quantised type that the kernel learns from the matrix": widen_8's uniform branch.
constexpr int32_t kAnyQuantised = ASSAY_TYPES;

/// Up to three matrices of one type (or all quantised) that share x. Their rows are numbered on: 0 .. total - 1.
struct FloatMatrices {
  PackedWeight w[3];
  const float* bias[3];  // each may be null
  float* y[3];
  int rows[3];
  int total, columns;
  const float* residual;  // one matrix only; may be null, may be y
};

struct FloatRow {
  int matrix, n;
};
/// Precondition: number < total.
__device__ __forceinline__ FloatRow row_of(const FloatMatrices& m, int number) {
  if (number < m.rows[0]) return {0, number};
  number -= m.rows[0];
  return number < m.rows[1] ? FloatRow{1, number} : FloatRow{2, number - m.rows[1]};
}

/// What is added behind a product, read before it is there.
struct Added {
  float bias, residual;
};
__device__ __forceinline__ Added added_to(const FloatMatrices& m, FloatRow row, int64_t token) {
  const float* bias = m.bias[row.matrix];
  return {bias != nullptr ? bias[row.n] : 0.0f,
          m.residual != nullptr ? m.residual[token * m.rows[row.matrix] + row.n] : 0.0f};
}
/// y = product, + bias, residual + that: each only where there is one, since even + 0 could change a bit.
__device__ __forceinline__ void write_product(const FloatMatrices& m, FloatRow row, int64_t token, Added added, float product) {
  if (m.bias[row.matrix] != nullptr) product = add_f32(product, added.bias);
  if (m.residual != nullptr) product = add_f32(added.residual, product);
  m.y[row.matrix][token * m.rows[row.matrix] + row.n] = product;
}

/// 16-byte words that eight elements of a float type take.
constexpr int float_words(int32_t type) { return type == ASSAY_F32 ? 2 : 1; }

template <int32_t kType>
__device__ __forceinline__ void widen_words(const uint4* words, float* out) {
  if constexpr (kType == ASSAY_F32) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      out[4 * i] = float_of(words[i].x);
      out[4 * i + 1] = float_of(words[i].y);
      out[4 * i + 2] = float_of(words[i].z);
      out[4 * i + 3] = float_of(words[i].w);
    }
  } else {
    const uint32_t pairs[4] = {words[0].x, words[0].y, words[0].z, words[0].w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      out[2 * i] = kType == ASSAY_F16 ? widen_f16(pairs[i] & 0xffffu) : widen_bf16(pairs[i]);
      out[2 * i + 1] = kType == ASSAY_F16 ? widen_f16(pairs[i] >> 16) : float_of(pairs[i] & 0xffff0000u);
    }
  }
}

/// Four floats of an activation row, zeros behind its end. `aligned`: columns are a multiple of 4 and so is the address.
__device__ __forceinline__ float4 load_x4(const float* x, int64_t k, int64_t columns, bool aligned) {
  if (aligned) return k < columns ? *reinterpret_cast<const float4*>(x + k) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  return make_float4(k < columns ? x[k] : 0.0f, k + 1 < columns ? x[k + 1] : 0.0f, k + 2 < columns ? x[k + 2] : 0.0f,
                     k + 3 < columns ? x[k + 3] : 0.0f);
}

/// The same into shared memory, asynchronously. Where !row_real, zeros; `x` must be a valid address then, too.
__device__ __forceinline__ void copy_x4(float4* place, const float* x, int k, int columns, bool row_real, bool aligned) {
  if (aligned) {
    const bool real = row_real && k < columns;
    copy_async_or_zero<16>(place, real ? x + k : x, real);
    return;
  }
#pragma unroll
  for (int e = 0; e < 4; e++) {
    const bool real = row_real && k + e < columns;
    copy_async_or_zero<4>(reinterpret_cast<float*>(place) + e, real ? x + k + e : x, real);
  }
}
/// Where element 4 i of a row lies in shared memory, in units of four floats: [chunk of 256][half of an eight][thread]. A warp
/// whose thread t reads the eight at 8 t of a chunk, one half after the other, meets no bank conflict.
__device__ __forceinline__ int place_of_x4(unsigned i) { return (int)((i / 64 * 2 + i % 2) * 32 + i % 64 / 2); }

/// acc[i] = fma(w[i], x[i], acc[i]): eight accumulators one step on.
__device__ __forceinline__ void step_eight(float* acc, const float* w, float4 low, float4 high) {
  acc[0] = fma_f32(w[0], low.x, acc[0]);
  acc[1] = fma_f32(w[1], low.y, acc[1]);
  acc[2] = fma_f32(w[2], low.z, acc[2]);
  acc[3] = fma_f32(w[3], low.w, acc[3]);
  acc[4] = fma_f32(w[4], high.x, acc[4]);
  acc[5] = fma_f32(w[5], high.y, acc[5]);
  acc[6] = fma_f32(w[6], high.z, acc[6]);
  acc[7] = fma_f32(w[7], high.w, acc[7]);
}

}  // namespace assay

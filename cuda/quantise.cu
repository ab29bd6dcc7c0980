// Rows of activations to integers in scratch, for quant_few.cu and quant_gemm.cu; quantise.cuh has rule and layout. An RMS norm
// (norm.cpp's order: float rule, then (x * r) * w) can come first, so that the normed row is never written.
// One block of 256 threads a row, four threads a group. Reads 4 bytes an element (8 with a norm, the second time from L1 or
// L2), writes 1 or 2 bytes an element and 8 a group, in words of 4 bytes that eight tokens of a chunk put together.
//
// PRECOND: columns a multiple of 32; x and norm aligned to 16 bytes; scratch of quantised_scratch_bytes().
#include <algorithm>
#include <cstdint>

#include "cuda/device.h"
#include "cuda/experts.cuh"
#include "cuda/quantise.cuh"

namespace assay {

constexpr int kQuantiseThreads = 256;

template <int kDigits>
__global__ void __launch_bounds__(kQuantiseThreads)
    quantise_rows(const float* x, const float* norm, float eps, int columns, QuantisedTokens out, PairsOfTokens pairs) {
  SHARED_BYTES(shared);
  const int64_t t = blockIdx.x;
  let_next_start();
  wait_for_previous();
  int64_t of = t;
  if (pairs.pairs) {
    of = pairs.pairs[t];
    if (of < 0) return;  // what lies there is anything
    of /= pairs.per_row;
  }
  const float* row = x + of * columns;
  float r = 1.0f;
  if (norm) r = block_reciprocal_rms(hold_row(row, columns), row, columns, eps, reinterpret_cast<float*>(shared));
  const int eights = out.blocks * kBlockColumns / 8;  // a multiple of 32: warps stay whole
  for (int u = (int)threadIdx.x; u < eights; u += kQuantiseThreads) {
    const int k = 8 * u, g = u / 4, b = g / kBlockGroups, j = g % kBlockGroups;
    float v[8] = {};
    if (k < columns) {
      const float4 low = reinterpret_cast<const float4*>(row + k)[0], high = reinterpret_cast<const float4*>(row + k)[1];
      v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
      if (norm) {
#pragma unroll
        for (int i = 0; i < 8; i++) v[i] = mul_f32(mul_f32(v[i], r), norm[k + i]);
      }
    }
    const QuantisedEight<kDigits> q = quantise_8<kDigits>(v);
    const int word = u % 4 * 2;
#pragma unroll
    for (int d = 0; d < kDigits; d++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        *reinterpret_cast<uint32_t*>(out.codes + code_place<kDigits>(out, t, b, j, d, word + i)) = q.words[d][i];
      }
    }
    if (u % 4 == 0) {
      const int64_t place = scale_place(out, t, b, j);
      out.scales[place] = q.scale;
      out.sums[place] = (float)q.sum;  // exact: below 2^24
    }
  }
}

static int64_t whole_chunks(int64_t rows, int64_t chunk) { return (rows + chunk - 1) / chunk * chunk; }

size_t quantised_scratch_bytes(const AssayLimits& limits) {
  const int64_t rows = whole_chunks(std::max<int64_t>(limits.rows, 1), kTileTokens);
  const int64_t by_expert = most_chunks(limits.rows * limits.chosen, limits.experts) * kChunkPairs;
  return size_t(std::max(rows, by_expert)) *
         size_t(quantised_row_bytes(std::max<int64_t>(limits.columns, 1), 2));
}

bool linear_on_tokens(const AssayLinear& a) {
  constexpr int64_t kMost = int64_t(1) << 30;
  if (a.count < 1 || a.count > 3 || a.rows < 1 || a.rows > kMost || a.gated || (a.residual && a.count != 1)) return false;
  if (a.activations != ASSAY_ACTIVATIONS_S16 && a.activations != ASSAY_ACTIVATIONS_S8) return false;
  if ((reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.norm)) % 16 != 0) return false;
  for (int i = 0; i < a.count; i++) {
    const AssayWeight& w = a.w[i];
    if (!type_quantised(w.type) || w.rows < 1 || w.rows > kMost || w.columns != a.w[0].columns || w.columns < 1 || w.columns > kMost ||
        w.columns % type_file_block_columns(w.type) != 0 || reinterpret_cast<uintptr_t>(w.data) % 256 != 0) {
      return false;
    }
  }
  return true;
}

void set_matrix(const AssayLinear& a, int which, MatrixOnTokens& g) {
  const AssayWeight& w = a.w[which];
  const PackedLayout l = packed_layout(w.type, w.rows, w.columns);
  g.weights = static_cast<const unsigned char*>(w.data);
  g.codes_row = l.codes_row, g.high_row = l.high_row, g.scales_row = l.scales_row, g.super_row = l.super_row;
  g.high = l.high, g.scales = l.scales, g.super = l.super;
  g.outputs = int32_t(w.rows), g.blocks = int32_t(l.blocks), g.quads = int32_t(l.quads), g.tokens = int32_t(a.rows);
  g.bias = a.bias[which], g.residual = a.residual, g.y = a.y[which];
}

int quantise_tokens(AssayDevice& d, const AssayLinear& a, int chunk, QuantisedTokens& out, PairsOfTokens pairs) {
  const int64_t columns = a.w[0].columns, rows = whole_chunks(a.rows, chunk);
  const int digits = a.activations == ASSAY_ACTIVATIONS_S16 ? 2 : 1;
  const size_t bytes = size_t(rows) * size_t(quantised_row_bytes(columns, digits));
  if (d.quantised.bytes < bytes) {
    return failed(d, ASSAY_ERROR, "linear: quantised rows need %zu bytes of scratch, %zu are reserved", bytes, d.quantised.bytes);
  }
  out.blocks = int32_t(quantised_blocks(columns));
  out.chunk = chunk;
  out.codes = reinterpret_cast<unsigned char*>(d.quantised.memory);
  out.scales = reinterpret_cast<float*>(out.codes + rows * out.blocks * kBlockColumns * digits);
  out.sums = out.scales + rows * out.blocks * kBlockGroups;
  const dim3 grid = dim3(unsigned(a.rows));
  const size_t shared = kFloatLanes * sizeof(float);
  const char* variant = a.norm ? "norm_quantise" : "quantise";
  if (digits == 2) {
    return launch(d, variant, Overlap::yes, quantise_rows<2>, grid, kQuantiseThreads, shared, a.x, a.norm, a.eps, int(columns), out,
                  pairs);
  }
  return launch(d, variant, Overlap::yes, quantise_rows<1>, grid, kQuantiseThreads, shared, a.x, a.norm, a.eps, int(columns), out,
                  pairs);
}

}  // namespace assay

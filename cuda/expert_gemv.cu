// A pair of a row and its expert at a time, quantised weights: decode. Order of sums: engine/NUMERICS.md, "Quantised weights".
//
// Thread = lane of the rule, as in quant_gemv.cu: eight neighbouring threads own an output row, or with two matrices the same row
// of both, which `gated` needs together. A block has 32 outputs of one pair. Which expert's rows they are is known behind
// wait_for_previous() only, so nothing is read early; what a thread needs of the first two quads of blocks (1024 columns each) is on
// its way, in registers, while the block quantises x into shared memory, and later quads a quad ahead.
// Bytes moved: each packed byte of the chosen experts once per pair; x once per block, from L2.
//
// PRECOND: columns a multiple of the type's blocks; x aligned to 16, weights to 256 bytes.
#include "cuda/device.h"
#include "cuda/experts.cuh"
#include "cuda/quant_group.cuh"
#include "cuda/quantise.cuh"

namespace assay {
namespace {

constexpr int kThreads = 256, kOutputs = kThreads / 8;

struct ExpertGemv {
  const unsigned char* data[2];
  int64_t codes_row, high_row, scales_row, super_row;
  int64_t high[2], scales[2], super[2];
  float* y[2];
  const float* x;
  const float* ids;
  int32_t outputs[2];
  int32_t columns, blocks, quads, per_row, gated;
};

/// What a thread has of a quad of a row.
template <int32_t kType>
struct QuadOfRow {
  static constexpr int kParts = type_code_parts(kType), kHighBytes = type_high_bytes(kType), kScaleBytes = type_scale_bytes(kType);
  uint4 codes[kQuadBlocks][kParts], super;
  uint2 upper[kQuadBlocks];
  uint32_t scales[kScaleBytes];  // of four blocks

  /// data: where the row's planes begin for this thread's lane.
  __device__ __forceinline__ void load(const unsigned char* row_codes, const unsigned char* row_high, const unsigned char* row_scales,
                                       const unsigned char* row_super, int quad, int j, int blocks) {
#pragma unroll
    for (int i = 0; i < kQuadBlocks; i++) {
      const int b = quad * kQuadBlocks + i;
      const bool real = b < blocks;
#pragma unroll
      for (int part = 0; part < kParts; part++) {
        codes[i][part] = real ? load_once(reinterpret_cast<const uint4*>(row_codes + ((int64_t)b * kParts + part) * 128 + j * 16))
                              : make_uint4(0, 0, 0, 0);
      }
      upper[i] = make_uint2(0, 0);
      if constexpr (kHighBytes == 4) {
        if (real) upper[i].x = *reinterpret_cast<const uint32_t*>(row_high + (b * kBlockGroups + j) * 4);
      } else if constexpr (kHighBytes == 8) {
        if (real) upper[i] = load_once(reinterpret_cast<const uint2*>(row_high + (b * kBlockGroups + j) * 8));
      }
    }
    const unsigned char* s = row_scales + (quad * kBlockGroups + j) * kQuadBlocks * kScaleBytes;
    if constexpr (kScaleBytes == 2) {
      const uint2 v = load_once(reinterpret_cast<const uint2*>(s));
      scales[0] = v.x, scales[1] = v.y;
    } else {
      const uint4 v = load_once(reinterpret_cast<const uint4*>(s));
      scales[0] = v.x, scales[1] = v.y, scales[2] = v.z, scales[3] = v.w;
    }
    super = make_uint4(0, 0, 0, 0);
    if constexpr (type_k_quant(kType)) super = load_once(reinterpret_cast<const uint4*>(row_super + quad * 16));
  }
  __device__ __forceinline__ uint32_t scale(int block) const {
    return kScaleBytes == 4 ? scales[block % kScaleBytes] : scales[block / 2] >> (block % 2 * 16);
  }
};

/// Offsets in shared memory: codes of x [block][digit][half][lane] 16, scales [group], sums [group].
__host__ __device__ constexpr int scales_offset(int quads, int digits) { return quads * kQuadColumns * digits; }
__host__ __device__ constexpr int shared_bytes(int quads, int digits) { return scales_offset(quads, digits) + quads * kQuadGroups * 8; }

/// Blocks: [32 outputs][pair].
template <int32_t kType, int kDigits, int kMatrices>
__global__ void __launch_bounds__(kThreads) expert_gemv(const ExpertGemv a) {
  SHARED_BYTES(shared);
  const int tid = (int)threadIdx.x, j = tid % 8, output = (int)blockIdx.x * kOutputs + tid / 8;
  let_next_start();
  wait_for_previous();
  const float id = a.ids[blockIdx.y];
  if (!(id >= 0.0f)) {
#pragma unroll
    for (int m = 0; m < kMatrices; m++) {
      if (j == 0 && output < a.outputs[m] && !(m == 1 && a.gated)) a.y[m][(int64_t)blockIdx.y * a.outputs[m] + output] = canonical_nan();
    }
    return;
  }
  const unsigned char *codes[kMatrices], *high[kMatrices], *scales[kMatrices], *super[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; m++) {
    // Rows beyond the end are the expert's last one again.
    const int64_t row = (int64_t)id * a.outputs[m] + (output < a.outputs[m] ? output : a.outputs[m] - 1);
    codes[m] = a.data[m] + row * a.codes_row;
    high[m] = a.data[m] + a.high[m] + row * a.high_row;
    scales[m] = a.data[m] + a.scales[m] + row * a.scales_row;
    super[m] = a.data[m] + a.super[m] + row * a.super_row;
  }
  QuadOfRow<kType> now[kMatrices], next[kMatrices];
#pragma unroll
  for (int m = 0; m < kMatrices; m++) now[m].load(codes[m], high[m], scales[m], super[m], 0, j, a.blocks);

  const float* x = a.x + (int64_t)((int)blockIdx.y / a.per_row) * a.columns;
  float* const x_scales = reinterpret_cast<float*>(shared + scales_offset(a.quads, kDigits));
  float* const x_sums = x_scales + a.quads * kQuadGroups;
  for (int u = tid; u < a.quads * (kQuadColumns / 8); u += kThreads) {  // a multiple of 32: warps stay whole
    const int k = 8 * u, g = u / 4, b = g / kBlockGroups, lane = g % kBlockGroups, part = u % 4;
    float v[8] = {};
    if (k < a.columns) {
      const float4 low = reinterpret_cast<const float4*>(x + k)[0], upper = reinterpret_cast<const float4*>(x + k)[1];
      v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w, v[4] = upper.x, v[5] = upper.y, v[6] = upper.z, v[7] = upper.w;
    }
    const QuantisedEight<kDigits> q = quantise_8<kDigits>(v);
#pragma unroll
    for (int d = 0; d < kDigits; d++) {
      *reinterpret_cast<uint2*>(shared + ((b * kDigits + d) * 2 + part / 2) * 128 + lane * 16 + part % 2 * 8) =
          make_uint2(q.words[d][0], q.words[d][1]);
    }
    if (part == 0) {
      x_scales[g] = q.scale;
      x_sums[g] = (float)q.sum;  // exact: below 2^24
    }
  }
  sync_block();

  float acc[kMatrices] = {};
  for (int quad = 0; quad < a.quads; quad++) {
    if (quad + 1 < a.quads) {
#pragma unroll
      for (int m = 0; m < kMatrices; m++) next[m].load(codes[m], high[m], scales[m], super[m], quad + 1, j, a.blocks);
    }
#pragma unroll
    for (int i = 0; i < kQuadBlocks; i++) {
      const int b = quad * kQuadBlocks + i;
      uint4 of_x[kDigits][2];
#pragma unroll
      for (int d = 0; d < kDigits; d++) {
#pragma unroll
        for (int h = 0; h < 2; h++) of_x[d][h] = *reinterpret_cast<const uint4*>(shared + ((b * kDigits + d) * 2 + h) * 128 + j * 16);
      }
      const float scale = x_scales[b * kBlockGroups + j], sum = type_has_minimum(kType) ? x_sums[b * kBlockGroups + j] : 0.0f;
#pragma unroll
      for (int m = 0; m < kMatrices; m++) {
        acc[m] = add_group<kType, kDigits>(acc[m], now[m].codes[i], now[m].upper[i],
                                           widened_scales<kType>(now[m].scale(i), word_of(now[m].super, i)), of_x, scale, sum);
      }
    }
#pragma unroll
    for (int m = 0; m < kMatrices; m++) now[m] = next[m];
  }
#pragma unroll
  for (int m = 0; m < kMatrices; m++) {
#pragma unroll
    for (int mask = 1; mask <= 4; mask *= 2) acc[m] = add_f32(acc[m], shuffle_xor(acc[m], mask));
  }
  if (j != 0) return;
  if (kMatrices == 2 && a.gated) {
    if (output < a.outputs[0]) a.y[0][(int64_t)blockIdx.y * a.outputs[0] + output] = mul_f32(silu_f32(acc[0]), acc[kMatrices - 1]);
    return;
  }
#pragma unroll
  for (int m = 0; m < kMatrices; m++) {
    if (output < a.outputs[m]) a.y[m][(int64_t)blockIdx.y * a.outputs[m] + output] = acc[m];
  }
}

}  // namespace

int gemv_by_expert(AssayDevice& d, const AssayExpertLinear& a) {
  const int64_t columns = a.w[0].columns, pairs = a.rows * a.chosen;
  const PackedLayout l = packed_layout(a.w[0].type, 1, columns);
  const int digits = a.activations == ASSAY_ACTIVATIONS_S16 ? 2 : 1;
  if (pairs > 65535 || (reinterpret_cast<uintptr_t>(a.x) & 15) != 0 || columns > 1 << 20 ||
      shared_bytes(int(l.quads), digits) > int64_t(d.shared_limit)) {
    return ASSAY_REFUSED;
  }
  ExpertGemv g = {};
  g.codes_row = l.codes_row, g.high_row = l.high_row, g.scales_row = l.scales_row, g.super_row = l.super_row;
  g.x = a.x, g.ids = a.ids;
  g.columns = int32_t(columns), g.blocks = int32_t(l.blocks), g.quads = int32_t(l.quads);
  g.per_row = int32_t(a.by_rank ? 1 : a.chosen), g.gated = a.gated ? 1 : 0;
  int32_t most = 0;
  for (int i = 0; i < a.count; i++) {
    const AssayWeight& w = a.w[i];
    if (reinterpret_cast<uintptr_t>(w.data) % 256 != 0) return ASSAY_REFUSED;
    const PackedLayout planes = packed_layout(w.type, w.rows, w.columns);
    g.data[i] = static_cast<const unsigned char*>(w.data);
    g.high[i] = planes.high, g.scales[i] = planes.scales, g.super[i] = planes.super;
    g.y[i] = a.y[i];
    g.outputs[i] = int32_t(w.rows / a.experts);
    most = most > g.outputs[i] ? most : g.outputs[i];
  }
  if (a.rows == 0) return ASSAY_DONE;
  const dim3 grid = dim3(unsigned((most + kOutputs - 1) / kOutputs), unsigned(pairs));
  int result = ASSAY_REFUSED;
  with_type_and_digits(a.w[0].type, a.activations, [&]<int32_t kType, int kDigits>() {
    const std::string name = variant_name(a.gated ? "expert_gemv_gated" : "expert_gemv", kType, kDigits);
    result = launch(d, name.c_str(), Overlap::yes, a.count == 2 ? expert_gemv<kType, kDigits, 2> : expert_gemv<kType, kDigits, 1>, grid,
                    kThreads, size_t(shared_bytes(g.quads, kDigits)), g);
  });
  return result;
}

}  // namespace assay

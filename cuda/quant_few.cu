// A few token rows times quantised weights on integer tensor cores: small batches of decode. Order of sums: engine/NUMERICS.md,
// "Quantised weights".
//
// Warp = lane of the rule: a block of eight warps makes 32 outputs x 8 tokens, warp j sums the groups j, 8 + j, 16 + j, ... by
// one mma.m16n8k32 per digit and 16 outputs (Q6_K: two of k16), and the eight sums of an output meet in shared memory. Blocks
// walk tiles of 32 outputs blockIdx.x + grid * round; more than 8 tokens are chunks of 8 in the grid's y.
//
// Weights stream through a ring of stages of a quad of blocks, 1024 columns, copied asynchronously by all threads in the order
// in which they lie (512 bytes of a row and more at once), with 16 bytes between rows against bank conflicts; the ring is filled
// before wait_for_previous(). Activations come from L1 or L2 into registers, two blocks ahead.
// Bytes moved: each packed byte once per chunk, the codes of a chunk once per tile.
//
// By expert (experts.cuh): a chunk's pairs have an expert in common, whose rows of the matrix they are multiplied with, and each
// product goes where its pair's is. Which expert that is is known behind wait_for_previous() only.
//
// PRECOND: quantise_tokens() wrote chunks of 8. Any rows, columns a multiple of 32, any outputs.
#include <algorithm>

#include "cuda/device.h"
#include "cuda/experts.cuh"
#include "cuda/quant_group.cuh"
#include "cuda/quantise.cuh"

namespace assay {

constexpr int kFewThreads = 256, kFewRows = 32;

struct FewArgs : MatrixOnTokens {
  int32_t tiles;
  ExpertChunks chunks;  // by expert; `outputs` are one expert's then
};

/// Bytes of a stage: per row, in planes of their own, codes [block][part][lane] 16, high [block][lane], scales [lane][block],
/// super [block] 4; each row of a plane is 16 bytes longer than its data, so that eight rows lie in different banks.
template <int32_t kType>
struct FewStage {
  static constexpr int kParts = type_code_parts(kType), kHighBytes = type_high_bytes(kType), kScaleBytes = type_scale_bytes(kType);
  static constexpr int kCodesData = kQuadGroups * kParts * 16, kHighData = kQuadGroups * kHighBytes;
  static constexpr int kScalesData = kQuadGroups * kScaleBytes, kSuperData = type_k_quant(kType) ? 16 : 0;
  static constexpr int kCodesRow = kCodesData + 16, kHighRow = kHighData + 16, kScalesRow = kScalesData + 16;
  static constexpr int kHigh = kFewRows * kCodesRow, kScales = kHigh + (kHighBytes ? kFewRows * kHighRow : 0);
  static constexpr int kSuper = kScales + kFewRows * kScalesRow, kBytes = kSuper + kFewRows * kSuperData;
  static constexpr int kSums = kBlockGroups * kFewRows * kFewTokens * 4;  // the lanes' sums of a tile
  static constexpr int kHalf = 112 << 10;  // two blocks per multiprocessor
  static constexpr int kFit = (kHalf - kSums) / kBytes, kStages = kFit < 4 ? kFit : 4;
  static constexpr int kShared = kStages * kBytes + kSums;
};

/// Activations of one block for one lane, as a thread needs them.
template <int kDigits>
struct TokenFragment {
  uint2 b[kDigits];
  float2 scale, sum;
};

/// Copies kRowBytes of each of 32 rows; `real` bytes of them exist, the rest becomes zeros.
template <int kRowBytes, int kStride>
__device__ __forceinline__ void copy_rows_of_plane(unsigned char* to, const unsigned char* plane, int64_t row_stride, int64_t first_row,
                                                   int64_t last_row, int64_t offset, int real) {
  constexpr int kPieces = kRowBytes / 16;
  if constexpr (kRowBytes > 0) {
#pragma unroll
    for (int i = 0; i < kFewRows * kPieces; i += kFewThreads) {
      const int piece = i + (int)threadIdx.x;
      if (kFewRows * kPieces % kFewThreads != 0 && piece >= kFewRows * kPieces) break;
      const int in_tile = piece / kPieces, at = piece % kPieces * 16;
      const int64_t row = first_row + in_tile < last_row ? first_row + in_tile : last_row;
      const unsigned char* from = plane + row * row_stride + offset;
      copy_async_or_zero<16>(to + in_tile * kStride + at, at < real ? from + at : from, at < real);
    }
  }
}

template <int32_t kType, int kDigits, bool kByExpert>
__global__ void __launch_bounds__(kFewThreads, 2) few(const FewArgs a) {
  using Stage = FewStage<kType>;
  constexpr int kStages = Stage::kStages;
  SHARED_BYTES(shared);
  const int tid = (int)threadIdx.x, lane = lane_of_warp(), j = tid / 32, r = lane / 4, q = lane % 4;
  let_next_start();
  int64_t first_row = 0;
  const int32_t* pairs = nullptr;
  if constexpr (kByExpert) {
    wait_for_previous();
    const int32_t expert = a.chunks.expert[blockIdx.y];
    if (expert == kNoChunk) return;
    pairs = a.chunks.pairs + (int64_t)blockIdx.y * kChunkPairs;
    if (expert == kNoExpert) {
      for (int i = 0; i < kChunkPairs; i++) {
        for (int64_t n = (int64_t)blockIdx.x * kFewThreads + tid; n < a.outputs && pairs[i] >= 0; n += (int64_t)gridDim.x * kFewThreads) {
          a.y[(int64_t)pairs[i] * a.outputs + n] = canonical_nan();
        }
      }
      return;
    }
    first_row = (int64_t)expert * a.outputs;
  }

  int fill_tile = (int)blockIdx.x, fill_quad = 0, fill_stage = 0;
  const auto fill = [&] {
    if (fill_tile < a.tiles) {
      unsigned char* stage = shared + fill_stage * Stage::kBytes;
      const int64_t row = first_row + (int64_t)fill_tile * kFewRows, last = first_row + a.outputs - 1;
      const int blocks = a.blocks - fill_quad * kQuadBlocks;  // that exist, from this quad on
      copy_rows_of_plane<Stage::kCodesData, Stage::kCodesRow>(stage, a.weights, a.codes_row, row, last,
                                                              (int64_t)fill_quad * Stage::kCodesData, blocks * (Stage::kCodesData / 4));
      copy_rows_of_plane<Stage::kHighData, Stage::kHighRow>(stage + Stage::kHigh, a.weights + a.high, a.high_row, row, last,
                                                            (int64_t)fill_quad * Stage::kHighData, blocks * (Stage::kHighData / 4));
      copy_rows_of_plane<Stage::kScalesData, Stage::kScalesRow>(stage + Stage::kScales, a.weights + a.scales, a.scales_row, row, last,
                                                                (int64_t)fill_quad * Stage::kScalesData, Stage::kScalesData);
      copy_rows_of_plane<Stage::kSuperData, Stage::kSuperData>(stage + Stage::kSuper, a.weights + a.super, a.super_row, row, last,
                                                               (int64_t)fill_quad * Stage::kSuperData, Stage::kSuperData);
      if (++fill_quad == a.quads) fill_quad = 0, fill_tile += (int)gridDim.x;
    }
    fill_stage = fill_stage + 1 == kStages ? 0 : fill_stage + 1;
    copy_commit();
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; i++) fill();
  if constexpr (!kByExpert) wait_for_previous();

  // Where this thread's activations of (block 0, lane j) lie; a block on is kBlockGroups groups on.
  const int64_t group = (int64_t)blockIdx.y * a.x.blocks * kBlockGroups + j;
  const uint2* codes = reinterpret_cast<const uint2*>(a.x.codes) + group * kDigits * 32 + lane;
  const float2* scales = reinterpret_cast<const float2*>(a.x.scales + group * kFewTokens) + q;
  const float2* sums = reinterpret_cast<const float2*>(a.x.sums + group * kFewTokens) + q;
  const auto fetch = [&](int block, TokenFragment<kDigits>* x) {  // blocks block and block + 1
#pragma unroll
    for (int u = 0; u < 2; u++, block++) {
#pragma unroll
      for (int d = 0; d < kDigits; d++) x[u].b[d] = make_uint2(0, 0);
      x[u].scale = x[u].sum = make_float2(0.0f, 0.0f);
      if (block >= a.x.blocks) continue;
#pragma unroll
      for (int d = 0; d < kDigits; d++) x[u].b[d] = codes[(int64_t)(block * kBlockGroups * kDigits + d) * 32];
      x[u].scale = scales[(int64_t)block * kBlockGroups * kFewTokens / 2];
      if constexpr (type_has_minimum(kType)) x[u].sum = sums[(int64_t)block * kBlockGroups * kFewTokens / 2];
    }
  };
  TokenFragment<kDigits> x[2], next[2];
  fetch(0, next);
  float* lane_sums = reinterpret_cast<float*>(shared + kStages * Stage::kBytes);  // [lane][row][token]
  int stage_number = 0;
  for (int tile = (int)blockIdx.x; tile < a.tiles; tile += (int)gridDim.x) {
    float acc[2][4] = {};  // [16 rows]
    for (int quad = 0; quad < a.quads; quad++) {
      copy_wait<kStages - 2>();
      sync_block();  // everybody's copies are there, and nobody reads the stage before this one any more
      fill();
      const unsigned char* stage = shared + stage_number * Stage::kBytes;
      stage_number = stage_number + 1 == kStages ? 0 : stage_number + 1;
#pragma unroll
      for (int pair = 0; pair < 2; pair++) {  // of blocks
        x[0] = next[0], x[1] = next[1];
        const int block = quad * kQuadBlocks + 2 * pair + 2;
        fetch(block < a.quads * kQuadBlocks ? block : 0, next);
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const unsigned char* s[2];  // scales of row r, row r + 8
          uint2 super[2];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const int row = 16 * half + 8 * i + r;
            s[i] = stage + Stage::kScales + row * Stage::kScalesRow + (j * kQuadBlocks + 2 * pair) * Stage::kScaleBytes;
            super[i] = make_uint2(0, 0);
            if constexpr (type_k_quant(kType)) super[i] = *reinterpret_cast<const uint2*>(stage + Stage::kSuper + row * 16 + pair * 8);
          }
#pragma unroll
          for (int u = 0; u < 2; u++) {
            WeightFragment<kType, kDigits> w;
#pragma unroll
            for (int i = 0; i < 2; i++) {
              const int row = 16 * half + 8 * i + r, in_quad = 2 * pair + u;
              const unsigned char* at = stage + row * Stage::kCodesRow + (in_quad * Stage::kParts * kBlockGroups + j) * 16 + q * 4;
              uint32_t second_part = 0, scale;
              if constexpr (Stage::kParts == 2) second_part = *reinterpret_cast<const uint32_t*>(at + 128);
              uint2 upper = make_uint2(0, 0);
              const unsigned char* high = stage + Stage::kHigh + row * Stage::kHighRow + (in_quad * kBlockGroups + j) * Stage::kHighBytes;
              if constexpr (Stage::kHighBytes == 4) upper.x = *reinterpret_cast<const uint32_t*>(high);
              if constexpr (Stage::kHighBytes == 8) upper = *reinterpret_cast<const uint2*>(high);
              if constexpr (Stage::kScaleBytes == 4) {
                scale = reinterpret_cast<const uint32_t*>(s[i])[u];
              } else {
                scale = reinterpret_cast<const uint16_t*>(s[i])[u];
              }
              w.set(i, *reinterpret_cast<const uint32_t*>(at), second_part, upper, q, scale, u ? super[i].y : super[i].x);
            }
            const float of_two[2] = {x[u].scale.x, x[u].scale.y}, sum_of_two[2] = {x[u].sum.x, x[u].sum.y};
            typename WeightFragment<kType, kDigits>::Dots dots;
            w.multiply(dots, x[u].b);
            w.add(acc[half], dots, of_two, sum_of_two);
          }
        }
      }
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        float2* to = reinterpret_cast<float2*>(lane_sums + (j * kFewRows + 16 * half + 8 * i + r) * kFewTokens + 2 * q);
        *to = make_float2(acc[half][2 * i], acc[half][2 * i + 1]);
      }
    }
    sync_block();  // the one of the next stage keeps the next tile's sums away from who still reads these
    const int row = tid % kFewRows, in_chunk = tid / kFewRows, output = tile * kFewRows + row;
    const int token = kByExpert ? pairs[in_chunk] : (int)blockIdx.y * kFewTokens + in_chunk;
    if (output < a.outputs && token >= 0 && token < a.tokens) {
      float v[8];
#pragma unroll
      for (int l = 0; l < 8; l++) v[l] = lane_sums[(l * kFewRows + row) * kFewTokens + in_chunk];
#pragma unroll
      for (int step = 1; step < 8; step *= 2) {
#pragma unroll
        for (int l = 0; l < 8; l += 2 * step) v[l] = add_f32(v[l], v[l + step]);
      }
      const int64_t at = (int64_t)token * a.outputs + output;
      v[0] = add_f32(v[0], a.bias ? a.bias[output] : 0.0f);  // a sum is never -0: adding +0 changes nothing
      a.y[at] = a.residual ? add_f32(a.residual[at], v[0]) : v[0];
    }
  }
}

int quant_few(AssayDevice& d, const AssayLinear& a) {
  const int64_t chunks = (a.rows + kFewTokens - 1) / kFewTokens;
  if (!linear_on_tokens(a) || chunks > 65535) return ASSAY_REFUSED;
  bool fits = true;
  for (int i = 0; i < a.count; i++) {
    with_type_and_digits(a.w[i].type, a.activations,
                         [&]<int32_t kType, int>() { fits = fits && size_t(FewStage<kType>::kShared) <= d.shared_limit; });
  }
  if (!fits) return ASSAY_REFUSED;
  FewArgs g = {};
  int result = quantise_tokens(d, a, kFewTokens, g.x);
  for (int i = 0; i < a.count && result == ASSAY_DONE; i++) {
    const AssayWeight& w = a.w[i];
    set_matrix(a, i, g);
    g.tiles = int32_t((w.rows + kFewRows - 1) / kFewRows);
    const dim3 grid = dim3(unsigned(std::min<int64_t>(g.tiles, 2 * d.processors)), unsigned(chunks));
    with_type_and_digits(w.type, a.activations, [&]<int32_t kType, int kDigits>() {
      result = launch(d, variant_name("few", kType, kDigits).c_str(), Overlap::yes, few<kType, kDigits, false>, grid, kFewThreads,
                      size_t(FewStage<kType>::kShared), g);
    });
  }
  return result;
}

int few_by_expert(AssayDevice& d, const AssayExpertLinear& a) {
  const int64_t chunks = most_chunks(a.rows * a.chosen, a.experts);
  AssayLinear one = {};  // what each matrix is to a row
  one.activations = a.activations;
  one.count = a.count;
  one.x = a.x;
  one.rows = std::max<int64_t>(a.rows * a.chosen, 1);
  bool fits = chunks <= 65535 && !a.gated;
  for (int i = 0; i < a.count; i++) {
    one.w[i] = a.w[i];
    with_type_and_digits(a.w[i].type, a.activations,
                         [&]<int32_t kType, int>() { fits = fits && size_t(FewStage<kType>::kShared) <= d.shared_limit; });
  }
  if (!fits || !linear_on_tokens(one)) return ASSAY_REFUSED;
  if (a.rows == 0) return ASSAY_DONE;
  FewArgs g = {};
  int result = sort_by_expert(d, a, g.chunks);
  const PairsOfTokens pairs = {g.chunks.pairs, int32_t(a.by_rank ? 1 : a.chosen)};
  one.rows = chunks * kChunkPairs;
  if (result == ASSAY_DONE) result = quantise_tokens(d, one, kFewTokens, g.x, pairs);
  for (int i = 0; i < a.count && result == ASSAY_DONE; i++) {
    const AssayWeight& w = a.w[i];
    set_matrix(one, i, g);
    g.outputs = int32_t(w.rows / a.experts);
    g.tokens = int32_t(a.rows * a.chosen);
    g.y = a.y[i];
    g.tiles = int32_t((g.outputs + kFewRows - 1) / kFewRows);
    const dim3 grid = dim3(unsigned(g.tiles), unsigned(chunks));
    with_type_and_digits(w.type, a.activations, [&]<int32_t kType, int kDigits>() {
      result = launch(d, variant_name("experts", kType, kDigits).c_str(), Overlap::yes, few<kType, kDigits, true>, grid, kFewThreads,
                      size_t(FewStage<kType>::kShared), g);
    });
  }
  return result;
}

}  // namespace assay

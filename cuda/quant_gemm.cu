// Many token rows times quantised weights on integer tensor cores: prefill. Order of sums: engine/NUMERICS.md, "Quantised
// weights".
//
// A block makes 128 outputs x 128 tokens with eight warps, each 32 outputs x 64 tokens. One mma.m16n8k32 (Q6_K: two of k16) per
// digit is the integer dot of a group for 16 outputs and 8 tokens; its results go into float accumulators by the rule at once
// (quant_group.cuh). The eight lanes of the rule are visited one after the other, all groups j, 8 + j, 16 + j, ... of a lane, so
// that one accumulator per output is enough; a finished lane is folded like a binary counter counts: even lanes wait in
// registers, pairs and fours in shared memory, private to the thread, until their neighbours are there.
//
// Step: two pairs of groups of a lane (blocks b .. b + 3; one pair where two would not fit), copied asynchronously, kStages in
// flight. Bytes per group and block: weights 128 * 16 (a piece of 16 bytes per row: half a sector of L2, the price of a layout
// with which one row streams best), activations 128 * 32 a digit, from L2. Weights come from device memory once, in the best
// case: blocks that share rows are neighbours in the grid.
//
// PRECOND: quantise_tokens() wrote chunks of 128. Any rows, columns a multiple of 32, any outputs.
#include <algorithm>

#include "cuda/device.h"
#include "cuda/quant_group.cuh"
#include "cuda/quantise.cuh"

namespace assay {

constexpr int kGemmThreads = 256, kTileRows = 128, kPairBlocks = 2;
/// Of one of the two partial sums per output that wait in shared memory.
constexpr int kParkBytes = kTileRows * kTileTokens * 4, kGemmShared = 227 << 10;

using GemmArgs = MatrixOnTokens;

/// Bytes of a stage of kPairs pairs of blocks: codes [block][part][row] 16, high [block][row], scales [row][block], super
/// [row][block] 4, codes of x [block][digit][pair of eights][thread] 16, scales and sums of x [block][token] in the order of
/// quantise.cuh.
template <int32_t kType, int kDigits, int kPairs>
struct GemmStageOf {
  static constexpr int kBlocks = kPairs * kPairBlocks;
  static constexpr int kParts = type_code_parts(kType), kHighBytes = type_high_bytes(kType);
  static constexpr int kScaleBytes = kBlocks * type_scale_bytes(kType), kSuperBytes = type_k_quant(kType) ? kBlocks * 4 : 0;
  static constexpr int kHigh = kBlocks * kParts * kTileRows * 16, kScales = kHigh + kBlocks * kTileRows * kHighBytes;
  static constexpr int kSuper = kScales + kTileRows * kScaleBytes, kX = kSuper + kTileRows * kSuperBytes;
  static constexpr int kXBlock = kDigits * kTileTokens * 32, kXScales = kX + kBlocks * kXBlock;
  static constexpr int kXSums = kXScales + kBlocks * kTileTokens * 4;
  static constexpr int kBytes = kXSums + (type_has_minimum(kType) ? kBlocks * kTileTokens * 4 : 0);
  static constexpr int kFit = (kGemmShared - 2 * kParkBytes) / kBytes, kStages = kFit < 4 ? kFit : 4;
  static constexpr int kShared = kStages * kBytes + 2 * kParkBytes;
};
template <int32_t kType, int kDigits>
constexpr int kStepPairs = GemmStageOf<kType, kDigits, 2>::kFit >= 2 ? 2 : 1;
template <int32_t kType, int kDigits>
using GemmStage = GemmStageOf<kType, kDigits, kStepPairs<kType, kDigits>>;

/// What a thread copies, and how far it has come. Of the weights: row tid mod 128, block tid / 128 of each pair, and scales
/// (threads 0-127) or super (the others) of the row. Of x: pieces of its codes, and a piece of its scales or sums.
/// Beside the last block of an odd number lies padding: what is read as its codes are those of the next row or plane, which
/// scales of zero make nothing of, and behind every plane that is read so there are enough bytes of another.
///
/// A copy reads its address registers late, and who overwrites one waits for it: with addresses made for every copy that was a
/// sixth of the kernel's time. So addresses run: each is moved on just before its next copy, a step after the last, and what
/// differs between the copies of a step are immediates.
template <int32_t kType, int kDigits>
struct GemmFiller {
  using Stage = GemmStage<kType, kDigits>;
  static constexpr int kPairs = kStepPairs<kType, kDigits>, kCodesBlock = Stage::kParts * 128;
  static constexpr int kHighBlock = kBlockGroups * Stage::kHighBytes, kOneScale = type_scale_bytes(kType);
  static constexpr int kCodesStep = Stage::kBlocks * kCodesBlock, kHighStep = Stage::kBlocks * kHighBlock;
  const unsigned char *codes, *high, *small, *x;      // small: scales or super
  const float* x_small;                               // scales or sums
  int to_codes, to_high, to_small, to_x, to_x_small;  // in shared memory
  int pairs, steps;                                   // of a lane
  int weights_step, x_step, x_before;                 // step copied last, and its pairs of x
  // How far `small` moves: to an even step and, where two steps share a quad, an odd one; to the next lane.
  int small_even, small_odd, small_lane;

  static constexpr int kLastStage = (Stage::kStages - 1) * Stage::kBytes;

  /// So that the moves before the first copies lead to the first bytes.
  __device__ __forceinline__ void begin(const GemmArgs& a) {
    const int tid = (int)threadIdx.x, in_pair = tid / kTileRows, in_tile = tid % kTileRows;
    const int64_t first = (int64_t)blockIdx.y * kTileRows + in_tile, row = first < a.outputs ? first : a.outputs - 1;
    pairs = a.x.blocks / kPairBlocks;
    steps = (pairs + kPairs - 1) / kPairs;
    weights_step = x_step = -1, x_before = 0;
    codes = a.weights + row * a.codes_row + in_pair * kCodesBlock - kCodesStep;
    high = a.weights + a.high + row * a.high_row + in_pair * kHighBlock - kHighStep;
    if (in_pair == 0) {
      small_odd = kPairs == 1 ? 2 * kOneScale : 0;
      small_even = kQuadGroups * kOneScale - small_odd;
      small_lane = kQuadBlocks * kOneScale;
      small_lane -= kPairs == 2 ? (steps - 1) * small_even : (steps - 1) / 2 * (small_even + small_odd) + (steps - 1) % 2 * small_odd;
      small = a.weights + a.scales + row * a.scales_row - small_even;
      to_small = Stage::kScales + in_tile * Stage::kScaleBytes + kLastStage;
    } else {
      small_even = small_odd = Stage::kBlocks * 4;
      small_lane = -(steps - 1) * small_even;
      small = a.weights + a.super + row * a.super_row - small_even;
      to_small = Stage::kSuper + in_tile * Stage::kSuperBytes + kLastStage;
    }
    const int in_x = tid / 32 * (1024 * kDigits) + tid % 32 * 16;  // of a pair: each warp a part without gaps
    const int64_t groups = (int64_t)blockIdx.x * a.x.blocks * kBlockGroups * kTileTokens;
    x = a.x.codes + groups * kDigits * 32 + in_x;
    x_small = (in_pair == 0 ? a.x.scales : a.x.sums) + groups + in_tile * 4;
    to_codes = (in_pair * Stage::kParts * kTileRows + in_tile) * 16 + kLastStage;
    to_high = Stage::kHigh + tid * Stage::kHighBytes + kLastStage;
    to_x = Stage::kX + in_x + kLastStage;
    to_x_small = (in_pair == 0 ? Stage::kXScales : Stage::kXSums) + in_tile * 16 + kLastStage;
  }
  /// Moves on to the next step, to be put into stage `number`.
  __device__ __forceinline__ void next_weights(int number) {
    const int to = number == 0 ? -kLastStage : Stage::kBytes;
    to_codes += to, to_small += to;
    const bool next_lane = ++weights_step == steps;
    if (next_lane) weights_step = 0;
    codes += next_lane ? 16 - (steps - 1) * kCodesStep : kCodesStep;
    small += next_lane ? small_lane : kPairs == 1 && weights_step % 2 ? small_odd : small_even;
    if constexpr (Stage::kHighBytes > 0) {
      to_high += to;
      high += next_lane ? Stage::kHighBytes - (steps - 1) * kHighStep : kHighStep;
    }
  }
  __device__ __forceinline__ void next_x(int number) {
    const int to = number == 0 ? -kLastStage : Stage::kBytes;
    to_x += to, to_x_small += to;
    if (++x_step == steps) x_step = 0;
    x += x_before * kPairBlocks * Stage::kXBlock;  // blocks and lanes follow each other
    x_small += x_before * kPairBlocks * kTileTokens;
    x_before = pairs - x_step * kPairs < kPairs ? pairs - x_step * kPairs : kPairs;
  }
  /// Pair 0 brings scales and super of all.
  template <int kPair>
  __device__ __forceinline__ void copy_weights(unsigned char* shared) {
    if constexpr (kPair == 0) {
      if ((int)threadIdx.x < kTileRows) {
        copy_async<Stage::kScaleBytes>(shared + to_small, small);
      } else if constexpr (type_k_quant(kType)) {
        copy_async<Stage::kSuperBytes>(shared + to_small, small);
      }
    } else if (weights_step * kPairs + kPair >= pairs) {
      return;  // no such pair: nobody reads it
    }
#pragma unroll
    for (int part = 0; part < Stage::kParts; part++) {
      copy_async<16>(shared + to_codes + (kPair * kPairBlocks * Stage::kParts + part) * kTileRows * 16,
                     codes + (kPair * kPairBlocks * kCodesBlock + part * 128));
    }
    if constexpr (Stage::kHighBytes > 0) {
      copy_async<Stage::kHighBytes>(shared + to_high + kPair * kPairBlocks * kTileRows * Stage::kHighBytes,
                                    high + kPair * kPairBlocks * kHighBlock);
    }
  }
  template <int kPair>
  __device__ __forceinline__ void copy_x(unsigned char* shared) {
    if (kPair > 0 && kPair >= x_before) return;
#pragma unroll
    for (int i = 0; i < 2 * kDigits; i++) {
      copy_async<16>(shared + to_x + kPair * kPairBlocks * Stage::kXBlock + i * 512, x + kPair * kPairBlocks * Stage::kXBlock + i * 512);
    }
    if constexpr (kPair == 0) {
      const int tid = (int)threadIdx.x;
      if (tid % kTileRows < x_before * kPairBlocks * kTileTokens / 4 && (tid < kTileRows || type_has_minimum(kType))) {
        copy_async<16>(shared + to_x_small, x_small);
      }
    }
  }
};

/// Rows first_row .. first_row + 15 of one block of a stage.
template <int32_t kType, int kDigits>
__device__ __forceinline__ void load_fragment(WeightFragment<kType, kDigits>& w, const unsigned char* stage, int block, int first_row) {
  using Stage = GemmStage<kType, kDigits>;
  const int r = lane_of_warp() / 4, q = lane_of_warp() % 4;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = first_row + 8 * i + r;
    const unsigned char* at = stage + (block * Stage::kParts * kTileRows + row) * 16 + q * 4;
    const uint32_t codes = *reinterpret_cast<const uint32_t*>(at);
    uint32_t second_part = 0, scale, super = 0;
    if constexpr (Stage::kParts == 2) second_part = *reinterpret_cast<const uint32_t*>(at + kTileRows * 16);
    uint2 upper = make_uint2(0, 0);
    const unsigned char* high = stage + Stage::kHigh + (block * kTileRows + row) * Stage::kHighBytes;
    if constexpr (Stage::kHighBytes == 4) upper.x = *reinterpret_cast<const uint32_t*>(high);
    if constexpr (Stage::kHighBytes == 8) upper = *reinterpret_cast<const uint2*>(high);
    const unsigned char* s = stage + Stage::kScales + row * Stage::kScaleBytes + block * type_scale_bytes(kType);
    if constexpr (type_scale_bytes(kType) == 4) {
      scale = *reinterpret_cast<const uint32_t*>(s);
    } else {
      scale = *reinterpret_cast<const uint16_t*>(s);
    }
    if constexpr (type_k_quant(kType)) super = *reinterpret_cast<const uint32_t*>(stage + Stage::kSuper + row * Stage::kSuperBytes + block * 4);
    w.set(i, codes, second_part, upper, q, scale, super);
  }
}

/// The thread's 64 sums that wait in shared memory come first.
__device__ __forceinline__ void add_parked(float* acc, const float4* park) {
#pragma unroll
  for (int i = 0; i < 64; i += 4) {
    const float4 p = park[i / 4 * kGemmThreads];
    acc[i] = add_f32(p.x, acc[i]);
    acc[i + 1] = add_f32(p.y, acc[i + 1]);
    acc[i + 2] = add_f32(p.z, acc[i + 2]);
    acc[i + 3] = add_f32(p.w, acc[i + 3]);
  }
}

template <int32_t kType, int kDigits>
__global__ void __launch_bounds__(kGemmThreads, 1) gemm(const GemmArgs a) {
  using Stage = GemmStage<kType, kDigits>;
  constexpr int kStages = Stage::kStages, kPairs = kStepPairs<kType, kDigits>;
  SHARED_BYTES(shared);
  const int tid = (int)threadIdx.x, lane = lane_of_warp(), q = lane % 4, warp = tid / 32;
  const int first_row = warp % 4 * 32, first_pair = warp / 4 * 4;  // of the warp, in the block's tile
  float4* park = reinterpret_cast<float4*>(shared + kStages * Stage::kBytes) + tid;
  let_next_start();

  GemmFiller<kType, kDigits> filler;
  filler.begin(a);
  const int all_steps = kBlockGroups * filler.steps;
#pragma unroll
  for (int i = 0; i < kStages - 1; i++) {
    if (i < all_steps) {
      filler.next_weights(i);
      filler.template copy_weights<0>(shared);
      if constexpr (kPairs == 2) filler.template copy_weights<1>(shared);
    }
  }
  wait_for_previous();
#pragma unroll
  for (int i = 0; i < kStages - 1; i++) {
    if (i < all_steps) {
      filler.next_x(i);
      filler.template copy_x<0>(shared);
      if constexpr (kPairs == 2) filler.template copy_x<1>(shared);
    }
    copy_commit();
  }

  float acc[64], waiting[64];  // [tile of 16 rows 2][eight tokens 8][4]; an even lane until the odd one is there
#pragma unroll
  for (int i = 0; i < 64; i++) acc[i] = 0.0f;
  int current = 0, ahead = kStages - 1;  // stages: computed, filled next
  for (int rule_lane = 0, done = 0; rule_lane < kBlockGroups; rule_lane++) {
    for (int step = 0; step < filler.steps; step++, done++) {
      copy_wait<kStages - 2>();
      sync_block();  // everybody's copies are there, and nobody reads the stage before this one any more
      const bool fills = done + kStages - 1 < all_steps;
      if (fills) filler.next_weights(ahead);
      const unsigned char* stage = shared + current * Stage::kBytes;
      current = current + 1 == kStages ? 0 : current + 1;
      const auto multiply = [&](int block) {
        WeightFragment<kType, kDigits> w[2];
        load_fragment(w[0], stage, block, first_row);
        load_fragment(w[1], stage, block, first_row + 16);
#pragma unroll
        for (int p = 0; p < 4; p++) {
          const int pair = first_pair + p;
          uint4 b[kDigits];
#pragma unroll
          for (int d = 0; d < kDigits; d++) {
            b[d] = *reinterpret_cast<const uint4*>(stage + Stage::kX + (((block * kDigits + d) * 8 + pair) * 32 + lane) * 16);
          }
          const int token = block * kTileTokens * 4 + pair * 64 + q * 16;
          const float4 s = *reinterpret_cast<const float4*>(stage + Stage::kXScales + token);
          float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
          if constexpr (type_has_minimum(kType)) sum = *reinterpret_cast<const float4*>(stage + Stage::kXSums + token);
#pragma unroll
          for (int eight = 0; eight < 2; eight++) {
            uint2 operand[kDigits];
#pragma unroll
            for (int d = 0; d < kDigits; d++) operand[d] = eight ? make_uint2(b[d].z, b[d].w) : make_uint2(b[d].x, b[d].y);
            const float of_two[2] = {eight ? s.z : s.x, eight ? s.w : s.y};
            const float sum_of_two[2] = {eight ? sum.z : sum.x, eight ? sum.w : sum.y};
            typename WeightFragment<kType, kDigits>::Dots dots[2];
            w[0].multiply(dots[0], operand);
            w[1].multiply(dots[1], operand);
            w[0].add(acc + (2 * p + eight) * 4, dots[0], of_two, sum_of_two);
            w[1].add(acc + (8 + 2 * p + eight) * 4, dots[1], of_two, sum_of_two);
          }
        }
      };
      // A part of the copies before each block, not all at once: their queue is short.
      const bool second_pair = step * kPairs + 1 < filler.pairs;
      if (fills) filler.template copy_weights<0>(shared);
      multiply(0);
      if constexpr (kPairs == 2) {
        if (fills) filler.template copy_weights<1>(shared);
        multiply(1);
        if (fills) filler.next_x(ahead), filler.template copy_x<0>(shared);
        if (second_pair) multiply(2);
        if (fills) filler.template copy_x<1>(shared);
        if (second_pair) multiply(3);
      } else {
        if (fills) filler.next_x(ahead), filler.template copy_x<0>(shared);
        multiply(1);
      }
      copy_commit();
      ahead = ahead + 1 == kStages ? 0 : ahead + 1;
    }
    // The lane is finished: ((0 + 1) + (2 + 3)) + ((4 + 5) + (6 + 7)).
    if (rule_lane % 2 == 0) {
#pragma unroll
      for (int i = 0; i < 64; i++) waiting[i] = acc[i], acc[i] = 0.0f;
      continue;
    }
#pragma unroll
    for (int i = 0; i < 64; i++) acc[i] = add_f32(waiting[i], acc[i]);
    if (rule_lane % 4 == 3) add_parked(acc, park);
    if (rule_lane == 7) {
      add_parked(acc, park + 16 * kGemmThreads);
    } else {
      float4* to = rule_lane == 3 ? park + 16 * kGemmThreads : park;
#pragma unroll
      for (int i = 0; i < 64; i += 4) {
        to[i / 4 * kGemmThreads] = make_float4(acc[i], acc[i + 1], acc[i + 2], acc[i + 3]);
        acc[i] = acc[i + 1] = acc[i + 2] = acc[i + 3] = 0.0f;
      }
    }
  }

  // Element i of a thread: output (tile, row r or r + 8), token (eight, 2 q or 2 q + 1).
  const int output = (int)blockIdx.y * kTileRows + first_row + lane / 4, token = (int)blockIdx.x * kTileTokens + first_pair * 16 + 2 * q;
  const auto output_of = [&](int i) { return output + i / 32 * 16 + i % 4 / 2 * 8; };
  const auto token_of = [&](int i) { return token + i / 4 % 8 * 8 + i % 2; };
  const auto real = [&](int i) { return output_of(i) < a.outputs && token_of(i) < a.tokens; };
  float bias[4];  // a sum is never -0: adding +0 changes nothing
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int n = output_of(i / 2 * 32 + i % 2 * 2);
    bias[i] = a.bias && n < a.outputs ? a.bias[n] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < 64; i++) acc[i] = add_f32(acc[i], bias[i / 32 * 2 + i % 4 / 2]);
  if (a.residual) {  // all loads before the stores, which may be to the same memory
    float residual[64];
#pragma unroll
    for (int i = 0; i < 64; i++) residual[i] = real(i) ? a.residual[(int64_t)token_of(i) * a.outputs + output_of(i)] : 0.0f;
#pragma unroll
    for (int i = 0; i < 64; i++) acc[i] = add_f32(residual[i], acc[i]);
  }
#pragma unroll
  for (int i = 0; i < 64; i++) {
    if (real(i)) a.y[(int64_t)token_of(i) * a.outputs + output_of(i)] = acc[i];
  }
}

int quant_gemm(AssayDevice& d, const AssayLinear& a) {
  if (!linear_on_tokens(a)) return ASSAY_REFUSED;
  bool fits = true;
  for (int i = 0; i < a.count; i++) {
    with_type_and_digits(a.w[i].type, a.activations, [&]<int32_t kType, int kDigits>() {
      fits = fits && size_t(GemmStage<kType, kDigits>::kShared) <= d.shared_limit;
    });
  }
  if (!fits) return ASSAY_REFUSED;
  GemmArgs g = {};
  int result = quantise_tokens(d, a, kTileTokens, g.x);
  for (int i = 0; i < a.count && result == ASSAY_DONE; i++) {
    const AssayWeight& w = a.w[i];
    set_matrix(a, i, g);
    const dim3 grid = dim3(unsigned((a.rows + kTileTokens - 1) / kTileTokens), unsigned((w.rows + kTileRows - 1) / kTileRows));
    with_type_and_digits(w.type, a.activations, [&]<int32_t kType, int kDigits>() {
      result = launch(d, variant_name("gemm", kType, kDigits).c_str(), Overlap::yes, gemm<kType, kDigits>, grid, kGemmThreads,
                      size_t(GemmStage<kType, kDigits>::kShared), g);
    });
  }
  return result;
}

}  // namespace assay

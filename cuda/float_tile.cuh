// Float rule, many token rows: a block computes 32 weight rows times 32 tokens.
//
// The 256 accumulators of 1024 products don't fit a multiprocessor at once, so they are visited one after another. Accumulator
// l = 8 v + c: warp c has the eighth of them that is c modulo 8 and visits v = 0 .. 31 in bit-reversed order; a visit sums over
// all k that are l modulo 256, a thread 4 rows times 8 tokens. Folding 128, 64, 32, 16, 8 apart is then a binary counter over
// visits: the i-th is added to what lies on as many levels as i has low ones, and a level holds the sum of two of the level
// below. Levels 0 and 1 lie in registers, 2 to 4, which are seldom touched, in shared memory. At the end the eight warps' sums
// are folded 4, 2, 1 apart.
//
// A visit's columns are eight side by side (one per warp) out of every 256. Eight such steps are a stage: read into registers
// while the stage before is computed, widened, and left in shared memory as [step][c][row or token], double buffered.
// Blocks are numbered so that those that run together share weights and at most 16 tiles of tokens.
// Bytes, from the second cache: per 32 x 32 products and 8 columns 1 KiB of x and as much of weights (f16 and bf16 use half of
// every 32-byte sector).
#pragma once
#include "cuda/device.h"
#include "cuda/float_matrices.cuh"
#include "cuda/float_rule.cuh"

namespace assay {
namespace {

constexpr int kTileThreads = 256, kTile = 32;                 // rows of weights, and tokens
constexpr int kTileSteps = 8, kTileStage = kTileSteps * 8 * kTile;  // floats of weights (and of x) in a stage
constexpr int kTileLevels = 3, kTileLevelFloats = 32 * kTileThreads;  // in shared memory: levels 2, 3, 4
constexpr size_t kTileShared = (4 * (size_t)kTileStage + kTileLevels * kTileLevelFloats) * sizeof(float);
constexpr int kTilesTogether = 16;

/// Shared: two stages of weights and of x, then levels as [level][product][thread]. The sums of the warps replace the stages:
/// [c][token][row].
template <int32_t kType>
__global__ __launch_bounds__(kTileThreads) void float_tile_kernel(FloatMatrices m, const float* x, int tokens,
                                                                  bool aligned) {
  SHARED_BYTES(shared);
  const int tid = (int)threadIdx.x, t = lane_of_warp(), warp = warp_of_block();
  float* stages = reinterpret_cast<float*>(shared);
  float* levels = stages + 4 * kTileStage + tid;

  const int row_tiles = (m.total + kTile - 1) / kTile, token_tiles = (tokens + kTile - 1) / kTile;
  const int band = (int)blockIdx.x / (row_tiles * kTilesTogether), in_band = (int)blockIdx.x % (row_tiles * kTilesTogether);
  const int first_tile = band * kTilesTogether;
  const int width = token_tiles - first_tile < kTilesTogether ? token_tiles - first_tile : kTilesTogether;
  const int first_row = in_band / width * kTile, first_token = (first_tile + in_band % width) * kTile;

  // Thread t of warp s copies step s: eight columns of row t and of token t. Behind the end both are zeros.
  const bool row_real = first_row + t < m.total, token_real = first_token + t < tokens;
  const FloatRow copied = row_of(m, row_real ? first_row + t : 0);
  const float* copied_x = x + (int64_t)(token_real ? first_token + t : 0) * m.columns;
  constexpr int kWords = kType == kAnyQuantised ? 1 : float_words(kType);
  const unsigned char* copied_w =
      kType == kAnyQuantised ? nullptr : m.w[copied.matrix].data + copied.n * m.w[copied.matrix].layout.codes_row;
  uint4 words[kWords];
  float widened_w[8];
  float4 low, high;
  const auto read = [&](int k) {
    const bool real = k < m.columns;
    if constexpr (kType == kAnyQuantised) {
#pragma unroll
      for (int i = 0; i < 8; i++) widened_w[i] = 0.0f;
      if (real && row_real) widen_8(m.w[copied.matrix], copied.n, k, widened_w);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; i++) {
        const uint4* from = reinterpret_cast<const uint4*>(copied_w + (int64_t)k * (kWords * 2)) + i;
        words[i] = real && row_real ? load_once(from) : make_uint4(0, 0, 0, 0);
      }
    }
    low = high = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (real && token_real) {
      low = load_x4(copied_x, k, m.columns, aligned);
      high = load_x4(copied_x, k + 4, m.columns, aligned);
    }
  };
  const auto leave = [&](int buffer) {
    float* to_w = stages + buffer * 2 * kTileStage + warp * 8 * kTile + t;
    float* to_x = to_w + kTileStage;
    if constexpr (kType != kAnyQuantised) widen_words<kType>(words, widened_w);
#pragma unroll
    for (int c = 0; c < 8; c++) to_w[c * kTile] = widened_w[c];
    const float values[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int c = 0; c < 8; c++) to_x[c * kTile] = values[c];
  };
  // Visit i has the columns 8 v + 256 s of v = i with its five bits reversed; a visit of no columns has one empty stage.
  const auto part_of = [](int i) { return (i & 1) << 4 | (i & 2) << 2 | (i & 4) | (i & 8) >> 2 | (i & 16) >> 4; };
  const auto steps_of = [&](int i) { return m.columns > 8 * part_of(i) ? (m.columns - 8 * part_of(i) + 255) / 256 : 0; };

  float acc[4][8] = {}, level0[4][8], level1[4][8];
  int buffer = 0;
  read(256 * warp);
  leave(0);
  sync_block();
  for (int visit = 0; visit < 32; visit++) {
    const int steps = steps_of(visit);
    int first = 0;
    do {
      const bool visit_ends = first + kTileSteps >= steps, last = visit_ends && visit == 31;
      if (!last) read((visit_ends ? 8 * part_of(visit + 1) : 8 * part_of(visit) + 256 * (first + kTileSteps)) + 256 * warp);
      const float* ws = stages + buffer * 2 * kTileStage + warp * kTile + t % 8 * 4;
      const float* xs = stages + buffer * 2 * kTileStage + kTileStage + warp * kTile + t / 8 * 8;
#pragma unroll
      for (int half = 0; half < kTileSteps; half += 4) {
        if (first + half >= steps) continue;
#pragma unroll
        for (int s = half; s < half + 4; s++) {
          const float4 w4 = *reinterpret_cast<const float4*>(ws + s * 8 * kTile);
          const float w[4] = {w4.x, w4.y, w4.z, w4.w};
          const float4 x0 = *reinterpret_cast<const float4*>(xs + s * 8 * kTile);
          const float4 x1 = *reinterpret_cast<const float4*>(xs + s * 8 * kTile + 4);
          const float one[8] = {x0.x, x0.y, x0.z, x0.w, x1.x, x1.y, x1.z, x1.w};
#pragma unroll
          for (int r = 0; r < 4; r++) {
#pragma unroll
            for (int i = 0; i < 8; i++) acc[r][i] = fma_f32(w[r], one[i], acc[r][i]);
          }
        }
      }
      buffer ^= 1;
      if (!last) {
        leave(buffer);
        sync_block();
      }
      first += kTileSteps;
    } while (first < steps);

    // The counter.
    const auto from_shared = [&](int level) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) {
          acc[r][i] = add_f32(levels[(level - 2) * kTileLevelFloats + (r * 8 + i) * kTileThreads], acc[r][i]);
        }
      }
    };
    const auto to_shared = [&](int level) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) levels[(level - 2) * kTileLevelFloats + (r * 8 + i) * kTileThreads] = acc[r][i];
      }
    };
    const auto add_level = [&](const float (*level)[8]) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) acc[r][i] = add_f32(level[r][i], acc[r][i]);
      }
    };
    const auto set_level = [&](float (*level)[8]) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int i = 0; i < 8; i++) level[r][i] = acc[r][i];
      }
    };
    if ((visit & 1) == 0) {
      set_level(level0);
    } else {
      add_level(level0);
      if ((visit & 2) == 0) {
        set_level(level1);
      } else {
        add_level(level1);
        int level = 2;
        for (int bits = visit >> 2; (bits & 1) != 0; bits >>= 1) from_shared(level++);
        if (level < 5) to_shared(level);
      }
    }
    if (visit == 31) break;
#pragma unroll
    for (int r = 0; r < 4; r++) {
#pragma unroll
      for (int i = 0; i < 8; i++) acc[r][i] = 0.0f;
    }
  }

  sync_block();  // the last stage has been read
  float* sums = stages;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    *reinterpret_cast<float4*>(sums + (warp * kTile + t / 8 * 8 + i) * kTile + t % 8 * 4) =
        make_float4(acc[0][i], acc[1][i], acc[2][i], acc[3][i]);
  }
  sync_block();
  if (!row_real) return;
#pragma unroll
  for (int i = 0; i < kTile / 8; i++) {
    const int token = first_token + warp + 8 * i;
    if (token >= tokens) return;
    float part[8];
#pragma unroll
    for (int c = 0; c < 8; c++) part[c] = sums[(c * kTile + warp + 8 * i) * kTile + t];
    write_product(m, copied, token, added_to(m, copied, token), fold_halves(part, 8));
  }
}

template <int32_t kType>
int float_tile(AssayDevice& d, const char* variant, const FloatMatrices& m, const float* x, int tokens, bool aligned) {
  const int tiles = (m.total + kTile - 1) / kTile * ((tokens + kTile - 1) / kTile);
  return launch(d, variant, Overlap::no, float_tile_kernel<kType>, dim3((unsigned)tiles), kTileThreads, kTileShared, m, x, tokens,
                aligned);
}

}  // namespace
}  // namespace assay

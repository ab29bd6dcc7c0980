// Activations to integers on the device: rule 1 of engine/NUMERICS.md ("Quantised weights"), eight elements of a group per
// thread, and how rows of codes lie in scratch for quant_few.cu and quant_gemm.cu. quant_gemv.cu quantises its one row itself.
//
// s = amax / Q and v = x / s are IEEE divisions in the rule. Both are computed here by multiplication with a reciprocal and
// corrections from exact remainders, which gives the same bits:
//  - s: q = RN(amax y), y = RN(1/Q), then RN(q + (amax - q Q) y), the remainder exact. One correction is enough for Q = 127 and
//    32639: all 2^23 significands were tried (quant_linear_test.cpp), and exponents change nothing, amax >= 2^-100 being far
//    from the denormals.
//  - v: r = RN(1/s), two corrections. The first leaves v within an ulp, the second rounds correctly then (Markstein, IBM J. Res.
//    Dev. 34, 1990, theorem for a correctly rounded reciprocal). Remainders are exact where they matter: |x| >= s/4, below
//    which the code is 0 whatever the last bit of v; s < 2^-90 is lifted by 2^64 with its x first, exactly.
// The rule's clamp to [-Q, Q] changes nothing: |x| <= amax and s >= (amax/Q)(1 - 2^-24), so v rounds to Q at most.
#pragma once
#include "cuda/layout.cuh"
#include "engine/abi.h"

struct AssayDevice;

namespace assay {

/// Digits of a code: s8 one, s16 two (256 hi + lo, hi first).
template <int kDigits>
constexpr float kLargestCode = kDigits == 2 ? 32639.0f : 127.0f;

/// amax / Q for a finite amax >= 2^-100.
template <int kDigits>
__device__ __forceinline__ float scale_of_largest(float amax) {
  constexpr float q = kLargestCode<kDigits>, reciprocal = 1.0f / q;
  const float s = mul_f32(amax, reciprocal);
  return fma_f32(fma_f32(-s, q, amax), reciprocal, s);
}

/// Four low bytes in one word.
__device__ __forceinline__ uint32_t low_bytes(uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  return (a & 0xffu) | (b & 0xffu) << 8 | (c & 0xffu) << 16 | d << 24;
}

/// What becomes of eight elements. `scale` and `sum` are of the whole group, the same in its four threads.
template <int kDigits>
struct QuantisedEight {
  uint32_t words[kDigits][2];  // of each digit, elements 0-3 and 4-7
  float scale;
  int32_t sum;
};
/// Elements x[0..7] of this thread; four neighbouring threads (4 n .. 4 n + 3) hold a group. All of a warp must come.
template <int kDigits>
__device__ __forceinline__ QuantisedEight<kDigits> quantise_8(float* x) {
  QuantisedEight<kDigits> out;
  int32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int32_t bits = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
    largest = largest > bits ? largest : bits;
  }
#pragma unroll
  for (int mask = 1; mask <= 2; mask *= 2) {
    const int32_t other = shuffle_xor(largest, mask);
    largest = largest > other ? largest : other;
  }
  const bool finite = largest < 0x7f800000, coded = finite && float_of((uint32_t)largest) >= 0x1p-100f;
  float s = scale_of_largest<kDigits>(coded ? float_of((uint32_t)largest) : 1.0f);
  out.scale = coded ? s : finite ? 0.0f : canonical_nan();
  if (s < 0x1p-90f) {
    s = mul_f32(s, 0x1p64f);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] = mul_f32(x[i], 0x1p64f);
  }
  const float r = div_f32(1.0f, s);
  uint32_t code[8];  // the code in the low bits, the magic number above them
  int32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float v = mul_f32(x[i], r);
    v = fma_f32(fma_f32(-v, s, x[i]), r, v);
    v = fma_f32(fma_f32(-v, s, x[i]), r, v);
    code[i] = bits_of(add_f32(v, kMagic));
    sum += (int32_t)(code[i] - (uint32_t)kMagicBits);
  }
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const uint32_t* c = code + 4 * h;
    const uint32_t low = low_bytes(c[0], c[1], c[2], c[3]);
    out.words[kDigits - 1][h] = coded ? low : 0u;
    if constexpr (kDigits == 2) {  // hi = (q + 128) >> 8
      const uint32_t high = low_bytes((c[0] + 128u) >> 8, (c[1] + 128u) >> 8, (c[2] + 128u) >> 8, (c[3] + 128u) >> 8);
      out.words[0][h] = coded ? high : 0u;
    }
  }
  sum = coded ? sum : 0;
  sum += shuffle_xor(sum, 1);
  out.sum = sum + shuffle_xor(sum, 2);
  return out;
}

/// What a thread of block_reciprocal_rms adds first: so that its loads can be on their way early, and together.
struct HeldRow {
  float x[16];
};
__device__ __forceinline__ HeldRow hold_row(const float* x, int columns) {
  HeldRow held;
#pragma unroll
  for (int i = 0; i < 16; i++) {
    const int k = (int)threadIdx.x + kFloatLanes * i;
    held.x[i] = k < columns ? x[k] : 0.0f;
  }
  return held;
}
/// 1 / sqrt(sum/K + eps) of a row, the sum by the float rule: accumulator k mod 256 belongs to thread k mod 256, folded by
/// halves. Preconditions: a block of 256 threads, all of which come; `lanes` are 256 floats of shared memory that nobody
/// else uses before the next barrier; `held` is hold_row() of the same row.
__device__ __forceinline__ float block_reciprocal_rms(const HeldRow& held, const float* x, int columns, float eps, float* lanes) {
  float acc = 0.0f;
#pragma unroll
  for (int i = 0; i < 16; i++) acc = fma_f32(held.x[i], held.x[i], acc);  // of what is not there: +0 to a sum that is never -0
#pragma unroll 8
  for (int k = (int)threadIdx.x + kFloatLanes * 16; k < columns; k += kFloatLanes) acc = fma_f32(x[k], x[k], acc);
  lanes[threadIdx.x] = acc;
  sync_block();
  float v[8];  // every warp folds all: no second barrier
#pragma unroll
  for (int i = 0; i < 8; i++) v[i] = lanes[lane_of_warp() + 32 * i];
#pragma unroll
  for (int half = 4; half >= 1; half /= 2) {
#pragma unroll
    for (int i = 0; i < half; i++) v[i] = add_f32(v[i], v[i + half]);
  }
#pragma unroll
  for (int half = 16; half >= 1; half /= 2) v[0] = add_f32(v[0], shuffle_xor(v[0], half));
  const float sum = add_f32(v[0], 0.0f);
  return div_f32(1.0f, sqrt_f32(add_f32(div_f32(sum, (float)columns), eps)));
}

// ---- rows of codes in scratch
/// Tokens lie in chunks of 8 (quant_few) or 128 (quant_gemm), K is padded to `blocks` blocks of 256; group g = 8 b + j.
/// A code word w = 0..7 holds codes 4 w .. 4 w + 3 of a group; in a product's operand B (prim.cuh, mma_s8_k32) token n of eight
/// and word w belong to thread 4 n + w mod 4, register w / 4.
///   chunks of 8:   codes [chunk][b][j][digit][thread 32][register 2] words, scales and sums [chunk][b][j][token].
///   chunks of 128: codes [chunk][j][b][digit][pair 8][thread 32][tile of the pair 2][register 2] words: pair and tile are the
///                  token's eight, t mod 128 / 8; scales and sums [chunk][j][b][pair 8][n / 2][tile of the pair][n mod 2].
/// Groups of padding have codes, scale and sum 0. What lies at tokens of padding is anything: it reaches no other token.
struct QuantisedTokens {
  unsigned char* codes;
  float* scales;
  float* sums;      // of the codes of a group, as floats
  int32_t blocks;   // padded
  int32_t chunk;    // 8 or 128
};
constexpr int kFewTokens = 8, kTileTokens = 128;
/// Blocks that a quantised row is padded to: pairs, as quant_gemm walks them.
constexpr int64_t quantised_blocks(int64_t columns) { return (columns + 2 * kBlockColumns - 1) / (2 * kBlockColumns) * 2; }
constexpr int64_t quantised_row_bytes(int64_t columns, int digits) {
  return quantised_blocks(columns) * (kBlockColumns * digits + kBlockGroups * 2 * int64_t(sizeof(float)));
}

/// Byte of word w (an even one; w + 1 lies next_word bytes behind it), digit d, of token t and group (b, j).
template <int kDigits>
__device__ __forceinline__ int64_t code_place(const QuantisedTokens& q, int64_t t, int b, int j, int d, int w) {
  const int64_t chunk = t / q.chunk;
  const int n = (int)(t % 8), thread = n * 4 + w % 4;
  if (q.chunk == kFewTokens) {
    return ((((chunk * q.blocks + b) * kBlockGroups + j) * kDigits + d) * 32 + thread) * 8 + w / 4 * 4;
  }
  const int eight = (int)(t % kTileTokens) / 8;
  return (((((chunk * kBlockGroups + j) * q.blocks + b) * kDigits + d) * 8 + eight / 2) * 32 + thread) * 16 + eight % 2 * 8 + w / 4 * 4;
}
__device__ __forceinline__ int64_t scale_place(const QuantisedTokens& q, int64_t t, int b, int j) {
  const int64_t chunk = t / q.chunk;
  const int n = (int)(t % 8);
  if (q.chunk == kFewTokens) return ((chunk * q.blocks + b) * kBlockGroups + j) * kFewTokens + n;
  const int eight = (int)(t % kTileTokens) / 8;
  return ((chunk * kBlockGroups + j) * q.blocks + b) * kTileTokens + eight / 2 * 16 + n / 2 * 4 + eight % 2 * 2 + n % 2;
}

/// One matrix and the tokens it is multiplied with: what a kernel of quant_few or quant_gemm is told. Planes as in layout.cuh.
struct MatrixOnTokens {
  const unsigned char* weights;
  int64_t codes_row, high_row, scales_row, super_row;
  int64_t high, scales, super;
  int32_t outputs, blocks, quads, tokens;  // blocks of the weights; those of x may be one more
  QuantisedTokens x;
  const float* bias;
  const float* residual;
  float* y;
};

/// Tokens that are sorted pairs (experts.cuh): token t is row pairs[t] / per_row of x; -1: of nothing.
struct PairsOfTokens {
  const int32_t* pairs;  // null: token t is row t
  int32_t per_row;
};

// ---- host, quantise.cu
/// Whether quant_few and quant_gemm can do it: a quantised type and width for all, nothing fused but norm, bias and residual.
bool linear_on_tokens(const AssayLinear& a);
/// Queues the quantisation of a.x (normed first where a.norm is given) into device.quantised, in chunks of `chunk` tokens.
/// DONE fills `out`. Precondition: linear_on_tokens(a).
int quantise_tokens(AssayDevice& d, const AssayLinear& a, int chunk, QuantisedTokens& out, PairsOfTokens pairs = {nullptr, 1});
/// All of it but x. Precondition: linear_on_tokens(a).
void set_matrix(const AssayLinear& a, int which, MatrixOnTokens& out);

}  // namespace assay

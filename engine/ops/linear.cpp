// y[t][n] = sum over k of w[n][k] * x[t][k] by the float rule, then bias[n] in one add. Quantised rows are widened
// first. Float rule: accumulator k mod 256, acc = fma(w, x, acc), increasing k, start +0; fold 128 .. 1; add +0. Bound
// against exact sums: 2^-24 * (ceil(K/256) + 9) * sum |w x| + e, e = 2^-149 per rounding, + 2^-24 |y| with a bias.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

#ifdef ASSAY_ISA_scalar

void linear(const LinearArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.w.columns, row_size = bytes_of_row(a.w.type, columns);
  float* w = thread_scratch(columns);
  for (int64_t n = begin; n < end; n++) {
    for (int64_t k = 0; k < columns; k++) w[k] = weight_at(a.w.type, a.w.data + n * row_size, k);
    for (int64_t t = 0; t < a.tokens; t++) {
      const float* x = a.x + t * columns;
      float acc[kFloatLanes] = {};
      for (int64_t k = 0; k < columns; k++) acc[k % kFloatLanes] = fma_f32(w[k], x[k], acc[k % kFloatLanes]);
      const float y = fold_halves(acc, kFloatLanes);
      a.y[t * a.w.rows + n] = a.bias ? add_f32(y, a.bias[n]) : y;
    }
  }
}

#else

ASSAY_V void write_output(const LinearArgs& a, int64_t t, int64_t n, float y) {
  a.y[t * a.w.rows + n] = a.bias ? add_f32(y, a.bias[n]) : y;
}

constexpr int log2_of(int n) {
  return n == 1 ? 0 : 1 + log2_of(n / 2);
}
ASSAY_V int reversed_bits(int i, int count) {
  int r = 0;
  for (int b = 0; b < count; b++) r |= (i >> b & 1) << (count - 1 - b);
  return r;
}

// The fold by halves as a binary counter: when parts 0 .. 2^d - 1 of the lanes are visited in bit-reversed order, part
// i is added to what lies on as many levels as i has low ones. Level d ends as the sum of all. The lower part is the
// left operand.
template <int kVectors>
ASSAY_V void push_part(int i, vf* acc, vf (*levels)[kVectors]) {
  int level = 0;
  for (int bits = i; bits & 1; bits >>= 1, level++) {
    ASSAY_UNROLL for (int c = 0; c < kVectors; c++) acc[c] = v_add(levels[level][c], acc[c]);
  }
  ASSAY_UNROLL for (int c = 0; c < kVectors; c++) levels[level][c] = acc[c];
}

// ---- few tokens: memory decides. kR rows at a time, the 256 lanes in 8 parts of 32 (a quantisation group), so that a
// part's accumulators fit the registers; the rows that follow are fetched meanwhile.

constexpr int kPart = 32, kPartVectors = kPart / kLanes, kParts = kFloatLanes / kPart, kPartDepth = log2_of(kParts);

template <WeightType kType, int kR, int kT>
[[gnu::noinline]] static void few_tokens_tile(const LinearArgs& a, int64_t n, int64_t t) {
  constexpr int kVectors = kR * kT * kPartVectors;
  const int64_t columns = a.w.columns, row_size = bytes_of_row(kType, columns), ahead = kR * row_size;
  const std::byte* row = a.w.data + n * row_size;
  const float* x = a.x + t * columns;
  vf levels[kPartDepth + 1][kVectors];
  for (int i = 0; i < kParts; i++) {
    vf acc[kVectors];
    ASSAY_UNROLL for (int c = 0; c < kVectors; c++) acc[c] = v_zero();
    int64_t k = reversed_bits(i, kPartDepth) * kPart;
    for (; k + kPart <= columns; k += kFloatLanes) {
      ASSAY_UNROLL for (int r = 0; r < kR; r++) {
        const std::byte* place = place_of<kType>(row + r * row_size, k) + ahead;
        prefetch(place);
        if constexpr (kType == WeightType::f32) prefetch(place + 64);
      }
      ASSAY_UNROLL for (int v = 0; v < kPartVectors; v++) {
        ASSAY_UNROLL for (int r = 0; r < kR; r++) {
          const vf w = weight_vector<kType>(row + r * row_size, k + v * kLanes);
          ASSAY_UNROLL for (int s = 0; s < kT; s++) {
            vf& sum = acc[(r * kT + s) * kPartVectors + v];
            sum = v_fma(w, v_load(x + s * columns + k + v * kLanes), sum);
          }
        }
      }
    }
    for (int v = 0; v < kPartVectors && k < columns; v++, k += kLanes) {
      for (int r = 0; r < kR; r++) {
        const vf w = weight_vector_n<kType>(row + r * row_size, k, columns - k);
        for (int s = 0; s < kT; s++) {
          vf& sum = acc[(r * kT + s) * kPartVectors + v];
          sum = v_fma(w, v_load_n(x + s * columns + k, columns - k), sum);
        }
      }
    }
    push_part<kVectors>(i, acc, levels);
  }
  for (int c = 0; c < kR * kT; c++) {
    write_output(a, t + c % kT, n + c / kT, fold_vectors<kPartVectors>(levels[kPartDepth] + c * kPartVectors));
  }
}

template <WeightType kType, int kR, int kT>
ASSAY_V void few_tokens(const LinearArgs& a, int64_t begin, int64_t end) {
  int64_t n = begin;
  for (; n + kR <= end; n += kR) few_tokens_tile<kType, kR, kT>(a, n, 0);
  for (; n < end; n++) few_tokens_tile<kType, 1, kT>(a, n, 0);
}

// ---- many tokens: tiles of kRows rows x up to kTokens tokens, their accumulators in registers.
// Rows and tokens are packed so that the inner loop reads straight on: for each vector v of the 256 lanes, all k that
// fall into it (k = 256 j + v kLanes + lane), then the next v in bit-reversed order. One vector's columns of a block of
// tokens and of kRows rows stay in the first cache while the tiles of the block are visited.

constexpr int kRows = 4, kTokens = kRegisters == 32 ? 6 : 3;
constexpr int kFoldDepth = log2_of(kFloatVectors);
constexpr int64_t kBlockTiles = 16;        // tiles of tokens in a block, at most
constexpr int64_t kBlockFloats = 1 << 16;  // floats of packed tokens in a block, about

/// How many j there are for vector v.
ASSAY_V int64_t steps_of(int v, int64_t columns) {
  const int64_t rest = columns - (int64_t)v * kLanes;
  return rest <= 0 ? 0 : (rest + kFloatLanes - 1) / kFloatLanes;
}
/// start[v]: the packed place of vector v's first step, in vectors, in visiting order; returns the size of a packed
/// row. Every vector gets an odd number of places: at an even, often large power-of-two distance, the stores of a
/// packed row would all fall into a few sets of the cache.
ASSAY_V int64_t starts_of(int64_t columns, int64_t* start) {
  int64_t at = 0;
  for (int i = 0; i < kFloatVectors; i++) {
    const int v = reversed_bits(i, kFoldDepth);
    start[v] = at;
    at += steps_of(v, columns) | 1;
  }
  return at;
}

/// Packs row `which` of `count`: vector (v, j) goes to ((start[v] + j) * count + which) * kLanes.
template <WeightType kType>
[[gnu::noinline]] static void pack_row(const std::byte* row, int64_t columns, const int64_t* start, int which,
                                       int count, float* out) {
  int64_t k = 0;
  for (int64_t j = 0; k + kFloatLanes <= columns; j++, k += kFloatLanes) {
    ASSAY_UNROLL for (int v = 0; v < kFloatVectors; v++) {
      v_store(out + ((start[v] + j) * count + which) * kLanes, weight_vector<kType>(row, k + v * kLanes));
    }
  }
  const int64_t j = columns / kFloatLanes;
  for (int v = 0; k < columns; v++, k += kLanes) {
    v_store(out + ((start[v] + j) * count + which) * kLanes, weight_vector_n<kType>(row, k, columns - k));
  }
}

/// Part i (vector reversed_bits(i)) of the sums of kR rows and kT tokens.
template <int kR, int kT>
[[gnu::noinline]] static void tile_part(int i, int64_t steps, const float* w, const float* x, float* levels) {
  vf acc[kR * kT];
  ASSAY_UNROLL for (int c = 0; c < kR * kT; c++) acc[c] = v_zero();
  for (; steps > 0; steps--, w += kR * kLanes, x += kT * kLanes) {
    vf xs[kT];
    ASSAY_UNROLL for (int s = 0; s < kT; s++) xs[s] = v_load(x + s * kLanes);
    ASSAY_UNROLL for (int r = 0; r < kR; r++) {
      const vf wr = v_load(w + r * kLanes);
      ASSAY_UNROLL for (int s = 0; s < kT; s++) acc[r * kT + s] = v_fma(wr, xs[s], acc[r * kT + s]);
    }
  }
  push_part<kR * kT>(i, acc, reinterpret_cast<vf(*)[kR * kT]>(levels));
}

using TilePart = void (*)(int, int64_t, const float*, const float*, float*);
template <int kR>
ASSAY_V TilePart tile_part_of(int tokens) {
  switch (tokens) {
    case 1:
      return tile_part<kR, 1>;
    case 2:
      return tile_part<kR, 2>;
    case 3:
      return tile_part<kR, 3>;
    case 4:  // where kTokens is 3 there are none
      return tile_part < kR, kTokens < 4 ? kTokens : 4 > ;
    case 5:
      return tile_part < kR, kTokens < 5 ? kTokens : 5 > ;
    default:
      return tile_part<kR, kTokens>;
  }
}

/// kR rows for the tokens [first, last) of a block, whose tiles lie packed in x one after another.
template <WeightType kType, int kR>
[[gnu::noinline]] static void rows_by_block(const LinearArgs& a, int64_t n, int64_t first, int64_t last,
                                            const int64_t* start, int64_t packed, float* w, const float* x,
                                            float* levels) {
  constexpr int64_t kTileLevels = (kFoldDepth + 1) * kR * kTokens * kLanes;
  const int64_t columns = a.w.columns, row_size = bytes_of_row(kType, columns);
  for (int r = 0; r < kR; r++) pack_row<kType>(a.w.data + (n + r) * row_size, columns, start, r, kR, w);
  for (int i = 0; i < kFloatVectors; i++) {
    const int v = reversed_bits(i, kFoldDepth);
    const int64_t steps = steps_of(v, columns);
    for (int64_t t = first; t < last; t += kTokens) {
      const int count = (int)(last - t < kTokens ? last - t : kTokens);
      tile_part_of<kR>(count)(i, steps, w + start[v] * kR * kLanes,
                              x + (t - first) * packed + start[v] * count * kLanes,
                              levels + (t - first) / kTokens * kTileLevels);
    }
  }
  for (int64_t t = first; t < last; t++) {
    const int64_t tile = (t - first) / kTokens;
    const int64_t count = last - first - tile * kTokens < kTokens ? last - first - tile * kTokens : kTokens;
    const float* sums = levels + tile * kTileLevels + kFoldDepth * kR * count * kLanes;
    for (int r = 0; r < kR; r++) {
      write_output(a, t, n + r, add_f32(v_fold(v_load(sums + (r * count + (t - first) % kTokens) * kLanes)), 0.0f));
    }
  }
}

template <WeightType kType>
ASSAY_V void many_tokens(const LinearArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.w.columns;
  int64_t start[kFloatVectors];
  const int64_t packed = starts_of(columns, start) * kLanes;  // floats
  int64_t tiles = kBlockFloats / packed / kTokens;
  tiles = tiles < 4 ? 4 : tiles > kBlockTiles ? kBlockTiles : tiles;
  const int64_t block = tiles * kTokens;
  float* levels = thread_scratch(tiles * (kFoldDepth + 1) * kRows * kTokens * kLanes + (kRows + block) * packed);
  float* w = levels + tiles * (kFoldDepth + 1) * kRows * kTokens * kLanes;
  float* x = w + kRows * packed;
  for (int64_t first = 0; first < a.tokens; first += block) {
    const int64_t last = first + block < a.tokens ? first + block : a.tokens;
    for (int64_t t = first; t < last; t++) {
      const int64_t base = t - (t - first) % kTokens;  // of its tile
      const int count = (int)(last - base < kTokens ? last - base : kTokens);
      pack_row<WeightType::f32>(reinterpret_cast<const std::byte*>(a.x + t * columns), columns, start, (int)(t - base),
                                count, x + (base - first) * packed);
    }
    int64_t n = begin;
    for (; n + kRows <= end; n += kRows) rows_by_block<kType, kRows>(a, n, first, last, start, packed, w, x, levels);
    for (; n < end; n++) rows_by_block<kType, 1>(a, n, first, last, start, packed, w, x, levels);
  }
}

template <WeightType kType>
static void linear_of(const LinearArgs& a, int64_t begin, int64_t end) {
  constexpr int kR = (kLanes == 4 ? 16 : 8) / kPartVectors;  // accumulators: 2 rows of NEON and AVX2, 4 of AVX-512
  if (a.tokens == 1)
    few_tokens<kType, kR, 1>(a, begin, end);
  else if (a.tokens == 2)
    few_tokens<kType, kR / 2, 2>(a, begin, end);
  else if (a.tokens == 3)
    few_tokens<kType, kR / 2, 3>(a, begin, end);
  else
    many_tokens<kType>(a, begin, end);
}

void linear(const LinearArgs& a, int64_t begin, int64_t end) {
  switch (a.w.type) {
    case WeightType::f32:
      return linear_of<WeightType::f32>(a, begin, end);
    case WeightType::f16:
      return linear_of<WeightType::f16>(a, begin, end);
    case WeightType::bf16:
      return linear_of<WeightType::bf16>(a, begin, end);
    case WeightType::q8_0:
      return linear_of<WeightType::q8_0>(a, begin, end);
    case WeightType::q4_0:
      return linear_of<WeightType::q4_0>(a, begin, end);
    case WeightType::q4_1:
      return linear_of<WeightType::q4_1>(a, begin, end);
    case WeightType::q5_0:
      return linear_of<WeightType::q5_0>(a, begin, end);
    case WeightType::q5_1:
      return linear_of<WeightType::q5_1>(a, begin, end);
    case WeightType::q4_k:
      return linear_of<WeightType::q4_k>(a, begin, end);
    case WeightType::q5_k:
      return linear_of<WeightType::q5_k>(a, begin, end);
    case WeightType::q6_k:
      return linear_of<WeightType::q6_k>(a, begin, end);
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

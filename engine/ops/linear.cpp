// y[t][n] = sum over k of w[n][k] * x[t][k] by the float rule, then bias[n] in one add. Quantised rows are widened first.
// Float rule: accumulator k mod 256, acc = fma(w, x, acc), increasing k, start +0; fold 128 .. 1; add +0.
// Bound against exact sums: 2^-24 * (ceil(K/256) + 9) * sum |w x| + e, e = 2^-149 per rounding, + 2^-24 |y| with a bias.
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

// ---- one token: memory decides. A row is read once, in order, and widened on the way to its 256 accumulators.

template <WeightType kType>
ASSAY_V void one_token(const LinearArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.w.columns, row_size = bytes_of_row(kType, columns);
  const float* x = a.x;
  for (int64_t n = begin; n < end; n++) {
    const std::byte* row = a.w.data + n * row_size;
    vf acc[kFloatVectors];
    ASSAY_UNROLL for (int v = 0; v < kFloatVectors; v++) acc[v] = v_zero();
    int64_t k = 0;
    for (; k + kFloatLanes <= columns; k += kFloatLanes) {
      ASSAY_UNROLL for (int v = 0; v < kFloatVectors; v++) {
        acc[v] = v_fma(weight_vector<kType>(row, k + v * kLanes), v_load(x + k + v * kLanes), acc[v]);
      }
    }
    for (int v = 0; k < columns; v++, k += kLanes) {
      acc[v] = v_fma(weight_vector_n<kType>(row, k, columns - k), v_load_n(x + k, columns - k), acc[v]);
    }
    write_output(a, 0, n, fold_vectors<kFloatVectors>(acc));
  }
}

// ---- several tokens: tiles of kRows rows x up to kTokens tokens, their accumulators in registers.
// Rows and tokens are packed so that the inner loop reads straight on: for each vector v of the 256 lanes, all k that fall
// into it (k = 256 j + v kLanes + lane), then the next v. The vectors are visited in bit-reversed order, so that what the
// fold adds lies next to each other and is added as in a binary counter: 128 first, kLanes last.

#if defined(ASSAY_ISA_avx512)
constexpr int kRows = 4, kTokens = 6;
#else
constexpr int kRows = 4, kTokens = 3;
#endif
constexpr int64_t kBlockFloats = 1 << 16;  // of packed tokens kept near the core

constexpr int log2_of(int n) { return n == 1 ? 0 : 1 + log2_of(n / 2); }
constexpr int kFoldDepth = log2_of(kFloatVectors);

ASSAY_V int bit_reversed(int i) {
  int r = 0;
  for (int b = 0; b < kFoldDepth; b++) r |= (i >> b & 1) << (kFoldDepth - 1 - b);
  return r;
}
/// How many j there are for vector v.
ASSAY_V int64_t steps_of(int v, int64_t columns) {
  const int64_t rest = columns - (int64_t)v * kLanes;
  return rest <= 0 ? 0 : (rest + kFloatLanes - 1) / kFloatLanes;
}
/// Vectors in a packed row: ceil(columns / kLanes). start[v]: the first of vector v, in visiting order.
ASSAY_V void starts_of(int64_t columns, int64_t* start) {
  int64_t at = 0;
  for (int i = 0; i < kFloatVectors; i++) {
    start[bit_reversed(i)] = at;
    at += steps_of(bit_reversed(i), columns);
  }
}

/// Packs row `which` of `count`: vector (v, j) goes to ((start[v] + j) * count + which) * kLanes.
template <WeightType kType>
ASSAY_V void pack_row(const std::byte* row, int64_t columns, const int64_t* start, int which, int count, float* out) {
  int64_t k = 0;
  for (int64_t j = 0; k + kFloatLanes <= columns; j++) {
    ASSAY_UNROLL for (int v = 0; v < kFloatVectors; v++, k += kLanes) {
      v_store(out + ((start[v] + j) * count + which) * kLanes, weight_vector<kType>(row, k));
    }
  }
  const int64_t j = columns / kFloatLanes;
  for (int v = 0; k < columns; v++, k += kLanes) {
    v_store(out + ((start[v] + j) * count + which) * kLanes, weight_vector_n<kType>(row, k, columns - k));
  }
}

template <int kR, int kT>
[[gnu::noinline]] static void tile(const LinearArgs& a, int64_t n, int64_t t, const float* w, const float* x) {
  vf levels[kFoldDepth + 1][kR * kT];
  for (int i = 0; i < kFloatVectors; i++) {
    vf acc[kR * kT];
    ASSAY_UNROLL for (int c = 0; c < kR * kT; c++) acc[c] = v_zero();
    for (int64_t j = steps_of(bit_reversed(i), a.w.columns); j > 0; j--, w += kR * kLanes, x += kT * kLanes) {
      vf xs[kT];
      ASSAY_UNROLL for (int s = 0; s < kT; s++) xs[s] = v_load(x + s * kLanes);
      ASSAY_UNROLL for (int r = 0; r < kR; r++) {
        const vf wr = v_load(w + r * kLanes);
        ASSAY_UNROLL for (int s = 0; s < kT; s++) acc[r * kT + s] = v_fma(wr, xs[s], acc[r * kT + s]);
      }
    }
    int level = 0;
    for (int bits = i; bits & 1; bits >>= 1, level++) {
      ASSAY_UNROLL for (int c = 0; c < kR * kT; c++) acc[c] = v_add(levels[level][c], acc[c]);
    }
    ASSAY_UNROLL for (int c = 0; c < kR * kT; c++) levels[level][c] = acc[c];
  }
  for (int r = 0; r < kR; r++) {
    for (int s = 0; s < kT; s++) {
      write_output(a, t + s, n + r, add_f32(v_fold(levels[kFoldDepth][r * kT + s]), 0.0f));
    }
  }
}

template <int kR>
ASSAY_V void tile_of(int tokens, const LinearArgs& a, int64_t n, int64_t t, const float* w, const float* x) {
  switch (tokens) {
    case 1: return tile<kR, 1>(a, n, t, w, x);
    case 2: return tile<kR, 2>(a, n, t, w, x);
    case 3: return tile<kR, 3>(a, n, t, w, x);
#if defined(ASSAY_ISA_avx512)
    case 4: return tile<kR, 4>(a, n, t, w, x);
    case 5: return tile<kR, 5>(a, n, t, w, x);
    case 6: return tile<kR, 6>(a, n, t, w, x);
#endif
  }
}

template <WeightType kType, int kR>
ASSAY_V void rows_by_tokens(const LinearArgs& a, int64_t n, int64_t first, int64_t last, const int64_t* start, float* w,
                            const float* x, int64_t packed) {
  const int64_t columns = a.w.columns, row_size = bytes_of_row(kType, columns);
  for (int r = 0; r < kR; r++) pack_row<kType>(a.w.data + (n + r) * row_size, columns, start, r, kR, w);
  for (int64_t t = first; t < last; t += kTokens) {
    const int count = (int)(last - t < kTokens ? last - t : kTokens);
    tile_of<kR>(count, a, n, t, w, x + (t - first) * packed);
  }
}

template <WeightType kType>
ASSAY_V void several_tokens(const LinearArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.w.columns, packed = (columns + kLanes - 1) / kLanes * kLanes;
  int64_t start[kFloatVectors];
  starts_of(columns, start);
  int64_t block = kBlockFloats / packed / kTokens * kTokens;
  if (block < 4 * kTokens) block = 4 * kTokens;
  if (block > a.tokens) block = a.tokens;
  float* w = thread_scratch((kRows + block) * packed);
  float* x = w + kRows * packed;
  for (int64_t first = 0; first < a.tokens; first += block) {
    const int64_t last = first + block < a.tokens ? first + block : a.tokens;
    for (int64_t t = first; t < last; t += kTokens) {
      const int count = (int)(last - t < kTokens ? last - t : kTokens);
      for (int s = 0; s < count; s++) {
        pack_row<WeightType::f32>(reinterpret_cast<const std::byte*>(a.x + (t + s) * columns), columns, start, s, count,
                                  x + (t - first) * packed);
      }
    }
    int64_t n = begin;
    for (; n + kRows <= end; n += kRows) rows_by_tokens<kType, kRows>(a, n, first, last, start, w, x, packed);
    for (; n < end; n++) rows_by_tokens<kType, 1>(a, n, first, last, start, w, x, packed);
  }
}

template <WeightType kType>
static void linear_of(const LinearArgs& a, int64_t begin, int64_t end) {
  if (a.tokens == 1) one_token<kType>(a, begin, end);
  else several_tokens<kType>(a, begin, end);
}

void linear(const LinearArgs& a, int64_t begin, int64_t end) {
  switch (a.w.type) {
    case WeightType::f32: return linear_of<WeightType::f32>(a, begin, end);
    case WeightType::f16: return linear_of<WeightType::f16>(a, begin, end);
    case WeightType::bf16: return linear_of<WeightType::bf16>(a, begin, end);
    case WeightType::q8_0: return linear_of<WeightType::q8_0>(a, begin, end);
    case WeightType::q4_0: return linear_of<WeightType::q4_0>(a, begin, end);
    case WeightType::q4_1: return linear_of<WeightType::q4_1>(a, begin, end);
    case WeightType::q6_k: return linear_of<WeightType::q6_k>(a, begin, end);
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

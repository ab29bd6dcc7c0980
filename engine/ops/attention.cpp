// Causal attention of one query row and head over positions 0 .. P of its slot, read as stored in the cache.
//   score = (q . k by the head rule) * scale        32 accumulators by d mod 32, fold 16 .. 1, add +0
//   max    exact, in the integer order of floats
//   p     = exp(score - max)
//   sum   = sum of p by the float rule               lane = position mod 256
//   mix   = sum of p * v by the float rule, column by column, the same lanes
//   y     = mix / sum
// Query head h reads kv head h / (heads / kv_heads). A NaN score makes the whole row NaN: as the maximum it meets every
// p; as a negative NaN, which orders below all, it still meets the sum. Bound: stated and held in attention_test.cpp
// against float64.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

#ifdef ASSAY_ISA_scalar

void attention(const AttentionArgs& a, int64_t begin, int64_t end, float* scratch) {
  const KvLayer& c = a.cache;
  const int64_t group = a.heads / c.kv_heads, dim = c.head_dim, element = c.type == KvType::f32 ? 4 : 2;
  float* p = scratch;  // [positions]: scores, then probabilities before division
  for (int64_t item = begin; item < end; item++) {
    const int64_t row = item / a.heads, head = item % a.heads;
    const int64_t positions = a.places[row].position + 1;
    const int64_t at = (a.places[row].slot * c.kv_heads + head / group) * c.context * dim;
    const std::byte* k = c.k + at * element;
    const std::byte* v = c.v + at * element;
    const float* q = a.q + item * dim;
    float* y = a.y + item * dim;

    int32_t max = ordered_of(float_of(0xff800000u));
    for (int64_t j = 0; j < positions; j++) {
      float acc[kHeadLanes] = {};
      for (int64_t d = 0; d < dim; d++) {
        acc[d % kHeadLanes] = fma_f32(q[d], load_cached(c.type, k, j * dim + d), acc[d % kHeadLanes]);
      }
      p[j] = mul_f32(fold_halves(acc, kHeadLanes), a.scale);
      if (ordered_of(p[j]) > max) max = ordered_of(p[j]);
    }
    float acc[kFloatLanes] = {};
    for (int64_t j = 0; j < positions; j++) {
      p[j] = exp_f32(sub_f32(p[j], float_of_ordered(max)));
      acc[j % kFloatLanes] = add_f32(acc[j % kFloatLanes], p[j]);
    }
    const float sum = fold_halves(acc, kFloatLanes);
    for (int64_t d = 0; d < dim; d++) {
      float mix[kFloatLanes] = {};
      for (int64_t j = 0; j < positions; j++) {
        mix[j % kFloatLanes] = fma_f32(p[j], load_cached(c.type, v, j * dim + d), mix[j % kFloatLanes]);
      }
      y[d] = div_f32(fold_halves(mix, kFloatLanes), sum);
    }
  }
}

#else

constexpr int64_t kColumns = 32;  // of values mixed in one go: their 256 lanes stay near the core

template <KvType kType>
ASSAY_V vf cached_vector(const std::byte* base, int64_t i, int64_t n) {
  if constexpr (kType == KvType::f32) return v_load_n(reinterpret_cast<const float*>(base + 4 * i), n);
  if constexpr (kType == KvType::f16) return n >= kLanes ? v_load_f16(base + 2 * i) : v_load_f16_first(base + 2 * i, n);
  if constexpr (kType == KvType::bf16)
    return n >= kLanes ? v_load_bf16(base + 2 * i) : v_load_bf16_first(base + 2 * i, n);
}

/// scores[j] = (q . k_j) * scale for j < positions, up to 7 entries more (copies of the last); returns their maximum.
template <KvType kType>
ASSAY_V int32_t scores_of(const float* q, const std::byte* k, int64_t positions, int64_t dim, float scale,
                          float* scores) {
  vi8 max = vi8_set(ordered_of(float_of(0xff800000u)));
  for (int64_t j = 0; j < positions; j += 8) {
    vf eight[8];
    for (int i = 0; i < 8; i++) {
      const int64_t at = (j + i < positions ? j + i : positions - 1) * dim;
      vf acc[kHeadVectors];
      ASSAY_UNROLL for (int v = 0; v < kHeadVectors; v++) acc[v] = v_zero();
      int64_t d = 0;
      for (; d + kHeadLanes <= dim; d += kHeadLanes) {
        ASSAY_UNROLL for (int v = 0; v < kHeadVectors; v++) {
          acc[v] = v_fma(v_load(q + d + v * kLanes), cached_vector<kType>(k, at + d + v * kLanes, kLanes), acc[v]);
        }
      }
      for (int v = 0; d < dim; v++, d += kLanes) {
        acc[v] = v_fma(v_load_n(q + d, dim - d), cached_vector<kType>(k, at + d, dim - d), acc[v]);
      }
      ASSAY_UNROLL for (int half = kHeadVectors / 2; half >= 1; half /= 2) {
        ASSAY_UNROLL for (int v = 0; v < half; v++) acc[v] = v_add(acc[v], acc[v + half]);
      }
      eight[i] = acc[0];
    }
    const vf8 s = vf8_mul(vf8_add(v_fold_8(eight), vf8_set(0.0f)), vf8_set(scale));
    vf8_store(scores + j, s);
    max = vi8_max(max, vf8_ordered(s));
  }
  return vi8_max_of(max);
}

/// Replaces scores by p = exp(score - max) and returns their sum. Entries up to the next whole vector become +0.
ASSAY_V float exp_and_sum(float* p, int64_t positions, float max) {
  vf acc[kFloatVectors];
  ASSAY_UNROLL for (int v = 0; v < kFloatVectors; v++) acc[v] = v_zero();
  int v = 0;
  for (int64_t j = 0; j < positions; j += kLanes, v = (v + 1) % kFloatVectors) {
    const int64_t n = positions - j;
    v_store(p + j, v_exp(v_sub(v_load_n(p + j, n), v_set(max))));
    if (n < kLanes) v_store(p + j, v_load_first(p + j, n));
    acc[v] = v_add(acc[v], v_load(p + j));
  }
  return fold_vectors<kFloatVectors>(acc);
}

/// y[d] = (sum of p_j v_j[d]) / sum for kVectors vectors of columns from d on, of which the last may be partial.
template <KvType kType, int kVectors>
ASSAY_V void mix_columns(const float* p, const std::byte* values, int64_t positions, int64_t dim, int64_t d, float sum,
                         float* lanes, float* y) {
  constexpr int64_t kRow = kVectors * kLanes;
  int64_t live = positions < kFloatLanes ? positions : kFloatLanes;  // the other lanes are +0 and change nothing
  for (int64_t j = 0; j < positions; j++) {
    const vf pj = v_set(p[j]);
    float* lane = lanes + j % kFloatLanes * kRow;
    ASSAY_UNROLL for (int v = 0; v < kVectors; v++) {
      const vf x = cached_vector<kType>(values, j * dim + d + v * kLanes, dim - d - v * kLanes);
      v_store(lane + v * kLanes, v_fma(pj, x, j < kFloatLanes ? v_zero() : v_load(lane + v * kLanes)));
    }
  }
  for (int64_t half = kFloatLanes / 2; half >= 1; half /= 2) {
    for (int64_t i = 0; i < (live - half) * kRow; i += kLanes) {
      v_store(lanes + i, v_add(v_load(lanes + i), v_load(lanes + half * kRow + i)));
    }
    if (live > half) live = half;
  }
  ASSAY_UNROLL for (int v = 0; v < kVectors; v++) {
    const vf mixed = v_add(v_load(lanes + v * kLanes), v_zero());
    v_store_n(y + d + v * kLanes, v_div(mixed, v_set(sum)), dim - d - v * kLanes);
  }
}

template <KvType kType>
static void attention_of(const AttentionArgs& a, int64_t begin, int64_t end, float* scratch) {
  const KvLayer& c = a.cache;
  const int64_t group = a.heads / c.kv_heads, dim = c.head_dim, element = kType == KvType::f32 ? 4 : 2;
  for (int64_t item = begin; item < end; item++) {
    const int64_t row = item / a.heads, head = item % a.heads;
    const int64_t positions = a.places[row].position + 1;
    const int64_t at = (a.places[row].slot * c.kv_heads + head / group) * c.context * dim;
    float* p = scratch;
    float* lanes = scratch + (positions + 63) / 64 * 64;
    const int32_t max = scores_of<kType>(a.q + item * dim, c.k + at * element, positions, dim, a.scale, p);
    const float sum = exp_and_sum(p, positions, float_of_ordered(max));
    const std::byte* v = c.v + at * element;
    float* y = a.y + item * dim;
    int64_t d = 0;
    for (; d + kColumns <= dim; d += kColumns) {
      mix_columns<kType, kColumns / kLanes>(p, v, positions, dim, d, sum, lanes, y);
    }
    for (; d < dim; d += kLanes) mix_columns<kType, 1>(p, v, positions, dim, d, sum, lanes, y);
  }
}

void attention(const AttentionArgs& a, int64_t begin, int64_t end, float* scratch) {
  switch (a.cache.type) {
    case KvType::f32:
      return attention_of<KvType::f32>(a, begin, end, scratch);
    case KvType::f16:
      return attention_of<KvType::f16>(a, begin, end, scratch);
    case KvType::bf16:
      return attention_of<KvType::bf16>(a, begin, end, scratch);
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

// Causal attention of one query row and head over positions 0 .. P of its slot, read as stored in the cache.
//   score = (q . k by the head rule) * scale        32 accumulators by d mod 32, fold 16 .. 1, add +0
//   max    exact, in the integer order of floats
//   p     = exp(score - max)
//   sum   = sum of p by the float rule               lane = position mod 256
//   mix   = sum of p * v by the float rule, column by column, the same lanes
//   y     = mix / sum
// Query head h reads kv head h / (heads / kv_heads). A NaN score makes the whole row NaN: as the maximum it meets every p; as
// a negative NaN, which orders below all, it still meets the sum.
// Bound: stated and held in attention_test.cpp against float64.
#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

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

}  // namespace assay::inline ASSAY_ISA

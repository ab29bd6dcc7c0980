// y[t] = row ids[t] of the table, widened: exact for f32, f16 and bf16, rounded once for quantised types (op.h,
// weight_at).
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

#ifdef ASSAY_ISA_scalar

void embed(const EmbedArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.table.columns, row_size = bytes_of_row(a.table.type, columns);
  for (int64_t t = begin; t < end; t++) {
    const std::byte* row = a.table.data + a.ids[t] * row_size;
    for (int64_t k = 0; k < columns; k++) a.y[t * columns + k] = weight_at(a.table.type, row, k);
  }
}

#else

template <WeightType kType>
static void embed_of(const EmbedArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.table.columns, row_size = bytes_of_row(kType, columns);
  for (int64_t t = begin; t < end; t++) {
    const std::byte* row = a.table.data + a.ids[t] * row_size;
    for (int64_t k = 0; k < columns; k += kLanes) {
      v_store_n(a.y + t * columns + k, weight_vector_n<kType>(row, k, columns - k), columns - k);
    }
  }
}

void embed(const EmbedArgs& a, int64_t begin, int64_t end) {
  switch (a.table.type) {
    case WeightType::f32:
      return embed_of<WeightType::f32>(a, begin, end);
    case WeightType::f16:
      return embed_of<WeightType::f16>(a, begin, end);
    case WeightType::bf16:
      return embed_of<WeightType::bf16>(a, begin, end);
    case WeightType::q8_0:
      return embed_of<WeightType::q8_0>(a, begin, end);
    case WeightType::q4_0:
      return embed_of<WeightType::q4_0>(a, begin, end);
    case WeightType::q4_1:
      return embed_of<WeightType::q4_1>(a, begin, end);
    case WeightType::q5_0:
      return embed_of<WeightType::q5_0>(a, begin, end);
    case WeightType::q5_1:
      return embed_of<WeightType::q5_1>(a, begin, end);
    case WeightType::q4_k:
      return embed_of<WeightType::q4_k>(a, begin, end);
    case WeightType::q5_k:
      return embed_of<WeightType::q5_k>(a, begin, end);
    case WeightType::q6_k:
      return embed_of<WeightType::q6_k>(a, begin, end);
  }
}

#endif

}  // namespace assay::inline ASSAY_ISA

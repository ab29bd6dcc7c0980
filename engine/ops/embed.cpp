// y[t] = row ids[t] of the table, widened: exact for f32, f16 and bf16, rounded once for quantised types (op.h, weight_at).
#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

void embed(const EmbedArgs& a, int64_t begin, int64_t end) {
  const int64_t columns = a.table.columns, row_size = bytes_of_row(a.table.type, columns);
  for (int64_t t = begin; t < end; t++) {
    const std::byte* row = a.table.data + a.ids[t] * row_size;
    for (int64_t k = 0; k < columns; k++) a.y[t * columns + k] = weight_at(a.table.type, row, k);
  }
}

}  // namespace assay::inline ASSAY_ISA

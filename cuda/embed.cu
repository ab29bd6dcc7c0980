// y[t] = row ids[t] of the table, widened: exact for float types, rounded once for quantised ones. engine/ops/embed.cpp.
// A thread per eight elements of a row (layout.cuh, widen_8), stored as two 16-byte words where columns and address allow it.
// Bytes per element: the table's, 4 written.
// PRECOND: ids name rows of the table.
#include "cuda/device.h"
#include "cuda/layout.cuh"

namespace assay {
namespace {

constexpr int kThreads = 128, kPerBlock = 8 * kThreads;

/// Grid: pieces of a row, all rows as far as a grid is high.
__global__ __launch_bounds__(kThreads) void embed_kernel(PackedWeight table, const int32_t* ids, float* y, int64_t rows,
                                                         bool aligned) {
  const int64_t columns = table.layout.columns, first = ((int64_t)blockIdx.x * kThreads + (int)threadIdx.x) * 8;
  let_next_start();
  wait_for_previous();
  if (first >= columns) return;
  for (int64_t row = blockIdx.y; row < rows; row += gridDim.y) {
    float out[8];
    widen_8(table, ids[row], first, out);
    float* to = y + row * columns + first;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      const float* values = out + 4 * half;
      if (aligned && first + 4 * half < columns) {
        *reinterpret_cast<float4*>(to + 4 * half) = make_float4(values[0], values[1], values[2], values[3]);
        continue;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (first + 4 * half + i < columns) to[4 * half + i] = values[i];
      }
    }
  }
}

}  // namespace

int embed(AssayDevice& d, const AssayEmbed& a) {
  if (a.rows == 0) return ASSAY_DONE;
  const AssayWeight& w = a.table;
  if (!type_known(w.type) || w.rows < 1 || w.columns < 1 || w.columns % type_file_block_columns(w.type) != 0) return ASSAY_REFUSED;
  const int64_t pieces = (w.columns + kPerBlock - 1) / kPerBlock, high = a.rows < 65535 ? a.rows : 65535;
  if (pieces > INT32_MAX) return ASSAY_REFUSED;
  const bool aligned = w.columns % 4 == 0 && (reinterpret_cast<uintptr_t>(a.y) & 15) == 0;
  return launch(d, "embed", Overlap::yes, embed_kernel, dim3((unsigned)pieces, (unsigned)high), kThreads, 0, packed_weight(w),
                a.ids, a.y, a.rows, aligned);
}

}  // namespace assay

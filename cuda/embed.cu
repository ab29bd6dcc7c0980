// y[t] = row ids[t] of the table, widened: exact for float types, rounded once for quantised ones. engine/ops/embed.cpp.
// A thread per eight elements of a row (layout.cuh, widen_8), stored as two 16-byte words where columns and address allow it.
// Bytes per element: the table's, 4 written.
// PRECOND: ids name rows of the table.
#include "cuda/device.h"
#include "cuda/layout.cuh"

namespace assay {
namespace {

constexpr int kThreads = 128, kPerBlock = 8 * kThreads;

/// Blocks: `pieces` per row.
__global__ __launch_bounds__(kThreads) void embed_kernel(PackedWeight table, const int32_t* ids, float* y, int pieces,
                                                         bool aligned) {
  const int64_t columns = table.layout.columns, row = (int)blockIdx.x / pieces;
  const int64_t first = ((int64_t)((int)blockIdx.x % pieces) * kThreads + (int)threadIdx.x) * 8;
  let_next_start();
  wait_for_previous();
  if (first >= columns) return;
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

}  // namespace

int embed(AssayDevice& d, const AssayEmbed& a) {
  if (a.rows == 0) return ASSAY_DONE;
  const AssayWeight& w = a.table;
  if (!type_known(w.type) || w.rows < 1 || w.columns < 1 || w.columns % type_file_block_columns(w.type) != 0)
    return ASSAY_REFUSED;
  const int64_t pieces = (w.columns + kPerBlock - 1) / kPerBlock;
  if (pieces > INT32_MAX / a.rows) return ASSAY_REFUSED;
  const bool aligned = w.columns % 4 == 0 && (reinterpret_cast<uintptr_t>(a.y) & 15) == 0;
  return launch(d, "embed", Overlap::yes, embed_kernel, dim3((unsigned)(a.rows * pieces)), kThreads, 0, packed_weight(w),
                a.ids, a.y, (int)pieces, aligned);
}

}  // namespace assay

// y[i] = x[index[i]], rows of `columns`. A thread per four elements, as one load where columns and addresses allow it.
// Bytes: 8 per element.
// PRECOND: indices name rows of x; y does not overlap x.
#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 256, kPerBlock = 4 * kThreads;

/// Blocks: `pieces` per row.
__global__ __launch_bounds__(kThreads) void gather_kernel(AssayGather a, int pieces, bool aligned) {
  const int64_t row = (int)blockIdx.x / pieces;
  const int64_t first = ((int64_t)((int)blockIdx.x % pieces) * kThreads + (int)threadIdx.x) * 4;
  let_next_start();
  wait_for_previous();
  if (first >= a.columns) return;
  const float* x = a.x + a.index[row] * a.columns;
  float* y = a.y + row * a.columns;
  if (aligned) {
    *reinterpret_cast<float4*>(y + first) = *reinterpret_cast<const float4*>(x + first);
    return;
  }
  for (int64_t k = first; k < a.columns && k < first + 4; k++) y[k] = x[k];
}

}  // namespace

int gather(AssayDevice& d, const AssayGather& a) {
  if (a.rows == 0 || a.columns == 0) return ASSAY_DONE;
  const int64_t pieces = (a.columns + kPerBlock - 1) / kPerBlock;
  if (pieces > INT32_MAX / a.rows) return ASSAY_REFUSED;
  const bool aligned =
      a.columns % 4 == 0 && ((reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.y)) & 15) == 0;
  return launch(d, "gather", Overlap::yes, gather_kernel, dim3((unsigned)(a.rows * pieces)), kThreads, 0, a, (int)pieces,
                aligned);
}

}  // namespace assay

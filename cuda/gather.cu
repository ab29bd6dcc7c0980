// y[i] = x[index[i]], rows of `columns`. A thread per four elements, as one load where columns and addresses allow it.
// Bytes: 8 per element.
// PRECOND: indices name rows of x; y does not overlap x.
#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 256, kPerBlock = 4 * kThreads;

/// Grid: pieces of a row, all rows as far as a grid is high.
__global__ __launch_bounds__(kThreads) void gather_kernel(AssayGather a, bool aligned) {
  const int64_t first = ((int64_t)blockIdx.x * kThreads + (int)threadIdx.x) * 4;
  let_next_start();
  wait_for_previous();
  for (int64_t row = blockIdx.y; row < a.rows; row += gridDim.y) {
    const float* x = a.x + a.index[row] * a.columns;
    float* y = a.y + row * a.columns;
    if (aligned && first < a.columns) {
      *reinterpret_cast<float4*>(y + first) = *reinterpret_cast<const float4*>(x + first);
      continue;
    }
    for (int64_t k = first; k < a.columns && k < first + 4; k++) y[k] = x[k];
  }
}

}  // namespace

int gather(AssayDevice& d, const AssayGather& a) {
  if (a.rows == 0 || a.columns == 0) return ASSAY_DONE;
  const int64_t pieces = (a.columns + kPerBlock - 1) / kPerBlock, high = a.rows < 65535 ? a.rows : 65535;
  if (pieces > INT32_MAX) return ASSAY_REFUSED;
  const bool aligned =
      a.columns % 4 == 0 && ((reinterpret_cast<uintptr_t>(a.x) | reinterpret_cast<uintptr_t>(a.y)) & 15) == 0;
  return launch(d, "gather", Overlap::yes, gather_kernel, dim3((unsigned)pieces, (unsigned)high), kThreads, 0, a, aligned);
}

}  // namespace assay

// Columns of one or several inputs side by side: engine/program.h, ColumnRun. A thread per element of y, so that writes lie side by
// side, and reads as far as runs do.
// Bytes: 8 per element.
// PRECOND: every column of y is in exactly one run, within its input.
#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 256;

__global__ __launch_bounds__(kThreads) void columns_kernel(const AssayColumns a) {
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t)blockIdx.x * kThreads + (int)threadIdx.x;
  if (i >= a.rows * a.columns) return;
  const int64_t row = i / a.columns, column = i % a.columns;
#pragma unroll
  for (int n = 0; n < 4; n++) {
    const AssayColumnRun& r = a.runs[n];
    const int64_t at = column - r.to;
    if (n >= a.count || at < 0 || at >= r.count * r.width) continue;
    a.y[i] = r.x[row * r.x_columns + r.from + at / r.width * r.stride + at % r.width];
    return;
  }
}

}  // namespace

int columns(AssayDevice& d, const AssayColumns& a) {
  const int64_t blocks = (a.rows * a.columns + kThreads - 1) / kThreads;
  if (a.count < 1 || a.count > 4 || blocks > INT32_MAX) return ASSAY_REFUSED;
  if (blocks == 0) return ASSAY_DONE;
  return launch(d, "columns", Overlap::yes, columns_kernel, dim3((unsigned)blocks), kThreads, 0, a);
}

}  // namespace assay

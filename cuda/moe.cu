// What becomes of the experts' products. expert_sum: acc = +0, acc = fma(weight, x, acc) in rank order. gated_add:
// y = fma(1 / (1 + exp(-gate)), shared, x). Fused: residual + that. engine/ops/moe.cpp, add of pointwise.cpp.
//
// A thread per column of a row. Bytes: expert_sum 4 (chosen + 1) per column, gated_add 12; 4 more with a residual.
#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 256;

/// Blocks: `pieces` per row.
__global__ __launch_bounds__(kThreads) void expert_sum_kernel(const AssayExpertSum a, int pieces) {
  const int64_t row = (int)blockIdx.x / pieces, column = (int64_t)((int)blockIdx.x % pieces) * kThreads + (int)threadIdx.x;
  let_next_start();
  wait_for_previous();
  if (column >= a.columns) return;
  const float* weights = a.weights + row * a.chosen;
  const float* x = a.x + row * a.chosen * a.columns + column;
  const int64_t at = row * a.columns + column;
  const float residual = a.residual ? a.residual[at] : 0.0f;
  float acc = 0.0f;
#pragma unroll 8
  for (int64_t r = 0; r < a.chosen; r++) acc = fma_f32(weights[r], x[r * a.columns], acc);
  a.y[at] = a.residual ? add_f32(residual, acc) : acc;
}

__global__ __launch_bounds__(kThreads) void gated_add_kernel(const AssayGatedAdd a, int pieces) {
  const int64_t row = (int)blockIdx.x / pieces, column = (int64_t)((int)blockIdx.x % pieces) * kThreads + (int)threadIdx.x;
  let_next_start();
  wait_for_previous();
  if (column >= a.columns) return;
  const int64_t at = row * a.columns + column;
  const float y = fma_f32(sigmoid_f32(a.gate[row]), a.shared[at], a.x[at]);
  a.y[at] = a.residual ? add_f32(a.residual[at], y) : y;
}

template <class Args>
int by_column(AssayDevice& d, const char* name, void (*kernel)(Args, int), const Args& a) {
  const int64_t rows = a.rows, width = a.columns, pieces = (width + kThreads - 1) / kThreads;
  if (width < 1 || pieces > INT32_MAX / (rows > 0 ? rows : 1)) return ASSAY_REFUSED;
  if (rows == 0) return ASSAY_DONE;
  return launch(d, name, Overlap::yes, kernel, dim3((unsigned)(rows * pieces)), kThreads, 0, a, (int)pieces);
}

}  // namespace

int expert_sum(AssayDevice& d, const AssayExpertSum& a) {
  return by_column<AssayExpertSum>(d, a.residual ? "expert_sum_residual" : "expert_sum", expert_sum_kernel, a);
}
int gated_add(AssayDevice& d, const AssayGatedAdd& a) {
  return by_column<AssayGatedAdd>(d, a.residual ? "gated_add_residual" : "gated_add", gated_add_kernel, a);
}

}  // namespace assay

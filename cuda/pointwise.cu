// silu_mul: y = (a / (1 + exp(-a))) * b. sigmoid_mul: y = a * (1 / (1 + exp(-b))). add: y = a + b. sigmoid: y = 1 / (1 + exp(-x)).
// decay: y = rate * softplus(x + dt), per head. engine/ops/pointwise.cpp, decay.cpp. y may be an input: a thread reads its
// elements before it writes them.
//
// A thread per four elements, as one load each where all three addresses allow it; the last one to three elements, or all where
// they don't, go one by one.
// Bytes: 12 per element, sigmoid 8. decay and sigmoid are of a few values a row: a thread each.
#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 256, kPerBlock = 4 * kThreads;

enum class Pointwise : uint8_t { silu_mul, sigmoid_mul, add };

template <Pointwise kOp>
__device__ __forceinline__ float combined(float a, float b) {
  if constexpr (kOp == Pointwise::silu_mul) return mul_f32(silu_f32(a), b);
  if constexpr (kOp == Pointwise::sigmoid_mul) return mul_f32(a, sigmoid_f32(b));
  return add_f32(a, b);
}

template <Pointwise kOp>
__global__ __launch_bounds__(kThreads) void pointwise_kernel(const float* a, const float* b, float* y, int64_t count,
                                                             bool aligned) {
  let_next_start();
  wait_for_previous();
  const int64_t first = ((int64_t)blockIdx.x * kThreads + (int)threadIdx.x) * 4;
  if (aligned && first + 4 <= count) {
    const float4 p = *reinterpret_cast<const float4*>(a + first), q = *reinterpret_cast<const float4*>(b + first);
    *reinterpret_cast<float4*>(y + first) = make_float4(combined<kOp>(p.x, q.x), combined<kOp>(p.y, q.y),
                                                        combined<kOp>(p.z, q.z), combined<kOp>(p.w, q.w));
    return;
  }
  for (int64_t i = first; i < count && i < first + 4; i++) y[i] = combined<kOp>(a[i], b[i]);
}

template <Pointwise kOp>
int pointwise(AssayDevice& d, const char* name, const AssayBinary& a) {
  const int64_t count = a.rows * a.columns, blocks = (count + kPerBlock - 1) / kPerBlock;
  if (count == 0) return ASSAY_DONE;
  if (blocks > INT32_MAX) return ASSAY_REFUSED;
  const bool aligned = ((reinterpret_cast<uintptr_t>(a.a) | reinterpret_cast<uintptr_t>(a.b) | reinterpret_cast<uintptr_t>(a.y)) &
                        15) == 0;
  return launch(d, name, Overlap::yes, pointwise_kernel<kOp>, dim3((unsigned)blocks), kThreads, 0, a.a, a.b, a.y, count, aligned);
}

__global__ __launch_bounds__(kThreads) void sigmoid_kernel(const float* x, float* y, int64_t count) {
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t)blockIdx.x * kThreads + (int)threadIdx.x;
  if (i < count) y[i] = sigmoid_f32(x[i]);
}

__global__ __launch_bounds__(kThreads) void decay_kernel(const float* x, const float* w, float* y, int64_t count, int64_t heads) {
  let_next_start();
  wait_for_previous();
  const int64_t i = (int64_t)blockIdx.x * kThreads + (int)threadIdx.x;
  if (i < count) y[i] = mul_f32(w[i % heads], softplus_f32(add_f32(x[i], w[heads + i % heads])));
}

int64_t blocks_of(int64_t count) { return (count + kThreads - 1) / kThreads; }

}  // namespace

int silu_mul(AssayDevice& d, const AssayBinary& a) { return pointwise<Pointwise::silu_mul>(d, "silu_mul", a); }
int sigmoid_mul(AssayDevice& d, const AssayBinary& a) { return pointwise<Pointwise::sigmoid_mul>(d, "sigmoid_mul", a); }
int add(AssayDevice& d, const AssayBinary& a) { return pointwise<Pointwise::add>(d, "add", a); }

int sigmoid(AssayDevice& d, const AssayUnary& a) {
  const int64_t count = a.rows * a.columns;
  if (count == 0) return ASSAY_DONE;
  if (blocks_of(count) > INT32_MAX) return ASSAY_REFUSED;
  return launch(d, "sigmoid", Overlap::yes, sigmoid_kernel, dim3((unsigned)blocks_of(count)), kThreads, 0, a.x, a.y, count);
}

int decay(AssayDevice& d, const AssayDecay& a) {
  const int64_t count = a.rows * a.heads;
  if (count == 0) return ASSAY_DONE;
  if (blocks_of(count) > INT32_MAX) return ASSAY_REFUSED;
  return launch(d, "decay", Overlap::yes, decay_kernel, dim3((unsigned)blocks_of(count)), kThreads, 0, a.x, a.w, a.y, count, a.heads);
}

}  // namespace assay

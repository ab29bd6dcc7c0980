// silu_mul: y = (a / (1 + exp(-a))) * b. add: y = a + b. engine/ops/pointwise.cpp. y may be a or b: a thread reads its
// elements before it writes them.
//
// A thread per four elements, as one load each where all three addresses allow it; the last one to three elements, or all where
// they don't, go one by one.
// Bytes: 12 per element.
#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 256, kPerBlock = 4 * kThreads;

template <bool kSilu>
__device__ __forceinline__ float combined(float a, float b) {
  return kSilu ? mul_f32(silu_f32(a), b) : add_f32(a, b);
}

template <bool kSilu>
__global__ __launch_bounds__(kThreads) void pointwise_kernel(const float* a, const float* b, float* y, int64_t count,
                                                             bool aligned) {
  let_next_start();
  wait_for_previous();
  const int64_t first = ((int64_t)blockIdx.x * kThreads + (int)threadIdx.x) * 4;
  if (aligned && first + 4 <= count) {
    const float4 p = *reinterpret_cast<const float4*>(a + first), q = *reinterpret_cast<const float4*>(b + first);
    *reinterpret_cast<float4*>(y + first) = make_float4(combined<kSilu>(p.x, q.x), combined<kSilu>(p.y, q.y),
                                                        combined<kSilu>(p.z, q.z), combined<kSilu>(p.w, q.w));
    return;
  }
  for (int64_t i = first; i < count && i < first + 4; i++) y[i] = combined<kSilu>(a[i], b[i]);
}

template <bool kSilu>
int pointwise(AssayDevice& d, const AssayBinary& a) {
  const int64_t count = a.rows * a.columns, blocks = (count + kPerBlock - 1) / kPerBlock;
  if (count == 0) return ASSAY_DONE;
  if (blocks > INT32_MAX) return ASSAY_REFUSED;
  const bool aligned = ((reinterpret_cast<uintptr_t>(a.a) | reinterpret_cast<uintptr_t>(a.b) | reinterpret_cast<uintptr_t>(a.y)) &
                        15) == 0;
  return launch(d, kSilu ? "silu_mul" : "add", Overlap::yes, pointwise_kernel<kSilu>, dim3((unsigned)blocks), kThreads, 0, a.a,
                a.b, a.y, count, aligned);
}

}  // namespace

int silu_mul(AssayDevice& d, const AssayBinary& a) { return pointwise<true>(d, a); }
int add(AssayDevice& d, const AssayBinary& a) { return pointwise<false>(d, a); }

}  // namespace assay

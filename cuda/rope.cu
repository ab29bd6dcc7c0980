// Rotary embedding of the first `rotary` dims of each head in pairs (j, j + rotary/2); the rest pass unchanged.
// engine/ops/rope.cpp. A warp per head of a row; a thread reads both elements of a pair before it writes them, so that y may
// be x. The angles are read by the row's position.
// Bytes: 8 per element, and the row of the table from the caches.
#include "cuda/device.h"
#include "cuda/head_parts.cuh"

namespace assay {
namespace {

constexpr int kRopeThreads = 128, kHeadsPerBlock = kRopeThreads / 32;

__global__ __launch_bounds__(kRopeThreads) void rope_kernel(AssayRope a) {
  const int t = lane_of_warp();
  const int64_t head = (int64_t)blockIdx.x * kHeadsPerBlock + (int)threadIdx.x / 32, pairs = a.rotary / 2;
  let_next_start();
  wait_for_previous();
  if (head >= a.rows * a.heads) return;
  const int64_t position = a.places[head / a.heads].position;
  const float *cos = a.cos + position * pairs, *sin = a.sin + position * pairs, *x = a.x + head * a.head_dim;
  float* y = a.y + head * a.head_dim;
  for (int64_t j = t; j < pairs; j += 32) {
    const Pair turned = turn({x[j], x[j + pairs]}, cos[j], sin[j]);
    y[j] = turned.first;
    y[j + pairs] = turned.second;
  }
  for (int64_t i = a.rotary + t; i < a.head_dim; i += 32) y[i] = x[i];
}

}  // namespace

int rope(AssayDevice& d, const AssayRope& a) {
  if (a.rows == 0) return ASSAY_DONE;
  const int64_t blocks = (a.rows * a.heads + kHeadsPerBlock - 1) / kHeadsPerBlock;
  if (a.rotary < 0 || a.rotary % 2 != 0 || a.rotary > a.head_dim || a.heads < 1 || blocks > INT32_MAX) return ASSAY_REFUSED;
  return launch(d, "rope", Overlap::yes, rope_kernel, dim3((unsigned)blocks), kRopeThreads, 0, a);
}

}  // namespace assay

// Causal depthwise convolution over the rows of a sequence, then silu: acc = +0; acc = fma(w[tap], input[tap], acc), the oldest
// input first; y = silu(acc). The inputs before a span's first row are its state's. engine/ops/conv.cpp.
//
// A thread per channel and chunk of 32 rows, the taps' inputs in registers. Rows do not hang on each other but through inputs, so
// chunks are independent; a span's own state is read and written by its first chunk's threads alone, channel by channel: read
// before anything is written.
// Bytes: 8 per element, a chunk's first inputs once more; state 8 per tap and channel.
// PRECOND: 1 <= width <= 8.
#include "cuda/device.h"

namespace assay {
namespace {

constexpr int kThreads = 128, kChunk = 32;

/// Blocks: [chunk][span][channels].
template <int kWidth>
__global__ __launch_bounds__(kThreads) void conv_kernel(const AssayConv a) {
  const AssayStates& s = a.states;
  const int64_t c = (int64_t)blockIdx.x * kThreads + (int)threadIdx.x, channels = s.channels, first = (int64_t)blockIdx.z * kChunk;
  const bool real = c < channels;
  let_next_start();
  float w[kWidth];
#pragma unroll
  for (int t = 0; t < kWidth; t++) w[t] = real ? a.w[t * channels + c] : 0.0f;
  wait_for_previous();
  const AssaySpan span = s.spans[blockIdx.y];
  if (!real || first >= span.rows) return;
  const float* x = a.x + span.first * channels + c;
  float* y = a.y + span.first * channels + c;
  const float* state = s.conv + span.entry * s.stride + c;
  // Input i of the sequence state[0 .. kWidth), x[0 .. rows): row r reads i = r + 1 .. r + kWidth.
  const auto input = [&](int64_t i) { return i < kWidth ? state[i * channels] : x[(i - kWidth) * channels]; };
  const auto keep = [&](int32_t entry, const float* taps) {
    float* to = s.conv + entry * s.stride + c;
#pragma unroll
    for (int t = 0; t < kWidth; t++) to[t * channels] = is_nan(taps[t]) ? canonical_nan() : taps[t];
  };
  float taps[kWidth], last[kWidth];
  if (first == 0) {
#pragma unroll
    for (int t = 0; t < kWidth; t++) last[t] = input(span.rows + t);  // before anything is written
  }
#pragma unroll
  for (int t = 0; t < kWidth; t++) taps[t] = input(first + t);
  const int64_t end = first + kChunk < span.rows ? first + kChunk : span.rows;
#pragma unroll 4
  for (int64_t r = first; r < end; r++) {
#pragma unroll
    for (int t = 0; t + 1 < kWidth; t++) taps[t] = taps[t + 1];
    taps[kWidth - 1] = x[r * channels];
    float acc = 0.0f;
#pragma unroll
    for (int t = 0; t < kWidth; t++) acc = fma_f32(w[t], taps[t], acc);
    y[r * channels] = silu_f32(acc);
    if (r + 1 < span.rows && s.after[span.first + r] >= 0) keep(s.after[span.first + r], taps);
  }
  if (const int32_t entry = s.after[span.first + span.rows - 1]; first == 0 && entry >= 0) keep(entry, last);
}

}  // namespace

int conv(AssayDevice& d, const AssayConv& a) {
  const AssayStates& s = a.states;
  const int64_t blocks = (s.channels + kThreads - 1) / kThreads, chunks = (a.rows + kChunk - 1) / kChunk;
  if (s.channels < 1 || blocks > INT32_MAX || s.span_count < 0 || s.span_count > 65535 || chunks > 65535) return ASSAY_REFUSED;
  const auto kernel = [&]() -> void (*)(AssayConv) {
    switch (s.width) {
      case 1: return conv_kernel<1>;
      case 2: return conv_kernel<2>;
      case 3: return conv_kernel<3>;
      case 4: return conv_kernel<4>;
      case 5: return conv_kernel<5>;
      case 6: return conv_kernel<6>;
      case 7: return conv_kernel<7>;
      case 8: return conv_kernel<8>;
      default: return nullptr;
    }
  }();
  if (!kernel) return ASSAY_REFUSED;
  if (a.rows == 0) return ASSAY_DONE;
  return launch(d, "conv", Overlap::yes, kernel, dim3((unsigned)blocks, (unsigned)s.span_count, (unsigned)chunks), kThreads, 0, a);
}

}  // namespace assay

// Causal depthwise convolution over the rows of a sequence, then silu:
//   acc = +0; acc = fma(w[tap], input[tap], acc) for every tap, the oldest input first; y = silu(acc)
// The inputs before a span's first row are the slot's state: the last `width` inputs, oldest first, zeros where the
// sequence is shorter. The oldest of them is one more than the first row needs. Afterwards the state holds the last
// `width` inputs up to the span's last row. NaNs are stored as the canonical one, so that a state has the same bytes
// everywhere.
#include "engine/ops/op.h"
#ifndef ASSAY_ISA_scalar
#include "engine/ops/simd.h"
#endif

namespace assay::inline ASSAY_ISA {

#ifdef ASSAY_ISA_scalar

ASSAY_NUMERICS_FN void conv_block(const ConvArgs& a, const RowSpan& s, int64_t first, int64_t last) {
  float* state = a.state + s.slot * a.width * a.channels;
  const float* x = a.x + s.first * a.channels;
  float* y = a.y + s.first * a.channels;
  for (int64_t c = first; c < last; c++) {
    // Input i of the sequence state[0 .. width), x[0 .. rows): row r reads i = r + 1 .. r + width.
    const auto input = [&](int64_t i) {
      return i < a.width ? state[i * a.channels + c] : x[(i - a.width) * a.channels + c];
    };
    for (int64_t r = 0; r < s.rows; r++) {
      float acc = 0.0f;
      for (int64_t t = 0; t < a.width; t++) acc = fma_f32(a.w[t * a.channels + c], input(r + 1 + t), acc);
      y[r * a.channels + c] = silu_f32(acc);
    }
    for (int64_t t = 0; t < a.width; t++) {  // rising, so that what is read still is what was there
      const float kept = input(s.rows + t);
      state[t * a.channels + c] = is_nan(kept) ? canonical_nan() : kept;
    }
  }
}

#else

ASSAY_V void conv_block(const ConvArgs& a, const RowSpan& s, int64_t first, int64_t last) {
  float* state = a.state + s.slot * a.width * a.channels;
  const float* x = a.x + s.first * a.channels;
  float* y = a.y + s.first * a.channels;
  for (int64_t c = first; c < last; c += kLanes) {
    const int64_t n = last - c;
    const auto input = [&](int64_t i) __attribute__((always_inline)) {
      return v_load_n((i < a.width ? state + i * a.channels : x + (i - a.width) * a.channels) + c, n);
    };
    for (int64_t r = 0; r < s.rows; r++) {
      vf acc = v_zero();
      for (int64_t t = 0; t < a.width; t++) acc = v_fma(v_load_n(a.w + t * a.channels + c, n), input(r + 1 + t), acc);
      v_store_n(y + r * a.channels + c, v_silu(acc), n);
    }
    for (int64_t t = 0; t < a.width; t++) {
      const vf kept = input(s.rows + t);
      v_store_n(state + t * a.channels + c, v_nan_from(kept, kept), n);
    }
  }
}

#endif

void conv(const ConvArgs& a, int64_t begin, int64_t end) {
  const int64_t blocks = conv_blocks(a.channels);
  for (int64_t item = begin; item < end; item++) {
    const int64_t first = item % blocks * kConvBlock, last = first + kConvBlock;
    conv_block(a, a.spans[item / blocks], first, last < a.channels ? last : a.channels);
  }
}

}  // namespace assay::inline ASSAY_ISA

// Activations to integers, per group of 32 along K (NUMERICS.md, rule 1): amax = the largest |x| as integer bits. Inf
// or NaN in the group: the scale is NaN and every code 0. Else s = amax < 2^-100 ? +0 : amax / Q, code = x / s clamped
// to
// [-Q, Q] and rounded to nearest even, 0 where s = 0. Q = 32639 (s16) or 127 (s8). Error per element: at most 0.501 s
// (s16) or 0.50001 s (s8). Plain loops that every compiler makes vectors of.
#include "engine/ops/op.h"

namespace assay::inline ASSAY_ISA {

constexpr int kGroup = 32;

/// Nearest even for |v| < 2^22: the sum's last bits are the integer.
ASSAY_NUMERICS_FN int32_t nearest_int(float v) {
  return (int32_t)(bits_of(add_f32(v, 12582912.0f)) - 0x4b400000u);
}

/// Codes of one group; returns its scale.
ASSAY_NUMERICS_FN float quantise_group(const float* x, float q, int32_t* codes) {
  int32_t amax = 0;
  for (int i = 0; i < kGroup; i++) {
    const int32_t bits = (int32_t)(bits_of(x[i]) & 0x7fffffffu);
    amax = amax > bits ? amax : bits;
  }
  const float largest = float_of((uint32_t)amax);
  if (amax >= 0x7f800000 || largest < 0x1p-100f) {
    for (int i = 0; i < kGroup; i++) codes[i] = 0;
    return amax >= 0x7f800000 ? canonical_nan() : 0.0f;
  }
  const float s = div_f32(largest, q);
  for (int i = 0; i < kGroup; i++) {
    float v = div_f32(x[i], s);
    v = v > q ? q : v;
    v = v < -q ? -q : v;
    codes[i] = nearest_int(v);
  }
  return s;
}

void quantise(const QuantiseArgs& a, int64_t begin, int64_t end) {
  const QuantisedRows& out = a.out;
  const float q = out.kind == Activations::s16 ? 32639.0f : 127.0f;
  int32_t codes[kGroup];
  for (int64_t g = begin; g < end; g++) {
    out.scales[g] = quantise_group(a.x + g * kGroup, q, codes);
    int32_t low = 0, high = 0;
    for (int i = 0; i < 16; i++) low += codes[i];
    for (int i = 16; i < 32; i++) high += codes[i];
    out.sums[2 * g] = low;
    out.sums[2 * g + 1] = high;
    if (out.code_bytes == 2) {
      int16_t* to = reinterpret_cast<int16_t*>(out.codes) + g * kGroup;
      for (int i = 0; i < kGroup; i++) to[i] = (int16_t)codes[i];
    } else {
      int8_t* to = reinterpret_cast<int8_t*>(out.codes) + g * kGroup;
      for (int i = 0; i < kGroup; i += 4) {
        to[i] = (int8_t)codes[i];
        to[i + 1] = (int8_t)codes[i + 2];
        to[i + 2] = (int8_t)codes[i + 1];
        to[i + 3] = (int8_t)codes[i + 3];
      }
    }
  }
}

}  // namespace assay::inline ASSAY_ISA

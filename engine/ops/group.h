// One group of 32 along a quantised row, as the rule of quantised sums reads it: unsigned codes and scales, straight
// from the file's blocks (formats/quant.h). Scalar code; static, since op files include it (op.h).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "engine/formats/quant.h"
#include "engine/numerics.h"
#include "engine/ops/panel.h"

namespace assay {

ASSAY_NUMERICS_FN uint32_t group_u8(const std::byte* p) {
  return (uint32_t) * reinterpret_cast<const unsigned char*>(p);
}
ASSAY_NUMERICS_FN uint16_t group_u16(const std::byte* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}

ASSAY_NUMERICS_FN const std::byte* group_block(WeightType t, const std::byte* row, int64_t g) {
  switch (t) {
    case WeightType::q8_0:
      return row + g * 34;
    case WeightType::q4_0:
      return row + g * 18;
    case WeightType::q4_1:
      return row + g * 20;
    case WeightType::q5_0:
      return row + g * 22;
    case WeightType::q5_1:
      return row + g * 24;
    case WeightType::q4_k:
      return row + g / 8 * 144;
    case WeightType::q5_k:
      return row + g / 8 * 176;
    default:
      return row + g / 8 * 210;  // q6_k
  }
}

/// Unsigned codes of group g: what the file holds, Q8_0 + 128. Less code_bias() they are the rule's w.
ASSAY_NUMERICS_FN void group_codes(WeightType t, const std::byte* row, int64_t g, uint8_t* out) {
  const std::byte* b = group_block(t, row, g);
  const int j = (int)(g % 8);  // K-quants: group of the block
  switch (t) {
    case WeightType::q8_0:
      for (int i = 0; i < 32; i++) out[i] = (uint8_t)(group_u8(b + 2 + i) ^ 128u);
      return;
    case WeightType::q4_0:
    case WeightType::q4_1: {
      const std::byte* codes = b + (t == WeightType::q4_0 ? 2 : 4);
      for (int i = 0; i < 16; i++) {
        const uint32_t pair = group_u8(codes + i);
        out[i] = (uint8_t)(pair & 15u);
        out[i + 16] = (uint8_t)(pair >> 4);
      }
      return;
    }
    case WeightType::q5_0:
    case WeightType::q5_1: {
      const std::byte* high = b + (t == WeightType::q5_0 ? 2 : 4);
      for (int i = 0; i < 16; i++) {
        const uint32_t pair = group_u8(high + 4 + i);
        const uint32_t bit = group_u8(high + i / 8) >> (i % 8) & 1u, bit16 = group_u8(high + 2 + i / 8) >> (i % 8) & 1u;
        out[i] = (uint8_t)((pair & 15u) | bit << 4);
        out[i + 16] = (uint8_t)(pair >> 4 | bit16 << 4);
      }
      return;
    }
    case WeightType::q4_k:
    case WeightType::q5_k: {  // two groups share 32 bytes: the even one their low nibbles, the odd one the high
      const std::byte* codes = b + (t == WeightType::q4_k ? 16 : 48) + 32 * (j / 2);
      for (int i = 0; i < 32; i++) {
        out[i] = (uint8_t)(group_u8(codes + i) >> (4 * (j % 2)) & 15u);
        if (t == WeightType::q5_k) out[i] = (uint8_t)(out[i] | (group_u8(b + 16 + i) >> j & 1u) << 4);
      }
      return;
    }
    default: {  // q6_k
      const int half = j / 4, quarter = j % 4;
      for (int i = 0; i < 32; i++) {
        const uint32_t low = group_u8(b + 64 * half + 32 * (quarter % 2) + i) >> (quarter / 2 * 4) & 15u;
        const uint32_t high = group_u8(b + 128 + 32 * half + i) >> (2 * quarter) & 3u;
        out[i] = (uint8_t)(low | high << 4);
      }
      return;
    }
  }
}

/// K-quants of 4 and 5 bits: the 6-bit scale (which = 0) or minimum (1) of group j of a block. `packed`: its 12 bytes.
ASSAY_NUMERICS_FN uint32_t k_scale(const std::byte* packed, int j, int which) {
  if (j < 4) return group_u8(packed + j + 4 * which) & 63u;
  const uint32_t low = group_u8(packed + j + 4) >> (4 * which) & 15u;
  return low | (group_u8(packed + j - 4 + 4 * which) >> 6) << 4;
}

/// Scales of a group: sw of elements 0-15 and 16-31 (equal but for Q6_K) and mw with the sign of the format (+0: none).
struct GroupScales {
  float low, high, minimum;
};
ASSAY_NUMERICS_FN GroupScales group_scales(WeightType t, const std::byte* row, int64_t g) {
  const std::byte* b = group_block(t, row, g);
  const int j = (int)(g % 8);
  if (t == WeightType::q6_k) {
    const float d = f32_of_f16(group_u16(b + 208));
    const int low = (int)(signed char)group_u8(b + 192 + 2 * j), high = (int)(signed char)group_u8(b + 193 + 2 * j);
    return {mul_f32(d, (float)low), mul_f32(d, (float)high), 0.0f};
  }
  const float d = f32_of_f16(group_u16(b));
  if (t == WeightType::q4_k || t == WeightType::q5_k) {
    const float scale = mul_f32(d, (float)(int)k_scale(b + 4, j, 0));
    return {scale, scale, -mul_f32(f32_of_f16(group_u16(b + 2)), (float)(int)k_scale(b + 4, j, 1))};
  }
  return {d, d, has_minimum(t) ? f32_of_f16(group_u16(b + 2)) : 0.0f};
}

}  // namespace assay

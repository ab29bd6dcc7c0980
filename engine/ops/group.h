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

ASSAY_NUMERICS_FN uint16_t load_u16(const std::byte* p) {
  uint16_t v;
  memcpy(&v, p, 2);
  return v;
}
ASSAY_NUMERICS_FN uint32_t load_u32(const std::byte* p) {
  uint32_t v;
  memcpy(&v, p, 4);
  return v;
}
ASSAY_NUMERICS_FN float load_f32(const std::byte* p) {
  float v;
  memcpy(&v, p, 4);
  return v;
}
ASSAY_NUMERICS_FN int load_u8(const std::byte* p) {
  return (int)*reinterpret_cast<const unsigned char*>(p);
}
ASSAY_NUMERICS_FN int load_i8(const std::byte* p) {
  return (int)*reinterpret_cast<const signed char*>(p);
}

/// Scale and minimum of group g of a Q4_K or Q5_K block (formats/quant.h), 6 bits each; `scales` are the packed 12
/// bytes.
ASSAY_NUMERICS_FN int k_scale(const std::byte* scales, int g) {
  return g < 4 ? load_u8(scales + g) & 63 : (load_u8(scales + g + 4) & 15) | load_u8(scales + g - 4) >> 6 << 4;
}
ASSAY_NUMERICS_FN int k_minimum(const std::byte* scales, int g) {
  return g < 4 ? load_u8(scales + g + 4) & 63 : load_u8(scales + g + 4) >> 4 | load_u8(scales + g) >> 6 << 4;
}
/// sw and mw of group g of a Q4_K or Q5_K block: d * scale and -(dmin * minimum), exact in f32 (11 + 6 bits).
ASSAY_NUMERICS_FN float k_group_scale(const std::byte* block, int g) {
  return mul_f32(f32_of_f16(load_u16(block)), (float)k_scale(block + offsetof(BlockQ4_K, scales), g));
}
ASSAY_NUMERICS_FN float k_group_minimum(const std::byte* block, int g) {
  const float dmin = f32_of_f16(load_u16(block + offsetof(BlockQ4_K, dmin)));
  return -mul_f32(dmin, (float)k_minimum(block + offsetof(BlockQ4_K, scales), g));
}

/// The block that holds group g of a row.
ASSAY_NUMERICS_FN const std::byte* group_block(WeightType t, const std::byte* row, int64_t g) {
  switch (t) {
    case WeightType::q8_0:
      return row + g * (int64_t)sizeof(BlockQ8_0);
    case WeightType::q4_0:
      return row + g * (int64_t)sizeof(BlockQ4_0);
    case WeightType::q4_1:
      return row + g * (int64_t)sizeof(BlockQ4_1);
    case WeightType::q5_0:
      return row + g * (int64_t)sizeof(BlockQ5_0);
    case WeightType::q5_1:
      return row + g * (int64_t)sizeof(BlockQ5_1);
    case WeightType::q4_k:
      return row + g / 8 * (int64_t)sizeof(BlockQ4_K);
    case WeightType::q5_k:
      return row + g / 8 * (int64_t)sizeof(BlockQ5_K);
    default:
      return row + g / 8 * (int64_t)sizeof(BlockQ6_K);
  }
}

/// Unsigned codes of group g: what the file holds, Q8_0 + 128. Less code_bias() they are the rule's w.
ASSAY_NUMERICS_FN void group_codes(WeightType t, const std::byte* row, int64_t g, uint8_t* out) {
  const std::byte* b = group_block(t, row, g);
  const int j = (int)(g % 8);  // K-quants: group of the block
  switch (t) {
    case WeightType::q8_0:
      for (int i = 0; i < 32; i++) out[i] = (uint8_t)(load_u8(b + offsetof(BlockQ8_0, codes) + i) ^ 128);
      return;
    case WeightType::q4_0:
    case WeightType::q4_1: {
      const std::byte* codes = b + (t == WeightType::q4_0 ? offsetof(BlockQ4_0, codes) : offsetof(BlockQ4_1, codes));
      for (int i = 0; i < 16; i++) {
        const int pair = load_u8(codes + i);
        out[i] = (uint8_t)(pair & 15);
        out[i + 16] = (uint8_t)(pair >> 4);
      }
      return;
    }
    case WeightType::q5_0:
    case WeightType::q5_1: {
      const bool zero = t == WeightType::q5_0;
      const uint32_t high = load_u32(b + (zero ? offsetof(BlockQ5_0, high) : offsetof(BlockQ5_1, high)));
      const std::byte* codes = b + (zero ? offsetof(BlockQ5_0, codes) : offsetof(BlockQ5_1, codes));
      for (int i = 0; i < 16; i++) {
        const int pair = load_u8(codes + i);
        out[i] = (uint8_t)((uint32_t)(pair & 15) | (high >> i & 1u) << 4);
        out[i + 16] = (uint8_t)((uint32_t)(pair >> 4) | (high >> (i + 16) & 1u) << 4);
      }
      return;
    }
    case WeightType::q4_k:
    case WeightType::q5_k: {  // two groups share 32 bytes: the even one their low nibbles, the odd one the high
      const size_t at = t == WeightType::q4_k ? offsetof(BlockQ4_K, codes) : offsetof(BlockQ5_K, codes);
      const std::byte* codes = b + at + 32 * (j / 2);
      for (int i = 0; i < 32; i++) {
        out[i] = (uint8_t)(load_u8(codes + i) >> (4 * (j % 2)) & 15);
        if (t == WeightType::q5_k)
          out[i] = (uint8_t)(out[i] | (load_u8(b + offsetof(BlockQ5_K, high) + i) >> j & 1) << 4);
      }
      return;
    }
    default: {  // q6_k
      const int half = j / 4, quarter = j % 4;
      for (int i = 0; i < 32; i++) {
        const int low = load_u8(b + 64 * half + 32 * (quarter % 2) + i) >> (quarter / 2 * 4) & 15;
        const int high = load_u8(b + offsetof(BlockQ6_K, high) + 32 * half + i) >> (2 * quarter) & 3;
        out[i] = (uint8_t)(low | high << 4);
      }
      return;
    }
  }
}

/// Scales of a group: sw of elements 0-15 and 16-31 (equal but for Q6_K) and mw with the sign of the format (+0: none).
struct GroupScales {
  float low, high, minimum;
};
ASSAY_NUMERICS_FN GroupScales group_scales(WeightType t, const std::byte* row, int64_t g) {
  const std::byte* b = group_block(t, row, g);
  const int j = (int)(g % 8);
  if (t == WeightType::q6_k) {
    const float d = f32_of_f16(load_u16(b + offsetof(BlockQ6_K, d)));
    const std::byte* scales = b + offsetof(BlockQ6_K, scales) + 2 * j;
    return {mul_f32(d, (float)load_i8(scales)), mul_f32(d, (float)load_i8(scales + 1)), 0.0f};
  }
  if (t == WeightType::q4_k || t == WeightType::q5_k) {
    const float scale = k_group_scale(b, j);
    return {scale, scale, k_group_minimum(b, j)};
  }
  const float d = f32_of_f16(load_u16(b));
  return {d, d, has_minimum(t) ? f32_of_f16(load_u16(b + offsetof(BlockQ4_1, m))) : 0.0f};
}

}  // namespace assay

// How a weight matrix lies in device memory, and how one element of it is read and widened. pack.cu writes this layout,
// quant_group.cuh takes it apart for integer products, everybody else reads it through widened() and widen_8().
//
// Quantised types: row-major planes. K is padded to whole blocks of 256 columns (8 groups of 32; not the file's blocks);
// B = ceil(K / 256), Q = ceil(B / 4) quads of blocks, group g = 8 b + j, so that j = g mod 8 is the lane of the rule
// (engine/NUMERICS.md) and the eight threads of a row, one per lane, read 128 contiguous bytes.
//   codes   [row][b][part][j] 16 bytes. Types of 4 to 6 bits, one part: byte i holds code i in its low and code i + 16 in its
//           high nibble. Q8_0, two parts: codes 0-15, then 16-31.
//   high    [row][b][j]. Q5_0, Q5_1, Q5_K: a word of 4 bytes, bit 8 e + i: the fifth bit of code 4 i + e. Q6_K: two words,
//           word i / 4, bits 8 e + 2 (i mod 4): the upper two bits of code 4 i + e.
//   scales  [row][q][j][b mod 4]. Q8_0, Q4_0, Q5_0: 2 bytes, binary16 d. Q4_1, Q5_1: 4 bytes {d, m}. Q4_K, Q5_K: 2 bytes
//           {scale, minimum}, u8 of 6 bits. Q6_K: 2 bytes, the int8 scales of the two halves.
//   super   [row][q][b mod 4] 4 bytes, K-quants only: {d, dmin} binary16; Q6_K {d, 0}.
// Types without a minimum store their codes less the format's 8, 16 or 32, in two's complement of 4, 5 or 6 bits, so that a
// shift to the top of a byte makes a signed byte of them (16, 8 or 4 times the code: a power of two that goes into the scale
// exactly); types with a minimum store them unsigned, Q8_0 as it is. Padding: codes, scales and super are zero bits.
//
// Bytes per weight against the file's, columns a multiple of 1024: Q8_0, Q4_0, Q4_1, Q5_0, Q5_1 the same; Q4_K 148/144
// (+2.8%), Q5_K 180/176 (+2.3%), Q6_K 212/210 (+1.0%). Other widths pay for padding: up to 224 columns of codes and high
// bits and 992 columns of scales, e.g. Q4_0 of 9728 columns +0.6%, Q4_K of 11008 +2.9%.
//
// F32, F16, BF16: rows padded with zeros to a multiple of 8 elements, so that a row starts at a multiple of 16 bytes.
#pragma once
#include <cstddef>
#include <cstdint>

#include "cuda/prim.cuh"
#include "engine/abi.h"

namespace assay {

constexpr int kGroupColumns = 32, kBlockColumns = 256, kBlockGroups = 8, kQuadBlocks = 4;
constexpr int kQuadGroups = kQuadBlocks * kBlockGroups, kQuadColumns = kQuadBlocks * kBlockColumns;

// ---- types, by their number in abi.h
constexpr bool type_quantised(int32_t type) { return type >= ASSAY_Q8_0 && type < ASSAY_TYPES; }
constexpr bool type_known(int32_t type) { return type >= ASSAY_F32 && type < ASSAY_TYPES; }
/// Bytes of an element of a type that is not quantised.
constexpr int type_float_bytes(int32_t type) { return type == ASSAY_F32 ? 4 : 2; }
constexpr bool type_k_quant(int32_t type) { return type == ASSAY_Q4_K || type == ASSAY_Q5_K || type == ASSAY_Q6_K; }
constexpr bool type_has_minimum(int32_t type) {
  return type == ASSAY_Q4_1 || type == ASSAY_Q5_1 || type == ASSAY_Q4_K || type == ASSAY_Q5_K;
}
constexpr int type_code_bits(int32_t type) {
  return type == ASSAY_Q8_0 ? 8
         : type == ASSAY_Q6_K ? 6
         : type == ASSAY_Q5_0 || type == ASSAY_Q5_1 || type == ASSAY_Q5_K ? 5
                                                                         : 4;
}
/// 16-byte parts that the codes of a group take.
constexpr int type_code_parts(int32_t type) { return type == ASSAY_Q8_0 ? 2 : 1; }
/// Bytes of a group in the plane of high bits.
constexpr int type_high_bytes(int32_t type) { return type_code_bits(type) == 5 ? 4 : type_code_bits(type) == 6 ? 8 : 0; }
/// Bytes of a group in the plane of scales.
constexpr int type_scale_bytes(int32_t type) { return type == ASSAY_Q4_1 || type == ASSAY_Q5_1 ? 4 : 2; }
/// The bit that a stored code is the unsigned code xor'ed with: the sign, for types without a minimum.
constexpr int type_sign_bit(int32_t type) { return type_has_minimum(type) ? 0 : 1 << (type_code_bits(type) - 1); }
/// Columns of the file's blocks: a row is a whole number of them.
constexpr int type_file_block_columns(int32_t type) {
  return !type_quantised(type) ? 1 : type_k_quant(type) ? kBlockColumns : kGroupColumns;
}

/// Strides of a row and offsets of the planes, in bytes. The codes begin at 0; planes begin at multiples of 256.
struct PackedLayout {
  int64_t rows = 0, columns = 0;
  int64_t blocks = 0, quads = 0;  // B and Q; 0 for float types
  int64_t codes_row = 0, high_row = 0, scales_row = 0, super_row = 0;
  int64_t high = 0, scales = 0, super = 0;
  int64_t bytes = 0;
};
/// Preconditions: a known type; rows, columns > 0; columns a multiple of the file's blocks.
constexpr PackedLayout packed_layout(int32_t type, int64_t rows, int64_t columns) {
  PackedLayout l;
  l.rows = rows;
  l.columns = columns;
  if (!type_quantised(type)) {
    l.codes_row = (columns + 7) / 8 * 8 * type_float_bytes(type);
    l.bytes = (rows * l.codes_row + 255) / 256 * 256;
    return l;
  }
  l.blocks = (columns + kBlockColumns - 1) / kBlockColumns;
  l.quads = (l.blocks + kQuadBlocks - 1) / kQuadBlocks;
  l.codes_row = l.blocks * kBlockGroups * 16 * type_code_parts(type);
  l.high_row = l.blocks * kBlockGroups * type_high_bytes(type);
  l.scales_row = l.quads * kQuadGroups * type_scale_bytes(type);
  l.super_row = type_k_quant(type) ? l.quads * kQuadBlocks * 4 : 0;
  l.high = (rows * l.codes_row + 255) / 256 * 256;
  l.scales = (l.high + rows * l.high_row + 255) / 256 * 256;
  l.super = (l.scales + rows * l.scales_row + 255) / 256 * 256;
  l.bytes = (l.super + rows * l.super_row + 255) / 256 * 256;
  return l;
}

/// A packed matrix as kernels take it, by value.
struct PackedWeight {
  const unsigned char* data = nullptr;
  int32_t type = ASSAY_F32;
  PackedLayout layout;
};
inline PackedWeight packed_weight(const AssayWeight& w) {
  return {static_cast<const unsigned char*>(w.data), w.type, packed_layout(w.type, w.rows, w.columns)};
}

// ---- device: elements of a row
/// Scales of a group: of elements 0-15 and 16-31 (equal but for Q6_K) and the minimum with the sign of the format (+0: none).
/// All are exact.
struct WidenedScales {
  float low, high, minimum;
};
template <int32_t kType>
__device__ __forceinline__ WidenedScales widened_scales(const PackedWeight& w, int64_t row, int64_t g) {
  const int64_t b = g / kBlockGroups, at = ((b / kQuadBlocks) * kBlockGroups + g % kBlockGroups) * kQuadBlocks + b % kQuadBlocks;
  const unsigned char* scale = w.data + w.layout.scales + row * w.layout.scales_row + at * type_scale_bytes(kType);
  if constexpr (!type_k_quant(kType)) {
    const float d = widen_f16(*reinterpret_cast<const uint16_t*>(scale));
    if constexpr (type_has_minimum(kType)) return {d, d, widen_f16(*reinterpret_cast<const uint16_t*>(scale + 2))};
    return {d, d, 0.0f};
  } else {
    const uint32_t both = *reinterpret_cast<const uint32_t*>(w.data + w.layout.super + row * w.layout.super_row + b * 4);
    const float d = widen_f16(both & 0xffffu);
    if constexpr (kType == ASSAY_Q6_K) {
      return {mul_f32(d, (float)(int32_t)(int8_t)scale[0]), mul_f32(d, (float)(int32_t)(int8_t)scale[1]), 0.0f};
    } else {
      const float s = mul_f32(d, (float)(int32_t)scale[0]);
      return {s, s, -mul_f32(widen_f16(both >> 16), (float)(int32_t)scale[1])};
    }
  }
}

/// Codes k .. k + 7 of a row as the rule's integers w. Precondition: a quantised type, k a multiple of 8.
template <int32_t kType>
__device__ __forceinline__ void codes_8(const PackedWeight& w, int64_t row, int64_t k, int32_t* out) {
  const int64_t g = k / kGroupColumns, b = g / kBlockGroups, j = g % kBlockGroups;
  const int first = (int)(k % kGroupColumns), half = first / 16;
  const int64_t part = type_code_parts(kType) == 2 ? half : 0;
  const uint2 words = *reinterpret_cast<const uint2*>(w.data + row * w.layout.codes_row +
                                                      ((b * type_code_parts(kType) + part) * kBlockGroups + j) * 16 + first % 16);
  const unsigned char* high = w.data + w.layout.high + row * w.layout.high_row + g * type_high_bytes(kType);
#pragma unroll
  for (int n = 0; n < 2; n++) {
    const int i = first / 4 + n;  // codes 4 i .. 4 i + 3
    uint32_t v = n == 0 ? words.x : words.y;
    if constexpr (kType != ASSAY_Q8_0) v = (half ? v >> 4 : v) & 0x0f0f0f0fu;
    if constexpr (type_code_bits(kType) == 5) v |= (*reinterpret_cast<const uint32_t*>(high) >> i & 0x01010101u) << 4;
    if constexpr (type_code_bits(kType) == 6) {
      v |= (reinterpret_cast<const uint32_t*>(high)[half] >> (2 * (i % 4)) & 0x03030303u) << 4;
    }
#pragma unroll
    for (int e = 0; e < 4; e++) {
      const int32_t code = (int32_t)(v >> (8 * e) & 0xffu);
      out[4 * n + e] = (code ^ type_sign_bit(kType)) - type_sign_bit(kType);
    }
  }
}

/// Elements k .. k + 7 of a row, each the exact sw * w + mw rounded once to f32. Precondition: k a multiple of 8; for float
/// types k + 7 may lie in the padding (zeros).
template <int32_t kType>
__device__ __forceinline__ void widen_8(const PackedWeight& w, int64_t row, int64_t k, float* out) {
  if constexpr (kType == ASSAY_F32) {
    const uint4* p = reinterpret_cast<const uint4*>(w.data + row * w.layout.codes_row + k * 4);
    const uint4 a = p[0], b = p[1];
    const uint32_t words[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int i = 0; i < 8; i++) out[i] = float_of(words[i]);
  } else if constexpr (!type_quantised(kType)) {
    const uint4 a = *reinterpret_cast<const uint4*>(w.data + row * w.layout.codes_row + k * 2);
    const uint32_t words[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      out[2 * i] = kType == ASSAY_F16 ? widen_f16(words[i] & 0xffffu) : widen_bf16(words[i] & 0xffffu);
      out[2 * i + 1] = kType == ASSAY_F16 ? widen_f16(words[i] >> 16) : widen_bf16(words[i] >> 16);
    }
  } else {
    int32_t code[8];
    codes_8<kType>(w, row, k, code);
    const WidenedScales s = widened_scales<kType>(w, row, k / kGroupColumns);
    const float scale = k % kGroupColumns < 16 ? s.low : s.high;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      out[i] = type_has_minimum(kType) ? fma_f32(scale, (float)code[i], s.minimum) : mul_f32(scale, (float)code[i]);
    }
  }
}

/// The same where the type is known only at run time: a uniform branch, slow to compile, meant for small kernels.
__device__ __forceinline__ void widen_8(const PackedWeight& w, int64_t row, int64_t k, float* out) {
  switch (w.type) {
    case ASSAY_F32: return widen_8<ASSAY_F32>(w, row, k, out);
    case ASSAY_F16: return widen_8<ASSAY_F16>(w, row, k, out);
    case ASSAY_BF16: return widen_8<ASSAY_BF16>(w, row, k, out);
    case ASSAY_Q8_0: return widen_8<ASSAY_Q8_0>(w, row, k, out);
    case ASSAY_Q4_0: return widen_8<ASSAY_Q4_0>(w, row, k, out);
    case ASSAY_Q4_1: return widen_8<ASSAY_Q4_1>(w, row, k, out);
    case ASSAY_Q5_0: return widen_8<ASSAY_Q5_0>(w, row, k, out);
    case ASSAY_Q5_1: return widen_8<ASSAY_Q5_1>(w, row, k, out);
    case ASSAY_Q4_K: return widen_8<ASSAY_Q4_K>(w, row, k, out);
    case ASSAY_Q5_K: return widen_8<ASSAY_Q5_K>(w, row, k, out);
    default: return widen_8<ASSAY_Q6_K>(w, row, k, out);
  }
}

/// Element k of a row, widened.
template <int32_t kType>
__device__ __forceinline__ float widened(const PackedWeight& w, int64_t row, int64_t k) {
  float all[8];
  widen_8<kType>(w, row, k / 8 * 8, all);
  float y = all[0];
#pragma unroll
  for (int i = 1; i < 8; i++) y = k % 8 == i ? all[i] : y;  // no indexed registers
  return y;
}
__device__ __forceinline__ float widened(const PackedWeight& w, int64_t row, int64_t k) {
  float all[8];
  widen_8(w, row, k / 8 * 8, all);
  float y = all[0];
#pragma unroll
  for (int i = 1; i < 8; i++) y = k % 8 == i ? all[i] : y;
  return y;
}

}  // namespace assay

// Panels: quantised weights repacked for SIMD, 16 rows side by side, so that a vector's lane is a row and no sum is
// ever taken across lanes. One layout serves AVX2, AVX-512 (with and without VNNI) and NEON, s16 and s8 activations.
//
// A panel is rows 16p .. 16p+15 of a matrix (missing rows at the end: codes and scales of zero), and holds, in this
// order, each part aligned to 64 bytes, G = columns / 32 groups:
//   codes   per group 256 bytes (types of 4 to 6 bits: their low nibbles) or 512 bytes (Q8_0), in steps of 64 bytes.
//           A step has 32 bits of each row. Nibbles: byte b of row r in step i holds in its low nibble the code of
//           k = 8 i + order(b), in its high nibble that of k + 4, order = 0, 2, 1, 3. Bytes: the code of 4 i +
//           order(b). By that order the even and the odd bytes are, as words, neighbours in k, as 16-bit products want
//           them. Codes are unsigned: Q8_0 + 128; the others as in the file, without their 8, 16 or 32 taken off
//           (code_bias).
//   high    Q5: per group 64 bytes, bit 8 b + s of row r: the fifth bit of the code in byte b of half-step s = 2 i +
//   (high
//           nibble). Q6_K: per group 128 bytes, bits 8 b + 2 (s mod 4) of row r in vector s / 4.
//   scales  per group 16 binary16 d, then 16 m where the type has a minimum. K-quants, per 8 groups: 16 binary16 d, 16
//           dmin (not Q6_K), then per group 16 scales and 16 minima (u8); Q6_K: 16 scales (i8) of each half of a group.
#pragma once
#include <cstddef>
#include <cstdint>

#include "engine/model.h"

// Functions are static: op files include this (NUMERICS.md "ISA files").
namespace assay {

inline constexpr int64_t kPanelRows = 16;

/// Offsets and sizes in bytes of one panel of a quantised type.
struct PanelLayout {
  int64_t groups = 0;
  size_t codes = 0, high = 0, scales = 0;  // offsets in the panel
  size_t bytes = 0;                        // of the panel, a multiple of 64
};
[[maybe_unused]] static constexpr int code_bits(WeightType t) {
  return t == WeightType::q8_0                                                     ? 8
         : t == WeightType::q6_k                                                   ? 6
         : t == WeightType::q5_0 || t == WeightType::q5_1 || t == WeightType::q5_k ? 5
                                                                                   : 4;
}
[[maybe_unused]] static constexpr bool is_k_quant(WeightType t) {
  return t == WeightType::q4_k || t == WeightType::q5_k || t == WeightType::q6_k;
}
[[maybe_unused]] static constexpr bool has_minimum(WeightType t) {
  return t == WeightType::q4_1 || t == WeightType::q5_1 || t == WeightType::q4_k || t == WeightType::q5_k;
}
/// What is taken off an unsigned code of a panel to get the rule's w.
[[maybe_unused]] static constexpr int code_bias(WeightType t) {
  return has_minimum(t) ? 0 : t == WeightType::q8_0 ? 128 : t == WeightType::q6_k ? 32 : t == WeightType::q5_0 ? 16 : 8;
}
[[maybe_unused]] static constexpr PanelLayout panel_layout(WeightType t, int64_t columns) {
  const auto up = [](size_t n) { return (n + 63) / 64 * 64; };
  PanelLayout l;
  l.groups = columns / 32;
  const size_t groups = size_t(l.groups);
  l.high = groups * (code_bits(t) == 8 ? 512 : 256);
  l.scales = l.high + groups * (code_bits(t) == 5 ? 64 : code_bits(t) == 6 ? 128 : 0);
  const size_t scales = t == WeightType::q6_k ? groups / 8 * (32 + 8 * 32)
                        : is_k_quant(t)       ? groups / 8 * (64 + 8 * 32)
                                              : groups * (has_minimum(t) ? 64 : 32);
  l.bytes = up(l.scales + scales);
  return l;
}
[[maybe_unused]] static constexpr int64_t panels_of(const Matrix& m) {
  return (m.rows + kPanelRows - 1) / kPanelRows;
}
/// Bytes of all panels of a quantised matrix: what repacking adds to the memory of the file.
[[maybe_unused]] static constexpr size_t panel_bytes(const Matrix& m) {
  return size_t(panels_of(m)) * panel_layout(m.type, m.columns).bytes;
}

/// Writes panels [begin, end) of `m` to `out`, where panel 0 begins. Preconditions: a quantised type, `out` aligned
/// to 64.
void repack(const Matrix& m, std::byte* out, int64_t begin, int64_t end);

}  // namespace assay

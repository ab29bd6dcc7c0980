#include "engine/ops/panel.h"

#include <algorithm>
#include <cstring>

#include "engine/ops/group.h"

namespace assay {
namespace {

constexpr int kOrder[4] = {0, 2, 1, 3};

void store(std::byte* p, uint32_t v) {
  std::memcpy(p, &v, 4);
}

/// Row r of the panel: codes and high bits of group g, composed in registers: a word of 32 bits per row and step.
template <WeightType t>
void put_codes(const uint8_t* code, int64_t g, int64_t r, std::byte* panel, const PanelLayout& l) {
  std::byte* codes = panel + g * (code_bits(t) == 8 ? 512 : 256) + 4 * r;
  uint32_t high[2] = {0, 0};
  for (int s = 0; s < 8; s += code_bits(t) == 8 ? 1 : 2) {  // half-steps
    uint32_t word = 0;
    for (int b = 0; b < 4; b++) {
      const uint32_t c = code[4 * s + kOrder[b]];
      if (code_bits(t) == 8) {
        word |= c << (8 * b);
        continue;
      }
      const uint32_t d = code[4 * s + 4 + kOrder[b]];
      word |= ((c & 15) | (d & 15) << 4) << (8 * b);
      if (code_bits(t) == 5) high[0] |= (c >> 4 | d >> 4 << 1) << (8 * b + s);
      if (code_bits(t) == 6) high[s / 4] |= (c >> 4 | d >> 4 << 2) << (8 * b + 2 * (s % 4));
    }
    store(codes + 64 * (code_bits(t) == 8 ? s : s / 2), word);
  }
  if (code_bits(t) == 5) store(panel + l.high + 64 * g + 4 * r, high[0]);
  if (code_bits(t) == 6) {
    store(panel + l.high + 128 * g + 4 * r, high[0]);
    store(panel + l.high + 128 * g + 64 + 4 * r, high[1]);
  }
}

template <WeightType t>
void put_scales(const std::byte* row, int64_t g, int64_t r, std::byte* scales) {
  const std::byte* block = group_block(t, row, g);
  const int j = int(g % 8);
  if (!is_k_quant(t)) {
    std::byte* out = scales + g * (has_minimum(t) ? 64 : 32);
    std::memcpy(out + 2 * r, block, 2);
    if (has_minimum(t)) std::memcpy(out + 32 + 2 * r, block + 2, 2);
    return;
  }
  const bool six = t == WeightType::q6_k;
  std::byte* out = scales + g / 8 * ((six ? 32 : 64) + 8 * 32);
  if (j == 0) {
    std::memcpy(out + 2 * r, six ? block + offsetof(BlockQ6_K, d) : block, 2);
    if (!six) std::memcpy(out + 32 + 2 * r, block + 2, 2);
  }
  std::byte* mine = out + (six ? 32 : 64) + 32 * j + r;
  mine[0] =
      six ? block[offsetof(BlockQ6_K, scales) + 2 * j] : std::byte(k_scale(block + offsetof(BlockQ4_K, scales), j));
  mine[16] = six ? block[offsetof(BlockQ6_K, scales) + 1 + 2 * j]
                 : std::byte(k_minimum(block + offsetof(BlockQ4_K, scales), j));
}

template <WeightType t>
void repack_of(const Matrix& m, std::byte* out, int64_t begin, int64_t end) {
  const PanelLayout l = panel_layout(t, m.columns);
  const size_t row_size = row_bytes(t, m.columns);
  uint8_t code[32];
  for (int64_t p = begin; p < end; p++) {
    std::byte* panel = out + size_t(p) * l.bytes;
    std::memset(panel, 0, l.bytes);
    const int64_t rows = std::min(kPanelRows, m.rows - p * kPanelRows);
    for (int64_t r = 0; r < rows; r++) {
      const std::byte* row = m.data + size_t(p * kPanelRows + r) * row_size;
      for (int64_t g = 0; g < l.groups; g++) {
        group_codes(t, row, g, code);
        put_codes<t>(code, g, r, panel, l);
        put_scales<t>(row, g, r, panel + l.scales);
      }
    }
  }
}

}  // namespace

void repack(const Matrix& m, std::byte* out, int64_t begin, int64_t end) {
  switch (m.type) {
    case WeightType::q8_0:
      return repack_of<WeightType::q8_0>(m, out, begin, end);
    case WeightType::q4_0:
      return repack_of<WeightType::q4_0>(m, out, begin, end);
    case WeightType::q4_1:
      return repack_of<WeightType::q4_1>(m, out, begin, end);
    case WeightType::q5_0:
      return repack_of<WeightType::q5_0>(m, out, begin, end);
    case WeightType::q5_1:
      return repack_of<WeightType::q5_1>(m, out, begin, end);
    case WeightType::q4_k:
      return repack_of<WeightType::q4_k>(m, out, begin, end);
    case WeightType::q5_k:
      return repack_of<WeightType::q5_k>(m, out, begin, end);
    case WeightType::q6_k:
      return repack_of<WeightType::q6_k>(m, out, begin, end);
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
      return;  // the caller's precondition
  }
}

}  // namespace assay

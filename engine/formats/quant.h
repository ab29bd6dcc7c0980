// ggml's quantised block types as they lie in files: little-endian, blocks along a row, no padding between blocks.
// Source of the layouts: github.com/ggml-org/ggml, src/ggml-common.h (block_q8_0, block_q4_0, block_q4_1, block_q5_0,
// block_q5_1, block_q4_K, block_q5_K, block_q6_K), src/ggml-quants.c (the order inside) and docs/gguf.md. Scales are
// binary16; non-finite ones are refused at load (check_scales).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/model.h"

namespace assay {

inline constexpr int64_t kQuantGroup = 32;  // elements per block of Q8_0, Q4_0, Q4_1, Q5_0, Q5_1
inline constexpr int64_t kKElements = 256;  // elements per block of Q4_K, Q5_K, Q6_K

/// w[i] = d * codes[i], codes in [-128, 127].
struct BlockQ8_0 {
  uint16_t d;  // binary16 bits
  int8_t codes[32];
};
/// w[i] = d * (nibble - 8). Element i < 16 is the low nibble of codes[i], element i + 16 its high nibble.
struct BlockQ4_0 {
  uint16_t d;
  uint8_t codes[16];
};
/// w[i] = d * nibble + m. Nibbles as in Q4_0.
struct BlockQ4_1 {
  uint16_t d;
  uint16_t m;
  uint8_t codes[16];
};
/// w[i] = d * (code - 16), code of 5 bits: the nibble as in Q4_0, and bit i of the little-endian word `high` above it.
struct BlockQ5_0 {
  uint16_t d;
  uint8_t high[4];
  uint8_t codes[16];
};
/// w[i] = d * code + m, code as in Q5_0.
struct BlockQ5_1 {
  uint16_t d;
  uint16_t m;
  uint8_t high[4];
  uint8_t codes[16];
};
/// w[i] = (d * scale_g) * code - dmin * min_g, g = i / 32: eight groups, each with a scale and a minimum of 6 bits.
/// Group g's codes are the low (g even) or high nibbles of codes[32*(g/2) .. +32]. In `scales`, for g < 4: scale_g is
/// the low 6 bits of scales[g], min_g of scales[g+4]; for g >= 4 scales[g+4] holds the low four bits of scale_g (low
/// nibble) and min_g (high nibble), and their high two are the top bits of scales[g-4] and scales[g].
struct BlockQ4_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t codes[128];
};
/// As Q4_K with codes of 5 bits: bit g of high[j] is the high bit of element j of group g.
struct BlockQ5_K {
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t high[32];
  uint8_t codes[128];
};
/// w[i] = d * scales[i / 16] * (code - 32), code of 6 bits. Half h = i / 128, r = i % 128, quarter t = r / 32, j = r %
/// 32: low four bits in nibble t / 2 of low[64*h + 32*(t % 2) + j], high two in bits 2t of high[32*h + j].
struct BlockQ6_K {
  uint8_t low[128];
  uint8_t high[64];
  int8_t scales[16];
  uint16_t d;
};
static_assert(sizeof(BlockQ8_0) == 34 && alignof(BlockQ8_0) == 2);
static_assert(sizeof(BlockQ4_0) == 18 && alignof(BlockQ4_0) == 2);
static_assert(sizeof(BlockQ4_1) == 20 && alignof(BlockQ4_1) == 2);
static_assert(sizeof(BlockQ5_0) == 22 && alignof(BlockQ5_0) == 2);
static_assert(sizeof(BlockQ5_1) == 24 && alignof(BlockQ5_1) == 2);
static_assert(sizeof(BlockQ4_K) == 144 && alignof(BlockQ4_K) == 2);
static_assert(sizeof(BlockQ5_K) == 176 && alignof(BlockQ5_K) == 2);
static_assert(sizeof(BlockQ6_K) == 210 && alignof(BlockQ6_K) == 2);
static_assert(offsetof(BlockQ6_K, d) == 208 && offsetof(BlockQ4_1, codes) == 4);
static_assert(offsetof(BlockQ4_K, scales) == offsetof(BlockQ5_K, scales));
static_assert(offsetof(BlockQ4_1, m) == offsetof(BlockQ5_1, m));

/// Throws Error{malformed} naming tensor, row and block of the first scale or minimum that is Inf or NaN. Types without
/// blocks pass. `where` names the file.
void check_scales(const Matrix& matrix, const std::string& where, const std::string& tensor);

}  // namespace assay

// ggml's quantised block types as they lie in files: little-endian, blocks along a row, no padding between blocks.
// Source of the layouts: github.com/ggml-org/ggml, src/ggml-common.h (block_q4_0, block_q4_1, block_q8_0, block_q6_K)
// and docs/gguf.md. Scales are binary16; non-finite ones are refused at load (check_scales).
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/model.h"

namespace assay {

inline constexpr int64_t kQuantGroup = 32;    // elements per block of Q8_0, Q4_0, Q4_1
inline constexpr int64_t kQ6KElements = 256;  // elements per block of Q6_K

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
static_assert(sizeof(BlockQ6_K) == 210 && alignof(BlockQ6_K) == 2);
static_assert(offsetof(BlockQ6_K, d) == 208 && offsetof(BlockQ4_1, codes) == 4);

/// Throws Error{malformed} naming tensor, row and block of the first scale or minimum that is Inf or NaN. Types without
/// blocks pass. `where` names the file.
void check_scales(const Matrix& matrix, const std::string& where, const std::string& tensor);

}  // namespace assay

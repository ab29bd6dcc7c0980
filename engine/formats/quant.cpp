#include "engine/formats/quant.h"

#include <fmt/format.h>

#include <cstring>

#include "dumps/error.h"
#include "dumps/text.h"

namespace assay {
namespace {

constexpr uint16_t kExponent16 = 0x7c00;  // all ones: Inf or NaN

/// Offsets of the binary16 scales within a block.
struct ScaleLayout {
  size_t offsets[2];
  int count;
};

ScaleLayout scales_of(WeightType t) {
  switch (t) {
    case WeightType::q8_0:
      return {{offsetof(BlockQ8_0, d), 0}, 1};
    case WeightType::q4_0:
      return {{offsetof(BlockQ4_0, d), 0}, 1};
    case WeightType::q4_1:
      return {{offsetof(BlockQ4_1, d), offsetof(BlockQ4_1, m)}, 2};
    case WeightType::q5_0:
      return {{offsetof(BlockQ5_0, d), 0}, 1};
    case WeightType::q5_1:
      return {{offsetof(BlockQ5_1, d), offsetof(BlockQ5_1, m)}, 2};
    case WeightType::q4_k:
      return {{offsetof(BlockQ4_K, d), offsetof(BlockQ4_K, dmin)}, 2};
    case WeightType::q5_k:
      return {{offsetof(BlockQ5_K, d), offsetof(BlockQ5_K, dmin)}, 2};
    case WeightType::q6_k:
      return {{offsetof(BlockQ6_K, d), 0}, 1};
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
      break;
  }
  return {{0, 0}, 0};
}

}  // namespace

void check_scales(const Matrix& matrix, const std::string& where, const std::string& tensor) {
  const ScaleLayout layout = scales_of(matrix.type);
  if (layout.count == 0) return;
  const size_t block = block_bytes(matrix.type);
  const size_t blocks = matrix.bytes() / block;
  const size_t per_row = size_t(matrix.columns / block_elements(matrix.type));
  for (size_t b = 0; b < blocks; b++) {
    for (int s = 0; s < layout.count; s++) {
      uint16_t bits;
      std::memcpy(&bits, matrix.data + b * block + layout.offsets[s], sizeof bits);
      if ((bits & kExponent16) != kExponent16) continue;
      throw Error(ErrorKind::malformed, fmt::format("{}: tensor {}", where, in_quotes(tensor)),
                  fmt::format("row {}, block {}: the {} {} is not finite", b / per_row, b % per_row,
                              name_of(matrix.type), s == 0 ? "scale d" : "minimum m"),
                  "a finite binary16", fmt::format("0x{:04x}", bits));
    }
  }
}

}  // namespace assay

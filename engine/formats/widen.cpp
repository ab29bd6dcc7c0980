#include "engine/formats/widen.h"

#include <bit>
#include <cstring>

namespace assay {
namespace {

uint16_t load16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

/// binary16 -> binary32, exact for every input; NaN payloads move up unchanged.
float from_f16(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000) << 16;
  uint32_t exponent = (h >> 10) & 31, fraction = h & 1023;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | fraction << 13);
  if (exponent == 0) {
    if (fraction == 0) return std::bit_cast<float>(sign);
    // A subnormal: shift the leading one up to bit 10, which binary32 keeps as its hidden bit.
    const int shift = std::countl_zero(fraction) - 21;
    fraction = (fraction << shift) & 1023;
    return std::bit_cast<float>(sign | uint32_t(113 - shift) << 23 | fraction << 13);
  }
  return std::bit_cast<float>(sign | (exponent + 112) << 23 | fraction << 13);
}

}  // namespace

Vector widen(WeightType type, const std::byte* data, int64_t n) {
  Vector out(size_t(n), 0.0f);
  for (size_t i = 0; i < size_t(n); i++) {
    if (type == WeightType::f32) std::memcpy(&out[i], data + 4 * i, 4);
    else if (type == WeightType::bf16) out[i] = std::bit_cast<float>(uint32_t(load16(data + 2 * i)) << 16);
    else out[i] = from_f16(load16(data + 2 * i));
  }
  return out;
}

}  // namespace assay

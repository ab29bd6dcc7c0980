#include "engine/formats/widen.h"

#include <cstring>

#include "engine/numerics.h"

namespace assay {
namespace {

uint16_t load16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

}  // namespace

Vector widen(WeightType type, const std::byte* data, int64_t n) {
  Vector out(size_t(n), 0.0f);
  for (size_t i = 0; i < size_t(n); i++) {
    if (type == WeightType::f32)
      std::memcpy(&out[i], data + 4 * i, 4);
    else if (type == WeightType::bf16)
      out[i] = f32_of_bf16(load16(data + 2 * i));
    else
      out[i] = f32_of_f16(load16(data + 2 * i));
  }
  return out;
}

}  // namespace assay

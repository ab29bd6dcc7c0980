#include "conformance/kernel/matrices.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/formats/quant.h"
#include "engine/numerics.h"
#include "engine/ops/panel.h"

namespace assay {
namespace {

/// Codes are random, or all at their ends; scales are around 2^-6, subnormal, or odd: zero, huge, of both signs.
std::vector<std::byte> random_blocks(std::mt19937_64& rng, WeightType type, int64_t rows, int64_t columns,
                                     Values kind) {
  std::vector<std::byte> out(size_t(rows) * row_bytes(type, columns));
  for (std::byte& b : out)
    b = kind == Values::equal   ? (rng() % 4 ? std::byte(0xff) : std::byte(0x80))
        : kind == Values::zeros ? std::byte(0)
                                : std::byte(rng());
  const auto scale = [&]() -> uint16_t {
    constexpr uint16_t kOdd[] = {0x0001, 0x83ff, 0x0000, 0x8000, 0x7bff, 0x03ff, 0xfbff};
    const auto sign = uint16_t(rng() % 2 << 15);
    if (kind == Values::denormals) return uint16_t(sign | (1 + rng() % 1023));
    if (kind == Values::huge) return uint16_t(sign | 0x7800 | rng() % 1024);
    if (kind == Values::mixed && rng() % 2) return kOdd[rng() % std::size(kOdd)];
    return uint16_t(sign | (7 + rng() % 5) << 10 | rng() % 1024);
  };
  const size_t size = block_bytes(type), at = type == WeightType::q6_k ? offsetof(BlockQ6_K, d) : 0;
  for (size_t b = 0; b < out.size(); b += size)
    for (size_t s = 0; s < (has_minimum(type) ? 2u : 1u); s++) {
      const uint16_t h = scale();
      std::memcpy(&out[b + at + 2 * s], &h, 2);
    }
  return out;
}

}  // namespace

StoredMatrix stored_matrix(std::mt19937_64& rng, WeightType type, int64_t rows, int64_t columns, Values kind) {
  if (kind == Values::non_finite) kind = Values::normal;  // loading refuses such weights
  StoredMatrix m;
  if (is_quantised(type)) {
    m.bytes = random_blocks(rng, type, rows, columns, kind);
  } else {
    const std::vector<float> v = kernel_values(rng, size_t(rows * columns), kind);
    m.bytes.resize(size_t(rows) * row_bytes(type, columns));
    for (size_t i = 0; i < v.size(); i++) {
      if (type == WeightType::f32) {
        std::memcpy(&m.bytes[4 * i], &v[i], 4);
        continue;
      }
      const float least = std::fabs(v[i]) < 0x1p-100f ? std::ldexp(v[i], 120) : v[i];  // of binary16's own denormals
      const uint16_t bits =
          type == WeightType::bf16 ? bf16_of_f32(v[i]) : f16_of_f32(std::clamp(least, -65504.0f, 65504.0f));
      std::memcpy(&m.bytes[2 * i], &bits, 2);
    }
  }
  m.matrix = {type, rows, columns, m.bytes.data()};
  m.wide = oracle::Matrix64(rows, columns);
  for (int64_t r = 0; r < rows; r++) oracle::widen(type, m.matrix.row(r), columns, m.wide.row(r));
  return m;
}

std::vector<double> wide(const std::vector<float>& v) {
  return {v.begin(), v.end()};
}

oracle::Matrix64 widened(const std::vector<float>& v, int64_t rows) {
  oracle::Matrix64 m(rows, int64_t(v.size()) / rows);
  std::copy(v.begin(), v.end(), m.v.begin());
  return m;
}

}  // namespace assay

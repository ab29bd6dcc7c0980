#include "conformance/kernel/exact_product.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "engine/formats/quant.h"

namespace assay {
namespace {

double value_of_half(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const double magnitude = exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24);
  return h & 0x8000 ? -magnitude : magnitude;
}

template <class Block>
Block read(const std::byte* row, int64_t index) {
  Block b;
  std::memcpy(&b, row + size_t(index) * sizeof b, sizeof b);
  return b;
}

/// Scale and minimum of 6 bits of group g of a Q4_K or Q5_K block (quant.h, BlockQ4_K).
void k_scales(const uint8_t* s, int g, int* scale, int* minimum) {
  if (g < 4) {
    *scale = s[g] & 63;
    *minimum = s[g + 4] & 63;
  } else {
    *scale = (s[g + 4] & 15) | (s[g - 4] >> 6) << 4;
    *minimum = s[g + 4] >> 4 | (s[g] >> 6) << 4;
  }
}

int nibble(const uint8_t* codes, int i) {  // Q4_0, Q4_1, Q5_0, Q5_1: element i of 32
  return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4;
}

int fifth_bit(const uint8_t high[4], int i) {
  return (high[i / 8] >> (i % 8) & 1) << 4;
}

struct Filler {
  ExactRow& out;
  int64_t at = 0;  // element
  void group(double scale_low, double scale_high, double minimum) {
    out.scale[size_t(at / 16)] = scale_low;
    out.scale[size_t(at / 16) + 1] = scale_high;
    out.minimum[size_t(at / 32)] = minimum;
  }
  void code(int32_t c) { out.code[size_t(at++)] = c; }
};

void block_of_32(WeightType type, const std::byte* row, int64_t b, Filler& f) {
  switch (type) {
    case WeightType::q8_0: {
      const auto q = read<BlockQ8_0>(row, b);
      f.group(value_of_half(q.d), value_of_half(q.d), 0);
      for (int8_t c : q.codes) f.code(c);
      return;
    }
    case WeightType::q4_0: {
      const auto q = read<BlockQ4_0>(row, b);
      f.group(value_of_half(q.d), value_of_half(q.d), 0);
      for (int i = 0; i < 32; i++) f.code(nibble(q.codes, i) - 8);
      return;
    }
    case WeightType::q4_1: {
      const auto q = read<BlockQ4_1>(row, b);
      f.group(value_of_half(q.d), value_of_half(q.d), value_of_half(q.m));
      for (int i = 0; i < 32; i++) f.code(nibble(q.codes, i));
      return;
    }
    case WeightType::q5_0: {
      const auto q = read<BlockQ5_0>(row, b);
      f.group(value_of_half(q.d), value_of_half(q.d), 0);
      for (int i = 0; i < 32; i++) f.code((nibble(q.codes, i) | fifth_bit(q.high, i)) - 16);
      return;
    }
    default: {
      const auto q = read<BlockQ5_1>(row, b);
      f.group(value_of_half(q.d), value_of_half(q.d), value_of_half(q.m));
      for (int i = 0; i < 32; i++) f.code(nibble(q.codes, i) | fifth_bit(q.high, i));
    }
  }
}

void block_of_256(WeightType type, const std::byte* row, int64_t b, Filler& f) {
  if (type == WeightType::q6_k) {
    const auto q = read<BlockQ6_K>(row, b);
    const double d = value_of_half(q.d);
    for (int i = 0; i < 256; i++) {
      if (i % 32 == 0) f.group(d * q.scales[i / 16], d * q.scales[i / 16 + 1], 0);
      const int h = i / 128, r = i % 128, t = r / 32, j = r % 32;
      f.code(((q.low[64 * h + 32 * (t % 2) + j] >> (4 * (t / 2)) & 15) | (q.high[32 * h + j] >> (2 * t) & 3) << 4) -
             32);
    }
    return;
  }
  const bool five = type == WeightType::q5_k;
  const auto q4 = five ? BlockQ4_K{} : read<BlockQ4_K>(row, b);
  const auto q5 = five ? read<BlockQ5_K>(row, b) : BlockQ5_K{};
  const uint8_t* scales = five ? q5.scales : q4.scales;
  const uint8_t* codes = five ? q5.codes : q4.codes;
  const double d = value_of_half(five ? q5.d : q4.d), dmin = value_of_half(five ? q5.dmin : q4.dmin);
  for (int i = 0; i < 256; i++) {
    const int g = i / 32, j = i % 32;
    if (j == 0) {
      int scale, minimum;
      k_scales(scales, g, &scale, &minimum);
      f.group(d * scale, d * scale, -dmin * minimum);
    }
    f.code((codes[32 * (g / 2) + j] >> (4 * (g % 2)) & 15) | (five ? (q5.high[j] >> g & 1) << 4 : 0));
  }
}

}  // namespace

ExactRow decode_exactly(WeightType type, const std::byte* row, int64_t columns) {
  ExactRow out{std::vector<int32_t>(size_t(columns)), std::vector<double>(size_t(columns / 16)),
               std::vector<double>(size_t(columns / 32))};
  Filler f{out};
  const int64_t n = block_elements(type);
  for (int64_t b = 0; b < columns / n; b++) n == 32 ? block_of_32(type, row, b, f) : block_of_256(type, row, b, f);
  return out;
}

int terms_per_group(WeightType type) {
  switch (type) {
    case WeightType::q8_0:
    case WeightType::q4_0:
    case WeightType::q5_0:
      return 1;
    default:
      return 2;
  }
}

ExactGroup quantise_exactly(const float* x, Activations kind) {
  const float levels = kind == Activations::s16 ? 32639.0f : 127.0f;
  ExactGroup g{0.0f, 0.0f, {}};
  for (int i = 0; i < 32; i++) {
    if (!std::isfinite(x[i])) {
      g.scale = g.amax = std::numeric_limits<float>::quiet_NaN();
      return g;
    }
    g.amax = std::max(g.amax, std::fabs(x[i]));
  }
  if (g.amax < 0x1p-100f) return g;
  g.scale = float(double(g.amax) / double(levels));  // a quotient rounded to 53 bits and then to 24 is the rounded one
  for (int i = 0; i < 32; i++) {
    const float v = std::clamp(float(double(x[i]) / double(g.scale)), -levels, levels);
    g.code[i] = int32_t(std::nearbyint(double(v)));  // nearest even, the default mode
  }
  return g;
}

ExactProduct exact_product(WeightType type, const ExactRow& w, const float* x, Activations kind, const float* bias) {
  const size_t columns = w.code.size(), groups = columns / 32;
  const double ulp = 0x1p-24;
  double value = 0, rounding = 0, magnitude = 0;
  double roundings = 0, factor = 0;
  if (kind == Activations::f32) {
    for (size_t k = 0; k < columns; k++) {
      const double product = double(float(w.weight(k))) * double(x[k]);  // a widened weight is rounded once
      value += product;
      magnitude += std::fabs(product);
    }
    factor = std::ceil(double(columns) / 256) + 9;
    roundings = double(columns) + 9;
  } else {
    const double c = kind == Activations::s16 ? 0.501 : 0.50001;
    for (size_t g = 0; g < groups; g++) {
      const ExactGroup q = quantise_exactly(x + 32 * g, kind);
      const double s = q.scale, h = s == 0 ? double(q.amax) : c * s;
      double width = 0, dots = 0, sum = 0, half[2] = {0, 0};
      for (size_t i = 0; i < 32; i++) {
        const size_t k = 32 * g + i;
        value += w.weight(k) * double(x[k]);
        width += std::fabs(w.weight(k));
        half[i / 16] += double(q.code[i]) * w.code[k];
        sum += q.code[i];
      }
      if (type == WeightType::q6_k)
        dots = std::fabs(w.scale[2 * g] * half[0]) + std::fabs(w.scale[2 * g + 1] * half[1]);
      else
        dots = std::fabs(w.scale[2 * g] * (half[0] + half[1]));
      rounding += h * width;
      magnitude += s * (dots + std::fabs(w.minimum[g] * sum));
    }
    const int m = terms_per_group(type);
    factor = m * std::ceil(double(groups) / 8) + 6;
    roundings = 2.0 * m * double(groups) + 7;
  }
  if (bias) value += double(*bias);
  const double bound =
      rounding + ulp * factor * magnitude + std::ldexp(roundings, -149) + (bias ? ulp * std::fabs(value) : 0);
  return {value, bound};
}

}  // namespace assay

#include "engine/formats/quantise.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/formats/quant.h"
#include "engine/numerics.h"
#include "engine/ops/kernels.h"

namespace assay {
namespace {

constexpr EncodeFault kFine = {};

bool overflows_f16(uint16_t bits) {
  return (bits & 0x7c00) == 0x7c00;
}

/// Half away from zero, as C's roundf; |v| < 2^22. In double the sum is exact, so that 0.49999997 stays below 1.
int round_half_away(float v) {
  const int magnitude = int(double(std::fabs(v)) + 0.5);
  return v < 0 ? -magnitude : magnitude;
}
/// To nearest, ties to even; |v| < 2^22.
int round_half_even(float v) {
  constexpr float kMagic = 12582912.0f;  // 1.5 * 2^23: its unit in the last place is 1
  return int((v + kMagic) - kMagic);
}
int clamp_code(int code, int low, int high) {
  return std::clamp(code, low, high);
}
/// 1 / d; 0 where that is not finite: such a scale is 0 in binary16 all the same.
float inverse(float d) {
  const float id = d != 0 ? 1.0f / d : 0.0f;
  return std::isfinite(id) ? id : 0.0f;
}

float signed_maximum(const float* x, int n) {  // the first value of greatest magnitude
  float max = 0, magnitude = 0;
  for (int i = 0; i < n; i++) {
    if (magnitude < std::fabs(x[i])) {
      magnitude = std::fabs(x[i]);
      max = x[i];
    }
  }
  return max;
}

/// Code i's low four bits go where Q4_0 and its relatives have them.
void put_nibble(uint8_t* codes, int i, int code) {
  uint8_t& byte = codes[i % 16];
  byte = i < 16 ? uint8_t((byte & 0xf0) | (code & 15)) : uint8_t((byte & 15) | (code & 15) << 4);
}

bool encode(const float* x, BlockQ8_0& b) {
  const float d = std::fabs(signed_maximum(x, 32)) / 127, id = inverse(d);
  b.d = f16_of_f32(d);
  if (overflows_f16(b.d)) return false;
  for (int i = 0; i < 32; i++) b.codes[i] = int8_t(round_half_away(x[i] * id));
  return true;
}

bool encode(const float* x, BlockQ4_0& b) {
  const float d = signed_maximum(x, 32) / -8, id = inverse(d);
  b.d = f16_of_f32(d);
  if (overflows_f16(b.d)) return false;
  for (int i = 0; i < 32; i++) put_nibble(b.codes, i, clamp_code(int(x[i] * id + 8.5f), 0, 15));
  return true;
}

bool encode(const float* x, BlockQ5_0& b) {
  const float d = signed_maximum(x, 32) / -16, id = inverse(d);
  b.d = f16_of_f32(d);
  if (overflows_f16(b.d)) return false;
  for (int i = 0; i < 32; i++) {
    const int code = clamp_code(int(x[i] * id + 16.5f), 0, 31);
    put_nibble(b.codes, i, code);
    b.high[i / 8] |= uint8_t((code >> 4) << (i % 8));
  }
  return true;
}

bool encode(const float* x, BlockQ4_1& b) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float min = *low, d = (*high - min) / 15, id = inverse(d);
  b.d = f16_of_f32(d);
  b.m = f16_of_f32(min);
  if (overflows_f16(b.d) || overflows_f16(b.m)) return false;
  for (int i = 0; i < 32; i++) put_nibble(b.codes, i, clamp_code(int((x[i] - min) * id + 0.5f), 0, 15));
  return true;
}

bool encode(const float* x, BlockQ5_1& b) {
  const auto [low, high] = std::minmax_element(x, x + 32);
  const float min = *low, d = (*high - min) / 31, id = inverse(d);
  b.d = f16_of_f32(d);
  b.m = f16_of_f32(min);
  if (overflows_f16(b.d) || overflows_f16(b.m)) return false;
  for (int i = 0; i < 32; i++) {
    const int code = clamp_code(int((x[i] - min) * id + 0.5f), 0, 31);
    put_nibble(b.codes, i, code);
    b.high[i / 8] |= uint8_t((code >> 4) << (i % 8));
  }
  return true;
}

// ---- K-quants. For each group of a block a real scale (and minimum) is searched, then both are rounded to the steps
// of the block's d (and dmin), then the codes are made for what the rounded ones will give.

struct Affine {
  float scale = 0, minimum = 0;  // w = scale * code - minimum, both >= 0
};

/// Least squares over candidate grids: codes are rounded on a grid slightly wider or narrower than the range, then
/// scale and minimum are solved for these codes; the smallest sum of squared errors wins, the first of equals.
Affine search_affine(const float* x, int most) {
  constexpr int kN = 32, kSteps = 24;
  const auto [low_at, high_at] = std::minmax_element(x, x + kN);
  const float low = std::min(*low_at, 0.0f), high = *high_at, range = high - low;
  const float unit = inverse(range);
  Affine best{0, -low};
  if (!(range > 0) || unit == 0) return best;
  double sum_x = 0, sum_xx = 0;
  for (int i = 0; i < kN; i++) {
    sum_x += x[i];
    sum_xx += double(x[i]) * x[i];
  }
  double best_error = std::numeric_limits<double>::infinity();
  for (int step = 0; step <= kSteps; step++) {
    const float grid = (float(most) - 1.0f + 0.1f * float(step)) * unit;
    int sum_l = 0, sum_ll = 0;
    double sum_xl = 0;
    for (int i = 0; i < kN; i++) {
      const int l = clamp_code(round_half_even((x[i] - low) * grid), 0, most);
      sum_l += l;
      sum_ll += l * l;
      sum_xl += double(x[i]) * l;
    }
    const double determinant = double(kN) * sum_ll - double(sum_l) * sum_l;
    double scale = 0, offset = 1;
    if (determinant > 0) {
      scale = (kN * sum_xl - sum_x * sum_l) / determinant;
      offset = (sum_ll * sum_x - sum_l * sum_xl) / determinant;
    }
    if (offset > 0) {  // the format has no positive offset; and where all codes are equal, none is needed
      offset = 0;
      scale = sum_ll > 0 ? sum_xl / sum_ll : 0;
    }
    if (!(scale > 0)) continue;
    const double error = sum_xx + scale * scale * sum_ll + kN * offset * offset - 2 * scale * sum_xl -
                         2 * offset * sum_x + 2 * scale * offset * sum_l;
    if (error < best_error) {
      best_error = error;
      best = {float(scale), float(-offset)};
    }
  }
  return best;
}

/// Packs scale and minimum of group g as quant.h describes; `scales` starts as zeros and g rises.
void put_k_scale(uint8_t* scales, int g, int scale, int minimum) {
  if (g < 4) {
    scales[g] = uint8_t(scale);
    scales[g + 4] = uint8_t(minimum);
  } else {
    scales[g + 4] = uint8_t((scale & 15) | (minimum & 15) << 4);
    scales[g - 4] |= uint8_t((scale >> 4) << 6);
    scales[g] |= uint8_t((minimum >> 4) << 6);
  }
}

template <typename Block>
bool encode_k(const float* x, Block& b, int most) {
  constexpr int kGroups = 8, kMaxScale = 63;
  Affine groups[kGroups];
  float scale = 0, minimum = 0;
  for (int g = 0; g < kGroups; g++) {
    groups[g] = search_affine(x + 32 * g, most);
    scale = std::max(scale, groups[g].scale);
    minimum = std::max(minimum, groups[g].minimum);
  }
  b.d = f16_of_f32(scale / kMaxScale);
  b.dmin = f16_of_f32(minimum / kMaxScale);
  if (overflows_f16(b.d) || overflows_f16(b.dmin)) return false;
  const float d = f32_of_f16(b.d), dmin = f32_of_f16(b.dmin), per_d = inverse(d), per_dmin = inverse(dmin);
  for (int g = 0; g < kGroups; g++) {
    const int s = std::min(round_half_even(groups[g].scale * per_d), kMaxScale);
    const int m = std::min(round_half_even(groups[g].minimum * per_dmin), kMaxScale);
    put_k_scale(b.scales, g, s, m);
    const float step = inverse(d * float(s)), offset = dmin * float(m);
    for (int j = 0; j < 32; j++) {
      const float code_real = std::clamp((x[32 * g + j] + offset) * step, 0.0f, float(most));
      const int code = round_half_even(code_real);
      b.codes[32 * (g / 2) + j] |= uint8_t((code & 15) << (g % 2 * 4));
      if constexpr (sizeof(Block) == sizeof(BlockQ5_K)) b.high[j] |= uint8_t((code >> 4) << g);
    }
  }
  return true;
}
bool encode(const float* x, BlockQ4_K& b) {
  return encode_k(x, b, 15);
}
bool encode(const float* x, BlockQ5_K& b) {
  return encode_k(x, b, 31);
}

/// The scale whose codes -32..31 leave the least squared error of 16 values; of either sign, since -32 has no opposite.
float search_symmetric(const float* x) {
  constexpr int kN = 16, kSteps = 9;
  const float max = signed_maximum(x, kN), unit = inverse(max);
  if (unit == 0) return 0;
  float best = 0;
  double best_gain = 0;  // what the fit takes off the sum of squares
  for (int step = -kSteps; step <= kSteps; step++) {
    const float grid = -(32.0f + 0.1f * float(step)) * unit;
    int sum_ll = 0;
    double sum_xl = 0;
    for (int i = 0; i < kN; i++) {
      const int l = clamp_code(round_half_even(x[i] * grid), -32, 31);
      sum_ll += l * l;
      sum_xl += double(x[i]) * l;
    }
    const double gain = sum_ll > 0 ? sum_xl * sum_xl / sum_ll : 0;
    if (gain > best_gain) {
      best_gain = gain;
      best = float(sum_xl / sum_ll);
    }
  }
  return best;
}

bool encode(const float* x, BlockQ6_K& b) {
  constexpr int kGroups = 16;
  float scales[kGroups];
  for (int g = 0; g < kGroups; g++) scales[g] = search_symmetric(x + 16 * g);
  b.d = f16_of_f32(signed_maximum(scales, kGroups) / -128);
  if (overflows_f16(b.d)) return false;
  const float d = f32_of_f16(b.d), per_d = inverse(d);
  for (int g = 0; g < kGroups; g++) {
    b.scales[g] = int8_t(clamp_code(round_half_even(std::clamp(scales[g] * per_d, -128.0f, 127.0f)), -128, 127));
    const float step = inverse(d * float(b.scales[g]));
    for (int j = 0; j < 16; j++) {
      const int i = 16 * g + j, half = i / 128, quarter = i % 128 / 32, k = i % 32;
      const int code = round_half_even(std::clamp(x[i] * step, -32.0f, 31.0f)) + 32;
      b.low[64 * half + 32 * (quarter % 2) + k] |= uint8_t((code & 15) << (quarter / 2 * 4));
      b.high[32 * half + k] |= uint8_t((code >> 4) << (2 * quarter));
    }
  }
  return true;
}

template <typename Block>
EncodeFault encode_blocks(const float* x, int64_t columns, int64_t elements, std::byte* out) {
  for (int64_t k = 0; k < columns; k += elements, out += sizeof(Block)) {
    Block b = {};
    if (!encode(x + k, b)) return {"needs a scale beyond F16", k, signed_maximum(x + k, int(elements))};
    std::memcpy(out, &b, sizeof b);
  }
  return kFine;
}

EncodeFault encode_halves(const float* x, int64_t columns, bool bf16, std::byte* out) {
  for (int64_t k = 0; k < columns; k++) {
    const uint16_t bits = bf16 ? bf16_of_f32(x[k]) : f16_of_f32(x[k]);
    if (bf16 ? (bits & 0x7f80) == 0x7f80 : overflows_f16(bits))
      return {bf16 ? "overflows BF16" : "overflows F16", k, x[k]};
    std::memcpy(out + 2 * k, &bits, 2);
  }
  return kFine;
}

}  // namespace

EncodeFault encode_row(WeightType type, const float* x, int64_t columns, std::byte* out) {
  for (int64_t k = 0; k < columns; k++) {
    if (!std::isfinite(x[k])) return {"is not finite", k, x[k]};
  }
  switch (type) {
    case WeightType::f32:
      std::memcpy(out, x, size_t(columns) * 4);
      return kFine;
    case WeightType::f16:
      return encode_halves(x, columns, false, out);
    case WeightType::bf16:
      return encode_halves(x, columns, true, out);
    case WeightType::q8_0:
      return encode_blocks<BlockQ8_0>(x, columns, kQuantGroup, out);
    case WeightType::q4_0:
      return encode_blocks<BlockQ4_0>(x, columns, kQuantGroup, out);
    case WeightType::q4_1:
      return encode_blocks<BlockQ4_1>(x, columns, kQuantGroup, out);
    case WeightType::q5_0:
      return encode_blocks<BlockQ5_0>(x, columns, kQuantGroup, out);
    case WeightType::q5_1:
      return encode_blocks<BlockQ5_1>(x, columns, kQuantGroup, out);
    case WeightType::q4_k:
      return encode_blocks<BlockQ4_K>(x, columns, kKElements, out);
    case WeightType::q5_k:
      return encode_blocks<BlockQ5_K>(x, columns, kKElements, out);
    case WeightType::q6_k:
      return encode_blocks<BlockQ6_K>(x, columns, kKElements, out);
  }
  return {"has an unknown type", 0, 0};
}

void decode_row(WeightType type, const std::byte* row, int64_t columns, float* out) {
  const int32_t id = 0;
  kernels(best_isa()).embed({{type, 1, columns, row}, &id, out}, 0, 1);
}

RowError row_error(const float* original, const float* decoded, int64_t columns) {
  RowError e;
  for (int64_t k = 0; k < columns; k++) {
    const double x = original[k], difference = x - double(decoded[k]);
    e.signal += x * x;
    e.noise += difference * difference;
  }
  return e;
}

double sqnr_db(double signal, double noise) {
  return noise > 0 ? 10 * std::log10(signal / noise) : std::numeric_limits<double>::infinity();
}

std::string supported_weight_types() {
  std::string names;
  for (int i = 0; i <= int(WeightType::q6_k); i++) {
    names += fmt::format("{}{}", i ? ", " : "", name_of(WeightType(i)));
  }
  return names;
}

WeightType weight_type_from_name(const std::string& name, const std::string& option) {
  std::string upper = name;
  for (char& c : upper) c = c >= 'a' && c <= 'z' ? char(c - 32) : c;
  for (int i = 0; i <= int(WeightType::q6_k); i++) {
    if (name_of(WeightType(i)) == upper) return WeightType(i);
  }
  // Published types that a person may well ask for: a mistyped name and one that is not done get different answers.
  constexpr std::string_view kOthers[] = {"FP8",  "F8_E4M3", "F8_E5M2", "E4M3", "E5M2", "MXFP4", "NVFP4", "AWQ",
                                          "GPTQ", "IQ",      "Q2_K",    "Q3_K", "Q1_0", "Q2_0",  "Q8_1",  "Q8_K",
                                          "TQ",   "F64",     "INT8",    "INT4", "NF4",  "BNB"};
  const bool other = std::any_of(std::begin(kOthers), std::end(kOthers),
                                 [&](std::string_view o) { return upper.compare(0, o.size(), o) == 0; });
  const size_t mixture = upper.rfind('_');
  const bool mixed = mixture != std::string::npos &&
                     (upper.substr(mixture) == "_M" || upper.substr(mixture) == "_S" || upper.substr(mixture) == "_L");
  throw Error(ErrorKind::usage, option,
              other   ? "weight type " + upper + " is not supported"
              : mixed ? "mixtures of weight types are not made"
                      : "unknown weight type",
              "one of " + supported_weight_types(), in_quotes(name));
}

WeightType fitting_type(WeightType wanted, int64_t columns) {
  if (columns % block_elements(wanted) == 0) return wanted;
  return columns % block_elements(WeightType::q8_0) == 0 ? WeightType::q8_0 : WeightType::f16;
}

}  // namespace assay

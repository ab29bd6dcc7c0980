#include "engine/formats/synth_blocks.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/formats/quant.h"
#include "engine/numerics.h"

namespace assay {
namespace {

/// Output number `n` of the SplitMix64 stream `key`.
inline uint64_t word(uint64_t key, uint64_t n) {
  uint64_t z = key + (n + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

uint64_t key_of(uint64_t seed, std::string_view name) {
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

constexpr size_t kScales = 1024;  // entries of a scale table: ten random bits choose one

/// How many random words a block takes; of F32, F16 and BF16, how many elements a word makes.
constexpr int64_t words_of_block(WeightType t) {
  switch (t) {
    case WeightType::q8_0:
      return 1 + 4;
    case WeightType::q4_0:
    case WeightType::q4_1:
    case WeightType::q5_0:  // the high bits come from the scale's word
    case WeightType::q5_1:
      return 1 + 2;
    case WeightType::q4_k:
      return 1 + 2 + 16;
    case WeightType::q5_k:
      return 1 + 2 + 4 + 16;
    case WeightType::q6_k:
      return 1 + 2 + 24;
    case WeightType::f32:
    case WeightType::f16:
    case WeightType::bf16:
      break;
  }
  return 1;
}
constexpr int64_t elements_of_word(WeightType t) {
  return t == WeightType::f32 ? 2 : 4;
}

/// Codes 0 .. codes-1, all equally likely, with `middle` taken off.
struct Codes {
  int codes;
  double middle;
  double mean_square() const {
    return (double(codes) * codes - 1) / 12 + ((codes - 1) / 2.0 - middle) * ((codes - 1) / 2.0 - middle);
  }
};
Codes codes_of(WeightType t) {
  switch (t) {
    case WeightType::q8_0:
      return {256, 128};
    case WeightType::q4_0:
      return {16, 8};
    case WeightType::q5_0:
      return {32, 16};
    case WeightType::q6_k:
      return {64, 32};
    case WeightType::q5_1:
    case WeightType::q5_k:
      return {32, 15.5};
    default:
      return {16, 7.5};
  }
}

/// A sub-block scale of Q4_K and Q5_K from 6 random bits, 8 to 63: a scale of 0 would be a group without weights.
constexpr int sub_scale(int bits) {
  return bits < 8 ? bits + 8 : bits;
}
/// One of Q6_K from 8 random bits: any int8 of magnitude 16 or more.
constexpr int8_t sub_scale_q6(int bits) {
  const int s = bits - 128;
  return int8_t(s < 16 && s >= -16 ? s ^ 0x40 : s);
}

double mean_square_of_sub_scales(WeightType t) {
  double sum = 0;
  if (t == WeightType::q6_k) {
    for (int b = 0; b < 256; b++) sum += double(sub_scale_q6(b)) * sub_scale_q6(b);
    return sum / 256;
  }
  if (t != WeightType::q4_k && t != WeightType::q5_k) return 1;
  for (int b = 0; b < 64; b++) sum += double(sub_scale(b)) * sub_scale(b);
  return sum / 64;
}

/// The widened weight is scale * sub-scale * (code - middle): a table of scales of 0.5 to 1.5 times what gives `rms`.
std::vector<uint32_t> scale_table(WeightType t, double rms) {
  const Codes codes = codes_of(t);
  const double unit = rms / std::sqrt(codes.mean_square() * mean_square_of_sub_scales(t) * (13.0 / 12));
  const bool sub = t == WeightType::q4_k || t == WeightType::q5_k;
  const bool minimum = sub || t == WeightType::q4_1 || t == WeightType::q5_1;
  std::vector<uint32_t> table;
  for (size_t i = 0; i < kScales; i++) {
    const double factor = 0.5 + (double(i / 4) + 0.5) / double(kScales / 4);
    const double sign = !sub && i % 2 ? -1 : 1;  // K-quants with a minimum have scales >= 0
    const double middle = minimum ? codes.middle + (i / 2 % 2 ? 0.5 : -0.5) : 0;  // so that the mean is not always 0
    uint32_t d = f16_of_f32(float(sign * factor * unit));
    if ((d & 0x7fff) == 0) d |= 1;  // the smallest subnormal instead of no weights at all
    uint32_t m = 0;
    if (minimum) m = f16_of_f32(float((sub ? 1 : -1) * sign * factor * unit * middle));
    table.push_back(d | m << 16);
  }
  return table;
}

/// The twelve bytes of 6-bit scales and minima (formats/quant.h) from two random words. A minimum differs from its
/// scale in the low three bits only, so that dmin * min stays near the middle of d * scale * code.
void pack_sub_scales(uint64_t a, uint64_t b, uint8_t* out) {
  int scale[8], minimum[8];
  for (int g = 0; g < 8; g++) {
    scale[g] = sub_scale(int(a >> (6 * g) & 63));
    minimum[g] = scale[g] ^ int(b >> (3 * g) & 7);
  }
  for (int g = 0; g < 4; g++) {
    out[g] = uint8_t(scale[g] | scale[g + 4] >> 4 << 6);
    out[g + 4] = uint8_t(minimum[g] | minimum[g + 4] >> 4 << 6);
    out[g + 8] = uint8_t((scale[g + 4] & 15) | (minimum[g + 4] & 15) << 4);
  }
}

inline void put16(std::byte* at, uint32_t bits) {
  const uint16_t h = uint16_t(bits);
  std::memcpy(at, &h, sizeof h);
}

/// `words` random words from number `n` on, as they lie in memory.
inline void put_words(std::byte* at, uint64_t key, uint64_t n, int words) {
  for (int i = 0; i < words; i++) {
    const uint64_t w = word(key, n + uint64_t(i));
    std::memcpy(at + 8 * i, &w, sizeof w);
  }
}

template <WeightType type>
inline void write_block(std::byte* at, uint64_t key, uint64_t n, const uint32_t* scales) {
  const uint64_t first = word(key, n);
  const uint32_t scale = scales[first >> 54];
  const uint32_t high = uint32_t(first);
  if constexpr (type == WeightType::q8_0) {
    put16(at, scale);
    put_words(at + offsetof(BlockQ8_0, codes), key, n + 1, 4);
  } else if constexpr (type == WeightType::q4_0) {
    put16(at, scale);
    put_words(at + offsetof(BlockQ4_0, codes), key, n + 1, 2);
  } else if constexpr (type == WeightType::q4_1) {
    std::memcpy(at, &scale, 4);
    put_words(at + offsetof(BlockQ4_1, codes), key, n + 1, 2);
  } else if constexpr (type == WeightType::q5_0) {
    put16(at, scale);
    std::memcpy(at + offsetof(BlockQ5_0, high), &high, 4);
    put_words(at + offsetof(BlockQ5_0, codes), key, n + 1, 2);
  } else if constexpr (type == WeightType::q5_1) {
    std::memcpy(at, &scale, 4);
    std::memcpy(at + offsetof(BlockQ5_1, high), &high, 4);
    put_words(at + offsetof(BlockQ5_1, codes), key, n + 1, 2);
  } else if constexpr (type == WeightType::q4_k || type == WeightType::q5_k) {
    std::memcpy(at, &scale, 4);
    uint8_t packed[12];
    pack_sub_scales(word(key, n + 1), word(key, n + 2), packed);
    std::memcpy(at + offsetof(BlockQ4_K, scales), packed, sizeof packed);
    put_words(at + offsetof(BlockQ4_K, codes), key, n + 3, type == WeightType::q4_k ? 16 : 4 + 16);
  } else {
    static_assert(type == WeightType::q6_k);
    put_words(at, key, n + 3, 24);
    for (int half = 0; half < 2; half++) {
      const uint64_t bits = word(key, n + 1 + uint64_t(half));
      for (int g = 0; g < 8; g++)
        at[offsetof(BlockQ6_K, scales) + size_t(8 * half + g)] = std::byte(sub_scale_q6(int(bits >> (8 * g) & 255)));
    }
    put16(at + offsetof(BlockQ6_K, d), scale);
  }
}
static_assert(offsetof(BlockQ5_K, high) == offsetof(BlockQ4_K, codes) &&
              offsetof(BlockQ5_K, codes) == offsetof(BlockQ5_K, high) + 32);

/// An odd number of 25 bits, never 0: uniform over a symmetric range.
inline int32_t odd25(uint64_t bits) {
  return int32_t(bits & 0xffffff) * 2 + 1 - (1 << 24);
}

}  // namespace

RandomMatrix::RandomMatrix(uint64_t seed, std::string_view name, WeightType type, int64_t columns, double rms)
    : key_(key_of(seed, name)), type_(type), columns_(columns) {
  const double bound = rms * std::sqrt(3.0);  // of a uniform distribution
  if (is_quantised(type)) {
    scales_ = scale_table(type, rms);
  } else if (type == WeightType::f32) {
    step_ = float(bound / (1 << 24));
  } else {
    for (int i = 0; i < 1 << 16; i++) {
      const float x = float((i + 0.5 - (1 << 15)) * (bound / (1 << 15)));
      values_.push_back(type == WeightType::f16 ? f16_of_f32(x) : bf16_of_f32(x));
    }
  }
}

template <WeightType type>
void RandomMatrix::write_rows(int64_t begin, int64_t end, std::byte* out) const {
  if constexpr (type == WeightType::f32 || type == WeightType::f16 || type == WeightType::bf16) {
    constexpr int64_t kPer = elements_of_word(type);
    const int64_t words = (columns_ + kPer - 1) / kPer;
    for (int64_t r = begin; r < end; r++, out += row_bytes(type, columns_))
      for (int64_t w = 0; w < words; w++) {
        const uint64_t bits = word(key_, uint64_t(r * words + w));
        const size_t n = size_t(std::min(kPer, columns_ - w * kPer));  // the last word of a row may be needed in part
        if constexpr (type == WeightType::f32) {
          const float x[2] = {float(odd25(bits)) * step_, float(odd25(bits >> 32)) * step_};
          std::memcpy(out + 8 * w, x, 4 * n);
        } else {
          const uint16_t x[4] = {values_[bits & 0xffff], values_[bits >> 16 & 0xffff], values_[bits >> 32 & 0xffff],
                                 values_[bits >> 48]};
          std::memcpy(out + 8 * w, x, 2 * n);
        }
      }
  } else {
    const int64_t first = begin * (columns_ / block_elements(type)), last = end * (columns_ / block_elements(type));
    const size_t bytes = block_bytes(type);
    for (int64_t b = first; b < last; b++, out += bytes)
      write_block<type>(out, key_, uint64_t(b * words_of_block(type)), scales_.data());
  }
}

void RandomMatrix::write(int64_t begin, int64_t end, std::byte* out) const {
  switch (type_) {
    case WeightType::f32:
      return write_rows<WeightType::f32>(begin, end, out);
    case WeightType::f16:
      return write_rows<WeightType::f16>(begin, end, out);
    case WeightType::bf16:
      return write_rows<WeightType::bf16>(begin, end, out);
    case WeightType::q8_0:
      return write_rows<WeightType::q8_0>(begin, end, out);
    case WeightType::q4_0:
      return write_rows<WeightType::q4_0>(begin, end, out);
    case WeightType::q4_1:
      return write_rows<WeightType::q4_1>(begin, end, out);
    case WeightType::q5_0:
      return write_rows<WeightType::q5_0>(begin, end, out);
    case WeightType::q5_1:
      return write_rows<WeightType::q5_1>(begin, end, out);
    case WeightType::q4_k:
      return write_rows<WeightType::q4_k>(begin, end, out);
    case WeightType::q5_k:
      return write_rows<WeightType::q5_k>(begin, end, out);
    case WeightType::q6_k:
      return write_rows<WeightType::q6_k>(begin, end, out);
  }
}

Vector random_vector(uint64_t seed, std::string_view name, int64_t n, double centre, double spread) {
  const uint64_t key = key_of(seed, name);
  Vector out;
  for (int64_t i = 0; i < n; i++) out.push_back(float(centre + spread / (1 << 24) * odd25(word(key, uint64_t(i)))));
  return out;
}

}  // namespace assay

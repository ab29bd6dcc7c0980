// Stored elements as doubles, from the bytes alone: no decoder of engine/ is used, so that a wrong nibble order or
// offset there can't hide here. Layouts: github.com/ggml-org/ggml, src/ggml-common.h and ggml-quants.c
// (dequantize_row_*), described in engine/formats/quant.h.
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "dumps/error.h"
#include "oracle/ops.h"

namespace assay::oracle {
namespace {

unsigned byte_at(const std::byte* p, int64_t i) {
  return std::to_integer<unsigned>(p[i]);
}
unsigned word_at(const std::byte* p) {
  return byte_at(p, 0) | byte_at(p, 1) << 8;
}
int signed_byte(unsigned b) {
  return b < 128 ? int(b) : int(b) - 256;
}

/// IEEE binary16: sign, 5 bits of exponent (bias 15), 10 of fraction.
double half(unsigned bits) {
  const int sign = bits >> 15 ? -1 : 1, exponent = int(bits >> 10 & 31), fraction = int(bits & 1023);
  if (exponent == 31)
    return fraction ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return std::copysign(std::ldexp(fraction, -24), sign);
  return sign * std::ldexp(1024 + fraction, exponent - 25);
}

double single(uint32_t bits) {
  return double(std::bit_cast<float>(bits));
}

/// Element i of 32 in the two nibbles of 16 bytes: the low ones first.
unsigned nibble_of_32(const std::byte* codes, int i) {
  return byte_at(codes, i % 16) >> (i < 16 ? 0 : 4) & 15;
}
unsigned bit_of_32(const std::byte* bits, int i) {
  return byte_at(bits, i / 8) >> (i % 8) & 1;
}

void q8_0(const std::byte* b, double* w) {  // f16 d, int8 codes[32]
  const double d = half(word_at(b));
  for (int i = 0; i < 32; i++) w[i] = d * signed_byte(byte_at(b, 2 + i));
}
void q4_0(const std::byte* b, double* w) {  // f16 d, nibbles[16]
  const double d = half(word_at(b));
  for (int i = 0; i < 32; i++) w[i] = d * (int(nibble_of_32(b + 2, i)) - 8);
}
void q4_1(const std::byte* b, double* w) {  // f16 d, f16 m, nibbles[16]
  const double d = half(word_at(b)), m = half(word_at(b + 2));
  for (int i = 0; i < 32; i++) w[i] = d * nibble_of_32(b + 4, i) + m;
}
void q5_0(const std::byte* b, double* w) {  // f16 d, fifth bits[4], nibbles[16]
  const double d = half(word_at(b));
  for (int i = 0; i < 32; i++) w[i] = d * (int(nibble_of_32(b + 6, i) | bit_of_32(b + 2, i) << 4) - 16);
}
void q5_1(const std::byte* b, double* w) {  // f16 d, f16 m, fifth bits[4], nibbles[16]
  const double d = half(word_at(b)), m = half(word_at(b + 2));
  for (int i = 0; i < 32; i++) w[i] = d * (nibble_of_32(b + 8, i) | bit_of_32(b + 4, i) << 4) + m;
}

/// Q4_K and Q5_K: the eight scales and minima of 6 bits in 12 bytes. The first four lie in the low six bits of bytes
/// 0..3 and 4..7; of the last four, bytes 8..11 hold the low nibbles (scale low, minimum high) and the top two bits of
/// bytes 0..3 and 4..7 the rest.
void six_bits(const std::byte* s, int g, unsigned* scale, unsigned* minimum) {
  if (g < 4) {
    *scale = byte_at(s, g) & 63;
    *minimum = byte_at(s, 4 + g) & 63;
    return;
  }
  const unsigned low = byte_at(s, 4 + g);
  *scale = (low & 15) + 16 * (byte_at(s, g - 4) / 64);
  *minimum = low / 16 + 16 * (byte_at(s, g) / 64);
}
void q45_k(const std::byte* b, bool five, double* w) {  // f16 d, f16 dmin, scales[12], (fifth bits[32]), nibbles[128]
  const double d = half(word_at(b)), dmin = half(word_at(b + 2));
  const std::byte *high = b + 16, *codes = five ? b + 48 : b + 16;
  for (int g = 0; g < 8; g++) {
    unsigned scale, minimum;
    six_bits(b + 4, g, &scale, &minimum);
    for (int j = 0; j < 32; j++) {
      unsigned code = byte_at(codes, 32 * (g / 2) + j) >> (g % 2 ? 4 : 0) & 15;
      if (five) code += 16 * (byte_at(high, j) >> g & 1);
      w[32 * g + j] = d * scale * code - dmin * minimum;
    }
  }
}
void q6_k(const std::byte* b, double* w) {  // low nibbles[128], high pairs[64], int8 scales[16], f16 d
  const double d = half(word_at(b + 208));
  for (int i = 0; i < 256; i++) {
    const int half_block = i / 128, quarter = i % 128 / 32, j = i % 32;
    const unsigned low = byte_at(b, 64 * half_block + 32 * (quarter & 1) + j) >> (quarter < 2 ? 0 : 4) & 15;
    const unsigned high = byte_at(b, 128 + 32 * half_block + j) >> (2 * quarter) & 3;
    w[i] = d * signed_byte(byte_at(b, 192 + i / 16)) * (int(low + 16 * high) - 32);
  }
}

}  // namespace

void widen(WeightType type, const std::byte* data, int64_t n, double* out) {
  auto blocks = [&](int64_t elements, size_t bytes, auto&& decode) {
    if (n % elements != 0)
      throw Error(ErrorKind::internal, "oracle: widen", "not whole blocks", "a multiple of " + std::to_string(elements),
                  std::to_string(n));
    for (int64_t i = 0; i < n / elements; i++) decode(data + size_t(i) * bytes, out + i * elements);
  };
  switch (type) {
    case WeightType::f32:
      for (int64_t i = 0; i < n; i++) {
        const std::byte* p = data + 4 * i;
        out[i] = single(word_at(p) | uint32_t(word_at(p + 2)) << 16);
      }
      return;
    case WeightType::f16:
      for (int64_t i = 0; i < n; i++) out[i] = half(word_at(data + 2 * i));
      return;
    case WeightType::bf16:
      for (int64_t i = 0; i < n; i++) out[i] = single(uint32_t(word_at(data + 2 * i)) << 16);
      return;
    case WeightType::q8_0:
      return blocks(32, 34, q8_0);
    case WeightType::q4_0:
      return blocks(32, 18, q4_0);
    case WeightType::q4_1:
      return blocks(32, 20, q4_1);
    case WeightType::q5_0:
      return blocks(32, 22, q5_0);
    case WeightType::q5_1:
      return blocks(32, 24, q5_1);
    case WeightType::q4_k:
      return blocks(256, 144, [](auto* b, double* w) { q45_k(b, false, w); });
    case WeightType::q5_k:
      return blocks(256, 176, [](auto* b, double* w) { q45_k(b, true, w); });
    case WeightType::q6_k:
      return blocks(256, 210, q6_k);
  }
  throw Error(ErrorKind::internal, "oracle: widen", "unknown element type");
}

double round_to(KvType type, double x) {
  if (type == KvType::f32) return double(float(x));
  if (!std::isfinite(x) || x == 0) return x;
  const int digits = type == KvType::f16 ? 11 : 8, least = type == KvType::f16 ? -24 : -133;
  const double largest = type == KvType::f16 ? 65504.0 : 0x1.fep127;
  int exponent;
  std::frexp(x, &exponent);  // |x| in [2^(exponent-1), 2^exponent)
  const int ulp = std::max(exponent - digits, least);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(x, -ulp)), ulp);
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), x) : rounded;
}

}  // namespace assay::oracle

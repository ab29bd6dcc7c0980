// linear and embed against sums written from NUMERICS.md, on every instruction set, byte by byte; the bound against
// float64.
#include <algorithm>

#include "engine/formats/quant.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr WeightType kTypes[] = {WeightType::f32,  WeightType::f16,  WeightType::bf16, WeightType::q8_0,
                                 WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                                 WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

bool has_minimum(WeightType type) {  // a second binary16 after the first
  return type == WeightType::q4_1 || type == WeightType::q5_1 || type == WeightType::q4_k || type == WeightType::q5_k;
}

double half_value(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const double sign = h & 0x8000 ? -1 : 1;
  if (exponent == 31) return fraction ? std::nan("") : sign * INFINITY;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

/// Random codes with scales around 2^-6; `special`: denormal, zero, negative and non-finite scales too (a loader
/// refuses the last; kernels must still agree on them).
std::vector<std::byte> random_weights(Rng& rng, WeightType type, int64_t rows, int64_t columns, bool special) {
  std::vector<std::byte> bytes(size_t(rows) * row_bytes(type, columns));
  for (auto& b : bytes) b = std::byte(uniform(rng, 0, 255));
  auto put16 = [&](size_t at, uint16_t v) { std::memcpy(&bytes[at], &v, 2); };
  auto scale = [&]() -> uint16_t {
    constexpr uint16_t kSpecial[] = {0x0001, 0x83ff, 0x0000, 0x8000, 0x7c00, 0xfc00, 0x7e00, 0x7bff, 0x7d01};
    if (special && uniform(rng, 0, 9) == 0) return kSpecial[uniform(rng, 0, std::size(kSpecial) - 1)];
    return uint16_t(uniform(rng, 0, 1) << 15 | uniform(rng, 7, 11) << 10 | uniform(rng, 0, 1023));
  };
  if (!is_quantised(type)) {
    const auto x = inputs(rng, rows * columns, special ? Inputs::special : Inputs::plain);
    for (size_t i = 0; i < x.size(); i++) {
      uint32_t u;
      std::memcpy(&u, &x[i], 4);
      if (type == WeightType::f32) std::memcpy(&bytes[4 * i], &u, 4);
      if (type == WeightType::bf16) put16(2 * i, uint16_t(u >> 16));
      if (type == WeightType::f16)
        put16(2 * i, special && uniform(rng, 0, 50) == 0 ? uint16_t(uniform(rng, 0, 65535)) : scale());
    }
    return bytes;
  }
  const size_t block = block_bytes(type);
  for (size_t at = 0; at < bytes.size(); at += block) {
    put16(at + (type == WeightType::q6_k ? offsetof(BlockQ6_K, d) : 0), scale());
    if (has_minimum(type)) put16(at + 2, scale());
  }
  return bytes;
}

/// Element k of a row as the file format defines it, exact in double, rounded once to f32.
float widened(WeightType type, const std::byte* row, int64_t k) {
  auto u8 = [&](size_t at) { return std::to_integer<int>(row[at]); };
  auto i8 = [&](size_t at) { return int(int8_t(u8(at))); };
  auto f16 = [&](size_t at) { return half_value(uint16_t(u8(at) | u8(at + 1) << 8)); };
  const size_t i = size_t(k % 32), b = size_t(k / 32);
  switch (type) {
    case WeightType::f32: {
      float v;
      std::memcpy(&v, row + 4 * k, 4);
      return v;
    }
    case WeightType::f16:
      return float(f16(size_t(2 * k)));
    case WeightType::bf16: {
      const uint32_t u = uint32_t(u8(size_t(2 * k)) | u8(size_t(2 * k + 1)) << 8) << 16;
      float v;
      std::memcpy(&v, &u, 4);
      return v;
    }
    case WeightType::q8_0:
      return float(f16(34 * b) * i8(34 * b + 2 + i));
    case WeightType::q4_0:
      return float(f16(18 * b) * ((i < 16 ? u8(18 * b + 2 + i) & 15 : u8(18 * b + 2 + i - 16) >> 4) - 8));
    case WeightType::q4_1:
      return float(f16(20 * b) * (i < 16 ? u8(20 * b + 4 + i) & 15 : u8(20 * b + 4 + i - 16) >> 4) + f16(20 * b + 2));
    case WeightType::q5_0:
    case WeightType::q5_1: {
      const size_t base = row_bytes(type, 32) * b, qh = base + (type == WeightType::q5_0 ? 2 : 4), qs = qh + 4;
      const int low = i < 16 ? u8(qs + i) & 15 : u8(qs + i - 16) >> 4, high = u8(qh + i / 8) >> (i % 8) & 1;
      if (type == WeightType::q5_0) return float(f16(base) * (low + 16 * high - 16));
      return float(f16(base) * (low + 16 * high) + f16(base + 2));
    }
    case WeightType::q4_k:
    case WeightType::q5_k: {  // as ggml unpacks them: get_scale_min_k4, pairs of groups share 32 bytes
      const size_t base = row_bytes(type, 256) * size_t(k / 256), g = size_t(k % 256) / 32, s = base + 4;
      const size_t qh = base + 16, qs = type == WeightType::q4_k ? qh : qh + 32;
      int scale, minimum;
      if (g < 4) {
        scale = u8(s + g) & 63;
        minimum = u8(s + g + 4) & 63;
      } else {
        scale = (u8(s + g + 4) & 0xf) | (u8(s + g - 4) >> 6) << 4;
        minimum = (u8(s + g + 4) >> 4) | (u8(s + g) >> 6) << 4;
      }
      int code = g % 2 ? u8(qs + 32 * (g / 2) + i) >> 4 : u8(qs + 32 * (g / 2) + i) & 15;
      if (type == WeightType::q5_k && (u8(qh + i) & 1 << g)) code += 16;
      return float(f16(base) * scale * code - f16(base + 2) * minimum);
    }
    case WeightType::q6_k: {  // ggml's own order of loops, over one block
      const size_t base = 210 * size_t(k / 256), r = size_t(k % 256), n = r / 128, l = r % 32, q = r % 128 / 32;
      const int low = u8(base + 64 * n + (q & 1 ? l + 32 : l)), high = u8(base + 128 + 32 * n + l);
      const int code = (q < 2 ? low & 15 : low >> 4) | (high >> (2 * q) & 3) << 4;
      return float(f16(base + 208) * i8(base + 192 + 8 * n + l / 16 + 2 * q) * (code - 32));
    }
  }
  return NAN;
}

struct Case {
  WeightType type;
  int64_t rows, columns, tokens;
  bool bias, special;
};

struct Reference {
  std::vector<std::byte> weights;
  std::vector<float> wide, x, bias, y;
  LinearArgs args;

  Reference(Rng& rng, const Case& c) {
    weights = random_weights(rng, c.type, c.rows, c.columns, c.special);
    x = inputs(rng, c.tokens * c.columns, c.special ? Inputs::special : Inputs::wide);
    bias = inputs(rng, c.rows);
    wide.resize(size_t(c.rows * c.columns));
    for (int64_t n = 0; n < c.rows; n++) {
      for (int64_t k = 0; k < c.columns; k++) {
        wide[size_t(n * c.columns + k)] = widened(c.type, weights.data() + size_t(n) * row_bytes(c.type, c.columns), k);
      }
    }
    y.resize(size_t(c.tokens * c.rows));
    for (int64_t t = 0; t < c.tokens; t++) {
      for (int64_t n = 0; n < c.rows; n++) {
        float& out = y[size_t(t * c.rows + n)];
        out = rule_sum(&wide[size_t(n * c.columns)], &x[size_t(t * c.columns)], c.columns, 256);
        if (c.bias) out += bias[size_t(n)];
      }
    }
    args = {{c.type, c.rows, c.columns, weights.data()}, c.bias ? bias.data() : nullptr, x.data(), nullptr, c.tokens};
  }
  std::vector<float> run(Rng& rng, Isa isa) {
    std::vector<float> out(y.size(), -123.0f);
    args.y = out.data();
    in_random_cuts(rng, args.w.rows, [&](int64_t b, int64_t e) { kernels(isa).linear(args, b, e); });
    return out;
  }
};

std::string text(const Case& c, Isa isa) {
  return joined(name_of(isa), " ", name_of(c.type), " rows ", c.rows, " columns ", c.columns, " tokens ", c.tokens,
                c.special ? " special" : "");
}

TEST(Linear, EveryTypeShapeAndCutHasTheBytesOfTheRule) {
  Rng rng = seeded(1);
  const auto sets = isas();
  for (WeightType type : kTypes) {
    std::vector<int64_t> columns = {1, 7, 15, 16, 17, 31, 32, 33, 63, 255, 256, 257, 511, 513, 576, 1000};
    if (is_quantised(type)) columns = {32, 64, 96, 224, 256, 288, 512, 544, 576, 1024};
    if (block_elements(type) == 256) columns = {256, 512, 768, 1280};
    for (int64_t k : columns) {
      for (int64_t tokens : {1, 2, 3, 4, 5, 6, 7, 13}) {
        const Case c{type, uniform(rng, 1, 11), k, tokens, uniform(rng, 0, 1) == 1, uniform(rng, 0, 2) == 0};
        Reference r(rng, c);
        for (Isa isa : sets) EXPECT_TRUE(same_bytes(r.run(rng, isa), r.y)) << text(c, isa);
      }
    }
  }
}

TEST(Linear, LongRowsAndManyTokensHaveTheBytesOfTheRule) {
  Rng rng = seeded(2);
  for (const Case& c :
       {Case{WeightType::bf16, 9, 4096, 70, true, false}, Case{WeightType::f32, 6, 5000, 33, false, false},
        Case{WeightType::q4_1, 5, 8192, 29, false, false}, Case{WeightType::q4_k, 5, 8192, 29, false, false},
        Case{WeightType::f16, 3, 20000, 1, true, false}}) {
    Reference r(rng, c);
    for (Isa isa : isas()) EXPECT_TRUE(same_bytes(r.run(rng, isa), r.y)) << text(c, isa);
  }
}

TEST(Linear, NoTokensWriteNothing) {
  Rng rng = seeded(3);
  Reference r(rng, Case{WeightType::f32, 4, 64, 1, false, false});
  r.args.tokens = 0;
  for (Isa isa : isas()) EXPECT_TRUE(same_bytes(r.run(rng, isa), {-123.0f, -123.0f, -123.0f, -123.0f}));
}

TEST(Linear, StaysWithinItsBoundAgainstFloat64) {
  Rng rng = seeded(4);
  Share share;
  for (WeightType type : kTypes) {
    for (int64_t k : {256, 512, 1024, 3072}) {
      for (bool bias : {false, true}) {
        const Case c{type, 16, k, 3, bias, false};
        Reference r(rng, c);
        const auto y = r.run(rng, best_isa());
        for (int64_t t = 0; t < c.tokens; t++) {
          for (int64_t n = 0; n < c.rows; n++) {
            long double exact = bias ? r.bias[size_t(n)] : 0.0f, magnitude = 0;
            for (int64_t i = 0; i < k; i++) {
              const double p = double(r.wide[size_t(n * k + i)]) * double(r.x[size_t(t * k + i)]);
              exact += p;
              magnitude += std::fabs(p);
            }
            const float got = y[size_t(t * c.rows + n)];
            const double bound = 0x1p-24 * (std::ceil(double(k) / 256) + 9) * double(magnitude) +
                                 0x1p-149 * (double(k) + 256) + (bias ? 0x1p-24 * std::fabs(double(exact)) : 0);
            share.take(double(std::fabs((long double)got - exact)), bound);
          }
        }
      }
    }
  }
  std::cout << "[   share  ] linear used " << share.used << " of its bound\n";
  EXPECT_LE(share.used, 1.0);
  EXPECT_GT(share.used, 0.001);  // a bound that nothing comes near would hold nothing
}

// Faults that the byte test must see. B10: another order of sums for batches of a multiple of 4.
TEST(Linear, AnotherOrderForSomeBatchSizesIsSeen) {
  Rng rng = seeded(5);
  const Case c{WeightType::f32, 4, 576, 4, false, false};
  Reference r(rng, c);
  auto wrong = r.y;
  for (int64_t t = 0; t < c.tokens && c.tokens % 4 == 0; t++) {
    for (int64_t n = 0; n < c.rows; n++) {
      wrong[size_t(t * c.rows + n)] =
          rule_sum(&r.wide[size_t(n * c.columns)], &r.x[size_t(t * c.columns)], c.columns, 128);
    }
  }
  for (Isa isa : isas()) {
    const auto y = r.run(rng, isa);
    EXPECT_TRUE(same_bytes(y, r.y));
    EXPECT_FALSE(same_bytes(y, wrong));
  }
}

// A product rounded before it is added (no fma) and a fold of neighbours are seen as well.
TEST(Linear, RoundedProductsAndAnotherFoldAreSeen) {
  Rng rng = seeded(6);
  const Case c{WeightType::f32, 8, 512, 1, false, false};
  Reference r(rng, c);
  std::vector<float> no_fma, neighbours;
  for (int64_t n = 0; n < c.rows; n++) {
    std::vector<float> acc(256, 0.0f), good(256, 0.0f);
    for (size_t k = 0; k < 512; k++) {
      const float p = r.wide[size_t(n) * 512 + k] * r.x[k];
      acc[k % 256] = acc[k % 256] + p;
      good[k % 256] = std::fma(r.wide[size_t(n) * 512 + k], r.x[k], good[k % 256]);
    }
    for (size_t half = 128; half >= 1; half /= 2) {
      for (size_t i = 0; i < half; i++) {
        acc[i] += acc[i + half];
        good[i] = good[2 * i] + good[2 * i + 1];
      }
    }
    no_fma.push_back(acc[0] + 0.0f);
    neighbours.push_back(good[0] + 0.0f);
  }
  for (Isa isa : isas()) {
    const auto y = r.run(rng, isa);
    EXPECT_FALSE(same_bytes(y, no_fma));
    EXPECT_FALSE(same_bytes(y, neighbours));
  }
}

TEST(Embed, EveryTypeWidensExactly) {
  Rng rng = seeded(7);
  for (WeightType type : kTypes) {
    for (int64_t k : {1, 15, 17, 32, 64, 256, 257, 576, 768}) {
      if (k % block_elements(type) != 0) continue;
      for (bool special : {false, true}) {
        const int64_t rows = 9;
        const auto bytes = random_weights(rng, type, rows, k, special);
        std::vector<int32_t> ids;
        std::vector<float> want;
        for (int t = 0; t < 12; t++) {
          ids.push_back(int32_t(uniform(rng, 0, rows - 1)));
          for (int64_t i = 0; i < k; i++)
            want.push_back(widened(type, bytes.data() + size_t(ids.back()) * row_bytes(type, k), i));
        }
        for (Isa isa : isas()) {
          std::vector<float> y(want.size(), -123.0f);
          const EmbedArgs a{{type, rows, k, bytes.data()}, ids.data(), y.data()};
          in_random_cuts(rng, 12, [&](int64_t b, int64_t e) { kernels(isa).embed(a, b, e); });
          EXPECT_TRUE(same_bytes(y, want)) << name_of(isa) << " " << name_of(type) << " " << k;
        }
      }
    }
  }
}

}  // namespace
}  // namespace assay

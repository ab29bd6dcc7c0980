// The float64 side of the kernel checks, held against the engine's own widening and against products done by hand.
#include "conformance/kernel/exact_product.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>

#include "engine/formats/quant.h"
#include "engine/formats/quantise.h"

namespace assay {
namespace {

TEST(ExactProduct, DecodesEveryTypeToTheWidenedWeights) {
  constexpr uint64_t kSeed = 31;
  std::cout << "seed " << kSeed << "\n";
  std::mt19937_64 rng(kSeed);
  for (WeightType type : {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0, WeightType::q5_1,
                          WeightType::q4_k, WeightType::q5_k, WeightType::q6_k}) {
    std::vector<std::byte> row(row_bytes(type, 512));
    for (std::byte& b : row) b = std::byte(rng());
    const size_t at = type == WeightType::q6_k ? offsetof(BlockQ6_K, d) : 0;
    for (size_t b = 0; b < row.size(); b += block_bytes(type))
      for (size_t s = 0; s < (terms_per_group(type) == 2 && type != WeightType::q6_k ? 2u : 1u); s++) {
        const auto h = uint16_t(rng() & 0xbfff);  // finite, subnormal ones among them
        std::memcpy(&row[b + at + 2 * s], &h, 2);
      }
    std::vector<float> widened(512);
    decode_row(type, row.data(), 512, widened.data());
    const ExactRow exact = decode_exactly(type, row.data(), 512);
    for (size_t k = 0; k < 512; k++) ASSERT_EQ(float(exact.weight(k)), widened[k]) << name_of(type) << " element " << k;
  }
}

TEST(ExactProduct, QuantisesByTheRule) {
  float x[32] = {127, -3.5f, -2.5f, 2.5f, 3.5f, -0.0f, -126.6f};
  const ExactGroup g = quantise_exactly(x, Activations::s8);
  EXPECT_EQ(g.scale, 1.0f);
  const int want[7] = {127, -4, -2, 2, 4, 0, -127};
  for (int i = 0; i < 7; i++) EXPECT_EQ(g.code[i], want[i]) << i;
  x[9] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(quantise_exactly(x, Activations::s16).scale));
  float small[32] = {0x1.fffffep-101f};
  EXPECT_EQ(quantise_exactly(small, Activations::s16).scale, 0.0f);
}

// One group of Q4_0 with d = 1, all codes 9 (weight 1), x all 2: 64 exactly, and a bound that s8 has to be given for
// its step.
TEST(ExactProduct, AProductByHand) {
  BlockQ4_0 block{0x3c00, {}};
  std::memset(block.codes, 0x99, sizeof block.codes);
  const ExactRow w = decode_exactly(WeightType::q4_0, reinterpret_cast<const std::byte*>(&block), 32);
  const std::vector<float> x(32, 2.0f);
  const float bias = 1;
  const double step16 = 2.0 / 32639, step8 = 2.0 / 127;
  for (Activations kind : {Activations::s16, Activations::s8, Activations::f32}) {
    const ExactProduct p = exact_product(WeightType::q4_0, w, x.data(), kind, &bias);
    EXPECT_EQ(p.value, 65);
    const double quantising = kind == Activations::s16  ? 0.501 * step16 * 32
                              : kind == Activations::s8 ? 0.50001 * step8 * 32
                                                        : 0;
    const double summing = 0x1p-24 * 64 * (kind == Activations::f32 ? 10 : 7) + 0x1p-24 * 65;
    EXPECT_NEAR(p.bound, quantising + summing, 1e-9 * p.bound + 1e-7 * quantising) << name_of(kind);
  }
}

}  // namespace
}  // namespace assay

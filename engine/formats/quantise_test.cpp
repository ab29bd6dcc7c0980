// Encoders of weight types: the rules of the formats, subnormal scales (FAULTS B4), rounding of negative values (B5).
#include "engine/formats/quantise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "dumps/error.h"
#include "engine/formats/quant.h"
#include "engine/formats/test_files.h"
#include "engine/numerics.h"

namespace assay {
namespace {

using namespace testing_files;

constexpr WeightType kBlocks[] = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                  WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

std::vector<float> gaussian_row(uint64_t seed, int64_t n, double size) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal(0, size);
  std::vector<float> x(static_cast<size_t>(n));
  for (float& v : x) v = float(normal(rng));
  return x;
}
std::vector<std::byte> encoded(WeightType type, const std::vector<float>& x) {
  std::vector<std::byte> out(row_bytes(type, int64_t(x.size())));
  const EncodeFault fault = encode_row(type, x.data(), int64_t(x.size()), out.data());
  EXPECT_EQ(fault.what, nullptr) << fault.what;
  return out;
}
std::vector<float> round_trip(WeightType type, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  decode_row(type, encoded(type, x).data(), int64_t(x.size()), y.data());
  return y;
}
double row_sqnr(const std::vector<float>& x, const std::vector<float>& y) {
  const RowError e = row_error(x.data(), y.data(), int64_t(x.size()));
  return sqnr_db(e.signal, e.noise);
}
template <typename Block>
Block first_block(const std::vector<std::byte>& bytes) {
  Block b;
  std::memcpy(&b, bytes.data(), sizeof b);
  return b;
}

TEST(Quantise, EveryTypeKeepsNormalWeightsToItsBits) {
  // Decibels of independent normal values; a wrong nibble, scale or minimum costs tens.
  constexpr double kLeast[] = {42, 20, 20.5, 26, 26.5, 21.5, 27.5, 34};
  for (size_t i = 0; i < std::size(kBlocks); i++) {
    double signal = 0, noise = 0;
    for (double size : {1e-3, 0.02, 1.0, 300.0}) {
      const auto x = gaussian_row(i + 1, 4096, size), y = round_trip(kBlocks[i], x);
      const RowError e = row_error(x.data(), y.data(), 4096);
      EXPECT_GT(sqnr_db(e.signal, e.noise), kLeast[i]) << name_of(kBlocks[i]) << " size " << size;
      signal += e.signal;
      noise += e.noise;
    }
    std::cout << "[  sqnr    ] " << name_of(kBlocks[i]) << " " << sqnr_db(signal, noise) << " dB\n";
  }
}

TEST(Quantise, EncodingADecodedRowAgainGivesTheSameBytes) {
  for (WeightType type : {WeightType::q8_0, WeightType::q4_0, WeightType::q5_0}) {
    const auto x = gaussian_row(7, 1024, 0.05);
    EXPECT_EQ(encoded(type, round_trip(type, x)), encoded(type, x)) << name_of(type);
  }
}

TEST(Quantise, ScalesAndCodesFollowTheReferenceRules) {
  std::vector<float> x(32, 0.0f);
  x[3] = 12.7f;
  x[9] = -12.7f;  // of equal magnitude, the first decides
  x[20] = 1.0f;
  const auto q8 = first_block<BlockQ8_0>(encoded(WeightType::q8_0, x));
  EXPECT_EQ(q8.d, f16_of_f32(12.7f / 127));
  EXPECT_EQ(q8.codes[3], 127);
  EXPECT_EQ(q8.codes[9], -127);
  EXPECT_EQ(q8.codes[20], 10);
  const auto q4 = first_block<BlockQ4_0>(encoded(WeightType::q4_0, x));
  EXPECT_EQ(q4.d, f16_of_f32(12.7f / -8));
  EXPECT_EQ(q4.codes[3] & 15, 0);   // 8 - 8
  EXPECT_EQ(q4.codes[9] & 15, 15);  // 8 + 8, held at 15
  EXPECT_EQ(q4.codes[4] >> 4, 7);   // element 20: 8 - 0.63, plus a half, cut
  const auto q5 = first_block<BlockQ5_0>(encoded(WeightType::q5_0, x));
  EXPECT_EQ(q5.d, f16_of_f32(12.7f / -16));
  EXPECT_EQ(q5.codes[4] >> 4 | (q5.high[2] >> 4 & 1) << 4, 15);  // element 20: 16 - 1.26, plus a half, cut
  const auto q41 = first_block<BlockQ4_1>(encoded(WeightType::q4_1, x));
  EXPECT_EQ(q41.d, f16_of_f32(25.4f / 15));
  EXPECT_EQ(q41.m, f16_of_f32(-12.7f));
  EXPECT_EQ(q41.codes[3] & 15, 15);
  EXPECT_EQ(q41.codes[9] & 15, 0);
}

// Rounded in the block's own steps, K-quants have to beat the plain min/max grid that Q4_1, Q5_1 use.
TEST(Quantise, KQuantsSearchBeatsThePlainGrid) {
  for (auto [k, plain] : {std::pair{WeightType::q4_k, WeightType::q4_1}, {WeightType::q5_k, WeightType::q5_1}}) {
    const auto x = gaussian_row(11, 8192, 0.03);
    EXPECT_GT(row_sqnr(x, round_trip(k, x)), row_sqnr(x, round_trip(plain, x))) << name_of(k);
  }
}

TEST(Quantise, ConstantAndZeroRowsStayWhatTheyAre) {
  for (WeightType type : kBlocks) {
    const std::vector<float> zero(256, 0.0f);
    EXPECT_EQ(round_trip(type, zero), zero) << name_of(type);
    for (float v : {0.5f, -0.5f}) {
      const std::vector<float> x(256, v);
      EXPECT_GT(row_sqnr(x, round_trip(type, x)), 30) << name_of(type) << " " << v;
    }
  }
}

// B4. Scales that are subnormal in binary16: rounded to nearest even, neither flushed nor cut.
TEST(Quantise, SubnormalScalesAreKeptAndRounded) {
  int subnormal = 0, flushed_differs = 0, cut_differs = 0;
  for (int i = 0; i < 200; i++) {
    const auto x = gaussian_row(uint64_t(100 + i), 32, 1e-4 / (1 + i % 50));
    const auto bytes = encoded(WeightType::q8_0, x);
    const auto b = first_block<BlockQ8_0>(bytes);
    float amax = 0;
    for (float v : x) amax = std::max(amax, std::fabs(v));
    const double exact = double(amax) / 127, ulp = 0x1p-24;  // of subnormals
    if (exact >= 0x1p-14) continue;
    subnormal++;
    const double wanted = std::nearbyint(exact / ulp) * ulp;
    EXPECT_EQ(double(f32_of_f16(b.d)), wanted);
    std::vector<float> y(32);
    decode_row(WeightType::q8_0, bytes.data(), 32, y.data());
    for (size_t k = 0; k < 32; k++) EXPECT_EQ(double(y[k]), wanted * b.codes[k]);
    // The two faults, planted: both must show in the decoded values.
    flushed_differs += wanted != 0;
    cut_differs += std::floor(exact / ulp) * ulp != wanted;
  }
  EXPECT_GT(subnormal, 150);
  EXPECT_GT(flushed_differs, 100);
  EXPECT_GT(cut_differs, 50);
}

// A scale far below binary16: the group is zero, and no code is made of an infinite reciprocal.
TEST(Quantise, RowsBelowTheSmallestScaleBecomeZero) {
  for (WeightType type : kBlocks) {
    for (double size : {1e-12, 1e-40}) {
      const auto x = gaussian_row(3, 256, size), y = round_trip(type, x);
      for (float v : y) EXPECT_EQ(v, 0.0f) << name_of(type) << " " << size;
    }
  }
}

// B5. (int)(x + 0.5) cuts toward zero, so that negative values come out one too high.
TEST(Quantise, NegativeHalvesAreRoundedAwayFromZero) {
  std::vector<float> x(32);
  x[0] = 127;  // d = 1: x is the code's real value
  const float values[] = {-0.5f, -0.49999997f, 0.49999997f, 0.5f, -1.5f, -2.5f, 2.5f, -2.7f, -2.3f, -126.5f};
  const int wanted[] = {-1, 0, 0, 1, -2, -3, 3, -3, -2, -127};
  for (size_t i = 0; i < std::size(values); i++) x[i + 1] = values[i];
  const auto b = first_block<BlockQ8_0>(encoded(WeightType::q8_0, x));
  int planted_differs = 0;
  for (size_t i = 0; i < std::size(values); i++) {
    EXPECT_EQ(b.codes[i + 1], wanted[i]) << values[i];
    planted_differs += int(values[i] + 0.5f) != wanted[i];
  }
  EXPECT_GE(planted_differs, 6);
}

// Codes are nearest ones on negative values too: no decoded value lies further off than half a step (and, at the end
// of the asymmetric grids, the step that the missing code is wide).
TEST(Quantise, EveryCodeIsTheNearestOnBothSidesOfZero) {
  for (auto [type, steps] : {std::pair{WeightType::q8_0, 127.0}, {WeightType::q4_1, 7.5}, {WeightType::q5_1, 15.5}}) {
    for (uint64_t seed = 1; seed < 30; seed++) {
      const auto x = gaussian_row(seed, 32, 1.0), y = round_trip(type, x);
      float low = 0, high = 0;
      for (float v : x) low = std::min(low, v), high = std::max(high, v);
      const double step = type == WeightType::q8_0 ? std::max(-low, high) / steps : (high - low) / 2 / steps;
      for (size_t k = 0; k < 32; k++) {
        // 2^-11 of the largest value: what rounding d and m to binary16 may move.
        EXPECT_LE(std::fabs(double(y[k]) - x[k]), step / 2 + 0x1p-10 * std::max(-low, high)) << name_of(type);
      }
    }
  }
}

TEST(Quantise, WhatCanNotBeEncodedIsNamed) {
  std::vector<std::byte> out(4096);
  for (int i = 0; i <= int(WeightType::q6_k); i++) {
    const WeightType type = WeightType(i);
    for (float bad : {NAN, INFINITY, -INFINITY}) {
      auto x = gaussian_row(1, 512, 1.0);
      x[300] = bad;
      const EncodeFault fault = encode_row(type, x.data(), 512, out.data());
      ASSERT_NE(fault.what, nullptr) << name_of(type);
      EXPECT_STREQ(fault.what, "is not finite");
      EXPECT_EQ(fault.column, 300);
    }
    if (type == WeightType::f32 || type == WeightType::bf16) continue;
    auto x = gaussian_row(1, 512, 1.0);
    x[300] = 3e38f;
    const EncodeFault fault = encode_row(type, x.data(), 512, out.data());
    ASSERT_NE(fault.what, nullptr) << name_of(type);
    EXPECT_EQ(fault.column, 300 / block_elements(type) * block_elements(type)) << name_of(type);
  }
}

TEST(Quantise, TypesByNameAndTheUnsupportedOnesByTheirs) {
  EXPECT_EQ(weight_type_from_name("q4_k", "--type"), WeightType::q4_k);
  EXPECT_EQ(weight_type_from_name("BF16", "--type"), WeightType::bf16);
  for (const char* name :
       {"fp8", "F8_E4M3", "E5M2", "MXFP4", "nvfp4", "AWQ", "gptq", "IQ4_XS", "iq2_xxs", "Q2_K", "Q3_K"}) {
    const std::string error = error_of([&] { weight_type_from_name(name, "--type"); });
    EXPECT_NE(error.find("is not supported"), std::string::npos) << error;
    EXPECT_NE(error.find(name), std::string::npos) << error;
    EXPECT_NE(error.find("F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K"), std::string::npos) << error;
  }
  EXPECT_NE(error_of([] { weight_type_from_name("Q4_K_M", "--type"); }).find("mixtures"), std::string::npos);
  EXPECT_NE(error_of([] { weight_type_from_name("Q9", "--type"); }).find("unknown weight type"), std::string::npos);
}

TEST(Quantise, RowsThatDoNotDivideGetAnotherType) {
  EXPECT_EQ(fitting_type(WeightType::q4_k, 512), WeightType::q4_k);
  EXPECT_EQ(fitting_type(WeightType::q4_k, 96), WeightType::q8_0);
  EXPECT_EQ(fitting_type(WeightType::q4_0, 96), WeightType::q4_0);
  EXPECT_EQ(fitting_type(WeightType::q4_0, 40), WeightType::f16);
  EXPECT_EQ(fitting_type(WeightType::f32, 7), WeightType::f32);
}

}  // namespace
}  // namespace assay

// Each op against numbers that can be checked by hand, and the fast matrix product against the plain one.
#include "oracle/ops.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "dumps/error.h"

namespace assay::oracle {
namespace {

Matrix64 matrix(int64_t rows, int64_t columns, std::vector<double> v) {
  Matrix64 m(rows, columns);
  m.v = std::move(v);
  return m;
}

std::vector<double> widened(WeightType type, std::vector<uint8_t> bytes, int64_t n) {
  std::vector<double> out(static_cast<size_t>(n));
  widen(type, reinterpret_cast<const std::byte*>(bytes.data()), n, out.data());
  return out;
}

TEST(OracleWiden, Floats) {
  const std::vector<double> f32 = widened(WeightType::f32, {0, 0, 0xc0, 0x3f, 1, 0, 0, 0x80}, 2);
  EXPECT_EQ(f32[0], 1.5);
  EXPECT_EQ(f32[1], -0x1p-149);
  // 1.0, the largest, the smallest denormal, -2.5, -Inf, NaN
  const std::vector<double> f16 =
      widened(WeightType::f16, {0x00, 0x3c, 0xff, 0x7b, 0x01, 0x00, 0x00, 0xc1, 0x00, 0xfc, 0x01, 0x7c}, 6);
  EXPECT_EQ(f16[0], 1);
  EXPECT_EQ(f16[1], 65504);
  EXPECT_EQ(f16[2], 0x1p-24);
  EXPECT_EQ(f16[3], -2.5);
  EXPECT_EQ(f16[4], -INFINITY);
  EXPECT_TRUE(std::isnan(f16[5]));
  const std::vector<double> bf16 = widened(WeightType::bf16, {0x80, 0x3f, 0x49, 0xc0}, 2);
  EXPECT_EQ(bf16[0], 1);
  EXPECT_EQ(bf16[1], -3.140625);
}

constexpr uint8_t kHalfLow = 0x00, kHalfHigh = 0x38;  // 0.5 as binary16
constexpr uint8_t kTwoHigh = 0xc0;                    // -2 (low byte 0)

TEST(OracleWiden, BlocksOf32) {
  std::vector<uint8_t> q8 = {kHalfLow, kHalfHigh};
  for (int i = 0; i < 32; i++) q8.push_back(uint8_t(i % 2 ? 256 - i : i));
  q8[2 + 31] = 0x80;
  const std::vector<double> w8 = widened(WeightType::q8_0, q8, 32);
  EXPECT_EQ(w8[2], 1);
  EXPECT_EQ(w8[3], -1.5);
  EXPECT_EQ(w8[31], -64);

  // Byte j holds element j in its low nibble and element j + 16 in its high one.
  std::vector<uint8_t> nibbles;
  for (int j = 0; j < 16; j++) nibbles.push_back(uint8_t(j | (15 - j) << 4));
  std::vector<uint8_t> q4 = {kHalfLow, kHalfHigh};
  q4.insert(q4.end(), nibbles.begin(), nibbles.end());
  const std::vector<double> w4 = widened(WeightType::q4_0, q4, 32);
  EXPECT_EQ(w4[0], -4);    // 0.5 * (0 - 8)
  EXPECT_EQ(w4[3], -2.5);  // 0.5 * (3 - 8)
  EXPECT_EQ(w4[16], 3.5);  // 0.5 * (15 - 8)
  EXPECT_EQ(w4[31], -4);

  std::vector<uint8_t> q41 = {kHalfLow, kHalfHigh, 0, kTwoHigh};
  q41.insert(q41.end(), nibbles.begin(), nibbles.end());
  const std::vector<double> w41 = widened(WeightType::q4_1, q41, 32);
  EXPECT_EQ(w41[0], -2);
  EXPECT_EQ(w41[3], -0.5);
  EXPECT_EQ(w41[16], 5.5);

  // Fifth bits of elements 0, 9 and 31.
  std::vector<uint8_t> q50 = {kHalfLow, kHalfHigh, 0x01, 0x02, 0x00, 0x80};
  q50.insert(q50.end(), nibbles.begin(), nibbles.end());
  const std::vector<double> w50 = widened(WeightType::q5_0, q50, 32);
  EXPECT_EQ(w50[0], 0);     // 0.5 * (16 + 0 - 16)
  EXPECT_EQ(w50[1], -7.5);  // 0.5 * (1 - 16)
  EXPECT_EQ(w50[9], 4.5);   // 0.5 * (16 + 9 - 16)
  EXPECT_EQ(w50[31], 0);    // 0.5 * (16 + 0 - 16)

  std::vector<uint8_t> q51 = {kHalfLow, kHalfHigh, 0, kTwoHigh, 0x01, 0x02, 0x00, 0x80};
  q51.insert(q51.end(), nibbles.begin(), nibbles.end());
  const std::vector<double> w51 = widened(WeightType::q5_1, q51, 32);
  EXPECT_EQ(w51[0], 6);
  EXPECT_EQ(w51[1], -1.5);
  EXPECT_EQ(w51[9], 10.5);
}

TEST(OracleWiden, BlocksOf256) {
  // Group 1: scale 5, minimum 3. Group 6: scale 0x21 = 33 (low 1, high 2), minimum 0x3e = 62 (low 14, high 3).
  std::vector<uint8_t> q4(144, 0);
  q4[1] = kHalfHigh;  // d = 0.5
  q4[3] = kTwoHigh;   // dmin = -2
  q4[4 + 1] = 5;      // scale 1
  q4[4 + 5] = 3;      // minimum 1
  q4[4 + 10] = 1 | 14 << 4;
  q4[4 + 2] |= 2 << 6;     // top of scale 6
  q4[4 + 6] |= 3 << 6;     // top of minimum 6
  q4[16 + 7] = 0x9a;       // elements 7 (group 0) and 39 (group 1)
  q4[16 + 96 + 4] = 0x4b;  // elements 4 of groups 6 and 7
  const std::vector<double> w4 = widened(WeightType::q4_k, q4, 256);
  EXPECT_EQ(w4[7], 0);  // scale 0, minimum 0
  EXPECT_EQ(w4[39], 0.5 * 5 * 9 + 2 * 3);
  EXPECT_EQ(w4[32], 2 * 3);  // code 0
  EXPECT_EQ(w4[6 * 32 + 4], 0.5 * 33 * 11 + 2 * 62);

  std::vector<uint8_t> q5(176, 0);
  std::copy(q4.begin(), q4.begin() + 16, q5.begin());
  std::copy(q4.begin() + 16, q4.end(), q5.begin() + 48);
  q5[16 + 7] = 1 << 1;  // element 7 of group 1
  q5[16 + 4] = 1 << 6;  // element 4 of group 6
  const std::vector<double> w5 = widened(WeightType::q5_k, q5, 256);
  EXPECT_EQ(w5[39], 0.5 * 5 * 25 + 2 * 3);
  EXPECT_EQ(w5[6 * 32 + 4], 0.5 * 33 * 27 + 2 * 62);
  EXPECT_EQ(w5[6 * 32 + 5], 2 * 62);

  // Element 200 = half 1, quarter 2, j 8: high nibble of low[64 + 8], bits 4..5 of high[32 + 8], scale 12.
  std::vector<uint8_t> q6(210, 0);
  q6[64 + 8] = 0xd0;
  q6[128 + 40] = 2 << 4;
  q6[192 + 12] = 0xfd;  // -3
  q6[209] = kHalfHigh;
  // Element 33 = half 0, quarter 1, j 1: low nibble of low[32 + 1], bits 2..3 of high[1], scale 2.
  q6[33] = 0x07;
  q6[129] = 1 << 2;
  q6[192 + 2] = 4;
  const std::vector<double> w6 = widened(WeightType::q6_k, q6, 256);
  EXPECT_EQ(w6[200], 0.5 * -3 * (45 - 32));
  EXPECT_EQ(w6[33], 0.5 * 4 * (23 - 32));
  EXPECT_EQ(w6[34], 0.5 * 4 * (0 - 32));
  EXPECT_EQ(w6[0], 0);
  EXPECT_THROW(widened(WeightType::q6_k, q6, 255), Error);
}

TEST(OracleOps, RoundTo) {
  EXPECT_EQ(round_to(KvType::f16, 1 + 0x1p-11), 1);  // a tie, to even
  EXPECT_EQ(round_to(KvType::f16, 1 + 3 * 0x1p-11), 1 + 0x1p-9);
  EXPECT_EQ(round_to(KvType::f16, 0x1.8p-24), 0x1p-23);  // denormal, a tie
  EXPECT_EQ(round_to(KvType::f16, 65519.99), 65504);
  EXPECT_EQ(round_to(KvType::f16, -65520), -INFINITY);
  EXPECT_EQ(round_to(KvType::bf16, 1 + 0x1p-8), 1);
  EXPECT_EQ(round_to(KvType::bf16, 1 + 0x1.8p-8), 1 + 0x1p-7);
  EXPECT_EQ(round_to(KvType::f32, 1 + 0x1p-24), 1);
  EXPECT_TRUE(std::isnan(round_to(KvType::f16, NAN)));
  std::mt19937 rng(7);
  for (int i = 0; i < 20000; i++) {  // every value of the type is its own rounding
    const uint16_t bits = uint16_t(rng());
    double w;
    widen(WeightType::f16, reinterpret_cast<const std::byte*>(&bits), 1, &w);
    if (!std::isnan(w)) {
      ASSERT_EQ(round_to(KvType::f16, w), w) << bits;
    }
    widen(WeightType::bf16, reinterpret_cast<const std::byte*>(&bits), 1, &w);
    if (!std::isnan(w)) {
      ASSERT_EQ(round_to(KvType::bf16, w), w) << bits;
    }
  }
}

TEST(OracleOps, LinearEqualsThePlainSum) {
  const unsigned seed = 20261130;
  std::mt19937 rng(seed);
  std::uniform_real_distribution<double> value(-1, 1);
  struct Shape {
    int64_t tokens, depth, outputs;
  };
  for (const Shape s : {Shape{1, 1, 1}, Shape{5, 31, 7}, Shape{6, 512, 8}, Shape{7, 513, 65}, Shape{13, 1100, 130}}) {
    Matrix64 x(s.tokens, s.depth), w(s.outputs, s.depth);
    for (double& d : x.v) d = value(rng);
    for (double& d : w.v) d = value(rng);
    std::vector<double> bias(static_cast<size_t>(s.outputs));
    for (double& d : bias) d = value(rng);
    const Matrix64 y = linear(x, w, bias, 1), magnitude = linear_magnitude(x, rows_of(w), 2);
    EXPECT_EQ(linear(x, w, bias, 3).v, y.v) << "threads change bits";
    for (int64_t t = 0; t < s.tokens; t++)
      for (int64_t n = 0; n < s.outputs; n++) {
        double sum = 0, absolute = 0;
        for (int64_t k = 0; k < s.depth; k++) {
          sum += x.at(t, k) * w.at(n, k);
          absolute += std::fabs(x.at(t, k) * w.at(n, k));
        }
        sum += bias[size_t(n)];
        ASSERT_NEAR(y.at(t, n), sum, 1e-13 * absolute) << "seed " << seed << " token " << t << " output " << n;
        ASSERT_NEAR(magnitude.at(t, n), absolute, 1e-13 * absolute);
      }
  }
  EXPECT_THROW(linear(Matrix64(1, 3), Matrix64(1, 4)), Error);
}

TEST(OracleOps, Norms) {
  // mean of squares (9 + 16) / 2 = 12.5
  const Matrix64 y = rms_norm(matrix(1, 2, {3, 4}), std::vector<double>{2, -1}, 0);
  EXPECT_DOUBLE_EQ(y.at(0, 0), 6 / std::sqrt(12.5));
  EXPECT_DOUBLE_EQ(y.at(0, 1), -4 / std::sqrt(12.5));
  EXPECT_DOUBLE_EQ(rms_norm(matrix(1, 2, {3, 4}), std::vector<double>{1, 1}, 3.5).at(0, 0),
                   3.0 / 4);  // eps under the root
  const Matrix64 heads = head_norm(matrix(1, 4, {3, 4, 0.3, 0.4}), 2, 2, std::vector<double>{2, -1}, 0);
  EXPECT_DOUBLE_EQ(heads.at(0, 2), heads.at(0, 0));
  EXPECT_DOUBLE_EQ(heads.at(0, 3), heads.at(0, 1));
}

TEST(OracleOps, RopeTurnsHalves) {
  RopeConfig c;
  c.theta = 100;
  c.rotary = 4;  // frequencies 1 and 100^-1/2 = 0.1; head_dim 5: the last column passes
  const std::vector<int64_t> positions = {0, 3};
  const Matrix64 y = rope(matrix(2, 5, {1, 2, 3, 4, 9, 1, 2, 3, 4, 9}), 1, 5, positions, c);
  EXPECT_EQ(std::vector<double>(y.row(0), y.row(0) + 5), (std::vector<double>{1, 2, 3, 4, 9}));
  EXPECT_DOUBLE_EQ(y.at(1, 0), 1 * std::cos(3.0) - 3 * std::sin(3.0));
  EXPECT_DOUBLE_EQ(y.at(1, 2), 3 * std::cos(3.0) + 1 * std::sin(3.0));
  EXPECT_NEAR(y.at(1, 1), 2 * std::cos(0.3) - 4 * std::sin(0.3), 1e-15);
  EXPECT_NEAR(y.at(1, 3), 4 * std::cos(0.3) + 2 * std::sin(0.3), 1e-15);
  EXPECT_EQ(y.at(1, 4), 9);
}

TEST(OracleOps, RopeLlama3) {
  RopeConfig c;
  c.theta = 10000;
  c.rotary = 8;  // 1, 0.1, 0.01, 0.001: wavelengths 6.3, 63, 628, 6283
  c.llama3 = true;
  c.factor = 8;
  c.low_freq_factor = 1;
  c.high_freq_factor = 4;
  c.original_context = 100;  // slowed beyond 100, kept below 25
  const std::vector<double> f = rope_frequencies(c);
  EXPECT_DOUBLE_EQ(f[0], 1);
  const double smooth = (100 / (20 * M_PI) - 1) / 3;  // 0.197
  EXPECT_NEAR(f[1], (1 - smooth) * 0.1 / 8 + smooth * 0.1, 1e-16);
  EXPECT_DOUBLE_EQ(f[2], 0.01 / 8);
  EXPECT_DOUBLE_EQ(f[3], 0.001 / 8);
}

TEST(OracleOps, AttentionByHand) {
  // Two query heads on one kv head of 4 dims; scores are q.k / 2.
  const Matrix64 k = matrix(3, 4, {2, 0, 0, 0, 0, 2, 0, 0, 50, 50, 50, 50});
  const Matrix64 v = matrix(3, 4, {1, 0, 10, 0, 0, 1, 0, -10, 1e9, 1e9, 1e9, 1e9});
  const Matrix64 q = matrix(1, 8, {1, 0, 0, 0, 0, 3, 0, 0});
  const std::vector<int64_t> at = {1};  // position 2 lies ahead and has no say
  const Matrix64 y = attention(q, k, v, at, 2, 1, 4);
  const double p = std::exp(1.0) / (std::exp(1.0) + 1), r = 1 / (1 + std::exp(3.0));
  EXPECT_NEAR(y.at(0, 0), p, 1e-15);
  EXPECT_NEAR(y.at(0, 1), 1 - p, 1e-15);
  EXPECT_NEAR(y.at(0, 3), -10 * (1 - p), 1e-14);
  EXPECT_NEAR(y.at(0, 4), r, 1e-15);
  EXPECT_NEAR(y.at(0, 5), 1 - r, 1e-15);
  const AttentionMagnitude m = attention_magnitude(q, k, v, at, 2, 1, 4);
  EXPECT_EQ(m.qk.at(0, 0), 2);
  EXPECT_EQ(m.score.at(0, 1), 3);
  EXPECT_EQ(m.spread.at(0, 1), 3);
  EXPECT_NEAR(m.mixed.at(0, 3), 10 * (1 - p), 1e-14);
  EXPECT_THROW(attention(q, k, v, std::vector<int64_t>{3}, 2, 1, 4), Error);
}

TEST(OracleOps, AttentionGroupsRepeat) {
  // Four query heads on two kv heads: heads 0 and 1 read kv head 0, heads 2 and 3 kv head 1.
  const Matrix64 k = matrix(1, 2, {1, 1}), v = matrix(1, 2, {5, 7});
  const Matrix64 y = attention(matrix(1, 4, {1, 1, 1, 1}), k, v, std::vector<int64_t>{0}, 4, 2, 1);
  EXPECT_EQ(y.v, (std::vector<double>{5, 5, 7, 7}));
}

TEST(OracleOps, Pointwise) {
  const Matrix64 y = silu_mul(matrix(1, 3, {0, 2, -800}), matrix(1, 3, {5, 3, 1}));
  EXPECT_EQ(y.at(0, 0), 0);
  EXPECT_DOUBLE_EQ(y.at(0, 1), 2 / (1 + std::exp(-2.0)) * 3);
  EXPECT_EQ(y.at(0, 2), 0);
  EXPECT_EQ(add(matrix(1, 2, {1, 2}), matrix(1, 2, {10, 20})).v, (std::vector<double>{11, 22}));
  EXPECT_EQ(argmax(std::vector<double>{1, 3, 3}), 1);
  EXPECT_EQ(argmax(std::vector<double>{1, NAN, 3}), -1);
  const Matrix64 table = matrix(3, 2, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(embed(rows_of(table), std::vector<int32_t>{2, 0}).v, (std::vector<double>{5, 6, 1, 2}));
  EXPECT_THROW(embed(rows_of(table), std::vector<int32_t>{3}), Error);
}

}  // namespace
}  // namespace assay::oracle

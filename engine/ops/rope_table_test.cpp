// The rope table against long double, its llama3 scaling, and what it refuses.
#include "engine/ops/common/rope_table.h"

#include "dumps/error.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

RopeConfig config_of(double theta, int64_t rotary) {
  RopeConfig c;
  c.theta = theta;
  c.rotary = rotary;
  return c;
}

TEST(RopeTable, IsCosAndSinOfPositionTimesFrequency) {
  for (double theta : {1.0, 10000.0, 500000.0, 1e7}) {
    const RopeTable t = make_rope_table(config_of(theta, 128), 3000);
    ASSERT_EQ(t.cos.size(), size_t(3000 * 64));
    for (int64_t j = 0; j < 64; j++) {
      const long double f = 1 / std::pow((long double)theta, (long double)(2 * j) / 128);
      EXPECT_LE(std::fabs(t.inv_freq[size_t(j)] - f), 0x1p-49L * f);  // e * log2(theta), up to 24, is rounded once
      for (int64_t p : {0, 1, 2, 63, 1000, 2999}) {
        const double angle = double(p) * t.inv_freq[size_t(j)];
        EXPECT_EQ(t.cos[size_t(p * 64 + j)], float(std::cos((long double)angle)));
        EXPECT_EQ(t.sin[size_t(p * 64 + j)], float(std::sin((long double)angle)));
      }
    }
    EXPECT_EQ(t.inv_freq[0], 1.0);
  }
}

TEST(RopeTable, ExtendingKeepsRowsAndEqualsBuildingAtOnce) {
  RopeTable grown = make_rope_table(config_of(10000, 32), 0);
  EXPECT_TRUE(grown.cos.empty());
  for (int64_t n : {5, 3, 100}) grown.extend(n);
  const RopeTable whole = make_rope_table(config_of(10000, 32), 100);
  EXPECT_EQ(grown.context, 100);
  EXPECT_EQ(grown.cos, whole.cos);
  EXPECT_EQ(grown.sin, whole.sin);
}

TEST(RopeTable, Llama3ScalesByWavelength) {
  RopeConfig c = config_of(500000, 128);
  const RopeTable plain = make_rope_table(c, 1);
  c.llama3 = true;
  c.factor = 8;
  c.low_freq_factor = 1;
  c.high_freq_factor = 4;
  c.original_context = 8192;
  const RopeTable scaled = make_rope_table(c, 1);
  int kept = 0, divided = 0, between = 0;
  for (size_t j = 0; j < 64; j++) {
    const double f = plain.inv_freq[j], wavelength = 2 * 3.14159265358979323846 / f;
    if (wavelength < 8192.0 / 4) {
      EXPECT_EQ(scaled.inv_freq[j], f);
      kept++;
    } else if (wavelength > 8192.0) {
      EXPECT_EQ(scaled.inv_freq[j], f / 8);
      divided++;
    } else {
      const double smooth = (8192 / wavelength - 1) / 3;
      EXPECT_NEAR(scaled.inv_freq[j], (1 - smooth) * f / 8 + smooth * f, f * 1e-15);
      EXPECT_LT(scaled.inv_freq[j], f);
      EXPECT_GT(scaled.inv_freq[j], f / 8);
      between++;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(divided, 0);
  EXPECT_GT(between, 0);
}

TEST(RopeTable, SectionsOfTextChooseNothing) {
  RopeConfig c = config_of(5e6, 128);
  const RopeTable plain = make_rope_table(c, 20);
  c.mrope_section = {24, 20, 20};
  EXPECT_EQ(make_rope_table(c, 20).cos, plain.cos);
  c.mrope_section = {24, 20, 21};
  EXPECT_THROW(make_rope_table(c, 20), Error);
}

TEST(RopeTable, RefusesWhatHasNoTable) {
  EXPECT_THROW(make_rope_table(config_of(10000, 31), 4), Error);
  EXPECT_THROW(make_rope_table(config_of(10000, -2), 4), Error);
  for (double theta : {0.0, -1.0, 0.5, double(NAN), double(INFINITY)})
    EXPECT_THROW(make_rope_table(config_of(theta, 32), 4), Error);
  EXPECT_THROW(make_rope_table(config_of(10000, 2), (int64_t(1) << 23) + 1), Error);
  RopeConfig c = config_of(10000, 32);
  c.llama3 = true;
  c.low_freq_factor = c.high_freq_factor = 4;
  EXPECT_THROW(make_rope_table(c, 4), Error);
  EXPECT_EQ(make_rope_table(config_of(10000, 0), 4).pairs, 0);
}

}  // namespace
}  // namespace assay

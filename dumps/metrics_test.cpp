// The fast metrics against a slow and plain computation, over random shapes, dtypes and values; instruction sets and row
// splits against each other, bit for bit.
#include "dumps/metrics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

namespace assay {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Buffer {
  DumpTensor tensor;
  std::vector<std::byte> bytes;
  size_t shift = 0;

  Buffer(DType dtype, std::vector<int64_t> shape, size_t misalign = 0) : shift(misalign) {
    tensor.name = "x";
    tensor.dtype = dtype;
    tensor.shape = std::move(shape);
    bytes.resize(tensor.bytes() + misalign + 8);
    tensor.data = bytes.data() + shift;
  }
  Buffer(const Buffer&) = delete;
  std::byte* at(int64_t i) { return bytes.data() + shift + size_t(i) * size_of(tensor.dtype); }
  /// Stores the nearest value that the dtype has (a truncation for bf16 and f16 does here: the values are arbitrary).
  void set(int64_t i, double x) {
    switch (tensor.dtype) {
      case DType::f64: std::memcpy(at(i), &x, 8); break;
      case DType::f32: {
        const float y = float(x);
        std::memcpy(at(i), &y, 4);
        break;
      }
      case DType::bf16: {
        const uint16_t y = uint16_t(std::bit_cast<uint32_t>(float(x)) >> 16);
        std::memcpy(at(i), &y, 2);
        break;
      }
      case DType::f16: {
        uint16_t y = 0;
        double least = kInf;
        if (std::isnan(x)) {
          y = 0x7e00;
        } else if (std::isinf(x)) {
          y = x < 0 ? 0xfc00 : 0x7c00;
        } else {  // by search: slow, but obviously right
          for (uint32_t c = 0; c < 0x7c00; c += 1) {
            const double v = half(uint16_t(c));
            if (std::fabs(v - std::fabs(x)) < least) {
              least = std::fabs(v - std::fabs(x));
              y = uint16_t(c | (std::signbit(x) ? 0x8000u : 0));
            }
          }
        }
        std::memcpy(at(i), &y, 2);
        break;
      }
      default: {
        const int64_t y = int64_t(x);
        std::memcpy(at(i), &y, size_of(tensor.dtype));
      }
    }
  }
  static double half(uint16_t c) {
    const int e = (c >> 10) & 31, f = c & 1023;
    const double v = e == 31 ? (f ? kNaN : kInf) : e == 0 ? std::ldexp(f, -24) : std::ldexp(1024 + f, e - 25);
    return c & 0x8000 ? -v : v;
  }
  double get(int64_t i) {
    switch (tensor.dtype) {
      case DType::f64: {
        double y;
        std::memcpy(&y, at(i), 8);
        return y;
      }
      case DType::f32: {
        float y;
        std::memcpy(&y, at(i), 4);
        return y;
      }
      case DType::bf16: {
        uint16_t y;
        std::memcpy(&y, at(i), 2);
        return std::bit_cast<float>(uint32_t(y) << 16);
      }
      case DType::f16: {
        uint16_t y;
        std::memcpy(&y, at(i), 2);
        return half(y);
      }
      default: {
        int64_t y = 0;
        std::memcpy(&y, at(i), size_of(tensor.dtype));
        return double(y);
      }
    }
  }
};

/// Position of a value among all values of a type, by stepping definition: the sign-magnitude code of the rounded value.
int64_t code(DType t, double x) {
  auto magnitude = [&](double v) -> int64_t {
    v = std::fabs(v);
    const int fraction = t == DType::f64 ? 52 : t == DType::f32 ? 23 : t == DType::f16 ? 10 : 7;
    const int least = t == DType::f64 ? -1022 : t == DType::f16 ? -14 : -126;
    const int most = t == DType::f64 ? 1023 : t == DType::f16 ? 15 : 127;
    if (v == 0) return 0;
    const int64_t infinity = int64_t(most - least + 2) << fraction;
    if (std::isinf(v)) return infinity;
    const int e = std::max(std::ilogb(v), least);
    const double units = std::nearbyint(std::scalbn(v, fraction - e));  // ties to even, exact before
    const int64_t base = int64_t(e - least) << fraction;  // normal values of exponent e have units >= 2^fraction
    return std::min(base + int64_t(units), infinity);
  };
  return std::signbit(x) ? -magnitude(x) : magnitude(x);
}

TensorMetrics slow(Buffer& b, Buffer& t, double scale) {
  TensorMetrics m;
  m.scale = scale;
  const bool same = b.tensor.dtype == t.tensor.dtype, integers = !is_float(b.tensor.dtype) || !is_float(t.tensor.dtype);
  const DType narrow = integers ? DType::f64 : narrower(b.tensor.dtype, t.tensor.dtype);
  const int64_t columns = b.tensor.columns();
  for (int64_t r = 0; r < b.tensor.rows(); r++) {
    double row_max = 0, row_diff = 0;
    long double diff2 = 0, base2 = 0;
    Place worst;
    for (int64_t c = 0; c < columns; c++) {
      const int64_t i = r * columns + c;
      const double x = b.get(i), y = t.get(i);
      m.elements++;
      const bool bits = same ? std::memcmp(b.at(i), t.at(i), size_of(b.tensor.dtype)) == 0 : x == y;
      const bool fx = std::isfinite(x), fy = std::isfinite(y);
      bool equal = bits && !std::isnan(x);
      if (fx) row_max = std::max(row_max, std::fabs(x)), base2 += (long double)x * x;
      if (fx && fy) {
        const double d = std::fabs(y - x);
        diff2 += (long double)d * d;
        if (d > row_diff) row_diff = d, worst = {r, c, x, y};
        if (integers) {
          m.ulp_le_1 += equal;
          m.ulp_le_4 += equal;
        } else {
          const double gap = std::fabs(double(code(narrow, x)) - double(code(narrow, y)));
          m.ulp_le_1 += gap <= 1;
          m.ulp_le_4 += gap <= 4;
        }
      } else {
        const bool agree = !fx && !fy && x == y;
        equal = agree;
        m.ulp_le_1 += agree;
        m.ulp_le_4 += agree;
        m.non_finite_both += !fx && !fy;
        m.nan_both += std::isnan(x) && std::isnan(y);
        m.non_finite_base_only += !fx && fy;
        m.non_finite_target_only += fx && !fy;
        if (!agree && m.non_finite_mismatch++ == 0) m.non_finite_at = {r, c, x, y};
      }
      m.bits_equal += equal;
      if (!bits && m.first_difference.row < 0) m.first_difference = {r, c, x, y};
    }
    m.max_base = std::max(m.max_base, row_max);
    const double rel = row_diff / std::max({row_max, 0.1 * scale, 1e-300});
    if (row_diff > m.max_abs) m.max_abs = row_diff, m.max_abs_at = worst;
    if (rel > m.max_rel) m.max_rel = rel, m.max_rel_at = worst;
    const double l2 = double(std::sqrt(diff2) / std::max(std::sqrt(base2), (long double)std::max(0.1 * scale, 1e-300) *
                                                                               std::sqrt((long double)columns)));
    if (l2 > m.worst_row_l2) m.worst_row_l2 = l2, m.worst_row_l2_at = r;
  }
  return m;
}

bool same_value(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

void expect_place(const Place& a, const Place& b, const char* what) {
  EXPECT_EQ(a.row, b.row) << what;
  EXPECT_EQ(a.column, b.column) << what;
  EXPECT_TRUE(same_value(a.base, b.base)) << what << " " << a.base << " " << b.base;
  EXPECT_TRUE(same_value(a.target, b.target)) << what << " " << a.target << " " << b.target;
}

/// Everything equal; the sums of worst_row_l2 within rounding of `l2_slack` (0: same bits).
void expect_metrics(const TensorMetrics& a, const TensorMetrics& b, double l2_slack) {
  EXPECT_EQ(a.elements, b.elements);
  EXPECT_EQ(a.bits_equal, b.bits_equal);
  EXPECT_EQ(a.ulp_le_1, b.ulp_le_1);
  EXPECT_EQ(a.ulp_le_4, b.ulp_le_4);
  EXPECT_EQ(a.max_base, b.max_base);
  EXPECT_EQ(a.max_abs, b.max_abs);
  EXPECT_EQ(a.max_rel, b.max_rel);
  expect_place(a.max_abs_at, b.max_abs_at, "max_abs");
  expect_place(a.max_rel_at, b.max_rel_at, "max_rel");
  expect_place(a.non_finite_at, b.non_finite_at, "non_finite");
  expect_place(a.first_difference, b.first_difference, "first_difference");
  EXPECT_EQ(a.non_finite_base_only, b.non_finite_base_only);
  EXPECT_EQ(a.non_finite_target_only, b.non_finite_target_only);
  EXPECT_EQ(a.non_finite_both, b.non_finite_both);
  EXPECT_EQ(a.non_finite_mismatch, b.non_finite_mismatch);
  EXPECT_EQ(a.nan_both, b.nan_both);
  if (l2_slack == 0) {
    EXPECT_EQ(a.worst_row_l2, b.worst_row_l2);
    EXPECT_EQ(a.worst_row_l2_at, b.worst_row_l2_at);
  } else if (a.worst_row_l2 != b.worst_row_l2) {
    EXPECT_LE(std::fabs(a.worst_row_l2 - b.worst_row_l2), l2_slack * std::fabs(b.worst_row_l2));
  }
}

class Isa : public ::testing::Test {
 protected:
  void TearDown() override { use_metrics_isa(MetricsIsa::automatic); }
};

TEST_F(Isa, RandomPairsEqualThePlainComputation) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  const DType types[] = {DType::f64, DType::f32, DType::f16, DType::bf16, DType::i64, DType::u8};
  auto uniform = [&](int64_t n) { return int64_t(rng() % uint64_t(n)); };
  for (int round = 0; round < 60 && !HasFailure(); round++) {
    DType tb = types[uniform(4)], tt = uniform(2) ? tb : types[uniform(4)];
    if (uniform(12) == 0) tb = types[4 + uniform(2)], tt = uniform(3) ? tb : types[uniform(6)];
    const int64_t columns = uniform(4) == 0 ? 1 + uniform(2600) : 1 + uniform(70);
    const bool half = tb == DType::f16 || tt == DType::f16;
    const int64_t rows = 1 + uniform(half ? std::max<int64_t>(1, 60 / columns) : std::max<int64_t>(1, 6000 / columns));
    Buffer b(tb, {rows, columns}, uniform(5) == 0 ? size_t(uniform(7)) : 0);
    Buffer t(tt, {rows, columns}, uniform(5) == 0 ? size_t(uniform(7)) : 0);
    const int kind = int(uniform(6));  // how much differs, and how wild the values are
    const double magnitude = kind == 5 ? 1e-310 : kind == 4 ? 1e-41 : std::pow(10.0, double(uniform(9)) - 4);
    std::normal_distribution<double> normal(0, tb == DType::i64 ? 1e6 : tb == DType::u8 ? 100 : magnitude);
    for (int64_t i = 0; i < rows * columns; i++) {
      b.set(i, uniform(40) == 0 ? 0.0 : std::fabs(normal(rng)) * (uniform(2) && is_float(tb) ? -1 : 1));
      double y = b.get(i);
      if (kind >= 2 || (kind == 1 && uniform(1000) == 0)) y += y * (double(uniform(9)) - 4) * (uniform(3) ? 6e-8 : 1e-2);
      if (kind == 3 && uniform(20) == 0) y = -y;
      t.set(i, y);
      if (uniform(3000) == 0 || (kind == 3 && uniform(200) == 0)) {
        const double odd[] = {kNaN, kInf, -kInf, 0.0, -0.0, 1e308, -1e308, 5e-324};
        if (is_float(tb)) b.set(i, odd[uniform(8)]);
        if (is_float(tt)) t.set(i, uniform(2) ? b.get(i) : odd[uniform(8)]);
      }
    }
    const double scale = uniform(3) ? max_abs_finite(b.tensor, 0, rows) : std::fabs(normal(rng));
    SCOPED_TRACE(std::string(name_of(tb)) + " against " + std::string(name_of(tt)) + ", " + std::to_string(rows) + " x " +
                 std::to_string(columns) + ", round " + std::to_string(round));
    const TensorMetrics want = slow(b, t, scale);
    use_metrics_isa(MetricsIsa::generic);
    const TensorMetrics generic = measure(b.tensor, t.tensor, scale);
    // The long double sums of the plain form do not overflow or vanish where squares of doubles do.
    expect_metrics(generic, want, 1e-12);
    use_metrics_isa(MetricsIsa::automatic);
    const TensorMetrics fast = measure(b.tensor, t.tensor, scale);
    expect_metrics(fast, generic, 0);
    TensorMetrics split;
    for (int64_t r = 0; r < rows;) {
      const int64_t n = std::min<int64_t>(rows - r, 1 + uniform(5));
      merge(split, measure_rows(b.tensor, t.tensor, r, n, scale));
      r += n;
    }
    expect_metrics(split, generic, 0);
  }
}

TEST(Ulp, DistanceRoundsToTheNarrowerTypeAndCrossesZero) {
  EXPECT_EQ(ulp_distance(DType::f32, 1.0, 1.0 + 0x1p-23), 1);
  EXPECT_EQ(ulp_distance(DType::f32, 1.0, 1.0 + 0x1p-25), 0);
  EXPECT_EQ(ulp_distance(DType::f32, -0x1p-149, 0x1p-149), 2);
  EXPECT_EQ(ulp_distance(DType::f32, -0.0, 0.0), 0);
  EXPECT_EQ(ulp_distance(DType::bf16, 1.0, 1.0 + 0x1p-7), 1);
  EXPECT_EQ(ulp_distance(DType::f16, 65504.0, 65520.0), 1);  // rounds to infinity, the next code
  EXPECT_EQ(ulp_distance(DType::f16, 0x1p-24, 0x1p-25), 1);  // a tie goes to the even zero
  EXPECT_EQ(ulp_distance(DType::f64, 1.0, std::nextafter(1.0, 2.0)), 1);
  EXPECT_EQ(narrower(DType::f16, DType::bf16), DType::bf16);
  EXPECT_EQ(ulp_of(DType::f32, 1.5), 0x1p-23);
  EXPECT_EQ(ulp_of(DType::bf16, 20.0), 0x1p-3);
  EXPECT_EQ(ulp_of(DType::f32, 0.0), 0x1p-149);
}

TEST(Ulp, EveryHalfIsWidenedByBothLoops) {
  for (uint32_t c = 0; c < 65536; c++) {
    const uint16_t x = uint16_t(c);
    const double want = Buffer::half(x), got = value_at(DType::f16, reinterpret_cast<const std::byte*>(&x), 0);
    ASSERT_TRUE(same_value(want, got) && std::signbit(want) == std::signbit(got)) << c;
    if (std::isnan(want)) continue;
    ASSERT_EQ(ulp_distance(DType::f16, want, want), 0);
    if (c != 0x7c00 && c != 0xfc00) {
      const uint16_t next = uint16_t(c + 1);
      ASSERT_EQ(ulp_distance(DType::f16, want, Buffer::half(next)), 1) << c;
    }
  }
}

TEST(Metrics, SquaresOutsideTheRangeOfDoubleAreScaled) {
  Buffer b(DType::f64, {2, 3}), t(DType::f64, {2, 3});
  const double values[] = {1e200, 2e200, -2e200, 3e-200, 0, 4e-200};
  for (int i = 0; i < 6; i++) b.set(i, values[i]), t.set(i, i == 0 ? 1.5e200 : i == 5 ? 5e-200 : values[i]);
  const TensorMetrics m = measure(b.tensor, t.tensor, 0);
  EXPECT_DOUBLE_EQ(m.max_abs, 5e199);
  EXPECT_DOUBLE_EQ(m.worst_row_l2, 0.2);   // row 1: 1e-200 / 5e-200
  EXPECT_EQ(m.worst_row_l2_at, 1);
  EXPECT_DOUBLE_EQ(measure_rows(b.tensor, t.tensor, 0, 1, 0).worst_row_l2, 0.5 / 3);
}

TEST(Metrics, LargeIntegersAreComparedExactly) {
  Buffer b(DType::i64, {1, 2}), t(DType::i64, {1, 2});
  const int64_t big = (int64_t(1) << 60) + 1, other = big + 1;  // the same number once rounded to double
  std::memcpy(b.at(0), &big, 8);
  std::memcpy(t.at(0), &other, 8);
  b.set(1, 7), t.set(1, 7);
  ASSERT_EQ(double(big), double(other));
  const TensorMetrics m = measure(b.tensor, t.tensor, 0);
  EXPECT_EQ(m.bits_equal, 1);
  EXPECT_EQ(m.max_abs, 1);
  EXPECT_EQ(m.first_difference.column, 0);
}

}  // namespace
}  // namespace assay

// quantise and quant_linear against the rule written from NUMERICS.md, on every instruction set, byte by byte; the
// bound against float64; faults that the byte test must see. Weights are made as codes and scales and packed into the
// file's blocks here, so that no decoding of the code under test is believed.
#include <algorithm>
#include <numeric>

#include "engine/formats/quant.h"
#include "engine/ops/panel.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr WeightType kTypes[] = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                 WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

double half_value(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const double sign = h & 0x8000 ? -1 : 1;
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

/// Largest code and what the format takes off it.
int largest_code(WeightType t) {
  switch (t) {
    case WeightType::q8_0:
      return 255;
    case WeightType::q6_k:
      return 63;
    case WeightType::q5_0:
    case WeightType::q5_1:
    case WeightType::q5_k:
      return 31;
    default:
      return 15;
  }
}
int offset_of(WeightType t) {
  switch (t) {
    case WeightType::q8_0:
      return 128;
    case WeightType::q6_k:
      return 32;
    case WeightType::q5_0:
      return 16;
    case WeightType::q4_0:
      return 8;
    default:
      return 0;
  }
}
bool with_minimum(WeightType t) {
  return t == WeightType::q4_1 || t == WeightType::q5_1 || t == WeightType::q4_k || t == WeightType::q5_k;
}
bool in_blocks_of_256(WeightType t) {
  return t == WeightType::q4_k || t == WeightType::q5_k || t == WeightType::q6_k;
}

/// A quantised matrix as numbers: w = d * scale * (code - offset) - or + the minimum.
struct Weights {
  WeightType type;
  int64_t rows, columns;
  std::vector<int> code;            // [rows][columns], unsigned
  std::vector<uint16_t> d, m;       // per block
  std::vector<int> scale, minimum;  // K-quants: per group; Q6_K: scale per 16
  std::vector<std::byte> bytes;

  int64_t groups() const { return columns / 32; }
  int64_t block_of(int64_t row, int64_t g) const {
    return in_blocks_of_256(type) ? row * (columns / 256) + g / 8 : row * groups() + g;
  }
  int w(int64_t row, int64_t k) const { return code[size_t(row * columns + k)] - offset_of(type); }
  float sw(int64_t row, int64_t g, int half) const {
    const double d16 = half_value(d[size_t(block_of(row, g))]);
    if (!in_blocks_of_256(type)) return float(d16);
    return float(d16 * scale[size_t(type == WeightType::q6_k ? 2 * (row * groups() + g) + half : row * groups() + g)]);
  }
  float mw(int64_t row, int64_t g) const {
    if (!with_minimum(type)) return 0;
    const double m16 = half_value(m[size_t(block_of(row, g))]);
    return in_blocks_of_256(type) ? float(-m16 * minimum[size_t(row * groups() + g)]) : float(m16);
  }
  double value(int64_t row, int64_t k) const {
    return double(sw(row, k / 32, int(k % 32 / 16))) * w(row, k) + double(mw(row, k / 32));
  }
};

void pack(Weights& m) {
  m.bytes.assign(size_t(m.rows) * row_bytes(m.type, m.columns), std::byte(0));
  auto or_into = [&](size_t at, int bits) { m.bytes[at] |= std::byte(bits); };
  auto put16 = [&](size_t at, uint16_t v) { std::memcpy(&m.bytes[at], &v, 2); };
  const size_t size = block_bytes(m.type);
  const int64_t n = block_elements(m.type);
  for (int64_t b = 0; b < m.rows * m.columns / n; b++) {
    const size_t at = size_t(b) * size;
    const int* c = &m.code[size_t(b * n)];
    const uint16_t d = m.d[size_t(b)], minimum = m.m[size_t(b)];
    switch (m.type) {
      case WeightType::q8_0:
        put16(at, d);
        for (int i = 0; i < 32; i++) or_into(at + 2 + size_t(i), (c[i] - 128) & 255);
        break;
      case WeightType::q4_0:
      case WeightType::q4_1:
      case WeightType::q5_0:
      case WeightType::q5_1: {
        put16(at, d);
        size_t to = at + 2;
        if (with_minimum(m.type)) put16(to, minimum), to += 2;
        if (largest_code(m.type) == 31) {
          uint32_t high = 0;
          for (int i = 0; i < 32; i++) high |= uint32_t(c[i] >> 4) << i;
          std::memcpy(&m.bytes[to], &high, 4);
          to += 4;
        }
        for (int i = 0; i < 16; i++) or_into(to + size_t(i), (c[i] & 15) | (c[i + 16] & 15) << 4);
        break;
      }
      case WeightType::q4_k:
      case WeightType::q5_k: {
        put16(at, d);
        put16(at + 2, minimum);
        for (int j = 0; j < 8; j++) {
          const int s = m.scale[size_t(8 * b + j)], o = m.minimum[size_t(8 * b + j)];
          const size_t p = at + 4;
          if (j < 4) {
            or_into(p + size_t(j), s);
            or_into(p + size_t(j) + 4, o);
          } else {
            or_into(p + size_t(j) + 4, (s & 15) | (o & 15) << 4);
            or_into(p + size_t(j) - 4, (s >> 4) << 6);
            or_into(p + size_t(j), (o >> 4) << 6);
          }
        }
        const size_t high = at + 16, low = m.type == WeightType::q5_k ? at + 48 : at + 16;
        for (int e = 0; e < 256; e++) {
          const int chunk = e / 64, inside = e % 64;
          or_into(low + size_t(32 * chunk + inside % 32), (c[e] & 15) << (inside < 32 ? 0 : 4));
          if (m.type == WeightType::q5_k) or_into(high + size_t(e % 32), (c[e] >> 4) << (e / 32));
        }
        break;
      }
      default:  // q6_k
        for (int e = 0; e < 256; e++) {
          const int half = e / 128, l = e % 32, quarter = e % 128 / 32;
          or_into(at + size_t(64 * half + (quarter & 1 ? l + 32 : l)), (c[e] & 15) << (quarter < 2 ? 0 : 4));
          or_into(at + 128 + size_t(32 * half + l), (c[e] >> 4) << (2 * quarter));
        }
        for (int j = 0; j < 16; j++) m.bytes[at + 192 + size_t(j)] = std::byte(m.scale[size_t(16 * b + j)]);
        put16(at + 208, d);
    }
  }
}

enum class Codes { random, largest, smallest };

Weights random_weights(Rng& rng, WeightType type, int64_t rows, int64_t columns, Codes codes, bool odd_scales) {
  Weights m{type, rows, columns, {}, {}, {}, {}, {}, {}};
  for (int64_t i = 0; i < rows * columns; i++)
    m.code.push_back(codes == Codes::random    ? int(uniform(rng, 0, largest_code(type)))
                     : codes == Codes::largest ? largest_code(type)
                                               : 0);
  auto f16 = [&]() -> uint16_t {  // around 2^-6, both signs; odd: zeros, subnormal and large ones too
    constexpr uint16_t kOdd[] = {0x0001, 0x83ff, 0x0000, 0x8000, 0x7bff, 0x03ff, 0xfbff};
    if (odd_scales && uniform(rng, 0, 3) == 0) return kOdd[uniform(rng, 0, std::size(kOdd) - 1)];
    return uint16_t(uniform(rng, 0, 1) << 15 | uniform(rng, 7, 11) << 10 | uniform(rng, 0, 1023));
  };
  for (int64_t b = 0; b < rows * columns / block_elements(type); b++) {
    m.d.push_back(f16());
    m.m.push_back(f16());
  }
  for (int64_t g = 0; g < rows * columns / 16; g++) {
    m.scale.push_back(int(type == WeightType::q6_k ? uniform(rng, -128, 127) : uniform(rng, 0, 63)));
    m.minimum.push_back(int(uniform(rng, 0, 63)));
  }
  pack(m);
  return m;
}

/// Rule 1, from the text.
struct Activation {
  std::vector<int> q;
  std::vector<float> s;
};
Activation quantised(const std::vector<float>& x, Activations kind) {
  const float largest = kind == Activations::s16 ? 32639.0f : 127.0f;
  Activation a;
  for (size_t g = 0; g < x.size() / 32; g++) {
    float amax = 0;
    bool finite = true;
    for (size_t i = 0; i < 32; i++) {
      const float v = std::fabs(x[32 * g + i]);
      finite = finite && std::isfinite(v);
      amax = std::max(amax, v);
    }
    const float s = !finite ? NAN : amax < 0x1p-100f ? 0.0f : amax / largest;
    for (size_t i = 0; i < 32; i++) {
      const float v = s > 0 ? std::clamp(x[32 * g + i] / s, -largest, largest) : 0.0f;
      a.q.push_back(int(std::nearbyintf(v)));
    }
    a.s.push_back(s);
  }
  return a;
}

float rule(const Weights& m, int64_t row, const Activation& a) {
  float lane[8] = {};
  for (int64_t g = 0; g < m.groups(); g++) {
    int64_t d[2] = {0, 0}, sum = 0;
    for (int64_t i = 0; i < 32; i++) {
      const int q = a.q[size_t(32 * g + i)];
      d[i / 16] += int64_t(q) * m.w(row, 32 * g + i);
      sum += q;
    }
    const float s = a.s[size_t(g)];
    float& acc = lane[g % 8];
    if (m.type == WeightType::q6_k) {
      for (int h = 0; h < 2; h++) acc = std::fma(s, m.sw(row, g, h) * float(d[h]), acc);
      continue;
    }
    acc = std::fma(s, m.sw(row, g, 0) * float(d[0] + d[1]), acc);
    if (with_minimum(m.type)) acc = std::fma(s, m.mw(row, g) * float(sum), acc);
  }
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/// Buffers of QuantisedRows, filled by the kernel under test.
struct Rows {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  QuantisedRows view;
  Rows(Rng& rng, Isa isa, const std::vector<float>& x, int64_t rows, int64_t columns, Activations kind,
       WeightType type) {
    const int code_bytes = code_bytes_for(isa, type, kind);
    codes.resize(x.size() * size_t(code_bytes));
    scales.resize(x.size() / 32);
    sums.resize(x.size() / 16);
    view = {kind, code_bytes, rows, columns, codes.data(), scales.data(), sums.data()};
    const QuantiseArgs a{x.data(), view};
    in_random_cuts(rng, int64_t(scales.size()), [&](int64_t b, int64_t e) { kernels(isa).quantise(a, b, e); });
  }
  int code(size_t i) const {
    if (view.code_bytes == 2) return reinterpret_cast<const int16_t*>(codes.data())[i];
    const size_t place = i % 4 == 1 ? i + 1 : i % 4 == 2 ? i - 1 : i;
    return reinterpret_cast<const int8_t*>(codes.data())[place];
  }
};

struct Panels {
  std::vector<std::byte> bytes;
  std::byte* data;
  explicit Panels(const Matrix& m) : bytes(panel_bytes(m) + 64, std::byte(0xee)) {
    data = bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
    repack(m, data, 0, panels_of(m));
  }
};

std::vector<float> run(Rng& rng, Isa isa, const Weights& m, const std::vector<float>& x, int64_t tokens,
                       Activations kind, const float* bias) {
  const Matrix w{m.type, m.rows, m.columns, m.bytes.data()};
  const Panels panels(w);
  const Rows rows(rng, isa, x, tokens, m.columns, kind, m.type);
  std::vector<float> y(size_t(tokens * m.rows), -123.0f);
  const QuantLinearArgs a{w, isa == Isa::scalar ? nullptr : panels.data, rows.view, bias, y.data()};
  in_random_cuts(rng, panels_of(w), [&](int64_t b, int64_t e) { kernels(isa).quant_linear(a, b, e); });
  return y;
}

TEST(Quantise, EveryGroupHasTheCodesScaleAndSumsOfTheRule) {
  Rng rng = seeded(11);
  for (Activations kind : {Activations::s16, Activations::s8}) {
    for (int round = 0; round < 40; round++) {
      std::vector<float> x = inputs(rng, 32 * uniform(rng, 1, 9), round % 2 ? Inputs::special : Inputs::wide);
      if (round == 4) std::fill(x.begin(), x.end(), 0.0f);
      if (round == 6) std::fill(x.begin(), x.end(), 0x1p-101f);   // below the smallest scale
      if (round == 8) std::fill(x.begin(), x.end(), -0x1p-100f);  // at it
      if (round == 10) std::fill(x.begin(), x.end(), 3.4028235e38f);
      if (round == 12)  // ties, both signs
        for (size_t i = 0; i < x.size(); i++) x[i] = i % 32 == 0 ? 127.0f : (float(i % 32) - 16) + 0.5f;
      const Activation want = quantised(x, kind);
      for (Isa isa : isas()) {
        const Rows got(rng, isa, x, 1, int64_t(x.size()), kind, round % 3 ? WeightType::q4_0 : WeightType::q8_0);
        ASSERT_TRUE(same_bytes(got.scales, want.s)) << name_of(isa) << " " << name_of(kind);
        for (size_t i = 0; i < x.size(); i++)
          ASSERT_EQ(got.code(i), want.q[i]) << name_of(isa) << " " << name_of(kind) << " " << i;
        for (size_t h = 0; h < x.size() / 16; h++)
          ASSERT_EQ(got.sums[h], std::accumulate(&want.q[16 * h], &want.q[16 * h] + 16, 0)) << name_of(isa);
      }
    }
  }
}

// B5: (int)(x + 0.5) rounds -2.5 to -2 by chance and -3.5 to -3: the rule wants -4. E9: a clamp that launders a NaN.
TEST(Quantise, RoundsHalvesToEvenOnBothSidesAndKeepsNaN) {
  Rng rng = seeded(12);
  std::vector<float> x(64, 0.0f);
  x[0] = 127.0f;
  x[1] = -3.5f, x[2] = -2.5f, x[3] = 2.5f, x[4] = 3.5f;
  x[40] = NAN, x[41] = 1.0f;
  for (Isa isa : isas()) {
    const Rows got(rng, isa, x, 1, 64, Activations::s8, WeightType::q4_0);
    EXPECT_EQ(got.code(1), -4) << name_of(isa);
    EXPECT_EQ(got.code(2), -2) << name_of(isa);
    EXPECT_EQ(got.code(3), 2) << name_of(isa);
    EXPECT_EQ(got.code(4), 4) << name_of(isa);
    EXPECT_TRUE(std::isnan(got.scales[1])) << name_of(isa);
    EXPECT_EQ(got.code(41), 0) << name_of(isa);
  }
}

TEST(QuantLinear, EveryTypeShapeAndCutHasTheBytesOfTheRule) {
  Rng rng = seeded(13);
  for (WeightType type : kTypes) {
    for (Activations kind : {Activations::s16, Activations::s8}) {
      for (int64_t groups : {1, 2, 3, 7, 8, 9, 16, 17, 18, 40}) {
        const int64_t columns = in_blocks_of_256(type) ? 256 * (groups / 8 + 1) : 32 * groups;
        for (int64_t tokens : {1, 2, 3, 4, 5, 9, 35}) {
          const int64_t rows = uniform(rng, 1, 40);
          const Codes codes = Codes(uniform(rng, 0, 4) % 3);
          const Weights m = random_weights(rng, type, rows, columns, codes, uniform(rng, 0, 1) == 1);
          auto x = inputs(rng, tokens * columns, uniform(rng, 0, 2) == 0 ? Inputs::special : Inputs::wide);
          if (codes != Codes::random) std::fill(x.begin(), x.end(), 1.5f);  // every product at its largest
          const auto bias = inputs(rng, rows);
          const bool biased = uniform(rng, 0, 1) == 1;
          std::vector<float> want;
          for (int64_t t = 0; t < tokens; t++) {
            const Activation a = quantised({&x[size_t(t * columns)], &x[size_t(t * columns)] + columns}, kind);
            for (int64_t n = 0; n < rows; n++) want.push_back(rule(m, n, a) + (biased ? bias[size_t(n)] : 0.0f));
            if (!biased)  // + 0.0f above would turn a -0 into +0
              for (int64_t n = 0; n < rows; n++) want[size_t(t * rows + n)] = rule(m, n, a);
          }
          for (Isa isa : isas())
            ASSERT_TRUE(same_bytes(run(rng, isa, m, x, tokens, kind, biased ? bias.data() : nullptr), want))
                << name_of(isa) << " " << name_of(type) << " " << name_of(kind) << " rows " << rows << " columns "
                << columns << " tokens " << tokens << " codes " << int(codes);
        }
      }
    }
  }
}

// E9 through the product: a NaN or Inf in one group of one token reaches every output of that token and no other.
TEST(QuantLinear, NaNAndInfReachEveryOutputOfTheirToken) {
  Rng rng = seeded(14);
  for (WeightType type : kTypes) {
    for (float bad : {NAN, INFINITY, -INFINITY}) {
      const Weights m = random_weights(rng, type, 19, 512, Codes::random, false);
      auto x = inputs(rng, 3 * 512);
      x[512 + 300] = bad;
      for (Isa isa : isas()) {
        const auto y = run(rng, isa, m, x, 3, Activations::s16, nullptr);
        for (size_t i = 0; i < y.size(); i++)
          ASSERT_EQ(std::isnan(y[i]), i / 19 == 1) << name_of(isa) << " " << name_of(type);
      }
    }
  }
}

TEST(QuantLinear, StaysWithinItsBoundAgainstFloat64) {
  Rng rng = seeded(15);
  for (Activations kind : {Activations::s16, Activations::s8}) {
    Share share;
    for (WeightType type : kTypes) {
      for (int64_t k : {256, 1024, 3072}) {
        const Weights m = random_weights(rng, type, 16, k, Codes::random, false);
        const auto x = inputs(rng, k);
        const auto y = run(rng, best_isa(), m, x, 1, kind, nullptr);
        const Activation a = quantised(x, kind);
        const double c = kind == Activations::s16 ? 0.501 : 0.50001;
        const double terms = with_minimum(type) || type == WeightType::q6_k ? 2 : 1;
        for (int64_t n = 0; n < 16; n++) {
          long double exact = 0;
          double rounding = 0, sums = 0;
          for (int64_t g = 0; g < m.groups(); g++) {
            double width = 0, magnitude = 0, sum = 0;
            for (int64_t i = 32 * g; i < 32 * g + 32; i++) {
              exact += (long double)m.value(n, i) * x[size_t(i)];
              width += std::fabs(m.value(n, i));
              magnitude += std::fabs(double(m.sw(n, g, int(i % 32 / 16))) * a.q[size_t(i)] * m.w(n, i));
              sum += a.q[size_t(i)];
            }
            rounding += c * double(a.s[size_t(g)]) * width;
            sums += double(a.s[size_t(g)]) * (magnitude + std::fabs(double(m.mw(n, g)) * sum));
          }
          const double bound =
              rounding + 0x1p-24 * (terms * std::ceil(double(k) / 256) + 6) * sums + 0x1p-149 * double(k);
          share.take(double(std::fabs((long double)y[size_t(n)] - exact)), bound);
        }
      }
    }
    std::cout << "[   share  ] quant_linear " << name_of(kind) << " used " << share.used << " of its bound\n";
    EXPECT_LE(share.used, 1.0);
    EXPECT_GT(share.used, 0.01);
  }
}

// A10, decode variants; B4: what the byte test must tell from the right values.
TEST(QuantLinear, SwappedNibblesForgottenOffsetsWrongRowsAndFlushedScalesAreSeen) {
  Rng rng = seeded(16);
  const Weights m = random_weights(rng, WeightType::q4_0, 32, 256, Codes::random, false);
  const auto x = inputs(rng, 256);
  const Activation a = quantised(x, Activations::s16);
  auto variant = [&](auto change) {
    Weights wrong = m;
    change(wrong);
    std::vector<float> y;
    for (int64_t n = 0; n < 32; n++) y.push_back(rule(wrong, n, a));
    return y;
  };
  const auto right = variant([](Weights&) {});
  const auto swapped = variant([](Weights& w) {
    for (size_t i = 0; i < w.code.size(); i += 32)
      for (size_t j = 0; j < 16; j++) std::swap(w.code[i + j], w.code[i + j + 16]);
  });
  const auto forgotten = variant([](Weights& w) {
    for (int& c : w.code) c += 8;
  });
  const auto other_row =
      variant([](Weights& w) { std::swap_ranges(w.code.begin(), w.code.begin() + 256, w.code.begin() + 256); });
  for (Isa isa : isas()) {
    const auto y = run(rng, isa, m, x, 1, Activations::s16, nullptr);
    EXPECT_TRUE(same_bytes(y, right)) << name_of(isa);
    for (const auto* wrong : {&swapped, &forgotten, &other_row}) EXPECT_FALSE(same_bytes(y, *wrong)) << name_of(isa);
  }
  Weights small = m;
  for (auto& d : small.d) d = uint16_t(uniform(rng, 1, 1023));  // subnormal
  pack(small);
  std::vector<float> want;
  for (int64_t n = 0; n < 32; n++) want.push_back(rule(small, n, a));
  for (Isa isa : isas()) {
    const auto y = run(rng, isa, small, x, 1, Activations::s16, nullptr);
    EXPECT_TRUE(same_bytes(y, want)) << name_of(isa);
    EXPECT_FALSE(same_bytes(y, std::vector<float>(32, 0.0f))) << name_of(isa);
  }
}

}  // namespace
}  // namespace assay

// Norms, rope, the KV store and the pointwise ops against NUMERICS.md on every instruction set, byte by byte.
#include <algorithm>

#include "engine/numerics.h"
#include "engine/ops/common/rope_table.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr int64_t kSizes[] = {1, 15, 16, 17, 31, 32, 33, 40, 63, 64, 96, 128, 255, 256, 257, 511, 513, 576, 1000};

std::vector<float> norm_rule(const std::vector<float>& x, const std::vector<float>& w, float eps, int lanes) {
  std::vector<float> y(x.size());
  const size_t n = w.size();
  for (size_t at = 0; at < x.size(); at += n) {
    const float sum = rule_sum(&x[at], &x[at], int64_t(n), lanes);
    const float mean = sum / float(n), r = 1.0f / std::sqrt(mean + eps);
    for (size_t i = 0; i < n; i++) {
      const float scaled = x[at + i] * r;
      y[at + i] = scaled * w[i];
    }
  }
  return y;
}

TEST(Norm, RowsAndHeadsHaveTheBytesOfTheirRules) {
  Rng rng = seeded(11);
  for (int64_t n : kSizes) {
    for (Inputs kind : {Inputs::plain, Inputs::wide, Inputs::special}) {
      const int64_t rows = 5, heads = uniform(rng, 1, 4);
      const auto w = inputs(rng, n), x = inputs(rng, rows * n, kind), xh = inputs(rng, rows * heads * n, kind);
      const float eps = 1e-6f;
      const auto want = norm_rule(x, w, eps, 256), want_heads = norm_rule(xh, w, eps, 32);
      for (Isa isa : isas()) {
        std::vector<float> y(x.size()), yh(xh.size());
        const NormArgs a{x.data(), w.data(), y.data(), n, 0, 0, eps},
            b{xh.data(), w.data(), yh.data(), heads * n, heads, n, eps};
        in_random_cuts(rng, rows, [&](int64_t begin, int64_t end) { kernels(isa).rms_norm(a, begin, end); });
        in_random_cuts(rng, rows, [&](int64_t begin, int64_t end) { kernels(isa).head_norm(b, begin, end); });
        EXPECT_TRUE(same_bytes(y, want)) << name_of(isa) << " " << n;
        EXPECT_TRUE(same_bytes(yh, want_heads)) << name_of(isa) << " heads of " << n;
      }
    }
  }
}

// B11: a norm that sums in another order when it sees several rows, and the two rules taken for each other.
TEST(Norm, AnotherOrderOfSumsIsSeen) {
  Rng rng = seeded(12);
  const int64_t rows = 8, n = 576;
  const auto w = inputs(rng, n), x = inputs(rng, rows * n);
  const auto batched = norm_rule(x, w, 1e-6f, 64), head_rule = norm_rule(x, w, 1e-6f, 32);
  for (Isa isa : isas()) {
    std::vector<float> y(x.size());
    const NormArgs a{x.data(), w.data(), y.data(), n, 0, 0, 1e-6f};
    kernels(isa).rms_norm(a, 0, rows);
    EXPECT_TRUE(same_bytes(y, norm_rule(x, w, 1e-6f, 256)));
    EXPECT_FALSE(same_bytes(y, batched));
    EXPECT_FALSE(same_bytes(y, head_rule));
  }
}

// |y - y64| <= 2^-24 |y| * ((ceil(K/lanes) + log2(lanes) + 3) / 2 + 4): the sum of squares has no cancellation and
// enters r by its square root; four more roundings follow.
TEST(Norm, StaysWithinItsBoundAgainstFloat64) {
  Rng rng = seeded(13);
  Share share;
  for (int64_t n : {17, 576, 4096}) {
    const auto w = inputs(rng, n), x = inputs(rng, 4 * n);
    std::vector<float> y(x.size());
    const NormArgs a{x.data(), w.data(), y.data(), n, 0, 0, 1e-5f};
    kernels(best_isa()).rms_norm(a, 0, 4);
    for (int64_t t = 0; t < 4; t++) {
      long double sum = 0;
      for (int64_t i = 0; i < n; i++) sum += (long double)x[size_t(t * n + i)] * x[size_t(t * n + i)];
      for (int64_t i = 0; i < n; i++) {
        const long double exact = x[size_t(t * n + i)] / std::sqrt(sum / n + (long double)1e-5f) * w[size_t(i)];
        share.take(double(std::fabs(y[size_t(t * n + i)] - exact)),
                   0x1p-24 * double(std::fabs(exact)) * ((std::ceil(double(n) / 256) + 11) / 2 + 4) + 0x1p-148);
      }
    }
  }
  std::cout << "[   share  ] rms_norm used " << share.used << " of its bound\n";
  EXPECT_LE(share.used, 1.0);
  EXPECT_GT(share.used, 0.01);
}

TEST(Rope, PairsTurnAndTheRestPasses) {
  Rng rng = seeded(14);
  struct Shape {
    int64_t head_dim, rotary;
  };
  for (const Shape& shape : {Shape{16, 16}, Shape{32, 32}, Shape{40, 20}, Shape{64, 64}, Shape{96, 24}, Shape{128, 128},
                             Shape{256, 64}, Shape{64, 0}, Shape{6, 2}, Shape{70, 34}}) {
    const int64_t head_dim = shape.head_dim, rotary = shape.rotary;
    RopeConfig config;
    config.rotary = rotary;
    const RopeTable table = make_rope_table(config, 50);
    const int64_t rows = 6, heads = 3, pairs = rotary / 2;
    std::vector<int64_t> positions;
    for (int64_t t = 0; t < rows; t++) positions.push_back(uniform(rng, 0, 49));
    const auto x = inputs(rng, rows * heads * head_dim, Inputs::special);
    auto want = x, adjacent = x;
    for (int64_t i = 0; i < rows * heads; i++) {
      for (int64_t j = 0; j < pairs; j++) {
        const float c = table.cos[size_t(positions[size_t(i / heads)] * pairs + j)];
        const float s = table.sin[size_t(positions[size_t(i / heads)] * pairs + j)];
        auto turn = [&](std::vector<float>& out, int64_t at0, int64_t at1) {
          const float x0 = x[size_t(i * head_dim + at0)], x1 = x[size_t(i * head_dim + at1)];
          const float minus = x1 * s, plus = x0 * s;
          out[size_t(i * head_dim + at0)] = std::fma(x0, c, -minus);
          out[size_t(i * head_dim + at1)] = std::fma(x1, c, plus);
        };
        turn(want, j, j + pairs);
        turn(adjacent, 2 * j, 2 * j + 1);
      }
    }
    for (Isa isa : isas()) {
      std::vector<float> y(x.size(), -123.0f), in_place = x;
      RopeArgs a{x.data(), y.data(), positions.data(), table.cos.data(), table.sin.data(), heads, head_dim, rotary};
      in_random_cuts(rng, rows, [&](int64_t b, int64_t e) { kernels(isa).rope(a, b, e); });
      EXPECT_TRUE(same_bytes(y, want)) << name_of(isa) << " " << head_dim << "/" << rotary;
      a.x = a.y = in_place.data();
      kernels(isa).rope(a, 0, rows);
      EXPECT_TRUE(same_bytes(in_place, want)) << name_of(isa) << " in place";
      if (pairs > 1) {
        EXPECT_FALSE(same_bytes(y, adjacent));  // pairs (2j, 2j+1)
      }
    }
  }
}

TEST(KvStore, RoundsOnceAndReportsTheFirstOverflow) {
  Rng rng = seeded(15);
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    for (int64_t dim : {1, 16, 17, 40, 64, 100, 128}) {
      const int64_t rows = 7, kv_heads = 3, slots = 2, context = 9, columns = kv_heads * dim;
      const auto k = inputs(rng, rows * columns, Inputs::special), v = inputs(rng, rows * columns, Inputs::special);
      std::vector<RowPlace> places;
      for (int64_t i = 0; i < rows; i++) places.push_back({int32_t(i % slots), i / slots + 2});
      const size_t elements = size_t(slots * kv_heads * context * dim), bytes = elements * size_of(type);
      std::vector<std::byte> want[2] = {std::vector<std::byte>(bytes, std::byte(0xaa)),
                                        std::vector<std::byte>(bytes, std::byte(0xaa))};
      int64_t overflow = INT64_MAX;
      for (int which = 0; which < 2; which++) {
        for (int64_t i = 0; i < rows * columns; i++) {
          const float x = (which ? v : k)[size_t(i)];
          const auto& p = places[size_t(i / columns)];
          const int64_t h = i % columns / dim, d = i % dim;
          const size_t at = size_t(((p.slot * kv_heads + h) * context + p.position) * dim + d) * size_of(type);
          uint32_t u;
          std::memcpy(&u, &x, 4);
          if (type == KvType::f32) {
            if (std::isnan(x)) u = 0x7fc00000;
            std::memcpy(&want[which][at], &u, 4);
          } else if (type == KvType::bf16) {  // the upper half, plus one where the lower says so
            uint32_t up = u >> 16, low = u & 0xffff;
            if (low > 0x8000 || (low == 0x8000 && (up & 1))) up++;
            const uint16_t b = std::isnan(x) ? 0x7fc0 : uint16_t(up);
            std::memcpy(&want[which][at], &b, 2);
          } else {  // the nearest of all finite f16, by search; ties to the even code
            uint16_t b = 0x7e00;
            if (!std::isnan(x)) {
              const double m = std::fabs(double(x));
              auto value = [](int c) {
                return c < 1024 ? c * 0x1p-24 : std::ldexp(1024 + c % 1024, c / 1024 - 25);
              };  // 0x7c00: 2^16
              int low = 0, high = 0x7c00;
              while (low < high) {
                const int middle = (low + high + 1) / 2;
                if (value(middle) <= m)
                  low = middle;
                else
                  high = middle - 1;
              }
              if (low < 0x7c00) {
                const double below = m - value(low), above = value(low + 1) - m;
                if (above < below || (above == below && (low & 1))) low++;
              }
              b = uint16_t(low | (std::signbit(x) ? 0x8000 : 0));
              if (low == 0x7c00 && std::isfinite(x)) overflow = std::min(overflow, which * rows * columns + i);
            }
            std::memcpy(&want[which][at], &b, 2);
          }
        }
      }
      for (Isa isa : isas()) {
        std::vector<std::byte> got[2] = {std::vector<std::byte>(bytes, std::byte(0xaa)),
                                         std::vector<std::byte>(bytes, std::byte(0xaa))};
        int64_t found = INT64_MAX;
        const KvStoreArgs a{k.data(),      v.data(),
                            places.data(), {type, slots, kv_heads, context, dim, got[0].data(), got[1].data()},
                            rows,          &found};
        in_random_cuts(rng, rows, [&](int64_t b, int64_t e) { kernels(isa).kv_store(a, b, e); });
        EXPECT_EQ(got[0], want[0]) << name_of(isa) << " " << name_of(type) << " " << dim;
        EXPECT_EQ(got[1], want[1]) << name_of(isa) << " " << name_of(type) << " " << dim;
        EXPECT_EQ(found, overflow) << name_of(isa) << " " << name_of(type) << " " << dim;
      }
    }
  }
}

TEST(Pointwise, SiluMulAndAdd) {
  Rng rng = seeded(16);
  for (int64_t n : kSizes) {
    const int64_t rows = 3;
    auto a = inputs(rng, rows * n, Inputs::special);
    const auto b = inputs(rng, rows * n, Inputs::special);
    for (size_t i = 0; i < a.size(); i += 5)
      a[i] = float(uniform(rng, -120, 120)) + gaussian(rng);  // all of exp's range
    std::vector<float> mul, sum;
    for (size_t i = 0; i < a.size(); i++) {
      const float silu = a[i] / (1.0f + exp_f32(-a[i]));
      mul.push_back(silu * b[i]);
      sum.push_back(a[i] + b[i]);
    }
    for (Isa isa : isas()) {
      std::vector<float> y(a.size()), z = a;
      BinaryArgs args{a.data(), b.data(), y.data(), n};
      in_random_cuts(rng, rows, [&](int64_t begin, int64_t end) { kernels(isa).silu_mul(args, begin, end); });
      EXPECT_TRUE(same_bytes(y, mul)) << name_of(isa) << " " << n;
      args.y = z.data();
      args.a = z.data();  // in place
      in_random_cuts(rng, rows, [&](int64_t begin, int64_t end) { kernels(isa).add(args, begin, end); });
      EXPECT_TRUE(same_bytes(z, sum)) << name_of(isa) << " " << n;
    }
  }
}

}  // namespace
}  // namespace assay

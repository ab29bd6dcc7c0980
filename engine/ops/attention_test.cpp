// Attention against NUMERICS.md on every instruction set, byte by byte; its bound against float64; NaN and GQA.
#include <algorithm>

#include "engine/numerics.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

using namespace test;

struct Case {
  KvType type;
  int64_t dim, heads, kv_heads, positions;
  bool special = false;
};

/// A cache of two slots with random contents everywhere (unused places hold NaN), and two query rows.
struct Problem {
  Case c;
  int64_t context;
  std::vector<float> q, k, v;  // k and v: exact values of the cache
  std::vector<std::byte> k_bytes, v_bytes;
  std::vector<RowPlace> places;
  AttentionArgs args;

  Problem(Rng& rng, const Case& shape) : c(shape), context(shape.positions + 3) {
    q = inputs(rng, 2 * c.heads * c.dim);
    for (float& x : q) x *= 2;
    places = {{1, c.positions - 1}, {0, uniform(rng, 0, c.positions - 1)}};
    fill(rng, k, k_bytes);
    fill(rng, v, v_bytes);
    if (c.special) {
      for (int i = 0; i < 2; i++) {
        const float specials[] = {NAN, INFINITY, -INFINITY, -NAN, 1e38f, 1e-42f};
        q[size_t(uniform(rng, 0, int64_t(q.size()) - 1))] = specials[uniform(rng, 0, 5)];
      }
    }
    const KvLayer cache{c.type, 2, c.kv_heads, context, c.dim, k_bytes.data(), v_bytes.data()};
    args = {q.data(), nullptr, places.data(), cache, c.heads, float(1.0 / std::sqrt(double(c.dim)))};
  }
  void fill(Rng& rng, std::vector<float>& values, std::vector<std::byte>& bytes) {
    const int64_t n = 2 * c.kv_heads * context * c.dim;
    values = inputs(rng, n);
    bytes.resize(size_t(n) * size_of(c.type));
    for (int64_t i = 0; i < n; i++) {
      float& x = values[size_t(i)];
      if (i / c.dim % context >= c.positions) x = NAN;  // never to be read
      if (c.special && uniform(rng, 0, 4 * n) == 0) x = uniform(rng, 0, 1) ? NAN : INFINITY;
      if (c.type == KvType::f32) {
        std::memcpy(&bytes[size_t(4 * i)], &x, 4);
        continue;
      }
      const uint16_t b = c.type == KvType::f16 ? f16_of_f32(x) : bf16_of_f32(x);
      std::memcpy(&bytes[size_t(2 * i)], &b, 2);
      x = c.type == KvType::f16 ? f32_of_f16(b) : f32_of_bf16(b);
    }
  }
  const float* row(const std::vector<float>& values, int64_t r, int64_t kv_head, int64_t position) const {
    return &values[size_t(((places[size_t(r)].slot * c.kv_heads + kv_head) * context + position) * c.dim)];
  }
  /// `kv_head_of(h)`: which kv head query head h reads.
  template <class F>
  std::vector<float> by_rule(F kv_head_of) const {
    std::vector<float> y(q.size());
    for (int64_t r = 0; r < 2; r++) {
      for (int64_t h = 0; h < c.heads; h++) {
        const int64_t positions = places[size_t(r)].position + 1;
        const float* query = &q[size_t((r * c.heads + h) * c.dim)];
        std::vector<float> p, ones(size_t(positions), 1.0f), column(size_t(positions), 0.0f);
        bool nan = false;
        for (int64_t j = 0; j < positions; j++) {
          p.push_back(rule_sum(query, row(k, r, kv_head_of(h), j), c.dim, 32) * args.scale);
          nan = nan || std::isnan(p.back());
        }
        const float max = nan ? NAN : *std::max_element(p.begin(), p.end());
        for (float& x : p) x = exp_f32(x - max);
        const float sum = rule_sum(p.data(), ones.data(), positions, 256);
        for (int64_t d = 0; d < c.dim; d++) {
          for (int64_t j = 0; j < positions; j++) column[size_t(j)] = row(v, r, kv_head_of(h), j)[d];
          y[size_t((r * c.heads + h) * c.dim + d)] = rule_sum(p.data(), column.data(), positions, 256) / sum;
        }
      }
    }
    return y;
  }
  std::vector<float> by_rule() const {
    return by_rule([&](int64_t h) { return h / (c.heads / c.kv_heads); });
  }
  std::vector<float> run(Rng& rng, Isa isa) {
    std::vector<float> y(q.size(), -123.0f);
    // Exactly what is promised, with a canary behind it.
    const size_t need = size_t(attention_scratch_floats(c.positions, c.dim));
    std::vector<float> scratch(need + 64, 77.0f);
    args.y = y.data();
    in_random_cuts(rng, 2 * c.heads, [&](int64_t b, int64_t e) { kernels(isa).attention(args, b, e, scratch.data()); });
    for (size_t i = need; i < scratch.size(); i++) EXPECT_EQ(scratch[i], 77.0f) << "scratch overrun";
    return y;
  }
};

std::string text(const Case& c, Isa isa) {
  return joined(name_of(isa), " ", name_of(c.type), " dim ", c.dim, " heads ", c.heads, "/", c.kv_heads, " positions ",
                c.positions);
}

TEST(Attention, EveryCacheTypeHeadDimAndLengthHasTheBytesOfTheRule) {
  Rng rng = seeded(21);
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16}) {
    for (int64_t dim : {1, 7, 16, 32, 33, 40, 64, 96, 128, 256}) {
      for (int64_t positions : {1, 2, 7, 8, 9, 15, 16, 17, 33, 127, 129, 255, 256, 257, 300, 513}) {
        if (dim > 64 && positions > 257 && type != KvType::f16) continue;  // time
        const int64_t kv_heads = uniform(rng, 1, 2);
        const Case c{type, dim, kv_heads * uniform(rng, 1, 3), kv_heads, positions, uniform(rng, 0, 3) == 0};
        Problem p(rng, c);
        const auto want = p.by_rule();
        for (Isa isa : isas()) EXPECT_TRUE(same_bytes(p.run(rng, isa), want)) << text(c, isa);
      }
    }
  }
}

TEST(Attention, LongContext) {
  Rng rng = seeded(22);
  const Case c{KvType::f16, 64, 3, 1, 2900};
  Problem p(rng, c);
  const auto want = p.by_rule();
  for (Isa isa : isas()) EXPECT_TRUE(same_bytes(p.run(rng, isa), want)) << text(c, isa);
}

// D19: query head h reads kv head h / (heads / kv_heads). The other order is invisible when heads = kv heads.
TEST(Attention, GroupsRepeatAndDoNotTile) {
  Rng rng = seeded(23);
  Problem grouped(rng, {KvType::f32, 32, 6, 2, 20}), plain(rng, {KvType::f32, 32, 2, 2, 20});
  const auto tiled = grouped.by_rule([](int64_t h) { return h % 2; });
  const auto plain_tiled = plain.by_rule([](int64_t h) { return h % 2; });
  for (Isa isa : isas()) {
    const auto y = grouped.run(rng, isa);
    EXPECT_TRUE(same_bytes(y, grouped.by_rule()));
    EXPECT_FALSE(same_bytes(y, tiled));
    EXPECT_TRUE(same_bytes(plain.run(rng, isa), plain_tiled));
  }
}

// A NaN anywhere in q, in a visible k or in a visible v column reaches the output; one behind the mask does not.
TEST(Attention, NanReachesTheOutput) {
  Rng rng = seeded(24);
  for (float nan : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::quiet_NaN()}) {
    for (int64_t at : {0, 5, 19}) {
      Problem p(rng, {KvType::f32, 40, 1, 1, 20});
      p.places[1] = {1, 19};
      const size_t offset = size_t((1 * p.context + at) * 40 + 3);
      std::memcpy(&p.k_bytes[4 * offset], &nan, 4);
      for (Isa isa : isas()) {
        for (float y : p.run(rng, isa)) EXPECT_TRUE(std::isnan(y)) << name_of(isa) << " at " << at;
      }
      Problem q(rng, {KvType::f32, 40, 1, 1, 20});
      q.places[0] = q.places[1] = {1, 19};
      std::memcpy(&q.v_bytes[4 * offset], &nan, 4);
      for (Isa isa : isas()) {
        const auto y = q.run(rng, isa);
        for (size_t d = 0; d < 40; d++) EXPECT_EQ(std::isnan(y[d]), d == 3) << name_of(isa);
      }
    }
  }
}

// Against float64 on the values as stored:
//   score: e_j = scale * 2^-24 * (ceil(D/32) + 6) * sum |q k_j| + 2^-24 |score_j|, D the head dim
//   p:     relative r = 2 max e_j + 2^-24 max |score_j - max| + 2^-23
//   y:     (2 r + 2^-24 * (2 * (ceil(P/256) + 9) + 1)) * sum p |v| / sum p, P the positions
TEST(Attention, StaysWithinItsBoundAgainstFloat64) {
  Rng rng = seeded(25);
  Share share;
  for (int64_t dim : {64, 128}) {
    for (int64_t positions : {3, 200, 700}) {
      Problem p(rng, {KvType::f16, dim, 2, 1, positions});
      const auto y = p.run(rng, best_isa());
      for (int64_t r = 0; r < 2; r++) {
        for (int64_t h = 0; h < 2; h++) {
          const int64_t n = p.places[size_t(r)].position + 1;
          const float* q = &p.q[size_t((r * 2 + h) * dim)];
          std::vector<long double> s;
          long double max = -INFINITY, e = 0, span = 0, total = 0;
          for (int64_t j = 0; j < n; j++) {
            long double dot = 0, magnitude = 0;
            for (int64_t d = 0; d < dim; d++) {
              dot += (long double)q[d] * p.row(p.k, r, 0, j)[d];
              magnitude += std::fabs((long double)q[d] * p.row(p.k, r, 0, j)[d]);
            }
            s.push_back(dot * p.args.scale);
            max = std::max(max, s.back());
            e = std::max(e, p.args.scale * 0x1p-24L * (std::ceil((long double)dim / 32) + 6) * magnitude +
                                0x1p-24L * std::fabs(s.back()));
          }
          for (long double x : s) span = std::max(span, max - x), total += std::exp(x - max);
          const long double relative = 2 * e + 0x1p-24L * span + 0x1p-23L;
          for (int64_t d = 0; d < dim; d++) {
            long double mix = 0, magnitude = 0;
            for (int64_t j = 0; j < n; j++) {
              const long double term = std::exp(s[size_t(j)] - max) * p.row(p.v, r, 0, j)[d];
              mix += term;
              magnitude += std::fabs(term);
            }
            const long double bound =
                (2 * relative + 0x1p-24L * (2 * (std::ceil((long double)n / 256) + 9) + 1)) * magnitude / total;
            share.take(double(std::fabs(y[size_t((r * 2 + h) * dim + d)] - mix / total)), double(bound));
          }
        }
      }
    }
  }
  std::cout << "[   share  ] attention used " << share.used << " of its bound\n";
  EXPECT_LE(share.used, 1.0);
  EXPECT_GT(share.used, 0.001);
}

}  // namespace
}  // namespace assay

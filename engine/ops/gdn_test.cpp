// The ops of gated DeltaNet layers and of gated attention against NUMERICS.md on every instruction set, byte by byte.
#include <algorithm>

#include "engine/numerics.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

using namespace test;

TEST(Gdn, L2AndGatedNormsHaveTheBytesOfTheHeadRule) {
  Rng rng = seeded(61);
  for (int64_t dim : {1, 15, 16, 24, 31, 32, 33, 40, 64, 96, 128, 255, 256, 257}) {
    for (Inputs kind : {Inputs::plain, Inputs::wide, Inputs::special}) {
      const int64_t rows = 4, heads = uniform(rng, 1, 5), wide = heads * dim + uniform(rng, 0, 7),
                    first = wide - heads * dim;
      const auto x = inputs(rng, rows * wide, kind), w = inputs(rng, dim), z = inputs(rng, rows * heads * dim, kind),
                 core = inputs(rng, rows * heads * dim, kind);
      const float scale = float(1.0 / std::sqrt(double(dim))), eps = 1e-6f;
      std::vector<float> l2(size_t(rows * heads * dim)), gated(l2.size());
      for (int64_t i = 0; i < rows * heads; i++) {
        const float* in = &x[size_t(i / heads * wide + first + i % heads * dim)];
        const float r = 1.0f / std::sqrt(rule_sum(in, in, dim, 32) + 1e-6f);
        const float* c = &core[size_t(i * dim)];
        const float mean = rule_sum(c, c, dim, 32) / float(dim), rms = 1.0f / std::sqrt(mean + eps);
        for (int64_t d = 0; d < dim; d++) {
          const float unit = in[d] * r;
          l2[size_t(i * dim + d)] = unit * scale;
          const float normed = c[d] * rms, weighted = normed * w[size_t(d)];
          gated[size_t(i * dim + d)] = weighted * silu_f32(z[size_t(i * dim + d)]);
        }
      }
      for (Isa isa : isas()) {
        std::vector<float> y(l2.size()), g(l2.size());
        const L2NormArgs a{x.data() + first, y.data(), wide, heads, dim, scale};
        const GatedNormArgs b{core.data(), z.data(), w.data(), g.data(), heads, dim, eps};
        in_random_cuts(rng, rows, [&](int64_t begin, int64_t end) { kernels(isa).l2_norm(a, begin, end); });
        in_random_cuts(rng, rows, [&](int64_t begin, int64_t end) { kernels(isa).gated_norm(b, begin, end); });
        EXPECT_TRUE(same_bytes(y, l2)) << name_of(isa) << " " << dim;
        EXPECT_TRUE(same_bytes(g, gated)) << name_of(isa) << " " << dim;
      }
    }
  }
}

TEST(Gdn, HeadsThatLieApartAreNormedAsThoseThatDoNot) {
  Rng rng = seeded(62);
  const int64_t rows = 3, heads = 4, dim = 40;
  const auto x = inputs(rng, rows * heads * 2 * dim), w = inputs(rng, dim);
  std::vector<float> queries;
  for (int64_t i = 0; i < rows * heads; i++)
    queries.insert(queries.end(), &x[size_t(2 * i * dim)], &x[size_t(2 * i * dim)] + dim);
  for (Isa isa : isas()) {
    std::vector<float> want(queries.size()), got(queries.size());
    kernels(isa).head_norm({queries.data(), w.data(), want.data(), heads * dim, heads, dim, 1e-6f}, 0, rows);
    kernels(isa).head_norm({x.data(), w.data(), got.data(), heads * dim, heads, dim, 1e-6f, 2 * heads * dim, 2 * dim},
                           0, rows);
    EXPECT_TRUE(same_bytes(got, want)) << name_of(isa);
  }
}

TEST(Gdn, GatesAndDecayAreTheirFormulas) {
  Rng rng = seeded(63);
  for (int64_t columns : {1, 3, 16, 31, 48, 257}) {
    for (Inputs kind : {Inputs::plain, Inputs::wide, Inputs::special}) {
      const int64_t rows = 5;
      const auto a = inputs(rng, rows * columns, kind), b = inputs(rng, rows * columns, kind),
                 w = inputs(rng, 2 * columns);
      std::vector<float> beta(a.size()), gated(a.size()), decay(a.size());
      for (size_t i = 0; i < a.size(); i++) {
        const size_t h = i % size_t(columns);
        beta[i] = sigmoid_f32(a[i]);
        gated[i] = a[i] * sigmoid_f32(b[i]);
        const float moved = a[i] + w[size_t(columns) + h];
        decay[i] = w[h] * softplus_f32(moved);
      }
      for (Isa isa : isas()) {
        std::vector<float> y(a.size()), g(a.size()), d(a.size());
        in_random_cuts(rng, rows, [&](int64_t begin, int64_t end) {
          kernels(isa).sigmoid({a.data(), y.data(), columns}, begin, end);
          kernels(isa).sigmoid_mul({a.data(), b.data(), g.data(), columns}, begin, end);
          kernels(isa).decay({a.data(), w.data(), d.data(), columns}, begin, end);
        });
        EXPECT_TRUE(same_bytes(y, beta)) << name_of(isa) << " " << columns;
        EXPECT_TRUE(same_bytes(g, gated)) << name_of(isa) << " " << columns;
        EXPECT_TRUE(same_bytes(d, decay)) << name_of(isa) << " " << columns;
      }
    }
  }
}

/// The state of two slots, of which spans of a pass continue both: [slot][...].
struct Span2 {
  std::vector<RowSpan> spans;
  int64_t rows = 0;
};
Span2 spans_of(int64_t first, int64_t second) {
  Span2 s;
  for (const auto& [slot, rows] : {std::pair{1, first}, std::pair{0, second}}) {
    if (rows > 0) s.spans.push_back({slot, s.rows, rows});
    s.rows += rows;
  }
  return s;
}

TEST(Gdn, ConvolutionContinuesItsStateHoweverRowsAreCut) {
  Rng rng = seeded(64);
  for (int64_t channels : {1, 16, 33, 63, 64, 65, 208}) {
    for (int64_t width : {2, 4}) {
      for (Inputs kind : {Inputs::plain, Inputs::special}) {
        const int64_t rows = 9;
        const auto w = inputs(rng, width * channels), x = inputs(rng, rows * channels, kind);
        std::vector<float> want(x.size()), state(size_t(2 * width * channels), 0.0f);
        for (int64_t r = 0; r < rows; r++)
          for (int64_t c = 0; c < channels; c++) {
            float acc = 0;
            for (int64_t t = 0; t < width; t++) {
              const int64_t at = r - width + 1 + t;
              acc = std::fma(w[size_t(t * channels + c)], at < 0 ? 0.0f : x[size_t(at * channels + c)], acc);
            }
            want[size_t(r * channels + c)] = silu_f32(acc);
          }
        for (int64_t t = 0; t < width; t++)
          for (int64_t c = 0; c < channels; c++) {
            const int64_t at = rows - width + t;
            state[size_t((width + t) * channels + c)] = at < 0 ? 0.0f : x[size_t(at * channels + c)];
          }
        for (Isa isa : isas())
          for (int64_t cut : {int64_t(1), int64_t(2), int64_t(5), rows}) {
            std::vector<float> y(x.size()), s(state.size(), 0.0f);
            for (int64_t at = 0; at < rows; at += cut) {
              const RowSpan span{1, at, std::min(cut, rows - at)};
              const ConvArgs a{x.data(), w.data(), y.data(), s.data(), &span, channels, width};
              in_random_cuts(rng, conv_blocks(channels), [&](int64_t b, int64_t e) { kernels(isa).conv(a, b, e); });
            }
            EXPECT_TRUE(same_bytes(y, want)) << name_of(isa) << " " << channels << " cut " << cut;
            EXPECT_TRUE(same_bytes(s, state)) << name_of(isa) << " " << channels << " cut " << cut;
          }
      }
    }
  }
}

struct DeltaShape {
  int64_t k_heads, v_heads, d_k, d_v;
};

/// One row by the rule, written from NUMERICS.md.
void delta_step(const DeltaShape& n, const float* q, const float* k, const float* v, const float* beta,
                const float* decay, float* state, float* y) {
  for (int64_t h = 0; h < n.v_heads; h++) {
    const float *qh = q + h / (n.v_heads / n.k_heads) * n.d_k, *kh = k + h / (n.v_heads / n.k_heads) * n.d_k;
    const float kept = exp_f32(decay[h]);
    float* s = state + h * n.d_k * n.d_v;
    for (int64_t i = 0; i < n.d_k * n.d_v; i++) s[i] = s[i] * kept;
    for (int64_t j = 0; j < n.d_v; j++) {
      std::vector<float> column(size_t(n.d_k), 0.0f);
      for (int64_t i = 0; i < n.d_k; i++) column[size_t(i)] = s[i * n.d_v + j];
      const float off = v[h * n.d_v + j] - rule_sum(kh, column.data(), n.d_k, 32), delta = off * beta[h];
      for (int64_t i = 0; i < n.d_k; i++)
        column[size_t(i)] = s[i * n.d_v + j] = std::fma(kh[i], delta, column[size_t(i)]);
      y[h * n.d_v + j] = rule_sum(qh, column.data(), n.d_k, 32);
    }
  }
}

TEST(Gdn, DeltaRuleContinuesItsStateHoweverRowsAreCut) {
  Rng rng = seeded(65);
  for (const DeltaShape& n :
       {DeltaShape{1, 1, 1, 1}, DeltaShape{2, 6, 16, 24}, DeltaShape{2, 4, 16, 16}, DeltaShape{1, 3, 31, 33},
        DeltaShape{2, 2, 32, 64}, DeltaShape{1, 2, 33, 40}, DeltaShape{1, 2, 128, 128}, DeltaShape{1, 1, 96, 31}}) {
    for (Inputs kind : {Inputs::plain, Inputs::special}) {
      const int64_t rows = 7;
      const auto q = inputs(rng, rows * n.k_heads * n.d_k), k = inputs(rng, rows * n.k_heads * n.d_k),
                 v = inputs(rng, rows * n.v_heads * n.d_v, kind);
      auto beta = inputs(rng, rows * n.v_heads), decay = beta;
      for (float& x : beta) x = sigmoid_f32(x);
      for (float& x : decay) x = -std::fabs(x) * (uniform(rng, 0, 3) ? 1 : 20);
      const auto start = inputs(rng, 2 * n.v_heads * n.d_k * n.d_v);
      std::vector<float> want(v.size()), state = start;
      const Span2 two = spans_of(4, 3);
      for (const RowSpan& s : two.spans)
        for (int64_t r = s.first; r < s.first + s.rows; r++)
          delta_step(n, &q[size_t(r * n.k_heads * n.d_k)], &k[size_t(r * n.k_heads * n.d_k)],
                     &v[size_t(r * n.v_heads * n.d_v)], &beta[size_t(r * n.v_heads)], &decay[size_t(r * n.v_heads)],
                     &state[size_t(s.slot * n.v_heads * n.d_k * n.d_v)], &want[size_t(r * n.v_heads * n.d_v)]);
      for (Isa isa : isas())
        for (bool whole : {true, false}) {
          std::vector<float> y(v.size()), s = start;
          std::vector<RowSpan> pieces;
          for (const RowSpan& span : two.spans)
            for (int64_t r = 0; r < span.rows; r++) pieces.push_back({span.slot, span.first + r, 1});
          DeltaRuleArgs a{q.data(), k.data(),         v.data(),  beta.data(), decay.data(), y.data(),
                          s.data(), two.spans.data(), n.k_heads, n.v_heads,   n.d_k,        n.d_v};
          const int64_t items = n.v_heads * delta_blocks(n.d_v);
          if (whole) {
            in_random_cuts(rng, 2 * items, [&](int64_t b, int64_t e) { kernels(isa).delta_rule(a, b, e); });
          } else {
            for (const RowSpan& piece : pieces) {
              a.spans = &piece;
              in_random_cuts(rng, items, [&](int64_t b, int64_t e) { kernels(isa).delta_rule(a, b, e); });
            }
          }
          EXPECT_TRUE(same_bytes(y, want)) << name_of(isa) << " " << n.d_k << "x" << n.d_v;
          EXPECT_TRUE(same_bytes(s, state)) << name_of(isa) << " " << n.d_k << "x" << n.d_v;
        }
    }
  }
}

// What a state stores has one set of bytes, whatever NaN came in: 0x7fc00000.
TEST(Gdn, StatesHoldCanonicalNaNs) {
  for (Isa isa : isas()) {
    const float nan = float_of(0xffc12345u), one = 1.0f, zero = 0.0f;
    std::vector<float> s(4, 0.0f), w(4, 1.0f);
    float y = 0;
    const RowSpan span{0, 0, 1};
    kernels(isa).conv({&nan, w.data(), &y, s.data(), &span, 1, 4}, 0, 1);
    EXPECT_TRUE(std::isnan(y));
    EXPECT_EQ(bits_of(s[3]), bits_of(canonical_nan())) << name_of(isa);
    kernels(isa).delta_rule({&one, &one, &nan, &one, &zero, &y, s.data(), &span, 1, 1, 1, 1}, 0, 1);
    EXPECT_EQ(bits_of(s[0]), bits_of(canonical_nan())) << name_of(isa);
  }
}

}  // namespace
}  // namespace assay

// The ops of a mixture of experts against NUMERICS.md on every instruction set, byte by byte.
#include <algorithm>
#include <numeric>

#include "engine/numerics.h"
#include "engine/ops/test_support.h"

namespace assay {
namespace {

using namespace test;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

/// By sorting all ids, where the op looks for one after the other.
std::vector<float> topk_rule(const std::vector<float>& x, int64_t experts, int64_t chosen) {
  std::vector<float> out;
  for (size_t at = 0; at < x.size(); at += size_t(experts)) {
    std::vector<int64_t> ids(static_cast<size_t>(experts));
    std::iota(ids.begin(), ids.end(), int64_t(0));
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return x[at + size_t(a)] > x[at + size_t(b)]; });
    const bool nan = std::any_of(x.begin() + int64_t(at), x.begin() + int64_t(at) + experts, [](float f) { return std::isnan(f); });
    for (int64_t r = 0; r < chosen; r++) out.push_back(nan ? -1.0f : float(ids[size_t(r)]));
  }
  return out;
}

std::vector<float> weights_rule(const std::vector<float>& x, const std::vector<float>& ids, int64_t experts, int64_t chosen, bool normalised) {
  std::vector<float> out;
  for (size_t row = 0; row < x.size() / size_t(experts); row++) {
    const float* l = &x[row * size_t(experts)];
    int32_t top = ordered_of(l[0]);
    for (int64_t e = 1; e < experts; e++) top = std::max(top, ordered_of(l[e]));
    std::vector<float> p;
    for (int64_t e = 0; e < experts; e++) p.push_back(exp_f32(l[e] - float_of_ordered(top)));
    const std::vector<float> ones(p.size(), 1.0f);
    const float sum = rule_sum(ones.data(), p.data(), experts, 256);
    std::vector<float> w;
    float total = 0;
    for (int64_t r = 0; r < chosen; r++) {
      const float id = ids[row * size_t(chosen) + size_t(r)];
      w.push_back(id < 0 ? kNan : p[size_t(id)] / sum);
      total = total + w.back();
    }
    for (float f : w) out.push_back(normalised ? f / total : f);
  }
  return out;
}

TEST(Moe, TopkAndWeightsHaveTheBytesOfTheirRules) {
  Rng rng = seeded(81);
  for (int64_t experts : {1, 2, 7, 8, 31, 32, 33, 64, 128, 255, 256, 257, 513})
    for (Inputs kind : {Inputs::plain, Inputs::wide, Inputs::special})
      for (int64_t chosen : {int64_t(1), std::min<int64_t>(experts, 8), experts}) {
        const int64_t rows = 4;
        auto x = inputs(rng, rows * experts, kind);
        if (kind == Inputs::plain)
          for (float& f : x) f = std::round(2 * f) / 2;   // ties
        const auto ids = topk_rule(x, experts, chosen);
        const bool normalised = uniform(rng, 0, 1);
        const auto weights = weights_rule(x, ids, experts, chosen, normalised);
        for (Isa isa : isas()) {
          std::vector<float> got(ids.size(), kNan), w(ids.size(), 0.0f);
          in_random_cuts(rng, rows, [&](int64_t b, int64_t e) { kernels(isa).topk({x.data(), got.data(), experts, chosen}, b, e); });
          EXPECT_TRUE(same_bytes(got, ids)) << name_of(isa) << " " << chosen << " of " << experts;
          in_random_cuts(rng, rows, [&](int64_t b, int64_t e) {
            kernels(isa).topk_weights({x.data(), ids.data(), w.data(), experts, chosen, normalised}, b, e);
          });
          EXPECT_TRUE(same_bytes(w, weights)) << name_of(isa) << " " << chosen << " of " << experts;
        }
      }
}

TEST(Moe, TiesGoToTheLowerIdAndZerosHaveNoSign) {
  for (Isa isa : isas()) {
    const std::vector<float> x = {1, 3, 3, -0.0f, 0.0f, 3, 2, -0.0f};
    std::vector<float> ids(8);
    kernels(isa).topk({x.data(), ids.data(), 8, 8}, 0, 1);
    EXPECT_EQ(ids, (std::vector<float>{1, 2, 5, 6, 0, 3, 4, 7})) << name_of(isa);
    const std::vector<float> same(5, 0.25f);
    ids.resize(3);
    kernels(isa).topk({same.data(), ids.data(), 5, 3}, 0, 1);
    EXPECT_EQ(ids, (std::vector<float>{0, 1, 2})) << name_of(isa);
  }
}

TEST(Moe, ARowWithANanChoosesNothingAndTheOthersDo) {
  for (Isa isa : isas())
    for (float nan : {kNan, -kNan}) {
      const std::vector<float> x = {1, 2, 3, 1, nan, 3, 3, 2, 1};
      std::vector<float> ids(6), w(6);
      kernels(isa).topk({x.data(), ids.data(), 3, 2}, 0, 3);
      EXPECT_EQ(ids, (std::vector<float>{2, 1, -1, -1, 0, 1}));
      kernels(isa).topk_weights({x.data(), ids.data(), w.data(), 3, 2, true}, 0, 3);
      EXPECT_TRUE(std::isnan(w[2]) && std::isnan(w[3]));
      EXPECT_EQ(w[0] + w[1], 1.0f);
      // Forced ids: the row's own logits give no weight.
      const std::vector<float> forced = {0, 1, 0, 2, 0, 1};
      kernels(isa).topk_weights({x.data(), forced.data(), w.data(), 3, 2, false}, 0, 3);
      EXPECT_TRUE(std::isnan(w[2]) && std::isnan(w[3]));
      EXPECT_FALSE(std::isnan(w[0]) || std::isnan(w[4]));
    }
}

TEST(Moe, ChoosingAllOfOneExpertGivesItEverything) {
  for (Isa isa : isas())
    for (float logit : {0.0f, -1e30f, 88.0f}) {
      float id = -5, w = 0;
      kernels(isa).topk({&logit, &id, 1, 1}, 0, 1);
      kernels(isa).topk_weights({&logit, &id, &w, 1, 1, true}, 0, 1);
      EXPECT_EQ(id, 0.0f);
      EXPECT_EQ(w, 1.0f) << name_of(isa) << " " << logit;
    }
}

// D15: weights that are not normalised sum to less than 1 where experts are left out, and the other way round.
TEST(Moe, NormalisingIsAnotherNumber) {
  const std::vector<float> x = {1, 0.5f, 0, -1}, ids = {0, 1};
  for (Isa isa : isas()) {
    std::vector<float> plain(2), normalised(2);
    kernels(isa).topk_weights({x.data(), ids.data(), plain.data(), 4, 2, false}, 0, 1);
    kernels(isa).topk_weights({x.data(), ids.data(), normalised.data(), 4, 2, true}, 0, 1);
    EXPECT_LT(plain[0] + plain[1], 0.8f);
    EXPECT_NEAR(normalised[0] + normalised[1], 1.0f, 1e-6f);
  }
}

TEST(Moe, SumsAndTheGateHaveTheBytesOfTheirRules) {
  Rng rng = seeded(82);
  for (int64_t columns : {1, 7, 8, 15, 16, 17, 33, 64, 100, 257})
    for (Inputs kind : {Inputs::plain, Inputs::wide, Inputs::special}) {
      const int64_t rows = 3, chosen = uniform(rng, 1, 9);
      const auto w = inputs(rng, rows * chosen), x = inputs(rng, rows * chosen * columns, kind), shared = inputs(rng, rows * columns, kind),
                 routed = inputs(rng, rows * columns, kind);
      auto gate = inputs(rng, rows, kind);
      for (float& g : gate) g *= 20;
      std::vector<float> sum, gated;
      for (int64_t t = 0; t < rows; t++)
        for (int64_t c = 0; c < columns; c++) {
          float acc = 0;
          for (int64_t r = 0; r < chosen; r++) acc = std::fma(w[size_t(t * chosen + r)], x[size_t((t * chosen + r) * columns + c)], acc);
          sum.push_back(acc);
          const size_t i = size_t(t * columns + c);
          gated.push_back(std::fma(1.0f / (1.0f + exp_f32(-gate[size_t(t)])), shared[i], routed[i]));
        }
      for (Isa isa : isas()) {
        std::vector<float> y(sum.size());
        in_random_cuts(rng, rows, [&](int64_t b, int64_t e) { kernels(isa).expert_sum({w.data(), x.data(), y.data(), chosen, columns}, b, e); });
        EXPECT_TRUE(same_bytes(y, sum)) << name_of(isa) << " " << columns;
        in_random_cuts(rng, rows, [&](int64_t b, int64_t e) {
          kernels(isa).gated_add({gate.data(), shared.data(), routed.data(), y.data(), columns}, b, e);
        });
        EXPECT_TRUE(same_bytes(y, gated)) << name_of(isa) << " " << columns;
      }
    }
}

// The order of ranks shows: another one gives other bytes somewhere.
TEST(Moe, AnotherOrderOfRanksIsSeen) {
  Rng rng = seeded(83);
  const int64_t chosen = 8, columns = 256;
  const auto w = inputs(rng, chosen), x = inputs(rng, chosen * columns);
  std::vector<float> back_w(w.rbegin(), w.rend()), back_x;
  for (int64_t r = chosen - 1; r >= 0; r--) back_x.insert(back_x.end(), x.begin() + r * columns, x.begin() + (r + 1) * columns);
  for (Isa isa : isas()) {
    std::vector<float> y(columns), z(columns);
    kernels(isa).expert_sum({w.data(), x.data(), y.data(), chosen, columns}, 0, 1);
    kernels(isa).expert_sum({back_w.data(), back_x.data(), z.data(), chosen, columns}, 0, 1);
    EXPECT_FALSE(same_bytes(y, z));
  }
}

}  // namespace
}  // namespace assay

// The ops of a mixture of experts, byte for byte against the scalar kernels of engine/ops; products by expert against
// the product of each row alone with its expert's rows of the matrix.
#include <algorithm>
#include <numeric>

#include "cuda/test_support.h"

namespace assay::test {
namespace {

constexpr Inputs kInputs[] = {Inputs::plain, Inputs::wide, Inputs::special};
const Kernels& cpu() {
  return kernels(Isa::scalar);
}
std::vector<float> poisoned(int64_t n) {
  return std::vector<float>(size_t(n), std::numeric_limits<float>::quiet_NaN());
}

TEST(CudaMoe, RouterHasTheIdsAndWeightsOfTheScalar) {
  Rng rng = seeded(411);
  for (int64_t experts : {1, 2, 31, 32, 33, 128, 255, 256, 257, 600})
    for (int64_t chosen : {int64_t(1), int64_t(8), int64_t(40), experts})
      for (Inputs kind : kInputs) {
        if (chosen > experts) continue;
        const int64_t rows = uniform(rng, 1, 6);
        auto x = inputs(rng, rows * experts, kind);
        if (uniform(rng, 0, 1))
          for (float& v : x) v = std::isfinite(v) && std::fabs(v) < 1e6f ? std::round(v) : v;  // ties
        if (uniform(rng, 0, 3) == 0) std::fill_n(x.begin(), experts, uniform(rng, 0, 1) ? -0.0f : -INFINITY);
        auto ids = poisoned(rows * chosen), weights = ids;
        const bool normalised = uniform(rng, 0, 1);
        cpu().topk({x.data(), ids.data(), experts, chosen}, 0, rows);
        cpu().topk_weights({x.data(), ids.data(), weights.data(), experts, chosen, normalised}, 0, rows);
        const Device d;
        const Buffer<float> dx(d, x), got_ids(d, ids.size()), got(d, ids.size());
        AssayRouter a{dx.get(), got_ids.get(), nullptr, rows, experts, chosen, normalised, 0};
        d.ok(d.module().topk(d, &a));
        EXPECT_TRUE(same_rows(got_ids.download(), ids, chosen)) << chosen << " of " << experts;
        a.weights = got.get();
        d.ok(d.module().topk_weights(d, &a));
        EXPECT_TRUE(same_rows(got.download(), weights, chosen)) << chosen << " of " << experts;
        const Buffer<float> both_ids(d, ids.size()), both(d, ids.size());
        const AssayRouter b{dx.get(), both_ids.get(), both.get(), rows, experts, chosen, normalised, 0};
        d.ok(d.module().topk(d, &b));
        EXPECT_EQ(d.variant(), "topk_and_weights");
        EXPECT_TRUE(same_rows(both_ids.download(), ids, chosen)) << chosen << " of " << experts;
        EXPECT_TRUE(same_rows(both.download(), weights, chosen)) << chosen << " of " << experts;
      }
}

TEST(CudaMoe, SumsHaveTheBytesOfTheScalar) {
  Rng rng = seeded(412);
  for (int64_t columns : {1, 31, 255, 256, 257, 600})
    for (Inputs kind : kInputs) {
      const int64_t rows = uniform(rng, 1, 5), chosen = uniform(rng, 1, 10), n = rows * columns;
      const auto x = inputs(rng, n * chosen, kind), w = inputs(rng, rows * chosen), residual = inputs(rng, n),
                 shared = inputs(rng, n, kind);
      auto gate = inputs(rng, rows, kind);
      for (float& g : gate) g *= 40;
      auto sum = poisoned(n), gated = sum, sum_added = sum, gated_added = sum;
      cpu().expert_sum({w.data(), x.data(), sum.data(), chosen, columns}, 0, rows);
      cpu().gated_add({gate.data(), shared.data(), sum.data(), gated.data(), columns}, 0, rows);
      cpu().add({residual.data(), sum.data(), sum_added.data(), columns}, 0, rows);
      cpu().add({residual.data(), gated.data(), gated_added.data(), columns}, 0, rows);
      const Device d;
      const Buffer<float> dx(d, x), dw(d, w), dr(d, residual), dshared(d, shared), dgate(d, gate), dsum(d, size_t(n)),
          y(d, size_t(n));
      AssayExpertSum a{dw.get(), dx.get(), dsum.get(), rows, chosen, columns, nullptr};
      d.ok(d.module().expert_sum(d, &a));
      EXPECT_TRUE(same_rows(dsum.download(), sum, columns));
      a.residual = dr.get(), a.y = y.get();
      d.ok(d.module().expert_sum(d, &a));
      EXPECT_TRUE(same_rows(y.download(), sum_added, columns));
      AssayGatedAdd g{dgate.get(), dshared.get(), dsum.get(), y.get(), rows, columns, nullptr};
      d.ok(d.module().gated_add(d, &g));
      EXPECT_TRUE(same_rows(y.download(), gated, columns));
      g.residual = dr.get();
      d.ok(d.module().gated_add(d, &g));
      EXPECT_TRUE(same_rows(y.download(), gated_added, columns));
    }
}

struct ExpertCase {
  WeightType type;
  int32_t activations;
  int64_t experts, chosen, outputs, columns, rows;
  bool by_rank, gated;
  int count;
  Inputs kind;
};

/// One row by the scalar kernels, with the rows of expert e.
std::vector<float> alone(const ExpertCase& c, const Matrix& all, int64_t e, const float* x) {
  const int64_t outputs = all.rows / c.experts;
  const Matrix own{all.type, outputs, all.columns, all.row(e * outputs)};
  std::vector<float> y(static_cast<size_t>(outputs));
  if (!is_quantised(c.type) || c.activations == ASSAY_ACTIVATIONS_F32) {
    cpu().linear({own, nullptr, x, y.data(), 1}, 0, outputs);
    return y;
  }
  const Activations kind = c.activations == ASSAY_ACTIVATIONS_S16 ? Activations::s16 : Activations::s8;
  const int bytes = code_bytes_for(Isa::scalar, c.type, kind);
  std::vector<std::byte> codes(size_t(c.columns * bytes));
  std::vector<float> scales(size_t(c.columns / 32));
  std::vector<int32_t> sums(size_t(c.columns / 32 * 2));
  const QuantisedRows q{kind, bytes, 1, c.columns, codes.data(), scales.data(), sums.data()};
  cpu().quantise({x, q}, 0, c.columns / 32);
  cpu().quant_linear({own, nullptr, q, nullptr, y.data()}, 0, (outputs + 15) / 16);
  return y;
}

void check_experts(Rng& rng, const ExpertCase& c) {
  const std::string what = joined(name_of(c.type), " kind ", c.activations, ", ", c.chosen, " of ", c.experts, ", [",
                                  c.outputs, ", ", c.columns, "], rows ", c.rows, c.by_rank ? " by rank" : "",
                                  c.gated ? " gated" : "", ", matrices ", c.count);
  const int64_t pairs = c.rows * c.chosen;
  std::vector<HostWeight> w;
  for (int i = 0; i < c.count; i++)
    w.push_back(random_weight(rng, c.type, c.experts * (c.outputs + (c.gated ? 0 : 3 * i)), c.columns));
  const auto x = inputs(rng, (c.by_rank ? pairs : c.rows) * c.columns, c.kind);
  std::vector<float> order(static_cast<size_t>(c.experts)), ids;
  std::iota(order.begin(), order.end(), 0.0f);
  for (int64_t t = 0; t < c.rows; t++) {
    if (t % 4 != 1) std::shuffle(order.begin(), order.end(), rng);  // now and then the same as the row before
    for (int64_t r = 0; r < c.chosen; r++) ids.push_back(t % 5 == 3 ? -1.0f : order[size_t(r)]);
  }
  std::vector<std::vector<float>> want;
  for (const HostWeight& m : w) {
    const int64_t outputs = m.matrix.rows / c.experts;
    want.push_back(poisoned(pairs * outputs));
    for (int64_t i = 0; i < pairs; i++) {
      if (ids[size_t(i)] < 0) continue;
      const auto y =
          alone(c, m.matrix, int64_t(ids[size_t(i)]), &x[size_t((c.by_rank ? i : i / c.chosen) * c.columns)]);
      std::copy(y.begin(), y.end(), &want.back()[size_t(i * outputs)]);
    }
  }
  if (c.gated) {
    auto y = poisoned(pairs * c.outputs);
    cpu().silu_mul({want[0].data(), want[1].data(), y.data(), c.outputs}, 0, pairs);
    want = {y};
  }
  const Device d;
  d.reserve({c.rows, c.columns, 1, 1, 1, c.experts, c.chosen});
  const Buffer<float> dx(d, x), dids(d, ids);
  std::vector<PackedWeight> packed;
  std::vector<Buffer<float>> y;
  AssayExpertLinear a{};
  a.activations = c.activations;
  a.count = c.count;
  packed.reserve(2), y.reserve(2);
  for (int i = 0; i < c.count; i++) {
    a.w[i] = packed.emplace_back(d, w[size_t(i)].matrix).get();
    if (size_t(i) < want.size()) a.y[i] = y.emplace_back(d, want[size_t(i)].size()).get();
  }
  a.x = dx.get(), a.ids = dids.get();
  a.rows = c.rows, a.experts = c.experts, a.chosen = c.chosen;
  a.by_rank = c.by_rank, a.gated = c.gated;
  AssayExpertLinear none = a;
  none.rows = 0;
  d.ok(d.module().expert_linear(d, &none));
  d.ok(d.module().expert_linear(d, &a));
  for (size_t i = 0; i < want.size(); i++)
    EXPECT_TRUE(same_rows(y[i].download(), want[i], int64_t(want[i].size()) / pairs)) << what << ", matrix " << i;
}

TEST(CudaMoe, QuantisedProductsByExpertAreThoseOfEachRowAlone) {
  Rng rng = seeded(413);
  constexpr WeightType kTypes[] = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                   WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};
  int turn = 0;
  for (WeightType type : kTypes)
    for (int32_t kind : {ASSAY_ACTIVATIONS_S16, ASSAY_ACTIVATIONS_S8})
      for (int64_t rows : {1, 4, 5, 21}) {
        const int64_t block = std::max<int64_t>(block_elements(type), 32), experts = 1 + turn % 7,
                      chosen = 1 + turn % std::min<int64_t>(experts, 3);
        const int64_t columns = turn % 5 == 4 ? 1280 / block * block : block * (1 + turn % 3);
        check_experts(rng, {type, kind, experts, chosen, uniform(rng, 1, 40), columns, rows, turn % 2 == 1, false,
                            1 + turn % 3 / 2, kInputs[turn % 3]});
        if (rows == 1)
          check_experts(rng,
                        {type, kind, 5, 4, uniform(rng, 1, 40), columns, 1, turn % 3 == 1, true, 2, kInputs[turn % 3]});
        turn++;
      }
  // More experts than a warp has threads, more pairs than an expert's chunk.
  check_experts(rng, {WeightType::q4_0, ASSAY_ACTIVATIONS_S16, 70, 8, 3, 64, 40, false, false, 2, Inputs::plain});
  check_experts(rng, {WeightType::q4_0, ASSAY_ACTIVATIONS_S16, 1, 1, 33, 2304, 30, false, false, 1, Inputs::plain});
}

TEST(CudaMoe, ProductsOfTheFloatRuleByExpertAreThoseOfEachRowAlone) {
  Rng rng = seeded(414);
  int turn = 0;
  for (WeightType type : {WeightType::f32, WeightType::f16, WeightType::bf16, WeightType::q4_0, WeightType::q6_k})
    for (int64_t rows : {1, 4, 9, 30})
      for (bool by_rank : {false, true}) {
        const int64_t columns = is_quantised(type) ? 256 * (1 + turn % 2) : 31 + 250 * (turn % 3) + turn % 2,
                      experts = 2 + turn % 9;
        check_experts(rng, {type, ASSAY_ACTIVATIONS_F32, experts, 1 + turn % 2, uniform(rng, 1, 11), columns, rows,
                            by_rank, false, 1 + turn % 2, kInputs[turn % 3]});
        turn++;
      }
}

TEST(CudaMoe, WhatItCantDoIsRefused) {
  const Device d;
  const Buffer<float> memory(d, 4096);
  const auto launches = d.counters().launches;
  AssayExpertLinear base{};
  base.activations = ASSAY_ACTIVATIONS_S16;
  base.count = 2;
  base.w[0] = base.w[1] = {ASSAY_Q4_0, 0, 8, 256, memory.get()};
  base.y[0] = base.y[1] = memory.get();
  base.x = base.ids = memory.get();
  base.rows = 1, base.experts = 4, base.chosen = 2;
  const auto refused = [&](auto change) {
    AssayExpertLinear a = base;
    change(a);
    EXPECT_EQ(d.module().expert_linear(d, &a), ASSAY_REFUSED);
  };
  refused([](auto& a) { a.count = 3; });
  refused([](auto& a) { a.count = 1, a.gated = 1; });
  refused([](auto& a) { a.chosen = 5; });
  refused([](auto& a) { a.rows = -1; });
  refused([](auto& a) { a.rows = int64_t(1) << 30; });
  refused([](auto& a) { a.w[1].rows = 9; });
  refused([](auto& a) { a.w[1].type = ASSAY_Q8_0; });
  refused([](auto& a) { a.w[0].columns = a.w[1].columns = 40; });
  refused([](auto& a) { a.w[1].rows = 12, a.gated = 1; });
  refused([](auto& a) { a.activations = 7; });
  refused([](auto& a) { a.gated = 1, a.activations = ASSAY_ACTIVATIONS_F32; });
  refused([&](auto& a) { a.x = memory.get() + 1; });
  refused([&](auto& a) { a.w[1].data = memory.get() + 4; });
  base.rows = 100;
  EXPECT_EQ(d.module().expert_linear(d, &base), ASSAY_ERROR);  // no scratch is reserved
  base.w[0].type = base.w[1].type = ASSAY_F16;
  EXPECT_EQ(d.module().expert_linear(d, &base), ASSAY_ERROR);
  AssayRouter r{memory.get(), memory.get(), nullptr, 1, 4, 5, 0, 0};
  EXPECT_EQ(d.module().topk(d, &r), ASSAY_REFUSED);
  r.chosen = 0;
  EXPECT_EQ(d.module().topk_weights(d, &r), ASSAY_REFUSED);
  AssayExpertSum s{memory.get(), memory.get(), memory.get(), 1, 2, 0, nullptr};
  EXPECT_EQ(d.module().expert_sum(d, &s), ASSAY_REFUSED);
  EXPECT_EQ(d.counters().launches, launches);
}

}  // namespace
}  // namespace assay::test

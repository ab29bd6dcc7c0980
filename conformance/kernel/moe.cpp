// Kernel scope: the ops of a mixture of experts, and products by expert.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/exact_product.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"
#include "engine/backend.h"

namespace assay {
namespace {

constexpr int64_t kRouterRows = 3;
constexpr int64_t kExperts[] = {1, 2, 3, 8, 31, 32, 33, 128, 255, 256, 257, 600};

/// Logits of a kind; `ties`: few different values, so that choices hang on ids.
std::vector<float> logits_of(KernelBench& b, int64_t experts, Values kind, bool ties) {
  std::vector<float> x = kernel_values(b.rng(), size_t(kRouterRows * experts), kind);
  for (float& f : x) f = ties && std::isfinite(f) && std::fabs(f) < 1e6f ? std::round(f) : f * 4;
  return x;
}

std::vector<float> narrow(const oracle::Matrix64& m) {
  return {m.v.begin(), m.v.end()};
}

template <class Cases>
void each_router(KernelBench& b, Cases cases) {
  for (int64_t experts : kExperts)
    for (int64_t chosen : {int64_t(1), int64_t(2), int64_t(8), experts}) {
      if (chosen > experts || (chosen == experts && chosen <= 2 && experts > 2)) continue;
      for (Values kind : kAllValues) {
        const bool ties = (experts + chosen + int64_t(kind)) % 2 == 0;
        if (b.next(fmt::format("{} of {} experts, {}{}", chosen, experts, name_of(kind), ties ? ", ties" : "")))
          cases(experts, chosen, kind, ties);
      }
    }
}

}  // namespace

void topk_cases(KernelBench& b) {
  each_router(b, [&](int64_t experts, int64_t chosen, Values kind, bool ties) {
    const std::vector<float> x = logits_of(b, experts, kind, ties);
    std::vector<float> scalar = unwritten(size_t(kRouterRows * chosen)), got = scalar;
    b.scalar.topk({x.data(), scalar.data(), experts, chosen}, 0, kRouterRows);
    b.target.topk({x.data(), got.data(), experts, chosen}, 0, 1);
    b.target.topk({x.data(), got.data(), experts, chosen}, 1, kRouterRows);
    b.bytes("rank", scalar, got);
    const oracle::Matrix64 want = oracle::topk(widened(x, kRouterRows), chosen);
    b.bounds(
        got, kRouterRows, chosen, [&](int64_t r, int64_t c) { return want.at(r, c); }, [](int64_t, int64_t) { return 0.0; });
  });
}

void topk_weights_cases(KernelBench& b) {
  each_router(b, [&](int64_t experts, int64_t chosen, Values kind, bool ties) {
    const std::vector<float> x = logits_of(b, experts, kind, ties);
    oracle::Matrix64 ids = oracle::topk(widened(x, kRouterRows), chosen);
    // Forced ones are any.
    if (kind == Values::normal)
      for (double& id : ids.v) id = double(b.rng()() % uint64_t(experts));
    const std::vector<float> chosen_ids = narrow(ids);
    const bool normalised = b.rng()() % 2;
    std::vector<float> scalar = unwritten(chosen_ids.size()), got = scalar;
    b.scalar.topk_weights({x.data(), chosen_ids.data(), scalar.data(), experts, chosen, normalised}, 0, kRouterRows);
    const TopkWeightsArgs a{x.data(), chosen_ids.data(), got.data(), experts, chosen, normalised};
    b.target.topk_weights(a, 0, 2);
    b.target.topk_weights(a, 2, kRouterRows);
    b.bytes("rank", scalar, got);
    b.sums(experts);
    const oracle::Matrix64 want = oracle::topk_weights(widened(x, kRouterRows), ids, normalised);
    b.bounds(
        got, kRouterRows, chosen, [&](int64_t r, int64_t c) { return want.at(r, c); },
        [&](int64_t r, int64_t c) {
          const auto [low, high] = std::minmax_element(x.begin() + r * experts, x.begin() + (r + 1) * experts);
          return bounds::topk_weight(experts, chosen, double(*high) - double(*low), want.at(r, c), normalised);
        });
  });
}

void expert_sum_cases(KernelBench& b) {
  for (int64_t columns : kEdgeWidths)
    for (Values kind : kAllValues) {
      if (!b.next(fmt::format("columns {}, {}", columns, name_of(kind)))) continue;
      const int64_t chosen = 1 + int64_t(b.rng()() % 9);
      const std::vector<float> x = kernel_values(b.rng(), size_t(kRouterRows * chosen * columns), kind),
                               w = kernel_values(b.rng(), size_t(kRouterRows * chosen), Values::normal);
      std::vector<float> scalar = unwritten(size_t(kRouterRows * columns)), got = scalar;
      b.scalar.expert_sum({w.data(), x.data(), scalar.data(), chosen, columns}, 0, kRouterRows);
      b.target.expert_sum({w.data(), x.data(), got.data(), chosen, columns}, 0, 1);
      b.target.expert_sum({w.data(), x.data(), got.data(), chosen, columns}, 1, kRouterRows);
      b.bytes("element", scalar, got);
      b.sums(chosen);
      const oracle::Matrix64 want = oracle::expert_sum(widened(x, kRouterRows), widened(w, kRouterRows));
      b.bounds(
          got, kRouterRows, columns, [&](int64_t r, int64_t c) { return want.at(r, c); },
          [&](int64_t r, int64_t c) {
            double magnitude = 0;
            for (int64_t k = 0; k < chosen; k++)
              magnitude += std::fabs(double(w[size_t(r * chosen + k)]) * double(x[size_t((r * chosen + k) * columns + c)]));
            return bounds::expert_sum(chosen, magnitude);
          });
    }
}

void gated_add_cases(KernelBench& b) {
  for (int64_t columns : kEdgeWidths)
    for (Values kind : kAllValues) {
      if (!b.next(fmt::format("columns {}, {}", columns, name_of(kind)))) continue;
      std::vector<float> gate = kernel_values(b.rng(), size_t(kRouterRows), kind);
      for (float& g : gate) g *= 40;  // through both tails of the sigmoid
      const std::vector<float> shared = kernel_values(b.rng(), size_t(kRouterRows * columns), kind),
                               x = kernel_values(b.rng(), size_t(kRouterRows * columns), kind);
      std::vector<float> scalar = unwritten(x.size()), got = scalar;
      b.scalar.gated_add({gate.data(), shared.data(), x.data(), scalar.data(), columns}, 0, kRouterRows);
      b.target.gated_add({gate.data(), shared.data(), x.data(), got.data(), columns}, 0, 2);
      b.target.gated_add({gate.data(), shared.data(), x.data(), got.data(), columns}, 2, kRouterRows);
      b.bytes("element", scalar, got);
      const oracle::Matrix64 want = oracle::gated_add(widened(gate, kRouterRows), widened(shared, kRouterRows), widened(x, kRouterRows));
      b.bounds(
          got, kRouterRows, columns, [&](int64_t r, int64_t c) { return want.at(r, c); },
          [&](int64_t r, int64_t c) {
            return bounds::gated_add(double(gate[size_t(r)]), double(shared[size_t(r * columns + c)]), want.at(r, c));
          });
    }
}

namespace {

struct ExpertShape {
  WeightType type;
  Activations kind;
  int64_t experts, chosen, outputs, columns, tokens;
  bool by_rank;     // x has a part per rank
  int crowd;        // 0: any experts; 1: every row the same ones; 2: all but expert 0, which then has no row; 3: as 0, and
                    // every third row chose nothing
  Values values;
};

/// The node in a backend of the table's kernels, several rows together.
std::vector<float> by_expert(const Kernels& k, const ExpertShape& s, const Matrix& w, const std::vector<float>& x,
                             const std::vector<float>& ids, int threads) {
  Program p;
  p.values = {{"x", 0, int64_t(x.size()) / s.tokens, ""}, {"ids", 0, s.chosen, ""}, {"y", 0, s.chosen * s.outputs, ""}};
  Node n;
  n.op = OpKind::expert_linear;
  n.layer = 0;
  n.phase = "expert_up_proj";
  n.inputs = {0, 1};
  n.output = 2;
  n.weight = &w;
  n.experts = s.experts;
  n.chosen = s.chosen;
  p.nodes = {n};
  CpuBackend backend(k, threads);
  backend.prepare(p, s.kind);
  std::vector<float> y = unwritten(size_t(s.tokens * s.chosen * s.outputs));
  const Config config;
  const Batch batch;
  NodeContext c{p.nodes[0], p, config, batch, s.tokens, {x.data(), ids.data()}, y.data(), s.chosen * s.outputs, {}, {}, {}, nullptr, nullptr};
  backend.begin_pass();
  backend.run(c);
  return y;
}

void check_experts(KernelBench& b, const ExpertShape& s) {
  const StoredMatrix w = stored_matrix(b.rng(), s.type, s.experts * s.outputs, s.columns, Values::normal);
  const int64_t width = s.by_rank ? s.chosen * s.columns : s.columns;
  const std::vector<float> x = kernel_values(b.rng(), size_t(s.tokens * width), s.values);
  std::vector<float> ids;
  std::vector<float> order(static_cast<size_t>(s.experts));
  std::iota(order.begin(), order.end(), 0.0f);
  for (int64_t t = 0; t < s.tokens; t++) {
    if (s.crowd != 1 || t == 0) std::shuffle(order.begin(), order.end(), b.rng());
    if (s.crowd == 2) std::stable_partition(order.begin(), order.end(), [](float e) { return e != 0; });
    for (int64_t r = 0; r < s.chosen; r++) ids.push_back(s.crowd == 3 && t % 3 == 2 ? -1.0f : order[size_t(r)]);
  }

  // Each row with each of its experts alone, by the scalar kernel: what others choose must not show.
  std::vector<float> want = unwritten(size_t(s.tokens * s.chosen * s.outputs));
  const bool quantised = is_quantised(s.type);
  for (int64_t i = 0; i < s.tokens * s.chosen; i++) {
    if (ids[size_t(i)] < 0) continue;
    const Matrix own = expert_of(w.matrix, s.experts, int64_t(ids[size_t(i)]));
    const float* from = x.data() + (s.by_rank ? i : i / s.chosen) * s.columns;
    const std::vector<float> row(from, from + s.columns);
    std::vector<float> y(static_cast<size_t>(s.outputs));
    if (quantised)
      y = quantised_product(b.scalar, own, row, 1, s.kind, nullptr, 0);
    else
      b.scalar.linear({own, nullptr, row.data(), y.data(), 1}, 0, s.outputs);
    std::copy(y.begin(), y.end(), want.begin() + i * s.outputs);
  }
  const std::vector<float> got = by_expert(b.target, s, w.matrix, x, ids, 1 + int(b.rng()() % 3));
  b.bytes("element", want, got);
  b.sums(s.columns);
  for (int64_t i = 0; i < s.tokens * s.chosen; i++) {
    if (ids[size_t(i)] < 0) continue;
    const int64_t e = int64_t(ids[size_t(i)]);
    const float* row = x.data() + (s.by_rank ? i : i / s.chosen) * s.columns;
    for (int64_t o = 0; o < s.outputs; o++) {
      const int64_t n = e * s.outputs + o;
      double exact = 0, magnitude = 0;
      for (int64_t c = 0; c < s.columns; c++) {
        exact += w.wide.at(n, c) * double(row[c]);
        magnitude += std::fabs(w.wide.at(n, c) * double(row[c]));
      }
      double limit = bounds::sum(s.columns, magnitude);
      if (quantised) {
        const ExactProduct p = exact_product(s.type, decode_exactly(s.type, w.matrix.row(n), s.columns), row, s.kind, nullptr);
        limit = p.bound;
        if (s.kind != Activations::f32 && !std::isfinite(p.value)) exact = NAN;
      }
      b.bound(got[size_t(i * s.outputs + o)], exact, limit, i, o);
    }
  }
}

}  // namespace

void expert_linear_cases(KernelBench& b) {
  struct Type {
    WeightType type;
    Activations kind;
    int64_t block;
  };
  constexpr Type kTypes[] = {{WeightType::f32, Activations::f32, 1},    {WeightType::bf16, Activations::f32, 1},
                             {WeightType::q4_0, Activations::s16, 32},  {WeightType::q8_0, Activations::s8, 32},
                             {WeightType::q4_1, Activations::s8, 32},   {WeightType::q5_0, Activations::f32, 32},
                             {WeightType::q6_k, Activations::s16, 256}, {WeightType::q4_k, Activations::s16, 256}};
  constexpr int64_t kOutputs[] = {1, 7, 16, 24, 40};
  int turn = 0;
  for (const Type& t : kTypes)
    for (auto [experts, chosen] : {std::pair<int64_t, int64_t>{1, 1}, {2, 1}, {4, 4}, {6, 2}, {16, 3}})
      for (int64_t tokens : {1, 2, 5, 33})
        for (bool by_rank : {false, true}) {
          const int crowd = turn % 4 == 2 && chosen == experts ? 0 : turn % 4;
          const ExpertShape s{t.type, t.kind, experts, chosen, kOutputs[turn % 5], (t.block == 1 ? 31 : t.block) * (1 + turn % 2),
                              tokens, by_rank, crowd, turn % 7 == 6 ? Values::non_finite : turn % 3 == 2 ? Values::mixed : Values::normal};
          turn++;
          if (b.next(fmt::format("{} {}, {} of {} experts [{}, {}], {} rows{}, crowd {}, x {}", name_of(s.type), name_of(s.kind), chosen,
                                 experts, s.outputs, s.columns, tokens, by_rank ? " by rank" : "", crowd, name_of(s.values))))
            check_experts(b, s);
        }
}

}  // namespace assay

// Products by expert in the backend, against each row with each of its experts alone; a whole mixture against plain code; the
// Program of a mixture.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "engine/backend.h"
#include "engine/formats/loader.h"
#include "engine/formats/synth_blocks.h"
#include "engine/formats/test_files.h"
#include "engine/session.h"

namespace assay {
namespace {

using namespace testing_files;

/// One expert_linear node and its weight.
struct Experts {
  Experts(WeightType type, int64_t experts, int64_t chosen, int64_t outputs, int64_t columns, bool by_rank)
      : bytes(size_t(experts * outputs) * row_bytes(type, columns)), by_rank(by_rank) {
    RandomMatrix(5, "experts", type, columns, 1).write(0, experts * outputs, bytes.data());
    w = {type, experts * outputs, columns, bytes.data()};
    program.values = {{"x", 0, by_rank ? chosen * columns : columns, ""}, {"ids", 0, chosen, ""}, {"y", 0, chosen * outputs, ""}};
    Node n;
    n.op = OpKind::expert_linear;
    n.layer = 0;
    n.phase = "expert_up_proj";
    n.inputs = {0, 1};
    n.output = 2;
    n.weight = &w;
    n.experts = experts;
    n.chosen = chosen;
    program.nodes = {n};
  }
  std::vector<float> run(const std::vector<float>& x, const std::vector<float>& ids, Activations kind, Isa isa, int threads) const {
    const Node& n = program.nodes[0];
    const int64_t rows = int64_t(ids.size()) / n.chosen, columns = program.values[2].columns;
    CpuBackend backend(isa, threads);
    backend.prepare(program, kind);
    std::vector<float> y(size_t(rows * columns), 7.0f);
    const Config config;
    const Batch batch;
    NodeContext c{n, program, config, batch, rows, {x.data(), ids.data()}, y.data(), columns, {}, {}, {}, nullptr, nullptr};
    backend.begin_pass();
    backend.run(c);
    return y;
  }
  /// Row by row, rank by rank, as a linear of that expert's matrix alone.
  std::vector<float> alone(const std::vector<float>& x, const std::vector<float>& ids, Activations kind, Isa isa) const {
    const Node& n = program.nodes[0];
    const int64_t outputs = w.rows / n.experts;
    std::vector<float> out;
    for (size_t i = 0; i < ids.size(); i++) {
      std::vector<float> y(size_t(outputs), std::numeric_limits<float>::quiet_NaN());
      if (ids[i] >= 0) {
        const Matrix own = expert_of(w, n.experts, int64_t(ids[i]));
        Program p;
        p.values = {{"x", 0, w.columns, ""}, {"y", 0, outputs, ""}};
        Node l;
        l.op = OpKind::linear;
        l.inputs = {0};
        l.output = 1;
        l.weight = &own;
        p.nodes = {l};
        CpuBackend backend(isa, 1);
        backend.prepare(p, kind);
        const Config config;
        const Batch batch;
        const float* from = x.data() + (by_rank ? i : i / size_t(n.chosen)) * size_t(w.columns);
        NodeContext c{p.nodes[0], p, config, batch, 1, {from}, y.data(), outputs, {}, {}, {}, nullptr, nullptr};
        backend.begin_pass();
        backend.run(c);
      }
      out.insert(out.end(), y.begin(), y.end());
    }
    return out;
  }
  std::vector<std::byte> bytes;
  Matrix w;
  Program program;
  bool by_rank;
};

bool same(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); i++)
    if (std::memcmp(&a[i], &b[i], 4) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) return false;
  return true;
}

std::vector<float> gaussians(std::mt19937& rng, int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = normal(rng);
  return out;
}

// Whatever rows share an expert: all to one, an expert without a row, every expert, one expert, a row that chose nothing.
TEST(Moe, ARowsProductsHangOnItsOwnExpertsAlone) {
  std::mt19937 rng(1);
  for (auto [type, kind] : {std::pair{WeightType::f32, Activations::s16}, {WeightType::bf16, Activations::f32}, {WeightType::q4_0, Activations::s16},
                            {WeightType::q8_0, Activations::s8}, {WeightType::q5_1, Activations::f32}, {WeightType::q6_k, Activations::s8}})
    for (auto [experts, chosen] : {std::pair<int64_t, int64_t>{1, 1}, {4, 4}, {9, 2}})
      for (bool by_rank : {false, true}) {
        const int64_t columns = 256, outputs = 20;
        const Experts e(type, experts, chosen, outputs, columns, by_rank);
        for (int crowd : {0, 1, 2}) {  // any; all rows to one; a row that chose nothing
          std::vector<float> ids, order(static_cast<size_t>(experts));
          std::iota(order.begin(), order.end(), 0.0f);
          for (int t = 0; t < 11; t++) {
            if (crowd != 1) std::shuffle(order.begin(), order.end(), rng);
            for (int64_t r = 0; r < chosen; r++) ids.push_back(crowd == 2 && t == 4 ? -1.0f : order[size_t(r)]);
          }
          const auto x = gaussians(rng, 11 * columns * (by_rank ? chosen : 1));
          for (Isa isa : {Isa::scalar, best_isa()}) {
            const auto want = e.alone(x, ids, kind, isa);
            for (int threads : {1, 3}) EXPECT_TRUE(same(e.run(x, ids, kind, isa, threads), want)) << name_of(type) << " " << name_of(isa) << " crowd " << crowd;
          }
        }
      }
}

// The whole block on numbers that can be followed: two experts of width 1, hidden 1, one row.
TEST(Moe, AMixtureByHand) {
  TinyModel m = tiny_model("qwen3_moe");
  TempDir dir;
  m.write(dir.path());
  const auto model = std::make_shared<Model>(load_model(dir.path()));
  const Program p = build_program(*model);
  const Node* ids = p.find(1, "router_topk_ids");
  ASSERT_NE(ids, nullptr);
  EXPECT_TRUE(p.values[size_t(ids->output)].ids);
  EXPECT_EQ(p.find(1, "gate_proj"), nullptr);
  const Node* out = p.find(1, "moe_out");
  ASSERT_NE(out, nullptr);
  EXPECT_EQ(p.values[size_t(out->output)].also, "ffn_out") << "no shared expert: one value under both names";
  EXPECT_EQ(p.values[size_t(p.find(0, "expert_down_proj")->output)].columns, 2 * 32);

  // Every value of a pass, and the sum made again from them.
  struct Keep : Observer {
    std::map<std::string, std::vector<float>> v;
    void value(const Batch&, const Node& node, const float* data, std::span<const int64_t> rows, int64_t columns) override {
      v[node.name()].assign(data, data + int64_t(rows.size()) * columns);
    }
  } keep;
  EngineOptions o;
  o.threads = 2;
  Engine engine(model, o);
  Batch b;
  b.ids = {3, 1, 4, 1, 5};
  b.segments = {{0, 0, 5, 0, 0}};
  b.logit_rows = {4};
  engine.forward(b, &keep);
  const LayerWeights& w = model->weights.layers[1];
  const auto number = [](const Matrix& mm, int64_t r, int64_t c) {
    float f;
    std::memcpy(&f, mm.row(r) + 4 * c, 4);
    return double(f);
  };
  for (int64_t t = 0; t < 5; t++) {
    const float* h = &keep.v["layer.1/ffn_norm"][size_t(t * 32)];
    std::vector<double> logit(6);
    for (int64_t e = 0; e < 6; e++)
      for (int64_t k = 0; k < 32; k++) logit[size_t(e)] += number(w.router, e, k) * h[k];
    std::vector<int> order = {0, 1, 2, 3, 4, 5};
    std::stable_sort(order.begin(), order.end(), [&](int x, int y) { return logit[size_t(x)] > logit[size_t(y)]; });
    double sum = std::exp(logit[size_t(order[0])]) + std::exp(logit[size_t(order[1])]);
    std::vector<double> y(32);
    for (int r = 0; r < 2; r++) {
      const int e = order[size_t(r)];
      EXPECT_EQ(keep.v["layer.1/router_topk_ids"][size_t(2 * t + r)], float(e));
      const double weight = std::exp(logit[size_t(e)]) / sum;
      EXPECT_NEAR(keep.v["layer.1/router_topk_weights"][size_t(2 * t + r)], weight, 1e-6);
      std::vector<double> act(32);
      for (int i = 0; i < 32; i++) {
        double gate = 0, up = 0;
        for (int k = 0; k < 32; k++) gate += number(w.expert_gate, 32 * e + i, k) * h[k], up += number(w.expert_up, 32 * e + i, k) * h[k];
        act[size_t(i)] = gate / (1 + std::exp(-gate)) * up;
      }
      for (int i = 0; i < 32; i++)
        for (int k = 0; k < 32; k++) y[size_t(i)] += weight * number(w.expert_down, 32 * e + i, k) * act[size_t(k)];
    }
    for (int i = 0; i < 32; i++) EXPECT_NEAR(keep.v["layer.1/moe_out"][size_t(32 * t + i)], y[size_t(i)], 1e-5) << t << " " << i;
  }
}

}  // namespace
}  // namespace assay

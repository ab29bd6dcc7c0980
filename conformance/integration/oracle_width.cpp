// The engine at the width of real models against the oracle: every node of a pass, on the engine's own inputs and
// cache, within the bound of NUMERICS.md. Two layers, long prompts, positions from 5000 on behind a cache that both
// sides were given.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <random>
#include <utility>

#include "conformance/faults/faults.h"
#include "conformance/integration/oracle_width.h"
#include "conformance/integration/quantised.h"
#include "conformance/kernel/bounds.h"
#include "conformance/kernel/exact_product.h"
#include "dumps/error.h"
#include "engine/formats/synth.h"
#include "oracle/weights.h"

namespace assay {
namespace {

using oracle::Matrix64;
using oracle::WeightRows;

constexpr int64_t kStart = 5000;        // position of the first row
constexpr int64_t kLogitRows = 16;      // the last ones
constexpr int64_t kQuantOutputs = 160;  // of a quantised linear node, about: bounds are computed one product at a time

/// A node's value: some rows of the batch, each with all columns.
struct Kept {
  std::vector<int64_t> rows;
  std::vector<float> data;
  int64_t columns = 0;
};

/// The judged rows of a batch: edges of lanes, tiles and blocks, the last rows, and a few by the seed.
std::vector<int64_t> judged_rows(int64_t count, std::mt19937_64& rng) {
  std::vector<int64_t> rows = {0,   1,   2,   5,   6,         31,        32,        33,       127,
                               128, 255, 256, 257, count / 2, count - 7, count - 2, count - 1};
  for (int i = 0; i < 4; i++) rows.push_back(int64_t(rng() % uint64_t(count)));
  std::sort(rows.begin(), rows.end());
  rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
  std::erase_if(rows, [&](int64_t r) { return r < 0 || r >= count; });
  return rows;
}

class WidthJudge final : public Observer {
 public:
  WidthJudge(const Engine& engine, const oracle::Weights64& weights, std::vector<Matrix64> k, std::vector<Matrix64> v,
             std::vector<int64_t> rows, int threads, CheckOutcome& out)
      : engine_(engine),
        weights_(weights),
        k_(std::move(k)),
        v_(std::move(v)),
        rows_(std::move(rows)),
        threads_(threads),
        out_(out) {
    for (const Node& n : engine.program().nodes)
      for (ValueId v : n.inputs) last_use_[v] = &n;
  }

  void value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows,
             int64_t columns) override {
    judge(batch, node, data, rows, columns);
    Kept& kept = values_[node.output];
    kept.rows.assign(rows.begin(), rows.end());
    kept.data.assign(data, data + int64_t(rows.size()) * columns);
    kept.columns = columns;
    for (ValueId v : node.inputs)
      if (last_use_[v] == &node) values_.erase(v);
  }

  void report(const std::string& what) {
    double most = 0;
    std::string line;
    for (const auto& [phase, share] : worst_) {
      line += fmt::format("{}{} {:.1f}%", line.empty() ? "" : ", ", phase, 100 * share);
      most = std::max(most, share);
    }
    out_.notes.push_back(
        fmt::format("{}: {} nodes, {:.1f}% of a bound used at most ({})", what, nodes_, 100 * most, line));
  }

 private:
  static Matrix64 widened(const Kept& kept, const std::vector<int64_t>& wanted) {
    Matrix64 out(int64_t(wanted.size()), kept.columns);
    for (size_t i = 0; i < wanted.size(); i++) {
      const size_t at = size_t(std::find(kept.rows.begin(), kept.rows.end(), wanted[i]) - kept.rows.begin());
      std::copy_n(&kept.data[at * size_t(kept.columns)], kept.columns, out.row(int64_t(i)));
    }
    return out;
  }

  using Bound = std::function<double(int64_t row, int64_t column)>;
  void hold(const Node& node, const std::vector<int64_t>& rows, const Matrix64& got, const Matrix64& want,
            const Bound& bound, const std::vector<int64_t>& columns = {}) {
    double& worst = worst_[node.phase];
    for (int64_t r = 0; r < want.rows; r++)
      for (int64_t i = 0; i < (columns.empty() ? want.columns : int64_t(columns.size())); i++) {
        const int64_t c = columns.empty() ? i : columns[size_t(i)];
        const double w = want.at(r, i), g = got.at(r, c), limit = bound(r, i), share = std::fabs(g - w) / limit;
        out_.compared++;
        if (!(share <= 1) || !std::isfinite(limit)) {
          if (out_.place.empty()) out_.place = fmt::format("{}, row {}, column {}", node.name(), rows[size_t(r)], c);
          out_.fail(fmt::format("{}, row {} (position {}), column {}: {:.9g}, float64 {:.9g}: {:.2f} times its bound",
                                node.name(), rows[size_t(r)], kStart + rows[size_t(r)], c, g, w, share));
        }
        if (share > worst) worst = share;
      }
  }

  void judge(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> present,
             int64_t columns) {
    nodes_++;
    const Config& c = engine_.model().config;
    std::vector<int64_t> rows = rows_;
    if (node.requested_rows_only) rows.assign(present.begin(), present.end());
    Kept own{{present.begin(), present.end()}, {}, columns};
    own.data.assign(data, data + int64_t(present.size()) * columns);
    const Matrix64 got = widened(own, rows);
    std::vector<Matrix64> in;
    for (ValueId v : node.inputs) in.push_back(widened(values_.at(v), rows));
    std::vector<int64_t> positions;
    for (int64_t r : rows) positions.push_back(kStart + r);
    const double eps = double(float(node.eps));  // the engine rounds it

    switch (node.op) {
      case OpKind::embed: {
        std::vector<int32_t> ids;
        for (int64_t r : rows) ids.push_back(batch.ids[size_t(r)]);
        const Matrix64 want = oracle::embed(weights_.embed(), ids);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) { return bounds::add(want.at(r, i)); });
      }
      case OpKind::rms_norm:
      case OpKind::head_norm: {
        const int64_t width = node.op == OpKind::rms_norm ? columns : node.head_dim, heads = columns / width;
        const std::vector<double> w = norm_weight(node);
        const Matrix64 want = oracle::head_norm(in[0], heads, width, w, eps);
        const int lanes = node.op == OpKind::rms_norm ? 256 : 32;
        Matrix64 squares(in[0].rows, heads);
        for (int64_t r = 0; r < in[0].rows; r++)
          for (int64_t i = 0; i < columns; i++) squares.at(r, i / width) += in[0].at(r, i) * in[0].at(r, i);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
          return bounds::rms_norm(width, want.at(r, i), w[size_t(i % width)], squares.at(r, i / width), lanes);
        });
      }
      case OpKind::linear:
        return judge_linear(node, rows, got, in[0]);
      case OpKind::rope: {
        const Matrix64 want = oracle::rope(in[0], node.heads, node.head_dim, positions, c.rope);
        const std::vector<double> frequency = oracle::rope_frequencies(c.rope);
        const int64_t half = c.rope.rotary / 2;
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
          const int64_t j = i % node.head_dim % half, first = i / node.head_dim * node.head_dim + j;
          return bounds::rope(in[0].at(r, first), in[0].at(r, first + half),
                              double(positions[size_t(r)]) * frequency[size_t(j)]);
        });
      }
      case OpKind::attention: {
        Matrix64 k = k_.at(size_t(node.layer)), v = v_.at(size_t(node.layer));
        append(k, node.layer, "k_rope");
        append(v, node.layer, "v_proj");
        const Matrix64 want = oracle::attention(in[0], k, v, positions, c.heads, c.kv_heads, c.head_dim, threads_);
        const oracle::AttentionMagnitude m =
            oracle::attention_magnitude(in[0], k, v, positions, c.heads, c.kv_heads, c.head_dim, threads_);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
          const int64_t h = i / c.head_dim;
          return bounds::attention(positions[size_t(r)] + 1, c.head_dim, m.qk.at(r, h) / std::sqrt(double(c.head_dim)),
                                   m.score.at(r, h), m.spread.at(r, h), m.mixed.at(r, i));
        });
      }
      case OpKind::silu_mul: {
        const Matrix64 want = oracle::silu_mul(in[0], in[1]);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
          return bounds::silu_mul(in[0].at(r, i), in[1].at(r, i), want.at(r, i));
        });
      }
      case OpKind::add: {
        const Matrix64 want = oracle::add(in[0], in[1]);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) { return bounds::add(want.at(r, i)); });
      }
      case OpKind::sigmoid_mul: {
        const Matrix64 want = oracle::sigmoid_mul(in[0], in[1]);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) { return bounds::sigmoid_mul(in[0].at(r, i), in[1].at(r, i), want.at(r, i)); });
      }
      case OpKind::sigmoid: {
        const Matrix64 want = oracle::sigmoid(in[0]);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) { return bounds::sigmoid_mul(1, in[0].at(r, i), want.at(r, i)); });
      }
      case OpKind::l2_norm: {
        const Matrix64 x = oracle::columns(in[0], node.input_offset, columns);
        const Matrix64 want = oracle::l2_norm(x, node.heads, node.scaled ? 1 / std::sqrt(double(node.head_dim)) : 1, double(1e-6f));
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
          double squares = 0;
          for (int64_t d = 0; d < node.head_dim; d++) squares += std::pow(x.at(r, i / node.head_dim * node.head_dim + d), 2);
          return bounds::l2_norm(node.head_dim, want.at(r, i), squares);
        });
      }
      case OpKind::gated_norm:
      case OpKind::decay:
      case OpKind::conv:
      case OpKind::delta_rule:
        return;  // kernel scope holds them to their bounds; their state is not kept here
      case OpKind::columns:
      case OpKind::hidden:
        return;  // copies
      case OpKind::topk: {
        const Matrix64 want = oracle::topk(in[0], node.chosen);
        return hold(node, rows, got, want, [](int64_t, int64_t) { return std::numeric_limits<double>::min(); });
      }
      case OpKind::topk_weights: {
        const Matrix64 want = oracle::topk_weights(in[0], in[1], node.normalised);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
          const double* x = in[0].row(r);
          const auto [low, high] = std::minmax_element(x, x + node.experts);
          return bounds::topk_weight(node.experts, node.chosen, *high - *low, want.at(r, i), node.normalised);
        });
      }
      case OpKind::expert_linear:
        return judge_experts(node, rows, got, in[0], in[1]);
      case OpKind::expert_sum: {
        const Matrix64 want = oracle::expert_sum(in[0], in[1]);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
          double magnitude = 0;
          for (int64_t k = 0; k < node.chosen; k++) magnitude += std::fabs(in[1].at(r, k) * in[0].at(r, k * columns + i));
          return bounds::expert_sum(node.chosen, magnitude);
        });
      }
      case OpKind::gated_add: {
        const Matrix64 want = oracle::gated_add(in[0], in[1], in[2]);
        return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
          return bounds::gated_add(in[0].at(r, 0), in[1].at(r, i), want.at(r, i));
        });
      }
      case OpKind::kv_store:
        return;
    }
  }

  /// Of each row and rank a sample of outputs, held as those of a linear of that expert.
  void judge_experts(const Node& node, const std::vector<int64_t>& rows, const Matrix64& got, const Matrix64& x,
                     const Matrix64& ids) {
    const Matrix& all = *node.weight;
    const int64_t outputs = all.rows / node.experts, parts = x.columns / all.columns;
    double& worst = worst_[node.phase];
    for (int64_t t = 0; t < ids.rows; t++)
      for (int64_t k = 0; k < node.chosen; k++) {
        const Matrix w = expert_of(all, node.experts, int64_t(ids.at(t, k)));
        Matrix64 one(1, all.columns);
        std::copy_n(x.row(t) + (parts == 1 ? 0 : k * all.columns), all.columns, one.row(0));
        const std::vector<float> narrow(one.v.begin(), one.v.end());
        for (int64_t o = 0; o < outputs; o += std::max<int64_t>(1, outputs / 16)) {
          double want = 0, limit = 0;
          if (is_quantised(w.type)) {
            const ExactProduct p = exact_product(w.type, decode_exactly(w.type, w.row(o), w.columns), narrow.data(),
                                                 engine_.options().activations, nullptr);
            want = p.value, limit = p.bound;
          } else {
            std::vector<double> row(static_cast<size_t>(w.columns));
            oracle::widen(w.type, w.row(o), w.columns, row.data());
            double magnitude = 0;
            for (int64_t c = 0; c < w.columns; c++) want += row[size_t(c)] * one.v[size_t(c)], magnitude += std::fabs(row[size_t(c)] * one.v[size_t(c)]);
            limit = bounds::sum(w.columns, magnitude);
          }
          const double g = got.at(t, k * outputs + o), share = std::fabs(g - want) / limit;
          out_.compared++;
          worst = std::max(worst, share);
          if (!(share <= 1))
            out_.fail(fmt::format("{}, row {}, rank {}, column {}: {:.9g}, float64 {:.9g}: {:.2f} times its bound", node.name(),
                                  rows[size_t(t)], k, o, g, want, share));
        }
      }
  }

  void judge_linear(const Node& node, const std::vector<int64_t>& rows, const Matrix64& got, const Matrix64& x) {
    const auto [w, bias] = linear_weight(node);
    const WeightType type = node.weight->type;
    if (!is_quantised(type)) {
      const Matrix64 want = oracle::linear(x, w, bias, threads_), magnitude = oracle::linear_magnitude(x, w, threads_);
      return hold(node, rows, got, want, [&](int64_t r, int64_t i) {
        return bounds::sum(w.columns, magnitude.at(r, i), bias.empty() ? 0 : std::fabs(want.at(r, i)));
      });
    }
    std::vector<int64_t> outputs;
    const int64_t step = std::max<int64_t>(1, w.rows / kQuantOutputs);
    for (int64_t n = w.rows - 1; n >= 0; n -= step) outputs.push_back(n);
    std::vector<double> some_bias;
    for (int64_t n : outputs)
      if (!bias.empty()) some_bias.push_back(bias[size_t(n)]);
    const WeightRows some{int64_t(outputs.size()), w.columns, [&, &weight = w](int64_t first, int64_t n, double* out) {
                            for (int64_t i = 0; i < n; i++)
                              weight.read(outputs[size_t(first + i)], 1, out + i * weight.columns);
                          }};
    const Matrix64 want = oracle::linear(x, some, some_bias, threads_);
    Matrix64 limit(want.rows, want.columns);
    for (int64_t i = 0; i < want.columns; i++) {
      const ExactRow exact = decode_exactly(type, node.weight->row(outputs[size_t(i)]), w.columns);
      for (int64_t r = 0; r < want.rows; r++) {
        std::vector<float> row(x.row(r), x.row(r) + x.columns);  // were floats
        const float b = bias.empty() ? 0.0f : float(some_bias[size_t(i)]);
        limit.at(r, i) =
            exact_product(type, exact, row.data(), engine_.options().activations, bias.empty() ? nullptr : &b).bound;
      }
    }
    hold(
        node, rows, got, want, [&](int64_t r, int64_t i) { return limit.at(r, i); }, outputs);
  }

  std::pair<WeightRows, std::vector<double>> linear_weight(const Node& node) const {
    if (node.layer < 0) return {weights_.lm_head(), {}};
    const oracle::LayerWeights64 l = weights_.layer(node.layer);
    if (node.phase == "q_proj") return {l.q, l.q_bias};
    if (node.phase == "k_proj") return {l.k, l.k_bias};
    if (node.phase == "v_proj") return {l.v, l.v_bias};
    if (node.phase == "o_proj") return {l.o, l.o_bias};
    if (node.phase == "gate_proj") return {l.gate, {}};
    if (node.phase == "up_proj") return {l.up, {}};
    if (node.phase == "down_proj") return {l.down, {}};
    throw Error(ErrorKind::internal, node.name(), "the oracle has no weight for this product");
  }

  std::vector<double> norm_weight(const Node& node) const {
    if (node.layer < 0) return weights_.final_norm();
    const oracle::LayerWeights64 l = weights_.layer(node.layer);
    for (auto [phase, weight] : {std::pair{"attn_norm", &l.attn_norm},
                                 {"ffn_norm", &l.ffn_norm},
                                 {"attn_post_norm", &l.attn_post_norm},
                                 {"ffn_post_norm", &l.ffn_post_norm},
                                 {"q_norm", &l.q_norm},
                                 {"k_norm", &l.k_norm}})
      if (node.phase == phase) return *weight;
    throw Error(ErrorKind::internal, node.name(), "the oracle has no weight for this norm");
  }

  /// The pass's own rows behind those of the cache, rounded as the cache stores them.
  void append(Matrix64& cache, int layer, const char* phase) const {
    const Node* n = engine_.program().find(layer, phase);
    const Kept& kept = values_.at(n->output);
    for (float x : kept.data) cache.v.push_back(oracle::round_to(engine_.options().kv, double(x)));
    cache.rows += int64_t(kept.rows.size());
  }

  const Engine& engine_;
  const oracle::Weights64& weights_;
  const std::vector<Matrix64> k_, v_;  // per layer, positions below kStart
  const std::vector<int64_t> rows_;
  const int threads_;
  CheckOutcome& out_;
  std::map<ValueId, const Node*> last_use_;
  std::map<ValueId, Kept> values_;
  std::map<std::string, double> worst_;  // by phase, share of the bound
  int64_t nodes_ = 0;
};

/// Fills one half of a layer's cache with values that f16 holds, and returns them as rows.
Matrix64 fill_cache(const KvLayer& kv, std::byte* half, std::mt19937_64& rng) {
  Matrix64 rows(kStart, kv.kv_heads * kv.head_dim);
  for (int64_t h = 0; h < kv.kv_heads; h++)
    for (int64_t p = 0; p < kStart; p++)
      for (int64_t d = 0; d < kv.head_dim; d++) {
        const uint64_t random = rng();  // sign, 2^-4 to 2^1, any fraction
        const uint16_t bits = uint16_t((random >> 63) << 15 | (11 + random % 5) << 10 | (random >> 20 & 1023));
        double& value = rows.at(p, h * kv.head_dim + d);
        oracle::widen(WeightType::f16, reinterpret_cast<const std::byte*>(&bits), 1, &value);
        std::byte* to = half + size_t(kv.offset(0, h, p) + d) * size_of(kv.type);
        const float wide = float(value);
        if (kv.type == KvType::f16)
          std::memcpy(to, &bits, sizeof bits);
        else
          std::memcpy(to, &wide, sizeof wide);
      }
  return rows;
}

}  // namespace

CheckOutcome run_width(const CheckContext& c, const std::string& model_spec, int64_t tokens, Activations activations,
                       KvType kv) {
  constexpr uint64_t kSeed = 20261130;
  CheckOutcome out;
  std::mt19937_64 rng(kSeed);
  const auto model = std::make_shared<Model>(make_synthetic_model(parse_synth_spec(model_spec), c.threads));
  const oracle::Weights64 weights = oracle::Weights64::of(model);
  EngineOptions options;
  options.isa = c.isa;
  options.threads = c.threads;
  options.kv = kv;
  options.activations = activations;
  options.context = kStart + tokens;
  options.poison = true;
  Engine engine(model, options);
  DumpSpec spec;
  if (c.alter) c.alter(spec);
  if (!spec.plant.empty()) plant(engine, spec.plant);

  // The rows before kStart pass without computing anything; their K and V are then written on both sides.
  const std::vector<Node> nodes = std::exchange(engine.plantable_program().nodes, {});
  Batch batch;
  batch.segments = {{0, 0, kStart, 0, 0}};
  batch.ids.assign(size_t(kStart), 0);
  engine.forward(batch);
  engine.plantable_program().nodes = nodes;
  std::vector<Matrix64> k, v;
  for (int l = 0; l < int(model->config.layers); l++) {
    k.push_back(fill_cache(engine.kv(l), engine.kv(l).k, rng));
    v.push_back(fill_cache(engine.kv(l), engine.kv(l).v, rng));
  }

  batch.segments = {{0, kStart, tokens, 0, 0}};
  batch.ids.clear();
  for (int64_t r = 0; r < tokens; r++) batch.ids.push_back(int32_t(rng() % uint64_t(model->config.vocab)));
  for (int64_t r = std::max<int64_t>(0, tokens - kLogitRows); r < tokens; r++) batch.logit_rows.push_back(r);
  const std::vector<int64_t> rows = judged_rows(tokens, rng);
  WidthJudge judge(engine, weights, std::move(k), std::move(v), rows, c.threads, out);
  engine.forward(batch, &judge);
  judge.report(fmt::format("{} T = {} from position {}, seed {}, {} rows judged", model_spec, tokens, kStart, kSeed,
                           rows.size()));
  return out;
}

std::string head_dim_config(const CheckContext& c, int64_t head_dim) {
  const char* family = head_dim == 40 ? "llama" : head_dim == 96 ? "qwen2" : "qwen3";
  const std::string rope = head_dim == 40
                               ? R"(, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 2048})"
                               : "";
  const std::filesystem::path file = c.work / "config.json";
  std::ofstream(file) << fmt::format(
      R"({{"model_type": "{}", "num_hidden_layers": 2, "hidden_size": 1056, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": {}, "intermediate_size": 1568, "vocab_size": 3001, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6, "rope_theta": 500000.0, "hidden_act": "silu", "tie_word_embeddings": false{}}})",
      family, head_dim, rope);
  return file.string();
}

void add_oracle_width_checks(std::vector<Check>& out) {
  Check k;
  k.baseline = "each node in float64 by the oracle, on the engine's own inputs and cache";
  k.target = "the engine's value, within the bound of NUMERICS.md";
  k.cost = Cost::slow;
  k.expected = 100000;
  for (WeightType type : {WeightType::bf16, WeightType::q8_0, WeightType::q4_k})
    for (int64_t tokens : {300, 1000}) {
      const bool quantised = is_quantised(type);
      k.id = fmt::format("oracle/width/8b-{}/{}", id_of(type), tokens);
      k.family = "qwen3";
      k.run = [=](const CheckContext& c) {
        return run_width(c, fmt::format("synth:8B:{}:layers=2", name_of(type)), tokens,
                         quantised ? Activations::s16 : Activations::f32, quantised ? KvType::f16 : KvType::f32);
      };
      out.push_back(k);
    }
  for (int64_t head_dim : {40, 96, 128, 256}) {
    k.id = fmt::format("oracle/width/head_dim-{}", head_dim);
    k.family = head_dim == 40 ? "llama" : head_dim == 96 ? "qwen2" : "qwen3";
    k.run = [=](const CheckContext& c) {
      const std::string config = head_dim_config(c, head_dim);
      CheckOutcome all = run_width(c, fmt::format("synth:{}:F32", config), 300, Activations::f32, KvType::f32);
      const CheckOutcome more = run_width(c, fmt::format("synth:{}:Q8_0", config), 300, Activations::s16, KvType::f16);
      all.compared += more.compared;
      for (const std::string& f : more.failures) all.fail(f);
      all.failed += more.failed - int64_t(more.failures.size());
      all.notes.insert(all.notes.end(), more.notes.begin(), more.notes.end());
      return all;
    };
    out.push_back(k);
  }
}

}  // namespace assay

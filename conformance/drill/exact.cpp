// One node in float64, from its own operands.
#include <cmath>
#include <cstring>

#include "conformance/drill/engine_replayer.h"
#include "dumps/dtype.h"
#include "dumps/metrics.h"
#include "oracle/ops.h"

namespace assay {
namespace {

oracle::Matrix64 matrix_of(const std::vector<float>& x, int64_t rows) {
  oracle::Matrix64 m(rows, int64_t(x.size()) / rows);
  m.v.assign(x.begin(), x.end());
  return m;
}

oracle::WeightRows weight_of(const NodeCase& c) {
  const Matrix w = c.weight;
  return {w.rows, w.columns, [w](int64_t first, int64_t n, double* out) {
            for (int64_t r = 0; r < n; r++) oracle::widen(w.type, w.row(first + r), w.columns, out + r * w.columns);
          }};
}

/// Rows [positions, kv_heads*head_dim] of a cache as stored.
oracle::Matrix64 cache_of(const NodeCase& c, const std::vector<std::byte>& stored) {
  const DType type = cache_dtype(c.options.kv);
  const int64_t heads = c.config.kv_heads, d = c.config.head_dim, positions = c.positions();
  oracle::Matrix64 m(positions, heads * d);
  for (int64_t h = 0; h < heads; h++)
    for (int64_t p = 0; p < positions; p++)
      for (int64_t i = 0; i < d; i++) m.at(p, h * d + i) = value_at(type, stored.data(), (h * positions + p) * d + i);
  return m;
}

}  // namespace

std::vector<double> exact_value(const NodeCase& c) {
  const Node& n = c.node;
  std::vector<oracle::Matrix64> x;
  for (const auto& in : c.inputs) x.push_back(matrix_of(in, c.rows));
  const std::vector<double> vector(c.vector.begin(), c.vector.end());
  std::vector<int64_t> positions;
  for (int64_t r = 0; r < c.rows; r++) positions.push_back(c.first_position + r);
  // eps as the engine's rule has it: rounded to f32 first.
  const double eps = double(float(n.eps));
  switch (n.op) {
    case OpKind::embed:
      return oracle::embed(weight_of(c), c.ids).v;
    case OpKind::rms_norm:
      return oracle::rms_norm(x[0], vector, eps).v;
    case OpKind::head_norm:
      if (n.input_stride) x[0] = oracle::part_of_groups(x[0], n.heads, 0, n.head_dim);
      return oracle::head_norm(x[0], n.heads, n.head_dim, vector, eps).v;
    case OpKind::linear:
      return oracle::linear(x[0], weight_of(c), vector, c.options.threads).v;
    case OpKind::rope:
      return oracle::rope(x[0], n.heads, n.head_dim, positions, c.config.rope).v;
    case OpKind::attention:
      return oracle::attention(x[0], cache_of(c, c.k), cache_of(c, c.v), positions, n.heads, c.config.kv_heads,
                               n.head_dim, c.options.threads)
          .v;
    case OpKind::silu_mul:
      return oracle::silu_mul(x[0], x[1]).v;
    case OpKind::add:
      return oracle::add(x[0], x[1]).v;
    case OpKind::sigmoid_mul:
      return oracle::sigmoid_mul(x[0], x[1]).v;
    case OpKind::sigmoid:
      return oracle::sigmoid(x[0]).v;
    case OpKind::l2_norm:
      return oracle::l2_norm(oracle::columns(x[0], n.input_offset, c.columns), n.heads, n.scaled ? 1 / std::sqrt(double(n.head_dim)) : 1).v;
    case OpKind::gated_norm:
      return oracle::gated_norm(x[0], x[1], n.heads, vector, eps).v;
    case OpKind::decay: {
      const std::span<const double> both(vector);
      return oracle::decay(x[0], both.first(size_t(c.columns)), both.last(size_t(c.columns))).v;
    }
    case OpKind::conv: {
      const int64_t width = c.config.conv_width;
      oracle::Matrix64 taps = matrix_of(c.conv_state, width), w(c.columns, width);
      for (int64_t channel = 0; channel < c.columns; channel++)
        for (int64_t t = 0; t < width; t++) w.at(channel, t) = vector[size_t(t * c.columns + channel)];
      return oracle::conv(x[0], w, taps).v;
    }
    case OpKind::delta_rule: {
      oracle::Matrix64 state = matrix_of(c.recurrent_state, n.heads * n.k_dim);
      return oracle::delta_rule(x[0], x[1], x[2], x[3], x[4], n.k_heads, state).v;
    }
    case OpKind::columns: {
      oracle::Matrix64 y(c.rows, c.columns);
      for (int64_t r = 0; r < c.rows; r++)
        for (const ColumnRun& run : n.runs)
          for (int64_t i = 0; i < run.count * run.width; i++)
            y.at(r, run.to + i) = x[size_t(run.input)].at(r, run.from + i / run.width * run.stride + i % run.width);
      return y.v;
    }
    case OpKind::hidden:
      break;
    case OpKind::topk:
      return oracle::topk(x[0], n.chosen).v;
    case OpKind::topk_weights:
      return oracle::topk_weights(x[0], x[1], n.normalised).v;
    case OpKind::expert_linear:
      return oracle::expert_linear(x[0], x[1], weight_of(c), n.experts, c.options.threads).v;
    case OpKind::expert_sum:
      return oracle::expert_sum(x[0], x[1]).v;
    case OpKind::gated_add:
      return oracle::gated_add(x[0], x[1], x[2]).v;
    case OpKind::kv_store:
      break;
  }
  return {};
}

}  // namespace assay

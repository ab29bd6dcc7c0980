// The oracle's mixture of experts.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "dumps/error.h"
#include "oracle/ops.h"

namespace assay::oracle {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void fit(const char* what, int64_t wanted, int64_t found) {
  if (wanted != found)
    throw Error(ErrorKind::internal, "oracle: experts", what, std::to_string(wanted), std::to_string(found));
}

using Product = Matrix64 (*)(const Matrix64&, const WeightRows&, int threads);

Matrix64 by_expert(const Matrix64& x, const Matrix64& ids, const WeightRows& w, int64_t experts, int threads,
                   Product product) {
  const int64_t chosen = ids.columns, outputs = w.rows / experts, parts = x.columns / w.columns;
  fit("weight rows beyond whole experts", 0, w.rows % experts);
  fit("rows of x", ids.rows, x.rows);
  fit("columns of x", (parts == 1 ? 1 : chosen) * w.columns, x.columns);
  Matrix64 y(x.rows, chosen * outputs);
  std::fill(y.v.begin(), y.v.end(), kNan);
  for (int64_t e = 0; e < experts; e++) {
    std::vector<std::pair<int64_t, int64_t>> mine;  // row, rank
    for (int64_t t = 0; t < ids.rows; t++)
      for (int64_t r = 0; r < chosen; r++)
        if (ids.at(t, r) == double(e)) mine.emplace_back(t, r);
    if (mine.empty()) continue;
    Matrix64 inputs(int64_t(mine.size()), w.columns);
    for (size_t i = 0; i < mine.size(); i++) {
      const auto [t, r] = mine[i];
      std::copy_n(x.row(t) + (parts == 1 ? 0 : r * w.columns), w.columns, inputs.row(int64_t(i)));
    }
    const WeightRows own{outputs, w.columns,
                         [&w, at = e * outputs](int64_t first, int64_t n, double* out) { w.read(at + first, n, out); }};
    const Matrix64 products = product(inputs, own, threads);
    for (size_t i = 0; i < mine.size(); i++)
      std::copy_n(products.row(int64_t(i)), outputs, y.row(mine[i].first) + mine[i].second * outputs);
  }
  return y;
}

}  // namespace

Matrix64 topk(const Matrix64& logits, int64_t chosen) {
  Matrix64 ids(logits.rows, chosen);
  for (int64_t t = 0; t < logits.rows; t++) {
    const double* x = logits.row(t);
    if (std::any_of(x, x + logits.columns, [](double v) { return std::isnan(v); })) {
      std::fill_n(ids.row(t), chosen, -1.0);
      continue;
    }
    std::vector<int64_t> order(static_cast<size_t>(logits.columns));
    std::iota(order.begin(), order.end(), int64_t(0));
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
    for (int64_t r = 0; r < chosen; r++) ids.at(t, r) = double(order[size_t(r)]);
  }
  return ids;
}

Matrix64 topk_weights(const Matrix64& logits, const Matrix64& ids, bool normalised) {
  fit("rows of ids", logits.rows, ids.rows);
  Matrix64 y(ids.rows, ids.columns);
  for (int64_t t = 0; t < ids.rows; t++) {
    const double* x = logits.row(t);
    const double largest = *std::max_element(x, x + logits.columns);
    double all = 0, taken = 0;
    for (int64_t e = 0; e < logits.columns; e++) all += std::exp(x[e] - largest);
    for (int64_t r = 0; r < ids.columns; r++) {
      const double id = ids.at(t, r);
      y.at(t, r) = id < 0 ? kNan : std::exp(x[int64_t(id)] - largest) / all;
      taken += y.at(t, r);
    }
    if (normalised)
      for (int64_t r = 0; r < ids.columns; r++) y.at(t, r) /= taken;
  }
  return y;
}

Matrix64 expert_linear(const Matrix64& x, const Matrix64& ids, const WeightRows& w, int64_t experts, int threads) {
  return by_expert(x, ids, w, experts, threads,
                   [](const Matrix64& in, const WeightRows& own, int n) { return linear(in, own, {}, n); });
}

Matrix64 expert_magnitude(const Matrix64& x, const Matrix64& ids, const WeightRows& w, int64_t experts, int threads) {
  return by_expert(x, ids, w, experts, threads, linear_magnitude);
}

Matrix64 expert_sum(const Matrix64& x, const Matrix64& weights) {
  fit("rows of weights", x.rows, weights.rows);
  const int64_t outputs = x.columns / weights.columns;
  Matrix64 y(x.rows, outputs);
  for (int64_t t = 0; t < x.rows; t++)
    for (int64_t r = 0; r < weights.columns; r++)
      for (int64_t c = 0; c < outputs; c++) y.at(t, c) += weights.at(t, r) * x.at(t, r * outputs + c);
  return y;
}

Matrix64 gated_add(const Matrix64& gate, const Matrix64& shared, const Matrix64& x) {
  fit("rows of the gate", x.rows, gate.rows);
  fit("columns of the shared expert", x.columns, shared.columns);
  Matrix64 y = x;
  for (int64_t t = 0; t < x.rows; t++) {
    const double open = 1 / (1 + std::exp(-gate.at(t, 0)));
    for (int64_t c = 0; c < x.columns; c++) y.at(t, c) += open * shared.at(t, c);
  }
  return y;
}

}  // namespace assay::oracle

// Gated DeltaNet in float64, from its paper: Gated Delta Networks, arXiv:2412.06464, equation 10, and transformers
// modeling_qwen3_next.py, torch_recurrent_gated_delta_rule and Qwen3NextRMSNormGated.
#include <cmath>

#include "oracle/ops.h"

namespace assay::oracle {
namespace {

double sigmoid(double x) {
  return 1.0 / (1.0 + std::exp(-x));
}

}  // namespace

Matrix64 sigmoid(const Matrix64& x) {
  Matrix64 y(x.rows, x.columns);
  for (size_t i = 0; i < x.v.size(); i++) y.v[i] = sigmoid(x.v[i]);
  return y;
}

Matrix64 sigmoid_mul(const Matrix64& a, const Matrix64& gate) {
  Matrix64 y(a.rows, a.columns);
  for (size_t i = 0; i < a.v.size(); i++) y.v[i] = a.v[i] * sigmoid(gate.v[i]);
  return y;
}

Matrix64 columns(const Matrix64& x, int64_t first, int64_t count) {
  Matrix64 y(x.rows, count);
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t c = 0; c < count; c++) y.at(r, c) = x.at(r, first + c);
  return y;
}

Matrix64 part_of_groups(const Matrix64& x, int64_t groups, int64_t first, int64_t count) {
  const int64_t width = x.columns / groups;
  Matrix64 y(x.rows, groups * count);
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t g = 0; g < groups; g++)
      for (int64_t c = 0; c < count; c++) y.at(r, g * count + c) = x.at(r, g * width + first + c);
  return y;
}

Matrix64 l2_norm(const Matrix64& x, int64_t heads, double factor, double eps) {
  const int64_t dim = x.columns / heads;
  Matrix64 y(x.rows, x.columns);
  for (int64_t r = 0; r < x.rows; r++)
    for (int64_t h = 0; h < heads; h++) {
      double squares = 0;
      for (int64_t d = 0; d < dim; d++) squares += x.at(r, h * dim + d) * x.at(r, h * dim + d);
      for (int64_t d = 0; d < dim; d++) y.at(r, h * dim + d) = x.at(r, h * dim + d) / std::sqrt(squares + eps) * factor;
    }
  return y;
}

Matrix64 gated_norm(const Matrix64& x, const Matrix64& z, int64_t heads, std::span<const double> w, double eps) {
  Matrix64 y = head_norm(x, heads, x.columns / heads, w, eps);
  for (size_t i = 0; i < y.v.size(); i++) y.v[i] *= z.v[i] * sigmoid(z.v[i]);
  return y;
}

Matrix64 decay(const Matrix64& a, std::span<const double> rate, std::span<const double> dt) {
  Matrix64 y(a.rows, a.columns);
  for (int64_t r = 0; r < a.rows; r++)
    for (int64_t h = 0; h < a.columns; h++) {
      const double t = a.at(r, h) + dt[size_t(h)];
      y.at(r, h) = rate[size_t(h)] * (t > 40 ? t : std::log1p(std::exp(t)));
    }
  return y;
}

Matrix64 conv(const Matrix64& x, const Matrix64& w, Matrix64& taps) {
  const int64_t width = w.columns;
  Matrix64 y(x.rows, x.columns);
  for (int64_t r = 0; r < x.rows; r++) {
    for (int64_t c = 0; c < x.columns; c++) {
      for (int64_t t = 0; t + 1 < width; t++) taps.at(t, c) = taps.at(t + 1, c);
      taps.at(width - 1, c) = x.at(r, c);
      double sum = 0;
      for (int64_t t = 0; t < width; t++) sum += w.at(c, t) * taps.at(t, c);
      y.at(r, c) = sum * sigmoid(sum);
    }
  }
  return y;
}

Matrix64 delta_rule(const Matrix64& q, const Matrix64& k, const Matrix64& v, const Matrix64& beta, const Matrix64& decay,
                    int64_t k_heads, Matrix64& state) {
  const int64_t v_heads = beta.columns, d_k = q.columns / k_heads, d_v = v.columns / v_heads;
  Matrix64 y(v.rows, v.columns);
  for (int64_t r = 0; r < v.rows; r++)
    for (int64_t h = 0; h < v_heads; h++) {
      const double* key = k.row(r) + h / (v_heads / k_heads) * d_k;
      const double* query = q.row(r) + h / (v_heads / k_heads) * d_k;
      const double kept = std::exp(decay.at(r, h));
      for (int64_t j = 0; j < d_v; j++) {
        double known = 0, seen = 0;
        for (int64_t i = 0; i < d_k; i++) {
          state.at(h * d_k + i, j) *= kept;
          known += key[i] * state.at(h * d_k + i, j);
        }
        const double change = beta.at(r, h) * (v.at(r, h * d_v + j) - known);
        for (int64_t i = 0; i < d_k; i++) {
          state.at(h * d_k + i, j) += key[i] * change;
          seen += query[i] * state.at(h * d_k + i, j);
        }
        y.at(r, h * d_v + j) = seen;
      }
    }
  return y;
}

}  // namespace assay::oracle

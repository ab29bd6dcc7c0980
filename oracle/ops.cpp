#include "oracle/ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "dumps/error.h"
#include "dumps/jobs.h"

namespace assay::oracle {
namespace {

void want(const char* op, const char* what, int64_t wanted, int64_t found) {
  if (wanted != found)
    throw Error(ErrorKind::internal, fmt::format("oracle: {}", op), what, std::to_string(wanted),
                std::to_string(found));
}

void same_shape(const char* op, const Matrix64& a, const Matrix64& b) {
  want(op, "rows differ", a.rows, b.rows);
  want(op, "columns differ", a.columns, b.columns);
}

double dot(const double* a, const double* b, int64_t n) {
  double sum[8] = {};
  int64_t i = 0;
  for (; i + 8 <= n; i += 8)
    for (int64_t j = 0; j < 8; j++) sum[j] += a[i + j] * b[i + j];
  for (; i < n; i++) sum[0] += a[i] * b[i];
  return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

void norm(const double* x, int64_t n, std::span<const double> w, double eps, double* y) {
  const double r = 1.0 / std::sqrt(dot(x, x, n) / double(n) + eps);
  for (int64_t i = 0; i < n; i++) y[i] = x[i] * r * w[size_t(i)];
}

void check_attention(const Matrix64& q, const Matrix64& k, const Matrix64& v, std::span<const int64_t> positions,
                     int64_t heads, int64_t kv_heads, int64_t head_dim) {
  same_shape("attention", k, v);
  want("attention", "columns of q", heads * head_dim, q.columns);
  want("attention", "columns of k", kv_heads * head_dim, k.columns);
  want("attention", "positions", q.rows, int64_t(positions.size()));
  want("attention", "query heads beyond whole groups", 0, heads % kv_heads);
  for (int64_t p : positions)
    if (p < 0 || p >= k.rows)
      throw Error(ErrorKind::internal, "oracle: attention", "a position is not cached",
                  fmt::format("0 to {}", k.rows - 1), std::to_string(p));
}

}  // namespace

Matrix64 embed(const WeightRows& table, std::span<const int32_t> ids) {
  Matrix64 out(int64_t(ids.size()), table.columns);
  for (int64_t r = 0; r < out.rows; r++) {
    const int32_t id = ids[size_t(r)];
    if (id < 0 || id >= table.rows)
      throw Error(ErrorKind::usage, "token ids", "outside the vocabulary", fmt::format("0 to {}", table.rows - 1),
                  std::to_string(id));
    table.read(id, 1, out.row(r));
  }
  return out;
}

Matrix64 rms_norm(const Matrix64& x, std::span<const double> w, double eps) {
  return head_norm(x, 1, x.columns, w, eps);
}

Matrix64 head_norm(const Matrix64& x, int64_t heads, int64_t head_dim, std::span<const double> w, double eps) {
  want("norm", "columns", heads * head_dim, x.columns);
  want("norm", "weights", head_dim, int64_t(w.size()));
  Matrix64 y(x.rows, x.columns);
  for (int64_t g = 0; g < x.rows * heads; g++)
    norm(&x.v[size_t(g * head_dim)], head_dim, w, eps, &y.v[size_t(g * head_dim)]);
  return y;
}

std::vector<double> rope_frequencies(const RopeConfig& rope) {
  std::vector<double> out;
  for (int64_t j = 0; j < rope.rotary / 2; j++) {
    const double plain = std::pow(rope.theta, -2.0 * double(j) / double(rope.rotary));
    if (!rope.llama3) {
      out.push_back(plain);
      continue;
    }
    // Waves longer than original_context / low are slowed down by `factor`, those shorter than original_context / high
    // are left alone, and between the two the share `smooth` of the plain frequency is kept.
    const double wavelength = 2 * std::numbers::pi / plain;
    const double low = rope.original_context / rope.low_freq_factor,
                 high = rope.original_context / rope.high_freq_factor;
    if (wavelength > low) {
      out.push_back(plain / rope.factor);
    } else if (wavelength < high) {
      out.push_back(plain);
    } else {
      const double smooth =
          (rope.original_context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
      out.push_back((1 - smooth) * plain / rope.factor + smooth * plain);
    }
  }
  return out;
}

Matrix64 rope(const Matrix64& x, int64_t heads, int64_t head_dim, std::span<const int64_t> positions,
              const RopeConfig& config) {
  want("rope", "columns", heads * head_dim, x.columns);
  want("rope", "positions", x.rows, int64_t(positions.size()));
  const std::vector<double> frequency = rope_frequencies(config);
  const int64_t half = config.rotary / 2;
  Matrix64 y = x;
  for (int64_t t = 0; t < x.rows; t++)
    for (int64_t j = 0; j < half; j++) {
      const double angle = double(positions[size_t(t)]) * frequency[size_t(j)];
      const double c = std::cos(angle), s = std::sin(angle);
      for (int64_t h = 0; h < heads; h++) {
        const int64_t first = h * head_dim + j;
        y.at(t, first) = x.at(t, first) * c - x.at(t, first + half) * s;
        y.at(t, first + half) = x.at(t, first + half) * c + x.at(t, first) * s;
      }
    }
  return y;
}

Matrix64 attention(const Matrix64& q, const Matrix64& k, const Matrix64& v, std::span<const int64_t> positions,
                   int64_t heads, int64_t kv_heads, int64_t head_dim, int threads) {
  check_attention(q, k, v, positions, heads, kv_heads, head_dim);
  Matrix64 out(q.rows, heads * head_dim);
  const int64_t group = heads / kv_heads;
  if (double(q.v.size()) * double(k.rows) < 5e5) threads = 1;  // a thread costs more than it brings
  run_jobs(threads, size_t(q.rows * kv_heads), [&](size_t i) {
    const int64_t item = int64_t(i);
    const int64_t t = item / kv_heads, g = item % kv_heads, visible = positions[size_t(t)] + 1;
    std::vector<double> p(static_cast<size_t>(visible));
    for (int64_t h = g * group; h < (g + 1) * group; h++) {
      const double* query = q.row(t) + h * head_dim;
      double* mixed = out.row(t) + h * head_dim;
      double largest = -INFINITY, total = 0;
      for (int64_t j = 0; j < visible; j++) {
        p[size_t(j)] = dot(query, k.row(j) + g * head_dim, head_dim) / std::sqrt(double(head_dim));
        largest = std::max(largest, p[size_t(j)]);
      }
      for (double& s : p) total += s = std::exp(s - largest);
      for (int64_t j = 0; j < visible; j++) {
        const double* value = v.row(j) + g * head_dim;
        for (int64_t d = 0; d < head_dim; d++) mixed[d] += p[size_t(j)] * value[d];
      }
      for (int64_t d = 0; d < head_dim; d++) mixed[d] /= total;
    }
  });
  return out;
}

AttentionMagnitude attention_magnitude(const Matrix64& q, const Matrix64& k, const Matrix64& v,
                                       std::span<const int64_t> positions, int64_t heads, int64_t kv_heads,
                                       int64_t head_dim, int threads) {
  check_attention(q, k, v, positions, heads, kv_heads, head_dim);
  AttentionMagnitude out{Matrix64(q.rows, heads), Matrix64(q.rows, heads), Matrix64(q.rows, heads),
                         Matrix64(q.rows, heads * head_dim)};
  const int64_t group = heads / kv_heads;
  const double scale = 1 / std::sqrt(double(head_dim));
  run_jobs(threads, size_t(q.rows * heads), [&](size_t i) {
    const int64_t item = int64_t(i);
    const int64_t t = item / heads, h = item % heads, g = h / group, visible = positions[size_t(t)] + 1;
    std::vector<double> score(static_cast<size_t>(visible));
    const double* query = q.row(t) + h * head_dim;
    double largest = -INFINITY, total = 0;
    for (int64_t j = 0; j < visible; j++) {
      const double* key = k.row(j) + g * head_dim;
      double absolute = 0;
      for (int64_t d = 0; d < head_dim; d++) absolute += std::fabs(query[d] * key[d]);
      out.qk.at(t, h) = std::max(out.qk.at(t, h), absolute);
      score[size_t(j)] = dot(query, key, head_dim) * scale;
      out.score.at(t, h) = std::max(out.score.at(t, h), std::fabs(score[size_t(j)]));
      largest = std::max(largest, score[size_t(j)]);
    }
    double* mixed = out.mixed.row(t) + h * head_dim;
    for (int64_t j = 0; j < visible; j++) {
      out.spread.at(t, h) = std::max(out.spread.at(t, h), largest - score[size_t(j)]);
      const double p = std::exp(score[size_t(j)] - largest);
      total += p;
      for (int64_t d = 0; d < head_dim; d++) mixed[d] += p * std::fabs(v.at(j, g * head_dim + d));
    }
    for (int64_t d = 0; d < head_dim; d++) mixed[d] /= total;
  });
  return out;
}

Matrix64 silu_mul(const Matrix64& gate, const Matrix64& up) {
  same_shape("silu_mul", gate, up);
  Matrix64 y = gate;
  for (size_t i = 0; i < y.v.size(); i++) y.v[i] = gate.v[i] / (1 + std::exp(-gate.v[i])) * up.v[i];
  return y;
}

Matrix64 add(const Matrix64& a, const Matrix64& b) {
  same_shape("add", a, b);
  Matrix64 y = a;
  for (size_t i = 0; i < y.v.size(); i++) y.v[i] += b.v[i];
  return y;
}

int64_t argmax(std::span<const double> row) {
  int64_t best = -1;
  for (size_t i = 0; i < row.size(); i++) {
    if (std::isnan(row[i])) return -1;
    if (best < 0 || row[i] > row[size_t(best)]) best = int64_t(i);
  }
  return best;
}

}  // namespace assay::oracle

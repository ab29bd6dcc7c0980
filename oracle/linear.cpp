// The matrix product. A block of 64 weight rows is widened, laid out so that 8 outputs lie side by side, and met by 6
// tokens at a time: a vector's lane is an output, so that every sum runs over k in order whatever the width of the
// vectors, and the two forms below (they differ in instructions alone, without fma) give the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dumps/error.h"
#include "dumps/jobs.h"
#include "oracle/ops.h"

namespace assay::oracle {
namespace {

constexpr int64_t kOutputs = 8, kTokens = 6, kDepth = 256, kBlock = 64;
typedef double Lanes __attribute__((vector_size(4 * sizeof(double)), aligned(8), may_alias));

/// y[t][0..8) += sum over `depth` of x[t][k] * w[k][0..8), t < 6.
using Tile = void (*)(const double* const x[kTokens], const double* w, int64_t depth, double* const y[kTokens]);

inline __attribute__((always_inline)) void add_to(double* y, const Lanes& low, const Lanes& high) {
  for (int n = 0; n < 4; n++) y[n] += low[n];
  for (int n = 0; n < 4; n++) y[4 + n] += high[n];
}

/// Twelve sums by name: compilers keep them in registers, which they do not do for an array.
inline __attribute__((always_inline)) void tile(const double* const x[kTokens], const double* w, int64_t depth,
                                                double* const y[kTokens]) {
  const double *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3], *x4 = x[4], *x5 = x[5];
  Lanes a0{}, a1{}, a2{}, a3{}, a4{}, a5{}, b0{}, b1{}, b2{}, b3{}, b4{}, b5{};
  for (int64_t k = 0; k < depth; k++) {
    const Lanes a = *reinterpret_cast<const Lanes*>(w + k * kOutputs);
    const Lanes b = *reinterpret_cast<const Lanes*>(w + k * kOutputs + 4);
    a0 += a * x0[k], b0 += b * x0[k];
    a1 += a * x1[k], b1 += b * x1[k];
    a2 += a * x2[k], b2 += b * x2[k];
    a3 += a * x3[k], b3 += b * x3[k];
    a4 += a * x4[k], b4 += b * x4[k];
    a5 += a * x5[k], b5 += b * x5[k];
  }
  add_to(y[0], a0, b0);
  add_to(y[1], a1, b1);
  add_to(y[2], a2, b2);
  add_to(y[3], a3, b3);
  add_to(y[4], a4, b4);
  add_to(y[5], a5, b5);
}

void tile_plain(const double* const x[kTokens], const double* w, int64_t depth, double* const y[kTokens]) {
  tile(x, w, depth, y);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) void tile_avx2(const double* const x[kTokens], const double* w, int64_t depth,
                                               double* const y[kTokens]) {
  tile(x, w, depth, y);
}
#endif

Tile best_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return tile_avx2;
#endif
  return tile_plain;
}

Matrix64 product(const Matrix64& x, const WeightRows& w, int threads) {
  if (x.columns != w.columns)
    throw Error(ErrorKind::internal, "oracle: linear", "the input does not fit the weight",
                fmt::format("{} columns", w.columns), std::to_string(x.columns));
  const int64_t tokens = x.rows, depth = w.columns, outputs = w.rows;
  Matrix64 y(tokens, outputs);
  if (tokens == 0 || outputs == 0) return y;
  const Tile run = best_tile();
  if (double(tokens) * double(depth) * double(outputs) < 1e6) threads = 1;  // a thread costs more than it brings
  run_jobs(threads, size_t((outputs + kBlock - 1) / kBlock), [&](size_t i) {
    const int64_t first = int64_t(i) * kBlock, count = std::min(kBlock, outputs - first);
    std::vector<double> rows(size_t(count * depth)), packed(size_t(kBlock * std::min(depth, kDepth)));
    w.read(first, count, rows.data());
    double spare[kTokens][kOutputs];  // sums of tokens and outputs beyond the last
    for (int64_t k0 = 0; k0 < depth; k0 += kDepth) {
      const int64_t part = std::min(kDepth, depth - k0), panels = (count + kOutputs - 1) / kOutputs;
      for (int64_t p = 0; p < panels; p++)
        for (int64_t n = 0; n < kOutputs; n++) {
          const int64_t r = p * kOutputs + n;
          double* to = &packed[size_t(p * part * kOutputs + n)];
          for (int64_t k = 0; k < part; k++) to[k * kOutputs] = r < count ? rows[size_t(r * depth + k0 + k)] : 0.0;
        }
      for (int64_t t0 = 0; t0 < tokens; t0 += kTokens)
        for (int64_t p = 0; p < panels; p++) {
          const double* xs[kTokens];
          double* ys[kTokens];
          const int64_t whole = std::min(kOutputs, count - p * kOutputs);
          for (int64_t t = 0; t < kTokens; t++) {
            const bool real = t0 + t < tokens;
            xs[t] = x.row(real ? t0 + t : t0) + k0;
            ys[t] = real && whole == kOutputs ? y.row(t0 + t) + first + p * kOutputs : spare[t];
          }
          if (whole < kOutputs)
            for (int64_t t = 0; t < kTokens && t0 + t < tokens; t++)
              std::copy_n(y.row(t0 + t) + first + p * kOutputs, whole, spare[t]);
          run(xs, &packed[size_t(p * part * kOutputs)], part, ys);
          if (whole < kOutputs)
            for (int64_t t = 0; t < kTokens && t0 + t < tokens; t++)
              std::copy_n(spare[t], whole, y.row(t0 + t) + first + p * kOutputs);
        }
    }
  });
  return y;
}

}  // namespace

WeightRows rows_of(const Matrix64& m) {
  return {m.rows, m.columns,
          [&m](int64_t first, int64_t n, double* out) { std::copy_n(m.row(first), n * m.columns, out); }};
}

Matrix64 linear(const Matrix64& x, const WeightRows& w, std::span<const double> bias, int threads) {
  Matrix64 y = product(x, w, threads);
  if (!bias.empty() && int64_t(bias.size()) != w.rows)
    throw Error(ErrorKind::internal, "oracle: linear", "the bias does not fit the weight", std::to_string(w.rows),
                std::to_string(bias.size()));
  if (!bias.empty())
    for (int64_t t = 0; t < y.rows; t++)
      for (int64_t n = 0; n < y.columns; n++) y.at(t, n) += bias[size_t(n)];
  return y;
}

Matrix64 linear(const Matrix64& x, const Matrix64& w, std::span<const double> bias, int threads) {
  return linear(x, rows_of(w), bias, threads);
}

Matrix64 linear_magnitude(const Matrix64& x, const WeightRows& w, int threads) {
  Matrix64 absolute = x;
  for (double& d : absolute.v) d = std::fabs(d);
  return product(absolute,
                 {w.rows, w.columns,
                  [&](int64_t first, int64_t n, double* out) {
                    w.read(first, n, out);
                    for (int64_t i = 0; i < n * w.columns; i++) out[i] = std::fabs(out[i]);
                  }},
                 threads);
}

}  // namespace assay::oracle

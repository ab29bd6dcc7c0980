// The matrix product. A block of 64 weight rows is widened, laid out so that 8 outputs lie side by side, and met by 6
// tokens at a time: a vector's lane is an output, so that every sum runs over k in order whatever the width of the
// vectors, and the three forms below (they differ in instructions alone, without fma) give the same bits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dumps/error.h"
#include "oracle/ops.h"
#include "oracle/parallel.h"

namespace assay::oracle {
namespace {

constexpr int64_t kOutputs = 8, kTokens = 6, kDepth = 512, kBlock = 64;
typedef double Lanes __attribute__((vector_size(kOutputs * sizeof(double)), aligned(8)));

/// y[t][0..8) += sum over `depth` of x[t][k] * w[k][0..8), t < 6.
using Tile = void (*)(const double* const x[kTokens], const double* w, int64_t depth, double* const y[kTokens]);

inline __attribute__((always_inline)) void tile(const double* const x[kTokens], const double* w, int64_t depth,
                                                double* const y[kTokens]) {
  Lanes sum[kTokens] = {};
  for (int64_t k = 0; k < depth; k++) {
    Lanes wk;
    std::memcpy(&wk, w + k * kOutputs, sizeof wk);
    for (int64_t t = 0; t < kTokens; t++) sum[t] += wk * x[t][k];
  }
  for (int64_t t = 0; t < kTokens; t++)
    for (int64_t n = 0; n < kOutputs; n++) y[t][n] += sum[t][n];
}

void tile_plain(const double* const x[kTokens], const double* w, int64_t depth, double* const y[kTokens]) {
  tile(x, w, depth, y);
}
#if defined(__x86_64__)
__attribute__((target("avx2"))) void tile_avx2(const double* const x[kTokens], const double* w, int64_t depth,
                                               double* const y[kTokens]) {
  tile(x, w, depth, y);
}
__attribute__((target("avx512f"))) void tile_avx512(const double* const x[kTokens], const double* w, int64_t depth,
                                                    double* const y[kTokens]) {
  tile(x, w, depth, y);
}
#endif

Tile best_tile() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return tile_avx512;
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
  parallel((outputs + kBlock - 1) / kBlock, threads, [&](int64_t block) {
    const int64_t first = block * kBlock, count = std::min(kBlock, outputs - first);
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

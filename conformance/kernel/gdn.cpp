// Kernel scope: the ops of gated DeltaNet layers. What is continued from row to row is judged by bytes over whole spans and by its
// bound over one row: a row's error is the next one's input.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"

namespace assay {
namespace {

constexpr double kUlp = 0x1p-24;
constexpr double kMax = std::numeric_limits<float>::max();
constexpr double kUnjudged = std::numeric_limits<double>::infinity();

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

/// Values of a kind, moved so that exp and the sigmoid see both of their tails.
std::vector<float> spread(KernelBench& b, size_t n, Values kind, float by) {
  std::vector<float> x = kernel_values(b.rng(), n, kind);
  for (float& f : x) f *= by;
  return x;
}

}  // namespace

void sigmoid_cases(KernelBench& b) {
  for (int64_t columns : kEdgeWidths)
    for (Values kind : kAllValues) {
      if (!b.next(fmt::format("columns {}, {}", columns, name_of(kind)))) continue;
      const int64_t rows = 3;
      const std::vector<float> x = spread(b, size_t(rows * columns), kind, 40);
      std::vector<float> scalar = unwritten(x.size()), got = scalar;
      b.scalar.sigmoid({x.data(), scalar.data(), columns}, 0, rows);
      b.target.sigmoid({x.data(), got.data(), columns}, 0, 1);
      b.target.sigmoid({x.data(), got.data(), columns}, 1, rows);
      b.bytes("element", scalar, got);
      const oracle::Matrix64 want = oracle::sigmoid(widened(x, rows));
      b.bounds(
          got, rows, columns, [&](int64_t r, int64_t c) { return want.at(r, c); },
          [&](int64_t r, int64_t c) { return bounds::sigmoid_mul(1, double(x[size_t(r * columns + c)]), want.at(r, c)); });
    }
}

void l2_norm_cases(KernelBench& b) {
  for (int64_t width : kEdgeWidths)
    for (int64_t heads : {1, 3})
      for (Values kind : kAllValues) {
        if (!b.next(fmt::format("head_dim {} heads {}, {}", width, heads, name_of(kind)))) continue;
        const int64_t rows = 4, before = int64_t(b.rng()() % 5), behind = int64_t(b.rng()() % 5), all = before + heads * width + behind;
        const std::vector<float> x = kernel_values(b.rng(), size_t(rows * all), kind);
        const float scale = b.rng()() % 2 ? 1.0f : float(1 / std::sqrt(double(width)));
        std::vector<float> scalar = unwritten(size_t(rows * heads * width)), got = scalar;
        b.scalar.l2_norm({x.data() + before, scalar.data(), all, heads, width, scale}, 0, rows);
        const L2NormArgs a{x.data() + before, got.data(), all, heads, width, scale};
        b.target.l2_norm(a, 0, 3);
        b.target.l2_norm(a, 3, rows);
        b.bytes("element", scalar, got);
        b.sums(width);
        const oracle::Matrix64 x64 = oracle::columns(widened(x, rows), before, heads * width),
                               want = oracle::l2_norm(x64, heads, double(scale), double(1e-6f));
        b.bounds(
            got, rows, heads * width, [&](int64_t r, int64_t c) { return want.at(r, c); },
            [&](int64_t r, int64_t c) {
              double squares = 0;
              for (int64_t d = 0; d < width; d++) squares += x64.at(r, c / width * width + d) * x64.at(r, c / width * width + d);
              return bounds::l2_norm(width, want.at(r, c), squares);
            });
      }
}

void gated_norm_cases(KernelBench& b) {
  for (int64_t width : kEdgeWidths)
    for (Values kind : kAllValues) {
      if (!b.next(fmt::format("head_dim {}, {}", width, name_of(kind)))) continue;
      const int64_t rows = 3, heads = 2, columns = heads * width;
      const std::vector<float> x = kernel_values(b.rng(), size_t(rows * columns), kind), z = spread(b, x.size(), kind, 40),
                               w = kernel_values(b.rng(), size_t(width), Values::normal);
      std::vector<float> scalar = unwritten(x.size()), got = scalar;
      b.scalar.gated_norm({x.data(), z.data(), w.data(), scalar.data(), heads, width, 1e-6f}, 0, rows);
      const GatedNormArgs a{x.data(), z.data(), w.data(), got.data(), heads, width, 1e-6f};
      b.target.gated_norm(a, 0, 1);
      b.target.gated_norm(a, 1, rows);
      b.bytes("element", scalar, got);
      b.sums(width);
      const oracle::Matrix64 x64 = widened(x, rows), normed = oracle::head_norm(x64, heads, width, wide(w), double(1e-6f)),
                             want = oracle::gated_norm(x64, widened(z, rows), heads, wide(w), double(1e-6f));
      b.bounds(
          got, rows, columns, [&](int64_t r, int64_t c) { return want.at(r, c); },
          [&](int64_t r, int64_t c) {
            double squares = 0;
            for (int64_t d = 0; d < width; d++) squares += x64.at(r, c / width * width + d) * x64.at(r, c / width * width + d);
            const double norm = bounds::rms_norm(width, normed.at(r, c), w[size_t(c % width)], squares, 32);
            const double gate = z[size_t(r * columns + c)];
            return norm * std::fabs(gate * sigmoid(gate)) + bounds::silu_mul(gate, normed.at(r, c), want.at(r, c));
          });
    }
}

void decay_cases(KernelBench& b) {
  for (int64_t heads : {1, 2, 3, 6, 16, 31, 32, 33, 48, 64})
    for (Values kind : kAllValues) {
      if (!b.next(fmt::format("heads {}, {}", heads, name_of(kind)))) continue;
      const int64_t rows = 3;
      const std::vector<float> x = spread(b, size_t(rows * heads), kind, 25), w = kernel_values(b.rng(), size_t(2 * heads), Values::normal);
      std::vector<float> scalar = unwritten(x.size()), got = scalar;
      b.scalar.decay({x.data(), w.data(), scalar.data(), heads}, 0, rows);
      b.target.decay({x.data(), w.data(), got.data(), heads}, 0, 2);
      b.target.decay({x.data(), w.data(), got.data(), heads}, 2, rows);
      b.bytes("element", scalar, got);
      const std::vector<double> all = wide(w), rate(all.begin(), all.begin() + heads), dt(all.begin() + heads, all.end());
      const oracle::Matrix64 want = oracle::decay(widened(x, rows), rate, dt);
      b.bounds(
          got, rows, heads, [&](int64_t r, int64_t c) { return want.at(r, c); },
          [&](int64_t r, int64_t c) {
            if (!(std::fabs(want.at(r, c)) < kMax)) return kUnjudged;
            const double t = double(x[size_t(r * heads + c)]) + dt[size_t(c)], by = std::fabs(rate[size_t(c)]);
            // Beyond 20 the softplus is its argument: exp(-20) less.
            const double branch = t > 20 ? std::exp(-t) : 0;
            return kUlp * (by * std::fabs(t) * sigmoid(t) + 7 * std::fabs(want.at(r, c))) + by * branch + 0x1p-148 * (by + 1);
          });
    }
}

void conv_cases(KernelBench& b) {
  for (int64_t channels : kEdgeWidths)
    for (int64_t width : {2, 4})
      for (Values kind : kAllValues) {
        if (!b.next(fmt::format("channels {} width {}, {}", channels, width, name_of(kind)))) continue;
        const int64_t rows = 5, slots = 3;
        const std::vector<float> x = kernel_values(b.rng(), size_t(rows * channels), kind),
                                 w = kernel_values(b.rng(), size_t(width * channels), Values::normal),
                                 start = kernel_values(b.rng(), size_t(slots * width * channels), kind);
        const RowSpan spans[] = {{2, 0, 3}, {0, 3, 2}};
        std::vector<float> scalar = unwritten(x.size()), got = scalar, state = start, state_got = start;
        b.scalar.conv({x.data(), w.data(), scalar.data(), state.data(), spans, channels, width}, 0, 2 * conv_blocks(channels));
        const ConvArgs a{x.data(), w.data(), got.data(), state_got.data(), spans, channels, width};
        const int64_t items = 2 * conv_blocks(channels), cut = int64_t(b.rng()() % uint64_t(items + 1));
        b.target.conv(a, cut, items);
        b.target.conv(a, 0, cut);
        b.bytes("element", scalar, got);
        b.bytes("state", state, state_got);
        b.sums(width);
        oracle::Matrix64 taps(channels, width);  // [channel, tap]
        for (int64_t c = 0; c < channels; c++)
          for (int64_t t = 0; t < width; t++) taps.at(c, t) = double(w[size_t(t * channels + c)]);
        for (const RowSpan& s : spans) {
          oracle::Matrix64 held(width, channels), in(s.rows, channels);
          for (int64_t i = 0; i < width * channels; i++) held.v[size_t(i)] = double(start[size_t(s.slot * width * channels + i)]);
          for (int64_t i = 0; i < s.rows * channels; i++) in.v[size_t(i)] = double(x[size_t(s.first * channels + i)]);
          oracle::Matrix64 inputs = held;
          inputs.v.insert(inputs.v.end(), in.v.begin(), in.v.end());
          inputs.rows += s.rows;
          const oracle::Matrix64 want = oracle::conv(in, taps, held);
          b.bounds(
              std::span(got).subspan(size_t(s.first * channels), size_t(s.rows * channels)), s.rows, channels,
              [&](int64_t r, int64_t c) { return want.at(r, c); },
              [&](int64_t r, int64_t c) {
                double magnitude = 0;
                for (int64_t t = 0; t < width; t++) magnitude += std::fabs(taps.at(c, t) * inputs.at(r + 1 + t, c));
                if (!(magnitude < kMax) || !(std::fabs(want.at(r, c)) < kMax)) return kUnjudged;
                return kUlp * (1.1 * double(width) * magnitude + 6 * std::fabs(want.at(r, c))) + 0x1p-120;
              });
        }
      }
}

void delta_rule_cases(KernelBench& b) {
  struct Shape {
    int64_t k_heads, v_heads, d_k, d_v;
  };
  for (const Shape& n : {Shape{1, 1, 1, 1}, Shape{2, 6, 16, 24}, Shape{2, 4, 16, 16}, Shape{1, 3, 31, 33}, Shape{2, 2, 32, 64},
                         Shape{1, 2, 33, 40}, Shape{1, 2, 128, 128}, Shape{1, 1, 96, 31}, Shape{1, 1, 256, 257}})
    for (Values kind : kAllValues)
      for (const bool one_row : {true, false}) {
        if (!b.next(fmt::format("{} of {} heads, {} by {}, {}{}", n.k_heads, n.v_heads, n.d_k, n.d_v, name_of(kind), one_row ? "" : ", rows")))
          continue;
        const int64_t rows = one_row ? 1 : 7, slots = 2, size = n.v_heads * n.d_k * n.d_v;
        std::vector<float> q = kernel_values(b.rng(), size_t(rows * n.k_heads * n.d_k), Values::normal),
                           k = kernel_values(b.rng(), size_t(rows * n.k_heads * n.d_k), Values::normal),
                           v = kernel_values(b.rng(), size_t(rows * n.v_heads * n.d_v), kind),
                           beta = kernel_values(b.rng(), size_t(rows * n.v_heads), Values::normal), decay = beta;
        for (float& f : k) f /= std::sqrt(float(n.d_k));
        for (float& f : q) f /= float(n.d_k);
        for (float& f : beta) f = float(sigmoid(double(f)));
        for (float& f : decay) f = b.rng()() % 4 ? -std::fabs(f) : -30 * std::fabs(f);  // some forget at once
        const std::vector<float> start = kernel_values(b.rng(), size_t(slots * size), kind == Values::huge ? Values::huge : Values::mixed);
        std::vector<RowSpan> spans = {{1, 0, rows}};
        if (!one_row) spans = {{1, 0, 4}, {0, 4, 3}};
        std::vector<float> scalar = unwritten(v.size()), got = scalar, state = start, state_got = start;
        DeltaRuleArgs a{q.data(), k.data(), v.data(), beta.data(), decay.data(), scalar.data(), state.data(), spans.data(), n.k_heads, n.v_heads, n.d_k, n.d_v};
        const int64_t items = int64_t(spans.size()) * n.v_heads * delta_blocks(n.d_v), cut = int64_t(b.rng()() % uint64_t(items + 1));
        b.scalar.delta_rule(a, 0, items);
        a.y = got.data();
        a.state = state_got.data();
        b.target.delta_rule(a, cut, items);
        b.target.delta_rule(a, 0, cut);
        b.bytes("element", scalar, got);
        b.bytes("state", state, state_got);
        if (!one_row) continue;
        b.sums(n.d_k);
        oracle::Matrix64 held(n.v_heads * n.d_k, n.d_v);
        for (int64_t i = 0; i < size; i++) held.v[size_t(i)] = double(start[size_t(size + i)]);
        const oracle::Matrix64 before = held;
        const oracle::Matrix64 want = oracle::delta_rule(widened(q, 1), widened(k, 1), widened(v, 1), widened(beta, 1), widened(decay, 1), n.k_heads, held);
        const int64_t group = n.v_heads / n.k_heads;
        b.bounds(
            got, 1, n.v_heads * n.d_v, [&](int64_t r, int64_t c) { return want.at(r, c); },
            [&](int64_t, int64_t c) {
              const int64_t h = c / n.d_v, j = c % n.d_v;
              const float *key = &k[size_t(h / group * n.d_k)], *query = &q[size_t(h / group * n.d_k)];
              const double kept = std::exp(double(decay[size_t(h)])), lanes = double((n.d_k + 31) / 32), by = double(beta[size_t(h)]);
              double dot = 0, magnitude = 0;
              for (int64_t i = 0; i < n.d_k; i++) {
                const double term = double(key[i]) * before.at(h * n.d_k + i, j) * kept;
                dot += term;
                magnitude += std::fabs(term);
              }
              const double off = double(v[size_t(c)]) - dot, delta = by * off;
              // A result of exp below 2^-126 is rounded to a multiple of 2^-149.
              const double coarse = 0x1p-149;
              const double of_dot = kUlp * (lanes + 13) * magnitude;
              const double of_delta = by * of_dot + 3 * kUlp * std::fabs(delta);
              double error = 0, seen = 0, top = magnitude + std::fabs(delta);
              for (int64_t i = 0; i < n.d_k; i++) {
                const double s = std::fabs(before.at(h * n.d_k + i, j)), now = held.at(h * n.d_k + i, j);
                const double of_s = 3 * kUlp * s * kept + coarse * (s + 1) + std::fabs(double(key[i])) * (of_delta + coarse) + kUlp * std::fabs(now);
                error += std::fabs(double(query[i])) * of_s;
                seen += std::fabs(double(query[i]) * now);
                top = std::max(top, std::fabs(now));
              }
              if (!(top < kMax) || !(seen < kMax)) return kUnjudged;
              double states = 0;
              for (int64_t i = 0; i < n.d_k; i++) states += std::fabs(double(key[i])) * (coarse * (std::fabs(before.at(h * n.d_k + i, j)) + 1));
              return error + kUlp * (lanes + 9) * seen + coarse * double(n.d_k + 9) + states * by * double(n.d_k);
            });
      }
}

}  // namespace assay

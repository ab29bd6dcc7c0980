// Kernel scope: linear with float weights. Quantised ones widened (--activations f32) are in quant_linear.cpp.
#include <fmt/format.h>

#include <cmath>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"

namespace assay {
namespace {

struct Shape {
  WeightType type;
  int64_t columns, rows, tokens;
  Values values;
};

void run(KernelBench& b, const Shape& s) {
  const StoredMatrix w = stored_matrix(b.rng(), s.type, s.rows, s.columns, s.values);
  const std::vector<float> x = kernel_values(b.rng(), size_t(s.tokens * s.columns), s.values),
                           bias = kernel_values(b.rng(), size_t(s.rows), Values::normal);
  const bool biased = b.rng()() % 2;
  LinearArgs a{w.matrix, biased ? bias.data() : nullptr, x.data(), nullptr, s.tokens};
  std::vector<float> scalar = unwritten(size_t(s.tokens * s.rows)), got = scalar;
  a.y = scalar.data();
  b.scalar.linear(a, 0, s.rows);
  a.y = got.data();
  const auto cut = int64_t(b.rng()() % uint64_t(s.rows + 1));  // any cut of the items
  b.target.linear(a, 0, cut);
  b.target.linear(a, cut, s.rows);
  b.bytes("element", scalar, got);

  b.sums(s.columns);
  const oracle::Matrix64 x64 = widened(x, s.tokens);
  const oracle::WeightRows rows = oracle::rows_of(w.wide);
  const oracle::Matrix64 want = oracle::linear(x64, rows, biased ? wide(bias) : std::vector<double>{}, 1),
                         magnitude = oracle::linear_magnitude(x64, rows, 1);
  b.bounds(
      got, s.tokens, s.rows, [&](int64_t r, int64_t c) { return want.at(r, c); },
      [&](int64_t r, int64_t c) {
        return bounds::sum(s.columns, magnitude.at(r, c), biased ? std::fabs(want.at(r, c)) : 0);
      });
}

}  // namespace

void linear_cases(KernelBench& b) {
  constexpr WeightType kTypes[] = {WeightType::f32, WeightType::f16, WeightType::bf16};
  const auto one = [&](const Shape& s) {
    if (b.next(
            fmt::format("{} k {} n {} tokens {}, {}", name_of(s.type), s.columns, s.rows, s.tokens, name_of(s.values))))
      run(b, s);
  };
  int turn = 0;
  for (int64_t columns : kEdgeWidths)
    for (int64_t rows : {1, 5, 16, 19})
      for (int64_t tokens : {1, 2, 3, 7, 8, 33}) {  // 7, 8, 33: last tiles of 1, 2, 3 of 6 tokens (AVX-512), of 3 (AVX2)
        one({kTypes[(turn + turn / 6) % 3], columns, rows, tokens, kAllValues[turn % int(std::size(kAllValues))]});
        turn++;
      }
  for (WeightType type : kTypes)  // widths of real models: fewer tokens fit into a block
    for (int64_t columns : kRealWidths) one({type, columns, 3, 27, Values::normal});
}

}  // namespace assay

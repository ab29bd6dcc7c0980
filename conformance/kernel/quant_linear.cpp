// Kernel scope: products with quantised weights. Every type, every number of groups around the 8 lanes and the blocks
// of 256, each kind of activations (f32: weights widened, linear's kernel): the scalar kernel's bytes, and within the
// bound of the exact product in float64.
#include <fmt/format.h>

#include <cmath>

#include "conformance/kernel/exact_product.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"
#include "engine/ops/panel.h"

namespace assay {
namespace {

constexpr WeightType kTypes[] = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                 WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

}  // namespace

std::vector<float> quantised_product(const Kernels& k, const Matrix& w, const std::vector<float>& x, int64_t tokens, Activations kind,
                                     const float* bias, int64_t cut) {
  std::vector<float> y = unwritten(size_t(tokens * w.rows));
  if (kind == Activations::f32) {
    const LinearArgs a{w, bias, x.data(), y.data(), tokens};
    const int64_t rows = std::min(cut * kPanelRows, w.rows);
    k.linear(a, 0, rows);
    k.linear(a, rows, w.rows);
    return y;
  }
  const int code_bytes = code_bytes_for(k.isa, w.type, kind);
  std::vector<std::byte> codes(x.size() * size_t(code_bytes)), storage;
  std::vector<float> scales(x.size() / 32);
  std::vector<int32_t> sums(x.size() / 16);
  const QuantisedRows rows{kind, code_bytes, tokens, w.columns, codes.data(), scales.data(), sums.data()};
  k.quantise({x.data(), rows}, 0, int64_t(scales.size()));
  std::byte* panels = nullptr;
  if (k.isa != Isa::scalar) {
    storage.resize(panel_bytes(w) + 64, std::byte(0xee));
    panels = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
    repack(w, panels, 0, panels_of(w));
  }
  const QuantLinearArgs a{w, panels, rows, bias, y.data()};
  k.quant_linear(a, 0, cut);
  k.quant_linear(a, cut, panels_of(w));
  return y;
}

namespace {

struct QuantShape {
  WeightType type;
  Activations kind;
  int64_t rows, groups, tokens;
  Values weights, values;
};

void check_shape(KernelBench& b, const QuantShape& s) {
  const int64_t columns = 32 * s.groups;
  const StoredMatrix w = stored_matrix(b.rng(), s.type, s.rows, columns, s.weights);
  std::vector<float> x = kernel_values(b.rng(), size_t(s.tokens * columns), s.values);
  if (s.weights == Values::equal) std::fill(x.begin(), x.end(), 1.5f);  // every code and every product at its end
  if (s.values == Values::mixed)
    for (size_t i = 0; i < x.size(); i++)
      if (i / 32 % 3 == 2) x[i] *= 0x1p-94f;  // groups with a scale so small that quotients by it need care
  const std::vector<float> bias = kernel_values(b.rng(), size_t(s.rows), Values::normal);
  const float* added = b.rng()() % 2 ? bias.data() : nullptr;
  const auto cut = int64_t(b.rng()() % uint64_t(panels_of(w.matrix) + 1));
  const std::vector<float> got = quantised_product(b.target, w.matrix, x, s.tokens, s.kind, added, cut);
  b.bytes("element", quantised_product(b.scalar, w.matrix, x, s.tokens, s.kind, added, 0), got);
  b.sums(columns);
  const oracle::Matrix64 want =
      oracle::linear(widened(x, s.tokens), oracle::rows_of(w.wide), added ? wide(bias) : std::vector<double>{}, 1);
  for (int64_t n = 0; n < s.rows; n++) {
    const ExactRow row = decode_exactly(s.type, w.matrix.row(n), columns);
    for (int64_t t = 0; t < s.tokens; t++) {
      if (t % 4 != n % 4 && s.tokens > 4) continue;  // a quarter of them, every row and every token
      const ExactProduct exact =
          exact_product(s.type, row, &x[size_t(t * columns)], s.kind, added ? added + n : nullptr);
      // Integer activations make a NaN of every Inf or NaN in a group, zero weights or not.
      const bool poisoned = s.kind != Activations::f32 && !std::isfinite(exact.value);
      b.bound(got[size_t(t * s.rows + n)], poisoned ? NAN : want.at(t, n), exact.bound, t, n);
    }
  }
}

}  // namespace

void quant_linear_cases(KernelBench& b) {
  constexpr Values kWeights[] = {Values::normal, Values::equal, Values::denormals, Values::mixed};
  const auto one = [&](const QuantShape& s) {
    if (b.next(fmt::format("{} {}, {} rows of {} groups, {} tokens, weights {}, x {}", name_of(s.type), name_of(s.kind),
                           s.rows, s.groups, s.tokens, name_of(s.weights), name_of(s.values))))
      check_shape(b, s);
  };
  int turn = 0;
  for (WeightType type : kTypes)
    for (Activations kind : {Activations::s16, Activations::s8, Activations::f32}) {
      for (int64_t groups : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 18, 40}) {
        if (groups * 32 % block_elements(type) != 0) continue;
        for (int64_t tokens : {1, 2, 3, 4, 5, 9, 35}) {
          one({type, kind, 1 + int64_t(turn * 7 % 40), groups, tokens, kWeights[turn % 4],
               kAllValues[turn % int(std::size(kAllValues))]});
          turn++;
        }
      }
      for (int64_t columns : kRealWidths) one({type, kind, 3, columns / 32, 27, Values::normal, Values::normal});
    }
}

}  // namespace assay

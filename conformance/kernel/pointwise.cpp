// Kernel scope: silu(gate) * up, and add.
#include <fmt/format.h>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"

namespace assay {
namespace {

using Kernel = void (*Kernels::*)(const BinaryArgs&, int64_t, int64_t);

template <class Want, class Limit>
void run(KernelBench& b, Kernel kernel, int64_t columns, float spread, Values kind, Want oracle_of, Limit limit) {
  const int64_t rows = 3;
  std::vector<float> x = kernel_values(b.rng(), size_t(rows * columns), kind),
                     y = kernel_values(b.rng(), size_t(rows * columns), kind);
  for (float& f : x) f *= spread;
  std::vector<float> scalar = unwritten(x.size()), got = scalar;
  BinaryArgs a{x.data(), y.data(), scalar.data(), columns};
  (b.scalar.*kernel)(a, 0, rows);
  a.y = got.data();
  (b.target.*kernel)(a, 0, 1);
  (b.target.*kernel)(a, 1, rows);
  b.bytes("element", scalar, got);
  const oracle::Matrix64 want = oracle_of(widened(x, rows), widened(y, rows));
  b.bounds(
      got, rows, columns, [&](int64_t r, int64_t c) { return want.at(r, c); },
      [&](int64_t r, int64_t c) {
        const auto i = size_t(r * columns + c);
        return limit(double(x[i]), double(y[i]), want.at(r, c));
      });
}

}  // namespace

void silu_mul_cases(KernelBench& b) {
  for (int64_t columns : kEdgeWidths)
    for (Values kind : kAllValues)  // 40: through both tails of the sigmoid, where its exp overflows and vanishes
      if (b.next(fmt::format("columns {}, {}", columns, name_of(kind))))
        run(b, &Kernels::silu_mul, columns, 40, kind, oracle::silu_mul, bounds::silu_mul);
}

void sigmoid_mul_cases(KernelBench& b) {
  for (int64_t columns : kEdgeWidths)
    for (Values kind : kAllValues)
      if (b.next(fmt::format("columns {}, {}", columns, name_of(kind))))
        run(b, &Kernels::sigmoid_mul, columns, 40, kind, oracle::sigmoid_mul, bounds::sigmoid_mul);
}

void add_cases(KernelBench& b) {
  for (int64_t columns : kEdgeWidths)
    for (Values kind : kAllValues)
      if (b.next(fmt::format("columns {}, {}", columns, name_of(kind))))
        run(b, &Kernels::add, columns, 1, kind, oracle::add,
            [](double, double, double want) { return bounds::add(want); });
}

}  // namespace assay

// Kernel scope: silu(gate) * up, and add.
#include <fmt/format.h>

#include <cmath>

#include "conformance/kernel/kernel_check.h"

namespace assay {

CheckOutcome check_pointwise(const Kernels& target) {
  KernelBench b;
  std::mt19937_64 rng(kKernelSeed + 4);
  for (int64_t columns : kEdgeWidths)
    for (bool hard : {false, true}) {
      const int64_t rows = 3;
      std::vector<float> x = kernel_values(rng, rows * columns, hard, hard),
                         y = kernel_values(rng, rows * columns, hard, hard);
      for (float& f : x) f *= 20;  // through both tails of the sigmoid
      for (bool is_add : {false, true}) {
        std::vector<float> scalar = unwritten(rows * columns), got = unwritten(rows * columns);
        BinaryArgs a{x.data(), y.data(), scalar.data(), columns};
        auto run = [&](const Kernels& i) { (is_add ? i.add : i.silu_mul)(a, 0, rows); };
        run(kernels(Isa::scalar));
        a.y = got.data();
        run(target);
        const std::string what =
            fmt::format("{} columns {}{}", is_add ? "add" : "silu_mul", columns, hard ? " hard" : "");
        b.bytes(what, scalar, got);
        if (hard) continue;
        for (int64_t i = 0; i < rows * columns; i++) {
          const double want = is_add ? double(x[i]) + y[i] : double(x[i]) / (1 + std::exp(-double(x[i]))) * y[i];
          b.bound(what, got[i], want, std::fabs(want) * std::ldexp(is_add ? 1.0 : 6.0, -24) + std::ldexp(1.0, -140));
        }
      }
    }
  return b.take();
}

}  // namespace assay

// Kernel scope: RMS norm over a row, and per head.
#include <fmt/format.h>

#include <cmath>

#include "conformance/kernel/kernel_check.h"

namespace assay {

namespace {

CheckOutcome norm(const Kernels& target, bool per_head) {
  KernelBench b;
  std::mt19937_64 rng(kKernelSeed + 1);
  for (int64_t width : kEdgeWidths)
    for (int64_t heads : per_head ? std::vector<int64_t>{1, 3} : std::vector<int64_t>{1})
      for (bool hard : {false, true}) {
        const int64_t rows = 4, columns = heads * width;
        const std::vector<float> x = kernel_values(rng, rows * columns, hard, hard), w = kernel_values(rng, width);
        std::vector<float> scalar = unwritten(rows * columns), got = unwritten(rows * columns);
        NormArgs a{x.data(), w.data(), scalar.data(), columns, heads, width, 1e-6f};
        auto run = [&](const Kernels& i) { per_head ? i.head_norm(a, 0, rows) : i.rms_norm(a, 0, rows); };
        run(kernels(Isa::scalar));
        a.y = got.data();
        run(target);
        const std::string what = fmt::format("width {} heads {}{}", width, heads, hard ? " hard" : "");
        b.bytes(what, scalar, got);
        if (hard) continue;
        for (int64_t g = 0; g < rows * heads; g++) {
          double sum = 0;
          for (int64_t i = 0; i < width; i++) sum += double(x[g * width + i]) * x[g * width + i];
          const double r = 1 / std::sqrt(sum / double(width) + double(1e-6f));
          // The sum is relative-accurate (all terms positive), halved by the root; division, root, reciprocal, two
          // products.
          const int64_t lanes = per_head ? 32 : 256;
          const double relative = std::ldexp(double((width + lanes - 1) / lanes + 9) / 2 + 6, -24);
          for (int64_t i = 0; i < width; i++) {
            const double want = double(x[g * width + i]) * r * w[i];
            b.bound(what, got[g * width + i], want, relative * std::fabs(want) + std::ldexp(2.0, -149));
          }
        }
      }
  return b.take();
}

}  // namespace

CheckOutcome check_rms_norm(const Kernels& target) {
  return norm(target, false);
}
CheckOutcome check_head_norm(const Kernels& target) {
  return norm(target, true);
}

}  // namespace assay

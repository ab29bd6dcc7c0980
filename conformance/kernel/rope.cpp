// Kernel scope: RoPE.
#include <fmt/format.h>

#include <cmath>

#include "conformance/kernel/kernel_check.h"
#include "engine/ops/common/rope_table.h"

namespace assay {

CheckOutcome check_rope(const Kernels& target) {
  KernelBench b;
  std::mt19937_64 rng(kKernelSeed + 2);
  for (int64_t d : {2, 8, 16, 40, 64, 96, 128, 256})
    for (int64_t rotary : {d, d / 2 / 2 * 2}) {
      if (rotary < 2) continue;
      RopeConfig config;
      config.rotary = rotary;
      const RopeTable table = make_rope_table(config, 600);
      const int64_t heads = 3, rows = 5, columns = heads * d;
      const int64_t positions[rows] = {0, 1, 17, 256, 599};
      const std::vector<float> x = kernel_values(rng, rows * columns);
      std::vector<float> scalar = unwritten(rows * columns), got = unwritten(rows * columns);
      RopeArgs a{x.data(), scalar.data(), positions, table.cos.data(), table.sin.data(), heads, d, rotary};
      kernels(Isa::scalar).rope(a, 0, rows);
      a.y = got.data();
      target.rope(a, 0, rows);
      const std::string what = fmt::format("head_dim {} rotary {}", d, rotary);
      b.bytes(what, scalar, got);
      for (int64_t r = 0; r < rows; r++)
        for (int64_t h = 0; h < heads; h++)
          for (int64_t j = 0; j < rotary / 2; j++) {
            const double angle = double(positions[r]) * std::pow(config.theta, -2.0 * double(j) / double(rotary));
            const double x0 = x[r * columns + h * d + j], x1 = x[r * columns + h * d + j + rotary / 2];
            // cos and sin are rounded once (2^-24 each, and the angle's own 2^-50 * angle), a product and an fma.
            const double limit = (std::fabs(x0) + std::fabs(x1)) * (std::ldexp(3.0, -24) + std::ldexp(angle, -48));
            b.bound(what, got[r * columns + h * d + j], x0 * std::cos(angle) - x1 * std::sin(angle), limit);
            b.bound(what, got[r * columns + h * d + j + rotary / 2], x1 * std::cos(angle) + x0 * std::sin(angle),
                    limit);
          }
    }
  return b.take();
}

}  // namespace assay

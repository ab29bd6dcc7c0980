// Kernel scope: linear with float weights.
#include <fmt/format.h>

#include <cmath>

#include "conformance/kernel/kernel_check.h"

namespace assay {

CheckOutcome check_linear(const Kernels& target) {
  KernelBench b;
  std::mt19937_64 rng(kKernelSeed);
  for (int64_t k : kEdgeWidths)
    for (int64_t n : {1, 5, 16, 19})
      for (int64_t tokens : {1, 2, 3, 7, 33}) {
        const bool hard = rng() % 3 == 0;
        const std::vector<float> w = kernel_values(rng, n * k, hard), x = kernel_values(rng, tokens * k, hard, hard),
                                 bias = kernel_values(rng, n);
        const LinearArgs args{{WeightType::f32, n, k, reinterpret_cast<const std::byte*>(w.data())},
                              rng() % 2 ? bias.data() : nullptr,
                              x.data(),
                              nullptr,
                              tokens};
        std::vector<float> scalar = unwritten(tokens * n), got = unwritten(tokens * n);
        LinearArgs a = args;
        a.y = scalar.data();
        kernels(Isa::scalar).linear(a, 0, n);
        a.y = got.data();
        const int64_t cut = int64_t(rng() % (n + 1));  // any cut of the items
        target.linear(a, 0, cut);
        target.linear(a, cut, n);
        const std::string what = fmt::format("k {} n {} tokens {}{}", k, n, tokens, hard ? " hard" : "");
        b.bytes(what, scalar, got);
        if (hard) continue;
        for (int64_t t = 0; t < tokens; t++)
          for (int64_t r = 0; r < n; r++) {
            double sum = 0, magnitude = 0;
            for (int64_t i = 0; i < k; i++) {
              sum += double(w[r * k + i]) * x[t * k + i];
              magnitude += std::fabs(double(w[r * k + i]) * x[t * k + i]);
            }
            if (args.bias) sum += bias[r];
            const double e = std::ldexp(double(k + 9), -149) + (args.bias ? std::ldexp(std::fabs(sum), -24) : 0);
            b.bound(what, got[t * n + r], sum, std::ldexp(double((k + 255) / 256 + 9) * magnitude, -24) + e);
          }
      }
  return b.take();
}

}  // namespace assay

// Kernel scope: kv_store and attention.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "conformance/kernel/kernel_check.h"

namespace assay {

/// A cache filled through kv_store; what lies beyond each slot's length stays NaN and must have no influence.
CheckOutcome check_attention(const Kernels& target) {
  KernelBench b;
  std::mt19937_64 rng(kKernelSeed + 3);
  for (KvType type : {KvType::f32, KvType::f16, KvType::bf16})
    for (int64_t d : {1, 16, 33, 40, 96, 128, 256})
      for (int64_t length : {1, 2, 31, 33, 255, 256, 257, 600}) {
        const int64_t kv_heads = 2, heads = 6, context = length + 3, slots = 2, half = slots * kv_heads * context * d;
        std::vector<float> k = kernel_values(rng, length * kv_heads * d), v = kernel_values(rng, length * kv_heads * d),
                           q = kernel_values(rng, 2 * heads * d);
        std::vector<RowPlace> places;
        for (int64_t p = 0; p < length; p++) places.push_back({1, p});
        const RowPlace asked[2] = {{1, length - 1}, {1, length / 2}};
        auto run = [&](const Kernels& i, std::vector<std::byte>& kc, std::vector<std::byte>& vc) {
          kc.assign(half * size_of(type), std::byte(0xff));
          vc = kc;
          KvLayer cache{type, slots, kv_heads, context, d, kc.data(), vc.data()};
          int64_t overflow = std::numeric_limits<int64_t>::max();
          i.kv_store({k.data(), v.data(), places.data(), cache, length, &overflow}, 0, length);
          std::vector<float> y = unwritten(size_t(2 * heads * d)), scratch = unwritten(size_t(attention_scratch_floats(length, d)));
          i.attention({q.data(), y.data(), asked, cache, heads, float(1.0 / std::sqrt(double(d)))}, 0, 2 * heads,
                      scratch.data());
          return y;
        };
        std::vector<std::byte> ks, vs, kg, vg;
        const std::vector<float> scalar = run(kernels(Isa::scalar), ks, vs), got = run(target, kg, vg);
        const std::string what = fmt::format("kv {} head_dim {} length {}", name_of(type), d, length);
        b.bytes(what, scalar, got);
        b.out.compared++;
        if (ks != kg || vs != vg) b.out.fail(what + ": the caches differ");
        if (type != KvType::f32) continue;
        for (int64_t row = 0; row < 2; row++)
          for (int64_t h = 0; h < heads; h++) {
            const int64_t kvh = h / (heads / kv_heads), n = asked[row].position + 1;
            std::vector<double> score(n);
            double largest = -INFINITY, total = 0, magnitude = 0;
            for (int64_t p = 0; p < n; p++) {
              double dot = 0, m = 0;
              for (int64_t j = 0; j < d; j++) {
                dot += double(q[(row * heads + h) * d + j]) * k[(p * kv_heads + kvh) * d + j];
                m += std::fabs(double(q[(row * heads + h) * d + j]) * k[(p * kv_heads + kvh) * d + j]);
              }
              score[p] = dot / std::sqrt(double(d));
              magnitude = std::max(magnitude, m / std::sqrt(double(d)));
              largest = std::max(largest, score[p]);
            }
            for (double& s : score) total += s = std::exp(s - largest);
            // A score's error (its own sum, the scale, the subtraction) enters exp as a relative one, twice (mix and
            // sum).
            const double relative =
                std::ldexp(2 * (double((d + 31) / 32 + 9) * magnitude + 2 * std::fabs(largest) + 4) +
                               2 * (double(n) / 256 + 10) + 4,
                           -24);
            for (int64_t j = 0; j < d; j++) {
              double mix = 0, mass = 0;
              for (int64_t p = 0; p < n; p++) {
                mix += score[p] * v[(p * kv_heads + kvh) * d + j];
                mass += score[p] * std::fabs(v[(p * kv_heads + kvh) * d + j]);
              }
              b.bound(what, got[(row * heads + h) * d + j], mix / total, relative * mass / total);
            }
          }
      }
  return b.take();
}

}  // namespace assay

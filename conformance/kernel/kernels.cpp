// Kernel scope: every op run directly, on every instruction set, over edge shapes and hard values: the same bytes as
// the scalar form, and within the bound of NUMERICS "Bounds" from the same sum in float64.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "conformance/kernel/kernel_check.h"

namespace assay {

std::vector<float> kernel_values(std::mt19937_64& rng, size_t n, bool hard, bool non_finite) {
  std::normal_distribution<float> normal;
  std::vector<float> v(n);
  for (float& x : v) {
    x = normal(rng);
    if (!hard) continue;
    switch (rng() % 12) {
      case 0:
        x = 0.0f;
        break;
      case 1:
        x = -0.0f;
        break;
      case 2:
        x = std::ldexp(x, -140);
        break;
      case 3:
        x = std::ldexp(x, 60);
        break;
      case 4:
        x = 1.0f;
        break;
      case 5:
        if (non_finite && rng() % 40 == 0)
          x = rng() % 2 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
        break;
      default:
        break;
    }
  }
  return v;
}

std::vector<float> unwritten(size_t n) {
  return std::vector<float>(n, std::numeric_limits<float>::quiet_NaN());
}

void KernelBench::bytes(const std::string& what, const std::vector<float>& scalar, const std::vector<float>& got) {
  out.compared++;
  for (size_t i = 0; i < scalar.size(); i++) {
    if (std::isnan(scalar[i]) && std::isnan(got[i])) continue;
    if (std::memcmp(&scalar[i], &got[i], sizeof(float)) == 0) continue;
    out.fail(fmt::format("{}: element {}: {:a}, scalar {:a}", what, i, got[i], scalar[i]));
    return;
  }
}

void KernelBench::bound(const std::string& what, double got, double want, double limit) {
  const double share = limit > 0 ? std::fabs(got - want) / limit : got == want ? 0 : INFINITY;
  if (std::isfinite(share) && share > worst_share_) {
    worst_share_ = share;
    worst_ = what;
  }
  if (!(share <= 1))
    out.fail(fmt::format("{}: {:.9g}, float64 {:.9g}: {:.2f} times its bound", what, got, want, share));
}

CheckOutcome KernelBench::take() {
  out.notes.push_back(fmt::format("seed {}; {:.0f}% of the bound used ({})", kKernelSeed, 100 * worst_share_, worst_));
  return std::move(out);
}

const std::vector<KernelCheck>& kernel_checks() {
  static const std::vector<KernelCheck> all = {
      {"linear", 340, check_linear},
      {"quantise", 200, check_quantise},
      {"quant_linear", 1000, check_quant_linear},
      {"rms_norm", 34, check_rms_norm},
      {"head_norm", 68, check_head_norm},
      {"rope", 15, check_rope},
      {"kv_store+attention", 336, check_attention},
      {"silu_mul+add", 68, check_pointwise},
  };
  return all;
}

void add_kernel_checks(std::vector<Check>& out) {
  for (const KernelCheck& e : kernel_checks())
    for (Isa isa : kBuiltIsas) {
      Check k;
      k.id = fmt::format("kernel/{}/{}", e.op, name_of(isa));
      k.level = Level::byte_exact;
      k.scope = Scope::kernel;
      k.isa = isa;
      k.family = "-";
      k.baseline = "scalar bytes; float64 within the computed bound";
      k.target = fmt::format("the {} kernel", name_of(isa));
      k.expected = e.expected;
      k.run = [&e, isa](const CheckContext&) {
        CheckOutcome o;
        if (isa_supported(isa)) return e.run(kernels(isa));
        o.not_run = fmt::format("this CPU or build lacks {}", name_of(isa));
        return o;
      };
      out.push_back(std::move(k));
    }
}

}  // namespace assay

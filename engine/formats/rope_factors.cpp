#include "engine/formats/rope_factors.h"

#include <algorithm>
#include <cmath>

#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

// The converter computes base^(2j/d), 2 pi / freq and the blend in f32. The exponent's rounding alone moves a frequency
// by ln(base) * 2^-24 (8e-7 at base 500000); the blend multiplies that by old_context / wavelength / (high - low), at
// most 4/3 for the published parameters. Candidates a factor of two apart differ by more than 0.1 somewhere inside the
// band.
constexpr double kBlendTolerance = 1e-5;

/// 1 / divisor is the blend (1 - smooth) / factor + smooth, linear in what the rounding errors move; divisors are not.
bool fits(const std::vector<double>& plain, const RopeConfig& candidate, const Vector& factors) {
  const std::vector<double> scaled = make_rope_table(candidate, 0).inv_freq;
  for (size_t j = 0; j < plain.size(); j++) {
    const double blend = scaled[j] / plain[j];
    if (!(std::fabs(blend - 1.0 / double(factors[j])) <= kBlendTolerance)) return false;
  }
  return true;
}

}  // namespace

std::optional<RopeConfig> recognise_llama3(const RopeConfig& plain, const Vector& factors) {
  const std::vector<double> inv_freq = make_rope_table(plain, 0).inv_freq;
  if (factors.size() != inv_freq.size() || factors.empty()) return std::nullopt;
  RopeConfig c = plain;
  c.llama3 = true;
  // The slowest pair turns beyond the low band in every published model, and there the divisor is the factor itself. If
  // all divisors are 1, any context far enough out does.
  c.factor = double(*std::max_element(factors.begin(), factors.end()));
  // The published parameters first: where several candidates fit (no pair inside the band), all give the same
  // frequencies.
  std::vector<double> contexts = {8192};
  for (int p = 4; p <= 24; p++) contexts.push_back(double(int64_t{1} << p));
  for (double low : {1.0, 2.0, 0.5}) {
    for (double high : {4.0, 2.0, 8.0, 16.0, 32.0}) {
      if (high <= low) continue;
      for (double context : contexts) {
        c.low_freq_factor = low;
        c.high_freq_factor = high;
        c.original_context = context;
        if (fits(inv_freq, c, factors)) return c;
      }
    }
  }
  return std::nullopt;
}

Vector llama3_divisors(const RopeConfig& rope) {
  RopeConfig plain = rope;
  plain.llama3 = false;
  const std::vector<double> base = make_rope_table(plain, 0).inv_freq, scaled = make_rope_table(rope, 0).inv_freq;
  Vector out(base.size());
  for (size_t j = 0; j < out.size(); j++) out[j] = float(base[j] / scaled[j]);
  return out;
}

}  // namespace assay

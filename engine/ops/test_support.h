// Shared by the op tests: seeds that are printed, inputs with every kind of float, and equality of bytes.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <limits>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "engine/ops/kernels.h"

namespace assay::test {

/// The instruction sets that this CPU runs. Says on every run which did not run.
inline std::vector<Isa> isas() {
  std::vector<Isa> run;
  std::string ran, missing;
  for (Isa isa : kBuiltIsas) {
    (isa_supported(isa) ? ran : missing).append(" ").append(name_of(isa));
    if (isa_supported(isa)) run.push_back(isa);
  }
  static bool said = false;
  if (!said)
    std::cout << "[   isas   ] ran:" << ran << "; not run here:" << (missing.empty() ? " none" : missing) << "\n";
  said = true;
  return run;
}

/// ASSAY_TEST_SEED repeats a run; otherwise fixed per test, so that a failure is the same everywhere.
inline std::mt19937_64 seeded(uint64_t seed) {
  if (const char* s = std::getenv("ASSAY_TEST_SEED")) seed = std::strtoull(s, nullptr, 10);
  std::cout << "[   seed   ] " << seed << " (ASSAY_TEST_SEED)\n";
  return std::mt19937_64(seed);
}

template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

using Rng = std::mt19937_64;
inline float gaussian(Rng& rng) {
  return std::normal_distribution<float>(0, 1)(rng);
}
inline int64_t uniform(Rng& rng, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(rng);
}

enum class Inputs { plain, wide, special };  // special: a few NaN, Inf, -0, denormals among wide ones
inline std::vector<float> inputs(Rng& rng, int64_t n, Inputs kind = Inputs::plain) {
  constexpr float kSpecial[] = {std::numeric_limits<float>::quiet_NaN(),
                                -std::numeric_limits<float>::quiet_NaN(),
                                std::numeric_limits<float>::infinity(),
                                -std::numeric_limits<float>::infinity(),
                                0.0f,
                                -0.0f,
                                0x1p-149f,
                                -0x1.8p-140f,
                                0x1p-126f,
                                3.4028235e38f,
                                65519.996f,
                                65520.0f};
  std::vector<float> out(size_t(n), 0.0f);
  for (float& x : out) {
    x = gaussian(rng);
    if (kind == Inputs::plain) continue;
    x = std::ldexp(x, int(uniform(rng, -30, 12)));
    if (kind == Inputs::special && uniform(rng, 0, n + 20) < 3) x = kSpecial[uniform(rng, 0, std::size(kSpecial) - 1)];
  }
  return out;
}

/// Index of the first element whose bytes differ, every NaN being one value; -1: none.
inline int64_t first_difference(const float* a, const float* b, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    if (std::isnan(a[i]) && std::isnan(b[i])) continue;
    if (std::memcmp(a + i, b + i, sizeof(float)) != 0) return i;
  }
  return -1;
}
inline testing::AssertionResult same_bytes(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size())
    return testing::AssertionFailure() << got.size() << " elements, wanted " << want.size();
  const int64_t i = first_difference(got.data(), want.data(), int64_t(got.size()));
  if (i < 0) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "element " << i << ": got " << std::hexfloat << got[size_t(i)] << ", wanted "
                                     << want[size_t(i)] << std::defaultfloat;
}

/// The rules, written from NUMERICS.md alone: lanes by index mod `lanes`, increasing index, halves, +0.
inline float rule_sum(const float* w, const float* x, int64_t n, int lanes) {
  std::vector<float> acc(size_t(lanes), 0.0f);
  for (int64_t i = 0; i < n; i++) acc[size_t(i % lanes)] = std::fma(w[i], x[i], acc[size_t(i % lanes)]);
  while (acc.size() > 1) {
    const size_t half = acc.size() / 2;
    for (size_t i = 0; i < half; i++) acc[i] = acc[i] + acc[half + i];
    acc.resize(half);
  }
  return acc[0] + 0.0f;
}

/// Cuts [0, items) at random places and calls fn on every piece, in random order.
template <class F>
void in_random_cuts(Rng& rng, int64_t items, F&& fn) {
  std::vector<std::pair<int64_t, int64_t>> pieces;
  for (int64_t begin = 0; begin < items;) {
    const int64_t end = std::min(items, begin + uniform(rng, 1, std::max<int64_t>(1, items)));
    pieces.emplace_back(begin, end);
    begin = end;
  }
  std::shuffle(pieces.begin(), pieces.end(), rng);
  for (auto [begin, end] : pieces) fn(begin, end);
}

/// The largest share of an error bound that was used.
struct Share {
  double used = 0;
  void take(double error, double bound) {
    if (error > 0) used = std::max(used, bound > 0 ? error / bound : std::numeric_limits<double>::infinity());
  }
};

}  // namespace assay::test

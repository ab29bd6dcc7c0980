// Kernel scope: activations to integers. Codes, scales and sums are the scalar kernel's and those of the rule as its
// text says it, and no element is further from scale * code than the bound of NUMERICS.md allows.
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "conformance/kernel/exact_product.h"
#include "conformance/kernel/kernel_check.h"

namespace assay {
namespace {

/// What a group of 32 is filled with; each is a case of its own somewhere in an engine's history.
const char* const kPatterns[] = {"plain",   "wide", "zeros", "denormals", "below 2^-100",  "at 2^-100", "ties",
                                 "largest", "NaN",  "Inf",   "-Inf",      "negative amax", "equal",     "all but -0"};
constexpr int kPatternCount = int(std::size(kPatterns));

void fill_group(std::mt19937_64& rng, int pattern, float levels, float* x) {
  std::normal_distribution<float> normal;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (int i = 0; i < 32; i++) x[i] = normal(rng);
  const size_t at = rng() % 32;
  const auto each = [&](auto f) {
    for (int i = 0; i < 32; i++) x[i] = f(i);
  };
  switch (pattern) {
    case 1:
      each([&](int i) { return std::ldexp(x[i], int(rng() % 60) - 40); });
      break;
    case 2:
      each([](int) { return 0.0f; });
      break;
    case 3:
      each([&](int i) { return std::ldexp(x[i], -140); });
      break;
    case 4:
      each([&](int i) { return i % 2 ? 0x1.fffffep-101f : -0x1p-110f; });
      break;  // the scale is +0, the codes 0
    case 5:
      each([&](int i) { return i % 2 ? 0x1p-100f : -0x1.8p-101f; });
      break;
    case 6:
      each([&](int i) { return i == 0 ? levels : float(i - 16) + 0.5f; });
      break;  // halves, both signs: scale 1
    case 7:
      each([&](int i) { return i % 3 ? std::numeric_limits<float>::max() : x[i]; });
      break;
    case 8:
      x[at] = rng() % 2 ? NAN : -NAN;
      break;
    case 9:
      x[at] = kInf;
      break;
    case 10:
      x[at] = -kInf;
      break;
    case 11:
      x[at] = -100;
      break;  // the code is -Q
    case 12:
      each([&](int) { return x[at]; });
      break;
    case 13:
      each([&](int i) { return size_t(i) == at ? x[i] : -0.0f; });
      break;
    default:
      break;
  }
}

struct Quantised {
  std::vector<std::byte> codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
};

Quantised run(const Kernels& k, const std::vector<float>& x, int64_t rows, Activations kind, int code_bytes,
              int64_t cut) {
  Quantised q;
  q.codes.assign(x.size() * size_t(code_bytes), std::byte(0xee));
  q.scales = unwritten(x.size() / 32);
  q.sums.assign(x.size() / 16, -1);
  const QuantiseArgs a{
      x.data(), {kind, code_bytes, rows, int64_t(x.size()) / rows, q.codes.data(), q.scales.data(), q.sums.data()}};
  k.quantise(a, 0, cut);
  k.quantise(a, cut, int64_t(q.scales.size()));
  return q;
}

/// Code of element i wherever its layout puts it (QuantisedRows).
int code_at(const Quantised& q, int code_bytes, size_t i) {
  int16_t wide;
  if (code_bytes == 1) return int8_t(q.codes[i % 4 == 1 ? i + 1 : i % 4 == 2 ? i - 1 : i]);
  std::memcpy(&wide, &q.codes[2 * i], 2);
  return wide;
}

void judge(KernelBench& b, const std::vector<float>& x, int first_pattern, Activations kind, int code_bytes,
           const Quantised& q) {
  const double c = kind == Activations::s16 ? 0.501 : 0.50001;
  for (size_t g = 0; g < x.size() / 32; g++) {
    const std::string where = fmt::format("group {} ({})", g, kPatterns[(first_pattern + int(g)) % kPatternCount]);
    const ExactGroup want = quantise_exactly(&x[32 * g], kind);
    b.out.compared++;
    if (std::isnan(want.scale) ? !std::isnan(q.scales[g])
                               : std::memcmp(&want.scale, &q.scales[g], sizeof(float)) != 0) {
      b.fail(fmt::format("{}: scale {:a}, by the rule {:a}", where, q.scales[g], want.scale));
      continue;
    }
    int sums[2] = {0, 0};
    for (size_t i = 0; i < 32; i++) {
      const int got = code_at(q, code_bytes, 32 * g + i);
      sums[i / 16] += got;
      if (got != want.code[i]) {
        b.fail(fmt::format("{}: element {} ({:.9g}): code {}, by the rule {}", where, i, x[32 * g + i], got,
                           want.code[i]));
        break;
      }
      if (want.scale > 0)  // where it is 0, the codes are, and the error is the value itself
        b.bound(double(q.scales[g]) * got, x[32 * g + i], c * double(q.scales[g]), int64_t(g), int64_t(i));
    }
    if (q.sums[2 * g] != sums[0] || q.sums[2 * g + 1] != sums[1])
      b.fail(fmt::format("{}: sums of codes {} {}, of these codes {} {}", where, q.sums[2 * g], q.sums[2 * g + 1],
                         sums[0], sums[1]));
  }
}

}  // namespace

void quantise_cases(KernelBench& b) {
  for (Activations kind : {Activations::s16, Activations::s8})
    for (int code_bytes : {1, 2})
      for (int64_t groups : {1, 2, 3, 7, 8, 9, 31, 33})
        for (int64_t rows : {1, 3}) {
          if (kind == Activations::s16 && code_bytes == 1) continue;  // do not fit
          if (!b.next(fmt::format("{} in {} byte{}, {} rows of {} groups", name_of(kind), code_bytes,
                                  code_bytes == 1 ? "" : "s", rows, groups)))
            continue;
          std::mt19937_64& rng = b.rng();
          const int first = int(rng() % kPatternCount);
          std::vector<float> x(size_t(32 * groups * rows));
          for (int64_t g = 0; g < groups * rows; g++)
            fill_group(rng, (first + int(g)) % kPatternCount, kind == Activations::s16 ? 32639.0f : 127.0f,
                       &x[size_t(32 * g)]);
          const Quantised scalar = run(b.scalar, x, rows, kind, code_bytes, 0);
          const Quantised got = run(b.target, x, rows, kind, code_bytes, int64_t(rng() % uint64_t(groups * rows + 1)));
          b.bytes("scale", scalar.scales, got.scales);
          b.bytes("codes", scalar.codes, got.codes);
          b.bytes("sums", std::as_bytes(std::span(scalar.sums)), std::as_bytes(std::span(got.sums)));
          judge(b, x, first, kind, code_bytes, got);
        }
}

}  // namespace assay

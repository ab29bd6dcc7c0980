// Kernel scope: RMS norm over a row, and per head.
#include <fmt/format.h>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"

namespace assay {
namespace {

void run(KernelBench& b, int64_t width, int64_t heads, bool per_head, Values kind) {
  const int64_t rows = 4, columns = heads * width;
  const std::vector<float> x = kernel_values(b.rng(), size_t(rows * columns), kind),
                           w = kernel_values(b.rng(), size_t(width), kind == Values::mixed ? kind : Values::normal);
  constexpr float kEps = 1e-6f;
  std::vector<float> scalar = unwritten(x.size()), got = scalar;
  NormArgs a{x.data(), w.data(), scalar.data(), columns, heads, width, kEps};
  const auto kernel = per_head ? &Kernels::head_norm : &Kernels::rms_norm;
  (b.scalar.*kernel)(a, 0, rows);
  a.y = got.data();
  const auto cut = int64_t(b.rng()() % 5);
  (b.target.*kernel)(a, 0, cut);
  (b.target.*kernel)(a, cut, rows);
  b.bytes("element", scalar, got);
  b.sums(width);
  const oracle::Matrix64 x64 = widened(x, rows), want = oracle::head_norm(x64, heads, width, wide(w), double(kEps));
  std::vector<double> squares(size_t(rows * heads));
  for (size_t i = 0; i < x.size(); i++) squares[i / size_t(width)] += double(x[i]) * double(x[i]);
  b.bounds(
      got, rows, columns, [&](int64_t r, int64_t c) { return want.at(r, c); },
      [&](int64_t r, int64_t c) {
        return bounds::rms_norm(width, want.at(r, c), w[size_t(c % width)], squares[size_t(r * heads + c / width)],
                                per_head ? 32 : 256);
      });
}

}  // namespace

void rms_norm_cases(KernelBench& b) {
  for (int64_t width : kEdgeWidths)
    for (Values kind : kAllValues)
      if (b.next(fmt::format("width {}, {}", width, name_of(kind)))) run(b, width, 1, false, kind);
  for (Values kind : {Values::normal, Values::mixed})  // more than a device's threads hold in registers
    if (b.next(fmt::format("width 8193, {}", name_of(kind)))) run(b, 8193, 1, false, kind);
}

void head_norm_cases(KernelBench& b) {
  for (int64_t width : kEdgeWidths)
    for (int64_t heads : {1, 3})
      for (Values kind : kAllValues)
        if (b.next(fmt::format("head_dim {} heads {}, {}", width, heads, name_of(kind))))
          run(b, width, heads, true, kind);
}

}  // namespace assay

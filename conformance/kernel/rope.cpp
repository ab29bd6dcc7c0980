// Kernel scope: RoPE, whole and partial, plain and with llama3's scaling.
#include <fmt/format.h>

#include "conformance/kernel/bounds.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/kernel/matrices.h"
#include "engine/ops/common/rope_table.h"

namespace assay {
namespace {

constexpr int64_t kRopeRows = 6, kRopePositions[kRopeRows] = {0, 1, 17, 256, 599, 4095};

void run(KernelBench& b, int64_t head_dim, const RopeConfig& config, const RopeTable& table, Values kind) {
  const int64_t rotary = config.rotary, *positions = kRopePositions;
  const int64_t heads = 3, columns = heads * head_dim;
  const std::vector<float> x = kernel_values(b.rng(), size_t(kRopeRows * columns), kind);
  std::vector<float> scalar = unwritten(x.size()), got = scalar;
  RopeArgs a{x.data(), scalar.data(), positions, table.cos.data(), table.sin.data(), heads, head_dim, rotary};
  b.scalar.rope(a, 0, kRopeRows);
  a.y = got.data();
  b.target.rope(a, 0, 2);
  b.target.rope(a, 2, kRopeRows);
  b.bytes("element", scalar, got);
  const oracle::Matrix64 x64 = widened(x, kRopeRows), want = oracle::rope(x64, heads, head_dim, kRopePositions, config);
  const std::vector<double> frequencies = oracle::rope_frequencies(config);
  b.bounds(
      got, kRopeRows, columns, [&](int64_t r, int64_t c) { return want.at(r, c); },
      [&](int64_t r, int64_t c) {
        const int64_t j = c % head_dim, half = rotary / 2, first = c - j;
        if (j >= rotary) return 0.0;  // unchanged
        const int64_t pair = j % half;
        return bounds::rope(x64.at(r, first + pair), x64.at(r, first + pair + half),
                            double(positions[r]) * frequencies[size_t(pair)]);
      });
}

}  // namespace

void rope_cases(KernelBench& b) {
  for (int64_t d : {2, 8, 16, 40, 64, 96, 128, 256})
    for (int64_t rotary : {d, d / 4 * 2})
      for (bool llama3 : {false, true}) {
        if (rotary < 2) continue;
        RopeConfig config;
        config.rotary = rotary;
        config.theta = llama3 ? 500000.0 : 10000.0;
        config.llama3 = llama3;
        if (llama3) config.factor = 8;
        RopeTable table;  // made for the first case that runs
        for (Values kind : {Values::normal, Values::mixed, Values::denormals, Values::huge, Values::non_finite}) {
          if (!b.next(fmt::format("head_dim {} rotary {}{}, {}", d, rotary, llama3 ? " llama3" : "", name_of(kind))))
            continue;
          if (table.context == 0) table = make_rope_table(config, kRopePositions[kRopeRows - 1] + 1);
          run(b, d, config, table, kind);
        }
      }
}

}  // namespace assay

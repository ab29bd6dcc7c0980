// Kernel scope: products with quantised weights. Every type, every number of groups around the 8 lanes and the blocks
// of 256, each kind of activations: the scalar kernel's bytes, and within the bound of the exact product in float64.
#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "conformance/kernel/exact_product.h"
#include "conformance/kernel/kernel_check.h"
#include "engine/formats/quant.h"
#include "engine/ops/panel.h"

namespace assay {
namespace {

constexpr WeightType kTypes[] = {WeightType::q8_0, WeightType::q4_0, WeightType::q4_1, WeightType::q5_0,
                                 WeightType::q5_1, WeightType::q4_k, WeightType::q5_k, WeightType::q6_k};

enum class Blocks { random, largest, subnormal, odd };  // codes at their ends; scales that are subnormal, zero or huge
const char* const kBlockNames[] = {"", ", largest codes", ", subnormal scales", ", odd scales"};

/// Random blocks with finite scales.
std::vector<std::byte> random_blocks(std::mt19937_64& rng, WeightType type, int64_t rows, int64_t columns,
                                     Blocks kind) {
  std::vector<std::byte> out(size_t(rows) * row_bytes(type, columns));
  for (std::byte& b : out)
    b = kind == Blocks::largest ? (rng() % 4 ? std::byte(0xff) : std::byte(0x80)) : std::byte(rng());
  const auto scale = [&]() -> uint16_t {
    constexpr uint16_t kOdd[] = {0x0001, 0x83ff, 0x0000, 0x8000, 0x7bff, 0x03ff, 0xfbff};
    const auto sign = uint16_t(rng() % 2 << 15);
    if (kind == Blocks::subnormal) return uint16_t(sign | (1 + rng() % 1023));
    if (kind == Blocks::odd && rng() % 2) return kOdd[rng() % std::size(kOdd)];
    return uint16_t(sign | (7 + rng() % 5) << 10 | rng() % 1024);  // around 2^-6
  };
  const size_t size = block_bytes(type), at = type == WeightType::q6_k ? offsetof(BlockQ6_K, d) : 0;
  for (size_t b = 0; b < out.size(); b += size)
    for (size_t s = 0; s < (has_minimum(type) ? 2u : 1u); s++) {
      const uint16_t h = scale();
      std::memcpy(&out[b + at + 2 * s], &h, 2);
    }
  return out;
}

/// y of a table's kernels, cut at `cut` of its items. The scalar kernels read the blocks, the others panels.
std::vector<float> run(const Kernels& k, const Matrix& w, const std::vector<float>& x, int64_t tokens, Activations kind,
                       const float* bias, int64_t cut) {
  std::vector<float> y = unwritten(size_t(tokens * w.rows));
  if (kind == Activations::f32) {
    const LinearArgs a{w, bias, x.data(), y.data(), tokens};
    const int64_t rows = std::min(cut * kPanelRows, w.rows);
    k.linear(a, 0, rows);
    k.linear(a, rows, w.rows);
    return y;
  }
  const int code_bytes = code_bytes_for(k.isa, w.type, kind);
  std::vector<std::byte> codes(x.size() * size_t(code_bytes)), storage;
  std::vector<float> scales(x.size() / 32);
  std::vector<int32_t> sums(x.size() / 16);
  const QuantisedRows rows{kind, code_bytes, tokens, w.columns, codes.data(), scales.data(), sums.data()};
  k.quantise({x.data(), rows}, 0, int64_t(scales.size()));
  std::byte* panels = nullptr;
  if (k.isa != Isa::scalar) {
    storage.resize(panel_bytes(w) + 64, std::byte(0xee));
    panels = storage.data() + (64 - reinterpret_cast<uintptr_t>(storage.data()) % 64) % 64;
    repack(w, panels, 0, panels_of(w));
  }
  const QuantLinearArgs a{w, panels, rows, bias, y.data()};
  k.quant_linear(a, 0, cut);
  k.quant_linear(a, cut, panels_of(w));
  return y;
}

struct Shape {
  WeightType type;
  Activations kind;
  int64_t rows, groups, tokens;
};

void check_shape(KernelBench& b, std::mt19937_64& rng, const Kernels& target, const Shape& s) {
  const int64_t columns = 32 * s.groups;
  const Blocks blocks = Blocks(rng() % 4);
  const std::vector<std::byte> bytes = random_blocks(rng, s.type, s.rows, columns, blocks);
  const Matrix w{s.type, s.rows, columns, bytes.data()};
  const bool hard = rng() % 3 == 0;
  std::vector<float> x = kernel_values(rng, size_t(s.tokens * columns), hard, hard);
  if (blocks == Blocks::largest) std::fill(x.begin(), x.end(), 1.5f);  // every code and every product at its end
  const std::vector<float> bias = kernel_values(rng, size_t(s.rows));
  const float* added = rng() % 2 ? bias.data() : nullptr;
  const std::string what = fmt::format("{} {}, {} rows of {} groups, {} tokens{}{}", name_of(s.type), name_of(s.kind),
                                       s.rows, s.groups, s.tokens, kBlockNames[int(blocks)], hard ? ", hard" : "");
  const std::vector<float> got =
      run(target, w, x, s.tokens, s.kind, added, int64_t(rng() % uint64_t(panels_of(w) + 1)));
  b.bytes(what, run(kernels(Isa::scalar), w, x, s.tokens, s.kind, added, 0), got);
  for (int64_t n = 0; n < s.rows; n++) {
    const ExactRow row = decode_exactly(s.type, w.row(n), columns);
    for (int64_t t = 0; t < s.tokens; t++) {
      if (t % 4 != n % 4 && s.tokens > 4) continue;  // a quarter of them, every row and every token
      const ExactProduct want =
          exact_product(s.type, row, &x[size_t(t * columns)], s.kind, added ? added + n : nullptr);
      const float y = got[size_t(t * s.rows + n)];
      const std::string where = fmt::format("{}: token {} row {}", what, t, n);
      if (std::isfinite(want.value))
        b.bound(where, y, want.value, want.bound);
      else if (s.kind == Activations::f32 ? std::isfinite(y) : !std::isnan(y))
        b.out.fail(fmt::format("{}: {:.9g}, though an Inf or NaN is among the activations", where, y));
    }
  }
}

}  // namespace

CheckOutcome check_quant_linear(const Kernels& target) {
  KernelBench b;
  std::mt19937_64 rng(kKernelSeed + 6);
  for (WeightType type : kTypes)
    for (Activations kind : {Activations::s16, Activations::s8, Activations::f32})
      for (int64_t groups : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 15, 16, 17, 18, 40}) {
        if (groups * 32 % block_elements(type) != 0) continue;
        for (int64_t tokens : {1, 2, 3, 4, 5, 9, 35})
          check_shape(b, rng, target, {type, kind, int64_t(1 + rng() % 40), groups, tokens});
      }
  return b.take();
}

}  // namespace assay

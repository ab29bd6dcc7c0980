// Faulty variants of quantised products and of the quantiser: where only the kernel can be wrong. Each is judged by the
// kernel check of its op, and planted into whole models.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "conformance/faults/faults.h"
#include "engine/formats/quant.h"
#include "engine/ops/panel.h"

namespace assay {
namespace {

/// A matrix whose bytes were changed, as a wrong decoder would read the right ones.
struct Altered {
  Matrix matrix;
  std::vector<std::byte> bytes;
};
using Alter = Altered (*)(const Matrix&);

/// Runs the scalar kernel on the altered matrix.
template <Alter alter>
void run_altered(const QuantLinearArgs& a, int64_t begin, int64_t end) {
  const Altered wrong = alter(a.w);
  QuantLinearArgs b = a;
  b.w = wrong.matrix;
  b.w.data = wrong.bytes.data();
  kernels(Isa::scalar).quant_linear(b, begin, end);
}

Altered copy_of(const Matrix& m) {
  return {m, {m.data, m.data + m.bytes()}};
}

/// Where a block's 4-bit codes lie; empty range: it has none.
std::pair<size_t, size_t> nibbles_of(WeightType t) {
  switch (t) {
    case WeightType::q4_0:
      return {offsetof(BlockQ4_0, codes), sizeof(BlockQ4_0)};
    case WeightType::q4_1:
      return {offsetof(BlockQ4_1, codes), sizeof(BlockQ4_1)};
    case WeightType::q5_0:
      return {offsetof(BlockQ5_0, codes), sizeof(BlockQ5_0)};
    case WeightType::q5_1:
      return {offsetof(BlockQ5_1, codes), sizeof(BlockQ5_1)};
    case WeightType::q4_k:
      return {offsetof(BlockQ4_K, codes), sizeof(BlockQ4_K)};
    case WeightType::q5_k:
      return {offsetof(BlockQ5_K, codes), sizeof(BlockQ5_K)};
    case WeightType::q6_k:
      return {offsetof(BlockQ6_K, low), offsetof(BlockQ6_K, high)};
    default:
      return {0, 0};
  }
}

Altered nibbles_swapped(const Matrix& m) {
  Altered out = copy_of(m);
  const auto [begin, end] = nibbles_of(m.type);
  for (size_t b = 0; b < out.bytes.size(); b += block_bytes(m.type))
    for (size_t i = begin; i < end; i++) out.bytes[b + i] = out.bytes[b + i] << 4 | out.bytes[b + i] >> 4;
  return out;
}

/// Q4_0 and Q5_0 read as w = d * code: the same blocks with a minimum of zero, which Q4_1 and Q5_1 hold.
Altered offset_forgotten(const Matrix& m) {
  if (m.type != WeightType::q4_0 && m.type != WeightType::q5_0) return copy_of(m);
  Altered out{m, {}};
  out.matrix.type = m.type == WeightType::q4_0 ? WeightType::q4_1 : WeightType::q5_1;
  const size_t from = block_bytes(m.type), to = block_bytes(out.matrix.type);
  out.bytes.assign(m.bytes() / from * to, std::byte(0));
  for (size_t b = 0; b < m.bytes() / from; b++) {
    std::memcpy(&out.bytes[b * to], m.data + b * from, 2);
    std::memcpy(&out.bytes[b * to + 4], m.data + b * from + 2, from - 2);
  }
  return out;
}

/// Rows of a panel one off: each pair has each other's codes and scales.
Altered wrong_row(const Matrix& m) {
  Altered out = copy_of(m);
  const size_t bytes = row_bytes(m.type, m.columns);
  for (int64_t r = 0; r + 1 < m.rows; r += 2)
    std::swap_ranges(&out.bytes[size_t(r) * bytes], &out.bytes[size_t(r) * bytes] + bytes,
                     &out.bytes[size_t(r + 1) * bytes]);
  return out;
}

/// Every binary16 scale and minimum of a block through `change`.
Altered scales_through(const Matrix& m, uint16_t (*change)(uint16_t)) {
  Altered out = copy_of(m);
  const size_t at = m.type == WeightType::q6_k ? offsetof(BlockQ6_K, d) : 0;
  for (size_t b = 0; b < out.bytes.size(); b += block_bytes(m.type))
    for (size_t s = 0; s < (has_minimum(m.type) ? 2u : 1u); s++) {
      uint16_t h;
      std::memcpy(&h, &out.bytes[b + at + 2 * s], 2);
      h = change(h);
      std::memcpy(&out.bytes[b + at + 2 * s], &h, 2);
    }
  return out;
}
/// Scales below 2^-14 become zero, as hardware does that flushes them.
Altered scales_flushed(const Matrix& m) {
  return scales_through(m, [](uint16_t h) { return uint16_t((h & 0x7c00) == 0 ? h & 0x8000 : h); });
}
/// Scales were cut to fewer bits where they should have been rounded.
Altered scales_truncated(const Matrix& m) {
  return scales_through(m, [](uint16_t h) { return uint16_t(h & 0xfffe); });
}

void store(const QuantisedRows& out, int64_t group, const int* codes, float scale) {
  out.scales[group] = scale;
  for (int half = 0; half < 2; half++) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += codes[16 * half + i];
    out.sums[2 * group + half] = sum;
  }
  for (int i = 0; i < 32; i++) {
    const size_t at = size_t(32 * group + i);
    const auto wide = int16_t(codes[i]);
    if (out.code_bytes == 2)
      std::memcpy(out.codes + 2 * at, &wide, 2);
    else
      out.codes[i % 4 == 1 ? at + 1 : i % 4 == 2 ? at - 1 : at] = std::byte(codes[i]);
  }
}

/// The rule of quantise with one step of it wrong.
template <bool half_up, bool launder>
void faulty_quantise(const QuantiseArgs& a, int64_t begin, int64_t end) {
  const float levels = a.out.kind == Activations::s16 ? 32639.0f : 127.0f;
  for (int64_t g = begin; g < end; g++) {
    const float* x = a.x + 32 * g;
    float amax = 0;
    bool bad = false;
    for (int i = 0; i < 32; i++) {
      if (launder ? std::isinf(x[i]) : !std::isfinite(x[i])) bad = true;
      amax = std::fmax(amax, std::fabs(x[i]));  // fmax drops a NaN
    }
    int codes[32] = {};
    float scale = bad ? NAN : amax < 0x1p-100f ? 0.0f : amax / levels;
    if (scale > 0)
      for (int i = 0; i < 32; i++) {
        const float v = std::fmax(std::fmin(x[i] / scale, levels), -levels);  // a NaN becomes a number here
        codes[i] = half_up ? int(v + 0.5f) : int(std::nearbyint(v));
      }
    store(a.out, g, codes, scale);
  }
}

}  // namespace

void add_kernel_faults(std::vector<Fault>& out) {
  const auto add = [&](const char* id, const char* what, void (*apply)(Kernels&)) {
    Fault f{id, what, How::kernel};
    f.kernels = apply;
    out.push_back(std::move(f));
  };
  add("A10/nibbles-swapped", "the two codes of a byte are taken in the wrong order",
      [](Kernels& k) { k.quant_linear = run_altered<nibbles_swapped>; });
  add("A10/offset-forgotten", "the 8 of Q4_0 (16 of Q5_0) is not taken off its codes",
      [](Kernels& k) { k.quant_linear = run_altered<offset_forgotten>; });
  add("A10/wrong-row", "rows of a tile are one off", [](Kernels& k) { k.quant_linear = run_altered<wrong_row>; });
  add("B4/scales-flushed", "subnormal binary16 scales are read as zero",
      [](Kernels& k) { k.quant_linear = run_altered<scales_flushed>; });
  add("B4/scales-truncated", "binary16 scales lose their last bit",
      [](Kernels& k) { k.quant_linear = run_altered<scales_truncated>; });
  add("B5/round-half-up", "activations are rounded by (int)(x + 0.5), which is wrong for negative ones",
      [](Kernels& k) { k.quantise = faulty_quantise<true, false>; });
  add("E9/nan-laundered", "the quantiser's clamp makes a number of a NaN",
      [](Kernels& k) { k.quantise = faulty_quantise<false, true>; });
}

}  // namespace assay

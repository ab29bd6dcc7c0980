// What a quantised product should be, in float64 and from the file format's definition alone: no decoding and no
// quantising of the engine is used, so that a wrong nibble order or offset there cannot hide.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/model.h"

namespace assay {

/// One row of a quantised matrix as numbers: w[k] = scale[k / 16] * code[k] + minimum[k / 32], exact in double.
struct ExactRow {
  std::vector<int32_t> code;    // [columns], the format's offset already taken off
  std::vector<double> scale;    // [columns / 16], those of one group equal but in Q6_K
  std::vector<double> minimum;  // [columns / 32], with the format's sign; 0 where it has none
  double weight(size_t k) const { return scale[k / 16] * code[k] + minimum[k / 32]; }
};
/// Decodes by the layouts of engine/formats/quant.h. Precondition: a quantised type, whole blocks.
ExactRow decode_exactly(WeightType type, const std::byte* row, int64_t columns);

/// Terms per group in a lane (NUMERICS.md "Bounds"): 2 for types with a minimum and Q6_K, else 1.
int terms_per_group(WeightType type);

/// One group of 32 activations by rule 1 of NUMERICS.md, written from its text: the scale (NaN where an Inf or NaN is
/// among them) and the codes.
struct ExactGroup {
  float scale;
  float amax;  // largest magnitude; NaN with the scale
  int32_t code[32];
};
ExactGroup quantise_exactly(const float* x, Activations kind);

/// The product of one weight row and one activation row in float64, and how far the engine may be from it: the bounds
/// of NUMERICS.md "Bounds" for s16, s8 and f32 (the widened weights). Not finite: the row holds an Inf or NaN, and the
/// engine's value must be NaN (s16, s8) or not finite (f32).
struct ExactProduct {
  double value, bound;
};
/// `x`: [columns]. `bias`: null or one value.
ExactProduct exact_product(WeightType type, const ExactRow& w, const float* x, Activations kind, const float* bias);

}  // namespace assay

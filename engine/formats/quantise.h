// From f32 rows to the element types of weight files. Deterministic: a row's bytes depend on its values alone. Q8_0,
// Q4_0, Q4_1, Q5_0 and Q5_1 follow the formats' reference quantisers operation by operation (github.com/ggml-org/ggml,
// src/ggml-quants.c, quantize_row_*_ref); K-quants search scales and minima by least squares. This is arithmetic of
// file makers: the engine's numerics never pass through here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "engine/model.h"

namespace assay {

/// What can't be encoded, and where; `what` is nullptr if all is well.
struct EncodeFault {
  const char* what = nullptr;  // "is not finite", "overflows F16", "needs a scale beyond F16"
  int64_t column = -1;
  float value = 0;
};

/// Encodes `columns` elements at `x` into row_bytes(type, columns) bytes at `out`. Scales and floats are rounded to
/// nearest even, subnormals of F16 included. Precondition: columns is a multiple of block_elements(type).
EncodeFault encode_row(WeightType type, const float* x, int64_t columns, std::byte* out);

/// The inverse, as the engine computes it (NUMERICS.md, widened weight).
void decode_row(WeightType type, const std::byte* row, int64_t columns, float* out);

/// How far a row lies from its original: sums of squares, in double, in column order.
struct RowError {
  double signal = 0, noise = 0;
};
RowError row_error(const float* original, const float* decoded, int64_t columns);
/// 10 log10(signal / noise) in decibels; +Inf where there is no noise.
double sqnr_db(double signal, double noise);

/// A weight type by its name, in any case ("q4_k"). Throws Error{usage} blaming `option`: types that others have and
/// this engine has not (FP8, MXFP4, IQ4_XS, AWQ, ...) by their name, with the supported ones.
WeightType weight_type_from_name(const std::string& name, const std::string& option);
std::string supported_weight_types();  // "F32, F16, ..., Q6_K"

/// The type that a matrix gets whose rows don't divide into blocks of the wanted one: Q8_0 where 32 divides the
/// columns, else F16.
WeightType fitting_type(WeightType wanted, int64_t columns);

}  // namespace assay

// What compare() is made of: the metrics of a tensor pair over a range of rows, and how ranges are put together.
// Definitions: dumps/README.md "Comparing". Every figure is a maximum, a count or a sum in a fixed order within one row, so
// none depends on the number of threads, on how rows were split, or on the instruction set.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

#include "dumps/compare.h"
#include "dumps/dtype.h"

namespace assay {

/// No scale is taken below this; where the baseline is zero throughout, any difference is then far above every tolerance.
inline constexpr double kLeastScale = 1e-300;
/// Share of the usual scale (max |b| of the phase and layer over the whole baseline) below which no row's scale falls.
inline constexpr double kUsualShare = 0.1;
inline double row_scale(double row_max, double usual) {
  const double least = usual * kUsualShare > kLeastScale ? usual * kUsualShare : kLeastScale;
  return row_max > least ? row_max : least;
}

/// Element `i`, widened exactly (integers beyond 2^53 are rounded: for printing only; they are compared exactly).
double value_at(DType t, const std::byte* data, int64_t i);
/// max |x| over the finite values of rows [first_row, first_row + n).
double max_abs_finite(const DumpTensor& t, int64_t first_row, int64_t n);
/// The metrics of rows [first_row, first_row + n); places carry absolute row numbers. Both tensors hold values and have the
/// same rows() and columns(). `usual_scale`: see kUsualShare. `row_max_rel`: nullptr, or room for the max_rel of each of the n
/// rows; infinite where a value is not finite and does not agree.
TensorMetrics measure_rows(const DumpTensor& base, const DumpTensor& target, int64_t first_row, int64_t n,
                           double usual_scale, double* row_max_rel = nullptr);
/// Joins the metrics of two row ranges; `next` lies behind `into`.
void merge(TensorMetrics& into, const TensorMetrics& next);
/// Distance in units of the last place of `type` (f64, f32, f16, bf16): both values rounded to it (nearest even), then the
/// number of representable values between them. Saturates; both must not be NaN.
int64_t ulp_distance(DType type, double a, double b);
/// The float type with fewer significant bits, in whose ULPs a pair is judged (f16 against bf16: bf16).
DType narrower(DType a, DType b);
/// One unit in the last place of `type` at the magnitude of x (> 0 for x = 0, too).
double ulp_of(DType type, double x);
ExtraMetrics measure_extra(const DumpTensor& base, const DumpTensor& target, double usual_scale, bool logits);

/// Instruction sets of the inner loops. `automatic` takes what the machine has. For tests and benchmarks.
enum class MetricsIsa { automatic, generic, avx2 };
/// Returns what is used from now on (asking for what the machine has not leaves the generic loops).
MetricsIsa use_metrics_isa(MetricsIsa isa);

}  // namespace assay

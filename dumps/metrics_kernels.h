// The inner loops behind metrics.h, once in portable C++ and once for AVX2, chosen at run time. All give the same bits: sums
// have eight accumulators (column mod 8), products and sums are rounded separately, the fold is in metrics.cpp.
#pragma once
#include <cstdint>

namespace assay::metrics {

/// Running figures of one row. Columns may come in several calls as long as each call but the last brings a multiple of 8.
struct RowSums {
  double diff2[8] = {};        // sum of (t-b)^2 by column mod 8
  double base2[8] = {};        // sum of b^2
  double max_diff = 0;         // max |t-b|
  double max_base = 0;         // max |b|
  int64_t equal = 0;
  int64_t ulp_le_1 = 0, ulp_le_4 = 0;
  bool non_finite = false;     // some value is NaN or Inf: all other figures are void
};

struct Kernels {
  /// True if the n elements of both sides have the same bits and are all finite; then *max_bits is raised to the largest
  /// |bits|. Element width 2 (bf16, f16), 4 (f32) or 8 (f64); `inf_bits` are the bits of +Inf.
  bool (*equal16)(const uint16_t* b, const uint16_t* t, int64_t n, uint16_t inf_bits, uint16_t* max_bits);
  bool (*equal32)(const uint32_t* b, const uint32_t* t, int64_t n, uint32_t* max_bits);
  bool (*equal64)(const uint64_t* b, const uint64_t* t, int64_t n, uint64_t* max_bits);
  /// All of RowSums for f32 values; `equal` counts equal bits and the ULPs are f32's.
  void (*row_f32)(const float* b, const float* t, int64_t n, RowSums* sums);
  /// RowSums without ULPs for values in double; `equal` counts equal values.
  void (*row_f64)(const double* b, const double* t, int64_t n, RowSums* sums);
  /// ULP counts and (`equal`) equal bits of finite values.
  void (*ulp16)(const uint16_t* b, const uint16_t* t, int64_t n, RowSums* sums);
  void (*ulp32)(const uint32_t* b, const uint32_t* t, int64_t n, RowSums* sums);
  void (*ulp64)(const uint64_t* b, const uint64_t* t, int64_t n, RowSums* sums);
  void (*bf16_to_f32)(const uint16_t* x, float* y, int64_t n);
  void (*f16_to_f32)(const uint16_t* x, float* y, int64_t n);
  void (*f32_to_f64)(const float* x, double* y, int64_t n);
  void (*f64_to_f32)(const double* x, float* y, int64_t n);      // nearest even
  void (*f32_to_bf16)(const float* x, uint16_t* y, int64_t n);   // nearest even; finite values
};

extern const Kernels kGeneric;
const Kernels* avx2_kernels();  // nullptr where the build or the machine has none

}  // namespace assay::metrics

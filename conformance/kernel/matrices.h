// Operands of kernel cases as the kernels take them, and the same values in float64.
#pragma once
#include <random>
#include <vector>

#include "conformance/kernel/kernel_check.h"
#include "oracle/ops.h"

namespace assay {

/// A weight matrix in the file's bytes, with its exact values.
struct StoredMatrix {
  Matrix matrix;  // points into `bytes`
  std::vector<std::byte> bytes;
  oracle::Matrix64 wide;  // [rows, columns]
};
/// Float types: values of a kind, rounded to the type (huge and denormals as far as it can hold them, never an Inf that
/// is not asked for). Quantised types: random blocks with finite scales of a kind: largest codes (equal), subnormal
/// scales (denormals), odd ones (mixed).
StoredMatrix stored_matrix(std::mt19937_64& rng, WeightType type, int64_t rows, int64_t columns, Values kind);

std::vector<double> wide(const std::vector<float>& v);
/// [rows, v.size() / rows]
oracle::Matrix64 widened(const std::vector<float>& v, int64_t rows);

}  // namespace assay

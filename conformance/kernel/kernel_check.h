// What the kernel checks share. Each takes the table of kernels to judge, so that a planted one is judged the same way;
// the scalar kernels' bytes and float64 are the two baselines.
#pragma once
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "conformance/check.h"

namespace assay {

inline constexpr uint64_t kKernelSeed = 20240817;
/// Edge widths first (DESIGN 15): around the lanes, groups and blocks of every op.
inline constexpr int64_t kEdgeWidths[] = {1, 2, 31, 32, 33, 63, 64, 96, 160, 255, 256, 257, 288, 511, 513, 576, 1025};

/// Random values of several magnitudes; `hard` mixes in zeros, denormals, huge, equal and (if allowed) non-finite ones.
std::vector<float> kernel_values(std::mt19937_64& rng, size_t n, bool hard = false, bool non_finite = false);
/// n values that no kernel may leave: NaN.
std::vector<float> unwritten(size_t n);

/// Collects comparisons of one op on one table of kernels against the scalar bytes and against float64.
class KernelBench {
 public:
  CheckOutcome out;
  /// Equal bytes, NaNs of any sign and payload being one value (they differ between machines). One comparison.
  void bytes(const std::string& what, const std::vector<float>& scalar, const std::vector<float>& got);
  /// |got - want| <= limit, by numbers that are finite.
  void bound(const std::string& what, double got, double want, double limit);
  CheckOutcome take();

 private:
  double worst_share_ = 0;
  std::string worst_;
};

/// One entry of the room: an op, its least number of comparisons, and the check of a table's kernels for it.
struct KernelCheck {
  const char* op;
  int64_t expected;
  CheckOutcome (*run)(const Kernels& target);
};
const std::vector<KernelCheck>& kernel_checks();

CheckOutcome check_linear(const Kernels& target);        // linear.cpp
CheckOutcome check_quantise(const Kernels& target);      // quantise.cpp
CheckOutcome check_quant_linear(const Kernels& target);  // quant_linear.cpp
CheckOutcome check_rms_norm(const Kernels& target);      // norm.cpp
CheckOutcome check_head_norm(const Kernels& target);
CheckOutcome check_rope(const Kernels& target);       // rope.cpp
CheckOutcome check_attention(const Kernels& target);  // attention.cpp
CheckOutcome check_pointwise(const Kernels& target);  // pointwise.cpp

}  // namespace assay

// Greedy ids of two dumps: the common prefix, and whether a flip is a near tie. Rules: dumps/README.md "Comparing".
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "dumps/compare.h"

namespace assay {

/// More tokens than any timeline has: both sides were fed the same all along, as far as is known.
inline constexpr int64_t kAllFed = std::numeric_limits<int64_t>::max();

struct GreedyOutcome {
  std::vector<GreedyRecord> records;          // one per prompt of the baseline that has greedy ids
  std::map<std::string, int64_t> common_fed;  // per prompt: decode/0 .. decode/<n-1> consumed the same tokens; -1: other prompt
};
GreedyOutcome compare_greedy(const Dump& base, const Dump& target, const Tolerance& tolerance);

/// The noise that a margin is held against: at least one ULP, at most the cap. `measured`: 99.9th percentile of the logit
/// errors at the other positions (0 where there is none).
double near_tie_noise(double measured, double ulp, double cap);
/// The value that 99.9% of `errors` do not exceed (its order changes). 0 if empty.
double percentile_999(std::vector<double>& errors);

}  // namespace assay

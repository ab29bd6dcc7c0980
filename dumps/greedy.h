// Greedy ids of two dumps: the common prefix, and whether a flip is a near tie. Rules: dumps/README.md "Comparing".
#pragma once
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
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

/// What a prompt's passes consumed: its ids, and the tokens of decode/0, decode/1, ... (forced ones, else the greedy ids; as
/// many as are known). nullopt: the dump does not say the prompt's ids.
struct PromptTokens {
  std::vector<int64_t> ids, fed;
};
std::optional<PromptTokens> prompt_tokens(const Dump& dump, const std::string& prompt);

/// The noise that a margin is held against: at least one ULP, at most the cap. `measured`: 99.9th percentile of the logit
/// errors at the other positions (0 where there is none).
double near_tie_noise(double measured, double ulp, double cap);
/// The value that 99.9% of `errors` do not exceed (its order changes). 0 if empty.
double percentile_999(std::vector<double>& errors);

}  // namespace assay

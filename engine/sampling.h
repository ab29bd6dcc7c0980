// Choosing an id from logits (NUMERICS.md "Sampling"). An id depends on the logits, the options, the sequence's number
// and the position alone: there is no random stream that other sequences or earlier steps could move.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>

namespace assay {

struct SamplingOptions {
  float temperature = 0;  // 0: the largest logit, ties to the lower id
  int64_t top_k = 0;      // 0: all
  float top_p = 1;        // (0, 1]; 1: all
  float min_p = 0;        // [0, 1]; keeps ids of at least this share of the largest probability
  uint64_t seed = 0;
};

/// Throws Error{usage} naming the command line's option.
void check_sampling(const SamplingOptions& options);

/// The id for `position` (the number of ids before it) of sequence `sequence`. nullopt if a logit is NaN. `options` are
/// checked.
std::optional<int32_t> sample(std::span<const float> logits, const SamplingOptions& options, uint64_t sequence,
                              uint32_t position);

/// Philox4x32-10: J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
/// 2011, section 3.3 and table 2.
std::array<uint32_t, 4> philox4x32_10(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

}  // namespace assay

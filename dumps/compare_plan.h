// The inside of compare(): which tensors are held against which, with what scale and tolerance. Not for other folders.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "dumps/compare.h"
#include "dumps/greedy.h"
#include "dumps/routing.h"

namespace assay::comparing {

/// "q_rope", "state/k": the key of tolerances and noise floors. Names outside the vocabulary: their last part.
std::string phase_key(const std::string& name);
/// Phase and layer, whatever the prompt, pass and step: what shares a usual scale. Foreign names: each its own.
std::string scale_key(const std::string& name);

/// A pair whose shapes (and at byte_exact dtypes) agree; `record` is where its verdict goes.
struct Pair {
  size_t record = 0;
  DumpTensor base, target;     // views; the target's may be part of another tensor (see CompareRecord::answered_by)
  double scale = 0;
  bool measure = false;        // the values are to be read
  int64_t positions = 0;       // > 0: errors by position are wanted; row r stands at place r % positions
  int64_t bytes() const { return int64_t(base.bytes() + target.bytes()); }
};

struct Plan {
  std::vector<CompareRecord> records;  // in execution order; those without a pair are decided already
  std::vector<Pair> pairs;
  std::vector<std::pair<const DumpTensor*, std::string>> topk;  // logits_top_ids of the baseline, and why they stand apart
  bool partial = false;
};
/// Throws Error{usage}: --until or --only that name nothing of the baseline.
Plan make_plan(const Dump& base, const Dump& target, const CompareOptions& options, const GreedyOutcome& greedy, const Routing& routing);

/// Usual scales by scale_key, of the keys that `wanted` names: from the statistics of a manifest, else from the values.
std::unordered_map<std::string, double> usual_scales(const Dump& base, const std::vector<std::string>& wanted, int threads);
/// Most values of CompareRecord::row_max_rel; longer sequences are joined.
inline constexpr int64_t kMostBins = 256;
/// Fills CompareRecord::metrics of all pairs that are to be measured, and row_max_rel where Pair::positions asks for it.
void measure_pairs(Plan& plan, const CompareOptions& options);

TopkRecord top_k(const Dump& target, const Dump& base, const DumpTensor& top_ids);
/// Names the first failing node; see Divergence.
std::optional<Divergence> find_divergence(const Dump& base, const Plan& plan, const std::vector<GreedyRecord>& greedy);
/// "row 4 (position 4), column 17"; "kv head 1, position 4, column 3" for caches.
std::string place_text(const Dump& base, const std::string& name, const std::vector<int64_t>& shape, int64_t row, int64_t column);
/// How many positions in a row a tensor's rows stand for, row r at place r % positions: rows of a pass, positions of a cache.
/// 0: its rows are no positions.
int64_t positions_of(const Dump& base, const std::string& name, const std::vector<int64_t>& shape);
/// Position in the sequence of a row of a tensor; -1 where the rows are no positions.
int64_t position_of(const Dump& base, const std::string& name, const std::vector<int64_t>& shape, int64_t row);

}  // namespace assay::comparing

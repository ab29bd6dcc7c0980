// Comparing two dumps at a level, with a place for every verdict. Measures and rules: dumps/README.md "Comparing".
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dumps/dump.h"

namespace assay {

enum class Level : uint8_t { greedy_prefix, max_rel, byte_exact };  // rising strength
std::string_view name_of(Level l);
std::optional<Level> level_from_name(std::string_view s);

/// Where in a tensor a figure was taken: prompt, position (row), column, and both values.
struct Place {
  int64_t row = -1, column = -1;
  double base = 0, target = 0;
};

/// All metrics of one tensor pair, from one pass over the values. max_rel = max |t-b| / max(max|b| of the row, 0.1 * scale),
/// scale = max |b| of that phase and layer over the whole baseline.
struct TensorMetrics {
  int64_t elements = 0;
  int64_t bits_equal = 0;        // elements of the same bits (equal dtypes) or the same value (widened)
  double max_abs = 0;  Place max_abs_at;
  double max_rel = 0;  Place max_rel_at;
  double worst_row_l2 = 0; int64_t worst_row_l2_at = -1;  // ||t-b|| / max(||b||, 0.1*scale*sqrt(columns)) of the worst row
  int64_t ulp_le_1 = 0, ulp_le_4 = 0;   // elements at most 1 / 4 ULP (of the narrower float type) apart
  int64_t non_finite_base_only = 0, non_finite_target_only = 0, non_finite_both = 0, non_finite_mismatch = 0;
  Place non_finite_at;           // the first mismatch (one side only, or different kinds: Inf against NaN, other sign)
};

enum class Status : uint8_t { pass, fail, near_tie, skipped };

/// One line of the result: one tensor, or one prompt's greedy ids. Serialised as a JSONL record (schemas/record.schema.json).
struct CompareRecord {
  std::string name;
  int64_t order = 0;
  Status status = Status::pass;
  std::string reason;            // for people: "shape [5, 64], wanted [5, 96]", "NaN in target only at row 3 column 7"
  std::string dtype_base, dtype_target;
  std::optional<TensorMetrics> metrics;   // absent when hashes decided, or the tensor is missing
  double tolerance = 0;          // what max_rel was held against
  std::optional<Level> reached;
};

struct GreedyRecord {
  std::string prompt;
  int64_t prefix = 0, length = 0;     // ids in common before the first difference, ids compared
  Status status = Status::pass;
  struct Flip { int64_t step; int64_t base_id, target_id; double margin; double noise; bool near_tie; };
  std::vector<Flip> flips;
};

/// Named tolerance presets (dumps/presets.json documents each). A tensor without a tolerance is a failure, never a pass.
struct Tolerance {
  std::string preset;            // "official-f32", "bf16-subject", ... or "custom"
  double fixed = 0;              // --tol: at least this
  double noise_factor = 0;       // times the baseline's noise floor for that phase, if it has floors
  std::map<std::string, double> by_phase;  // overrides
  double greedy_margin_cap = 0;  // NEARTIE: no margin above this is a tie, whatever the measured noise
  int64_t max_near_ties = 0;     // more than this many fail
};
const std::map<std::string, Tolerance>& presets();

struct CompareOptions {
  Level level = Level::max_rel;
  Tolerance tolerance;
  std::optional<std::string> until;   // compare only up to and including this node ("pass, partial")
  std::vector<std::string> only;      // phases; empty: all
  int threads = 0;                    // 0: all cores
  std::function<void(int64_t done, int64_t total)> progress;
};

struct CompareResult {
  Level level;
  std::vector<CompareRecord> records;   // in execution order
  std::vector<GreedyRecord> greedy;
  std::optional<std::string> first_divergence;   // first failing tensor in execution order: step, layer and phase
  double smallest_passing_tolerance = 0;
  int64_t compared = 0, failed = 0, near_ties = 0, skipped = 0, missing = 0, extra = 0;
  std::optional<Level> reached;         // the strongest level that holds for all
  bool partial = false;                 // --until
  int exit_code() const;                // 0, 1; nothing compared: 1
};

CompareResult compare(const Dump& base, const Dump& target, const CompareOptions& options);
/// One tensor pair (also for kernel-scope checks). `scale`: max |b| of the phase and layer in the baseline.
TensorMetrics measure(const DumpTensor& base, const DumpTensor& target, double scale);

nlohmann::ordered_json to_json(const CompareRecord& r);
/// JSONL: a header record, one record per tensor and prompt, a summary record. Text is rendered from these alone.
std::vector<nlohmann::ordered_json> to_records(const CompareResult& r, const Dump& base, const Dump& target);
std::string render_text(const std::vector<nlohmann::ordered_json>& records, bool color, bool verbose);

}  // namespace assay

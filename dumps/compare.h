// Comparing two dumps at a level, with a place for every verdict. Measures and rules: dumps/README.md "Comparing".
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dumps/added.h"
#include "dumps/dump.h"

namespace assay {

enum class Level : uint8_t { greedy_prefix, max_rel, byte_exact };  // rising strength
std::string_view name_of(Level l);
std::optional<Level> level_from_name(std::string_view s);

/// Where in a tensor a figure was taken: row (product of all axes but the last), column, and both values.
struct Place {
  int64_t row = -1, column = -1;
  double base = 0, target = 0;
};

/// All metrics of one tensor pair, from one pass over the values. max_rel = max |t-b| / max(max|b| of the row, 0.1 * scale),
/// scale = max |b| of that phase and layer over the whole baseline. Maxima are over elements that are finite on both sides.
struct TensorMetrics {
  int64_t elements = 0;
  int64_t bits_equal = 0;        // elements of the same bits (equal dtypes) or the same value (widened); a NaN is never equal
  double scale = 0;              // the scale that max_rel and worst_row_l2 were taken with
  double max_base = 0;           // max |b| over its finite values
  double max_abs = 0;  Place max_abs_at;
  double max_rel = 0;  Place max_rel_at;
  double worst_row_l2 = 0; int64_t worst_row_l2_at = -1;  // ||t-b|| / max(||b||, 0.1*scale*sqrt(columns)) of the worst row
  int64_t ulp_le_1 = 0, ulp_le_4 = 0;   // elements at most 1 / 4 ULP (of the narrower float type) apart
  int64_t non_finite_base_only = 0, non_finite_target_only = 0, non_finite_both = 0, non_finite_mismatch = 0;
  int64_t nan_both = 0;          // part of non_finite_both and of non_finite_mismatch: NaN is never equal
  Place non_finite_at;           // the first mismatch (one side only, or different kinds: Inf against NaN, other sign)
  Place first_difference;        // the first element that is not bit-equal (see bits_equal)
};

/// What is computed on request only (CompareOptions::extra). Absent rows: -1. Elements that are not finite are left out.
struct ExtraMetrics {
  double cosine = 1, worst_row_cosine = 1; int64_t worst_row_cosine_at = -1;
  double nmse = 0;                                      // ||t-b||^2 / ||b||^2
  double max_elementwise_rel = 0; Place max_elementwise_rel_at;  // |t-b| / |b|; Inf where b alone is 0
  bool logits = false;                                  // the rest is of logits only, by row
  double kl_mean = 0, kl_max = 0; int64_t kl_max_at = -1;  // KL(softmax(b) || softmax(t)), nats
  int64_t rows = 0, top1_agree = 0, top5_agree = 0;     // rows whose first / first five ids agree in order
  double min_margin = 0; int64_t min_margin_at = -1;    // least difference of the best two baseline logits
};

enum class Status : uint8_t { pass, fail, near_tie, skipped };
std::string_view name_of(Status s);

/// One line of the result: one tensor. Serialised as a JSONL record (schemas/record.schema.json).
struct CompareRecord {
  std::string name;
  int64_t order = 0;
  Status status = Status::pass;
  /// For machines: "" (pass), "value", "added", "bits", "ids", "non_finite", "missing", "extra", "shape", "dtype", "no_tolerance",
  /// "no_values", "not_materialised", "other_tokens", "other_experts", "routing", "empty", "replicas".
  std::string kind;
  std::string reason;            // for people: "shape [5, 64], wanted [5, 96]", "NaN in target only at row 3 column 7"
  std::string dtype_base, dtype_target;
  std::vector<int64_t> shape;    // of the baseline (of the target for an extra tensor)
  std::string from;              // the target's own names, where a map brought it (map.h)
  std::string answered_by;       // the target's tensor, where it bears another name: logits for a missing logits_last
  std::optional<TensorMetrics> metrics;   // absent when hashes decided, or the tensor is missing
  std::optional<ExtraMetrics> extra;
  double tolerance = 0;          // what max_rel was held against; -1 where none applies
  std::optional<double> added_limit;      // judged by the error that its window adds, which was held against this
  Place added_at;                // where the window adds most: base is its float64 result
  std::optional<Level> reached;
  /// CompareOptions::row_errors: max_rel by position (of caches: over all heads), `rows_per_bin` positions to a value, from
  /// `row_position` on. Empty where rows are no positions.
  std::vector<double> row_max_rel;
  int64_t row_position = -1, rows_per_bin = 1;
};

struct GreedyRecord {
  std::string prompt;
  int64_t prefix = 0, length = 0;     // ids in common before the first difference, ids compared
  int64_t agreed = 0;                 // equal ids among those compared; none is no agreement, whatever the margins
  Status status = Status::pass;
  std::string reason;
  std::optional<double> min_margin;   // the baseline's least margin over the compared steps, if it is known
  struct Flip {
    int64_t step; int64_t base_id, target_id; double margin; double noise; bool near_tie;
    std::string reason;               // why it is none: "margin 0.8 above noise 2e-05", "no logits to judge it by"
  };
  std::vector<Flip> flips;
};

/// Choices of experts by one router in one pass: `router_topk_ids` of both sides, rows whose experts (or their order) differ, and
/// the worst of them. Regret: how much more the baseline's own choice scores than the target's, by the baseline's router
/// logits, at the rank where that is most. Infinite: no experts, or a NaN among the scores.
struct RoutingRecord {
  std::string name;
  int64_t rows = 0, flips = 0;
  double worst_regret = 0;
  int64_t row = -1, position = -1;
  std::vector<int64_t> base_ids, target_ids;   // of that row; the baseline's own choice, whatever it was made to run with
  Status status = Status::pass;                // near_tie: every regret is under the cap
  std::string reason;
};

/// Agreement of the best k ids of a baseline's `logits_top_ids` with the target's logits. Reported, never a failure.
struct TopkRecord {
  std::string name;              // the baseline's tensor
  int64_t k = 0, rows = 0, top1 = 0, order = 0, common = 0;  // rows: same best id, all k ids in order; ids in common, of rows*k
  double values_max_abs = 0;     // largest |difference| of the logits of the baseline's ids, where it has logits_top_values
};

/// Named tolerance presets (dumps/README.md documents each). A tensor without a tolerance is a failure, never a pass.
struct Tolerance {
  std::string preset;            // "official-f32", "bf16", ... or "custom"
  double fixed = 0;              // --tol: at least this
  double noise_factor = 0;       // times the baseline's noise floor for that phase, if it has floors
  std::string floor = "float32"; // whose floors: the table's name in the manifest of an official case ("bfloat16")
  std::map<std::string, double> by_phase;  // overrides; keys as of noise_floor(): "q_rope", "state/k"
  /// Both sides' caches are rounded to the same narrow type: any difference, however small, may round a cached value to its
  /// neighbour. So many of its units in the last place (`cache_ulp`, relative; compare() fills it) are added to `fixed`.
  double cache_ulps = 0, cache_ulp = 0;
  /// Low-precision targets: by how much a stored value is rounded, relative to itself. CompareOptions::added is judged by it.
  double unit = 0;
  double greedy_margin_cap = 0;  // NEARTIE: no margin above this is a tie, whatever the measured noise; 0: no flip is a tie
  int64_t max_near_ties = 0;     // more than this many fail
  double regret_cap = 0;         // choices of experts: no regret above this is admitted; 0: every other choice fails
  double max_flip_share = 0;     // of all choices; more than this fail, whatever their regret
};
const std::map<std::string, Tolerance>& presets();
/// The tolerance of one tensor; nullopt: it has none.
std::optional<double> tolerance_of(const Tolerance& t, const std::string& phase, const Dump& base);

struct CompareOptions {
  Level level = Level::max_rel;
  Tolerance tolerance;
  std::optional<std::string> until;   // compare only up to and including this node ("pass, partial")
  std::vector<std::string> only;      // phases; empty: all
  int threads = 0;                    // 0: all cores
  bool extra = false;                 // ExtraMetrics, in a second pass over the values
  bool row_errors = false;            // CompareRecord::row_max_rel, for maps by position
  /// Of each side's nodes, where a model was at hand (oracle/window.h). With Tolerance::unit at max_rel the target's decide
  /// in place of the accumulated error; else they are shown.
  std::vector<NodeError> added, added_base;
  std::function<void(int64_t done, int64_t total)> progress;  // bytes of both sides; called from one thread at a time
};

/// The first failing node, for people and machines. Of each prompt's first failing tensor in execution order, the one
/// furthest upstream in the forward pass: a case with one fully captured prompt names the layer, not another's logits.
struct Divergence {
  std::string name, from, prompt, pass, step, layer, phase, kind;  // from: CompareRecord::from
  std::string where;                   // "row 4 (position 4), column 17"
  int64_t row = -1, position = -1, column = -1;  // the first row over the tolerance; its worst element
  std::optional<double> base, target;
  std::string text;                    // one sentence
};

struct CompareResult {
  Level level;
  Tolerance tolerance;
  std::vector<CompareRecord> records;   // in execution order
  std::vector<GreedyRecord> greedy;
  std::vector<RoutingRecord> routing;
  std::vector<TopkRecord> topk;
  std::optional<std::string> first_divergence;   // Divergence::text
  std::optional<Divergence> divergence;
  double smallest_passing_tolerance = 0;  // one --tol that every compared float tensor meets; Inf: no tolerance would do
  int64_t compared = 0, failed = 0, near_ties = 0, skipped = 0, missing = 0, extra = 0;
  int64_t choices = 0, flips = 0;         // of experts: judged, and other ones than the baseline's
  int64_t elements = 0, bytes_read = 0;   // of both sides
  std::optional<Level> reached;         // the strongest level that holds for all
  bool partial = false;                 // --until or --only
  std::vector<NodeError> added, added_base;  // as CompareOptions has them
  std::vector<std::string> warnings;    // settings that differ, manifest statistics that contradict the values
  int exit_code() const;                // 0, 1; nothing compared: 1
};

CompareResult compare(const Dump& base, const Dump& target, const CompareOptions& options);
/// One tensor pair (also for kernel-scope checks). `scale`: max |b| of the phase and layer in the baseline.
TensorMetrics measure(const DumpTensor& base, const DumpTensor& target, double scale);

nlohmann::ordered_json to_json(const CompareRecord& r);
nlohmann::ordered_json to_json(const GreedyRecord& r);
/// JSONL: a header record, one record per tensor and prompt, a summary record. Text is rendered from these alone.
std::vector<nlohmann::ordered_json> to_records(const CompareResult& r, const Dump& base, const Dump& target);
std::string render_text(const std::vector<nlohmann::ordered_json>& records, bool color, bool verbose);

}  // namespace assay

#include "dumps/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "dumps/compare_plan.h"
#include "dumps/metrics.h"
#include "dumps/names.h"
#include "dumps/rows.h"

namespace assay {
namespace {

using comparing::Pair;
using comparing::Plan;

std::string count_text(int64_t n, int64_t of) { return fmt::format("{} of {}", n, of); }

/// Which sides hold what is not finite, and where it begins.
std::string non_finite_text(const Dump& base, const CompareRecord& r) {
  const TensorMetrics& m = *r.metrics;
  const Place& at = m.non_finite_at;
  auto what = [](double x) { return std::isnan(x) ? "NaN" : std::isinf(x) ? (x < 0 ? "-Inf" : "Inf") : nullptr; };
  const char *b = what(at.base), *t = what(at.target);
  std::string text;
  if (b && t) {
    text = std::string(b) == t ? fmt::format("{} on both sides", b) : fmt::format("{} in base, {} in target,", b, t);
  } else {
    text = b ? fmt::format("{} in base only", b) : fmt::format("{} in target only", t ? t : "NaN");
  }
  text += " at " + comparing::place_text(base, r.name, r.shape, at.row, at.column);
  if (m.non_finite_mismatch > 1) {
    text += fmt::format(" ({} such elements: {} in base only, {} in target only, {} in both)", m.non_finite_mismatch,
                        m.non_finite_base_only, m.non_finite_target_only,
                        m.non_finite_mismatch - m.non_finite_base_only - m.non_finite_target_only);
  }
  return text;
}

bool same_everywhere(const TensorMetrics& m) { return m.bits_equal == m.elements && m.non_finite_mismatch == 0; }

class Judge {
 public:
  Judge(const Dump& base, const Dump& target, const CompareOptions& options)
      : base_(base), target_(target), options_(options) {
    if (options.level == Level::max_rel && options.tolerance.unit > 0)
      for (const NodeError& e : options.added) added_.emplace(e.name, &e);
  }

  CompareResult run() {
    out_.level = options_.level;
    out_.tolerance = options_.tolerance;
    GreedyOutcome greedy = compare_greedy(base_, target_, options_.tolerance);
    routing_.emplace(base_, target_, options_.tolerance, options_.level == Level::max_rel);
    plan_ = comparing::make_plan(base_, target_, options_, greedy, *routing_);
    out_.partial = plan_.partial;
    measure();
    for (const Pair& p : plan_.pairs) judge(p);
    judge_unpaired();
    out_.added = options_.added;
    out_.added_base = options_.added_base;
    if (options_.level == Level::greedy_prefix) only_ids_count();
    for (const auto& [tensor, name] : plan_.topk) {
      TopkRecord r = comparing::top_k(target_, base_, *tensor);
      if (r.rows > 0) out_.topk.push_back(std::move(r));
    }
    // With a part of the nodes only, the ids (which depend on all) are out of view unless asked for.
    const bool ids_asked = std::find(options_.only.begin(), options_.only.end(), "greedy_ids") != options_.only.end();
    if (!plan_.partial || (ids_asked && !options_.until)) out_.greedy = std::move(greedy.records);
    for (const CompareRecord& r : plan_.records) out_.partial = out_.partial || r.kind == "other_experts";
    out_.choices = routing_->choices();
    out_.flips = routing_->flips();
    too_many_flips();
    out_.routing = routing_->take();
    count();
    out_.divergence = comparing::find_divergence(base_, plan_, out_.greedy);
    if (out_.divergence) out_.first_divergence = out_.divergence->text;
    out_.records = std::move(plan_.records);
    if (unpaired_)  // they stand behind the others so far
      std::stable_sort(out_.records.begin(), out_.records.end(),
                       [](const auto& a, const auto& b) { return execution_key(a.name) < execution_key(b.name); });
    return std::move(out_);
  }

 private:
  void set_scales(const std::unordered_map<std::string, double>& scales) {
    for (Pair& p : plan_.pairs) {
      const auto it = scales.find(comparing::scale_key(p.base.name));
      p.scale = it == scales.end() ? 0 : it->second;
    }
  }

  void measure() {
    std::vector<std::string> keys;
    for (const Pair& p : plan_.pairs) {
      if (p.measure) keys.push_back(comparing::scale_key(p.base.name));
    }
    if (options_.row_errors) {
      for (Pair& p : plan_.pairs) {
        CompareRecord& r = plan_.records[p.record];
        if (!p.measure || !is_float(p.base.dtype) || !is_float(p.target.dtype)) continue;
        p.positions = comparing::positions_of(base_, r.name, r.shape);
        if (p.positions > 0) r.row_position = comparing::position_of(base_, r.name, r.shape, 0);
      }
    }
    std::unordered_map<std::string, double> scales = comparing::usual_scales(base_, keys, options_.threads);
    set_scales(scales);
    comparing::measure_pairs(plan_, options_);
    check_statistics(scales);
    for (Pair& p : plan_.pairs) {
      CompareRecord& r = plan_.records[p.record];
      if (!p.measure) continue;
      out_.elements += 2 * r.metrics->elements;
      out_.bytes_read += p.bytes();
      if (options_.extra && is_float(p.base.dtype) && is_float(p.target.dtype)) {
        const std::string phase = comparing::phase_key(r.name);
        r.extra = measure_extra(p.base, p.target, p.scale, phase == "logits" || phase == "logits_last");
      }
    }
  }

  /// The usual scale may come from a manifest's statistics. Where the values say otherwise, the values count: a scale that a
  /// manifest sets too high would hide errors.
  void check_statistics(std::unordered_map<std::string, double>& scales) {
    bool again = false;
    std::unordered_map<std::string, double> seen;
    for (const Pair& p : plan_.pairs) {
      if (!p.measure || !p.base.stats || !is_float(p.base.dtype)) continue;
      const double most = plan_.records[p.record].metrics->max_base;
      const double told = std::max(std::fabs(p.base.stats->min), std::fabs(p.base.stats->max));
      if (told == most) continue;
      again = true;
      out_.warnings.push_back(fmt::format("{}: the manifest's statistics give max |b| {:.9g}, the values {:.9g}", p.base.name,
                                          told, most));
    }
    if (!again) return;
    for (const Pair& p : plan_.pairs) {
      if (p.measure) {
        double& s = seen[comparing::scale_key(p.base.name)];
        s = std::max(s, plan_.records[p.record].metrics->max_base);
      }
    }
    for (auto& [key, scale] : scales) {
      if (const auto it = seen.find(key); it != seen.end()) scale = it->second;
    }
    set_scales(scales);
    comparing::measure_pairs(plan_, options_);
  }

  void fail(CompareRecord& r, const char* kind, std::string reason) {
    if (r.status == Status::fail) return;  // the first reason stands (a dtype at byte_exact)
    r.status = Status::fail;
    r.kind = kind;
    r.reason = std::move(reason);
  }

  void judge(const Pair& p) {
    CompareRecord& r = plan_.records[p.record];
    if (!r.metrics) return;  // decided by hashes
    const TensorMetrics& m = *r.metrics;
    if (const RoutingRecord* choice = routing_->find(r.name)) return judge_choice(r, *choice);
    if (const auto it = added_.find(r.name); it != added_.end() && m.non_finite_mismatch == 0 && is_float(p.target.dtype))
      return judge_added(r, *it->second);
    const bool floats = is_float(p.base.dtype) && is_float(p.target.dtype);
    const bool exact = p.base.dtype == p.target.dtype && same_everywhere(m);
    std::optional<double> tolerance;
    if (floats) tolerance = tolerance_of(options_.tolerance, comparing::phase_key(r.name), base_);
    if (tolerance) r.tolerance = *tolerance;
    const bool within = floats ? m.non_finite_mismatch == 0 && tolerance && m.max_rel <= *tolerance : same_everywhere(m);
    if (exact) {
      r.reached = Level::byte_exact;
    } else if (within) {
      r.reached = Level::max_rel;
    }
    if (m.non_finite_mismatch > 0) return fail(r, "non_finite", non_finite_text(base_, r));
    if (options_.level == Level::byte_exact) {
      if (exact) return;
      const Place& at = m.first_difference;
      return fail(r, "bits", fmt::format("{} elements differ in their bits, first at {}: base {:.9g}, target {:.9g}",
                                         count_text(m.elements - m.bits_equal, m.elements),
                                         comparing::place_text(base_, r.name, r.shape, at.row, at.column), at.base, at.target));
    }
    if (within) return;
    if (!floats) {
      const Place& at = m.first_difference;
      return fail(r, "ids", fmt::format("{} values differ, first at {}: base {:.15g}, target {:.15g}",
                                        count_text(m.elements - m.bits_equal, m.elements),
                                        comparing::place_text(base_, r.name, r.shape, at.row, at.column), at.base, at.target));
    }
    if (!tolerance) {
      return fail(r, "no_tolerance", fmt::format("no tolerance for {}: give a preset or --tol (max_rel is {:.3g})",
                                                 comparing::phase_key(r.name), m.max_rel));
    }
    const Place& at = m.max_rel_at;
    fail(r, "value", fmt::format("max_rel {:.3g} above {:.3g} at {}: base {:.9g}, target {:.9g}", m.max_rel, *tolerance,
                                 comparing::place_text(base_, r.name, r.shape, at.row, at.column), at.base, at.target));
  }

  /// Experts are no quantities: other ones are judged by what the choice was worth.
  void judge_choice(CompareRecord& r, const RoutingRecord& choice) {
    if (choice.status == Status::fail) return fail(r, "routing", choice.reason);
    r.reason = choice.reason;
    r.reached = same_everywhere(*r.metrics) ? Level::byte_exact : Level::max_rel;
  }

  /// Each choice may be excused; many of them are another router.
  void too_many_flips() {
    if (!routing_->too_many()) return;
    for (CompareRecord& r : plan_.records) {
      const RoutingRecord* choice = routing_->find(r.name);
      if (!choice || choice->flips == 0) continue;
      return fail(r, "routing", fmt::format("{} of {} choices of experts differ, at most {:g}% may; here {}", routing_->flips(), routing_->choices(),
                                            100 * options_.tolerance.max_flip_share, choice->reason));
    }
  }

  /// The target is of low precision, and what its window adds is known: accumulated error is shown, and decides nothing.
  void judge_added(CompareRecord& r, const NodeError& e) {
    r.tolerance = -1;
    r.added_limit = added_limit(options_.tolerance.unit, comparing::phase_key(r.name));
    r.added_at = {e.row, e.column, e.oracle, e.value};
    if (e.added <= *r.added_limit) {
      r.reached = r.metrics && same_everywhere(*r.metrics) ? Level::byte_exact : Level::max_rel;
      return;
    }
    if (!e.problem.empty()) return fail(r, "added", e.problem);
    fail(r, "added", fmt::format("adds {:.4g}, at most {:.4g}, at {}: float64 on its own inputs {:.9g}, target {:.9g}", e.added,
                                 *r.added_limit, comparing::place_text(base_, r.name, r.shape, e.row, e.column), e.oracle,
                                 e.value));
  }

  /// What a partial baseline does not hold may be wrong all the same: it may add too much error, or hold a NaN.
  void judge_unpaired() {
    if (plan_.partial || options_.level == Level::greedy_prefix) return;
    std::unordered_set<std::string> judged;
    for (const CompareRecord& r : plan_.records)
      if (r.metrics || r.reached || r.status != Status::pass) judged.insert(r.name);
    const auto fresh = [&](const DumpTensor& t) {
      CompareRecord r;
      r.name = t.name;
      r.order = t.order;
      r.dtype_target = name_of(t.dtype);
      r.shape = t.shape;
      r.from = t.from;
      return r;
    };
    for (const auto& [name, e] : added_) {
      const DumpTensor* t = target_.find(name);
      if (!t || judged.contains(name) || e->added <= added_limit(options_.tolerance.unit, comparing::phase_key(name))) continue;
      CompareRecord r = fresh(*t);
      judge_added(r, *e);
      judged.insert(name);
      plan_.records.push_back(std::move(r));
      unpaired_ = true;
    }
    if (!base_.partial()) return;  // then every such tensor has failed as extra
    for (const DumpTensor& t : target_.tensors()) {
      if (judged.contains(t.name) || !is_float(t.dtype) || base_.find(t.name)) continue;
      const int64_t at = first_non_finite(t);
      if (at < 0) continue;
      CompareRecord r = fresh(t);
      fail(r, "non_finite", "not finite in the target, at " +
                                comparing::place_text(base_, t.name, t.shape, at / std::max<int64_t>(1, t.columns()),
                                                      at % std::max<int64_t>(1, t.columns())) +
                                "; the baseline does not hold this tensor");
      plan_.records.push_back(std::move(r));
      unpaired_ = true;
    }
  }

  /// The first element that is NaN or Inf; -1: none, or nothing says so.
  static int64_t first_non_finite(const DumpTensor& t) {
    if (t.stats && t.stats->non_finite == 0) return -1;
    for (int64_t i = 0; t.data && i < t.elements(); i++)
      if (!std::isfinite(value_at(t.dtype, t.data, i))) return i;
    return t.stats && t.stats->non_finite > 0 ? 0 : -1;
  }

  /// At greedy_prefix the ids decide. What else was there is shown, and never counts as compared.
  void only_ids_count() {
    for (CompareRecord& r : plan_.records) {
      const auto n = parse_tensor_name(r.name);
      if (n && n->phase == "ids" && n->pass.empty()) continue;
      if (r.status == Status::fail || r.status == Status::pass) {
        r.status = Status::skipped;
        r.kind = "not_required";
      }
    }
  }

  void count() {
    constexpr double kInf = std::numeric_limits<double>::infinity();
    bool all_exact = true, all_within = true, any = false;
    const bool greedy_level = options_.level == Level::greedy_prefix;
    for (const CompareRecord& r : plan_.records) {
      const bool absent = r.kind == "missing" || r.kind == "extra";
      if (r.kind == "missing") out_.missing++;
      if (r.kind == "extra") out_.extra++;
      if (r.status == Status::skipped) out_.skipped++;
      if (r.status == Status::fail) out_.failed++;
      if (!absent && r.status != Status::skipped) out_.compared++;
      const bool looked_at = r.metrics || r.reached;
      if (r.status == Status::skipped && r.kind != "not_required") continue;
      any = true;
      all_exact = all_exact && r.reached == Level::byte_exact;
      all_within = all_within && r.reached && *r.reached >= Level::max_rel;
      if (r.status == Status::skipped && !looked_at) all_exact = all_within = false;
      double needed = r.reached == Level::byte_exact ? 0 : kInf;
      const bool floats = r.dtype_base.find('F') != std::string::npos && r.dtype_target.find('F') != std::string::npos;
      if (r.metrics && floats && r.metrics->non_finite_mismatch == 0) needed = r.metrics->max_rel;
      if (r.added_limit) needed = r.status == Status::fail ? kInf : 0;  // no --tol changes what a window adds
      if (r.metrics && !floats && (same_everywhere(*r.metrics) || r.reached)) needed = 0;
      out_.smallest_passing_tolerance = std::max(out_.smallest_passing_tolerance, needed);
    }
    bool greedy_holds = !out_.greedy.empty();
    for (const GreedyRecord& g : out_.greedy) {
      out_.compared++;
      if (g.status == Status::fail) out_.failed++;
      greedy_holds = greedy_holds && g.status != Status::fail;
      if (g.status != Status::pass) all_exact = false;
      if (g.status == Status::fail) all_within = false;
      for (const GreedyRecord::Flip& f : g.flips) out_.near_ties += f.near_tie;
    }
    if (out_.near_ties > options_.tolerance.max_near_ties) greedy_holds = all_within = false;
    if (greedy_level && out_.greedy.empty()) out_.compared = 0;  // prompts' ids alone prove nothing
    if (out_.compared == 0) return;
    if (any && all_exact) {
      out_.reached = Level::byte_exact;
    } else if (any && all_within) {
      out_.reached = Level::max_rel;
    } else if (greedy_holds) {
      out_.reached = Level::greedy_prefix;
    }
  }

  const Dump &base_, &target_;
  const CompareOptions& options_;
  std::unordered_map<std::string, const NodeError*> added_;  // that the target is judged by
  std::optional<Routing> routing_;
  bool unpaired_ = false;                                    // records of what the baseline does not hold
  Plan plan_;
  CompareResult out_;
};

}  // namespace

std::string_view name_of(Level l) {
  return l == Level::greedy_prefix ? "greedy_prefix" : l == Level::max_rel ? "max_rel" : "byte_exact";
}

std::optional<Level> level_from_name(std::string_view s) {
  for (Level l : {Level::greedy_prefix, Level::max_rel, Level::byte_exact}) {
    if (name_of(l) == s) return l;
  }
  return std::nullopt;
}

std::string_view name_of(Status s) {
  return s == Status::pass ? "pass" : s == Status::fail ? "fail" : s == Status::near_tie ? "near_tie" : "skipped";
}

int CompareResult::exit_code() const {
  return compared == 0 || failed > 0 || near_ties > tolerance.max_near_ties ? 1 : 0;
}

/// Options that change bits on purpose, where both sides name them and differ: the first thing to look at.
static std::vector<std::string> differing_settings(const Dump& base, const Dump& target) {
  std::vector<std::string> out;
  if (!base.manifest().contains("options") || !target.manifest().contains("options")) return out;
  const auto &b = base.manifest()["options"], &t = target.manifest()["options"];
  for (const char* name : {"activations", "kv", "rms_eps", "attention_scale_head_dim", "rope", "tied"}) {
    if (!b.contains(name) || !t.contains(name) || b[name] == t[name]) continue;
    if (b[name].is_number() && t[name].is_number() && b[name].get<float>() == t[name].get<float>()) continue;  // 1e-05 as f32
    out.push_back(fmt::format("settings differ: {} is {} in the base, {} in the target; other bits are to be expected", name,
                              b[name].dump(), t[name].dump()));
  }
  return out;
}

/// One unit in the last place, relative to a value, of the type that both sides round their caches to; 0: they are float32 or
/// wider, or differ (then one side is more exact, which is no neighbouring rounding).
static double cache_ulp(const Dump& base, const Dump& target) {
  const auto type_of = [](const Dump& d) -> std::string {
    for (const DumpTensor& t : d.tensors()) {
      const auto n = parse_tensor_name(t.name);
      if (n && n->is_state() && (n->phase == "k" || n->phase == "v")) return std::string(name_of(t.dtype));
    }
    const auto& m = d.manifest();
    if (!m.is_object() || !m.contains("options") || !m["options"].is_object()) return "";
    const std::string kv = m["options"].contains("kv") && m["options"]["kv"].is_string() ? m["options"]["kv"] : "";
    return kv == "f16" ? "F16" : kv == "bf16" ? "BF16" : "";
  };
  const std::string type = type_of(base);
  if (type != type_of(target)) return 0;
  return type == "F16" ? 0x1p-10 : type == "BF16" ? 0x1p-7 : 0;
}

CompareResult compare(const Dump& base, const Dump& target, const CompareOptions& given) {
  CompareOptions options = given;
  options.tolerance.cache_ulp = options.tolerance.cache_ulps > 0 ? cache_ulp(base, target) : 0;
  const auto judged = [&] {
    if (!base.manifest().contains("rows") && !target.manifest().contains("rows")) return Judge(base, target, options).run();
    const Dump logical_base = align_rows(base), logical_target = align_rows(target);
    return Judge(logical_base, logical_target, options).run();
  };
  CompareResult result = judged();
  for (std::string& s : differing_settings(base, target)) result.warnings.push_back(std::move(s));
  return result;
}

}  // namespace assay

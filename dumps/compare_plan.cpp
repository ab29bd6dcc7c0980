#include "dumps/compare_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "dumps/error.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay::comparing {
namespace {

std::string last_part(const std::string& name) {
  const size_t slash = name.rfind('/');
  return slash == std::string::npos ? name : name.substr(slash + 1);
}

bool is_topk(const std::string& phase) { return phase == "logits_top_ids" || phase == "logits_top_values"; }

/// May tensors of this pass be compared, when decode/0 .. decode/<fed-1> consumed the same tokens? `steps`: decode passes.
bool saw_same_tokens(const TensorName& n, int64_t fed, int64_t steps) {
  if (fed < 0) return false;
  if (fed == kAllFed || n.pass == "prefill" || n.pass.empty()) return true;
  const int64_t step = n.step_number();
  if (n.pass == "decode") return step >= 0 && fed > step;
  if (n.pass == "mtp_prefill" || n.pass == "mtp_draft") return fed >= 1;  // their last token is the first greedy id
  if (n.pass == "mtp_decode") return step >= 0 && fed > step + 1;         // consumes the id that decode/<step> chose
  if (n.is_state()) return n.step == "after_prefill" || fed > steps || (fed == steps && !n.layer.starts_with("mtp."));
  return false;
}

/// Which option of `assay dump` would have captured what a side lacks.
class CaptureHints {
 public:
  explicit CaptureHints(const Dump& side) : side_(side) {}
  /// " (...)", or nothing where no option is known. `steps`: decode passes of the other side.
  std::string of(const std::optional<TensorName>& n, int64_t steps) {
    if (!n || side_.kind() != Dump::Kind::dump) return "";
    const auto& m = side_.manifest();
    if (!n->is_state() && m.contains("capture") && m["capture"].is_object() && m["capture"].contains("filter") &&
        m["capture"]["filter"].is_string() && m["capture"]["filter"] != "") {
      return " (that side was dumped with --filter " + in_quotes(m["capture"]["filter"].get<std::string>()) + ")";
    }
    if (groups_.empty()) {
      for (const DumpTensor& t : side_.tensors()) {
        if (const auto other = parse_tensor_name(t.name)) groups_.insert(group(*other));
      }
    }
    if (groups_.contains(group(*n))) return "";
    if (n->is_state()) return " (assay dump captures it with --state)";
    return n->pass == "decode" && steps > 0 ? fmt::format(" (assay dump captures it with --decode {0}; what there is: --only '*/prefill/*')", steps) : "";
  }

 private:
  static std::string group(const TensorName& n) { return n.prompt + "/" + n.pass + "/" + n.step; }
  const Dump& side_;
  std::unordered_set<std::string> groups_;
};

class Planner {
 public:
  Planner(const Dump& base, const Dump& target, const CompareOptions& options, const GreedyOutcome& greedy, const Routing& routing)
      : base_(base), target_(target), options_(options), greedy_(greedy), routing_(routing), base_hints_(base), target_hints_(target) {
    for (const DumpTensor& t : base.tensors()) {
      const auto n = parse_tensor_name(t.name);
      if (n && n->pass == "decode") steps_[n->prompt] = std::max(steps_[n->prompt], n->step_number() + 1);
    }
  }

  Plan run() {
    check_only();
    const std::optional<size_t> last = until();
    for (size_t i = 0; i < base_.tensors().size(); i++) {
      if (last && i > *last) break;
      if (selected(base_.tensors()[i].name)) one(base_.tensors()[i]);
    }
    if (!last) extras();
    plan_.partial = last || !options_.only.empty();
    return std::move(plan_);
  }

 private:
  bool selected(const std::string& name) const {
    if (options_.only.empty()) return true;
    return std::any_of(options_.only.begin(), options_.only.end(), [&](const std::string& o) { return fits(o, name); });
  }

  /// A phase ("q_rope", "state/k"), or with * a glob over whole names ("*/prefill/*").
  static bool fits(const std::string& only, const std::string& name) {
    return only.find('*') == std::string::npos ? phase_key(name) == only : glob_match(only, name);
  }

  void check_only() const {
    for (const std::string& phase : options_.only) {
      const bool there = std::any_of(base_.tensors().begin(), base_.tensors().end(),
                                     [&](const DumpTensor& t) { return fits(phase, t.name); });
      if (there) continue;
      throw Error(ErrorKind::usage, "--only", "no such phase in the baseline",
                  "a phase such as q_rope or state/k, or a glob such as */prefill/*",
                  in_quotes(phase), "`assay inspect " + base_.path().string() + "` lists them");
    }
  }

  /// The node itself by its full name, else the first one in execution order that ends with it.
  std::optional<size_t> until() const {
    if (!options_.until) return std::nullopt;
    const std::string& node = *options_.until;
    for (size_t i = 0; i < base_.tensors().size(); i++) {
      const std::string& name = base_.tensors()[i].name;
      if (name == node || (!node.empty() && name.ends_with("/" + node))) return i;
    }
    throw Error(ErrorKind::usage, "--until", "no such node in the baseline", "a name such as prompt0/prefill/0/layer.3/q_rope",
                in_quotes(node), "`assay inspect " + base_.path().string() + "` lists them");
  }

  CompareRecord& record(const DumpTensor& t, Status status, std::string kind, std::string reason) {
    CompareRecord r;
    r.name = t.name;
    r.order = t.order;
    r.status = status;
    r.kind = std::move(kind);
    r.reason = std::move(reason);
    r.dtype_base = name_of(t.dtype);
    r.shape = t.shape;
    r.tolerance = -1;
    plan_.records.push_back(std::move(r));
    return plan_.records.back();
  }

  void one(const DumpTensor& b) {
    const auto n = parse_tensor_name(b.name);
    const bool exact = options_.level == Level::byte_exact;
    // Below byte_exact the ids are judged by the greedy records, where a near tie is no failure.
    if (n && n->phase == "greedy_ids" && !exact) {
      used_.insert(b.name);
      return;
    }
    const DumpTensor* t = target_.find(b.name);
    if (n && is_topk(n->phase) && !(exact && t)) {
      used_.insert(b.name);
      if (n->phase == "logits_top_ids") topk(b, *n);
      return;
    }
    if (n && !n->pass.empty()) {
      const auto fed = greedy_.common_fed.find(n->prompt);
      if (fed != greedy_.common_fed.end() && !saw_same_tokens(*n, fed->second, steps_[n->prompt])) {
        used_.insert(b.name);
        record(b, Status::skipped, "other_tokens",
               fed->second < 0 ? "not compared: another prompt" : fmt::format("not compared: other tokens from step {} on", fed->second));
        return;
      }
    }
    if (n && routing_.behind(*n)) {
      used_.insert(b.name);
      record(b, Status::skipped, "other_experts", "not compared: other experts before it");
      return;
    }
    if (t) {
      used_.insert(t->name);
      return pair(b, *t, {});
    }
    // What a forward pass leaves behind can't be fused away: a target may not excuse it. (final_norm can: into the product behind
    // it, whose logits are here.)
    const bool outer = n && (n->is_state() || n->pass.empty() || n->phase == "logits" || n->phase == "logits_last");
    if (target_.is_not_materialised(b.name) && !outer) {
      record(b, Status::skipped, "not_materialised", "not materialised on the target");
      return;
    }
    if (n && answer(b, *n)) return;
    record(b, Status::fail, "missing", "missing on the target" + target_hints_.of(n, steps_[n ? n->prompt : ""]));
  }

  /// `logits` of a full capture answers for a golden's `logits_last`, and the other way round where there is but one row.
  bool answer(const DumpTensor& b, const TensorName& n) {
    if (n.phase != "logits_last" && n.phase != "logits") return false;
    const std::string stem = b.name.substr(0, b.name.rfind('/') + 1);
    const DumpTensor* t = target_.find(stem + (n.phase == "logits" ? "logits_last" : "logits"));
    if (!t || t->columns() != b.columns() || b.rows() != 1 || t->rows() < 1) return false;
    if (n.phase == "logits" && t->rows() != 1) return false;
    DumpTensor last = *t;
    last.shape = b.shape;
    if (t->rows() > 1) {  // its last row
      last.xxh3_128.clear();
      last.stats.reset();
      const int64_t row = t->rows() - 1;
      if (t->data) last.data = t->data + size_t(row * t->columns()) * size_of(t->dtype);
      if (t->row_hashes) last.row_hashes = t->row_hashes + row;
    }
    if (!base_.find(t->name)) used_.insert(t->name);
    pair(b, last, t->name);
    return true;
  }

  void topk(const DumpTensor& b, const TensorName& n) {
    const auto fed = greedy_.common_fed.find(n.prompt);
    if (fed != greedy_.common_fed.end() && !saw_same_tokens(n, fed->second, steps_[n.prompt])) return;
    if (b.data) plan_.topk.emplace_back(&b, b.name);
  }

  void pair(const DumpTensor& b, const DumpTensor& t, std::string answered_by) {
    CompareRecord& r = record(b, Status::pass, "", "");
    r.dtype_target = name_of(t.dtype);
    r.answered_by = std::move(answered_by);
    r.from = t.from;
    if (!t.fault.empty()) {
      r.status = Status::fail;
      r.kind = "replicas";
      r.reason = t.fault;
      return;
    }
    if (b.shape != t.shape) {
      r.status = Status::fail;
      r.kind = "shape";
      r.reason = "shape " + shape_text(t.shape) + ", wanted " + shape_text(b.shape);
      return;
    }
    if (b.elements() == 0) {
      r.status = Status::skipped;
      r.kind = "empty";
      r.reason = "no elements";
      return;
    }
    if (options_.level == Level::byte_exact && b.dtype != t.dtype) {
      r.status = Status::fail;
      r.kind = "dtype";
      r.reason = fmt::format("dtype {}, wanted {}", name_of(t.dtype), name_of(b.dtype));
      // Measured all the same: the report says how far apart they are.
    }
    Pair p;
    p.record = plan_.records.size() - 1;
    p.base = b;
    p.target = t;
    p.measure = b.data && t.data;
    const bool hashes = !b.xxh3_128.empty() && !t.xxh3_128.empty() && b.dtype == t.dtype;
    const bool same = hashes && b.xxh3_128 == t.xxh3_128;
    // At byte_exact equal hashes decide, unless there are values that could be NaN, which passes nowhere.
    const bool finite = b.stats ? b.stats->non_finite == 0 : t.stats && t.stats->non_finite == 0;
    const int64_t nans = std::max(b.nans, t.nans);
    const bool no_stats = !b.stats && !t.stats && nans == 0;   // a dump of hashes alone says by `nans` that it holds one
    if (options_.level == Level::byte_exact && same && (finite || !is_float(b.dtype))) p.measure = false;
    if (!p.measure && r.status == Status::pass) {
      if (same && (finite || !is_float(b.dtype) || no_stats)) {
        r.reached = Level::byte_exact;
      } else if (same) {
        r.status = Status::fail;
        r.kind = "non_finite";
        r.reason = fmt::format("{} values are not finite on both sides, and there are no values to tell Inf from NaN",
                               b.stats ? b.stats->non_finite : t.stats ? t.stats->non_finite : nans);
      } else if (hashes) {
        r.status = Status::fail;
        r.kind = options_.level == Level::byte_exact ? "bits" : "no_values";
        r.reason = "the hashes differ";
        if (b.row_hashes && t.row_hashes) {
          int64_t row = 0;
          while (row < b.rows() && b.row_hashes[row] == t.row_hashes[row]) row++;
          if (row < b.rows()) r.reason += ", first at " + place_text(base_, b.name, b.shape, row, -1);
        }
        if (r.kind == "no_values") r.reason += "; no values to measure by (capture with --mode full)";
      } else {
        r.status = Status::fail;
        r.kind = "no_values";
        r.reason = fmt::format("no values on the {} and no hashes on both", b.data ? "target" : "baseline");
      }
    }
    plan_.pairs.push_back(std::move(p));
  }

  void extras() {
    for (const DumpTensor& t : target_.tensors()) {
      if (!selected(t.name) || used_.contains(t.name) || base_.find(t.name)) continue;
      if (base_.is_not_materialised(t.name)) {
        record(t, Status::skipped, "not_materialised", "not materialised on the baseline");
      } else if (!base_.partial()) {
        record(t, Status::fail, "extra", "only on the target" + base_hints_.of(parse_tensor_name(t.name), 0));
      } else {
        continue;
      }
      std::swap(plan_.records.back().dtype_base, plan_.records.back().dtype_target);
      plan_.records.back().from = t.from;
    }
  }

  const Dump &base_, &target_;
  const CompareOptions& options_;
  const GreedyOutcome& greedy_;
  const Routing& routing_;
  CaptureHints base_hints_, target_hints_;
  std::unordered_map<std::string, int64_t> steps_;
  std::unordered_set<std::string> used_;
  Plan plan_;
};

}  // namespace

std::string phase_key(const std::string& name) {
  const auto n = parse_tensor_name(name);
  if (!n) return last_part(name);
  return (n->is_state() ? "state/" : "") + n->phase;
}

std::string scale_key(const std::string& name) {
  const auto n = parse_tensor_name(name);
  if (!n) return "/" + name;
  return (n->is_state() ? "state/" : "") + n->phase + "/" + n->layer;
}

Plan make_plan(const Dump& base, const Dump& target, const CompareOptions& options, const GreedyOutcome& greedy, const Routing& routing) {
  return Planner(base, target, options, greedy, routing).run();
}

}  // namespace assay::comparing

#include "dumps/bisect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <unordered_map>

#include "dumps/compare_plan.h"
#include "dumps/error.h"
#include "dumps/metrics.h"
#include "dumps/names.h"
#include "dumps/rows.h"

namespace assay {
namespace {

constexpr size_t kTrail = 3;  // tensors shown before and behind the suspect
/// Where a stranger's kernel is judged and no tolerance was given: that of the preset f32.
constexpr const char* kStrangersPreset = "f32";

/// "layer.0/q_rope" of prompt0/prefill/0/layer.0/q_rope.
std::string short_name(const std::string& name) {
  const auto n = parse_tensor_name(name);
  return !n ? name : n->layer.empty() ? n->phase : n->layer + "/" + n->phase;
}

/// "prompt0/prefill/0/" of prompt0/prefill/0/layer.0/q_rope; empty for names outside the vocabulary.
std::string pass_prefix(const std::string& name) {
  const auto n = parse_tensor_name(name);
  return n && !n->pass.empty() ? n->prompt + "/" + n->pass + "/" + n->step + "/" : "";
}

std::string join(const std::vector<std::string>& parts) {
  std::string out;
  for (const std::string& p : parts) out += (out.empty() ? "" : ", ") + p;
  return out;
}

class Bisection {
 public:
  Bisection(const Dump& base, const Dump& target, const BisectOptions& options, Replayer* replayer)
      : base_(base), target_(target), options_(options), replayer_(replayer) {}

  BisectResult run() {
    if (replayer_) out_.replayer = replayer_->about();
    out_.rerun = replayer_ && replayer_->can_rerun(Side::target);
    out_.compared = compare(base_, target_, options_.compare);
    for (size_t i = 0; i < out_.compared.records.size(); i++) by_name_[out_.compared.records[i].name] = i;
    if (!out_.compared.divergence) {
      nothing_found();
      return std::move(out_);
    }
    const Divergence& d = *out_.compared.divergence;
    out_.name = d.name;
    out_.where = d.where;
    if (d.base && d.target)
      out_.where += fmt::format(": {} {:.9g}, target {:.9g}",
                                d.kind == "added" ? "float64 on its own inputs" : "base", *d.base, *d.target);
    trail();
    if (d.kind == "greedy" || d.phase == "ids") {
      ids_differ(d);
    } else if (d.kind == "missing" || d.kind == "shape" || d.kind == "no_tolerance" ||
               (d.kind == "no_values" && !hashes_differ(d))) {
      not_comparable(d);
    } else {
      from_dumps();
      if (replayer_ && !parse_state()) deeper();
    }
    return std::move(out_);
  }

 private:
  const CompareRecord* record(const std::string& name) const {
    const auto it = by_name_.find(name);
    return it == by_name_.end() ? nullptr : &out_.compared.records[it->second];
  }

  bool hashes_differ(const Divergence& d) const {
    const CompareRecord* r = record(d.name);
    return r && r->reason.find("the hashes differ") == 0;
  }

  std::optional<TensorName> parse_state() const {
    const auto n = parse_tensor_name(out_.name);
    return n && n->is_state() ? n : std::nullopt;
  }

  void say(const char* verdict, std::string text) {
    out_.verdict = verdict;
    out_.text = std::move(text);
  }

  void nothing_found() {
    const CompareResult& c = out_.compared;
    if (c.exit_code() == 0) {
      say("equal", fmt::format("no difference: {} compared at {}", c.compared, name_of(c.level)));
    } else if (c.compared == 0) {
      say("nothing", "nothing was compared, so that nothing is said of a difference");
    } else {
      say("nothing", fmt::format("no tensor differs, yet the comparison failed ({} near ties, {} allowed)", c.near_ties,
                                 c.tolerance.max_near_ties));
    }
  }

  void ids_differ(const Divergence& d) {
    if (d.phase == "ids")
      return say("other_prompts", fmt::format("{}: the sides were given other ids: {}", d.prompt, d.text));
    say("first_divergence",
        fmt::format("{}: every tensor that both have agrees, the chosen ids do not: {}", d.prompt, d.text));
  }

  void not_comparable(const Divergence& d) {
    const char* verdict = d.kind == "missing" ? "missing" : d.kind == "shape" ? "shape" : "first_divergence";
    say(verdict, fmt::format("{}: {}", out_.name, record(d.name) ? record(d.name)->reason : d.text));
  }

  BisectResult::Line line(const std::string& shown, const std::string& full) const {
    BisectResult::Line l{shown, "not dumped", std::nullopt};
    const CompareRecord* r = record(full);
    if (!r) return l;
    if (r->metrics) l.max_rel = r->metrics->max_rel;
    if (r->status == Status::skipped) {
      l.status = "not compared";
    } else if (r->status == Status::fail) {
      l.status = r->kind == "missing" ? "missing" : "differs";
    } else {
      l.status = r->reached == Level::byte_exact ? "equal" : "within";
    }
    return l;
  }

  void trail() {
    const auto at = by_name_.find(out_.name);
    if (at == by_name_.end()) return;
    const std::vector<CompareRecord>& all = out_.compared.records;
    const auto n = parse_tensor_name(out_.name);
    const auto same = [&](const CompareRecord& r) {
      const auto m = parse_tensor_name(r.name);
      return n && m ? m->prompt == n->prompt : !n && !m;
    };
    std::vector<size_t> shown = {at->second};
    for (size_t i = at->second; i-- > 0 && shown.size() <= kTrail;)
      if (same(all[i]) && all[i].status == Status::pass) shown.insert(shown.begin(), i);
    size_t behind = 0;
    for (size_t i = at->second + 1; i < all.size() && behind < kTrail; i++)
      if (same(all[i])) {
        shown.push_back(i);
        behind++;
      }
    for (size_t i : shown) out_.trail.push_back(line(all[i].name, all[i].name));
  }

  /// The full name of an input as a manifest spells it: a phase of the same pass, a state, or a name of the dump.
  std::string resolve(const Dump& d, const std::string& input) const {
    if (input.starts_with("state:") || parse_state()) return input;  // a cache's rows come from every pass
    for (size_t cut = out_.name.rfind('/'); cut != std::string::npos;
         cut = cut ? out_.name.rfind('/', cut - 1) : std::string::npos)
      if (const std::string full = out_.name.substr(0, cut + 1) + input;
          d.find(full) || full == pass_prefix(out_.name) + input)
        return full;
    return input;
  }

  std::vector<std::string> listed(const Dump& d) const {
    const DumpTensor* t = d.find(out_.name);
    if (!t && out_.name.ends_with("/logits_last")) t = d.find(pass_prefix(out_.name) + "logits");
    std::vector<std::string> out;
    if (t)
      for (const std::string& i : t->inputs) out.push_back(resolve(d, i));
    return out;
  }

  /// A cache before this pass, as far as the dumps tell it: by the state's tensors, else by the rows written to it.
  BisectResult::Line state_line(const std::string& input) const {
    BisectResult::Line l{input, "not dumped", std::nullopt};
    const auto n = parse_tensor_name(out_.name);
    const size_t slash = input.rfind('/');
    if (!n || slash == std::string::npos) return l;
    const std::string layer = input.substr(6, slash - 6), what = input.substr(slash + 1);
    const auto after = [&](const char* when) {
      return line(input, n->prompt + "/state/" + when + "/" + layer + "/" + what);
    };
    l = after("after_prefill");
    if (l.status == "differs" || (n->pass == "prefill" && l.status != "not dumped")) return l;
    if (n->pass == "decode")
      if (const auto later = after("after_decode"); later.status == "equal" || later.status == "within") return later;
    // What was written to it: k_rope and v_proj of every row up to here.
    const std::string rows = what == "k" ? "k_rope" : what == "v" ? "v_proj" : "";
    bool all = !rows.empty(), any = false;
    for (const CompareRecord& r : out_.compared.records) {
      const auto m = parse_tensor_name(r.name);
      if (!m || m->prompt != n->prompt || m->layer != layer || m->phase != rows || m->is_state()) continue;
      const bool earlier =
          m->pass == "prefill" || (m->pass == n->pass && m->step_number() <= n->step_number());
      if (!earlier) continue;
      any = true;
      all = all && r.status == Status::pass;
    }
    if (any && all) l.status = "rows equal";
    return l;
  }

  /// What the dumps alone say: their lists of inputs, and whether these agree.
  void from_dumps() {
    std::vector<std::string> names = listed(base_), theirs = listed(target_);
    const bool compared_lists = !names.empty() && !theirs.empty();
    if (const auto s = parse_state(); s && names.empty() && theirs.empty()) {
      if (s->phase == "k" || s->phase == "v") names = {s->layer + (s->phase == "k" ? "/k_rope" : "/v_proj")};
    }
    if (names.empty()) names = theirs;
    if (names.empty() && replayer_ && !parse_state())
      if (const auto wired = replayer_->inputs(out_.name)) names = *wired;
    for (const std::string& full : names) out_.inputs.push_back(input_line(full));
    const std::string at = short_name(out_.name), step = pass_prefix(out_.name);
    const std::string place = step.empty() ? at : at + " in " + step.substr(0, step.size() - 1);
    if (compared_lists && std::set(names.begin(), names.end()) != std::set(theirs.begin(), theirs.end())) {
      std::vector<std::string> b, t;
      for (const std::string& x : names) b.push_back(short_name(x));
      for (const std::string& x : theirs) t.push_back(short_name(x));
      return say("wiring", fmt::format("{} reads {} in the target, and {} in the base", place, join(t), join(b)));
    }
    if (names.empty()) {
      const std::string before = last_agreeing();
      return say("first_divergence", fmt::format("{} is where they part{}; neither dump says what it is computed from",
                                                 place, before.empty() ? "" : ", behind " + before + " that agrees"));
    }
    std::vector<std::string> differ, absent, state;
    for (const BisectResult::Line& l : out_.inputs) {
      if (l.status == "differs") (l.name.starts_with("state:") ? state : differ).push_back(short_name(l.name));
      if (l.status == "not dumped" || l.status == "missing" || l.status == "not compared")
        absent.push_back(short_name(l.name));
    }
    if (!state.empty() || (parse_state() && differ.empty() && absent.empty()))
      return say(
          "state",
          parse_state()
              ? fmt::format("{}: the rows written to it agree, the cache does not: it was written or kept wrongly",
                            out_.name)
              : fmt::format("{} reads {}, which differs though what was written to it agrees", place, join(state)));
    if (!differ.empty()) return say("input", fmt::format("{} reads {}, which differs already", place, join(differ)));
    if (!absent.empty())
      return say(
          "first_divergence",
          fmt::format("{} is where they part; its input {} was not dumped, so that the fault lies anywhere behind {}",
                      place, join(absent), last_agreeing().empty() ? "the beginning" : last_agreeing()));
    const bool exact =
        std::all_of(out_.inputs.begin(), out_.inputs.end(), [](auto& l) { return l.status != "within"; });
    say("node",
        fmt::format("{}: all its inputs agree{}, so that the fault is the node's own: its kernel, its weights{}", place,
                    exact ? "" : " within their tolerances",
                    reads_state() ? ", or the cache it reads" : " or its tables"));
  }

  bool reads_state() const {
    return std::any_of(out_.inputs.begin(), out_.inputs.end(), [](auto& l) { return l.name.starts_with("state:"); });
  }

  BisectResult::Line input_line(const std::string& full) const {
    if (full.starts_with("state:")) return state_line(full);
    if (record(full)) return line(full, full);
    // A cache's rows come from every pass.
    if (const auto s = parse_state()) {
      BisectResult::Line l{full, "not dumped", std::nullopt};
      for (const CompareRecord& r : out_.compared.records) {
        const auto m = parse_tensor_name(r.name);
        if (!m || m->prompt != s->prompt || m->is_state() || m->layer + "/" + m->phase != full) continue;
        if (s->step == "after_prefill" && m->pass != "prefill") continue;
        const BisectResult::Line one = line(full, r.name);
        if (l.status == "not dumped" || one.status == "differs" || (one.status == "within" && l.status == "equal"))
          l = one;
      }
      return l;
    }
    return line(full, full);
  }

  std::string last_agreeing() const {
    for (size_t i = 0; i + 1 < out_.trail.size(); i++)
      if (out_.trail[i + 1].name == out_.name) return short_name(out_.trail[i].name);
    return "";
  }

  // ---- with an engine

  struct Judged {
    TensorMetrics metrics;
    bool agrees = false;
    double limit = 0;
  };

  /// Whether a replayed value is what it should be: at byte_exact by bits, else within the tolerance of the phase.
  Judged judge(const Replay& r, bool exact) {
    DumpTensor want, got;
    want.name = got.name = out_.name;
    want.dtype = r.dtype;
    want.shape = got.shape = {r.rows, r.columns};
    want.data = r.expected.data();
    got.data = reinterpret_cast<const std::byte*>(r.got.data());
    double scale = 0;
    const std::string key = comparing::scale_key(out_.name);
    const auto scales = comparing::usual_scales(base_, {key}, options_.compare.threads);
    if (const auto it = scales.find(key); it != scales.end()) scale = it->second;
    Judged j;
    j.metrics = measure(want, got, scale);
    const bool bits = r.dtype == DType::f32 && j.metrics.bits_equal + j.metrics.nan_both == j.metrics.elements;
    if (exact) {
      j.agrees = bits;
      return j;
    }
    const auto given = tolerance_of(options_.compare.tolerance, comparing::phase_key(out_.name), base_);
    j.limit = may_add() ? *may_add() : given ? *given : presets().at(kStrangersPreset).fixed;
    j.agrees = bits || (j.metrics.non_finite_mismatch == 0 && j.metrics.max_rel <= j.limit);
    return j;
  }

  /// The limit that the suspect was judged by where added error decides.
  std::optional<double> may_add() const {
    const CompareRecord* r = record(out_.name);
    return r ? r->added_limit : std::nullopt;
  }

  std::string figures(const Judged& j) const {
    const Place& p = j.metrics.first_difference;
    if (p.row < 0) return "equal";
    return fmt::format("max_rel {:.3g}, first at row {}, column {}: wanted {:.9g}, got {:.9g}", j.metrics.max_rel,
                       p.row + out_.replay->first_row, p.column, p.base, p.target);
  }

  void deeper() {
    if (!replayer_->inputs(out_.name)) {
      out_.notes.push_back(
          fmt::format("{} has no node {}: nothing was replayed", out_.replayer, short_name(out_.name)));
      return;
    }
    bool own = replayer_->can_rerun(Side::target);
    if (own) {
      const std::string why = replayer_->not_reproducible(out_.name);
      if (!why.empty()) {
        say("not_reproducible", fmt::format("{}: running the target again gives another value than its dump holds: {}",
                                            short_name(out_.name), why));
        own = false;
      }
    }
    if (own)
      own_target();
    else
      strange_target();
    out_.exact = replayer_->exact(out_.name);
    if (out_.exact) {
      const double b = out_.exact->base, t = out_.exact->target;
      const char* wrong = may_add()    ? t > *may_add() ? "the target is wrong" : "the target adds what it may"
                          : t > 16 * b ? "the target is wrong"
                          : b > 16 * t ? "the base is wrong"
                                       : "neither is far worse than the other";
      out_.text +=
          fmt::format("; against float64 on each side's own inputs: base {:.2g}, target {:.2g}: {}", b, t, wrong);
    }
    if (out_.verdict == "kernel" && !options_.repro.empty()) {
      out_.repro = replayer_->reproduce(out_.name, options_.repro);
      if (!out_.repro) out_.notes.push_back("no reproducer: the fault does not show in the node alone");
    }
  }

  void own_target() {
    const std::string at = short_name(out_.name);
    out_.operands = replayer_->operands(out_.name);
    for (const Operand& o : out_.operands) {
      if (o.equal) continue;
      if (o.kind == "state") return say("state", fmt::format("{} reads {}, and {}", at, o.name, o.text));
      if (o.kind == "wiring") return say("wiring", fmt::format("{}: {}", at, o.text));
      if (o.kind == "input") return say("input", fmt::format("{} reads {}, and {}", at, o.name, o.text));
      return say("operand", fmt::format("operand corrupted: {}, {}", o.name, o.text));
    }
    out_.replay = replayer_->replay(out_.name, Side::base);
    if (!out_.replay)
      return out_.notes.push_back("the baseline lacks values of the node's inputs: nothing was replayed");
    const Judged j = judge(*out_.replay, options_.compare.level == Level::byte_exact);
    out_.replay_metrics = j.metrics;
    if (!j.agrees)
      return say(
          "kernel",
          fmt::format("kernel confirmed: {} ({}) on the baseline's inputs, with weights, tables and caches that equal "
                      "their sources, is not the baseline's: {}",
                      at, out_.replay->variant, figures(j)));
    say("input", fmt::format("kernel clean: {} ({}) on the baseline's inputs gives the baseline's value, so that an "
                             "input was already wrong "
                             "(wiring or state){}",
                             at, out_.replay->variant, named_input()));
  }

  /// The input that used most of its tolerance, where that tells something.
  std::string named_input() const {
    const BisectResult::Line* worst = nullptr;
    for (const BisectResult::Line& l : out_.inputs)
      if (l.max_rel && *l.max_rel > 0 && (!worst || *l.max_rel > *worst->max_rel)) worst = &l;
    return worst ? fmt::format(": {} differs most, max_rel {:.3g}", short_name(worst->name), *worst->max_rel) : "";
  }

  void strange_target() {
    const std::string at = short_name(out_.name);
    out_.replay = replayer_->replay(out_.name, Side::target);
    if (!out_.replay) {
      if (out_.verdict != "not_reproducible")
        out_.notes.push_back("the target lacks values of the node's inputs: nothing was replayed");
      return;
    }
    const Judged j = judge(*out_.replay, false);
    out_.replay_metrics = j.metrics;
    if (out_.verdict == "not_reproducible") return;
    if (j.agrees)
      return say(
          "input",
          fmt::format("kernel clean: on the target's own inputs the reference kernel ({}) gives the target's value "
                      "(max_rel {:.3g}, {:.3g} allowed), so that what differs came in with the inputs{}",
                      out_.replay->variant, j.metrics.max_rel, j.limit, named_input()));
    const std::string wiring = replayer_->find_wiring(out_.name);
    if (!wiring.empty()) return say("wiring", fmt::format("{} {}", at, wiring));
    say("kernel",
        fmt::format("kernel confirmed: {} in the target is not what its own inputs give: the reference kernel ({}) "
                    "differs by {} "
                    "({:.3g} allowed). Its kernel, its weights{} are left",
                    at, out_.replay->variant, figures(j), j.limit, reads_state() ? ", its cache" : ", its tables"));
  }

  const Dump &base_, &target_;
  const BisectOptions& options_;
  Replayer* const replayer_;
  std::unordered_map<std::string, size_t> by_name_;
  BisectResult out_;
};

}  // namespace

std::string_view name_of(Side s) {
  return s == Side::base ? "base" : "target";
}

int BisectResult::exit_code() const {
  return verdict == "equal" ? kPass : kMismatch;
}

BisectResult bisect(const Dump& base, const Dump& target, const BisectOptions& options, Replayer* replayer) {
  return Bisection(base, target, options, replayer).run();
}

}  // namespace assay

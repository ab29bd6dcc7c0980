#include "dumps/suggest_write.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "dumps/compare.h"
#include "dumps/error.h"
#include "dumps/map.h"
#include "dumps/map_rules.h"
#include "dumps/map_tables.h"
#include "dumps/metrics.h"
#include "dumps/names.h"
#include "dumps/rows.h"

namespace assay::suggesting {
namespace {

constexpr double kRight =
    0.15;  // max_rel up to which a rule is held for right: bfloat16 through many layers stays below

using Passes = std::vector<std::pair<std::string, std::string>>;

std::string pass_line(const std::pair<std::string, std::string>& pass) {
  return fmt::format("pass {}{}-> {}", pass.first, pass.first.empty() ? "" : " ", pass.second);
}

// The rule with full names: a line for each of its passes.
std::vector<std::string> full_lines(const Rule& r) {
  if (r.passes.empty()) return {r.text};
  const size_t arrow = r.text.find(" -> ") + 4;
  std::vector<std::string> out;
  for (const auto& [theirs, ours] : r.passes)
    out.push_back(fmt::format("/{}{}/{}{}", theirs, r.text.substr(0, arrow), ours, r.text.substr(arrow)));
  return out;
}

class SuggestionWriter {
 public:
  SuggestionWriter(const Dump& base, const Dump& theirs, Found found)
      : base_(base), theirs_(theirs), found_(std::move(found)) {}

  Suggestion run() {
    for (Rule& r : found_.rules) judge(r);
    std::string problem = "not tried";
    // As short as can be; then names in full where the passes of some rules do not fit the others; then everywhere.
    for (int names = 0; names < 3 && !problem.empty(); ++names) {
      choose_full(names);
      problem = problem_of(text().text);
    }
    if (!problem.empty()) drop_what_disturbs();
    return text();
  }

 private:
  // ---- one rule
  void judge(Rule& r) const {
    std::string text;
    for (const auto& p : r.passes) text += pass_line(p) + "\n";
    if (!r.passes.empty()) text += found_.rows_line;
    text += r.text + "\n";
    try {
      const DumpMap map = whole(text);
      const Mapping mapping(theirs_, map);
      r.makes = makes(mapping, map);
      const Dump made = align_rows(mapping.dump());
      double worst = 0;
      int64_t compared = 0, wrong = 0;
      for (const DumpTensor& t : made.tensors()) {
        const DumpTensor* b = base_.find(t.name);
        const bool is_ids = role_of(t.name) == "ids";
        if (!b || (is_ids ? t.name != r.ids : !r.ids.empty())) continue;
        if (t.shape != b->shape || !t.fault.empty() || (is_ids && !equal_ids(*b, t))) {
          ++wrong;
          continue;
        }
        ++compared;
        if (is_ids) continue;
        const TensorMetrics m = measure(*b, t, 0);
        worst = std::max(worst, m.non_finite_mismatch ? HUGE_VAL : m.max_rel);
      }
      r.good = compared > 0 && wrong == 0 && worst <= kRight;
      if (r.ids.empty())
        r.reason += fmt::format("; {} tensor{}, worst max_rel {:.2g}", compared, compared == 1 ? "" : "s", worst);
      if (wrong) r.reason += fmt::format("; {} of another shape or with replicas that differ", wrong);
      if (!r.ids.empty() && compared == 0) r.reason += "; the rule does not make them";
    } catch (const Error& e) {
      r.reason += "; can't be applied: " + one_line(e.what());
    }
  }

  static bool equal_ids(const DumpTensor& a, const DumpTensor& b) {
    if (!mapping::is_integer(a.dtype) || !mapping::is_integer(b.dtype)) return false;
    for (int64_t i = 0; i < a.elements(); ++i) {
      if (mapping::int_at(a, i) != mapping::int_at(b, i)) return false;
    }
    return true;
  }

  static std::string one_line(std::string s) {
    std::replace(s.begin(), s.end(), '\n', ' ');
    return s;
  }

  // ---- the whole
  // The text as a map that takes every tensor: what no line takes is ignored. A line that takes nothing is an error,
  // so that `ignore *` may stand there only where it is needed.
  DumpMap whole(const std::string& text) const {
    DumpMap map = DumpMap::parse(text, "suggestion");
    const DumpMap::Impl& lines = map.impl();
    std::vector<mapping::Pattern> patterns;
    for (const mapping::Rule& r : lines.rules) {
      if (r.full) patterns.push_back(r.theirs);
      for (size_t p = 0; p < lines.passes.size() && !r.full; ++p)
        patterns.push_back(joined(lines.passes[p].theirs, r.theirs, lines.at(r.line)));
      if (r.pages) patterns.push_back(mapping::parse_pattern(r.pages->name.source, lines.at(r.line)));
    }
    const bool all = std::all_of(theirs_.tensors().begin(), theirs_.tensors().end(), [&](const DumpTensor& t) {
      return role_of(t.name) == "ids" ||
             std::any_of(patterns.begin(), patterns.end(), [&](const auto& p) { return match(p, t.name).has_value(); });
    });
    return all ? map : DumpMap::parse(text + "ignore *\n", "suggestion");
  }

  static std::set<std::string> makes(const Mapping& m, const DumpMap& map) {
    std::set<int> rules;
    for (const mapping::Rule& r : map.impl().rules) {
      if (r.kind == mapping::Rule::Kind::rule) rules.insert(r.line);
    }
    std::set<std::string> out;
    for (const Mapping::Line& l : m.lines()) {
      if (rules.contains(l.line)) out.insert(fmt::format("{} of {} {}", l.name, l.theirs, l.how));
    }
    return out;
  }

  // Why the lines of a suggestion that are no comments, and its ignore lines, can't stand together; empty: they can.
  std::string problem_of(const std::string& suggestion) const {
    std::string text;
    for (size_t at = 0; at < suggestion.size();) {
      const size_t end = suggestion.find('\n', at) + 1;
      const std::string line = suggestion.substr(at, end - at);
      text += line.starts_with("# ? ignore ") ? line.substr(4) : line;
      at = end;
    }
    std::set<std::string> wanted;
    for (const Rule& r : found_.rules) {
      if (r.good) wanted.insert(r.makes.begin(), r.makes.end());
    }
    if (wanted.empty()) return {};
    try {
      const DumpMap map = whole(text);
      const std::set<std::string> made = makes(Mapping(theirs_, map), map);
      if (made == wanted) return {};
      for (const std::string& s : made) {
        if (!wanted.contains(s)) return "together they make " + s;
      }
      for (const std::string& s : wanted) {
        if (!made.contains(s)) return "together they do not make " + s;
      }
      return {};
    } catch (const Error& e) {
      return one_line(e.what());
    }
  }

  void choose_full(int names) {
    std::map<Passes, int> counts;
    for (const Rule& r : found_.rules) {
      if (r.good && !r.passes.empty()) ++counts[r.passes];
    }
    const auto most = std::max_element(counts.begin(), counts.end(),
                                       [](const auto& a, const auto& b) { return a.second < b.second; });
    full_.clear();
    for (const Rule& r : found_.rules) {
      const bool own =
          r.passes.empty() || names == 0 || (names == 1 && most != counts.end() && r.passes == most->first);
      if (!own) full_.insert(&r);
    }
  }

  // Rule by rule with full names: one that the others can't stand beside is left to a person.
  void drop_what_disturbs() {
    std::vector<Rule*> good;
    for (Rule& r : found_.rules) {
      if (r.good) good.push_back(&r), r.good = false;
    }
    for (Rule* r : good) {
      r->good = true;
      const std::string problem = problem_of(text().text);
      if (problem.empty()) continue;
      r->good = false;
      r->reason += "; does not go together with the rules above: " + problem;
    }
  }

  // ---- the file
  Suggestion text() const {
    Suggestion out;
    out.text = fmt::format("# Suggested from names and values: {} beside {}. Read it before you use it.\n",
                           theirs_.path().string(), base_.path().string());
    std::vector<std::string> head;
    for (const Rule& r : found_.rules) {
      for (const auto& p : r.passes) {
        const std::string line = pass_line(p);
        if (r.good && !full_.contains(&r) && std::find(head.begin(), head.end(), line) == head.end())
          head.push_back(line);
      }
    }
    for (const std::string& line : head) out.text += line + "\n";
    out.text += "\n";
    for (const Rule& r : found_.rules) {
      // A rule that is not sure brings its passes along: without its comment sign it must stand by itself.
      const bool there = std::all_of(r.passes.begin(), r.passes.end(), [&](const auto& p) {
        return std::find(head.begin(), head.end(), pass_line(p)) != head.end();
      });
      const std::vector<std::string> lines =
          full_.contains(&r) || !there ? full_lines(r) : std::vector<std::string>{r.text};
      for (size_t i = 0; i < lines.size(); ++i) {
        out.text +=
            fmt::format("{}{}    # {}\n", r.good ? "" : "# ? ", lines[i], i == 0 ? r.reason : "the same, another pass");
      }
      ++(r.good ? out.rules : out.unsure);
    }
    out.text += "\n" + found_.rows_line;
    for (const Leftover& l : found_.left) {
      out.text += fmt::format("# ? ignore {}    # {}\n", l.glob, l.note);
      ++out.unsure;
    }
    absent(out);
    return out;
  }

  // Phases of ours that no rule makes. They can be excused only where nothing of theirs is left that could be them.
  void absent(Suggestion& out) const {
    std::set<std::string> made, missing;
    for (const Rule& r : found_.rules) {
      const size_t arrow = r.text.find(" -> "), colon = r.text.find(" : ");
      const std::string ours =
          r.text.substr(arrow + 4, colon == std::string::npos ? std::string::npos : colon - arrow - 4);
      std::string word;
      for (char c : ours + " ") {
        if (c != ' ' && c != '/' && c != '|') {
          word += c;
          continue;
        }
        if (!word.empty()) made.insert(word);
        word.clear();
      }
    }
    for (const DumpTensor& t : base_.tensors()) {
      const auto n = parse_tensor_name(t.name);
      if (!n || n->pass != "prefill" || n->phase.starts_with("logits_") || made.contains(n->phase)) continue;
      if (phase_rank(n->phase) == phase_rank("")) continue;  // no phase that a map may excuse
      missing.insert((n->layer.empty() ? "*/" : "*/layer.*/") + n->phase);
    }
    for (const std::string& s : missing) {
      out.text += fmt::format("{}absent {}    # nothing of theirs was found to be this\n", out.unsure ? "# ? " : "", s);
    }
  }

  const Dump &base_, &theirs_;
  Found found_;
  std::set<const Rule*> full_;  // rules that are written with full names
};

}  // namespace

Suggestion write_suggestion(const Dump& base, const Dump& theirs, Found found) {
  return SuggestionWriter(base, theirs, std::move(found)).run();
}

}  // namespace assay::suggesting

// The parts of the report that speak of one comparison: first divergence, phases, tensors, greedy ids, top-k.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "dumps/report_parts.h"

namespace assay::report {
namespace {

constexpr size_t kMostTensors = 4000;  // lines of the long table
constexpr ptrdiff_t kAround = 3;       // tensors shown before and behind the first divergence

std::string status_html(const std::string& status) {
  const char* css = status == "fail" ? "fail" : status == "near_tie" ? "near" : status == "pass" ? "pass" : "";
  return fmt::format("<span class=\"st {}\">{}</span>", css, escape(status == "near_tie" ? "near tie" : status));
}

const Json* metrics_of(const Json& tensor) {
  return find(tensor, {"metrics"});
}

bool failed(const Json& r) {
  return text(r, "status") == "fail";
}
bool judged(const Json& r) {
  return text(r, "status") != "skipped" || text(r, "kind") == "not_required";
}

/// Share of the tolerance that was used, for ordering: failures without figures first, then by share.
double used(const Json& tensor) {
  const double tolerance = number(tensor, {"tolerance"}), rel = number(tensor, {"metrics", "max_rel"});
  if (failed(tensor) && !(rel > tolerance)) return HUGE_VAL;
  return tolerance > 0 && rel >= 0 ? rel / tolerance : -1;
}

std::string used_text(double tolerance, double rel) {
  if (!(tolerance > 0) || !(rel >= 0)) return "–";
  return rel > 100 * tolerance ? fmt::format("{:.3g} x", rel / tolerance)
                               : fmt::format("{:.0f}%", std::ceil(100 * rel / tolerance));
}

void figure_or_blank(HtmlTable& t, const Json& j, std::initializer_list<const char*> path) {
  if (const Json* x = find(j, path); x && !x->is_null()) {
    t.cell(number(*x));
  } else {
    t.blank();
  }
}

/// What float64 says about one node, from both sides.
std::string float64_table(const std::vector<const Json*>& nodes, const std::string& name, const std::string& id) {
  HtmlTable t(id, "Error against float64 at this place, each side on its own input",
              {"side", "#added here", "#accumulated", "#limit", "status", "at", "#float64", "#this side"});
  for (const Json* n : nodes) {
    if (text(*n, "name") != name) continue;
    t.row(failed(*n) ? "bad" : "").cell(text(*n, "side"));
    for (const char* key : {"added", "accumulated", "limit"}) figure_or_blank(t, *n, {key});
    t.html(status_html(text(*n, "status")));
    const Json* worst = find(*n, {"worst"});
    t.cell(worst ? fmt::format("row {}, column {}", integer(*worst, {"row"}), integer(*worst, {"column"})) : "–");
    figure_or_blank(t, *n, {"worst", "oracle"});
    figure_or_blank(t, *n, {"worst", "value"});
  }
  return t.empty() ? "" : t.str();
}

void divergence(const Comparison& c, const Material& all, const std::string& prefix, std::vector<Section>& out) {
  const Json* d = c.summary ? find(*c.summary, {"first_divergence"}) : nullptr;
  if (!d || !d->is_object()) return;
  const std::string name = text(*d, "name");
  std::string body =
      fmt::format("<p>{}</p>\n<dl>\n<dt>node</dt><dd class=\"mono\">{}</dd>\n", escape(text(*d, "text")), escape(name));
  if (const std::string where = text(*d, "where"); !where.empty()) {
    body += fmt::format("<dt>place</dt><dd>{}</dd>\n", escape(where));
  }
  for (const char* side : {"base", "target"}) {
    if (!find(*d, {side})) continue;
    const double x = number(*d, {side});
    body += fmt::format("<dt>{0}</dt><dd class=\"mono\" data-v=\"{1}\">{1}</dd>\n", side, exact(x));
  }
  body += "</dl>\n" + float64_table(c.nodes.empty() && all.comparisons.size() == 1 ? all.nodes : c.nodes, name, prefix + "float64");
  const auto at =
      std::find_if(c.tensors.begin(), c.tensors.end(), [&](const Json* t) { return text(*t, "name") == name; });
  if (at != c.tensors.end()) {
    HtmlTable t(prefix + "around", "What comes before and behind it in execution order",
                {"tensor", "status", "#max_rel", "#tolerance", "worst row"});
    for (auto i = at - std::min(at - c.tensors.begin(), kAround); i != c.tensors.end() && i <= at + kAround; ++i) {
      t.row(i == at ? "here" : "")
          .html("<code>" + escape(text(**i, "name")) + "</code>")
          .html(status_html(text(**i, "status")));
      figure_or_blank(t, **i, {"metrics", "max_rel"});
      figure_or_blank(t, **i, {"tolerance"});
      const Json* place = find(**i, {"metrics", "max_rel_at"});
      t.cell(place && !text(*place, "text").empty() ? text(*place, "text") : text(**i, "reason"));
    }
    body += t.str();
  }
  out.push_back({prefix + "divergence", "First divergence", body});
}

void phases(const Comparison& c, const std::string& prefix, std::vector<Section>& out) {
  struct Line {
    int64_t n = 0, failed = 0, skipped = 0, elements = 0, equal = 0;
    const Json* worst = nullptr;  // largest max_rel
    double max_abs = 0;
  };
  std::vector<std::string> order;
  std::map<std::string, Line> lines;
  for (const Json* t : c.tensors) {
    const std::string phase = text(*t, "phase");
    if (!lines.contains(phase)) order.push_back(phase);
    Line& l = lines[phase];
    if (!judged(*t)) {
      l.skipped++;
      continue;
    }
    l.n++;
    l.failed += failed(*t);
    const Json* m = metrics_of(*t);
    if (!m && text(*t, "reached") == "byte_exact") {  // equal by hash: as good as counted
      l.elements += elements_of(*t);
      l.equal += elements_of(*t);
    }
    if (!m) continue;
    l.elements += integer(*m, {"elements"});
    l.equal += integer(*m, {"bits_equal"});
    l.max_abs = std::max(l.max_abs, number(*m, {"max_abs"}));
    if (!l.worst || number(*m, {"max_rel"}) > number(*l.worst, {"metrics", "max_rel"})) l.worst = t;
  }
  if (order.empty()) return;
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return phase_order(a) < phase_order(b); });
  HtmlTable table(prefix + "phase-table", "Each phase with its worst tensor",
                  {"phase", "#tensors", "#failed", "#skipped", "#max_rel", "#tolerance", "#used", "#max_abs",
                   "#elements of equal bits", "where the worst row is"});
  for (const std::string& phase : order) {
    const Line& l = lines[phase];
    table.row(l.failed ? "bad" : "").cell(phase).count(l.n).count(l.failed).count(l.skipped);
    if (l.worst) {
      const double rel = number(*l.worst, {"metrics", "max_rel"}), tolerance = number(*l.worst, {"tolerance"});
      table.cell(rel);
      figure_or_blank(table, *l.worst, {"tolerance"});
      table.cell(used_text(tolerance, rel)).cell(l.max_abs).cell(fmt::format("{} of {}", l.equal, l.elements));
      const Json* place = find(*l.worst, {"metrics", "max_rel_at"});
      table.html(place && place->is_object()
                     ? fmt::format("<code>{}</code>: {}", escape(text(*l.worst, "name")), escape(text(*place, "text")))
                     : "–");
    } else {
      for (int i = 0; i < 4; i++) table.blank();
      table.cell(l.elements > 0 ? fmt::format("{} of {}", l.equal, l.elements) : "–").blank();
    }
  }
  out.push_back({prefix + "phase-s", "Phases", table.str()});
}

void tensors(const Comparison& c, const std::string& prefix, std::vector<Section>& out) {
  if (c.tensors.empty()) return;
  // Too many for a page: failures and the largest shares of a tolerance stay.
  std::vector<size_t> shown(c.tensors.size());
  for (size_t i = 0; i < shown.size(); i++) shown[i] = i;
  if (shown.size() > kMostTensors) {
    std::vector<double> share;
    for (const Json* t : c.tensors) share.push_back(used(*t));
    std::stable_sort(shown.begin(), shown.end(), [&](size_t a, size_t b) { return share[a] > share[b]; });
    shown.resize(kMostTensors);
    std::sort(shown.begin(), shown.end());
  }
  HtmlTable table(prefix + "tensor-table",
                  fmt::format("{} of {} tensors, in execution order", shown.size(), c.tensors.size()),
                  {"tensor", "status", "#max_rel", "#tolerance", "#max_abs", "#worst row L2", "#bits equal",
                   "#elements", "#1 ULP", "#4 ULP", "#not finite", "#row", "#column", "#base", "#target", "why"});
  for (const size_t i : shown) {
    const Json& t = *c.tensors[i];
    table.row(failed(t) ? "bad" : "").html("<code>" + escape(text(t, "name")) + "</code>");
    const std::string status = text(t, "status");
    status == "pass" ? table.cell("pass") : table.html(status_html(status));
    figure_or_blank(table, t, {"metrics", "max_rel"});
    figure_or_blank(table, t, {"tolerance"});
    for (const char* key : {"max_abs", "worst_row_l2"}) figure_or_blank(table, t, {"metrics", key});
    const Json* m = metrics_of(t);
    for (const char* key : {"bits_equal", "elements", "ulp_le_1", "ulp_le_4"}) {
      m ? table.count(integer(*m, {key})) : table.blank();
    }
    m ? table.count(integer(*m, {"non_finite", "mismatch"})) : table.blank();
    const Json* place = m ? find(*m, {"max_rel_at"}) : nullptr;
    if (place && place->is_object()) {
      table.count(integer(*place, {"row"})).count(integer(*place, {"column"}));
      table.cell(exact(number(*place, {"base"}))).cell(exact(number(*place, {"target"})));
    } else {
      for (int k = 0; k < 4; k++) table.blank();
    }
    table.cell(text(t, "reason"));
  }
  std::string body = fmt::format(
      "<details><summary>{} tensors, {} failed</summary>\n<p><label>Filter by name or text: <input type=\"search\" "
      "hidden "
      "data-for=\"{}tensor-table\"></label></p>\n{}</details>\n",
      c.tensors.size(), std::count_if(c.tensors.begin(), c.tensors.end(), [](const Json* t) { return failed(*t); }),
      prefix, table.str());
  out.push_back({prefix + "tensors", "Tensors", body});
}

void greedy(const Comparison& c, const std::string& prefix, std::vector<Section>& out) {
  HtmlTable table(prefix + "greedy-table", "Greedy ids of the target against the baseline's",
                  {"prompt", "status", "#in common", "#compared", "#least margin", "remark"});
  HtmlTable flips(prefix + "flips", "Where another id was chosen",
                  {"prompt", "#step", "#base id", "#target id", "#margin", "#noise", "near tie", "why"});
  for (const Json* g : c.greedy) {
    table.row(failed(*g) ? "bad" : "").cell(text(*g, "prompt")).html(status_html(text(*g, "status")));
    table.count(integer(*g, {"prefix"})).count(integer(*g, {"length"}));
    figure_or_blank(table, *g, {"min_margin"});
    table.cell(text(*g, "reason"));
    const Json* list = find(*g, {"flips"});
    if (!list || !list->is_array()) continue;
    for (const Json& f : *list) {
      flips.row().cell(text(*g, "prompt"));
      for (const char* key : {"step", "base_id", "target_id"}) flips.count(integer(f, {key}));
      for (const char* key : {"margin", "noise"}) figure_or_blank(flips, f, {key});
      const Json* tie = find(f, {"near_tie"});
      flips.cell(tie && *tie == true ? "yes" : "no").cell(text(f, "reason"));
    }
  }
  HtmlTable best(
      prefix + "topk", "The best logits of the baseline held against the target's; reported, not judged",
      {"tensor", "#k", "#rows", "#same best id", "#all in order", "#ids in common", "#max_abs of their logits"});
  for (const Json* t : c.topk) {
    best.row().html("<code>" + escape(text(*t, "name")) + "</code>");
    for (const char* key : {"k", "rows", "top1", "order", "common"}) best.count(integer(*t, {key}));
    figure_or_blank(best, *t, {"values_max_abs"});
  }
  std::string body;
  for (HtmlTable* t : {&table, &flips, &best}) {
    if (!t->empty()) body += t->str();
  }
  if (!body.empty()) out.push_back({prefix + "greedy", "Greedy ids and margins", body});
}

}  // namespace

std::vector<std::string> not_compared(const Comparison& c) {
  std::vector<std::string> out;
  if (!c.summary) out.push_back("The records end before the summary: the comparison did not finish.");
  const auto flag = [](const Json* j, const char* key) {
    const Json* x = j ? find(*j, {key}) : nullptr;
    return x && *x == true;
  };
  if (flag(c.summary, "partial")) {
    out.push_back(fmt::format("Only a part was asked for{}.",
                              c.head && !text(*c.head, "arguments").empty() ? ": " + text(*c.head, "arguments") : ""));
  }
  const Json* base = c.head ? find(*c.head, {"base"}) : nullptr;
  if (flag(base, "partial"))
    out.push_back("The baseline holds a part only: what the target alone holds was not compared.");
  std::map<std::string, std::pair<int64_t, std::string>> kinds;  // kind -> count, first name
  bool caches = false, decode = false;
  int64_t by_hash = 0;
  for (const Json* t : c.tensors) {
    caches = caches || text(*t, "phase").starts_with("state/");
    decode = decode || text(*t, "pass") == "decode";
    const std::string kind = text(*t, "kind");
    if (text(*t, "status") == "skipped" || kind == "missing" || kind == "extra" || kind == "shape" ||
        kind == "no_values") {
      auto& [n, first] = kinds[kind];
      if (n++ == 0) first = text(*t, "name");
    }
    by_hash += text(*t, "status") == "pass" && !metrics_of(*t);
  }
  const std::pair<const char*, const char*> words[] = {
      {"missing", "are missing on the target"},
      {"extra", "exist on the target only"},
      {"shape", "have another shape"},
      {"no_values", "have no values to measure by"},
      {"other_tokens", "saw other tokens, so nothing can be said of them"},
      {"other_experts", "were made by other experts, so nothing can be said of them"},
      {"not_materialised", "were not materialised by a fused kernel"},
      {"empty", "have no elements"},
      {"not_required", "are shown and not judged: at greedy_prefix the ids decide"}};
  for (const auto& [kind, says] : words) {
    if (const auto it = kinds.find(kind); it != kinds.end()) {
      out.push_back(fmt::format("{} tensors {}; the first is {}.", it->second.first, says, it->second.second));
    }
  }
  if (by_hash > 0)
    out.push_back(
        fmt::format("{} tensors were compared by their hashes alone: they are equal, and no value was read.", by_hash));
  if (c.greedy.empty()) out.push_back("Greedy ids were not compared.");
  if (!decode) out.push_back("No decode pass was compared.");
  if (!caches) out.push_back("No cache was compared (dump both sides with --state).");
  if (out.empty()) out.push_back("Nothing was left out: everything that the baseline holds was compared.");
  return out;
}

void comparison_sections(const Comparison& c, const Material& all, const std::string& prefix,
                         std::vector<Section>& out) {
  divergence(c, all, prefix, out);
  map_sections(c, prefix, out);
  phases(c, prefix, out);
  greedy(c, prefix, out);
  tensors(c, prefix, out);
}

}  // namespace assay::report

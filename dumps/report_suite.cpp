// The parts of the report that belong to no single comparison: added error per node, bisect, the kill matrix, checks.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "dumps/names.h"
#include "dumps/report_parts.h"

namespace assay::report {
namespace {

constexpr size_t kMostNodes = 2000;

/// A bar from 1e-16 to 1, for the eye only: the figure stands beside it.
std::string bar(double x, const char* side) {
  const double share = x > 0 ? std::clamp((std::log10(x) + 16) / 16, 0.0, 1.0) : 0;
  return fmt::format("<span class=\"track {}\" aria-hidden=\"true\"><i style=\"width:{:.0f}%\"></i></span>", side,
                     100 * share);
}

struct Node {
  const Json* target = nullptr;
  const Json* base = nullptr;
  int64_t order = 0;
};

/// Layer x phase of the added error of one side.
std::string added_map(const std::vector<std::pair<std::string, Node>>& nodes, bool base, const std::string& prefix) {
  HeatMap map;
  map.id = prefix + (base ? "added-base" : "added-target");
  map.caption = fmt::format("log10 of the error that each node of the {} adds", base ? "base" : "target");
  map.measure = "adds";
  map.upright = true;
  std::vector<std::string> layers;
  const auto place = [](std::vector<std::string>& list, const std::string& s) {
    const auto it = std::find(list.begin(), list.end(), s);
    if (it != list.end()) return size_t(it - list.begin());
    list.push_back(s);
    return list.size() - 1;
  };
  struct Point {
    size_t row, column;
    HeatMap::Cell cell;
  };
  std::vector<Point> points;
  for (const auto& [name, node] : nodes) {
    const Json* n = base ? node.base : node.target;
    const auto parts = parse_tensor_name(name);
    if (!n || !parts) continue;
    HeatMap::Cell cell;
    cell.value = number(*n, {"added"});
    if (std::isnan(cell.value)) continue;
    cell.kind = cell.value == 0 ? HeatMap::Cell::Kind::equal : HeatMap::Cell::Kind::value;
    cell.failed = text(*n, "status") == "fail";
    cell.detail = name;
    points.push_back({place(layers, parts->layer), place(map.columns, parts->phase), cell});
  }
  if (points.empty()) return "";
  // Rows and columns in the order of the forward pass, whatever the order of the records.
  std::vector<std::string> phases = map.columns, sorted = layers;
  std::stable_sort(phases.begin(), phases.end(),
                   [](const auto& a, const auto& b) { return phase_order(a) < phase_order(b); });
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::pair(a.size(), a) < std::pair(b.size(), b);  // "layer.2" before "layer.10"
  });
  for (Point& p : points) {
    p.row = size_t(std::find(sorted.begin(), sorted.end(), layers[p.row]) - sorted.begin());
    p.column = size_t(std::find(phases.begin(), phases.end(), map.columns[p.column]) - phases.begin());
  }
  map.columns = phases;
  for (const std::string& l : sorted)
    map.rows.push_back(l.empty() ? "model" : l.starts_with("layer.") ? l.substr(6) : l);
  map.cells.resize(map.rows.size() * map.columns.size());
  for (const Point& p : points) map.at(p.row, p.column).worse(p.cell);
  return heat_map_html(map);
}

/// Values as people read them: lists as lists, objects as "key value, key value".
std::string value_html(const Json& value) {
  if (value.is_array()) {
    std::string items;
    for (const Json& x : value) items += "<li>" + escape(words(x)) + "</li>";
    return items.empty() ? "none" : "<ul class=\"plain\">" + items + "</ul>";
  }
  return escape(words(value));
}

void bisects(const Material& all, std::vector<Section>& out) {
  std::string body;
  for (const Json* b : all.bisects) {
    const std::string kind = text(*b, "record");
    std::string verdict = kind == "bisect" ? text(*b, "verdict") : kind;
    bool good = verdict == "equal";
    const auto is = [&](const char* key) {
      const Json* x = find(*b, {key});
      return x && *x == true;
    };
    if (kind == "graft") {
      good = is("vanished");
      verdict = good                     ? "graft: the error vanishes"
                : find(*b, {"vanished"}) ? "graft: an error stays"
                                         : "graft: no verdict";
    }
    if (kind == "replay") {
      const Json* again = find(*b, {"reproduces"});
      good = again && *again == false;
      verdict = good ? "replay: equal" : is("reproduces") ? "replay: reproduced" : "replay: no verdict";
    }
    if (verdict.empty()) verdict = "no verdict";
    body += fmt::format(
        "<div class=\"card\"><div class=\"verdict\"><span class=\"badge {}\">{}</span><p>{}</p></div>\n<dl>\n",
        good ? "pass" : "fail", escape(verdict), escape(text(*b, "text")));
    for (const auto& [key, value] : b->items()) {
      if (key == "record" || key == "version" || key == "verdict" || key == "text" || value.is_null()) continue;
      if ((value.is_array() || value.is_string()) && (value.empty() || value == "")) continue;
      body += fmt::format("<dt>{}</dt><dd>{}</dd>\n", escape(key), value_html(value));
    }
    body += "</dl></div>\n";
  }
  if (!body.empty()) out.push_back({"bisect", "Bisect", body});
}

/// Sign, word and tone of a cell of the kill matrix.
struct Kill {
  const char *status, *sign, *word, *css;
};
constexpr Kill kKills[] = {{"missed", "✗", "missed", "fail"},
                           {"elsewhere", "≈", "elsewhere", "near"},
                           {"not_planted", "∅", "not planted", "fail"},
                           {"caught", "✓", "caught", "pass"},
                           {"survives", "○", "survives", ""},  // as the table says: this check can not see it
                           {"not_run", "–", "not run", ""},
                           {"not_applicable", "/", "not applicable", ""}};

void faults(const Material& all, std::vector<Section>& out) {
  if (all.faults.empty()) return;
  std::vector<std::string> checks;
  for (const Json* f : all.faults) {
    for (const char* key : {"expected", "found"}) {
      const Json* list = find(*f, {key});
      if (!list || !list->is_array()) continue;
      for (const Json& x : *list) {
        const std::string check = text(x, "check");
        if (std::find(checks.begin(), checks.end(), check) == checks.end()) checks.push_back(check);
      }
    }
  }
  std::sort(checks.begin(), checks.end());
  int64_t as_expected = 0;
  std::string head, rows;
  for (const std::string& c : checks) head += fmt::format("<th scope=\"col\"><span>{}</span></th>", escape(c));
  HtmlTable details(
      "fault-table", "Each fault with the place where it was expected and found",
      {"fault", "row", "what", "planted by", "as expected", "clean without it", "expected", "found", "note"});
  const auto place_list = [](const Json& f, const char* key) {
    std::string list;
    const Json* all_of = find(f, {key});
    if (!all_of || !all_of->is_array()) return list;
    for (const Json& x : *all_of) {
      std::string line = text(x, "check");
      for (const char* part : {"status", "kind", "scope", "place"}) {
        if (const std::string s = text(x, part); !s.empty())
          line += (part == std::string_view("place") ? ": " : ", ") + s;
      }
      list += "<li>" + escape(line) + "</li>";
    }
    return "<ul class=\"plain\">" + list + "</ul>";
  };
  const auto yes = [](const Json& f, const char* key) {
    const Json* x = find(f, {key});
    return x && *x == true;
  };
  for (const Json* f : all.faults) {
    const std::string id = text(*f, "id");
    const bool good = yes(*f, "caught_as_expected");
    as_expected += good;
    rows += fmt::format("<tr{}><th scope=\"row\"><code>{}</code></th>", good ? "" : " class=\"bad\"", escape(id));
    for (const std::string& check : checks) {
      const Kill* kill = nullptr;
      std::string place;
      bool wanted = false;
      for (const char* key : {"expected", "found"}) {
        const Json* list = find(*f, {key});
        if (!list || !list->is_array()) continue;
        for (const Json& x : *list) {
          if (text(x, "check") != check) continue;
          if (key == std::string_view("expected")) wanted = true;
          const bool may_miss = text(x, "status") == "missed" && yes(x, "survives");
          const std::string status = may_miss ? "survives" : text(x, "status");
          for (const Kill& k : kKills) {
            // Several entries of one check: the worst one stands.
            if (status != k.status || (kill && kill <= &k)) continue;
            kill = &k;
            place = text(x, "place");
          }
        }
      }
      if (!kill && !wanted) {
        rows += "<td></td>";
      } else if (!kill) {
        rows += "<td class=\"want fail\" title=\"expected, no result\">?</td>";
      } else {
        rows += fmt::format("<td class=\"{}{}\" title=\"{}{}{}\">{} <small>{}</small></td>", wanted ? "want " : "",
                            kill->css, kill->word, wanted ? ", as the table expects" : ", not asked for",
                            place.empty() ? "" : ": " + escape(place), kill->sign, kill->word);
      }
    }
    rows += "</tr>\n";
    details.row(good ? "" : "fail")
        .html("<code>" + escape(id) + "</code>")
        .cell(text(*f, "row"))
        .cell(text(*f, "what"));
    details.cell(text(*f, "how")).html(good ? "yes" : "<span class=\"st fail\">no</span>");
    details.html(yes(*f, "clean") ? "yes" : "<span class=\"st fail\">no</span>");
    details.html(place_list(*f, "expected")).html(place_list(*f, "found")).cell(text(*f, "note"));
  }
  std::string body =
      fmt::format("<p>{} of {} faults were caught as expected. A frame marks the checks that must catch a fault.</p>\n",
                  as_expected, all.faults.size());
  body +=
      boxed_table("kill", "Kill matrix: planted faults by checks", " class=\"kill\"",
                  "<thead><tr><th scope=\"col\">fault</th>" + head + "</tr></thead>\n<tbody>\n" + rows + "</tbody>");
  body += "<details><summary>Places</summary>\n" + details.str() + "</details>\n";
  out.push_back({"faults", "Planted faults", body});
}

void checks(const Material& all, std::vector<Section>& out) {
  if (all.checks.empty()) return;
  HtmlTable table("check-table", "Checks, those that did not pass first",
                  {"check", "verdict", "kind", "level", "scope", "#compared", "#expected", "#failed", "#near ties",
                   "#skipped", "#seconds", "what was said"});
  std::vector<const Json*> order = all.checks;
  const auto rank = [](const Json* c) {
    const std::string v = text(*c, "verdict");
    return v == "fail" ? 0 : v == "not run" ? 2 : v == "pass" ? 3 : 1;
  };
  std::stable_sort(order.begin(), order.end(), [&](const Json* a, const Json* b) { return rank(a) < rank(b); });
  std::map<std::string, int64_t> count;
  for (const Json* c : order) {
    const std::string verdict = text(*c, "verdict").empty() ? "no verdict" : text(*c, "verdict");
    count[verdict]++;
    const bool bad = verdict != "pass" && verdict != "not run";  // a word that is not known is no pass
    table.row(bad ? "bad" : "").html("<code>" + escape(text(*c, "id")) + "</code>");
    table.html(fmt::format("<span class=\"st {}\">{}</span>",
                           bad                    ? "fail"
                           : verdict == "not run" ? "near"
                                                  : "pass",
                           escape(verdict)));
    for (const char* key : {"kind", "level", "scope"}) table.cell(text(*c, key));
    for (const char* key : {"compared", "expected", "failed", "near_ties", "skipped"}) table.count(integer(*c, {key}));
    const double seconds = number(*c, {"seconds"});
    std::isnan(seconds) ? table.blank()
                        : table.html(fmt::format("<span data-v=\"{}\">{:.2f}</span>", exact(seconds), seconds));
    std::string said = text(*c, "not_run").empty() ? "" : "not run: " + text(*c, "not_run");
    for (const char* key : {"failures", "notes"}) {
      const Json* list = find(*c, {key});
      if (!list || !list->is_array()) continue;
      for (const Json& x : *list) said += (said.empty() ? "" : "\n") + plain(x);
    }
    table.html("<span style=\"white-space:pre-line\">" + escape(said) + "</span>");
  }
  std::string line;
  for (const auto& [verdict, n] : count) line += fmt::format("{}{} {}", line.empty() ? "" : ", ", n, escape(verdict));
  out.push_back(
      {"checks", "Checks",
       fmt::format("<p>{}.{}</p>\n", line, count.contains("not run") ? " Not run is not a pass." : "") + table.str()});
}

}  // namespace

void node_section(const std::vector<const Json*>& nodes, const std::string& prefix, std::vector<Section>& out) {
  std::vector<std::pair<std::string, Node>> list;
  std::map<std::string, size_t> place;
  for (const Json* n : nodes) {
    const std::string name = text(*n, "name");
    const auto [it, fresh] = place.emplace(name, list.size());
    if (fresh) list.push_back({name, {nullptr, nullptr, integer(*n, {"order"})}});
    (text(*n, "side") == "base" ? list[it->second].second.base : list[it->second].second.target) = n;
  }
  if (list.empty()) return;
  std::stable_sort(list.begin(), list.end(),
                   [](const auto& a, const auto& b) { return a.second.order < b.second.order; });
  const bool base = std::any_of(list.begin(), list.end(), [](const auto& x) { return x.second.base != nullptr; });
  const bool target = std::any_of(list.begin(), list.end(), [](const auto& x) { return x.second.target != nullptr; });
  std::vector<std::string> head = {"node"};
  for (const char* side : {"target", "base"}) {
    if (!(side == std::string_view("base") ? base : target)) continue;
    for (const char* what : {"#{} adds", "", "#{} accumulated"}) head.push_back(fmt::format(fmt::runtime(what), side));
  }
  head.insert(head.end(), {"#limit", "status", "window starts from"});
  HtmlTable table(prefix + "node-table",
                  "What each node adds: its value against float64 on the side's own input; bars from 1e-16 to 1", head);
  for (size_t i = 0; i < std::min(list.size(), kMostNodes); i++) {
    const Node& n = list[i].second;
    const Json& any = n.target ? *n.target : *n.base;
    const bool failed = text(any, "status") == "fail";
    table.row(failed ? "bad" : "").html("<code>" + escape(list[i].first) + "</code>");
    for (const bool is_base : {false, true}) {
      if (!(is_base ? base : target)) continue;
      const Json* side = is_base ? n.base : n.target;
      const Json* added = side ? find(*side, {"added"}) : nullptr;
      if (!added) {
        table.blank().html("").blank();
        continue;
      }
      table.cell(number(*added)).html(bar(number(*added), is_base ? "base" : ""));
      const Json* total = find(*side, {"accumulated"});
      total && !total->is_null() ? table.cell(number(*total)) : table.blank();
    }
    const Json* limit = find(any, {"limit"});
    limit && !limit->is_null() ? table.cell(number(*limit)) : table.blank();
    table.html(failed ? "<span class=\"st fail\">fail</span>" : escape(text(any, "status")));
    std::string inputs;
    if (const Json* from = find(any, {"inputs"}); from && from->is_array()) {
      for (const Json& x : *from) inputs += (inputs.empty() ? "" : ", ") + plain(x);
    }
    table.cell(inputs);
  }
  std::string body = heat_legend_html();
  if (target) body += added_map(list, false, prefix);
  if (base) body += added_map(list, true, prefix);
  body += fmt::format("<details{}><summary>{} nodes</summary>\n{}", list.size() <= 60 ? " open" : "", list.size(),
                      table.str());
  if (list.size() > kMostNodes) {
    body += fmt::format("<p class=\"note\">The first {} nodes; the maps hold all of them.</p>\n", kMostNodes);
  }
  out.push_back({prefix + "nodes", "Added error per node", body + "</details>\n"});
}

void suite_sections(const Material& all, std::vector<Section>& out) {
  const bool taken = std::any_of(all.comparisons.begin(), all.comparisons.end(), [](const auto& c) { return !c.nodes.empty(); });
  node_section(all.nodes, taken ? "more-" : "", out);
  bisects(all, out);
  faults(all, out);
  checks(all, out);
}

}  // namespace assay::report

// The page of the report: what was asked and what was reached first, then the parts that there are records for.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dumps/report.h"
#include "dumps/report_parts.h"
#include "dumps/text.h"

namespace assay::report {
namespace {

std::string entry(const char* term, const std::string& markup) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>\n", term, markup);
}

std::string side_html(const Json& head, const char* side) {
  const Json* s = find(head, {side});
  if (!s) return "–";
  std::string out = "<code>" + escape(text(*s, "path")) + "</code>";
  std::string kind = text(*s, "kind") == "official_case" ? "official case" : text(*s, "kind");
  if (text(*s, "mode") != "full" && !text(*s, "mode").empty()) kind += ", mode " + text(*s, "mode");
  out += fmt::format(" <span class=\"soft\">({})</span>", escape(kind));
  if (const Json* by = find(*s, {"made_by"}); by && by->is_object()) {
    std::string made;
    for (const auto& [key, value] : by->items()) made += (made.empty() ? "" : "; ") + key + ": " + words(value);
    out += fmt::format("<br><span class=\"soft\">{}</span>", escape(made));
  }
  return out;
}

std::string tolerance_html(const Json& head) {
  const Json* t = find(head, {"tolerance"});
  if (!t) return "–";
  std::string out = text(*t, "preset").empty() ? "none" : text(*t, "preset");
  const double factor = number(*t, {"noise_factor"}), fixed = number(*t, {"fixed"});
  if (factor > 0) out += fmt::format(", {:g} x the {} noise floor of the phase", factor, text(*t, "floor"));
  if (fixed > 0) out += fmt::format("{} {:g}", factor > 0 ? ", at least" : ",", fixed);
  if (const Json* by = find(*t, {"by_phase"}); by && by->is_object()) {
    for (const auto& [phase, x] : by->items()) out += fmt::format("; {} {:g}", phase, number(x));
  }
  return escape(out);
}

bool has_count(const Json& summary, const char* key) {
  const Json* n = find(summary, {key});
  return n && n->is_number_integer();
}

/// Why a comparison without a first divergence is no pass: by what the summary holds, not by what it lacks.
std::string why_not(const Json& s) {
  if (has_count(s, "compared") && integer(s, {"compared"}) == 0) return "Nothing was compared.";
  if (integer(s, {"failed"}) > 0) return fmt::format("{} tensors failed.", integer(s, {"failed"}));
  if (has_count(s, "near_ties") && has_count(s, "max_near_ties")) {
    return fmt::format("{} near ties, at most {} are allowed.", integer(s, {"near_ties"}),
                       integer(s, {"max_near_ties"}));
  }
  return "The summary does not say that it is a pass.";
}

std::string summary_card(const Comparison& c) {
  static const Json kNothing = Json::object();
  const Json& head = c.head ? *c.head : kNothing;
  const Json& s = c.summary ? *c.summary : kNothing;
  const bool pass = passed(c);
  const std::string level = !text(s, "level").empty() ? text(s, "level") : text(head, "level");
  std::string sentence = !c.summary ? "The records end before the verdict."
                         : find(s, {"first_divergence", "text"})
                             ? "First at " + text(*find(s, {"first_divergence"}), "text")
                         : pass ? "Everything that was compared agrees at this level."
                                : why_not(s);
  std::string out = fmt::format(
      "<div class=\"card\"><div class=\"verdict\"><span class=\"badge {}\">{}</span><p>{}</p></div>\n<dl>\n",
      pass ? "pass" : "fail",
      !c.summary ? "NO VERDICT"
      : pass     ? "PASS"
                 : "FAIL",
      escape(sentence));
  const std::string reached = text(s, "reached").empty() ? "none" : text(s, "reached");
  out += entry("level required", escape(level)) + entry("level reached", escape(reached));
  out += entry("base", side_html(head, "base")) + entry("target", side_html(head, "target"));
  if (level != "byte_exact") out += entry("tolerance", tolerance_html(head));
  if (c.summary) {
    const double least = number(s, {"smallest_passing_tolerance"});
    if (reached != "byte_exact" && !std::isnan(least)) {
      out += entry("would pass", std::isinf(least)
                                     ? "at no tolerance"
                                     : fmt::format("at --tol <span data-v=\"{}\">{:.4g}</span>", exact(least), least));
    }
    std::string counts;
    for (const auto& [key, word] : {std::pair{"compared", "compared"},
                                    {"failed", "failed"},
                                    {"near_ties", "near ties"},
                                    {"skipped", "skipped"},
                                    {"missing", "missing"},
                                    {"extra", "extra"}}) {
      counts += fmt::format("{}<span data-count=\"{}\">{}</span> {}", counts.empty() ? "" : ", ", key,
                            has_count(s, key) ? std::to_string(integer(s, {key})) : "–", word);
    }
    out += entry("counts", counts);
    out += entry("read", fmt::format("{} values, {}", integer(s, {"elements"}),
                                     bytes_text(uint64_t(std::max<int64_t>(0, integer(s, {"bytes_read"}))))));
  }
  if (!c.warnings.empty()) {
    std::string list;
    for (const Json* w : c.warnings) list += "<li>" + escape(text(*w, "text")) + "</li>";
    out += entry("to know", "<ul class=\"plain\">" + list + "</ul>");
  }
  std::string left;
  for (const std::string& line : not_compared(c)) left += "<li>" + escape(line) + "</li>";
  return out + entry("not compared", "<ul class=\"plain\">" + left + "</ul>") + "</dl></div>\n";
}

/// What the records do not speak of, so that silence is not taken for a pass.
std::string absent(const Material& m) {
  std::string out;
  const std::pair<bool, const char*> parts[] = {{m.comparisons.empty(), "comparison of two dumps"},
                                                {m.nodes.empty() && std::none_of(m.comparisons.begin(), m.comparisons.end(),
                                                                                  [](const auto& c) { return !c.nodes.empty(); }),
                                                 "error against float64 by node"},
                                                {m.bisects.empty(), "bisect"},
                                                {m.faults.empty(), "planted faults"},
                                                {m.checks.empty(), "checks of the registry"}};
  for (const auto& [is_absent, word] : parts) {
    if (is_absent) out += fmt::format("{}{}", out.empty() ? "" : ", ", word);
  }
  return out;
}

/// The end of the page: records that no part shows, and what of a record can't be drawn.
Section not_shown(const Material& m) {
  constexpr size_t kMost = 20;  // names; a count says how many more
  std::string list;
  for (const auto& [kind, n] : m.unknown) {
    list += fmt::format("<li>{} records of the kind “{}” are not shown here.</li>\n", n, escape(kind));
  }
  size_t odd = 0;
  for (const Comparison& c : m.comparisons) {
    for (const Json* t : c.tensors) {
      bool is_odd = false;
      strip_of(*t, &is_odd);
      if (!is_odd || odd++ >= kMost) continue;
      const auto shown = [&](const char* key) {
        const Json* x = find(*t, {key});
        return x ? plain(*x) : "absent";
      };
      list += fmt::format(
          "<li><code>{}</code>: its errors by position are not drawn: row_position {}, rows_per_bin {}</li>\n",
          escape(text(*t, "name")), escape(shown("row_position")), escape(shown("rows_per_bin")));
    }
  }
  if (odd > kMost) list += fmt::format("<li>{} more tensors without a place for such errors</li>\n", odd - kMost);
  return {"not-shown", "Not shown", list.empty() ? "" : "<ul class=\"plain\">\n" + list + "</ul>\n"};
}

std::string page(const std::vector<Json>& records) {
  const Material m = sort_out(records);
  std::string cards;
  std::vector<Section> sections;
  for (size_t i = 0; i < m.comparisons.size(); i++) {
    const Comparison& c = m.comparisons[i];
    cards += summary_card(c);
    const size_t first = sections.size();
    comparison_sections(c, m, fmt::format("c{}-", i + 1), sections);
    node_section(c.nodes, i == 0 ? "" : fmt::format("c{}-", i + 1), sections);
    if (m.comparisons.size() < 2) continue;
    for (size_t k = first; k < sections.size(); k++) sections[k].title += fmt::format(" (comparison {})", i + 1);
  }
  suite_sections(m, sections);
  if (const std::string missing = absent(m); !missing.empty()) {
    cards += fmt::format("<p class=\"note\">Not in these records: {}.</p>\n", missing);
  }
  if (Section s = not_shown(m); !s.body.empty()) sections.push_back(std::move(s));

  std::string title = "Assay report";
  if (m.comparisons.size() == 1 && m.comparisons[0].summary) {
    const std::string level = text(*m.comparisons[0].summary, "level");
    title = (passed(m.comparisons[0]) ? "Pass" : "Mismatch") + (level.empty() ? "" : " at " + level);
  }
  std::string out = fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<link rel=\"icon\" href=\"data:,\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n<a class=\"skip-link\" href=\"#main\">To the "
      "summary</a>\n"
      "<header><h1>{}</h1><p class=\"soft\">Assay, from {} records</p></header>\n",
      escape(title + " · Assay"), kStyle, escape(title), records.size());
  if (!sections.empty()) {
    out += "<nav class=\"toc\" aria-label=\"Parts\"><ul>";
    for (const Section& s : sections) out += fmt::format("<li><a href=\"#{}\">{}</a></li>", s.id, escape(s.title));
    out += "</ul></nav>\n";
  }
  out += "<main id=\"main\" tabindex=\"-1\">\n<section aria-labelledby=\"summary\"><h2 id=\"summary\">Summary</h2>\n" +
         cards + "</section>\n";
  for (const Section& s : sections) {
    out += fmt::format("<section aria-labelledby=\"{0}\"><h2 id=\"{0}\">{1}</h2>\n", s.id, escape(s.title)) + s.body +
           "</section>\n";
  }
  return out +
         fmt::format(
             "</main>\n<footer>Rendered from JSONL records; the figures in <code>data-v</code> are exact.</footer>\n"
             "<script>{}</script>\n</body>\n</html>\n",
             kScript);
}

}  // namespace

bool passed(const Comparison& c) {
  const Json* code = c.summary ? find(*c.summary, {"exit_code"}) : nullptr;
  return code && code->is_number_integer() && *code == 0 && text(*c.summary, "verdict") == "pass";
}

}  // namespace assay::report

std::string assay::render_html(const std::vector<nlohmann::ordered_json>& records) {
  return report::page(records);
}

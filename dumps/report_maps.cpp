// Heat maps of log10 errors: layer x phase, layer x position, caches by layer and position.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <tuple>

#include "dumps/report_parts.h"

namespace assay::report {
namespace {

using Cell = HeatMap::Cell;
using Kind = Cell::Kind;

constexpr int64_t kMostColumns = 48;  // of positions; more are joined, so that a map can be printed
constexpr size_t kMostPrompts = 2;    // whose positions are drawn: those with the largest errors

/// Lower bounds of the colours h1..h9.
constexpr std::array<double, 9> kSteps = {1e-12, 1e-9, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1};

std::string colour(double x) {
  return fmt::format("h{}", std::upper_bound(kSteps.begin(), kSteps.end(), x) - kSteps.begin());
}

/// What stands in a cell, without its colour.
std::string cell_text(const Cell& c) {
  std::string out;
  switch (c.kind) {
    case Kind::none:
      return "";
    case Kind::equal:
      out = "=";
      break;
    case Kind::skipped:
      return "–";
    case Kind::missing:
      out = "?";
      break;
    case Kind::unmeasured:
      out = "≠";
      break;
    case Kind::value:
      out = std::isnan(c.value)   ? "NaN"
            : std::isinf(c.value) ? "inf"
            : c.value > 0         ? fmt::format("{:.1f}", std::log10(c.value))
                                  : "±0";
      if (out == "-0.0") out = "0.0";
      break;
  }
  return out + (c.failed ? "!" : "");
}

std::string cell_title(const Cell& c, const std::string& measure) {
  std::string out;
  if (c.kind == Kind::value) out = fmt::format("{} {}", measure, figure(c.value));
  if (c.kind == Kind::equal) out = "equal";
  if (c.kind == Kind::unmeasured) out = "other bits, not measured";
  if (c.kind == Kind::missing) out = "missing";
  if (c.kind == Kind::skipped) out = "not compared";
  if (c.failed && c.kind == Kind::value) out += std::isnan(c.value) ? ", failed" : ", above its tolerance";
  return c.detail.empty() ? out : out + ": " + c.detail;
}

/// Order of the rows of a map: the model's own phases, layers, the MTP head, other names.
using LayerKey = std::tuple<int, int64_t, std::string>;
LayerKey layer_key(const std::string& layer) {
  if (layer.empty()) return {0, 0, ""};
  const size_t dot = layer.rfind('.');
  int64_t n = 0;
  if (dot != std::string::npos) std::from_chars(layer.data() + dot + 1, layer.data() + layer.size(), n);
  return {layer.starts_with("layer.") ? 1 : 2, n, layer};
}
std::string layer_label(const std::string& layer) {
  return layer.empty() ? "model" : layer.starts_with("layer.") ? layer.substr(6) : layer;
}

std::string without_prompt_and_phase(const std::string& name) {
  const size_t cut = name.rfind('/');
  return cut == std::string::npos ? name : name.substr(0, cut);
}

Cell cell_of(const Json& tensor) {
  Cell c;
  c.failed = text(tensor, "status") == "fail";
  c.detail = without_prompt_and_phase(text(tensor, "name"));
  const std::string kind = text(tensor, "kind");
  if (kind == "missing" || kind == "extra") {
    c.kind = Kind::missing;
    if (kind == "extra") c.detail += ", only on the target";
  } else if (text(tensor, "status") == "skipped" && kind != "not_required") {
    c.kind = Kind::skipped;
  } else if (const Json* m = find(tensor, {"metrics"})) {
    c.value = integer(*m, {"non_finite", "mismatch"}) > 0 ? HUGE_VAL : number(*m, {"max_rel"});
    c.kind = c.value == 0 && integer(*m, {"bits_equal"}) == integer(*m, {"elements"}) ? Kind::equal : Kind::value;
    const Json* at = find(*m, {std::isinf(c.value) ? "non_finite" : "max_rel_at"});
    if (at && std::isinf(c.value)) at = find(*at, {"at"});
    if (at && !text(*at, "text").empty()) c.detail += ", " + text(*at, "text");
  } else {
    c.kind = text(tensor, "reached") == "byte_exact" ? Kind::equal : Kind::unmeasured;
  }
  return c;
}

void layer_phase(const Comparison& c, const std::string& prefix, std::vector<Section>& out) {
  std::map<LayerKey, std::string> layers;
  std::vector<std::string> phases;
  for (const Json* t : c.tensors) {
    layers.emplace(layer_key(text(*t, "layer")), text(*t, "layer"));
    const std::string phase = text(*t, "phase");
    if (std::find(phases.begin(), phases.end(), phase) == phases.end()) phases.push_back(phase);
  }
  if (c.tensors.empty()) return;
  std::stable_sort(phases.begin(), phases.end(),
                   [](const auto& a, const auto& b) { return phase_order(a) < phase_order(b); });
  HeatMap map;
  map.id = prefix + "phases";
  map.caption = "log10 of max_rel, worst of all prompts and passes";
  map.columns = phases;
  map.upright = true;
  std::map<LayerKey, size_t> row_of;
  for (const auto& [key, layer] : layers) {
    row_of[key] = map.rows.size();
    map.rows.push_back(layer_label(layer));
  }
  map.cells.resize(map.rows.size() * map.columns.size());
  for (const Json* t : c.tensors) {
    const auto column = std::find(phases.begin(), phases.end(), text(*t, "phase"));
    map.at(row_of[layer_key(text(*t, "layer"))], size_t(column - phases.begin())).worse(cell_of(*t));
  }
  out.push_back({map.id + "-s", "Error by layer and phase", heat_legend_html() + heat_map_html(map)});
}

struct PromptStrips {
  std::string prompt;
  std::vector<Strip> strips;
  double worst = -1;
  bool layers = false;
};

/// Of each prompt the tensors with positions; those with layers and the largest errors first.
std::vector<PromptStrips> by_prompt(const Comparison& c, bool caches) {
  std::vector<PromptStrips> out;
  for (const Json* t : c.tensors) {
    const std::string phase = text(*t, "phase");
    if (phase.starts_with("state/") != caches || text(*t, "status") == "skipped") continue;
    const std::optional<Strip> s = strip_of(*t);
    if (!s) continue;
    auto it = std::find_if(out.begin(), out.end(), [&](const auto& p) { return p.prompt == text(*t, "prompt"); });
    if (it == out.end()) it = out.insert(it, {text(*t, "prompt"), {}, -1, false});
    it->strips.push_back(*s);
    it->layers = it->layers || !text(*t, "layer").empty();
    for (const Json& x : *s->errors) it->worst = std::max(it->worst, number(x));
  }
  std::stable_sort(out.begin(), out.end(), [](const PromptStrips& a, const PromptStrips& b) {
    return std::tuple(!a.layers, -a.worst) < std::tuple(!b.layers, -b.worst);
  });
  return out;
}

HeatMap position_map(const PromptStrips& p, bool caches, const std::string& id) {
  HeatMap map;
  map.id = id;
  int64_t end = 0, per_bin = 1, decode = -1;
  std::map<std::pair<LayerKey, std::string>, size_t> row_of;
  for (const Strip& s : p.strips) {
    end = std::max(end, s.end());
    per_bin = std::max(per_bin, s.per_bin);
    const std::string phase = text(*s.tensor, "phase");
    row_of[{layer_key(text(*s.tensor, "layer")), caches ? phase.substr(6) : ""}] = 0;
    if (text(*s.tensor, "pass") == "decode") decode = decode < 0 ? s.first : std::min(decode, s.first);
  }
  int64_t width = (end + kMostColumns - 1) / kMostColumns;
  width = (width + per_bin - 1) / per_bin * per_bin;
  for (int64_t x = 0; x < end; x += width) map.columns.push_back(std::to_string(x));
  for (auto& [key, row] : row_of) {
    row = map.rows.size();
    map.rows.push_back(layer_label(std::get<2>(key.first)) + (caches ? " " + key.second : ""));
  }
  map.caption =
      fmt::format("{}: log10 of max_rel of a {}, worst {}", p.prompt, caches ? "position over all heads" : "row",
                  caches ? "of after_prefill and after_decode" : "phase of each layer");
  if (width > 1) map.caption += fmt::format("; {} positions in a column, named by the first", width);
  if (decode > 0) map.caption += fmt::format("; decode begins at position {}", decode);
  map.cells.resize(map.rows.size() * map.columns.size());
  for (const Strip& s : p.strips) {
    const std::string phase = text(*s.tensor, "phase");
    const size_t row = row_of[{layer_key(text(*s.tensor, "layer")), caches ? phase.substr(6) : ""}];
    const double tolerance = number(*s.tensor, {"tolerance"});
    for (size_t i = 0; i < s.errors->size(); i++) {
      Cell c;
      c.value = number((*s.errors)[i]);
      if (std::isnan(c.value)) continue;
      const int64_t position = s.first + int64_t(i) * s.per_bin;
      c.kind = c.value == 0 ? Kind::equal : Kind::value;
      c.failed = text(*s.tensor, "status") == "fail" && !(c.value <= tolerance);
      c.detail =
          fmt::format("{}/{} {}, position {}", text(*s.tensor, "pass"), text(*s.tensor, "step"), phase, position);
      if (s.per_bin > 1) c.detail += fmt::format(" to {}", position + s.per_bin - 1);
      map.at(row, size_t(position / width)).worse(c);
    }
  }
  return map;
}

void positions(const Comparison& c, bool caches, const std::string& prefix, std::vector<Section>& out) {
  const std::vector<PromptStrips> prompts = by_prompt(c, caches);
  if (prompts.empty()) return;
  std::string body;
  for (size_t i = 0; i < std::min(prompts.size(), kMostPrompts); i++) {
    body +=
        heat_map_html(position_map(prompts[i], caches, fmt::format("{}{}{}", prefix, caches ? "kv" : "positions", i)));
  }
  if (prompts.size() > kMostPrompts) {
    body += fmt::format(
        "<p class=\"note\">{} more prompts are not drawn: their errors are smaller. The records hold them.</p>\n",
        prompts.size() - kMostPrompts);
  }
  out.push_back({prefix + (caches ? "kv-s" : "positions-s"),
                 caches ? "KV cache by layer and position" : "Error by layer and position", body});
}

}  // namespace

std::optional<Strip> strip_of(const Json& tensor, bool* odd) {
  // Far beyond any context, and far enough from the end of int64 for sums of two.
  constexpr int64_t kMostPositions = int64_t{1} << 40;
  const Json* errors = find(tensor, {"row_max_rel"});
  const Json* position = find(tensor, {"row_position"});
  const Json* bin = find(tensor, {"rows_per_bin"});
  if (!errors && !position) return std::nullopt;
  if (odd) *odd = true;
  if (!errors || !errors->is_array() || !position || !position->is_number_integer()) return std::nullopt;
  if (bin && !bin->is_number_integer()) return std::nullopt;
  const int64_t first = integer(*position, {}), per_bin = bin ? integer(*bin, {}) : 1;
  if (first < 0 || first > kMostPositions || per_bin < 1 || per_bin > kMostPositions) return std::nullopt;
  if (int64_t(errors->size()) > kMostPositions / per_bin) return std::nullopt;
  if (odd) *odd = false;
  return Strip{&tensor, errors, first, per_bin};
}

void HeatMap::Cell::worse(const Cell& other) {
  // What was measured says more than what was not; a failure is never hidden, nor a figure that is none.
  const auto rank = [](const Cell& c) {
    constexpr std::array<int, 6> order = {0, 5, 2, 4, 3, 1};  // none, value, equal, unmeasured, missing, skipped
    return std::isnan(c.value) ? std::pair(6, 0.0) : std::pair(order[size_t(c.kind)], c.value);
  };
  const bool any_failed = failed || other.failed;
  if (rank(other) > rank(*this)) *this = other;
  failed = any_failed;
}

std::string heat_legend_html() {
  std::string out = "<p class=\"legend\"><span>Each figure is log10 of the error:</span> ";
  const char* names[] = {"below -12", "-12", "-9", "-7", "-6", "-5", "-4", "-3", "-2", "-1 and more"};
  for (size_t i = 0; i < std::size(names); i++) out += fmt::format("<span class=\"h{} key\">{}</span>", i, names[i]);
  out +=
      " <span><b>=</b> equal</span> <span><b>!</b> failed</span> <span><b>≠</b> other bits, not measured</span>"
      " <span><b>?</b> missing</span> <span><b>–</b> not compared</span></p>\n";
  return out;
}

std::string heat_map_html(const HeatMap& map) {
  std::string out = fmt::format("<thead><tr><th scope=\"col\">{}</th>", escape(map.corner));
  for (const std::string& c : map.columns) out += fmt::format("<th scope=\"col\"><span>{}</span></th>", escape(c));
  out += "</tr></thead>\n<tbody>\n";
  for (size_t r = 0; r < map.rows.size(); r++) {
    out += fmt::format("<tr><th scope=\"row\">{}</th>", escape(map.rows[r]));
    for (size_t c = 0; c < map.columns.size(); c++) {
      const Cell& cell = map.cells[r * map.columns.size() + c];
      if (cell.kind == Kind::none) {
        out += "<td></td>";
        continue;
      }
      const bool figure = cell.kind == Kind::value && !std::isnan(cell.value);
      const std::string tone = figure                       ? colour(cell.value)
                               : cell.kind == Kind::equal   ? "h0"
                               : cell.kind == Kind::skipped ? "skip"
                                                            : "odd";
      const std::string value = cell.kind == Kind::value || cell.kind == Kind::equal
                                    ? fmt::format(" data-v=\"{}\"", exact(cell.kind == Kind::equal ? 0 : cell.value))
                                    : "";
      out += fmt::format("<td class=\"{}{}\"{} title=\"{}\">{}</td>", tone, cell.failed ? " f" : "", value,
                         escape(cell_title(cell, map.measure)), cell_text(cell));
    }
    out += "</tr>\n";
  }
  return boxed_table(map.id, map.caption, fmt::format(" role=\"grid\" class=\"heat{}\"", map.upright ? " upright" : ""),
                     out + "</tbody>") +
         fmt::format(
             "<p class=\"say\" id=\"{}-say\" aria-live=\"polite\">Arrow keys walk through the cells; what a "
             "cell stands for is said here.</p>\n",
             map.id);
}

void map_sections(const Comparison& c, const std::string& prefix, std::vector<Section>& out) {
  layer_phase(c, prefix, out);
  positions(c, false, prefix, out);
  positions(c, true, prefix, out);
}

}  // namespace assay::report

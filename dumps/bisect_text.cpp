// The result of a bisection as one record, and that record for people.
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "dumps/bisect.h"
#include "dumps/json.h"
#include "dumps/names.h"
#include "dumps/text.h"

namespace assay {
namespace {

using Json = nlohmann::ordered_json;

std::string figure(const Json& j) {
  if (!j.is_number()) return j.is_string() ? j.get<std::string>() : "-";
  return j == 0 ? "0" : fmt::format("{:.3g}", j.get<double>());
}

std::string text(const Json& j, const char* key) {
  const auto it = j.find(key);
  return it != j.end() && it->is_string() ? it->get<std::string>() : "";
}

Json lines(const std::vector<BisectResult::Line>& all) {
  Json out = Json::array();
  for (const BisectResult::Line& l : all) {
    Json j = {{"name", l.name}, {"status", l.status}};
    if (l.max_rel) j["max_rel"] = json_number(*l.max_rel);
    out.push_back(std::move(j));
  }
  return out;
}

Json operand(const Operand& o) {
  Json j = {{"name", o.name}, {"kind", o.kind}, {"equal", o.equal}, {"text", o.text}};
  if (o.first_byte >= 0) j["bytes"] = {{"first", o.first_byte}, {"last", o.last_byte}, {"of", o.bytes}};
  if (!o.first_seen.empty()) j["first_seen"] = o.first_seen;
  return j;
}

Json replay(const Replay& r, const TensorMetrics& m) {
  Json j = {{"variant", r.variant},     {"isa", r.isa},
            {"first_row", r.first_row}, {"rows", r.rows},
            {"columns", r.columns},     {"bits_equal", m.bits_equal},
            {"elements", m.elements},   {"max_rel", json_number(m.max_rel)}};
  if (const Place& p = m.first_difference; p.row >= 0)
    j["first_difference"] = {
        {"row", p.row + r.first_row}, {"column", p.column}, {"expected", json_number(p.base)}, {"got", json_number(p.target)}};
  return j;
}

/// What the manifest of a dump of ours says of its model, so that the next command can be typed.
std::string model_path(const Dump& d) {
  const Json& m = d.manifest();
  if (!m.is_object() || !m.contains("model") || !m["model"].is_object()) return "";
  return text(m["model"], "path");
}

std::string next_command(const BisectResult& r, const Dump& base, const Dump& target, const std::string& arguments) {
  const std::string sides = shell_word(base.path().string()) + " " + shell_word(target.path().string());
  const std::string judged = sides + arguments;
  const std::string model = !model_path(target).empty() ? model_path(target) : model_path(base);
  const std::string named = model.empty() ? "MODEL" : shell_word(model);
  if (r.verdict == "equal") return "assay compare " + sides + " --level " + std::string(name_of(r.compared.level));
  if (r.repro) return "assay replay " + shell_word(r.repro->path.string());
  if (r.verdict == "missing" || r.verdict == "other_prompts" || r.verdict == "nothing")
    return "assay inspect " + shell_word(target.path().string());
  // The model as it was given, else as a manifest names it.
  const bool given = arguments.find(" --model ") != std::string::npos;
  const std::string more = judged + (given ? "" : " --model " + named);
  if (r.replayer.empty()) return "assay bisect " + more;
  if (!r.rerun) return fmt::format("assay compare {} --verbose", more);
  if (r.verdict == "kernel") return fmt::format("assay bisect {} --repro repro", more);
  return fmt::format("assay bisect {} --graft {}", more, shell_word(r.name));
}

}  // namespace

Json to_record(const BisectResult& r, const Dump& base, const Dump& target, const std::string& arguments) {
  Json j = {{"record", "bisect"},
            {"version", 1},
            {"base", base.path().string()},
            {"target", target.path().string()},
            {"level", name_of(r.compared.level)},
            {"preset", r.compared.tolerance.preset},
            {"compared", r.compared.compared},
            {"failed", r.compared.failed},
            {"exit_code", r.exit_code()},
            {"verdict", r.verdict},
            {"name", r.name},
            {"where", r.where},
            {"text", r.text},
            {"trail", lines(r.trail)},
            {"inputs", lines(r.inputs)}};
  if (!r.replayer.empty()) j["replayer"] = r.replayer;
  j["operands"] = Json::array();
  for (const Operand& o : r.operands) j["operands"].push_back(operand(o));
  j["replay"] = r.replay && r.replay_metrics ? replay(*r.replay, *r.replay_metrics) : Json(nullptr);
  j["exact"] = r.exact
                   ? Json{{"base", json_number(r.exact->base)}, {"target", json_number(r.exact->target)}, {"text", r.exact->text}}
                   : Json(nullptr);
  j["repro"] = r.repro ? Json{{"path", r.repro->path.string()}, {"text", r.repro->text}} : Json(nullptr);
  j["notes"] = r.notes;
  j["next"] = next_command(r, base, target, arguments);
  return j;
}

std::string render_bisect_text(const Json& r, bool color) {
  const auto paint = [&](const char* code, const std::string& s) {
    return color ? fmt::format("\033[{}m{}\033[0m", code, s) : s;
  };
  const bool equal = r.at("verdict") == "equal";
  std::string head = text(r, "verdict");
  std::transform(head.begin(), head.end(), head.begin(),
                 [](unsigned char c) { return c == '_' ? ' ' : char(std::toupper(c)); });
  std::string out = paint(equal ? "32" : "31", head);
  if (!text(r, "name").empty()) out += "  " + text(r, "name");
  out += "\n" + text(r, "text") + "\n\n";
  const auto row = [&](const char* label, const std::string& what) {
    out += fmt::format("  {:<10} {}\n", label, what);
  };
  row("base", text(r, "base"));
  row("target", text(r, "target"));
  row("compared", fmt::format("{}{}: {} compared, {} differ", text(r, "level"),
                              text(r, "preset").empty() ? "" : " (" + text(r, "preset") + ")",
                              r.at("compared").get<int64_t>(), r.at("failed").get<int64_t>()));
  if (r.contains("replayer")) row("engine", text(r, "replayer"));
  if (!text(r, "where").empty()) row("where", text(r, "where"));

  const auto table = [&](const char* label, const Json& all, bool mark) {
    size_t widest = 0;
    for (const Json& l : all) widest = std::max(widest, text(l, "name").size());
    for (size_t i = 0; i < all.size(); i++) {
      const Json& l = all[i];
      std::string s = fmt::format("{}{:<{}}  {}",
                                  !mark                          ? ""
                                  : l.at("name") == r.at("name") ? "> "
                                                                 : "  ",
                                  text(l, "name"), widest, text(l, "status"));
      if (l.contains("max_rel") && l.at("max_rel") != 0) s += "  max_rel " + figure(l.at("max_rel"));
      row(i == 0 ? label : "", s);
    }
  };
  if (!r.at("trail").empty()) out += "\n";
  table("trail", r.at("trail"), true);
  if (!r.at("inputs").empty()) out += "\n";
  table("inputs", r.at("inputs"), false);
  if (!r.at("operands").empty()) out += "\n";
  size_t widest = 0;
  for (const Json& o : r.at("operands")) widest = std::max(widest, text(o, "name").size());
  for (size_t i = 0; i < r.at("operands").size(); i++) {
    const Json& o = r.at("operands")[i];
    row(i == 0 ? "operands" : "", fmt::format("{:<{}}  {}  {}", text(o, "name"), widest,
                                              o.at("equal").get<bool>() ? "equal  " : "DIFFERS", text(o, "text")));
  }
  if (const Json& p = r.at("replay"); p.is_object()) {
    const int64_t rows = p.at("rows").get<int64_t>(), first = p.at("first_row").get<int64_t>();
    std::string s = fmt::format("{} on rows {}-{}: ", text(p, "variant"), first, first + rows - 1);
    s += p.at("bits_equal") == p.at("elements")
             ? "every bit as wanted"
             : fmt::format("{} of {} elements of the same bits, max_rel {}", p.at("bits_equal").get<int64_t>(),
                           p.at("elements").get<int64_t>(), figure(p.at("max_rel")));
    out += "\n";
    row("replay", s);
  }
  if (const Json& e = r.at("exact"); e.is_object())
    row("float64",
        fmt::format("base {}, target {}  ({})", figure(e.at("base")), figure(e.at("target")), text(e, "text")));
  if (const Json& p = r.at("repro"); p.is_object()) row("repro", text(p, "path") + ": " + text(p, "text"));
  for (const Json& n : r.at("notes")) row("note", n.get<std::string>());
  out += "\n";
  row("next", text(r, "next"));
  return out;
}

}  // namespace assay

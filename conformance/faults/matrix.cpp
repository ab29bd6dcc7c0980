// The kill matrix, fault by check, from fault records alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "conformance/faults/judge.h"

namespace assay {
namespace {

/// Columns of the matrix: kinds of evidence, from the strictest place to the widest.
std::string column_of(const nlohmann::ordered_json& found) {
  const std::string kind = found.at("kind");
  if (kind == "value") return found.at("scope") == "kernel" ? "K" : "I";
  return kind == "artifact" ? "A" : kind == "counter" ? "C" : "Q";
}

std::string word_of(const nlohmann::ordered_json& found) {
  const std::string status = found.at("status");
  if (found.contains("survives")) return status == "missed" ? "passes" : status;
  return status;
}

}  // namespace

nlohmann::ordered_json kill_matrix(const std::vector<nlohmann::ordered_json>& records) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::object(), checks = nlohmann::ordered_json::array();
  int64_t caught = 0, not_run = 0;
  bool clean = true;
  for (const auto& r : records) {
    nlohmann::ordered_json row = nlohmann::ordered_json::object();
    bool ran = true;
    for (const auto& f : r.at("found")) {
      row[f.at("check").get<std::string>()] = word_of(f);
      if (std::find(checks.begin(), checks.end(), f.at("check")) == checks.end()) checks.push_back(f.at("check"));
      ran = ran && f.at("status") != "not_run";
    }
    caught += r.at("caught_as_expected").get<bool>();
    not_run += !ran;
    clean = clean && r.at("clean").get<bool>();
    rows[r.at("id").get<std::string>()] = row;
  }
  return {{"faults", records},
          {"matrix", {{"checks", checks}, {"rows", rows}}},
          {"clean", clean},
          {"summary",
           {{"faults", records.size()},
            {"caught_as_expected", caught},
            {"not_run", not_run},
            {"not_as_expected", int64_t(records.size()) - caught - not_run}}}};
}

std::string render_faults_text(const std::vector<nlohmann::ordered_json>& records, bool verbose) {
  size_t widest = 5, widest_check = 5;
  for (const auto& r : records) {
    widest = std::max(widest, r.at("id").get<std::string>().size());
    for (const auto& f : r.at("found")) widest_check = std::max(widest_check, f.at("check").get<std::string>().size());
  }
  std::string out =
      fmt::format("   {:<{}}  {:<2}{:<{}}  {:<9}  {}\n", "fault", widest, "", "check", widest_check, "", "place");
  std::map<std::string, std::pair<int64_t, int64_t>> by_column;  // caught, all that should
  std::vector<std::string> notes;
  int64_t caught = 0, dirty = 0, not_run = 0;
  std::string first_bad;
  for (const auto& r : records) {
    const bool good = r.at("caught_as_expected");
    caught += good;
    dirty += !r.at("clean").get<bool>();
    bool first = true, ran = true;
    const auto& found = r.at("found");
    if (found.empty())
      out += fmt::format("!! {:<{}}  no entry in expected.json\n", r.at("id").get<std::string>(), widest);
    for (size_t i = 0; i < found.size(); i++) {
      const auto& f = found[i];
      const std::string status = f.at("status"), column = column_of(f);
      const bool survives = f.contains("survives"), right = status == (survives ? "missed" : "caught");
      ran = ran && status != "not_run";
      if (!survives) {
        by_column[column].second++;
        by_column[column].first += right;
      }
      std::string place = f.at("place");
      if (!right && !survives)
        place +=
            fmt::format("{}expected {}", place.empty() ? "" : "; ", r.at("expected")[i].at("place").get<std::string>());
      out += fmt::format("{} {:<{}}  {} {:<{}}  {:<9}  {}\n", right ? "  " : "!!",
                         first ? r.at("id").get<std::string>() : "", widest, column, f.at("check").get<std::string>(),
                         widest_check, word_of(f), place);
      if (verbose && f.contains("figures"))
        out += fmt::format("   {:<{}}    {}\n", "", widest, f.at("figures").get<std::string>());
      first = false;
    }
    if (!r.at("clean").get<bool>())
      out += fmt::format("!! {:<{}}  fails without the fault: a catch proves nothing\n", "", widest);
    const std::string note = r.at("note");
    if (!note.empty()) {
      if (notes.empty() || notes.back().find(note) == std::string::npos)
        notes.push_back(fmt::format("{}: {}", r.at("id").get<std::string>(), note));
    }
    not_run += !ran;
    if (!good && first_bad.empty()) first_bad = r.at("id");
  }
  if (!notes.empty()) {
    out += "\nWhat this says of the suite\n";
    for (const std::string& n : notes) out += "   " + n + "\n";
  }
  out += "\n";
  for (const auto& [column, counts] : by_column) {
    static const std::map<std::string, const char*> kWords = {
        {"K", "kernel scope"}, {"I", "integration scope"}, {"A", "artifact"}, {"C", "counter"}, {"Q", "quality"}};
    out += fmt::format("   {}  {:<18} {:>4} of {:>4} caught where expected\n", column, kWords.at(column), counts.first,
                       counts.second);
  }
  out += fmt::format("\n{}: {} of {} faults caught as expected{}{}\n",
                     caught == int64_t(records.size()) ? "PASS" : "FAIL", caught, records.size(),
                     dirty ? fmt::format(", {} where the fault-free run fails", dirty) : ", fault-free runs clean",
                     not_run ? fmt::format(", {} not run (not a pass)", not_run) : "");
  if (!first_bad.empty())
    out += fmt::format("next     assay check --exact --all --filter faults/{} --verbose\n", first_bad);
  return out;
}

}  // namespace assay

// The HTML report: every figure of the records stands on the page, hostile names stay text, nothing comes from outside.
// How it looks and what a browser makes of it: ci/check-report.
#include "dumps/report.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <set>

#include "dumps/compare_test_dumps.h"
#include "dumps/error.h"
#include "dumps/report_parts.h"

namespace assay {
namespace {

using namespace testing_dumps;
using Json = nlohmann::ordered_json;

bool has(const std::string& page, const std::string& part) {
  return page.find(part) != std::string::npos;
}

/// Records of a comparison with values that fail, a NaN, a missing tensor, caches, near ties and top-k.
std::vector<Json> compared(Level level = Level::max_rel) {
  Folder f;
  std::vector<Values> b = {
      {"prompt0/prefill/0/embed", {5, 8}, wave(40)},
      {"prompt0/prefill/0/layer.0/q_rope", {5, 8}, wave(40, 1)},
      {"prompt0/prefill/0/layer.10/q_rope", {5, 8}, wave(40, 2)},
      {"prompt0/prefill/0/layer.2/q_rope", {5, 8}, wave(40, 3)},
      {"prompt0/prefill/0/logits", {5, 8}, wave(40, 4)},
      {"prompt0/prefill/0/logits_top_ids", {5, 2}, {1, 2, 3, 4, 5, 6, 7, 0, 1, 2}, DType::i64},
      {"prompt0/decode/0/layer.0/q_rope", {1, 8}, wave(8, 5)},
      {"prompt0/decode/0/logits", {1, 8}, wave(8, 6)},
      {"prompt0/state/after_prefill/layer.0/k", {2, 5, 2}, wave(20)},
      {"prompt0/ids", {5}, {1, 2, 3, 4, 5}, DType::i64},
      {"prompt0/greedy_ids", {2}, {1, 2}, DType::i64},
  };
  std::vector<Values> t = b;
  t[1].x[17] += 0.125;
  t[2].x[9] = kNaN;
  t[3].x[33] += 1e-7;
  t[4].x[2] += 3e-5;
  t[8].x[12] += 0.01;  // head 1, position 1
  t.back().x[1] = 7;
  b.push_back({"prompt0/prefill/0/final_norm", {5, 8}, wave(40, 7)});
  const Dump base = write_dump(f / "b", b), target = write_dump(f / "t", t);
  CompareOptions o = at(level, 1e-6);
  o.row_errors = true;
  return to_records(compare(base, target, o), base, target);
}

/// Numbers below `keys` that the page must show.
void expect_numbers(const std::string& page, const Json& j, const std::set<std::string>& keys, bool inside = false) {
  if (j.is_object()) {
    for (const auto& [key, value] : j.items()) expect_numbers(page, value, keys, keys.contains(key));
  } else if (inside && j.is_number()) {
    const std::string x = j.is_number_float() ? report::exact(j.get<double>()) : std::to_string(j.get<int64_t>());
    EXPECT_TRUE(has(page, ">" + x + "<") || has(page, "\"" + x + "\"")) << x << " is not on the page";
  }
}

TEST(Report, EveryFigureOfTheRecordsStandsOnThePage) {
  const std::vector<Json> records = compared();
  const std::string page = render_html(records);
  size_t tensors = 0;
  for (const Json& r : records) {
    const std::string kind = r["record"];
    if (kind == "tensor") {
      tensors++;
      EXPECT_TRUE(has(page, report::escape(r["name"].get<std::string>())));
      expect_numbers(
          page, r,
          {"max_rel", "max_abs", "tolerance", "worst_row_l2", "bits_equal", "elements", "ulp_le_1", "ulp_le_4"});
      // A map holds the worst of many; here each layer, phase and position has one tensor or two.
    }
    if (kind == "greedy") expect_numbers(page, r, {"prefix", "length", "min_margin"});
    if (kind == "topk") expect_numbers(page, r, {"k", "rows", "top1", "order", "common", "values_max_abs"});
    if (kind == "summary") {
      expect_numbers(page, r, {"compared", "failed", "skipped", "missing", "extra", "base", "target"});
      EXPECT_TRUE(has(page, report::escape(r["first_divergence"]["text"].get<std::string>())));
    }
  }
  EXPECT_GE(tensors, 10u);
  EXPECT_TRUE(has(page, "FAIL"));
  EXPECT_TRUE(has(page, "are missing on the target; the first is prompt0/prefill/0/final_norm"));
  EXPECT_EQ(render_html(records), page) << "same records, same bytes";
}

/// The cell of a map: row and column by their titles.
std::string cell(const std::string& page, const std::string& map, const std::string& row, const std::string& column) {
  const size_t at = page.find("<table id=\"" + map + "\"");
  if (at == std::string::npos) return "no map " + map;
  const std::string table = page.substr(at, page.find("</table>", at) - at);
  size_t columns = 0, place = table.find("<thead>");
  for (const size_t end = table.find("</thead>"); (place = table.find("<span>", place + 1)) < end; columns++) {
    if (table.compare(place + 6, column.size() + 1, column + "<") == 0) break;
  }
  size_t td = table.find("<th scope=\"row\">" + row + "<");
  if (td == std::string::npos) return "no row " + row;
  for (size_t i = 0; i <= columns; i++) td = table.find("<td", td + 1);
  return table.substr(td, table.find("</td>", td) - td);
}

TEST(Report, MapsHoldTheWorstAtItsPlace) {
  const std::vector<Json> records = compared();
  const std::string page = render_html(records);
  double rel = 0, at_position = 0;
  for (const Json& r : records) {
    if (r["record"] != "tensor") continue;
    if (r["name"] == "prompt0/prefill/0/layer.0/q_rope") {
      rel = r["metrics"]["max_rel"];
      ASSERT_EQ(r["row_max_rel"].size(), 5u);
      at_position = r["row_max_rel"][2];
      EXPECT_EQ(r["row_max_rel"][1], 0);
      EXPECT_EQ(r["row_position"], 0);
    }
    if (r["name"] == "prompt0/decode/0/layer.0/q_rope") {
      EXPECT_EQ(r["row_position"], 5);
    }
    if (r["name"] == "prompt0/prefill/0/layer.10/q_rope") {
      EXPECT_EQ(r["row_max_rel"][1], "Infinity") << "a NaN";
    }
    if (r["name"] == "prompt0/state/after_prefill/layer.0/k") {
      ASSERT_EQ(r["row_max_rel"].size(), 5u) << "heads are joined";
      EXPECT_GT(r["row_max_rel"][1], 0);
      EXPECT_EQ(r["row_max_rel"][2], 0);
    }
  }
  EXPECT_EQ(rel, at_position);
  const std::string worst = cell(page, "c1-phases", "0", "q_rope");
  EXPECT_TRUE(has(worst, "data-v=\"" + report::exact(rel) + "\"")) << worst;
  EXPECT_TRUE(has(worst, fmt::format(">{:.1f}!", std::log10(rel)))) << worst;
  EXPECT_TRUE(has(cell(page, "c1-phases", "10", "q_rope"), ">inf!"));
  EXPECT_TRUE(has(cell(page, "c1-phases", "model", "embed"), ">="));
  EXPECT_TRUE(has(cell(page, "c1-phases", "model", "final_norm"), ">?!"));
  EXPECT_LT(page.find("<th scope=\"row\">2<"), page.find("<th scope=\"row\">10<")) << "layers by number";
  EXPECT_TRUE(has(cell(page, "c1-positions0", "0", "2"), report::exact(rel)));
  EXPECT_TRUE(has(cell(page, "c1-positions0", "0", "1"), ">="));
  EXPECT_TRUE(has(cell(page, "c1-positions0", "10", "1"), ">inf!"));
  EXPECT_TRUE(has(cell(page, "c1-kv0", "0 k", "1"), "!"));
  EXPECT_TRUE(has(page, "decode begins at position 5"));
}

TEST(Report, HostileTextStaysText) {
  const std::string evil = "<script>alert('x')</script>\" onload=\"x\xff\x01\xe2\x80\xae";
  std::vector<Json> records = compared();
  for (Json& r : records) {
    for (const char* key : {"name", "reason", "prompt", "phase", "layer", "text", "status", "kind"}) {
      if (r.contains(key) && r["record"] != "summary") r[key] = evil;
    }
    if (r["record"] == "compare") r["base"]["path"] = r["base"]["made_by"]["engine"] = evil;
    if (r["record"] == "summary") r["first_divergence"]["text"] = r["first_divergence"]["name"] = r["level"] = evil;
  }
  records.push_back({{"record", evil}, {"x", 1}});
  records.push_back({{"record", "bisect"}, {"verdict", evil}, {"text", evil}, {evil.substr(0, 8), {evil}}});
  records.push_back(
      {{"record", "fault"}, {"id", evil}, {"found", {{{"check", evil}, {"status", "missed"}, {"place", evil}}}}});
  records.push_back({{"record", "check_result"}, {"id", evil}, {"verdict", evil}, {"notes", {evil, 3}}});
  records.push_back(
      {{"record", "node_error"}, {"name", evil}, {"side", evil}, {"added", evil}, {"inputs", {evil, 1, nullptr}}});
  const std::string page = render_html(records);
  EXPECT_FALSE(has(page, "<script>alert"));
  EXPECT_FALSE(has(page, "\" onload=\""));
  EXPECT_FALSE(has(page, "\xff"));
  EXPECT_FALSE(has(page, "\xe2\x80\xae")) << "a mark that turns the direction of writing";
  EXPECT_TRUE(has(page, "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot; onload=&quot;x\\xff\\x01\\u202e"));
}

TEST(Report, RecordsOfAnyShapeMakeAPage) {
  const std::vector<Json> whole = compared();
  EXPECT_TRUE(
      has(render_html({}), "Not in these records: comparison of two dumps, error against float64 by node, bisect"));
  // Cut off anywhere, and with every key of every record gone once or of another type.
  const std::vector<Json> cut(whole.begin(), whole.begin() + 4);
  EXPECT_TRUE(has(render_html(cut), "The records end before the summary"));
  EXPECT_TRUE(has(render_html(cut), "NO VERDICT"));
  std::vector<Json> one_each;
  std::set<std::string> seen;
  for (const Json& r : whole) {
    if (seen.insert(r["record"]).second) one_each.push_back(r);
  }
  one_each.push_back(
      {{"record", "node_error"}, {"side", "base"}, {"name", "prompt0/prefill/0/layer.0/q_rope"}, {"added", 1e-3}});
  one_each.push_back({{"record", "fault"}, {"id", "A1"}, {"expected", {{{"check", "c"}}}}, {"found", Json::array()}});
  for (size_t i = 0; i < one_each.size(); i++) {
    for (const auto& [key, value] : one_each[i].items()) {
      for (const Json& other : {Json(), Json("x"), Json(3), Json::array({1, "a"}), Json::object()}) {
        std::vector<Json> broken = one_each;
        broken[i][key] = other;
        EXPECT_TRUE(has(render_html(broken), "</html>")) << one_each[i]["record"] << " " << key;
      }
    }
  }
}

TEST(Report, PositionsOutsideOfAnySequenceAreNamedAndNotDrawn) {
  const std::vector<Json> whole = compared();
  size_t at = 0;
  while (whole[at]["record"] != "tensor" || !whole[at].contains("row_max_rel")) at++;
  const std::string name = whole[at]["name"];
  EXPECT_FALSE(has(render_html(whole), "are not drawn: row_position"));
  for (const auto& [key, x] : std::vector<std::pair<const char*, Json>>{{"row_position", -100000000},
                                                                        {"row_position", -1},
                                                                        {"row_position", INT64_MAX},
                                                                        {"row_position", UINT64_MAX},
                                                                        {"row_position", 1e30},
                                                                        {"rows_per_bin", int64_t{1} << 62},
                                                                        {"rows_per_bin", int64_t{1} << 39},
                                                                        {"rows_per_bin", 0}}) {
    std::vector<Json> broken = whole;
    broken[at][key] = x;
    const std::string page = render_html(broken);
    EXPECT_TRUE(has(page, "<code>" + name + "</code>: its errors by position are not drawn")) << key << " " << x;
  }
  std::vector<Json> far = whole;  // far and still drawn
  far[at]["row_position"] = int64_t{1} << 40;
  EXPECT_FALSE(has(render_html(far), "are not drawn: row_position"));
}

TEST(Report, WhatIsAbsentIsNoPass) {
  const std::string page = render_html({{{"record", "summary"}, {"verdict", "fail"}, {"failed", 3}}});
  EXPECT_TRUE(has(page, "<h1>Mismatch</h1>"));
  EXPECT_TRUE(has(page, ">FAIL<"));
  EXPECT_TRUE(has(page, "3 tensors failed."));
  EXPECT_TRUE(has(page, "<span data-count=\"missing\">–</span>"));
  EXPECT_TRUE(has(render_html({{{"record", "summary"}, {"verdict", "pass"}}}), "<h1>Mismatch</h1>"));
  const Json summary = {{"record", "summary"}, {"verdict", "pass"}, {"exit_code", 0}, {"level", "max_rel"}};
  EXPECT_TRUE(has(render_html({summary}), "<h1>Pass at max_rel</h1>"));

  const auto badge = [](const Json& record) {
    const std::string p = render_html({record});
    const size_t begin = p.find("<span class=\"badge ");
    return p.substr(begin, p.find("</span>", begin) - begin);
  };
  EXPECT_EQ(badge({{"record", "replay"}}), "<span class=\"badge fail\">replay: no verdict");
  EXPECT_EQ(badge({{"record", "replay"}, {"reproduces", false}}), "<span class=\"badge pass\">replay: equal");
  EXPECT_EQ(badge({{"record", "replay"}, {"reproduces", true}}), "<span class=\"badge fail\">replay: reproduced");
  EXPECT_EQ(badge({{"record", "graft"}}), "<span class=\"badge fail\">graft: no verdict");
  EXPECT_EQ(badge({{"record", "bisect"}}), "<span class=\"badge fail\">no verdict");

  for (const char* verdict : {"FAILED", "", "Pass"}) {
    const std::string p = render_html({{{"record", "check_result"}, {"id", "kernel/x"}, {"verdict", verdict}}});
    EXPECT_FALSE(has(p, "class=\"st pass\"")) << verdict;
    EXPECT_TRUE(has(p, "class=\"st fail\"")) << verdict;
  }
  EXPECT_TRUE(
      has(render_html({{{"record", "check_result"}, {"id", "x"}, {"verdict", "pass"}}}), "class=\"st pass\">pass"));

  const Json tensor = {{"record", "tensor"}, {"name", "prompt0/prefill/0/embed"}, {"phase", "embed"}, {"layer", ""},
                       {"status", "fail"},   {"metrics", Json::object()}};
  const std::string odd = cell(render_html({tensor}), "c1-phases", "model", "embed");
  EXPECT_TRUE(has(odd, "class=\"odd f\"") && has(odd, ">NaN!")) << odd;
  EXPECT_FALSE(has(odd, "above its tolerance")) << odd;
  Json small = tensor;  // does not hide it
  small["metrics"] = {{"max_rel", 0.5}};
  EXPECT_TRUE(has(cell(render_html({tensor, small}), "c1-phases", "model", "embed"), ">NaN!"));
  EXPECT_TRUE(has(cell(render_html({small, tensor}), "c1-phases", "model", "embed"), ">NaN!"));
}

TEST(Report, OtherRecordsHaveTheirParts) {
  std::vector<Json> r;
  for (const char* side : {"target", "base"}) {
    r.push_back({{"record", "node_error"},
                 {"side", side},
                 {"name", "prompt0/prefill/0/layer.3/q_proj"},
                 {"order", 1},
                 {"added", side == std::string("base") ? 1.25e-7 : 2.5e-3},
                 {"accumulated", 0.0625},
                 {"limit", 1e-4},
                 {"status", "fail"},
                 {"inputs", {"prompt0/prefill/0/layer.3/attn_norm"}},
                 {"worst", {{"row", 0}, {"column", 1}, {"oracle", 2}, {"value", 3}}}});
  }
  const Json found = {{{"check", "kernel/rope"}, {"status", "caught"}, {"place", "row 2"}},
                      {{"check", "integration/a"}, {"status", "missed"}, {"survives", true}, {"place", ""}}};
  r.push_back(
      {{"record", "fault"},
       {"id", "B3/rope"},
       {"row", "B3"},
       {"what", "pairs"},
       {"how", "program"},
       {"expected", {{{"check", "kernel/rope"}, {"place", "row 2"}}, {{"check", "integration/a"}, {"place", ""}}}},
       {"found", found},
       {"clean", true},
       {"caught_as_expected", true},
       {"note", ""}});
  r.push_back({{"record", "bisect"},
               {"verdict", "kernel"},
               {"name", "n"},
               {"text", "kernel confirmed"},
               {"notes", {"a", "b"}}});
  r.push_back({{"record", "check_result"},
               {"id", "kernel/x"},
               {"verdict", "not run"},
               {"not_run", "no GPU"},
               {"compared", 17},
               {"seconds", 0.5}});
  const std::string page = render_html(r);
  EXPECT_TRUE(has(cell(page, "added-target", "3", "q_proj"), "data-v=\"0.0025\""));
  EXPECT_TRUE(has(cell(page, "added-base", "3", "q_proj"), ">-6.9!"));
  EXPECT_TRUE(has(cell(page, "kill", "<code>B3/rope</code>", "kernel/rope"), "caught"));
  EXPECT_TRUE(has(cell(page, "kill", "<code>B3/rope</code>", "integration/a"), "survives"));
  EXPECT_TRUE(has(page, "1 of 1 faults were caught as expected"));
  EXPECT_TRUE(has(page, "kernel confirmed"));
  EXPECT_TRUE(has(page, "not run: no GPU"));
  EXPECT_TRUE(has(page, "Not run is not a pass."));
  EXPECT_TRUE(has(page, "Not in these records: comparison of two dumps."));
}

TEST(Report, AddedErrorsBelongToTheirOwnComparison) {  // found by a new user: another's error stood beside a failure
  std::vector<Json> first = compared(), r = first;
  std::string name;
  for (const Json& j : first)
    if (j.at("record") == "summary") name = j.at("first_divergence").at("name").get<std::string>();
  const Json error = {{"record", "node_error"}, {"side", "target"}, {"name", name}, {"added", 1e-3}, {"limit", 1}, {"status", "pass"}};
  r.insert(r.end(), first.begin(), first.end() - 1);
  r.push_back(error);
  r.push_back(first.back());
  const std::string page = render_html(r);
  EXPECT_FALSE(has(page, "id=\"c1-float64\""));
  EXPECT_TRUE(has(page, "id=\"c2-float64\""));
  EXPECT_TRUE(has(page, "Added error per node (comparison 2)"));
}

TEST(Report, LoadsNothingFromOutside) {
  const std::string page = render_html(compared());
  for (const char* part : {"http:", "https:", "src=", "@import", "url("}) EXPECT_FALSE(has(page, part)) << part;
}

TEST(Report, ADeepModelWithALongPromptFitsOnAPage) {
  std::vector<Json> records = compared();
  const Json summary = records.back();
  std::vector<Json> big = {records[0]};
  const char* phases[] = {"attn_norm", "q_proj",  "k_proj",       "v_proj",    "q_norm",        "k_norm",
                          "q_rope",    "k_rope",  "attn_context", "o_proj",    "attn_residual", "ffn_norm",
                          "gate_proj", "up_proj", "ffn_act",      "down_proj", "ffn_residual"};
  Json errors = Json::array();
  for (int i = 0; i < 250; i++) errors.push_back(1e-7 * (1 + i % 13));
  Json metrics;
  for (const Json& r : records) {
    if (r["record"] == "tensor" && r.contains("metrics")) metrics = r["metrics"];
  }
  for (int prompt = 0; prompt < 4; prompt++) {
    for (int layer = 0; layer < 48; layer++) {
      for (const char* phase : phases) {
        for (int step = 0; step < (prompt < 2 ? 2 : 1); step++) {
          const std::string pass = step == 0 ? "prefill/0" : fmt::format("decode/{}", step - 1);
          Json t = {{"record", "tensor"},
                    {"name", fmt::format("prompt{}/{}/layer.{}/{}", prompt, pass, layer, phase)},
                    {"prompt", fmt::format("prompt{}", prompt)},
                    {"pass", pass.substr(0, pass.find('/'))},
                    {"step", "0"},
                    {"layer", fmt::format("layer.{}", layer)},
                    {"phase", phase},
                    {"status", "pass"},
                    {"kind", ""},
                    {"shape", {2000, 64}},
                    {"tolerance", 1e-3},
                    {"metrics", metrics}};
          if (step == 0) t.update(Json{{"row_position", 0}, {"rows_per_bin", 8}, {"row_max_rel", errors}});
          big.push_back(std::move(t));
        }
      }
    }
  }
  big.push_back(summary);
  const std::string page = render_html(big);
  EXPECT_EQ(big.size(), 4898u);
  EXPECT_LT(page.size(), 5'000'000u);
  EXPECT_TRUE(has(page, "4000 of 4896 tensors"));
  EXPECT_TRUE(has(page, "48 positions in a column"));
  EXPECT_TRUE(has(page, "2 more prompts are not drawn"));
}

TEST(Report, ReadsJsonLinesAndSaysWhereTheyAreNone) {
  Folder f;
  std::ofstream(f / "good") << "{\"record\":\"warning\",\"text\":\"x\"}\n\n{\"record\":\"warning\",\"text\":\"y\"}";
  EXPECT_EQ(read_records(f / "good").size(), 2u);
  std::ofstream(f / "faults") << Json{{"faults", {{{"record", "fault"}, {"id", "A1/x"}}}}, {"clean", true}}.dump(1);
  EXPECT_EQ(read_records(f / "faults").at(0).at("id"), "A1/x");
  std::ofstream(f / "bad") << "{\"record\":\"warning\"}\n[1]\n";
  std::ofstream(f / "torn") << "{\"record\":\"war";
  for (const char* file : {"bad", "torn", "absent"}) {
    try {
      read_records(f / file);
      ADD_FAILURE() << file;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::malformed);
      EXPECT_TRUE(has(e.what(), file == std::string("bad")    ? "line 2"
                                : file == std::string("torn") ? "line 1"
                                                              : "can't be read"))
          << e.what();
    }
  }
}

}  // namespace
}  // namespace assay

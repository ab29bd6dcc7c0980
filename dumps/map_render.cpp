// A mapping as JSON records (schemas/record.schema.json), and for people from these alone.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "dumps/error.h"
#include "dumps/map.h"
#include "dumps/text.h"

namespace assay {

std::vector<nlohmann::ordered_json> map_records(const Mapping& mapping, const Dump& theirs, const std::string& file,
                                                const std::string& out_folder, const std::vector<std::string>& faults) {
  std::vector<nlohmann::ordered_json> out;
  out.push_back({{"record", "map"},
                 {"version", 1},
                 {"theirs", theirs.path().string()},
                 {"map", file},
                 {"tensors", theirs.tensors().size()},
                 {"mapped", mapping.lines().size()},
                 {"ignored", mapping.ignored()}});
  for (const Mapping::Line& l : mapping.lines()) {
    out.push_back({{"record", "mapped"},
                   {"name", l.name},
                   {"from", l.theirs},
                   {"line", l.line},
                   {"how", l.how},
                   {"dtype", name_of(l.dtype)},
                   {"shape", l.shape},
                   {"from_shape", l.their_shape}});
  }
  out.push_back({{"record", "map_verdict"},
                 {"exit_code", int(faults.empty() ? kPass : kMismatch)},
                 {"out", out_folder},
                 {"faults", faults}});
  return out;
}

namespace {

constexpr size_t kShownFaults = 10;

std::string render_verdict(const nlohmann::ordered_json& head, const nlohmann::ordered_json& verdict, bool bf16, bool verbose) {
  const std::string folder = verdict.at("out");
  const auto faults = verdict.at("faults").get<std::vector<std::string>>();
  if (faults.empty()) {
    const std::string target = !folder.empty() ? shell_word(folder)
                                               : shell_word(head.at("theirs")) + " --map " + shell_word(head.at("map"));
    return fmt::format("next     assay compare BASE {} --preset {}\n", target, bf16 ? "bf16 --model MODEL" : "f32");
  }
  std::string out = fmt::format("FAIL     {} tensors whose replicas differ{}\n", faults.size(),
                                folder.empty() ? "" : "; nothing was written");
  const size_t shown = verbose ? faults.size() : std::min(faults.size(), kShownFaults);
  for (size_t i = 0; i < shown; ++i) out += "  " + faults[i] + "\n";
  if (shown < faults.size()) out += fmt::format("  and {} more (--verbose)\n", faults.size() - shown);
  return out;
}

}  // namespace

std::string render_map(const std::vector<nlohmann::ordered_json>& records, bool verbose) {
  const nlohmann::ordered_json& head = records.at(0);
  std::vector<std::vector<std::string>> rows = {{"line", "theirs", "shape", "ours", "shape", "how", "tensors"}};
  std::map<std::string, size_t> seen;  // line and part -> row
  std::vector<int64_t> counts = {0};
  for (const nlohmann::ordered_json& r : records) {
    if (r.at("record") != "mapped") continue;
    const std::string from = r.at("from"), part = from.substr(std::min(from.find(','), from.size()));
    const std::string key =
        verbose ? r.at("name").get<std::string>() : fmt::format("{}{}", r.at("line").get<int>(), part);
    const auto [it, added] = seen.try_emplace(key, rows.size());
    if (!added) {
      ++counts[it->second];
      continue;
    }
    const std::string how = r.at("how");
    rows.push_back({std::to_string(r.at("line").get<int>()), from,
                    shape_text(r.at("from_shape").get<std::vector<int64_t>>()), r.at("name"),
                    shape_text(r.at("shape").get<std::vector<int64_t>>()), how.empty() ? "renamed" : how, ""});
    counts.push_back(1);
  }
  for (size_t i = 1; i < rows.size(); ++i) {
    if (!verbose) rows[i].back() = std::to_string(counts[i]);
  }
  if (verbose) rows[0].back().clear();
  std::vector<size_t> width(rows[0].size());
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  std::string out =
      fmt::format("mapped   {}: {} tensors become {}; {} ignored\n", head.at("theirs").get<std::string>(),
                  head.at("tensors").get<size_t>(), head.at("mapped").get<size_t>(), head.at("ignored").size());
  for (const auto& row : rows) {
    std::string line;
    for (size_t c = 0; c < row.size(); ++c) {
      const bool right = c == 0 || c + 1 == row.size();
      line += right ? fmt::format("  {:>{}}", row[c], width[c]) : fmt::format("  {:<{}}", row[c], width[c]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    out += line + "\n";
  }
  const bool bf16 = std::any_of(records.begin(), records.end(), [](const auto& r) { return r.value("dtype", "") == "BF16"; });
  if (records.back().at("record") == "map_verdict") out += render_verdict(head, records.back(), bf16, verbose);
  return out;
}

}  // namespace assay

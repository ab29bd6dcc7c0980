// Planted in a tokenizer.json: what the golden ids and the tokenizer's hash must catch (FAULTS B6, A25).
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/text/tokenizer_golden.h"
#include "dumps/error.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/provenance.h"

namespace assay {
namespace {

using Plant = void (*)(nlohmann::json& tokenizer);

/// Moves ids around: `to` gives each id its new one.
void renumber(nlohmann::json& tokenizer, const std::map<int64_t, int64_t>& to) {
  const auto moved = [&](const nlohmann::json& id) {
    auto it = to.find(id.get<int64_t>());
    return it == to.end() ? id.get<int64_t>() : it->second;
  };
  for (auto& entry : tokenizer.at("model").at("vocab").items()) entry.value() = moved(entry.value());
  for (auto& token : tokenizer.at("added_tokens")) token["id"] = moved(token.at("id"));
}

struct TokenizerFault {
  const char* name;
  const char* row;
  const char* what;
  Plant plant;
};
const TokenizerFault kFaults[] = {
    {"special-first-off", "B6", "special tokens are not looked for before the text is cut",
     [](nlohmann::json& t) { t["added_tokens"] = nlohmann::json::array(); }},
    {"vocabulary-swapped", "A25", "another vocabulary of the same size: every ordinary token has its neighbour's id",
     [](nlohmann::json& t) {
       const auto first = int64_t(t.at("added_tokens").size()), last = int64_t(t.at("model").at("vocab").size()) - 1;
       std::map<int64_t, int64_t> to;
       for (int64_t id = first; id <= last; id++) to[id] = id == last ? first : id + 1;
       renumber(t, to);
     }},
    {"special-ids-swapped", "A25", "the right vocabulary, but <|im_start|> and <|im_end|> have each other's ids",
     [](nlohmann::json& t) {
       renumber(t, {{1, 2}, {2, 1}});
     }},
};

CheckOutcome caught(const CheckContext& c, const TokenizerFault& fault) {
  CheckOutcome out;
  const std::filesystem::path path = c.root / "conformance" / "faults" / "expected.json";
  const nlohmann::json table = nlohmann::json::parse(read_text_file(path));
  for (const auto& row : table.at("tokenizer_rows")) {
    if (row.at("fault") != fault.name) continue;
    const std::filesystem::path golden = c.root / "goldens" / "tokenizers" / row.at("case").get<std::string>();
    const std::string text = read_text_file(golden / "tokenizer.json"), first = row.at("first"),
                      where = fmt::format("{} on {}", fault.row, row.at("case").get<std::string>());
    nlohmann::json tokenizer = nlohmann::json::parse(text);
    // Rewriting alone changes nothing, so that a catch is the fault's.
    const CheckOutcome honest = compare_tokenizer(Tokenizer::from_json(tokenizer.dump(), "rewritten"), golden);
    if (honest.failed != 0) out.fail(where + ": the fault-free run is not clean: " + honest.failures[0]);
    if (tokenizer_hash(text) != row.at("hash").get<std::string>())
      out.fail(where + ": the hash of the fault-free file is not the expected one: " + tokenizer_hash(text));
    fault.plant(tokenizer);
    const std::string planted = tokenizer.dump();
    out.compared++;
    if (tokenizer_hash(planted) == row.at("hash").get<std::string>()) out.fail(where + ": the hash does not tell it");
    const CheckOutcome ids = compare_tokenizer(Tokenizer::from_json(planted, "planted"), golden);
    out.compared++;
    if (ids.failed == 0)
      out.fail(where + ": not caught by the golden ids");
    else if (ids.failures[0] != first)
      out.fail(fmt::format("{}: caught first at \"{}\", expected \"{}\"", where, ids.failures[0], first));
    else
      out.notes.push_back(fmt::format("{}: {} comparisons fail, first {}", where, ids.failed, first));
  }
  return out;
}

}  // namespace

void add_tokenizer_fault_checks(std::vector<Check>& out) {
  for (const TokenizerFault& fault : kFaults) {
    Check k;
    k.id = fmt::format("faults/{}/{}", fault.row, fault.name);
    k.kind = CheckKind::artifact;
    k.scope = Scope::none;
    k.family = "-";
    k.baseline = "faults/expected.json";
    k.target = std::string("planted: ") + fault.what;
    k.expected = 2;
    k.run = [&fault](const CheckContext& c) { return caught(c, fault); };
    out.push_back(std::move(k));
  }
}

}  // namespace assay

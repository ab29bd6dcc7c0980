// Planted in a tokenizer.json: what the golden ids and the tokenizer's hash must catch (FAULTS B6, A25).
#include <fmt/format.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/faults/faults.h"
#include "conformance/text/tokenizer_golden.h"
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
  const char* id;
  const char* what;
  Plant plant;
};
const TokenizerFault kFaults[] = {
    {"B6/special-first-off", "special tokens are not looked for before the text is cut",
     [](nlohmann::json& t) { t["added_tokens"] = nlohmann::json::array(); }},
    {"A25/vocabulary-swapped", "another vocabulary of the same size: every ordinary token has its neighbour's id",
     [](nlohmann::json& t) {
       const auto first = int64_t(t.at("added_tokens").size()), last = int64_t(t.at("model").at("vocab").size()) - 1;
       std::map<int64_t, int64_t> to;
       for (int64_t id = first; id <= last; id++) to[id] = id == last ? first : id + 1;
       renumber(t, to);
     }},
    {"A25/special-ids-swapped", "the right vocabulary, but <|im_start|> and <|im_end|> have each other's ids",
     [](nlohmann::json& t) {
       renumber(t, {{1, 2}, {2, 1}});
     }},
};

/// "tokenizer-hash/<golden>": the hash tells the file. "text/<golden>": every golden line of ids.
Finding judge(const CheckContext& c, const TokenizerFault& fault, const std::string& check, bool planted) {
  const std::filesystem::path golden = c.root / "goldens" / "tokenizers" / check.substr(check.find('/') + 1);
  const std::string text = read_text_file(golden / "tokenizer.json");
  nlohmann::json tokenizer = nlohmann::json::parse(text);
  // The fault-free file is rewritten as well, so that a catch is the fault's and not the rewriting's.
  const std::string rewritten = tokenizer.dump();
  if (planted) fault.plant(tokenizer);
  const std::string judged = tokenizer.dump();
  Finding f;
  f.changed = planted;
  if (check.rfind("tokenizer-hash/", 0) == 0) {
    f.failed = tokenizer_hash(judged) != tokenizer_hash(rewritten);
    if (f.failed) f.place = "tokenizer_hash";
    return f;
  }
  const CheckOutcome ids = compare_tokenizer(Tokenizer::from_json(judged, planted ? "planted" : "rewritten"), golden);
  f.failed = ids.failed != 0;
  if (f.failed) f.place = ids.failures[0];
  f.note = fmt::format("{} of {} comparisons fail", ids.failed, ids.compared);
  return f;
}

}  // namespace

void add_tokenizer_faults(std::vector<Fault>& out) {
  for (const TokenizerFault& t : kFaults) {
    Fault f{t.id, t.what, How::artifact};
    f.own = [&t](const CheckContext& c, const std::string& check, bool planted) { return judge(c, t, check, planted); };
    out.push_back(std::move(f));
  }
}

}  // namespace assay

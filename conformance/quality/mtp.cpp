// How often the MTP head's drafts are right, held against the official figure: chains of three drafts from every position of the
// golden continuations.
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/integration/cases.h"
#include "dumps/error.h"
#include "engine/mtp.h"

namespace assay {
namespace {

constexpr int64_t kDrafts = 3;

CheckOutcome acceptance(const CheckContext& c, const OfficialCase& oc) {
  CheckOutcome out;
  std::ifstream in(case_dir(c, oc) / "manifest.json");
  if (!in) throw Error(ErrorKind::malformed, (case_dir(c, oc) / "manifest.json").string(), "can't be read");
  const nlohmann::json manifest = nlohmann::json::parse(in), official = manifest.at("mtp_acceptance").at("right");
  DumpSpec spec = case_spec(c, oc, true);
  const auto engine = make_engine(shared_model(case_dir(c, oc) / "model"), spec);
  Engine& e = *engine;
  int64_t chains = 0, right[kDrafts] = {};
  for (size_t i = 0; i < spec.requests.size(); i++) {
    const std::vector<int32_t>& ids = spec.requests[i].ids;
    const auto golden = manifest.at("prompts")[i].at("greedy_ids").get<std::vector<int32_t>>();
    e.truncate(0, 0);
    std::vector<int32_t> rows = ids;   // of the next pass
    for (size_t s = 0; s + kDrafts < golden.size(); s++) {
      Batch b;
      b.pass = s == 0 ? Pass::prefill : Pass::decode;
      b.ids = rows;
      b.segments = {{0, e.length(0), int64_t(rows.size()), 0, 0}};
      e.forward(b);
      std::vector<int32_t> next(rows.begin() + 1, rows.end());
      next.push_back(golden[s]);
      const std::vector<float> hidden(e.hidden().begin(), e.hidden().end());
      mtp_pass(e, s == 0 ? Pass::mtp_prefill : Pass::mtp_decode, {0, e.mtp_length(0), int64_t(rows.size()), 0, 0}, hidden, next);
      const int64_t length = e.mtp_length(0);
      const std::vector<int32_t> drafts = mtp_draft(e, 0, 0, e.greedy(0), kDrafts);
      e.truncate_mtp(0, length);
      chains++;
      for (size_t d = 0; d < drafts.size() && drafts[d] == golden[s + 1 + d]; d++) right[d]++;
      rows = {golden[s]};
    }
  }
  out.compared++;
  if (chains != official.at("chains").get<int64_t>()) out.fail(fmt::format("{} chains, official {}", chains, official.at("chains").get<int64_t>()));
  std::string figures;
  for (int64_t d = 0; d < kDrafts; d++) {
    // The manifest keeps five digits of a count's share.
    const double share = double(right[d]) / double(chains), want = official.at(fmt::format("accepted_{}", d + 1)).get<double>();
    out.compared++;
    if (!(std::fabs(share - want) <= 1e-5)) {
      if (out.place.empty()) out.place = fmt::format("accepted_{}", d + 1);
      out.fail(fmt::format("the first {} drafts are right in {:.5f} of the chains, official {:.5f}", d + 1, share, want));
    }
    figures += fmt::format("{}{:.5f}", d ? ", " : "", share);
  }
  out.notes.push_back(fmt::format("{} chains; the first 1, 2, 3 drafts right: {}", chains, figures));
  return out;
}

}  // namespace

void add_mtp_quality_checks(std::vector<Check>& out) {
  Check k;
  k.kind = CheckKind::quality;
  k.scope = Scope::none;
  k.id = "quality/trained-hybrid/mtp-acceptance";
  k.family = "qwen3_5";
  k.baseline = "official acceptance of drafts, chains of three on the golden continuations";
  k.target = "our MTP head's drafts";
  k.expected = 4;
  k.run = [](const CheckContext& c) {
    for (const OfficialCase& oc : official_cases())
      if (std::string(oc.name) == "trained-hybrid") return acceptance(c, oc);
    throw Error(ErrorKind::internal, "trained-hybrid", "is no official case");
  };
  out.push_back(k);
}

}  // namespace assay

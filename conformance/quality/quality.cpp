// What a model does, held against what the official model does: NLL, needles, greedy text on real weights.
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/integration/cases.h"
#include "conformance/quality/smollm2.h"
#include "dumps/error.h"

namespace assay {
namespace {

/// Takes the logits of every row and scores the next id: -log softmax, in double.
class NllObserver : public GenerateObserver {
 public:
  explicit NllObserver(const std::vector<Request>& requests) : sums(requests.size(), 0.0), requests_(requests) {}
  void value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows, int64_t columns) override {
    if (!node.requested_rows_only) return;
    const Segment& s = batch.segments.at(0);   // prompts run alone here
    const std::vector<int32_t>& ids = requests_[s.prompt].ids;
    for (size_t r = 0; r < rows.size(); r++) {
      const int64_t next = s.position + rows[r] + 1;
      if (next >= int64_t(ids.size())) continue;
      const float* x = data + int64_t(r) * columns;
      double largest = x[0], sum = 0;
      for (int64_t c = 1; c < columns; c++) largest = std::max(largest, double(x[c]));
      for (int64_t c = 0; c < columns; c++) sum += std::exp(double(x[c]) - largest);
      sums[s.prompt] += largest + std::log(sum) - double(x[ids[next]]);
      scored++;
    }
  }
  std::vector<double> sums;
  int64_t scored = 0;

 private:
  const std::vector<Request>& requests_;
};

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream in(path);
  if (!in) throw Error(ErrorKind::malformed, path.string(), "can't be read");
  return nlohmann::json::parse(in);
}

/// Every text of the corpus, and the mean, within 1e-5 of the official float64 NLL (nats per token).
CheckOutcome nll(const CheckContext& c, const OfficialCase& oc) {
  constexpr double kTolerance = 1e-5;
  CheckOutcome out;
  DumpSpec spec = case_spec(c, oc, false);
  spec.requests.clear();
  std::vector<nlohmann::json> texts;
  std::ifstream in(case_dir(c, oc) / "corpus.jsonl");
  double official_all = NAN;
  for (std::string line; std::getline(in, line);) {
    nlohmann::json t = nlohmann::json::parse(line);
    if (!t.contains("ids")) {
      official_all = t.at("nll").get<double>();
      continue;
    }
    spec.requests.push_back({t.at("ids").get<std::vector<int32_t>>(), 0, {}});
    texts.push_back(std::move(t));
  }
  const auto engine = make_engine(shared_model(case_dir(c, oc) / "model"), spec);
  NllObserver observer(spec.requests);
  GenerateOptions options;
  options.all_logits = true;
  generate(*engine, spec.requests, options, &observer);
  double sum = 0, worst = 0;
  int64_t scored = 0;
  for (size_t i = 0; i < texts.size(); i++) {
    const int64_t n = texts[i].at("scored").get<int64_t>();
    const double ours = observer.sums[i] / double(n), official = texts[i].at("nll").get<double>(), off = std::fabs(ours - official);
    out.compared++;
    worst = std::max(worst, off);
    if (!(off <= kTolerance))
      out.fail(fmt::format("{}: NLL {:.7f}, official {:.7f}, off by {:.2e} (at most {:.0e})", texts[i].at("name").get<std::string>(), ours, official, off, kTolerance));
    sum += observer.sums[i];
    scored += n;
  }
  if (scored != observer.scored) out.fail(fmt::format("scored {} tokens, official {}", observer.scored, scored));
  out.compared++;
  if (!(std::fabs(sum / double(scored) - official_all) <= kTolerance))
    out.fail(fmt::format("all texts: NLL {:.7f}, official {:.7f}", sum / double(scored), official_all));
  out.notes.push_back(fmt::format("NLL {:.6f} nats per token over {} tokens; worst text off by {:.1e}", sum / double(scored), scored, worst));
  return out;
}

/// The needle prompts: free-running greedy ids are the official ones, so that the whole value was found.
CheckOutcome needles(const CheckContext& c, const OfficialCase& oc) {
  CheckOutcome out;
  const nlohmann::json m = read_json(case_dir(c, oc) / "manifest.json");
  DumpSpec spec = case_spec(c, oc, false);
  const std::vector<Request> all = spec.requests;
  spec.requests.clear();
  std::vector<std::pair<std::string, std::vector<int32_t>>> wanted;
  for (size_t i = 0; i < all.size(); i++) {
    const std::string kind = m.at("prompts")[i].at("kind");
    if (kind.rfind("needle", 0) != 0) continue;
    spec.requests.push_back(all[i]);
    wanted.emplace_back(kind, m.at("prompts")[i].at("greedy_ids").get<std::vector<int32_t>>());
  }
  const DumpRun run = run_dump(shared_model(case_dir(c, oc) / "model"), spec);
  for (size_t i = 0; i < wanted.size(); i++) {
    const std::vector<int32_t>& got = run.generated[i].greedy;
    out.compared++;
    size_t same = 0;
    while (same < std::min(got.size(), wanted[i].second.size()) && got[same] == wanted[i].second[same]) same++;
    if (same == wanted[i].second.size()) continue;
    if (out.place.empty()) out.place = wanted[i].first;
    out.fail(fmt::format("{}: {} of {} ids", wanted[i].first, same, wanted[i].second.size()));
  }
  return out;
}

/// SmolLM2 with widened weights and f32 caches: all ids of llama.cpp's f32 variant.
CheckOutcome smollm2_greedy(const CheckContext& c) {
  CheckOutcome out;
  if (!smollm2_present(c)) {
    out.not_run = smollm2_how();
    return out;
  }
  DumpSpec spec = smollm2_spec(c, SIZE_MAX, 31);
  const DumpRun run = run_dump(smollm2_model(c), spec);
  const nlohmann::json cases = read_json(c.root / "goldens" / "llamacpp" / "smollm2.json").at("variants").at("f32").at("cases");
  for (size_t i = 0; i < cases.size(); i++) {
    const auto want = cases[i].at("ids").get<std::vector<int32_t>>();
    const auto& got = run.generated[i].greedy;
    for (size_t k = 0; k < want.size(); k++) {
      out.compared++;
      if (k < got.size() && got[k] == want[k]) continue;
      out.fail(fmt::format("{}: step {}: id {}, llama.cpp {} (its margin there {:.3f})", cases[i].at("name").get<std::string>(), k,
                           k < got.size() ? got[k] : -1, want[k], cases[i].at("steps")[k].at("margin").get<double>()));
      break;
    }
  }
  return out;
}

}  // namespace

void add_quality_checks(std::vector<Check>& out) {
  for (const OfficialCase& oc : official_cases()) {
    if (!oc.trained) continue;
    Check k;
    k.kind = CheckKind::quality;
    k.scope = Scope::none;
    k.family = oc.family;
    k.id = fmt::format("quality/{}/nll", oc.name);
    k.baseline = "official float64 NLL of 24 texts";
    k.target = "our NLL, every token";
    k.expected = 25;
    k.run = [&oc](const CheckContext& c) { return nll(c, oc); };
    out.push_back(k);
    k.id = fmt::format("quality/{}/needles", oc.name);
    k.baseline = "official continuations of the needle prompts";
    k.target = "our free-running greedy ids";
    k.expected = 2;
    k.run = [&oc](const CheckContext& c) { return needles(c, oc); };
    out.push_back(k);
  }
  Check k;
  k.kind = CheckKind::quality;
  k.scope = Scope::none;
  k.family = "llama";
  k.cost = Cost::slow;
  k.id = "quality/smollm2/llamacpp-greedy";
  k.baseline = "32 ids each of llama.cpp's f32 variant, 3 prompts";
  k.target = "our greedy ids, widened weights, f32 cache";
  k.expected = 3 * 32;
  k.run = smollm2_greedy;
  out.push_back(k);
}

}  // namespace assay

#include "conformance/faults/mutations.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "conformance/faults/mutants.h"
#include "conformance/integration/quantised.h"
#include "dumps/error.h"

namespace assay {
namespace {

constexpr int64_t kDecode = 3;  // decode passes that the goldens hold in full

/// A golden tensor and what it is held to.
struct Wanted {
  const DumpTensor* tensor;
  double scale, tolerance;
};

/// One case: the prompt that its goldens hold in full, and what the fault-free engine makes of it.
struct Material {
  const OfficialCase& oc;
  std::shared_ptr<const Model> model;
  Dump golden;
  DumpSpec spec;
  int prompt = -1;
  std::map<std::string, Wanted> wanted;                      // by logical name
  std::vector<std::pair<std::string, XXH128_hash_t>> clean;  // of every value, in execution order
  std::string state;                                         // hash of the caches after the last pass
};

/// Hashes every value and holds it against its golden.
class Watch : public GenerateObserver {
 public:
  explicit Watch(const Material& m) : m_(m) {}
  void value(const Batch& batch, const Node& node, const float* data, std::span<const int64_t> rows,
             int64_t columns) override {
    const std::string name = tensor_name(m_.prompt, batch.pass, batch.segments.at(0).step, node.layer, node.phase);
    const size_t n = rows.size() * size_t(columns);
    values.emplace_back(name, XXH3_128bits(data, n * sizeof(float)));
    const auto it = m_.wanted.find(name);
    if (it == m_.wanted.end() || !official.empty()) return;
    const Wanted& w = it->second;
    if (w.tensor->rows() != int64_t(rows.size()) || w.tensor->columns() != columns) {
      official = name + ", shape";
      return;
    }
    DumpTensor t;
    t.name = name;
    t.shape = {int64_t(rows.size()), columns};
    t.data = reinterpret_cast<const std::byte*>(data);
    const TensorMetrics x = measure(*w.tensor, t, w.scale);
    compared++;
    if (x.non_finite_mismatch || x.nan_both || !(x.max_rel <= w.tolerance)) {
      const Place& at = x.non_finite_mismatch || x.nan_both ? x.non_finite_at : x.max_rel_at;
      official = fmt::format("{}, row {}, column {}", name, at.row, at.column);
    }
    share = std::max(share, x.max_rel / w.tolerance);
  }
  std::vector<std::pair<std::string, XXH128_hash_t>> values;
  std::string official;  // where the goldens' tolerance was broken first
  double share = 0;      // largest share of a tolerance before that
  int64_t compared = 0;

 private:
  const Material& m_;
};

std::string run(const Material& m, Engine& engine, Watch& watch) {
  GenerateOptions options;
  options.all_logits = true;
  generate(engine, m.spec.requests, options, &watch);
  return engine.state_hash(0);
}

const Material& material(const CheckContext& c, const OfficialCase& oc) {
  static std::map<std::string, std::unique_ptr<Material>> made;
  std::unique_ptr<Material>& m = made[oc.name];
  if (m) return *m;
  m.reset(new Material{oc,
                       shared_model(case_dir(c, oc) / "model"),
                       Dump::open(case_dir(c, oc)),
                       case_spec(c, oc, true),
                       -1,
                       {},
                       {},
                       ""});
  const auto& prompts = m->golden.manifest().at("prompts");
  for (size_t i = 0; i < prompts.size(); i++)
    if (prompts[i].at("full_capture").get<bool>()) m->prompt = int(i);
  Request r = m->spec.requests.at(size_t(m->prompt));
  r.decode = kDecode;
  r.forced.resize(size_t(kDecode));
  m->spec.requests = {std::move(r)};
  const Tolerance tolerance = presets().at("official-f32");
  std::map<std::pair<std::string, std::string>, double> scales;  // max |golden| of phase and layer, all passes
  for (const DumpTensor& t : m->golden.tensors()) {
    const auto name = parse_tensor_name(t.name);
    if (!name || name->is_state() || name->pass.empty() || t.dtype == DType::i64) continue;
    double& scale = scales[{name->phase, name->layer}];
    scale = std::max(scale, measure(t, t, 1).max_base);
  }
  for (const DumpTensor& t : m->golden.tensors()) {
    const auto name = parse_tensor_name(t.name);
    if (!name || name->is_state() || name->pass.empty() || name->prompt != fmt::format("prompt{}", m->prompt)) continue;
    const auto allowed = tolerance_of(tolerance, name->phase, m->golden);
    if (t.dtype != DType::i64 && allowed) m->wanted[t.name] = {&t, scales[{name->phase, name->layer}], *allowed};
  }
  Watch watch(*m);
  const auto engine = make_engine(m->model, m->spec);
  m->state = run(*m, *engine, watch);
  if (!watch.official.empty() || watch.compared < 40)
    throw Error(ErrorKind::internal, oc.name,
                fmt::format("the fault-free run is not clean: {} compared, first {}", watch.compared, watch.official));
  m->clean = std::move(watch.values);
  return *m;
}

nlohmann::ordered_json judge(const CheckContext& c, const std::string& id, std::mt19937_64& rng) {
  // Models whose every width is odd for someone: all dense families, GQA of 1, 2 and 4 groups, biases, tied and untied.
  static const std::vector<const char*> kCases = {"llama-base", "llama-rope3", "olmo2-base",
                                                  "qwen2-bias", "qwen3-k256",  "qwen3-odd"};
  std::optional<Mutant> mutant;
  const MutantKind* kind = nullptr;
  const Material* m = nullptr;
  std::unique_ptr<Engine> engine;
  while (!mutant) {
    m = &material(c, official_case(kCases[size_t(rng() % kCases.size())]));
    kind = &mutant_kinds()[size_t(rng() % mutant_kinds().size())];
    engine = make_engine(m->model, m->spec);
    mutant = kind->plant(*engine, rng);
  }
  Watch watch(*m);
  const std::string state = run(*m, *engine, watch);
  std::string bytes;
  for (size_t i = 0; i < m->clean.size() && bytes.empty(); i++)
    if (i >= watch.values.size() || !XXH128_isEqual(watch.values[i].second, m->clean[i].second))
      bytes = m->clean[i].first;
  if (bytes.empty() && state != m->state) bytes = "the caches after the last pass";
  const std::string reason = bytes.empty() ? mutant->reason() : "";
  std::string note;
  if (bytes.empty())
    note = reason.empty() ? "no byte changed, and no reason is known" : "no byte changed: " + reason;
  else if (watch.official.empty())
    note = fmt::format("within the goldens' tolerance: {:.1f}% of it at most; told by bytes alone", 100 * watch.share);
  const auto row = [&](const char* check, const std::string& place) {
    return nlohmann::ordered_json{{"check", fmt::format("{}/{}{}", check, m->oc.name, *check == 'i' ? "/max_rel" : "")},
                                  {"kind", "value"},
                                  {"scope", "integration"},
                                  {"place", place}};
  };
  nlohmann::ordered_json official = row("integration", watch.official), exact = row("regression", bytes);
  const char* no = bytes.empty() ? "not_planted" : "missed";
  official["status"] = watch.official.empty() ? no : "caught";
  exact["status"] = bytes.empty() ? no : "caught";
  return {{"record", "fault"},
          {"id", id},
          {"row", kind->name},
          {"what", fmt::format("{}: {}", m->oc.name, mutant->what)},
          {"how", "mutation"},
          {"expected", {row("integration", ""), row("regression", "")}},
          {"found", {official, exact}},
          {"clean", true},
          {"caught_as_expected", !bytes.empty() || !reason.empty()},
          {"note", note}};
}

}  // namespace

std::vector<nlohmann::ordered_json> random_mutations(const CheckContext& c, int64_t n, uint64_t seed,
                                                     const std::function<void(int64_t)>& progress) {
  std::vector<nlohmann::ordered_json> out;
  for (int64_t i = 0; i < n; i++) {
    if (progress) progress(i);
    std::mt19937_64 rng(seed + 0x9e3779b97f4a7c15u * uint64_t(i + 1));  // each alone is what it is among the others
    out.push_back(judge(c, fmt::format("mutation/{}-{}", seed, i), rng));
  }
  return out;
}

std::string render_mutations_text(const std::vector<nlohmann::ordered_json>& records) {
  struct Counts {
    int64_t all = 0, official = 0, bytes = 0, equal = 0, unexplained = 0;
  };
  std::map<std::string, Counts> kinds;
  Counts sum;
  std::string quiet, equal, unexplained;
  for (const auto& r : records) {
    const std::string id = r.at("id"), what = r.at("what"), note = r.at("note");
    const bool by_official = r.at("found")[0].at("status") == "caught",
               by_bytes = r.at("found")[1].at("status") == "caught";
    const std::string line = fmt::format("   {:<18} {}\n   {:<18} {}\n", id, what, "", note);
    for (Counts* k : {&kinds[r.at("row")], &sum}) {
      k->all++;
      if (by_official)
        k->official++;
      else if (by_bytes)
        k->bytes++;
      else if (r.at("caught_as_expected"))
        k->equal++;
      else
        k->unexplained++;
    }
    if (by_official) continue;
    (by_bytes ? quiet : r.at("caught_as_expected").get<bool>() ? equal : unexplained) += line;
  }
  std::string out = fmt::format("{:<18}{:>8}{:>12}{:>14}{:>14}{:>14}\n", "mutation", "planted", "by goldens",
                                "by bytes only", "no byte moved", "unexplained");
  const auto line = [&](const std::string& name, const Counts& k) {
    out +=
        fmt::format("{:<18}{:>8}{:>12}{:>14}{:>14}{:>14}\n", name, k.all, k.official, k.bytes, k.equal, k.unexplained);
  };
  for (const auto& [name, k] : kinds) line(name, k);
  line("all", sum);
  if (!quiet.empty()) out += "\nTold by bytes alone, within the float32 noise of the official goldens:\n" + quiet;
  if (!equal.empty()) out += "\nNo byte moved, for a reason that was verified:\n" + equal;
  if (!unexplained.empty())
    out += "\nSURVIVED without an explanation: each needs a check, or a reason:\n" + unexplained;
  return out + fmt::format("\n{}: of {} mutations {} caught, {} changed nothing for a known reason, {} unexplained\n",
                           sum.unexplained ? "FAIL" : "PASS", sum.all, sum.official + sum.bytes, sum.equal,
                           sum.unexplained);
}

}  // namespace assay

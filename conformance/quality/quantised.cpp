// What quantising costs on trained weights: predictions of 48 layers with Q8_0 and Q4_0 weights and s16, s8 and f32
// activations; and SmolLM2 as people run it, against llama.cpp.
#include "conformance/quality/quantised.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "conformance/integration/quantised.h"
#include "conformance/quality/nll.h"
#include "conformance/quality/smollm2.h"
#include "dumps/error.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/text/tokenizer.h"

namespace assay {

KlGate kl_gate(const CheckContext& c, const OfficialCase& oc, const char* rounding) {
  const std::filesystem::path path = case_dir(c, oc) / "manifest.json";
  std::ifstream in(path);
  if (!in) throw Error(ErrorKind::malformed, path.string(), "can't be read");
  const nlohmann::json r = nlohmann::json::parse(in).at("rounded_activations").at(rounding);
  return {4 * r.at("kl_mean").get<double>(), 4 * r.at("kl_max").get<double>()};
}

std::unique_ptr<Engine> corpus_engine(const CheckContext& c, const OfficialCase& oc, std::shared_ptr<const Model> model,
                                      Activations kind, const std::string& plant) {
  DumpSpec spec = case_spec(c, oc, false);
  spec.requests.clear();
  spec.engine.activations = kind;
  for (const ScoredText& t : corpus(c, oc)) spec.engine.context = std::max(spec.engine.context, int64_t(t.ids.size()));
  spec.plant = plant;
  return make_engine(std::move(model), spec);
}

namespace {

/// ||difference|| / ||base|| of each layer's output over a prompt, row by row the worst.
std::vector<double> growth(const CheckContext& c, const OfficialCase& oc, std::shared_ptr<const Model> model,
                           Activations kind) {
  struct Residuals : Observer {
    std::vector<std::vector<float>> layers;
    int64_t columns = 0;
    void value(const Batch&, const Node& node, const float* data, std::span<const int64_t> rows, int64_t n) override {
      if (node.phase != "ffn_residual") return;
      columns = n;
      layers.emplace_back(data, data + int64_t(rows.size()) * n);
    }
  };
  std::vector<int32_t> ids = official_requests(case_dir(c, oc)).at(0).ids;
  Residuals seen[2];
  for (int side = 0; side < 2; side++) {
    const auto engine = corpus_engine(c, oc, model, side ? kind : Activations::f32);
    Batch b;
    b.ids = ids;
    b.segments = {{0, 0, int64_t(ids.size()), 0, 0}};
    engine->forward(b, &seen[side]);
  }
  std::vector<double> out;
  for (size_t l = 0; l < seen[0].layers.size(); l++) {
    double worst = 0;
    for (size_t r = 0; r < ids.size(); r++) {
      double difference = 0, norm = 0;
      for (size_t k = r * size_t(seen[0].columns); k < (r + 1) * size_t(seen[0].columns); k++) {
        const double base = seen[0].layers[l][k], d = seen[1].layers[l][k] - base;
        difference += d * d;
        norm += base * base;
      }
      worst = std::max(worst, std::sqrt(difference / norm));
    }
    out.push_back(worst);
  }
  return out;
}

/// Free-running greedy ids of the case's prompts: how many of all are the official ones up to the first difference.
std::pair<size_t, size_t> greedy_agreement(const CheckContext& c, const OfficialCase& oc,
                                           std::shared_ptr<const Model> model, Activations kind) {
  DumpSpec spec = case_spec(c, oc, false);
  spec.engine.activations = kind;
  const DumpRun run = run_dump(std::move(model), spec);
  const std::vector<Request> official = official_requests(case_dir(c, oc), true);
  std::pair<size_t, size_t> out{0, 0};
  for (size_t i = 0; i < official.size(); i++) {
    const std::vector<int32_t>& want = official[i].forced;
    size_t same = 0;
    while (same < want.size() && run.generated[i].greedy[same] == want[same]) same++;
    out.first += same;
    out.second += want.size();
  }
  return out;
}

CheckOutcome trained(const CheckContext& c, const OfficialCase& oc, WeightType type) {
  CheckOutcome out;
  const auto quantised = quantised_case(c, oc, type);
  const auto exact = corpus_engine(c, oc, shared_model(case_dir(c, oc) / "model"), Activations::f32);
  std::map<Activations, std::unique_ptr<Engine>> engines;
  for (Activations kind : {Activations::f32, Activations::s16, Activations::s8})
    engines[kind] = corpus_engine(c, oc, quantised, kind);
  std::map<Activations, TextDivergence> from_widened, from_exact;
  double official = 0;
  int64_t positions = 0;
  for (const ScoredText& t : corpus(c, oc)) {
    const std::vector<float> base = logits_of(*exact, t.ids, Pass::prefill);
    const std::vector<float> widened = logits_of(*engines[Activations::f32], t.ids, Pass::prefill);
    for (auto& [kind, engine] : engines) {
      const std::vector<float> got = kind == Activations::f32 ? widened : logits_of(*engine, t.ids, Pass::prefill);
      from_widened[kind].add(widened, got, t.ids);
      from_exact[kind].add(base, got, t.ids);
    }
    official += t.nll * double(t.ids.size() - 1);
    positions += int64_t(t.ids.size()) - 1;
  }
  // The engine with the case's own weights stands for float64: its NLL is the official one.
  out.compared++;
  const double own = from_exact[Activations::f32].nll_base(), float64 = official / double(positions);
  if (!(std::fabs(own - float64) <= 1e-5))
    out.fail(fmt::format("unquantised weights: NLL {:.7f}, official float64 {:.7f}", own, float64));
  for (const auto& [kind, rounding] : {std::pair{Activations::s16, "int16"}, std::pair{Activations::s8, "int8"}}) {
    const KlGate gate = kl_gate(c, oc, rounding);
    const TextDivergence& d = from_widened[kind];
    out.compared += 2;
    if (!(d.kl_mean() <= gate.mean))
      out.fail(fmt::format("{}: mean KL from widened weights {:.2e}, at most {:.2e}: four times the official {}",
                           name_of(kind), d.kl_mean(), gate.mean, rounding));
    if (!(d.kl_max <= gate.max))
      out.fail(fmt::format("{}: largest KL {:.2e}, at most {:.2e}", name_of(kind), d.kl_max, gate.max));
  }
  // s16 must not be told from floats by its NLL; what is lost is lost by the weights.
  out.compared++;
  const double shift = from_widened[Activations::s16].nll_target() - from_widened[Activations::s16].nll_base();
  if (!(std::fabs(shift) <= 1e-5)) out.fail(fmt::format("s16: NLL {:.2e} from that of widened weights", shift));
  for (const auto& [kind, d] : from_exact) {
    const auto [same, all] = greedy_agreement(c, oc, quantised, kind);
    out.notes.push_back(
        fmt::format("{} {:<3}: NLL {:.6f} (float64 {:.6f}); KL from float64 {:.2e} mean {:.2e} max; from widened "
                    "weights {:.2e} mean {:.2e} max; "
                    "same best id {}/{}; greedy ids {}/{}",
                    id_of(type), name_of(kind), d.nll_target(), float64, d.kl_mean(), d.kl_max,
                    from_widened[kind].kl_mean(), from_widened[kind].kl_max, d.same_best, d.positions, same, all));
  }
  for (Activations kind : {Activations::s16, Activations::s8}) {
    const std::vector<double> layers = growth(c, oc, quantised, kind);
    std::string line = fmt::format("{} {}: relative error of the residual after layer", id_of(type), name_of(kind));
    for (size_t l = 0; l < layers.size(); l = l == 0 ? 7 : l + 8) line += fmt::format(" {}: {:.1e}", l, layers[l]);
    out.notes.push_back(line);
    out.compared++;
    if (layers.size() != size_t(quantised->config.layers)) out.fail("not every layer's residual was seen");
  }
  return out;
}

/// As people run it: s16 activations, f16 cache. The first difference of a prompt is excused only where llama.cpp's own
/// margin is at most 0.1, and in one prompt at most.
CheckOutcome smollm2_defaults(const CheckContext& c) {
  constexpr double kNearTie = 0.1;
  CheckOutcome out;
  if (!smollm2_present(c)) {
    out.not_run = smollm2_how();
    return out;
  }
  std::ifstream in(c.root / "goldens" / "llamacpp" / "smollm2.json");
  const nlohmann::json cases = nlohmann::json::parse(in).at("variants").at("f32").at("cases");
  for (Activations kind : {Activations::s16, Activations::s8}) {
    DumpSpec spec = smollm2_spec(c, SIZE_MAX, 31);
    spec.engine.kv = KvType::f16;
    spec.engine.activations = kind;
    const DumpRun run = run_dump(smollm2_model(c), spec);
    for (size_t i = 0; i < cases.size(); i++) {
      const auto want = cases[i].at("ids").get<std::vector<int32_t>>();
      const auto& got = run.generated[i].greedy;
      size_t same = 0;
      while (same < want.size() && same < got.size() && got[same] == want[same]) same++;
      std::string line =
          fmt::format("{}: {}: {} of {} ids", name_of(kind), cases[i].at("name").get<std::string>(), same, want.size());
      const bool differs = same < want.size();
      const double margin = differs ? cases[i].at("steps")[same].at("margin").get<double>() : 0;
      if (differs)
        line += fmt::format(", then id {} for {} (llama.cpp's margin there {:.3f})", same < got.size() ? got[same] : -1,
                            want[same], margin);
      if (kind == Activations::s16) {
        out.compared += int64_t(differs ? same + 1 : same);
        if (differs && margin <= kNearTie) out.near_ties++;
        if (differs && (margin > kNearTie || out.near_ties > 1)) out.fail(line);
      }
      out.notes.push_back(line);
    }
  }
  return out;
}

/// A public-domain text by kind of activations, through prefill and through decode passes.
CheckOutcome smollm2_nll(const CheckContext& c) {
  constexpr double kS16 = 1e-4, kS8 = 1e-2;  // nats per token from widened weights; measured figures: README
  constexpr size_t kDecoded = 256;           // ids that are also run one by one
  CheckOutcome out;
  if (!smollm2_present(c)) {
    out.not_run = smollm2_how();
    return out;
  }
  const Tokenizer tokenizer = Tokenizer::load(smollm2_path(c));
  const std::vector<int32_t> ids = tokenizer.encode(read_text_file(c.root / "goldens" / "text" / "alice.txt"));
  double widened = 0;
  for (Activations kind : {Activations::f32, Activations::s16, Activations::s8}) {
    DumpSpec spec = smollm2_spec(c, 1, 0);
    spec.engine.activations = kind;
    spec.engine.kv = KvType::f16;
    spec.engine.context = int64_t(ids.size());
    const auto engine = make_engine(smollm2_model(c), spec);
    NllOptions options;
    options.prefix = tokenizer.prefix();
    const Nll prefill = token_nll(*engine, ids, options);
    options.pass = Pass::decode;
    const Nll decode = token_nll(*engine, {ids.data(), kDecoded}, options);
    out.compared += int64_t(prefill.tokens.size());
    for (size_t i = 0; i < decode.tokens.size(); i++)
      if (prefill.tokens.at(i).nll != decode.tokens[i].nll) {
        out.fail(fmt::format("{}: id {}: NLL {:.9g} in prefill passes, {:.9g} in decode passes", name_of(kind), i,
                             prefill.tokens[i].nll, decode.tokens[i].nll));
        break;
      }
    if (kind == Activations::f32) widened = prefill.mean();
    const double off = prefill.mean() - widened, most = kind == Activations::s16 ? kS16 : kS8;
    if (!(std::fabs(off) <= most))
      out.fail(fmt::format("{}: NLL {:.6f}, of widened weights {:.6f}: more than {:.0e} off", name_of(kind),
                           prefill.mean(), widened, most));
    out.notes.push_back(
        fmt::format("{:<3}: NLL {:.6f} nats per token over {} ids, perplexity {:.4f}, {:+.1e} from widened weights",
                    name_of(kind), prefill.mean(), prefill.tokens.size(), prefill.perplexity(), off));
  }
  return out;
}

}  // namespace

void add_quantised_quality_checks(std::vector<Check>& out) {
  Check k;
  k.kind = CheckKind::quality;
  k.scope = Scope::none;
  const OfficialCase& deep = official_case("trained-deep");
  for (WeightType type : {WeightType::q8_0, WeightType::q4_0}) {
    k.id = fmt::format("quality/trained-deep/{}", id_of(type));
    k.family = deep.family;
    k.cost = Cost::slow;
    k.baseline =
        "official float64 NLL; the same quantised weights widened, f32 activations; official KL of rounded activations";
    k.target = "our predictions with s16 and s8 activations, 24 texts";
    k.expected = 8;
    k.run = [&deep, type](const CheckContext& c) { return trained(c, deep, type); };
    out.push_back(k);
  }
  k.cost = Cost::fast;
  k.id = "quality/smollm2/defaults";
  k.family = "llama";
  k.baseline = "32 ids each of llama.cpp's f32 variant, 3 prompts, and its margins";
  k.target = "our greedy ids with s16 activations and f16 cache; s8 is shown beside";
  k.expected = 60;  // all 96 but for one prompt that may end early
  k.run = smollm2_defaults;
  out.push_back(k);
  k.cost = Cost::slow;
  k.id = "quality/smollm2/nll";
  k.baseline = "widened weights, f32 activations; decode passes";
  k.target =
      "NLL of a public-domain text with s16 and s8 activations, f16 cache; the same value of every id in prefill "
      "passes";
  k.expected = 3000;
  k.run = smollm2_nll;
  out.push_back(k);
}

}  // namespace assay

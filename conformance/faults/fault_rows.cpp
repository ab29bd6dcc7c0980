#include "conformance/faults/fault_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "conformance/artifact/options_echo.h"
#include "conformance/faults/kernel_faults.h"
#include "conformance/integration/quantised.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/quality/quantised.h"
#include "dumps/error.h"
#include "engine/formats/quantise.h"

namespace assay {
namespace {

std::shared_ptr<const Model> model_of(const CheckContext& c, const nlohmann::json& row) {
  const OfficialCase& oc = official_case(row.at("case"));
  if (!row.contains("quantisation")) return shared_model(case_dir(c, oc) / "model");
  return quantised_case(c, oc, weight_type_from_name(row.at("quantisation"), "expected.json"));
}

/// Judges what was found against what the row expects, `first` being the beginning of a line.
void expect_first(const std::string& where, const std::string& found, const std::string& first, CheckOutcome& out) {
  out.compared++;
  if (found.empty())
    out.fail(where + ": not caught");
  else if (first.empty() || found.rfind(first, 0) != 0)
    out.fail(fmt::format("{}: caught first at \"{}\", expected \"{}\"", where, found, first));
  else
    out.notes.push_back(where + ": " + found);
}

/// Which linear nodes gave a finite value in a row whose input holds a NaN.
struct NanObserver : GenerateObserver {
  explicit NanObserver(int at_layer) : layer(at_layer) {}
  void value(const Batch&, const Node& node, const float* data, std::span<const int64_t> rows,
             int64_t columns) override {
    if (node.layer != layer || node.op != OpKind::linear) return;
    judged++;
    const float* end = data + int64_t(rows.size()) * columns;
    if (first_finite.empty() && std::any_of(data, end, [](float f) { return !std::isnan(f); }))
      first_finite = node.name();
  }
  int layer;
  int64_t judged = 0;
  std::string first_finite;
};

}  // namespace

void judge_kernel_rows(const nlohmann::json& rows, const std::string& fault, CheckOutcome& out) {
  for (const auto& row : rows) {
    if (row.at("fault") != fault) continue;
    const std::string op = row.at("op"), where = fmt::format("{}, kernel/{}", row.at("row").get<std::string>(), op);
    const auto& checks = kernel_checks();
    const auto check = std::find_if(checks.begin(), checks.end(), [&](const KernelCheck& k) { return k.op == op; });
    if (check == checks.end()) throw Error(ErrorKind::malformed, "expected.json", "unknown kernel check", "", op);
    const CheckOutcome honest = check->run(kernels(Isa::scalar));
    if (honest.failed != 0)
      out.fail(where + ": fails without the fault, so that a catch proves nothing: " + honest.failures[0]);
    const CheckOutcome planted = check->run(planted_kernels(fault));
    expect_first(where, planted.failures.empty() ? "" : planted.failures[0], row.at("first"), out);
  }
}

void judge_nan_rows(const CheckContext& c, const nlohmann::json& rows, const std::string& fault, CheckOutcome& out) {
  constexpr int kLayer = 1;
  constexpr int64_t kColumn = 5;
  for (const auto& row : rows) {
    if (row.at("fault") != fault) continue;
    auto broken = std::make_shared<Model>(*model_of(c, row));
    broken->weights.layers.at(kLayer).attn_norm.at(kColumn) = NAN;
    for (Activations kind : {Activations::s16, Activations::s8})
      for (bool planted : {false, true}) {
        DumpSpec spec = case_spec(c, official_case(row.at("case")), true);  // forced ids: it goes on after the NaN
        spec.engine.activations = kind;
        if (planted) spec.plant = fault;
        const auto engine = make_engine(broken, spec);
        NanObserver seen(kLayer);
        const auto generated = generate(*engine, spec.requests, {}, &seen);
        const std::string where = fmt::format("{} on {}, {}", row.at("row").get<std::string>(),
                                              row.at("case").get<std::string>(), name_of(kind));
        if (seen.judged == 0) out.fail(where + ": no node was judged");
        if (planted) {
          expect_first(where, seen.first_finite, row.at("first"), out);
          continue;
        }
        out.compared++;
        if (!seen.first_finite.empty())
          out.fail(where + ": without the fault, the NaN does not reach all of " + seen.first_finite);
        const auto& at = generated.at(0).non_finite;
        if (!at || at->layer != kLayer || at->phase != "attn_norm" || at->column != kColumn)
          out.fail(where + ": the first value that is not finite is placed wrongly: " + (at ? at->text() : "nowhere"));
      }
  }
}

void judge_text_rows(const CheckContext& c, const nlohmann::json& rows, const std::string& fault, CheckOutcome& out) {
  constexpr size_t kTexts = 2;
  for (const auto& row : rows) {
    if (row.at("fault") != fault) continue;
    const OfficialCase& oc = official_case(row.at("case"));
    const auto model = model_of(c, row);
    const KlGate gate = kl_gate(c, oc, "int16");
    const auto widened = corpus_engine(c, oc, model, Activations::f32),
               clean = corpus_engine(c, oc, model, Activations::s16),
               planted = corpus_engine(c, oc, model, Activations::s16, fault);
    std::vector<ScoredText> texts = corpus(c, oc);
    texts.resize(std::min(texts.size(), kTexts));
    double caught_least = INFINITY;
    for (const char* pass : {"prefill", "decode"}) {
      const Pass kind = std::string(pass) == "prefill" ? Pass::prefill : Pass::decode;
      const size_t first = kind == Pass::decode ? 1 : 0;  // position 0 of a decoded text is a prefill pass
      TextDivergence honest, wrong;
      for (const ScoredText& t : texts) {
        const std::vector<float> base = logits_of(*widened, t.ids, kind);
        honest.add(base, logits_of(*clean, t.ids, kind), t.ids, first);
        wrong.add(base, logits_of(*planted, t.ids, kind), t.ids, first);
      }
      const std::string where = fmt::format("{} on {}, {} passes", row.at("row").get<std::string>(), oc.name, pass);
      const std::string figures =
          fmt::format("mean KL {:.2e} ({:.2e} without it, gate {:.2e}), NLL {:.6f} ({:.6f} without it)",
                      wrong.kl_mean(), honest.kl_mean(), gate.mean, wrong.nll_target(), honest.nll_target());
      out.compared++;
      if (!(honest.kl_mean() <= gate.mean)) out.fail(where + ": beyond the gate without the fault: " + figures);
      const auto listed = [&](const char* key) {
        const auto names = row.at(key).get<std::set<std::string>>();
        return names.count(pass) != 0;
      };
      if (listed("caught")) {
        caught_least = std::min(caught_least, wrong.kl_mean());
        if (!(wrong.kl_mean() > gate.mean)) out.fail(where + ": not caught: " + figures);
      } else if (!listed("clean") || !(wrong.kl_mean() < caught_least / 10)) {
        out.fail(where + ": these passes should be a tenth of the caught ones or less: " + figures);
      }
      out.notes.push_back(where + ": " + figures);
    }
    if (row.at("greedy") != "same") continue;
    // Why greedy text must not be the judge: it survives.
    DumpSpec spec = case_spec(c, oc, false);
    const DumpRun honest = run_dump(model, spec);
    spec.plant = fault;
    const DumpRun wrong = run_dump(model, spec);
    size_t same = 0, all = 0;
    for (size_t i = 0; i < honest.generated.size(); i++)
      for (size_t k = 0; k < honest.generated[i].greedy.size(); k++, all++)
        same += wrong.generated[i].greedy[k] == honest.generated[i].greedy[k];
    out.compared++;
    out.notes.push_back(fmt::format("greedy ids that survive the fault: {} of {}", same, all));
    if (same != all) out.fail(fmt::format("greedy ids: {} of {} survive the fault, expected all", same, all));
  }
}

void judge_echo_rows(const CheckContext& c, const nlohmann::json& rows, const std::string& fault, CheckOutcome& out) {
  for (const auto& row : rows) {
    if (row.at("fault") != fault) continue;
    const OfficialCase& oc = official_case(row.at("case"));
    const std::string where = fmt::format("{} on {}, echoed options", row.at("row").get<std::string>(), oc.name);
    DumpSpec spec = case_spec(c, oc, false);
    spec.requests.resize(1);
    spec.requests[0].decode = 0;
    spec.mode = CaptureMode::hash;
    spec.replace = true;
    spec.out = c.work / "echo";
    const auto wrong = [&] {
      run_dump(shared_model(case_dir(c, oc) / "model"), spec);
      return echoes_unlike_config(Dump::open(spec.out).manifest(), case_dir(c, oc) / "model" / "config.json");
    };
    if (!wrong().empty()) out.fail(where + ": unlike the config without the fault");
    spec.plant = fault;
    const std::vector<std::string> found = wrong();
    expect_first(where, found.empty() ? "" : found[0], row.at("first"), out);
  }
}

}  // namespace assay

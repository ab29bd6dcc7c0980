// The checks that faults are held against, with the fault planted and without it:
//   integration/..., quality/..., artifact/..., equivalence/...   the registry's check of that id, every run of it
//   planted kernel/<op>                          the kernel check of an op on the planted table
//   regression/<case>[/<TYPE>]           byte_exact against the fault-free dump of the same build, as a release is held
//                                        against the last one; TYPE: the case's weights quantised
//   kl/<case>/<TYPE>                     KL of predictions over texts, by kind of pass, against the gate of 16-bit
//   activations nan/<case>/<TYPE>                    a NaN in a norm's weight reaches every output of the nodes that
//   read it greedy/<case>/<TYPE>                 greedy ids against the fault-free ones
// and whatever the fault brings itself (Fault::own).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "conformance/faults/judge.h"
#include "conformance/integration/quantised.h"
#include "conformance/kernel/kernel_check.h"
#include "conformance/quality/quantised.h"
#include "engine/formats/quantise.h"

namespace assay {
namespace {

std::vector<std::string> parts_of(const std::string& id) {
  std::vector<std::string> out(1);
  for (const char ch : id) {
    if (ch == '/')
      out.emplace_back();
    else
      out.back() += ch;
  }
  return out;
}

/// "regression/<case>/<TYPE>": the case and its weights.
struct Subject {
  const OfficialCase& oc;
  std::shared_ptr<const Model> model;
};
Subject subject_of(const CheckContext& c, const std::string& id) {
  const std::vector<std::string> parts = parts_of(id);
  const OfficialCase& oc = official_case(parts.at(1));
  if (parts.size() < 3) return {oc, shared_model(case_dir(c, oc) / "model")};
  return {oc, quantised_case(c, oc, weight_type_from_name(parts[2], id))};
}

/// What a planted fault does to every run of a check.
std::function<void(DumpSpec&)> alteration(const Expectation& e, const Fault* planted) {
  return [chunk = e.chunk, planted](DumpSpec& s) {
    s.generate.chunk = chunk;
    if (!planted) return;
    if (planted->engine || planted->kernels) s.plant = planted->id;
    if (planted->spec) planted->spec(s);
  };
}

Finding registered(const CheckContext& c, const Expectation& e, const Fault* planted) {
  const auto& all = registry();
  const auto check = std::find_if(all.begin(), all.end(), [&](const Check& k) { return k.id == e.check; });
  if (check == all.end()) throw Error(ErrorKind::malformed, "expected.json", "no such check", "", e.check);
  if (check->kind != e.kind || (check->kind == CheckKind::value && check->scope != e.scope))
    throw Error(ErrorKind::malformed, "expected.json", "the check is of another kind or scope",
                fmt::format("{} {}", name_of(check->kind), name_of(check->scope)),
                fmt::format("{}: {} {}", e.check, name_of(e.kind), name_of(e.scope)));
  CheckContext inner = c;
  inner.alter = alteration(e, planted);
  const CheckResult r = run_check(*check, inner);
  Finding f;
  f.not_run = r.outcome.not_run;
  f.failed = r.verdict == Verdict::fail || r.verdict == Verdict::error;
  f.changed = planted && f.failed;
  if (f.failed) f.place = !r.outcome.place.empty() ? r.outcome.place : r.outcome.failures.at(0);
  return f;
}

/// `only`: the case of the check that is to run, -1: all.
Finding kernel(const Expectation& e, const Fault* planted, int64_t only) {
  const std::string op = e.check.substr(e.check.find('/') + 1);
  const auto& checks = kernel_checks();
  const auto check = std::find_if(checks.begin(), checks.end(), [&](const KernelCheck& k) { return k.op == op; });
  if (check == checks.end()) throw Error(ErrorKind::malformed, "expected.json", "unknown kernel check", "", e.check);
  KernelRun run;
  run.only = only;
  const CheckOutcome o = check->run(planted ? planted_kernels(*planted) : kernels(Isa::scalar), run);
  Finding f;
  f.failed = o.failed != 0;
  f.changed = planted && f.failed;
  if (!f.failed) return f;
  f.place = o.failures.at(0);
  const size_t at = f.place.rfind("[case ");
  if (at != std::string::npos) f.kernel_case = std::stoll(f.place.substr(at + 6));
  f.note = fmt::format("{} failures in {} comparisons", o.failed, o.compared);
  return f;
}

/// The run that a release keeps: hashes of every value and state. Made once per process; the folder may go.
const Dump& clean_dump(const CheckContext& c, const Expectation& e, const Subject& s, DumpSpec spec) {
  static std::map<std::string, Dump> kept;
  const std::string key = fmt::format("{} {}", e.check, e.chunk);
  if (const auto it = kept.find(key); it != kept.end()) return it->second;
  spec.out = c.work / "clean";
  run_dump(s.model, spec);
  return kept.emplace(key, Dump::open(spec.out)).first->second;
}

Finding regression(const CheckContext& c, const Expectation& e, const Fault* planted) {
  const Subject s = subject_of(c, e.check);
  DumpSpec spec = case_spec(c, s.oc, true);
  for (Request& r : spec.requests) {  // the prefill and two passes: what later passes add is length
    r.decode = std::min<int64_t>(r.decode, 2);
    r.forced.resize(std::min<size_t>(r.forced.size(), size_t(r.decode)));
  }
  spec.mode = CaptureMode::hash;
  spec.replace = true;
  spec.generate.chunk = e.chunk;
  const Dump& clean = clean_dump(c, e, s, spec);
  alteration(e, planted)(spec);
  spec.out = c.work / "run";
  const DumpRun run = run_dump(s.model, spec);
  CompareOptions options;
  options.level = Level::byte_exact;
  const CompareResult r = compare(clean, Dump::open(spec.out), options);
  Finding f;
  f.failed = r.exit_code() != kPass;
  f.changed = planted && f.failed;
  if (f.failed)
    f.place = r.divergence ? r.divergence->name + (r.divergence->where.empty() ? "" : ", " + r.divergence->where)
                           : "nothing was compared";
  f.note = fmt::format("{} of {} tensors differ", r.failed, r.compared + r.missing);
  if (planted)
    for (const auto& [variant, nodes] : run.trace.variants())
      if (variant == "cpu/" + planted->name()) f.note += fmt::format("; the planted code ran in {} nodes", nodes);
  return f;
}

/// A NaN planted in the weight of layer 1's attention norm: the first linear node of that layer with a finite output.
Finding nan_reaches(const CheckContext& c, const Expectation& e, const Fault* planted) {
  struct Seen : GenerateObserver {
    void value(const Batch&, const Node& node, const float* data, std::span<const int64_t> rows,
               int64_t columns) override {
      if (node.layer != 1 || node.op != OpKind::linear) return;
      judged++;
      const float* end = data + int64_t(rows.size()) * columns;
      if (finite.empty() && std::any_of(data, end, [](float x) { return !std::isnan(x); })) finite = node.name();
    }
    int64_t judged = 0;
    std::string finite;
  };
  constexpr size_t kColumn = 5;
  const Subject s = subject_of(c, e.check);
  auto broken = std::make_shared<Model>(*s.model);
  broken->weights.layers.at(1).attn_norm.at(kColumn) = NAN;
  Finding f;
  for (Activations kind : {Activations::s16, Activations::s8}) {
    DumpSpec spec = case_spec(c, s.oc, true);  // forced ids: it goes on after the NaN
    spec.engine.activations = kind;
    alteration(e, planted)(spec);
    const auto engine = make_engine(broken, spec);
    Seen seen;
    const auto generated = generate(*engine, spec.requests, spec.generate, &seen);
    const auto& at = generated.at(0).non_finite;
    const bool placed = at && at->layer == 1 && at->phase == "attn_norm" && at->column == int64_t(kColumn);
    if (seen.judged > 0 && seen.finite.empty() && placed) continue;
    f.failed = true;
    if (f.place.empty())
      f.place = !seen.finite.empty() ? seen.finite
                : placed             ? "no node was judged"
                                     : "the first value that is not finite is placed " + (at ? at->text() : "nowhere");
  }
  f.changed = planted && f.failed;
  return f;
}

/// Kinds of pass whose mean KL from widened weights is beyond the gate; of those, the ones within a tenth of the
/// largest.
Finding divergence_by_pass(const CheckContext& c, const Expectation& e, const Fault* planted) {
  constexpr size_t kTexts = 2;
  const Subject s = subject_of(c, e.check);
  const KlGate gate = kl_gate(c, s.oc, "int16");
  const auto widened = corpus_engine(c, s.oc, s.model, Activations::f32),
             judged = corpus_engine(c, s.oc, s.model, Activations::s16, planted ? planted->id : "");
  std::vector<ScoredText> texts = corpus(c, s.oc);
  texts.resize(std::min(texts.size(), kTexts));
  std::vector<std::pair<std::string, double>> beyond;
  Finding f;
  double worst = 0;
  for (const Pass pass : {Pass::prefill, Pass::decode}) {
    TextDivergence d;
    for (const ScoredText& t : texts)  // position 0 of a decoded text is a prefill pass
      d.add(logits_of(*widened, t.ids, pass), logits_of(*judged, t.ids, pass), t.ids, pass == Pass::decode ? 1 : 0);
    f.note += fmt::format("{}{} passes: mean KL {:.2e} (gate {:.2e}), NLL {:.6f}", f.note.empty() ? "" : "; ",
                          name_of(pass), d.kl_mean(), gate.mean, d.nll_target());
    if (!(d.kl_mean() <= gate.mean)) beyond.emplace_back(name_of(pass), d.kl_mean());
    worst = std::max(worst, d.kl_mean());
  }
  f.failed = !beyond.empty();
  f.changed = planted && f.failed;
  for (const auto& [pass, kl] : beyond)
    if (!(kl < worst / 10)) f.place += (f.place.empty() ? "" : " and ") + pass + " passes";
  return f;
}

Finding greedy(const CheckContext& c, const Expectation& e, const Fault* planted) {
  const Subject s = subject_of(c, e.check);
  DumpSpec spec = case_spec(c, s.oc, false);
  const DumpRun honest = run_dump(s.model, spec);
  alteration(e, planted)(spec);
  const DumpRun judged = run_dump(s.model, spec);
  Finding f;
  for (size_t i = 0; i < honest.generated.size() && !f.failed; i++) {
    const auto& a = honest.generated[i].greedy;
    const auto& b = judged.generated[i].greedy;
    const auto at = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
    if (at.first == a.end() && at.second == b.end()) continue;
    f.failed = true;
    f.place = fmt::format("prompt{}, id {}", i, at.first - a.begin());
  }
  f.changed = planted && f.failed;
  return f;
}

Finding run(const CheckContext& c, const Expectation& e, const Fault* planted, int64_t only) {
  const std::string room = e.check.substr(0, e.check.find('/'));
  if (room == "kernel") return kernel(e, planted, only);
  if (room == "regression") return regression(c, e, planted);
  if (room == "nan") return nan_reaches(c, e, planted);
  if (room == "kl") return divergence_by_pass(c, e, planted);
  if (room == "greedy") return greedy(c, e, planted);
  return registered(c, e, planted);
}

}  // namespace

Finding probe(const CheckContext& c, const Expectation& e, const Fault& fault, bool planted, int64_t only) {
  if (fault.own) return fault.own(c, e.check, planted);
  if (planted) return run(c, e, &fault, -1);
  static std::map<std::string, Finding> clean;
  const std::string key = fmt::format("{} {} {}", e.check, e.chunk, only);
  if (const auto it = clean.find(key); it != clean.end()) return it->second;
  return clean[key] = run(c, e, nullptr, only);
}

}  // namespace assay

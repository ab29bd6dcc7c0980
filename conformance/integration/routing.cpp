// Forced routing: the oracle runs with the tokens and the experts of our own dump, so that every row stays comparable whatever the
// routers chose; the choices are judged by their regret, counted, and said.
#include <fmt/format.h>

#include "conformance/integration/cases.h"
#include "conformance/integration/quantised.h"
#include "dumps/compare.h"
#include "engine/forced_experts.h"
#include "oracle/dump.h"

namespace assay {
namespace {

struct RoutingSubject {
  std::shared_ptr<const Model> model;
  DumpSpec spec;
  std::string preset;
  std::string what;
};

void against_forced(const CheckContext& c, RoutingSubject s, CheckOutcome& out) {
  s.spec.replace = true;
  s.spec.out = c.work / "dump";
  const DumpRun run = run_dump(s.model, s.spec);
  const Dump target = Dump::open(s.spec.out);
  std::vector<Request> requests = s.spec.requests;
  for (size_t i = 0; i < requests.size(); i++) {
    requests[i].forced = run.generated[i].fed;
    requests[i].experts = forced_experts(target, fmt::format("prompt{}", i), s.model->config);
  }
  oracle::DumpOptions options;
  options.out = c.work / "forced";
  options.replace = true;
  options.sync = false;
  options.capture.state = true;
  options.threads = c.threads;
  oracle::write_dump(oracle::Weights64::of(s.model), requests, options);
  CompareOptions compare_options;
  compare_options.tolerance = presets().at(s.preset);
  // A router's margin may be anything: what counts is that its choice was worth as much.
  const CompareResult r = compare(Dump::open(options.out), target, compare_options);
  out.add(r, s.what);
  double worst = 0;
  std::string at;
  for (const RoutingRecord& n : r.routing)
    if (n.flips > 0 && (at.empty() || n.worst_regret > worst)) worst = n.worst_regret, at = n.name;
  out.notes.push_back(fmt::format("{}: {} of {} choices differ from those of float64{}", s.what, r.flips, r.choices,
                                  r.flips ? fmt::format(", regret {:.3g} at most ({}), cap {:g}", worst, at, compare_options.tolerance.regret_cap) : ""));
}

CheckOutcome forced_routing(const CheckContext& c, const OfficialCase& oc) {
  CheckOutcome out;
  const auto steps = [](DumpSpec s) {
    for (Request& r : s.requests) r.decode = std::min<int64_t>(r.decode, 4);
    return s;
  };
  against_forced(c, {shared_model(case_dir(c, oc) / "model"), steps(case_spec(c, oc, false)), "f32", "float weights"}, out);
  for (Activations kind : {Activations::s16, Activations::s8}) {
    // Coarse ones on trained weights alone: what random experts cancel to is no figure for a preset.
    if (kind == Activations::s8 && !oc.trained) continue;
    DumpSpec spec = steps(case_spec(c, oc, false));
    spec.engine.activations = kind;
    against_forced(c, {quantised_case(c, oc, WeightType::q8_0), spec, kind == Activations::s16 ? "s16" : "q8", fmt::format("Q8_0, {}", name_of(kind))}, out);
  }
  return out;
}

}  // namespace

void add_routing_checks(std::vector<Check>& out) {
  for (const OfficialCase& oc : official_cases()) {
    if (std::string(oc.family) != "qwen3_moe") continue;
    Check k;
    k.id = fmt::format("integration/{}/routing", oc.name);
    k.family = oc.family;
    k.baseline = "the oracle in float64 with the target's tokens and experts";
    k.target = "our free run with float and Q8_0 weights: every phase, and other choices by their regret";
    k.expected = (oc.trained ? 3 : 2) * oc.tensors;
    k.run = [&oc](const CheckContext& c) { return forced_routing(c, oc); };
    out.push_back(std::move(k));
  }
}

}  // namespace assay

// Which code ran: equal bytes of two runs prove something about two kernels only if both of them ran.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/equivalence/variants.h"
#include "conformance/integration/quantised.h"

namespace assay {
namespace {

/// Every node of every pass ran on the asked instruction set, quantised products with the asked activations.
CheckOutcome kernels_that_ran(const CheckContext& c, const OfficialCase& oc) {
  CheckOutcome out;
  const auto model = quantised_case(c, oc, WeightType::q8_0);
  for (Isa isa : supported_isas())
    for (Activations kind : {Activations::s16, Activations::s8, Activations::f32}) {
      DumpSpec spec = case_spec(c, oc, false);
      spec.requests.resize(2);
      for (Request& r : spec.requests) r.decode = 1;
      spec.engine.isa = isa;
      spec.engine.activations = kind;
      const auto engine = make_engine(model, spec);
      Trace trace;
      generate(*engine, spec.requests, spec.generate, nullptr, &trace);
      const auto& nodes = engine->program().nodes;
      const auto of_pass = size_t(std::count_if(nodes.begin(), nodes.end(), [](const Node& n) { return n.runs_in(Pass::decode); }));
      if (trace.passes != 4 || trace.entries.size() != 4 * of_pass)
        out.fail(fmt::format("isa {}: {} nodes in {} passes, wanted {} in 4", name_of(isa), trace.entries.size(),
                             trace.passes, 4 * of_pass));
      for (const TraceEntry& e : trace.entries) {
        const Node& n = engine->program().nodes.at(size_t(e.node));
        const bool integers = (n.op == OpKind::linear || n.op == OpKind::expert_linear) && is_quantised(n.weight->type) &&
                              kind != Activations::f32;
        const std::string wanted = std::string(name_of(isa)) + (integers ? "+" + std::string(name_of(kind)) : "");
        out.compared++;
        if (e.variant != wanted)
          out.fail(fmt::format("isa {}: {} ran in {}, wanted {}", name_of(isa), e.variant, n.name(), wanted));
      }
    }
  return out;
}

}  // namespace

void add_trace_checks(std::vector<Check>& out) {
  for (const OfficialCase& oc : official_cases()) {
    if (oc.trained || !oc.gguf) continue;
    Check k;
    k.id = fmt::format("counter/{}/kernels-that-ran", oc.name);
    k.kind = CheckKind::counter;
    k.scope = Scope::none;
    k.family = oc.family;
    k.baseline = "the asked instruction set and activations";
    k.target = "the trace: kernel variant of every node of every pass";
    k.expected = 400;
    k.run = [&oc](const CheckContext& c) { return kernels_that_ran(c, oc); };
    out.push_back(std::move(k));
  }
}

}  // namespace assay

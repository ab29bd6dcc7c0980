// One set of bits: our own runs against each other, byte by byte, across everything that must not matter.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/equivalence/variants.h"
#include "conformance/integration/cases.h"

namespace assay {

namespace {

/// Whether nodes with integer activations of the asked kind ran on the asked instruction set; none where floats were asked.
bool ran_activations(const Trace& trace, const EngineOptions& o) {
  const std::string integers = fmt::format("cpu/{}+", name_of(o.isa));
  const std::string wanted = o.activations == Activations::f32 ? "" : integers + std::string(name_of(o.activations));
  bool found = wanted.empty();
  for (const auto& [variant, nodes] : trace.variants()) {
    if (variant == wanted) found = true;
    if (variant != wanted && variant.rfind(integers, 0) == 0) return false;
  }
  return found;
}

}  // namespace

CheckOutcome compare_variants(const CheckContext& c, std::shared_ptr<const Model> model, DumpSpec base, const std::vector<Variant>& variants) {
  CheckOutcome out;
  base.mode = CaptureMode::hash;
  base.out = c.work / "base";
  base.replace = true;
  const DumpRun base_run = run_dump(model, base);
  const Dump base_dump = Dump::open(base.out);
  CompareOptions options;
  options.level = Level::byte_exact;
  int64_t runs = 0;
  for (const Variant& v : variants) {
    DumpSpec spec = base;
    v.apply(spec);
    spec.out = c.work / "variant";
    const DumpRun run = run_dump(model, spec);
    out.add(compare(base_dump, Dump::open(spec.out), options), v.name);
    const std::string ran = run.trace.variants().at(0).first;
    if (ran != fmt::format("cpu/{}", name_of(spec.engine.isa))) out.fail(v.name + ": the trace says " + ran + " ran");
    if (model->quantised() && !ran_activations(run.trace, spec.engine))
      out.fail(fmt::format("{}: the trace has no linear node with {} activations", v.name, name_of(spec.engine.activations)));
    runs++;
  }
  out.notes.push_back(fmt::format("{} variants, each {} tensors; kv {} digest {}", runs, base_dump.tensors().size(), name_of(base.engine.kv), base_dump.digest()));

  // Capture off: the same ids, last logits and state. Nothing that is looked at may change by being looked at.
  DumpSpec blind = base;
  blind.out.clear();
  const DumpRun blind_run = run_dump(model, blind);
  same_answers(out, "", base_run, blind_run);
  return out;
}

void same_answers(CheckOutcome& out, const std::string& where, const DumpRun& watched, const DumpRun& blind) {
  for (size_t i = 0; i < watched.generated.size(); i++) {
    out.compared += 3;
    const std::string prompt = fmt::format("{}capture off, prompt{}", where, i);
    if (blind.generated[i].greedy != watched.generated[i].greedy) out.fail(prompt + ": other ids");
    if (blind.generated[i].last_logits != watched.generated[i].last_logits) out.fail(prompt + ": other last logits");
    const std::string &a = watched.state_hashes[i], &b = blind.state_hashes[i];   // empty where a later request had the slot
    if (!a.empty() && !b.empty() && a != b) out.fail(prompt + ": other state");
  }
}

void add_equivalence_checks(std::vector<Check>& out) {
  for (const OfficialCase& oc : official_cases())
    for (bool product : {false, true}) {
      Check k;
      k.id = fmt::format("equivalence/{}/{}", oc.name, product ? "product" : "axes");
      k.level = Level::byte_exact;
      k.family = oc.family;
      k.cost = product || oc.trained ? Cost::slow : Cost::fast;
      k.baseline = "our dump, best ISA, whole prompts, alone";
      k.target = product ? "every product of ISA, threads, chunk and placement" : "each of ISA, threads, chunk, placement, cache type; capture off";
      k.expected = oc.tensors * (product ? 35 : 10);
      k.run = [&oc, product](const CheckContext& c) {
        DumpSpec base = case_spec(c, oc, false);
        const auto model = shared_model(case_dir(c, oc) / "model");
        for (Request& r : base.requests) r.decode = std::min<int64_t>(r.decode, 8);
        base.engine.kv = KvType::f16;
        CheckOutcome all = compare_variants(c, model, base, product ? product_variants() : axis_variants(base.requests.size()));
        if (!product)
          for (KvType kv : {KvType::f32, KvType::bf16}) {
            base.engine.kv = kv;
            const CheckOutcome o = compare_variants(c, model, base, combined_variants());
            all.compared += o.compared;
            for (const std::string& f : o.failures) all.fail(fmt::format("kv {}: {}", name_of(kv), f));
            all.notes.insert(all.notes.end(), o.notes.begin(), o.notes.end());
          }
        return all;
      };
      out.push_back(std::move(k));
    }
  for (Activations kind : {Activations::f32, Activations::s16, Activations::s8})
    for (int axis = 0; axis < kSmolAxes; axis++) out.push_back(smollm2_equivalence_check(axis, kind));
}

}  // namespace assay

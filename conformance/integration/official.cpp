// Our engine against the official float64 goldens: every phase within four times the official float32's own deviation.
#include <fmt/format.h>

#include "conformance/integration/cases.h"

namespace assay {
namespace {

/// The phase that used most of its tolerance, for people.
std::string worst_of(const CompareResult& r) {
  const CompareRecord* worst = nullptr;
  for (const CompareRecord& c : r.records)
    if (c.metrics && c.tolerance > 0 && (!worst || c.metrics->max_rel / c.tolerance > worst->metrics->max_rel / worst->tolerance)) worst = &c;
  if (!worst) return "no tensor was measured";
  return fmt::format("worst: {} at {:.0f}% of its tolerance {:.2g}", worst->name, 100 * worst->metrics->max_rel / worst->tolerance, worst->tolerance);
}

CheckOutcome against_official(const CheckContext& c, const OfficialCase& oc, Level level) {
  CheckOutcome out;
  DumpSpec spec = case_spec(c, oc, level == Level::max_rel);   // forced: every step stays comparable whatever came before
  spec.out = c.work / "dump";
  run_dump(shared_model(case_dir(c, oc) / "model"), spec);
  CompareOptions options;
  options.level = level;
  options.tolerance = presets().at("official-f32");
  const CompareResult r = compare(Dump::open(case_dir(c, oc)), Dump::open(spec.out), options);
  out.add(r, oc.name);
  if (level == Level::max_rel) out.notes.push_back(worst_of(r));
  return out;
}

}  // namespace

void add_official_checks(std::vector<Check>& out) {
  for (const OfficialCase& oc : official_cases())
    for (Level level : {Level::max_rel, Level::greedy_prefix}) {
      Check k;
      k.id = fmt::format("integration/{}/{}", oc.name, name_of(level));
      k.level = level;
      k.family = oc.family;
      k.baseline = "official float64 goldens";
      k.target = level == Level::max_rel ? "our dump, golden ids forced" : "our free-running greedy ids";
      k.expected = level == Level::max_rel ? oc.tensors : oc.prompts;
      k.run = [&oc, level](const CheckContext& c) { return against_official(c, oc, level); };
      out.push_back(std::move(k));
    }
}

}  // namespace assay

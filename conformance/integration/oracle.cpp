// The oracle against the official float64 goldens: two implementations that share no line, at every phase of every
// case.
#include <fmt/format.h>

#include <set>

#include "conformance/integration/cases.h"
#include "dumps/names.h"
#include "oracle/dump.h"

namespace assay {
namespace {

constexpr double kSameFloat64 = 1e-9;  // of two float64 runs with other orders of sums; the worst seen is 4e-14
constexpr double kStoredF32 =
    1e-7;  // of goldens that are stored as F32 (trained cases): 2^-24 of rounding, and a little

/// Phases that the golden has, so that a dump of 48 layers stays small.
std::vector<std::string> phases_in(const Dump& golden) {
  std::set<std::string> out;
  for (const DumpTensor& t : golden.tensors())
    if (const auto n = parse_tensor_name(t.name); n && !n->pass.empty()) out.insert(n->phase);
  out.erase("logits_top_ids");
  out.erase("logits_top_values");
  return {out.begin(), out.end()};
}

CheckOutcome oracle_against_official(const CheckContext& c, const OfficialCase& oc) {
  CheckOutcome out;
  const Dump golden = Dump::open(case_dir(c, oc));
  oracle::DumpOptions options;
  options.out = c.work / "oracle";
  options.capture.state = true;
  options.capture.phases = phases_in(golden);
  options.sync = false;
  options.threads = c.threads;
  oracle::write_dump(oracle::Weights64::open(case_dir(c, oc) / "model"), case_spec(c, oc, true).requests, options);

  CompareOptions compare_options;
  compare_options.tolerance.preset = "custom";
  compare_options.tolerance.fixed = kStoredF32;
  const CompareResult r = compare(golden, Dump::open(options.out), compare_options);
  out.add(r, oc.name);
  const CompareRecord* worst[2] = {};  // of goldens in F64, in F32
  for (const CompareRecord& t : r.records) {
    if (!t.metrics || t.dtype_base == "I64") continue;
    const bool f64 = t.dtype_base == "F64";
    const CompareRecord*& w = worst[f64 ? 0 : 1];
    if (!w || t.metrics->max_rel > w->metrics->max_rel) w = &t;
    if (f64 && t.status == Status::pass && !(t.metrics->max_rel <= kSameFloat64))
      out.fail(fmt::format("{}: max_rel {:.3g}, wanted at most {:.0e} between two float64 runs", t.name,
                           t.metrics->max_rel, kSameFloat64));
  }
  for (const CompareRecord* w : worst)
    if (w)
      out.notes.push_back(
          fmt::format("worst of goldens in {}: {:.2g} at {}", w->dtype_base, w->metrics->max_rel, w->name));
  return out;
}

}  // namespace

void add_oracle_checks(std::vector<Check>& out) {
  for (const OfficialCase& oc : official_cases()) {
    Check k;
    k.id = fmt::format("oracle/{}/official", oc.name);
    k.family = oc.family;
    k.baseline = "official float64 goldens";
    k.target = "the oracle's float64 run, golden ids forced";
    k.expected = oc.tensors;
    k.run = [&oc](const CheckContext& c) { return oracle_against_official(c, oc); };
    out.push_back(std::move(k));
  }
  add_oracle_width_checks(out);
}

}  // namespace assay

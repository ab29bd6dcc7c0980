// The suite can fail: every planted fault is caught by the check and at the place that expected.json names.
#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/faults/faults.h"
#include "conformance/integration/cases.h"
#include "dumps/error.h"

namespace assay {
namespace {

struct Expectation {
  std::string fault, row, case_name, against, first;
  Level level;
};

std::vector<Expectation> read_expectations(const std::filesystem::path& root) {
  const std::filesystem::path path = root / "conformance" / "faults" / "expected.json";
  std::ifstream in(path);
  if (!in) throw Error(ErrorKind::malformed, path.string(), "can't be read");
  std::vector<Expectation> out;
  try {
    const nlohmann::json table = nlohmann::json::parse(in);
    for (const auto& r : table.at("rows")) {
      const auto level = level_from_name(r.at("level").get<std::string>());
      if (!level) throw Error(ErrorKind::malformed, path.string(), "unknown level", "", r.at("level"));
      out.push_back({r.at("fault"), r.at("row"), r.at("case"), r.at("against"), r.at("first"), *level});
    }
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::malformed, path.string(), e.what());
  }
  return out;
}

CheckOutcome caught(const CheckContext& c, const std::string& fault) {
  CheckOutcome out;
  for (const Expectation& e : read_expectations(c.root)) {
    if (e.fault != fault) continue;
    const OfficialCase* oc = nullptr;
    for (const OfficialCase& known : official_cases())
      if (known.name == e.case_name) oc = &known;
    if (!oc) throw Error(ErrorKind::malformed, "expected.json", "unknown case", "", e.case_name);
    const auto model = shared_model(case_dir(c, *oc) / "model");
    const std::string where = fmt::format("{} on {} against {}", e.row, e.case_name, e.against);

    DumpSpec clean = case_spec(c, *oc, true);
    clean.out = c.work / "clean";
    clean.replace = true;
    run_dump(model, clean);
    DumpSpec planted = clean;
    planted.plant = fault;
    planted.out = c.work / "planted";
    run_dump(model, planted);

    const Dump base = Dump::open(e.against == "official" ? case_dir(c, *oc) : clean.out);
    CompareOptions options;
    options.level = e.level;
    options.tolerance = presets().at("official-f32");
    const CompareResult honest = compare(base, Dump::open(clean.out), options);
    if (honest.exit_code() != kPass) out.fail(where + ": the fault-free run is not clean, so that a catch proves nothing");
    const CompareResult r = compare(base, Dump::open(planted.out), options);
    out.compared++;
    if (r.exit_code() == kPass)
      out.fail(where + ": not caught");
    else if (!r.divergence || r.divergence->name != e.first)
      out.fail(fmt::format("{}: caught first at {}, expected {}", where, r.divergence ? r.divergence->name : "no place", e.first));
    else
      out.notes.push_back(fmt::format("{}: {} at {}", where, name_of(e.level), e.first));
  }
  return out;
}

}  // namespace

void add_fault_checks(std::vector<Check>& out) {
  for (const Fault& f : faults()) {
    Check k;
    k.id = "faults/" + f.row + "/" + f.name;
    k.kind = CheckKind::artifact;
    k.scope = Scope::none;
    k.family = "-";
    k.baseline = "faults/expected.json";
    k.target = "planted: " + f.what;
    k.expected = 2;
    const std::string name = f.name;
    k.run = [name](const CheckContext& c) { return caught(c, name); };
    out.push_back(std::move(k));
  }
}

}  // namespace assay

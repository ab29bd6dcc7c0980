// The suite can fail: every planted fault is caught by the check and at the place that expected.json names.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "conformance/faults/fault_rows.h"
#include "conformance/faults/faults.h"
#include "conformance/integration/quantised.h"
#include "dumps/error.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/quantise.h"

namespace assay {
namespace {

struct Expectation {
  std::string fault, row, case_name, against, first;
  Level level;
  std::optional<WeightType> quantisation;   // of the case converted; absent: its own weights
};

std::vector<Expectation> read_expectations(const nlohmann::json& table, const std::string& path) {
  std::vector<Expectation> out;
  for (const auto& r : table.at("rows")) {
    const auto level = level_from_name(r.at("level").get<std::string>());
    if (!level) throw Error(ErrorKind::malformed, path, "unknown level", "", r.at("level"));
    std::optional<WeightType> type;
    if (r.contains("quantisation")) type = weight_type_from_name(r.at("quantisation"), path);
    out.push_back({r.at("fault"), r.at("row"), r.at("case"), r.at("against"), r.at("first"), *level, type});
  }
  return out;
}

void judge_dump_rows(const CheckContext& c, const std::vector<Expectation>& rows, const std::string& fault, CheckOutcome& out) {
  for (const Expectation& e : rows) {
    if (e.fault != fault) continue;
    const OfficialCase& oc = official_case(e.case_name);
    const auto model = e.quantisation ? quantised_case(c, oc, *e.quantisation) : shared_model(case_dir(c, oc) / "model");
    const std::string where = fmt::format("{} on {}{} against {}", e.row, e.case_name, e.quantisation ? " in " + std::string(name_of(*e.quantisation)) : "", e.against);

    DumpSpec clean = case_spec(c, oc, true);
    clean.out = c.work / "clean";
    clean.replace = true;
    run_dump(model, clean);
    DumpSpec planted = clean;
    planted.plant = fault;
    planted.out = c.work / "planted";
    run_dump(model, planted);

    const Dump base = Dump::open(e.against == "official" ? case_dir(c, oc) : clean.out);
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
}

CheckOutcome caught(const CheckContext& c, const std::string& fault) {
  const std::string path = (c.root / "conformance" / "faults" / "expected.json").string();
  CheckOutcome out;
  try {
    const nlohmann::json table = nlohmann::json::parse(read_text_file(path));
    judge_dump_rows(c, read_expectations(table, path), fault, out);
    judge_kernel_rows(table.at("kernel_rows"), fault, out);
    judge_nan_rows(c, table.at("nan_rows"), fault, out);
    judge_text_rows(c, table.at("text_rows"), fault, out);
    judge_echo_rows(c, table.at("echo_rows"), fault, out);
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::malformed, path, e.what());
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
    k.cost = f.slow ? Cost::slow : Cost::fast;
    const std::string name = f.name;
    k.run = [name](const CheckContext& c) { return caught(c, name); };
    out.push_back(std::move(k));
  }
}

}  // namespace assay

// The suite can fail: every planted fault is caught by the check and at the place that expected.json names. One check
// per fault, so that ctest runs them side by side; `assay faults` runs them all and writes the kill matrix.
#include <fmt/format.h>

#include <algorithm>

#include "conformance/faults/judge.h"
#include "conformance/faults/mutations.h"
#include "conformance/faults/offload.h"

namespace assay {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

CheckOutcome caught(const CheckContext& c, const Fault& fault) {
  CheckOutcome out;
  const ExpectedFaults table = read_expected(c.root / "conformance" / "faults" / "expected.json");
  const auto row = std::find_if(table.begin(), table.end(), [&](const auto& r) { return r.first == fault.id; });
  if (row == table.end()) {
    out.fail("expected.json has no entry for " + fault.id);
    return out;
  }
  const nlohmann::ordered_json record = judge_fault(c, fault, row->second);
  out.compared = int64_t(record.at("found").size());
  for (size_t i = 0; i < record.at("found").size(); i++) {
    const auto& found = record.at("found")[i];
    const bool survives = found.contains("survives");
    const std::string status = found.at("status"),
                      line = fmt::format("{}: {}, at \"{}\"", found.at("check").get<std::string>(), status,
                                         found.at("place").get<std::string>());
    if (status == "not_run" &&
        found.at("place").get<std::string>().rfind("needs ", 0) == 0)  // a tool that is not there
      out.not_run = found.at("place");
    else if (status == (survives ? "missed" : "caught"))
      out.notes.push_back(line);
    else
      out.fail(
          fmt::format("{}; expected {}", line,
                      survives ? "to pass" : "\"" + record.at("expected")[i].at("place").get<std::string>() + "\""));
    if (found.contains("figures")) out.notes.push_back(found.at("figures").get<std::string>());
  }
  if (!record.at("clean").get<bool>()) out.fail("a check fails without the fault, so that a catch proves nothing");
  return out;
}

/// Random mutations: caught, or without effect for a verified reason.
CheckOutcome mutations(const CheckContext& c, int64_t n) {
  constexpr uint64_t kSeed = 7;
  CheckOutcome out;
  for (const auto& r : random_mutations(c, n, kSeed)) {
    out.compared++;
    if (!r.at("caught_as_expected").get<bool>())
      out.fail(fmt::format("{}: {}: {}", r.at("id").get<std::string>(), r.at("what").get<std::string>(),
                           r.at("note").get<std::string>()));
    else if (const std::string note = r.at("note"); !note.empty())
      out.notes.push_back(
          fmt::format("{}: {}: {}", r.at("id").get<std::string>(), r.at("what").get<std::string>(), note));
  }
  return out;
}

}  // namespace

void add_fault_checks(std::vector<Check>& out) {
  add_offload_checks(out);
  for (const Fault& f : faults()) {
    if (kSanitized && f.plain_build) continue;  // `assay faults` says that it was not run
    Check k;
    k.id = "faults/" + f.id;
    k.kind = CheckKind::artifact;
    k.scope = Scope::none;
    k.family = "-";
    k.baseline = "faults/expected.json";
    k.target = "planted: " + f.what;
    k.expected = 1;
    k.cost = f.slow ? Cost::slow : Cost::fast;
    k.run = [&f](const CheckContext& c) { return caught(c, f); };
    out.push_back(std::move(k));
  }
  for (const int64_t n : {40, 1000}) {
    Check k;
    k.id = fmt::format("faults/mutations/{}", n);
    k.kind = CheckKind::artifact;
    k.scope = Scope::none;
    k.family = "-";
    k.baseline = "official goldens and fault-free bytes";
    k.target = fmt::format("{} random mutations of the tiny models", n);
    k.expected = n;
    k.cost = n > 100 ? Cost::slow : Cost::fast;
    k.run = [n](const CheckContext& c) { return mutations(c, n); };
    out.push_back(std::move(k));
  }
}

}  // namespace assay

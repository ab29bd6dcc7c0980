#include "conformance/gate.h"

#include <fmt/format.h>

#include <algorithm>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/device.h"
#include "engine/version.h"

namespace assay {
namespace {

using OrderedJson = nlohmann::ordered_json;

/// What a part found. `details` go into the report under the part's name.
struct PartResult {
  std::string verdict, words, next;
  int exit_code = kPass;
  OrderedJson details;
};

struct DeviceAnswers {
  const Evidence* evidence;  // null: no file at all
  std::vector<Answer> answers;
  int64_t count(Standing s) const {
    return std::count_if(answers.begin(), answers.end(), [s](const Answer& a) { return a.standing == s; });
  }
  std::string state() const { return state_of(answers); }
};

std::vector<DeviceAnswers> answers_of(const EvidenceFolder& folder, bool emulated) {
  std::vector<DeviceAnswers> out;
  const auto add = [&](const Evidence* good, const Evidence* bad) {
    DeviceAnswers d{good ? good : bad, {}};
    for (const Check& c : registry())
      if (c.device == (emulated ? "simt" : "cuda")) d.answers.push_back(answer(c, good, bad));
    out.push_back(std::move(d));
  };
  for (const Evidence& e : folder.devices) add(&e, folder.failures_of(e));
  for (const Evidence& f : folder.failed)
    if (std::none_of(folder.devices.begin(), folder.devices.end(), [&](const Evidence& e) { return folder.failures_of(e) == &f; }))
      add(nullptr, &f);
  if (out.empty()) add(nullptr, nullptr);
  // Who has most to show first; a failure anywhere before all.
  std::stable_sort(out.begin(), out.end(), [](const DeviceAnswers& a, const DeviceAnswers& b) {
    return std::pair(a.count(Standing::failed) > 0, a.count(Standing::fresh)) >
           std::pair(b.count(Standing::failed) > 0, b.count(Standing::fresh));
  });
  return out;
}

/// By what each check speaks for: counts of every standing.
OrderedJson by_sources(const DeviceAnswers& d) {
  OrderedJson out = OrderedJson::array();
  for (const Answer& a : d.answers) {
    const SourceHash built = built_sources(*a.check);
    auto row = std::find_if(out.begin(), out.end(), [&](const OrderedJson& r) { return r["sources_of"] == built.of; });
    if (row == out.end()) {
      out.push_back({{"sources_of", built.of},
                     {"sources", built.hash},
                     {"checks", 0},
                     {"fresh", 0},
                     {"stale", 0},
                     {"missing", 0},
                     {"failed", 0},
                     {"compared", 0}});
      row = out.end() - 1;
    }
    const auto more = [&](const std::string& key, int64_t n) { (*row)[key] = (*row)[key].get<int64_t>() + n; };
    more("checks", 1);
    more(std::string(name_of(a.standing)), 1);
    if (a.standing == Standing::fresh) more("compared", a.entry->compared);
  }
  return out;
}

OrderedJson architectures(const std::vector<DeviceAnswers>& devices) {
  std::vector<std::string> compiled = compiled_architectures(built_module("cuda"));
  const auto add = [](std::vector<std::string>& to, const std::string& one) {
    if (std::find(to.begin(), to.end(), one) == to.end()) to.push_back(one);
  };
  std::vector<std::string> proven;
  for (const DeviceAnswers& d : devices) {
    if (!d.evidence || d.evidence->device.emulated) continue;
    for (const std::string& a : d.evidence->architectures) add(compiled, a);
    if (d.state() == "fresh") add(proven, d.evidence->device.architecture);
  }
  for (const std::string& p : proven) add(compiled, p);
  OrderedJson out = OrderedJson::array();
  for (const std::string& a : compiled)
    out.push_back(
        {{"name", a},
         {"state", std::find(proven.begin(), proven.end(), a) == proven.end() ? "compiled, not proven" : "proven"}});
  return out;
}

/// Evidence of devices: read, judged, and a sample of its digests computed again on this CPU.
PartResult evidence_part(const GateSpec& spec) {
  EvidenceFolder folder = read_evidence_folder(spec.evidence, spec.emulated);
  std::vector<DeviceAnswers> devices = answers_of(folder, spec.emulated);
  const DeviceAnswers& best = devices.front();
  std::vector<Answer> all;
  for (const DeviceAnswers& d : devices) all.insert(all.end(), d.answers.begin(), d.answers.end());
  const uint64_t seed = spec.seed ? *spec.seed : best.evidence ? default_sample_seed(*best.evidence) : 0;
  DigestSample sample;
  try {
    sample = recompute_digests(all, spec.sample, seed, spec.slow, spec.context);
  } catch (const Error& e) {  // goldens that are not there
    folder.problems.push_back(std::string("digests can't be computed again: ") + e.what());
  }

  // A run that the check no longer has: it is of other models or settings now, which nothing was shown of.
  for (const DigestSample::Row& row : sample.rows)
    for (DeviceAnswers& d : devices)
      for (Answer& a : d.answers)
        if (row.found.empty() && a.check->id == row.check && a.standing == Standing::fresh) {
          a.standing = Standing::stale;
          a.why = "has no run \"" + row.name + "\" any more";
        }
  std::erase_if(sample.rows, [](const DigestSample::Row& row) { return row.found.empty(); });

  PartResult r;
  std::string state = best.state();
  OrderedJson differing = OrderedJson::array();
  for (const DigestSample::Row& row : sample.rows)
    if (!row.equal())
      differing.push_back({{"check", row.check}, {"run", row.name}, {"wanted", row.wanted}, {"found", row.found}});
  if (!differing.empty()) state = "failed";
  const std::string record =
      spec.emulated ? "assay gate --profile device --record --missing --module build/cuda/libassay_simt.so --out " +
                          shell_word(spec.evidence.string())
                    : "assay gate --profile device --record --all --missing   (where the device is)";
  const int64_t fresh = best.count(Standing::fresh), total = int64_t(best.answers.size());
  if (!folder.problems.empty()) {
    r = {"fail", folder.problems.front(), "assay gate --profile " + spec.profile, kUsage, {}};
  } else if (!differing.empty()) {
    const OrderedJson& d = differing.front();
    const std::string id = d["check"];
    r = {"fail",
         fmt::format("{} of {} digests differ on this CPU, first {}, {}: wanted {}, found {}", differing.size(),
                     sample.rows.size(), id, d["run"].get<std::string>(), d["wanted"].get<std::string>(),
                     d["found"].get<std::string>()),
         "assay check --filter " + id.substr(0, id.rfind('/')) + "/",
         kMismatch,
         {}};
  } else if (state == "failed") {
    const auto bad = std::find_if(best.answers.begin(), best.answers.end(),
                                  [](const Answer& a) { return a.standing == Standing::failed; });
    r = {"fail",
         fmt::format("{} failed on {}: {}", bad->check->id, bad->evidence->device.name, bad->why),
         fmt::format("assay check --exact --filter {} --verbose   (where the device is)", bad->check->id),
         kMismatch,
         {}};
  } else if (state == "fresh") {
    r = {"pass",
         fmt::format("all {} checks of a device passed on these sources", total),
         spec.profile == "ci" ? "assay gate --profile release" : "assay check --all",
         kPass,
         {}};
  } else {
    const std::string words = state == "missing"
                                  ? "no evidence of a device"
                                  : fmt::format("{}: {} of {} checks passed on these sources", state, fresh, total);
    if (spec.profile == "release")
      r = {"fail", words + "; a release needs all", record, kMismatch, {}};
    else if (sample.rows.empty())
      r = {"not run", words + ", and no digest to compute again", record, kNotRun, {}};
    else
      r = {"warning", words + "; what the CPU computes has not changed", record, kPass, {}};
  }

  OrderedJson files = OrderedJson::array(), checks = OrderedJson::array();
  for (const DeviceAnswers& d : devices) {
    if (!d.evidence) continue;
    files.push_back({{"file", d.evidence->file.string()},
                     {"device", d.evidence->device.name},
                     {"architecture", d.evidence->device.architecture},
                     {"driver", d.evidence->device.driver},
                     {"recorded", d.evidence->recorded()},
                     {"state", d.state()},
                     {"bench_rows", d.evidence->bench.size()}});
  }
  for (const Answer& a : best.answers) {
    OrderedJson one = {{"check", a.check->id}, {"standing", name_of(a.standing)}};
    if (a.entry) one["recorded"] = a.entry->recorded;
    if (!a.why.empty()) one["why"] = a.why;
    checks.push_back(std::move(one));
  }
  const int64_t held =
      std::count_if(best.answers.begin(), best.answers.end(), [](const Answer& a) { return a.entry != nullptr; });
  r.details = {
      {"state", state},
      {"checks", held},
      {"device", best.evidence ? best.evidence->device.name : ""},
      {"class", spec.emulated ? "emulated" : "device"},
      {"of", total},
      {"fresh", fresh},
      {"stale", best.count(Standing::stale)},
      {"missing", best.count(Standing::missing)},
      {"failed", best.count(Standing::failed)},
      {"files", files},
      {"problems", folder.problems},
      {"sources", by_sources(best)},
      {"digests",
       {{"seed", sample.seed}, {"known", sample.known}, {"recomputed", sample.rows.size()}, {"differing", differing}}},
      {"architectures", architectures(devices)},
      {"each", checks}};
  return r;
}

/// The parts of this gate, in order. A new one is a row here and a renderer below.
struct Part {
  const char* name;
  PartResult (*run)(const GateSpec&);
};
constexpr Part kParts[] = {{"evidence", evidence_part}};
/// What a release also stands on and who judges it today.
constexpr std::pair<const char*, const char*> kElsewhere[] = {{"goldens", "assay check --filter integration/"},
                                                              {"faults", "assay faults --all"},
                                                              {"quality", "assay check --all --kind quality"},
                                                              {"performance", "bench/LEDGER.md"}};

std::string render_evidence(const OrderedJson& e) {
  std::string out;
  for (const OrderedJson& f : e["files"])
    out += fmt::format("  {} ({}), {}, recorded {}: {}\n", f["device"].get<std::string>(),
                       f["architecture"].get<std::string>(), f["driver"].get<std::string>(),
                       f["recorded"].get<std::string>(), f["state"].get<std::string>());
  for (const OrderedJson& p : e["problems"]) out += "  malformed: " + p.get<std::string>() + "\n";
  out += fmt::format("\n  {:<16}{:>8}{:>8}{:>8}{:>9}{:>8}{:>12}\n", "sources of", "checks", "fresh", "stale", "missing",
                     "failed", "compared");
  for (const OrderedJson& s : e["sources"])
    out += fmt::format("  {:<16}{:>8}{:>8}{:>8}{:>9}{:>8}{:>12}\n", s["sources_of"].get<std::string>(),
                       s["checks"].get<int64_t>(), s["fresh"].get<int64_t>(), s["stale"].get<int64_t>(),
                       s["missing"].get<int64_t>(), s["failed"].get<int64_t>(), s["compared"].get<int64_t>());
  std::string last;
  int shown = 0;
  for (const OrderedJson& c : e["each"]) {
    const std::string standing = c["standing"], why = c.value("why", "");
    if (standing == "fresh" || standing == "missing" || ++shown > 5) continue;
    out += fmt::format("{}  {:<8}{}: {}\n", shown == 1 ? "\n" : "", standing, c["check"].get<std::string>(), why);
  }
  if (shown > 5) out += fmt::format("  ...     {} more; --json FILE has all\n", shown - 5);
  const OrderedJson& d = e["digests"];
  out += fmt::format("\n  digests         {} of {} computed again on this CPU (seed {}): {}\n",
                     d["recomputed"].get<size_t>(), d["known"].get<size_t>(), d["seed"].get<uint64_t>(),
                     d["recomputed"].get<size_t>() == 0 ? "nothing was compared"
                     : d["differing"].empty()           ? "all equal"
                                                        : fmt::format("{} differ", d["differing"].size()));
  for (const OrderedJson& x : d["differing"])
    out += fmt::format("  differs {}, {}: wanted {}, found {}\n", x["check"].get<std::string>(),
                       x["run"].get<std::string>(), x["wanted"].get<std::string>(), x["found"].get<std::string>());
  std::map<std::string, std::string> by_state;
  for (const OrderedJson& a : e["architectures"]) {
    std::string& list = by_state[a["state"]];
    list += (list.empty() ? "" : ", ") + a["name"].get<std::string>();
  }
  for (const char* s : {"proven", "compiled, not proven"})
    if (by_state.contains(s))
      out += fmt::format("  {:<16}{}{}\n", std::string(s) == "proven" ? "proven" : "architectures", by_state[s],
                         std::string(s) == "proven" ? "" : ": compiled, not proven");
  return out;
}

}  // namespace

OrderedJson gate_report(const GateSpec& spec) {
  OrderedJson parts = OrderedJson::array(), details = OrderedJson::object(), elsewhere = OrderedJson::array();
  std::vector<int> codes;
  std::vector<std::string> verdicts;
  for (const Part& p : kParts) {
    PartResult r;
    try {
      r = p.run(spec);
    } catch (const Error& e) {  // costs its own part alone
      r = {"fail", e.what(), "assay gate --profile " + spec.profile, e.exit_code(), OrderedJson::object()};
    }
    parts.push_back(
        {{"part", p.name}, {"verdict", r.verdict}, {"exit_code", r.exit_code}, {"words", r.words}, {"next", r.next}});
    details[p.name] = r.details;
    codes.push_back(r.exit_code);
    verdicts.push_back(r.verdict);
  }
  for (const auto& [name, by] : kElsewhere) elsewhere.push_back({{"part", name}, {"judged_by", by}});
  int code = kPass;
  for (int wanted : {int(kNotRun), int(kMismatch), int(kUnfinished), int(kUsage)})
    if (std::find(codes.begin(), codes.end(), wanted) != codes.end()) code = wanted;
  std::string verdict = "pass";
  for (const char* v : {"warning", "not run", "fail"})
    if (std::find(verdicts.begin(), verdicts.end(), v) != verdicts.end()) verdict = v;
  OrderedJson out = {{"gate", "assay"},
                     {"profile", spec.profile},
                     {"verdict", verdict},
                     {"exit_code", code},
                     {"program", {{"version", kVersion}, {"sources", kSourceHash}}},
                     {"parts", parts},
                     {"not_in_this_gate", elsewhere}};
  for (const auto& [name, d] : details.items()) out[name] = d;
  return out;
}

std::string render_gate_text(const OrderedJson& report) {
  std::string out = fmt::format("gate {}\n", report["profile"].get<std::string>());
  if (report["evidence"].contains("state")) out += render_evidence(report["evidence"]);
  out += "\n";
  std::string names, next;
  int64_t worst = -1;
  const auto severity = [](const std::string& v) {
    return v == "fail" ? 3 : v == "not run" ? 2 : v == "warning" ? 1 : 0;
  };
  for (const OrderedJson& p : report["parts"]) {
    const std::string v = p["verdict"];
    out += fmt::format("{:<9}{}: {}\n",
                       v == "pass"      ? "pass"
                       : v == "warning" ? "WARNING"
                       : v == "fail"    ? "FAIL"
                                        : "not run",
                       p["part"].get<std::string>(), p["words"].get<std::string>());
    if (severity(v) > worst) worst = severity(v), next = p["next"];
    names += (names.empty() ? "" : ", ") + p["part"].get<std::string>();
  }
  std::string others;
  for (const OrderedJson& e : report["not_in_this_gate"])
    others += (others.empty() ? "" : ", ") + e["part"].get<std::string>();
  const std::string verdict = report["verdict"], profile = report["profile"];
  out += fmt::format("\n{}: profile {}, by {} alone; {} are judged elsewhere (--json FILE says where)\nnext     {}\n",
                     verdict == "pass"      ? "PASS"
                     : verdict == "warning" ? "PASS WITH A WARNING"
                     : verdict == "not run" ? "NOT RUN, which is not a pass"
                     : profile == "release" ? "REFUSED"
                                            : "FAIL",
                     profile, names, others, next);
  return out;
}

}  // namespace assay

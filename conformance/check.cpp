#include "conformance/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <set>

#include "dumps/error.h"

namespace assay {

std::string_view name_of(CheckKind k) {
  switch (k) {
    case CheckKind::value: return "value";
    case CheckKind::counter: return "counter";
    case CheckKind::artifact: return "artifact";
    case CheckKind::quality: return "quality";
  }
  return "?";
}
std::string_view name_of(Scope s) { return s == Scope::kernel ? "kernel" : s == Scope::integration ? "integration" : "-"; }
std::string_view name_of(Cost c) { return c == Cost::fast ? "fast" : "slow"; }

void CheckOutcome::add(const CompareResult& r, const std::string& what) {
  compared += r.compared;
  near_ties += r.near_ties;
  skipped += r.skipped;
  if (r.exit_code() == kPass) return;
  if (place.empty() && r.divergence)
    place = r.divergence->name + (r.divergence->where.empty() ? "" : ", " + r.divergence->where);
  for (const CompareRecord& rec : r.records)
    if (rec.status == Status::fail) fail(what + ": " + rec.name + ": " + rec.reason);
  for (const GreedyRecord& g : r.greedy)
    if (g.status == Status::fail)
      fail(what + ": " + g.prompt + ": greedy ids agree for " + std::to_string(g.prefix) + " of " + std::to_string(g.length));
  if (r.compared == 0) fail(what + ": nothing was compared");
  if (failed == 0) fail(what + ": failed");   // a bound on counts (near ties) was exceeded
}

void CheckOutcome::add(const CheckOutcome& o, const std::string& what) {
  compared += o.compared;
  near_ties += o.near_ties;
  skipped += o.skipped;
  const std::string before = what.empty() ? "" : what + ": ";
  if (place.empty() && !o.place.empty()) place = before + o.place;
  for (const std::string& f : o.failures) fail(before + f);
  failed += o.failed - int64_t(o.failures.size());   // those beyond the first few have no words
  notes.insert(notes.end(), o.notes.begin(), o.notes.end());
  if (ran.name.empty()) ran.name = o.ran.name, ran.architecture = o.ran.architecture, ran.driver = o.ran.driver, ran.emulated = o.ran.emulated;
  for (const auto& [variant, times] : o.ran.variants) ran.variants[variant] += times;
  ran.launches += o.ran.launches;
  digests.insert(digests.end(), o.digests.begin(), o.digests.end());
}

const std::vector<Check>& registry() {
  static const std::vector<Check> all = [] {
    std::vector<Check> out;
    add_kernel_checks(out);
    add_device_kernel_checks(out);
    add_random_draw_checks(out);
    add_official_checks(out);
    add_bound_checks(out);
    add_oracle_checks(out);
    add_routing_checks(out);
    add_equivalence_checks(out);
    add_quantised_equivalence_checks(out);
    add_verify_checks(out);
    add_device_equivalence_checks(out);
    add_trace_checks(out);
    add_quality_checks(out);
    add_mtp_quality_checks(out);
    add_quantised_quality_checks(out);
    add_artifact_checks(out);
    add_config_echo_checks(out);
    add_tokenizer_checks(out);
    add_fault_checks(out);
    add_drill_checks(out);
    std::set<std::string> ids;
    for (const Check& c : out)
      if (!ids.insert(c.id).second) throw Error(ErrorKind::internal, c.id, "two checks of the same id");
    return out;
  }();
  return all;
}

CheckResult run_check(const Check& check, CheckContext context) {
  namespace fs = std::filesystem;
  const auto start = std::chrono::steady_clock::now();
  CheckResult r{&check, {}, Verdict::error, kUnfinished, 0};
  std::string folder = check.id;
  std::replace(folder.begin(), folder.end(), '/', '.');
  context.work /= folder;
  try {
    fs::remove_all(context.work);
    fs::create_directories(context.work);
    r.outcome = check.run(context);
    CheckOutcome& o = r.outcome;
    if (!o.not_run.empty()) {
      r.verdict = Verdict::not_run;
      r.exit_code = kNotRun;
    } else {
      const int64_t expected = context.kernel.only < 0 ? check.expected : 1;   // one case of a kernel check
      if (o.compared < expected) o.fail(fmt::format("compared {}, expected at least {}", o.compared, expected));
      r.verdict = o.failed ? Verdict::fail : Verdict::pass;
      r.exit_code = o.failed ? kMismatch : kPass;
    }
  } catch (const Error& e) {
    r.outcome.fail(e.what());
    r.exit_code = e.exit_code();
  } catch (const std::exception& e) {
    r.outcome.fail(std::string("internal error: ") + e.what());
  }
  std::error_code ignored;
  if (r.verdict == Verdict::pass || r.verdict == Verdict::not_run) fs::remove_all(context.work, ignored);
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return r;
}

nlohmann::ordered_json to_json(const Check& c) {
  return {{"record", "check"}, {"id", c.id}, {"kind", name_of(c.kind)},
          {"level", c.kind == CheckKind::value ? std::string(name_of(c.level)) : "-"},
          {"scope", name_of(c.scope)}, {"family", c.family}, {"device", c.device}, {"cost", name_of(c.cost)},
          {"baseline", c.baseline}, {"target", c.target}, {"expected", c.expected}};
}

nlohmann::ordered_json to_json(const CheckResult& r) {
  static constexpr const char* kVerdicts[] = {"pass", "fail", "not run", "error"};
  nlohmann::ordered_json j = to_json(*r.check);
  j["record"] = "check_result";
  j["verdict"] = kVerdicts[int(r.verdict)];
  j["exit_code"] = r.exit_code;
  j["compared"] = r.outcome.compared;
  j["failed"] = r.outcome.failed;
  j["near_ties"] = r.outcome.near_ties;
  j["skipped"] = r.outcome.skipped;
  if (!r.outcome.not_run.empty()) j["not_run"] = r.outcome.not_run;
  j["failures"] = r.outcome.failures;
  j["notes"] = r.outcome.notes;
  const DeviceRan& ran = r.outcome.ran;
  if (!ran.name.empty()) {
    j["ran_on"] = {{"name", ran.name}, {"architecture", ran.architecture}, {"driver", ran.driver}, {"emulated", ran.emulated}};
    j["variants"] = ran.variants;
    j["launches"] = ran.launches;
  }
  if (!r.outcome.digests.empty()) {
    nlohmann::ordered_json digests = nlohmann::ordered_json::object();
    for (const NamedDigest& d : r.outcome.digests) digests[d.name] = d.digest;
    j["digests"] = digests;
  }
  if (const auto& e = r.from_evidence) j["from_evidence"] = {{"device", e->device}, {"recorded", e->recorded}, {"file", e->file}};
  j["seconds"] = std::round(r.seconds * 1000) / 1000;
  return j;
}

int combined_exit_code(const std::vector<CheckResult>& results) {
  if (results.empty()) return kUsage;
  for (int code : {int(kUsage), int(kUnfinished), int(kMismatch), int(kNotRun)})
    if (std::any_of(results.begin(), results.end(), [&](auto& r) { return r.exit_code == code; })) return code;
  return kPass;
}

std::string render_checks_text(const std::vector<nlohmann::ordered_json>& records, bool verbose, const std::string& options) {
  std::string out;
  size_t widest = 0;
  for (const auto& r : records) widest = std::max(widest, r["id"].get<std::string>().size());
  struct Counts { int64_t checks = 0, compared = 0, failed = 0, near = 0, skipped = 0, not_run = 0; };
  std::vector<std::pair<std::string, Counts>> by_label;
  auto label = [&](const std::string& name) -> Counts& {
    for (auto& [n, c] : by_label)
      if (n == name) return c;
    return by_label.emplace_back(name, Counts{}).second;
  };
  std::string first_bad;
  int64_t passed = 0, failed = 0, not_run = 0, from_evidence = 0;
  for (const auto& r : records) {
    const std::string verdict = r["verdict"], id = r["id"];
    out += fmt::format("{:<8} {:<{}}  {:>6} compared", verdict == "pass" ? "pass" : verdict == "fail" ? "FAIL" : verdict == "error" ? "ERROR" : "not run",
                       id, widest, r["compared"].get<int64_t>());
    if (verdict == "not run") out += "  not a pass: " + r["not_run"].get<std::string>();
    if (r.contains("from_evidence")) {
      out += fmt::format("  (evidence: {}, {})", r["from_evidence"]["device"].get<std::string>(), r["from_evidence"]["recorded"].get<std::string>().substr(0, 10));
      from_evidence++;
    }
    out += "\n";
    for (const auto& f : r["failures"]) out += "           " + f.get<std::string>() + "\n";
    if (verbose)
      for (const auto& n : r["notes"]) out += "           " + n.get<std::string>() + "\n";
    const std::string kind = r["kind"];
    Counts& c = label(kind == "value" ? r["scope"].get<std::string>() + " " + r["level"].get<std::string>() : kind);
    c.checks++;
    c.compared += r["compared"].get<int64_t>();
    c.failed += verdict == "fail" || verdict == "error";
    c.near += r["near_ties"].get<int64_t>();
    c.skipped += r["skipped"].get<int64_t>();
    c.not_run += verdict == "not run";
    (verdict == "pass" ? passed : verdict == "not run" ? not_run : failed)++;
    if (first_bad.empty() && (verdict == "fail" || verdict == "error")) first_bad = id;
  }
  out += fmt::format("\n{:<28}{:>8}{:>10}{:>8}{:>10}{:>9}{:>9}\n", "", "checks", "compared", "failed", "near-tie", "skipped", "not run");
  for (const auto& [n, c] : by_label)
    out += fmt::format("{:<28}{:>8}{:>10}{:>8}{:>10}{:>9}{:>9}\n", n, c.checks, c.compared, c.failed, c.near, c.skipped, c.not_run);
  out += fmt::format("\n{}: {} passed, {} failed, {} not run{}{}\n", failed ? "FAIL" : not_run ? "INCOMPLETE" : "PASS", passed, failed, not_run,
                     not_run ? " (not a pass)" : "",
                     from_evidence ? fmt::format("; {} answered by evidence of another machine, nothing ran here", from_evidence) : "");
  if (!first_bad.empty()) out += fmt::format("next     assay check --exact --filter {}{} --verbose\n", first_bad, options);
  return out;
}

namespace {
std::string xml(const std::string& s) {
  std::string out;
  for (char ch : s) {
    switch (ch) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      default:
        if ((unsigned char)ch >= 0x20 || ch == '\n' || ch == '\t') out += ch;  // XML 1.0 has no other control characters
    }
  }
  return out;
}
}  // namespace

std::string render_junit(const std::vector<nlohmann::ordered_json>& records) {
  int64_t failures = 0, errors = 0, skipped = 0;
  double seconds = 0;
  std::string cases;
  for (const auto& r : records) {
    const std::string verdict = r["verdict"], id = r["id"];
    seconds += r["seconds"].get<double>();
    cases += fmt::format("  <testcase classname=\"assay.{}\" name=\"{}\" time=\"{:.3f}\">", xml(r["kind"]), xml(id), r["seconds"].get<double>());
    std::string lines;
    for (const auto& f : r["failures"]) lines += f.get<std::string>() + "\n";
    if (verdict == "fail") {
      failures++;
      cases += fmt::format("<failure message=\"{} of {} comparisons failed\">{}</failure>", r["failed"].get<int64_t>(), r["compared"].get<int64_t>(), xml(lines));
    } else if (verdict == "error") {
      errors++;
      cases += "<error>" + xml(lines) + "</error>";
    } else if (verdict == "not run") {
      skipped++;
      cases += "<skipped message=\"not run (not a pass): " + xml(r["not_run"]) + "\"/>";
    }
    if (r.contains("from_evidence"))
      cases += "<system-out>nothing ran here: evidence of " + xml(r["from_evidence"]["device"]) + ", " + xml(r["from_evidence"]["recorded"]) + "</system-out>";
    cases += "</testcase>\n";
  }
  return fmt::format("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"assay\" tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{:.3f}\">\n{}</testsuite>\n",
                     records.size(), failures, errors, skipped, seconds, cases);
}

}  // namespace assay

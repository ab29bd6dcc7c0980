#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <nlohmann/json.hpp>

#include "conformance/cli/options.h"
#include "conformance/cli/progress.h"
#include "conformance/evidence.h"
#include "conformance/gate.h"
#include "dumps/error.h"
#include "dumps/text.h"

namespace assay::cli {
namespace {

struct GateCommand {
  std::string profile, json, root, work;
  int threads = 0;
  // device
  std::string module, filter, out;
  std::vector<std::string> bench;
  double budget = 0;
  bool record = false, missing = false, replace = false, verbose = false;
  // ci, release
  std::string evidence, device = "cuda";
  std::optional<uint64_t> seed;
  int64_t sample = 8;
  // both
  bool all = false;
};

/// Options that only the other kind of profile has.
void check_profile(const GateCommand& o, const CLI::App& c) {
  if (o.profile != "ci" && o.profile != "device" && o.profile != "release")
    throw Error(ErrorKind::usage, "--profile", "unknown profile", "ci, device or release", "\"" + o.profile + "\"");
  const bool device = o.profile == "device";
  for (const char* name :
       {"--record", "--module", "--filter", "--out", "--bench", "--budget", "--missing", "--replace", "--verbose"})
    if (!device && c.count(name))
      throw Error(ErrorKind::usage, name, "is for recording", "--profile device --record", "--profile " + o.profile);
  for (const char* name : {"--evidence", "--sample", "--seed", "--device"})
    if (device && c.count(name))
      throw Error(ErrorKind::usage, name, "is for judging what was recorded", "--profile ci or release",
                  "--profile device");
  if (device && !o.record)
    throw Error(ErrorKind::usage, "--profile device", "records evidence, and says so", "--record beside it", "none");
  if (o.device != "cuda" && o.device != "simt")
    throw Error(ErrorKind::usage, "--device", "unknown", "cuda or simt", "\"" + o.device + "\"");
  if (o.device == "simt" && o.profile == "release")
    throw Error(ErrorKind::usage, "--device", "an emulated device is evidence of no device",
                "cuda, with --profile release", "simt");
}

nlohmann::ordered_json to_json(const Recording& r) {
  return {{"gate", "assay"},
          {"profile", "device"},
          {"verdict", r.exit_code == kPass     ? "pass"
                      : r.exit_code == kNotRun ? "not run"
                                               : "fail"},
          {"exit_code", r.exit_code},
          {"evidence",
           {{"state", r.state},
            {"checks", r.evidence.checks.size()},
            {"device", r.evidence.device.name},
            {"of", r.of_device},
            {"file", r.file.string()}}},
          {"not_run", r.not_run},
          {"left", r.left},
          {"recorded", r.records}};
}

int record(const GateCommand& o, const CheckContext& context) {
  check_range("--budget", int64_t(o.budget), 0, 1 << 20);
  RecordSpec spec;
  spec.context = context;
  spec.context.module = o.module;
  spec.out = o.out;
  spec.missing = o.missing;
  spec.replace = o.replace;
  spec.budget = o.budget;
  spec.select = [&](const Check& c) {
    return (o.all || c.cost == Cost::fast || c.id == o.filter) && id_matches(o.filter, c.id);
  };
  for (const std::string& b : o.bench) spec.bench.push_back(b);
  Progress progress;
  spec.progress = [&](size_t i, size_t n, const std::string& id) { progress.begins(i, n, id); };
  const Recording r = record_evidence(spec);
  progress.clear();

  if (!o.json.empty())
    write_text(o.json, to_json(r).dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  if (o.json == "-") return r.exit_code;
  if (!r.not_run.empty()) {
    std::cout << "not run  nothing was recorded: " << r.not_run
              << "\n\nNOT RUN, which is not a pass\nnext     assay gate --profile ci     (what was recorded before)\n";
    return r.exit_code;
  }
  const DeviceRan& d = r.evidence.device;
  const std::string device = fmt::format("device   {} ({}), {}\n", d.name, d.architecture, d.driver),
                    table = r.records.empty() ? "" : render_checks_text(r.records, o.verbose);
  if (r.exit_code != kPass && r.exit_code != kNotRun) {  // the table's last line says what to type
    std::cout << device
              << fmt::format("kept     {}: all that this part found; the evidence is as it was\n\n", r.file.string())
              << table;
    return r.exit_code;
  }
  std::cout << table << (table.empty() ? "" : "\n") << device;
  if (r.records.empty())
    std::cout << fmt::format("nothing  was {}\n", o.missing ? "missing of what is selected" : "run");
  std::cout << fmt::format("file     {}: {} of {} checks fresh{}\n", r.file.string(), r.fresh, r.of_device,
                           r.evidence.bench.empty() ? "" : fmt::format(", {} rows of bench", r.evidence.bench.size()));
  if (r.left)
    std::cout << fmt::format("left     {} selected checks, not begun when {} s were over: not a pass\n", r.left,
                             o.budget);
  const std::string again = fmt::format("assay gate --profile device --record --all --missing{}{}{}",
                                        o.budget > 0 ? fmt::format(" --budget {}", o.budget) : "",
                                        o.module.empty() ? "" : " --module " + shell_word(o.module),
                                        o.out.empty() ? "" : " --out " + shell_word(o.out));
  std::cout << "next     "
            << (r.fresh < r.of_device ? again
                : d.emulated
                    ? "assay gate --profile ci --device simt --evidence " + shell_word(r.file.parent_path().string())
                    : "assay gate --profile release")
            << "\n";
  return r.exit_code;
}

int run(const GateCommand& o, const CLI::App& c) {
  check_profile(o, c);
  check_range("--threads", o.threads, 0, 1024);
  check_range("--sample", o.sample, 1, 1 << 20);
  const WorkFolder work(o.work, "assay-gate");
  CheckContext context;
  context.root = find_root(o.root);
  context.work = work.path;
  context.threads = o.threads;
  if (o.record) return record(o, context);
  GateSpec spec;
  spec.profile = o.profile;
  spec.context = context;
  spec.evidence = o.evidence.empty() ? context.root / "conformance" / "evidence" : std::filesystem::path(o.evidence);
  if (!std::filesystem::is_directory(spec.evidence))
    throw Error(ErrorKind::malformed, spec.evidence.string(), "is no folder", "one with evidence");
  spec.emulated = o.device == "simt";
  spec.sample = size_t(o.sample);
  spec.seed = o.seed;
  spec.slow = o.all;
  const nlohmann::ordered_json report = gate_report(spec);
  if (!o.json.empty())
    write_text(o.json, report.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  if (o.json != "-") std::cout << render_gate_text(report);
  return report["exit_code"];
}

}  // namespace

void add_gate(CLI::App& app, int& code) {
  auto o = std::make_shared<GateCommand>();
  CLI::App* c = app.add_subcommand("gate", "may this be released? and, where a device is: record what it shows");
  c->add_option("--profile", o->profile, "ci, release: judge; device: record")->required();
  c->add_flag("--record", o->record, "run the device's checks and add what they show to its evidence");
  c->add_option("--module", o->module, "the device module (default: libassay_cuda.so beside this program)");
  c->add_option("--filter", o->filter, "record a part: id, part of it, or a glob with *");
  c->add_flag("--all", o->all, "slow checks too");
  c->add_flag("--missing", o->missing, "record only what has no fresh evidence yet");
  c->add_option("--budget", o->budget,
                "seconds after which no further check begins; the next call with --missing goes on");
  c->add_flag("--replace", o->replace, "begin the file anew where it was recorded with another driver");
  c->add_option("--bench", o->bench,
                "rows of assay bench --json on this device, kept with the evidence; may be given several times");
  c->add_option("--out", o->out, "folder or .json file (default: conformance/evidence of the repository)");
  c->add_flag("--verbose", o->verbose, "figures of passing checks too");
  c->add_option("--evidence", o->evidence, "folder to judge (default: conformance/evidence of the repository)");
  c->add_option("--sample", o->sample, "digests to compute again on this CPU, at least 1")->capture_default_str();
  c->add_option("--seed", o->seed, "of the sample (default: of the evidence and the program's sources)")
      ->check(is_seed);
  c->add_option("--device", o->device, "simt: judge evidence of the emulated module, to try the gate")
      ->capture_default_str();
  c->add_option("--threads", o->threads, "0: all cores")->capture_default_str();
  c->add_option("--root", o->root, "repository with goldens/ (default: ASSAY_ROOT, or where this program was built)");
  c->add_option("--work", o->work, "folder in which a folder for dumps is made, and removed again");
  c->add_option("--json", o->json, "write the report as one JSON document to FILE (-: stdout)");
  c->footer(
      "Exit code 1: refused, or a check or digest failed; 77: nothing was there to judge or to record on, which is not "
      "a pass.\n"
      "Example:\n  assay gate --profile ci\n  assay gate --profile release --json gate.json\n"
      "  assay gate --profile device --record --all --missing --budget 200     (again until nothing is left)");
  c->callback([o, c, &code] { code = run(*o, *c); });
}

}  // namespace assay::cli

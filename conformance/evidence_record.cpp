// Recording evidence on a machine with a device, in as many parts as it takes.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>

#include "conformance/evidence.h"
#include "dumps/folder_lock.h"
#include "dumps/json.h"
#include "dumps/text.h"
#include "engine/device.h"
#include "engine/version.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

/// Head of the evidence that an opened device gives, without any check. Error{malformed} where the module is not this
/// build's.
Evidence head_of(const Device& device, const CheckContext& context) {
  const AssayModule& t = device.table();
  const std::string sources = t.sources ? t.sources : "", wanted = built_module_sources();
  if (sources != wanted)
    throw Error(ErrorKind::malformed, device.module().path().string(),
                "was built from other sources than this program, whose hashes would not speak of it", wanted,
                sources.empty() ? "no hash" : sources, "Build both together (./ci/build) and record again.");
  Evidence e;
  e.device = ran_on(device);
  e.module = t.name ? t.name : "";
  e.module_sources = sources;
  e.architectures = compiled_architectures(device.module().path());
  e.version = kVersion;
  e.program_sources = kSourceHash;
  e.seed = context.kernel.seed;
  return e;
}

std::vector<nlohmann::ordered_json> read_bench(const fs::path& file, const std::string& device) {
  std::ifstream in(file);
  if (!in) throw Error(ErrorKind::malformed, file.string(), "can't be read", "JSONL of assay bench --json");
  std::vector<nlohmann::ordered_json> out;
  std::string line;
  for (int number = 1; std::getline(in, line); number++) {
    if (line.empty()) continue;
    const std::string where = fmt::format("{}:{}", file.string(), number);
    nlohmann::ordered_json row = parse_json(line, where);
    const bool is_row = row.is_object() && row.contains("record") && row["record"].is_string() &&
                        row["record"].get<std::string>().rfind("bench", 0) == 0;
    if (!is_row)
      throw Error(ErrorKind::malformed, where, "is no record of assay bench", "\"record\": \"bench\"",
                  in_quotes(line, 60));
    const std::string on = row.contains("device") && row["device"].is_string() ? row["device"].get<std::string>() : "";
    if (on != device)
      throw Error(ErrorKind::malformed, where, "was measured on another device", in_quotes(device),
                  on.empty() ? "none (the CPU)" : in_quotes(on));
    out.push_back(std::move(row));
  }
  if (out.empty()) throw Error(ErrorKind::malformed, file.string(), "holds no record of assay bench");
  return out;
}

/// Before minutes of work: a folder that takes no file is told now.
void check_writable(const fs::path& file) {
  std::error_code failed;
  if (!file.parent_path().empty()) fs::create_directories(file.parent_path(), failed);
  const fs::path beside = file.string() + ".partial";
  const bool opens = bool(std::ofstream(beside));
  fs::remove(beside, failed);
  if (!opens) throw Error(ErrorKind::io, file.string(), "can't be written");
}

/// What passed now has failed no longer.
void strike_off(const fs::path& file, const Evidence& passed) {
  const fs::path bad = failed_file(file);
  if (!fs::exists(bad)) return;
  Evidence e = read_evidence(bad);
  std::erase_if(e.checks, [&](const EvidenceEntry& c) { return passed.find(c.check) != nullptr; });
  if (std::any_of(e.checks.begin(), e.checks.end(), [](const EvidenceEntry& c) { return c.verdict != "pass"; }))
    write_evidence(e, bad);
  else
    fs::remove(bad);
}

}  // namespace

Recording record_evidence(const RecordSpec& spec) {
  Recording out;
  const bool own = spec.context.module.empty();
  std::shared_ptr<Device> device;
  try {
    const auto module = DeviceModule::load(own ? built_module("cuda") : spec.context.module);
    try {
      device = std::make_shared<Device>(module, 0);
    } catch (const Error& e) {
      out.not_run = e.what();
    }
  } catch (const Error& e) {
    if (!own) throw;  // a module that somebody names and that is none
    out.not_run = e.what();
  }
  if (!device) {
    out.exit_code = kNotRun;
    return out;
  }
  Evidence part = head_of(*device, spec.context);
  device.reset();  // each check opens its own
  const std::string kind = part.device.emulated ? "simt" : "cuda";
  if (spec.out.empty() && part.device.emulated)
    throw Error(ErrorKind::usage, "--out", "an emulated device is evidence of no device, and is not put among it",
                "--out FOLDER", "none");
  const fs::path place = spec.out.empty() ? spec.context.root / "conformance" / "evidence" : spec.out;
  const fs::path file = place.extension() == ".json" ? place : place / (evidence_name(part.device.name) + ".json");
  if (file.stem().extension() == ".failed")
    throw Error(ErrorKind::usage, "--out", "is where failures of other evidence go", "another name", "\"" + file.filename().string() + "\"");
  for (const fs::path& b : spec.bench)
    for (auto& row : read_bench(b, part.device.name)) part.bench.push_back(std::move(row));

  check_writable(file);
  const FolderLock lock(file.parent_path().empty() ? fs::path(".") : file.parent_path());  // what is read here is written back below
  Evidence bad;  // a file of failures that can't be read is nothing to write over
  if (fs::exists(failed_file(file))) bad = read_evidence(failed_file(file));
  Evidence before;
  before.file = file;
  if (fs::exists(file)) before = read_evidence(file);
  if (const std::string other = before.device.name.empty() ? "" : before.differs_from(part); !other.empty()) {
    if (!spec.replace)
      throw Error(ErrorKind::usage, file.string(), "was recorded with another " + other,
                  "the same, or --replace, which begins it anew", "", "--out FILE keeps both.");
    before = {};
    before.file = file;
  }

  std::vector<const Check*> checks;
  size_t selected = 0;
  for (const Check& c : registry()) {
    if (c.device != kind) continue;
    out.of_device++;
    if (spec.select && !spec.select(c)) continue;
    selected++;
    if (!spec.missing || answer(c, &before, &bad).standing != Standing::fresh) checks.push_back(&c);
  }
  if (selected == 0)
    throw Error(ErrorKind::usage, "assay gate", "no check of " + kind + " is selected", "", "",
                "assay list --all --device " + kind + " shows them.");

  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  for (size_t i = 0; i < checks.size(); i++) {
    if (spec.budget > 0 && seconds() >= spec.budget) {
      out.left = checks.size() - i;
      break;
    }
    if (spec.progress) spec.progress(i, checks.size(), checks[i]->id);
    const CheckResult result = run_check(*checks[i], spec.context);
    out.records.push_back(to_json(result));
    if (result.verdict != Verdict::not_run) part.checks.push_back(entry_of(result));
  }
  out.exit_code = out.records.empty() ? int(kPass) : combined_exit_code(out.records);
  if (out.exit_code == kPass && out.left > 0) out.exit_code = kNotRun;
  const bool failed =
      std::any_of(part.checks.begin(), part.checks.end(), [](const EvidenceEntry& e) { return e.verdict != "pass"; });
  out.file = failed ? failed_file(file) : file;
  Evidence into;
  into.file = out.file;
  if (!failed) into = before;
  else if (bad.differs_from(part).empty())  // failures of another driver are of no interest any more
    into = bad;
  merge(into, part);
  if (!part.checks.empty() || !part.bench.empty()) {
    write_evidence(into, out.file);
    if (!failed) strike_off(file, part);
  }
  bad = {};
  if (fs::exists(failed_file(file))) bad = read_evidence(failed_file(file));
  std::vector<Answer> answers;
  for (const Check& c : registry())
    if (c.device == kind) answers.push_back(answer(c, failed ? &before : &into, &bad));
  out.state = state_of(answers);
  // Of an earlier part; what is worse than a mismatch stays.
  if (out.state == "failed" && (out.exit_code == kPass || out.exit_code == kNotRun)) out.exit_code = kMismatch;
  out.fresh = size_t(
      std::count_if(answers.begin(), answers.end(), [](const Answer& a) { return a.standing == Standing::fresh; }));
  out.evidence = std::move(into);
  return out;
}

}  // namespace assay

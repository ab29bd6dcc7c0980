// A check, what it found, and the one registry of all of them. `assay list` prints it, `assay check` runs it, ctest learns it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "dumps/compare.h"
#include "engine/ops/kernels.h"

namespace assay {

struct DumpSpec;

enum class CheckKind : uint8_t { value, counter, artifact, quality };
enum class Scope : uint8_t { none, kernel, integration };   // value checks only; one is never evidence for the other
enum class Cost : uint8_t { fast, slow };                   // slow: ci/test --all only

std::string_view name_of(CheckKind k);
std::string_view name_of(Scope s);
std::string_view name_of(Cost c);

/// Which random cases kernel checks run: all of a seed, or one of them alone (what a failure names).
struct KernelRun {
  uint64_t seed = 20240817;
  int64_t only = -1;   // number of the case; -1: all
  std::string on;      // what check ids call the kernels: "cuda"; empty: their instruction set
};

/// What every check is told: where the repository's data lies, where it may write, and what the caller forces.
struct CheckContext {
  std::filesystem::path root;      // holds goldens/
  std::filesystem::path work;      // a folder of this check alone; kept when it fails
  Isa isa = best_isa();
  int threads = 0;
  KernelRun kernel;
  std::filesystem::path module;    // of device checks; empty: the one that the build made
  std::function<void(DumpSpec&)> alter;   // applied to every run of the check (case_spec): how faults are planted in it
};

/// What ran on a device, of checks that use one.
struct DeviceRan {
  std::string name, architecture, driver;    // AssayDeviceInfo; "": no device
  bool emulated = false;
  std::map<std::string, int64_t> variants;   // kernels by name, with how many ops (kernel scope) or nodes (whole models) each ran
  int64_t launches = 0;
};
/// XXH3-128 over what the CPU computed in one run of a check, and the run's name within the check: "scalar bytes", "q4_0 s16".
/// The same on every machine, so that one machine's record can be held against another's CPU.
struct NamedDigest {
  std::string name, digest;
  bool operator==(const NamedDigest&) const = default;
};
/// Where a verdict comes from that nothing gave here (evidence.h).
struct FromEvidence {
  std::string device, recorded, file;        // "NVIDIA H200", "2026-11-30T15:40:00Z"
};

/// What a check found. A run that compared less than expected has failed, whatever it found equal.
struct CheckOutcome {
  int64_t compared = 0, failed = 0, near_ties = 0, skipped = 0;
  std::string not_run;                       // why nothing could be run here; "" if it ran
  std::string place;                         // where comparisons parted first: "prompt1/prefill/0/layer.0/q_rope, row 3 ..."
  std::vector<std::string> failures;         // one line each, with the place; the first few
  std::vector<std::string> notes;            // figures worth reading when it passed: "worst q_rope at 31% of its tolerance"
  DeviceRan ran;
  std::vector<NamedDigest> digests;          // of each run, by name; kernel scope and checks of a device
  void fail(std::string line) {
    failed++;
    if (failures.size() < 20) failures.push_back(std::move(line));
  }
  /// Adds a comparison's counts and its failing records.
  void add(const CompareResult& r, const std::string& what);
  /// Adds all that another run of this check found; `what` ("": nothing) goes before its failures.
  void add(const CheckOutcome& o, const std::string& what);
};

struct Check {
  std::string id;                  // "integration/qwen3-odd/max_rel": says what it proves
  CheckKind kind = CheckKind::value;
  Level level = Level::max_rel;    // value checks
  Scope scope = Scope::integration;
  std::string family;              // "qwen3", or "-"
  std::string device = "cpu";      // "cuda"; "simt": the CUDA sources, emulated on the CPU
  std::optional<Isa> isa;          // kernel checks: the instruction set they run
  Cost cost = Cost::fast;
  std::string baseline, target;    // in words
  int64_t expected = 1;            // comparisons at least
  std::function<CheckOutcome(const CheckContext&)> run;
  /// Checks of a device: the digests that `run` records, computed on this CPU with no device; `only`: the run of that name alone
  /// (none of that name: an empty list), "": all. Null: the check records none.
  std::function<std::vector<NamedDigest>(const CheckContext&, const std::string& only)> cpu_digests;
};

const std::vector<Check>& registry();

/// A check's verdict as a record (schemas/check.schema.json).
enum class Verdict : uint8_t { pass, fail, not_run, error };
struct CheckResult {
  const Check* check;
  CheckOutcome outcome;
  Verdict verdict;
  int exit_code;                   // 0, 1, 77, or 2/3 of an Error
  double seconds;
  std::optional<FromEvidence> from_evidence = {};   // set: nothing ran here
};
/// Runs one check in a fresh folder below `work` and judges it. Never throws: an Error becomes Verdict::error.
CheckResult run_check(const Check& check, CheckContext context);
nlohmann::ordered_json to_json(const Check& check);
nlohmann::ordered_json to_json(const CheckResult& result);

/// Rendered from records alone.
std::string render_checks_text(const std::vector<nlohmann::ordered_json>& records, bool verbose, const std::string& options = {});
std::string render_junit(const std::vector<nlohmann::ordered_json>& records);
/// Exit code of a run of several checks: precedence 2, 3, 1, 77, 0; nothing selected: 2.
int combined_exit_code(const std::vector<CheckResult>& results);

/// Kernel scope of anybody's module (CheckContext::module): each op it offers, judged by bounds. Not in the registry.
const std::vector<Check>& stranger_checks();   // kernel/device_checks.cpp

class Device;
/// The device of a check; null, and out.not_run says why, where there is none.
std::shared_ptr<Device> open_device(const CheckContext& c, const std::string& device, CheckOutcome& out);   // kernel/device_checks.cpp
/// What an opened device says of itself, with nothing run yet.
DeviceRan ran_on(const Device& device);

// Each room adds its checks.
void add_official_checks(std::vector<Check>& out);     // integration/official.cpp
void add_bound_checks(std::vector<Check>& out);        // integration/bounds.cpp
void add_oracle_checks(std::vector<Check>& out);        // integration/oracle.cpp
void add_routing_checks(std::vector<Check>& out);       // integration/routing.cpp
void add_oracle_width_checks(std::vector<Check>& out);  // integration/oracle_width.cpp, called by the former
void add_equivalence_checks(std::vector<Check>& out);  // equivalence/equivalence.cpp
void add_quantised_equivalence_checks(std::vector<Check>& out);   // equivalence/quantised.cpp
void add_trace_checks(std::vector<Check>& out);        // equivalence/trace.cpp
void add_verify_checks(std::vector<Check>& out);       // equivalence/verify.cpp
void add_mtp_quality_checks(std::vector<Check>& out);  // quality/mtp.cpp
void add_quality_checks(std::vector<Check>& out);      // quality/quality.cpp
void add_quantised_quality_checks(std::vector<Check>& out);       // quality/quantised.cpp
void add_kernel_checks(std::vector<Check>& out);       // kernel/kernels.cpp
void add_device_kernel_checks(std::vector<Check>& out);         // kernel/device_checks.cpp
void add_random_draw_checks(std::vector<Check>& out);           // kernel/random_draws.cpp
void add_device_equivalence_checks(std::vector<Check>& out);    // equivalence/device.cpp
void add_artifact_checks(std::vector<Check>& out);     // artifact/artifact.cpp
void add_config_echo_checks(std::vector<Check>& out);  // artifact/config_echo.cpp
void add_tokenizer_checks(std::vector<Check>& out);    // text/tokenizer_checks.cpp
void add_drill_checks(std::vector<Check>& out);        // drill/drill_checks.cpp
void add_fault_checks(std::vector<Check>& out);        // faults/fault_checks.cpp

}  // namespace assay

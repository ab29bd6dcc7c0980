// What was shown on a machine with a device, kept as a file, and what it is worth here. Format:
// conformance/evidence/README.md.
//
// An entry speaks for the sources that its check ran, as a hash that the build embeds (ci/op_hashes.cmake): over
// contents and relative names, by the letter, the same on every machine and in every build folder. In the hash of
//   an op              its files in cuda/, every file of the repository that they include, to the end of it
//   (numerics.h, prim.cuh,
//                      layout.cuh, device.h, ...), cuda/module.cu, engine/abi.h, and the nvcc flags in
//                      cuda/CMakeLists.txt
//   "ops"              the same of all ops (kernel/random/*)
//   "models"           besides these engine/device*, engine/program.cpp, engine/families/ and what they include of
//   engine/
// and of the emulated module also cuda/simt/. Not in it: the CPU's kernels and the checks' own cases. What those give
// is in the entry's digests, which recompute_digests() holds against this CPU.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/check.h"
#include "dumps/error.h"  // exit codes

namespace assay {

struct SourceHash {
  std::string of, hash;  // "linear", "ops", "models"; 32 hex digits
};
/// Of the sources that this program was built from, as far as a check of "cuda" or "simt" runs them.
SourceHash built_sources(const Check& check);
/// Hash that a device module of this build says it was built from (AssayModule::sources).
std::string built_module_sources();

struct EvidenceEntry {
  std::string check;     // id
  std::string verdict;   // "pass"; beside good evidence, in *.failed.json, also "fail" and "error"
  SourceHash sources;    // when it was recorded
  std::string recorded;  // "2026-11-30T15:40:00Z"
  int64_t compared = 0, failed = 0;
  double seconds = 0;
  std::map<std::string, int64_t> variants;  // as in DeviceRan
  int64_t launches = 0;
  std::vector<NamedDigest> digests;
  std::vector<std::string> failures;  // of *.failed.json
};

/// All that one machine's device has shown.
struct Evidence {
  std::filesystem::path file;
  DeviceRan device;                        // names alone; emulated: no evidence of any device
  std::string module, module_sources;      // AssayModule::name, ::sources
  std::vector<std::string> architectures;  // compiled into the module: "sm_90", "compute_120" (PTX)
  std::string version, program_sources;    // of the program that recorded last
  uint64_t seed = 0;                       // of the random cases of kernel checks
  std::vector<EvidenceEntry> checks;
  std::vector<nlohmann::ordered_json> bench;  // rows of assay bench --json on this device

  const EvidenceEntry* find(const std::string& check) const;
  /// The newest date of an entry.
  std::string recorded() const;
  /// Whether parts recorded by both may be in one file: device, driver and compiler, kind of device, seed. Else in
  /// words what differs.
  std::string differs_from(const Evidence& other) const;
};

/// Error{malformed} for a file that is not whole evidence of format 1, with the place, wanted and found: cut off, of
/// another version, with a field too few or too many, a check twice, a failing check where none may be.
Evidence read_evidence(const std::filesystem::path& file);
nlohmann::ordered_json to_json(const Evidence& evidence);
/// Beside the file, then renamed over it. Error{io}.
void write_evidence(const Evidence& evidence, const std::filesystem::path& file);
/// "nvidia-h200": what its file is called.
std::string evidence_name(const std::string& device);
/// X.json to X.failed.json.
std::filesystem::path failed_file(const std::filesystem::path& file);
/// An entry for what a check gave on the device, now.
EvidenceEntry entry_of(const CheckResult& result);
/// Entries of `from` take the places of those of the same check in `to`, others are added; rows of bench likewise,
/// where they agree in all words and whole numbers. The rest of the head becomes that of `from`.
void merge(Evidence& to, const Evidence& from);

/// Every .json of a folder. A file that can't be read costs its own answers alone; one of failures, X.failed.json, those of X.json,
/// too: who knows what failed there.
struct EvidenceFolder {
  std::vector<Evidence> devices, failed;  // of real devices, or emulated ones, as asked; by name
  std::vector<std::string> problems;      // files that are malformed, in words
  /// Failures recorded on the device that `e` is of, whatever the driver; null: none.
  const Evidence* failures_of(const Evidence& e) const;
};
EvidenceFolder read_evidence_folder(const std::filesystem::path& folder, bool emulated = false);

/// What a machine's evidence says of a check here and now.
enum class Standing : uint8_t {
  fresh,    // passed, on these very sources
  stale,    // passed, on other sources, or on other cases, with another seed, or fewer comparisons than the check has now
  missing,  // nothing
  failed    // failed on these very sources, and has not been struck off by passing there since
};
std::string_view name_of(Standing s);
struct Answer {
  const Check* check = nullptr;
  Standing standing = Standing::missing;
  const Evidence* evidence = nullptr;  // null: missing
  const EvidenceEntry* entry = nullptr;
  std::string why;  // not fresh: in words
};
Answer answer(const Check& check, const Evidence* evidence, const Evidence* failed);
/// Of all devices: failed on any, else fresh on the one that was recorded last, else stale.
Answer answer(const Check& check, const EvidenceFolder& folder);

/// Of one device's answers: "failed", "missing" (nothing at all), "stale", "incomplete" (none stale, some missing),
/// "fresh".
std::string state_of(const std::vector<Answer>& answers);

/// A check that could not run here gets its verdict from evidence where that is fresh or failed; else its reason says
/// so. Evidence is of the check as recorded: all cases of KernelRun{}.seed.
void answer_from_evidence(CheckResult& result, const EvidenceFolder& folder);

/// Digests that evidence holds, computed again on this CPU.
struct DigestSample {
  uint64_t seed = 0;
  size_t known = 0;  // that could have been drawn
  struct Row {
    std::string check, name, wanted, found;  // found: "" there is no such run any more
    bool equal() const { return wanted == found; }
  };
  std::vector<Row> rows;
};
/// `most` of the digests of `answers`, drawn by `seed`; slow checks only where asked for. Works in context.work.
DigestSample recompute_digests(const std::vector<Answer>& answers, size_t most, uint64_t seed, bool slow,
                               CheckContext context);
/// The seed where none is given: of the evidence and of the sources of the program. The same tree gets the same sample
/// wherever it is built, so that a verdict can be repeated; a change of sources, which alone can change a digest, draws
/// another.
uint64_t default_sample_seed(const Evidence& evidence);

/// What is recorded: checks of "cuda", or of "simt" where the module is the emulation.
struct RecordSpec {
  CheckContext context;  // module empty: the one that the build made; work is made and emptied
  std::filesystem::path
      out;  // a folder, or a .json; empty: conformance/evidence below context.root (real devices only)
  std::function<bool(const Check&)> select;  // of the checks of the device's kind; null: all
  bool missing = false;                      // only those without fresh evidence in the file
  bool replace = false;                      // what was recorded with another driver or seed goes
  double budget = 0;                         // seconds after which no further check starts; 0: none
  std::vector<std::filesystem::path> bench;  // JSONL of assay bench --json on this device
  std::function<void(size_t, size_t, const std::string&)> progress;  // check i of n begins
};
struct Recording {
  std::string not_run;                          // why nothing could be recorded; "": it was
  std::filesystem::path file;                   // written: the evidence, or X.failed.json where a check failed
  Evidence evidence;                            // what the file holds now
  std::vector<nlohmann::ordered_json> records;  // of the checks of this part
  size_t left = 0;                              // selected, and not started when the time was used up
  size_t of_device = 0, fresh = 0;  // checks that the registry has for it; and that its evidence answers now
  std::string state = "missing";    // of the evidence now: state_of()
  int exit_code = kPass;            // of the checks; 77 where some are left
};
/// Runs the checks and adds what they gave to the evidence of the device. A part in which any check fails leaves the
/// evidence as it is, and all that it found goes to X.failed.json; once these checks pass they are struck off there.
/// Whatever happens earlier, an interruption too, changes no file. Error{malformed}: a module built from other sources
/// than this program, a file that is no evidence; Error{usage}: nothing is selected, evidence of another driver, an
/// emulated device without `out`.
Recording record_evidence(const RecordSpec& spec);  // evidence_record.cpp

/// Architectures in the fat binary of a CUDA library: "sm_80" for machine code, "compute_120" for PTX; empty: none
/// found.
std::vector<std::string> compiled_architectures(const std::filesystem::path& library);  // fatbin.cpp

}  // namespace assay

// Evidence: what is fresh, what is stale, and what files that are wrong cost. Recorded with the emulated module, so
// that no GPU is needed.
#include "conformance/evidence.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "dumps/folder_lock.h"
#include "dumps/schema_for_tests.h"
#include "engine/device.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

const Check& check_named(const std::string& id) {
  for (const Check& c : registry())
    if (c.id == id) return c;
  throw std::runtime_error("no check " + id);
}

class EvidenceTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::temp_directory_path() / ("assay-evidence-" + std::to_string(getpid()) + "-" + std::to_string(count_++));
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  /// The emulated module lies where the program's build put it, not beside the tests.
  static fs::path built_simt() { return fs::path(ASSAY_PROGRAM).parent_path() / "cuda" / "libassay_simt.so"; }
  RecordSpec spec(const std::string& filter = "kernel/rms_norm/simt") const {
    RecordSpec s;
    s.context.root = ASSAY_SOURCE_DIR;
    s.context.work = folder_ / "work";
    s.context.module = built_simt();
    s.out = folder_ / "evidence";
    s.select = [filter](const Check& c) { return c.id.find(filter) != std::string::npos && c.cost == Cost::fast; };
    return s;
  }
  CheckContext context() const { return spec().context; }
  fs::path file() const { return folder_ / "evidence" / "emulated.json"; }
  EvidenceFolder read(bool emulated = true) const { return read_evidence_folder(folder_ / "evidence", emulated); }
  /// Changes what lies in the file.
  void rewrite(const std::function<void(Json&)>& change) const {
    std::ifstream in(file());
    Json j = Json::parse(in);
    change(j);
    std::ofstream(file()) << j.dump(1);
  }
  static inline int count_ = 0;
  fs::path folder_;
};

TEST(EvidenceSources, EveryDeviceCheckSpeaksForSourcesThatTheBuildHashed) {
  int64_t ops = 0;
  for (const Check& c : registry()) {
    if (c.device != "cuda" && c.device != "simt") continue;
    const SourceHash h = built_sources(c);
    EXPECT_EQ(h.hash.size(), 32u) << c.id;
    if (c.id.rfind("kernel/random", 0) == 0)
      EXPECT_EQ(h.of, "ops") << c.id;
    else if (c.scope == Scope::kernel)
      EXPECT_NE(h.of, "models") << c.id;
    else
      EXPECT_EQ(h.of, "models") << c.id;
    ops += h.of == "linear" || h.of == "attention";
  }
  EXPECT_EQ(ops, 4);
  // The emulation's own sources count for its checks alone.
  EXPECT_NE(built_sources(check_named("kernel/rope/simt")).hash, built_sources(check_named("kernel/rope/cuda")).hash);
  EXPECT_NE(built_sources(check_named("kernel/rope/cuda")).hash,
            built_sources(check_named("kernel/attention/cuda")).hash);
  EXPECT_EQ(built_module_sources().size(), 32u);
}

TEST(EvidenceSources, TheCpuGivesOneDigestOnEveryInstructionSet) {
  const CheckOutcome simple = check_named("kernel/rms_norm/scalar").run({});
  ASSERT_EQ(simple.digests.size(), 1u);
  CheckContext c;
  c.kernel.seed = KernelRun{}.seed;
  EXPECT_EQ(check_named("kernel/rms_norm/cuda").cpu_digests(c, ""), simple.digests);
  c.kernel.seed++;
  EXPECT_NE(check_named("kernel/rms_norm/cuda").cpu_digests(c, ""), simple.digests);
  EXPECT_TRUE(check_named("kernel/rms_norm/cuda").cpu_digests(c, "another run").empty());
  c.kernel.only = 3;  // one case is not the check
  EXPECT_TRUE(check_named("kernel/rms_norm/cuda").cpu_digests(c, "").empty());
}

TEST_F(EvidenceTest, IsFreshUntilAHashChangesAndNeverOfARealDevice) {
  const Recording r = record_evidence(spec());
  EXPECT_EQ(r.exit_code, kPass);
  ASSERT_EQ(r.file, folder_ / "evidence" / (evidence_name(r.evidence.device.name) + ".json"));
  fs::rename(r.file, file());
  const Check& check = check_named("kernel/rms_norm/simt");
  {
    const EvidenceFolder f = read();
    ASSERT_TRUE(f.problems.empty()) << f.problems[0];
    ASSERT_EQ(f.devices.size(), 1u);
    const Answer a = answer(check, f);
    ASSERT_EQ(a.standing, Standing::fresh) << a.why;
    EXPECT_EQ(a.entry->compared, check.expected);
    EXPECT_GT(a.entry->launches, 0);
    EXPECT_EQ(a.entry->variants.count("rms_norm"), 1u);
    EXPECT_EQ(answer(check_named("kernel/rope/simt"), f).standing, Standing::missing);
    // Read for a real device, it is not there.
    EXPECT_TRUE(read(false).devices.empty());
    EXPECT_EQ(answer(check_named("kernel/rms_norm/cuda"), read(false)).standing, Standing::missing);
    const DigestSample s = recompute_digests({a}, 8, 1, false, context());
    ASSERT_EQ(s.rows.size(), 1u);
    EXPECT_TRUE(s.rows[0].equal());
  }
  {
    std::ifstream in(file());
    EXPECT_EQ(Schema::read(std::string(ASSAY_SOURCE_DIR) + "/conformance/schemas/evidence.schema.json")
                  .check(Json::parse(in)),
              "");
  }
  rewrite([](Json& j) { j["checks"][0]["sources"] = std::string(32, '0'); });
  const EvidenceFolder stale_folder = read();
  const Answer stale = answer(check, stale_folder);
  EXPECT_EQ(stale.standing, Standing::stale);
  EXPECT_NE(stale.why.find("sources of rms_norm are "), std::string::npos) << stale.why;

  CheckResult here{&check, {}, Verdict::not_run, kNotRun, 0};
  here.outcome.not_run = "no device";
  answer_from_evidence(here, stale_folder);
  EXPECT_EQ(here.exit_code, kNotRun);
  EXPECT_NE(here.outcome.not_run.find("stale evidence"), std::string::npos) << here.outcome.not_run;
}

TEST_F(EvidenceTest, ACheckThatComparesMoreNowOrLostItsDigestsIsStale) {
  const Recording r = record_evidence(spec());
  fs::rename(r.file, file());
  const Check& check = check_named("kernel/rms_norm/simt");
  Check more = check;
  more.expected++;
  const EvidenceFolder f = read();
  EXPECT_EQ(answer(more, f).standing, Standing::stale);
  rewrite([](Json& j) { j["checks"][0]["digests"] = Json::object(); });
  const EvidenceFolder without = read();
  EXPECT_EQ(answer(check, without).why, "holds no digest");
  // Another case: that the digest is another one says nothing then.
  rewrite([](Json& j) { j["checks"][0]["digests"] = {{"scalar bytes of 118 cases, 01234567", std::string(32, '0')}}; });
  const EvidenceFolder other = read();
  EXPECT_EQ(answer(check, other).why, "the check has other cases now");
  EXPECT_TRUE(recompute_digests({answer(check, other)}, 8, 1, false, context()).rows.empty());
}

TEST_F(EvidenceTest, AFlippedDigestIsFoundWithWords) {
  fs::rename(record_evidence(spec()).file, file());
  std::string wanted;
  rewrite([&](Json& j) {
    Json& digest = j["checks"][0]["digests"].front();
    wanted = digest;
    wanted[5] = wanted[5] == '0' ? '1' : '0';
    digest = wanted;
  });
  const EvidenceFolder f = read();
  const DigestSample s = recompute_digests({answer(check_named("kernel/rms_norm/simt"), f)}, 8, 1, false, context());
  ASSERT_EQ(s.rows.size(), 1u);
  EXPECT_FALSE(s.rows[0].equal());
  EXPECT_EQ(s.rows[0].wanted, wanted);
  EXPECT_EQ(s.rows[0].check, "kernel/rms_norm/simt");
}

TEST_F(EvidenceTest, PartsAddUpAndOnlyWhatIsMissingRuns) {
  const Recording first = record_evidence(spec("kernel/rms_norm/"));
  RecordSpec both = spec("kernel/");
  both.select = [](const Check& c) { return c.id == "kernel/rms_norm/simt" || c.id == "kernel/rope/simt"; };
  both.missing = true;
  const Recording second = record_evidence(both);
  EXPECT_EQ(second.exit_code, kPass);
  ASSERT_EQ(second.records.size(), 1u);
  EXPECT_EQ(second.records[0]["id"], "kernel/rope/simt");
  EXPECT_EQ(second.evidence.checks.size(), 2u);
  EXPECT_EQ(second.fresh, 2u);
  EXPECT_EQ(second.state, "incomplete");
  const Recording third = record_evidence(both);
  EXPECT_TRUE(third.records.empty());
  EXPECT_EQ(third.exit_code, kPass);
  // Time that is over before the first check: selected and not run, which is no pass, and nothing is lost.
  both.missing = false;
  both.budget = 1e-9;
  const Recording late = record_evidence(both);
  EXPECT_EQ(late.exit_code, kNotRun);
  EXPECT_EQ(late.left, 2u);
  EXPECT_EQ(read_evidence(first.file).checks.size(), 2u);
}

/// The emulated module with one member of its table replaced.
class Planted {
 public:
  Planted(const fs::path& real, const std::function<void(AssayModule&)>& change) : module_(DeviceModule::load(real)) {
    table_ = module_->table();
    change(table_);
    DeviceModule::plant("planted-for-evidence", &table_);
  }
  ~Planted() { DeviceModule::plant("planted-for-evidence", nullptr); }

 private:
  std::shared_ptr<const DeviceModule> module_;
  static inline AssayModule table_;  // outlives every module that was loaded from it
};

TEST_F(EvidenceTest, AFailingPartLeavesGoodEvidenceAndIsKeptBesideIt) {
  const Recording good = record_evidence(spec());
  const Evidence before = read_evidence(good.file);
  const Check& check = check_named("kernel/rms_norm/simt");
  {
    const Planted refusing(built_simt(), [](AssayModule& t) { t.norm = nullptr; });
    RecordSpec s = spec();
    s.context.module = "planted-for-evidence";
    const Recording bad = record_evidence(s);
    EXPECT_EQ(bad.exit_code, kMismatch);
    EXPECT_EQ(bad.file, failed_file(good.file));
    EXPECT_EQ(bad.state, "failed");
  }
  EXPECT_EQ(to_json(read_evidence(good.file)), to_json(before));
  const EvidenceFolder f = read();
  ASSERT_TRUE(f.problems.empty()) << f.problems[0];
  ASSERT_EQ(f.failed.size(), 1u);
  const Answer a = answer(check, f);
  EXPECT_EQ(a.standing, Standing::failed);
  EXPECT_NE(a.why.find("element 0: nan, scalar"), std::string::npos) << a.why;
  CheckResult here{&check, {}, Verdict::not_run, kNotRun, 0};
  answer_from_evidence(here, f);
  EXPECT_EQ(here.exit_code, kMismatch);
  EXPECT_EQ(here.outcome.failures.at(0), a.why);
  // Whatever the clocks said, and though the good evidence is of these sources.
  Evidence earlier = f.failed[0];
  earlier.checks[0].recorded = "2020-01-01T00:00:00Z";
  EXPECT_EQ(answer(check, &f.devices[0], &earlier).standing, Standing::failed);
  // What failed is missing, and a part that does not run it is no pass.
  {
    RecordSpec other = spec("kernel/add/simt");
    const Recording r = record_evidence(other);
    EXPECT_EQ(r.state, "failed");
    EXPECT_EQ(r.exit_code, kMismatch);
  }
  // On other sources it says nothing, and once the check passes it is struck off.
  Evidence old = f.failed[0];
  old.checks[0].sources.hash = std::string(32, '0');
  EXPECT_EQ(answer(check, &f.devices[0], &old).standing, Standing::fresh);
  RecordSpec again = spec();
  again.missing = true;
  const Recording passed = record_evidence(again);
  EXPECT_EQ(passed.records.size(), 1u);
  EXPECT_EQ(passed.state, "incomplete");
  EXPECT_FALSE(fs::exists(failed_file(good.file)));
}

TEST_F(EvidenceTest, FailuresThatCanNotBeReadAreNotForgotten) {
  const Recording good = record_evidence(spec());
  std::ofstream(failed_file(good.file)) << "{";
  EXPECT_THROW(record_evidence(spec("kernel/add/simt")), Error);
  const EvidenceFolder f = read();
  EXPECT_EQ(f.problems.size(), 1u);
  EXPECT_TRUE(f.devices.empty());  // who knows which of its checks failed
  EXPECT_EQ(answer(check_named("kernel/rms_norm/simt"), f).standing, Standing::missing);
}

TEST_F(EvidenceTest, TwoRecordersDoNotWriteOverEachOther) {
  fs::create_directories(spec().out);
  const FolderLock other(spec().out);
  try {
    record_evidence(spec());
    FAIL() << "recorded beside another";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("another writer is at work"), std::string::npos) << e.what();
  }
}

TEST_F(EvidenceTest, CasesOfAnotherSeedAreStale) {
  Evidence e = record_evidence(spec()).evidence;
  const Check& check = check_named("kernel/rms_norm/simt");
  EXPECT_EQ(answer(check, &e, nullptr).standing, Standing::fresh);
  e.seed++;
  EXPECT_EQ(answer(check, &e, nullptr).standing, Standing::stale);
}

TEST_F(EvidenceTest, AnAnswerOfEvidenceIsMarkedAsOne) {
  const Recording r = record_evidence(spec());
  const EvidenceFolder f = read();
  CheckResult here{&check_named("kernel/rms_norm/simt"), {}, Verdict::not_run, kNotRun, 0};
  here.outcome.not_run = "no device";
  answer_from_evidence(here, f);
  EXPECT_EQ(here.exit_code, kPass);
  const Json record = to_json(here);
  EXPECT_EQ(Schema::read(std::string(ASSAY_SOURCE_DIR) + "/conformance/schemas/check.schema.json").check(record), "");
  EXPECT_EQ(record["from_evidence"]["device"], r.evidence.device.name);
  const std::string text = render_checks_text({record}, false);
  EXPECT_NE(text.find("(evidence: " + r.evidence.device.name), std::string::npos) << text;
  EXPECT_NE(text.find("nothing ran here"), std::string::npos) << text;
  EXPECT_NE(render_junit({record}).find("nothing ran here"), std::string::npos);
  // What ran here is nobody else's to answer.
  CheckResult ran{&check_named("kernel/rms_norm/simt"), {}, Verdict::fail, kMismatch, 0};
  answer_from_evidence(ran, f);
  EXPECT_EQ(ran.exit_code, kMismatch);
}

TEST_F(EvidenceTest, MalformedFilesAreNamedAndCostNothingElse) {
  fs::rename(record_evidence(spec()).file, file());
  const fs::path bad = folder_ / "evidence" / "bad.json";
  std::ifstream in(file());
  const std::string whole((std::istreambuf_iterator<char>(in)), {});
  const auto changed = [&](const std::function<void(Json&)>& change) {
    Json j = Json::parse(whole);
    change(j);
    return j.dump(1);
  };
  const std::pair<std::string, const char*> rows[] = {
      {whole.substr(0, whole.size() / 2), "bad.json"},
      {"", "bad.json"},
      {"[]", "an object"},
      {changed([](Json& j) { j["format"] = 2; }), "wanted 1, found 2"},
      {changed([](Json& j) { j.erase("format"); }), "format"},
      {changed([](Json& j) { j["class"] = "real"; }), "device or emulated"},
      {changed([](Json& j) { j["device"].erase("driver"); }), "driver"},
      {changed([](Json& j) { j["device"]["name"] = ""; }), "has no name"},
      {changed([](Json& j) { j["device"]["price"] = 1; }), "\"price\""},
      {changed([](Json& j) { j["remark"] = "x"; }), "\"remark\""},
      {changed([](Json& j) { j["seed"] = -1; }), "seed"},
      {changed([](Json& j) { j["checks"].push_back(j["checks"][0]); }), "checks[1]: is of a check that stood before"},
      {changed([](Json& j) { j["checks"][0]["remark"] = "x"; }), "\"remark\""},
      {changed([](Json& j) { j["checks"][0].erase("sources"); }), "sources"},
      {changed([](Json& j) { j["checks"][0]["sources"] = "xyz"; }), "32 hex digits"},
      {changed([](Json& j) { j["checks"][0]["digests"].front() = "XYZ"; }), "32 hex digits"},
      {changed([](Json& j) { j["checks"][0]["verdict"] = "fail"; }), "wanted pass"},
      {changed([](Json& j) { j["checks"][0]["failed"] = 1; }), "contradicts"},
      {changed([](Json& j) { j["checks"][0]["compared"] = 0; }), "contradicts"},
      {changed([](Json& j) { j["checks"][0]["compared"] = -4; }), "compared"},
      {changed([](Json& j) { j["checks"][0]["recorded"] = "yesterday"; }), "like 2026-"},
      {changed([](Json& j) { j["bench"] = {1}; }), "bench[0]"},
  };
  for (const auto& [text, words] : rows) {
    std::ofstream(bad) << text;
    const EvidenceFolder f = read();
    ASSERT_EQ(f.problems.size(), 1u) << words;
    EXPECT_NE(f.problems[0].find("bad.json"), std::string::npos) << f.problems[0];
    EXPECT_NE(f.problems[0].find(words), std::string::npos) << f.problems[0];
    EXPECT_EQ(answer(check_named("kernel/rms_norm/simt"), f).standing, Standing::fresh) << words;
  }
}

TEST_F(EvidenceTest, WhatCanNotBeEvidenceIsRefusedBeforeAnythingRuns) {
  const auto refused = [](const RecordSpec& s, const std::string& words) {
    try {
      record_evidence(s);
      ADD_FAILURE() << "recorded; wanted: " << words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  };
  RecordSpec s = spec();
  s.out.clear();
  refused(s, "an emulated device is evidence of no device");
  s = spec("no-such-check");
  refused(s, "no check of simt is selected");
  s = spec();
  s.context.module = ASSAY_PROGRAM;
  refused(s, "can't be loaded");
  {
    const Planted other(built_simt(), [](AssayModule& t) { t.sources = "another"; });
    s = spec();
    s.context.module = "planted-for-evidence";
    refused(s, "was built from other sources than this program");
  }
  // Recorded with another driver: not to be mixed.
  const Recording r = record_evidence(spec());
  Evidence e = r.evidence;
  e.device.driver = "driver 1.0";
  write_evidence(e, r.file);
  refused(spec(), "another driver \"driver 1.0\"");
  s = spec();
  s.replace = true;
  EXPECT_EQ(record_evidence(s).exit_code, kPass);
  std::ofstream(r.file) << "{";
  refused(spec(), r.file.filename().string());
  EXPECT_EQ(fs::file_size(r.file), 1u);
  // No device at all.
  {
    const Planted absent(built_simt(),
                         [](AssayModule& t) { t.open = [](int32_t, AssayDevice**) { return int(ASSAY_ERROR); }; });
    s = spec();
    s.context.module = "planted-for-evidence";
    const Recording none = record_evidence(s);
    EXPECT_EQ(none.exit_code, kNotRun);
    EXPECT_NE(none.not_run.find("can't be opened"), std::string::npos) << none.not_run;
    EXPECT_TRUE(none.file.empty());
  }
}

TEST_F(EvidenceTest, BenchRowsOfTheDeviceAreKeptAndTheNewerReplaces) {
  const Recording first = record_evidence(spec());
  const std::string device = first.evidence.device.name;
  const auto row = [&](const char* on, int rows, double seconds) {
    return Json{{"record", "bench"}, {"pass", "decode"}, {"device", on}, {"rows", rows}, {"seconds", seconds}}.dump() +
           "\n";
  };
  const fs::path bench = folder_ / "bench.jsonl";
  RecordSpec s = spec();
  s.missing = true;  // nothing has to run for it
  s.bench = {bench};
  std::ofstream(bench) << row(device.c_str(), 1, 1.5) << row(device.c_str(), 8, 2.5);
  EXPECT_EQ(record_evidence(s).evidence.bench.size(), 2u);
  std::ofstream(bench) << row(device.c_str(), 8, 2.25);
  const Recording again = record_evidence(s);
  ASSERT_EQ(again.evidence.bench.size(), 2u);
  EXPECT_EQ(again.evidence.bench[1]["seconds"], 2.25);
  EXPECT_EQ(again.evidence.checks.size(), 1u);
  EXPECT_EQ(to_json(read_evidence(again.file)), to_json(again.evidence));
  for (const auto& [text, words] : {std::pair{row("another", 1, 1), "another device"},
                                    {std::string("{\"record\": \"check\"}\n"), "no record of assay bench"},
                                    {std::string("{\n"), "bench.jsonl:1"},
                                    {std::string(), "holds no record"}}) {
    std::ofstream(bench) << text;
    try {
      record_evidence(s);
      ADD_FAILURE() << words;
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find(words), std::string::npos) << e.what();
    }
  }
}

TEST(EvidenceFatbin, ArchitecturesAreReadFromTheLibraryItself) {
  EXPECT_TRUE(compiled_architectures("/nowhere").empty());
  EXPECT_TRUE(compiled_architectures(ASSAY_PROGRAM).empty());
  // As nvcc writes it: a header of 16 bytes, entries with headers of 64 bytes, code behind each.
  std::string file = "some ELF";
  const auto put = [&](uint64_t v, int bytes) { file.append(reinterpret_cast<const char*>(&v), size_t(bytes)); };
  put(0xba55ed50, 4), put(1, 2), put(16, 2), put(3 * (64 + 8), 8);
  for (const auto& [kind, number] : {std::pair{2, 80}, {2, 90}, {1, 120}}) {
    put(uint64_t(kind), 2), put(0x101, 2), put(64, 4), put(8, 8), put(0, 8), put(0, 4), put(uint64_t(number), 4);
    file.append(64 - 32 + 8, '\0');
  }
  const fs::path path = fs::temp_directory_path() / ("assay-fatbin-" + std::to_string(getpid()));
  std::ofstream(path) << file;
  EXPECT_EQ(compiled_architectures(path), (std::vector<std::string>{"sm_80", "sm_90", "compute_120"}));
  std::ofstream(path) << file.substr(0, file.size() - 100);  // cut off: what is there
  EXPECT_EQ(compiled_architectures(path), (std::vector<std::string>{"sm_80", "sm_90"}));
  fs::remove(path);
}

}  // namespace
}  // namespace assay

// The gate: what ci warns of and release refuses, and that it can fail.
#include "conformance/gate.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "conformance/cli/cli_test_program.h"
#include "conformance/kernel/kernel_check.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kDevice = "Test Device";

/// Evidence of a device that nobody has, as it would have been recorded on these sources: the registry's checks, with
/// digests of those that are cheap to compute.
Evidence evidence_of_everything(const CheckContext& c) {
  Evidence e;
  e.device.name = kDevice;
  e.device.architecture = "sm_90";
  e.device.driver = "driver 13.0";
  e.architectures = {"sm_80", "sm_90", "compute_90"};
  e.version = "0.1.0";
  e.program_sources = std::string(32, 'a');
  e.seed = KernelRun{}.seed;
  for (const Check& k : registry()) {
    if (k.device != "cuda") continue;
    EvidenceEntry one;
    one.check = k.id;
    one.verdict = "pass";
    one.sources = built_sources(k);
    one.recorded = "2026-11-30T15:40:00Z";
    one.compared = k.expected;
    const bool cheap = k.id == "kernel/rms_norm/cuda" || k.id == "kernel/add/cuda";
    CheckContext names;
    names.kernel.only = kNoCase;
    if (cheap)
      one.digests = k.cpu_digests(c, "");
    else if (k.cpu_digests)
      one.digests = {{k.scope == Scope::kernel ? k.cpu_digests(names, "").at(0).name : "kv f16", std::string(32, '0')}};
    e.checks.push_back(one);
  }
  return e;
}

class GateTest : public testing::Test {
 protected:
  GateTest()
      : folder_(fs::temp_directory_path() /
                ("assay-gate-" + std::to_string(getpid()) + "-" + std::to_string(count_++))) {
    fs::create_directories(folder_);
    spec_.profile = "ci";
    spec_.context.root = ASSAY_SOURCE_DIR;
    spec_.context.work = folder_ / "work";
    spec_.evidence = folder_;
    spec_.sample = 0;
    evidence_ = evidence_of_everything(spec_.context);
  }
  ~GateTest() override { fs::remove_all(folder_); }
  Json report(const std::string& profile) {
    spec_.profile = profile;
    return gate_report(spec_);
  }
  void write() { write_evidence(evidence_, folder_ / "test.json"); }
  EvidenceEntry& entry(const std::string& id) {
    for (EvidenceEntry& e : evidence_.checks)
      if (e.check == id) return e;
    throw std::runtime_error(id);
  }
  static inline int count_ = 0;
  fs::path folder_;
  GateSpec spec_;
  Evidence evidence_;
};

TEST_F(GateTest, AllFreshPassesBothProfiles) {
  write();
  for (const char* profile : {"ci", "release"}) {
    const Json r = report(profile);
    EXPECT_EQ(r["exit_code"], 0) << r["parts"].dump();
    EXPECT_EQ(r["verdict"], "pass");
    EXPECT_EQ(r["evidence"]["state"], "fresh");
    EXPECT_EQ(r["evidence"]["checks"], evidence_.checks.size());
    EXPECT_EQ(r["evidence"]["device"], kDevice);
    EXPECT_FALSE(r["not_in_this_gate"].empty());
    std::map<std::string, std::string> states;
    for (const Json& a : r["evidence"]["architectures"]) states[a["name"]] = a["state"];
    EXPECT_EQ(states["sm_90"], "proven");
    EXPECT_EQ(states["sm_80"], "compiled, not proven");
    const std::string text = render_gate_text(r);
    EXPECT_NE(text.find("PASS"), std::string::npos) << text;
    EXPECT_NE(text.find("by evidence alone"), std::string::npos) << text;
    EXPECT_EQ(text.substr(text.rfind("next  ")).substr(0, 14), "next     assay") << text;
  }
}

TEST_F(GateTest, NothingThereIsNoPass) {
  const Json ci = report("ci");
  EXPECT_EQ(ci["exit_code"], kNotRun);
  EXPECT_EQ(ci["evidence"]["state"], "missing");
  EXPECT_EQ(ci["evidence"]["checks"], 0);
  EXPECT_EQ(render_gate_text(ci).find("PASS"), std::string::npos) << render_gate_text(ci);
  EXPECT_EQ(report("release")["exit_code"], kMismatch);
}

TEST_F(GateTest, StaleIsAWarningOfCiAndRefusedByRelease) {
  entry("kernel/rms_norm/cuda").sources.hash = std::string(32, '0');
  for (EvidenceEntry& e : evidence_.checks)
    if (e.check != "kernel/rms_norm/cuda")
      e.digests.clear();  // so that the sample has to draw this one; the others are stale too
  write();
  spec_.sample = 4;
  const Json ci = report("ci");
  EXPECT_EQ(ci["exit_code"], 0) << ci["parts"].dump();
  EXPECT_EQ(ci["verdict"], "warning");
  EXPECT_EQ(ci["evidence"]["state"], "stale");
  EXPECT_EQ(ci["evidence"]["digests"]["recomputed"], 1);
  EXPECT_NE(render_gate_text(ci).find("WARNING"), std::string::npos);
  spec_.sample = 0;  // nothing was verified: nothing passed
  EXPECT_EQ(report("ci")["exit_code"], kNotRun);
  const Json release = report("release");
  EXPECT_EQ(release["exit_code"], kMismatch);
  EXPECT_NE(render_gate_text(release).find("REFUSED"), std::string::npos);
}

TEST_F(GateTest, OneCheckWithoutEvidenceIsIncomplete) {
  evidence_.checks.pop_back();
  write();
  const Json r = report("release");
  EXPECT_EQ(r["exit_code"], kMismatch);
  EXPECT_EQ(r["evidence"]["state"], "incomplete");
  EXPECT_EQ(r["evidence"]["missing"], 1);
  for (const Json& a : r["evidence"]["architectures"])
    EXPECT_EQ(a["state"], "compiled, not proven") << "an architecture is proven by all checks or not at all";
}

TEST_F(GateTest, ADifferingDigestFailsAndSaysWhich) {
  EvidenceEntry& e = entry("kernel/add/cuda");
  const std::string right = e.digests[0].digest;
  e.digests[0].digest = std::string(32, '7');
  for (EvidenceEntry& other : evidence_.checks)
    if (other.check != e.check) other.digests.clear();
  write();
  spec_.sample = 8;
  for (const char* profile : {"ci", "release"}) {
    const Json r = report(profile);
    EXPECT_EQ(r["exit_code"], kMismatch);
    EXPECT_EQ(r["evidence"]["state"], "failed");
    const std::string words = r["parts"][0]["words"];
    EXPECT_NE(
        words.find("kernel/add/cuda, " + e.digests[0].name + ": wanted " + std::string(32, '7') + ", found " + right),
        std::string::npos)
        << words;
  }
}

TEST_F(GateTest, ARunThatTheCheckNoLongerHasIsStale) {
  EvidenceEntry& e = entry("equivalence/qwen2-bias/cuda");
  e.digests = {{"another run", std::string(32, '7')}};
  for (EvidenceEntry& other : evidence_.checks)
    if (other.check != e.check) other.digests.clear();
  write();
  spec_.sample = 8;
  for (const char* profile : {"ci", "release"}) {  // no bit has changed; nothing was shown of what the check asks now
    const Json r = report(profile);
    EXPECT_EQ(r["exit_code"], profile == std::string("ci") ? kNotRun : kMismatch);
    EXPECT_EQ(r["evidence"]["state"], "stale");
    EXPECT_EQ(r["evidence"]["digests"]["differing"].size(), 0u);
    bool told = false;
    for (const Json& each : r["evidence"]["each"])
      told |= each["check"] == e.check && each["why"] == "has no run \"another run\" any more";
    EXPECT_TRUE(told);
  }
}

TEST_F(GateTest, AFailureRecordedOnTheseSourcesFails) {
  write();
  Evidence bad = evidence_;
  bad.checks = {evidence_.checks[0]};
  bad.checks[0].verdict = "fail";
  bad.checks[0].failed = 3;
  bad.checks[0].failures = {"row 3 differs"};
  write_evidence(bad, failed_file(folder_ / "test.json"));
  Json r = report("ci");
  EXPECT_EQ(r["exit_code"], kMismatch);
  EXPECT_EQ(r["evidence"]["state"], "failed");
  EXPECT_NE(r["parts"][0]["words"].get<std::string>().find("row 3 differs"), std::string::npos);
  // Also of a device that has nothing good to show.
  fs::remove(folder_ / "test.json");
  EXPECT_EQ(report("ci")["evidence"]["state"], "failed");
}

TEST_F(GateTest, AFileThatIsNoEvidenceIsExit2AndTheRestIsStillJudged) {
  write();
  std::ofstream(folder_ / "cut.json") << "{\"format\": 1, \"cla";
  const Json r = report("ci");
  EXPECT_EQ(r["exit_code"], kUsage);
  EXPECT_EQ(r["evidence"]["state"], "fresh");
  EXPECT_NE(render_gate_text(r).find("cut.json"), std::string::npos);
}

TEST_F(GateTest, EmulatedEvidenceIsOfNoDevice) {
  evidence_.device.emulated = true;
  write();
  EXPECT_EQ(report("release")["evidence"]["state"], "missing");
  EXPECT_EQ(report("ci")["exit_code"], kNotRun);
}

TEST_F(GateTest, TheSampleIsDrawnByItsSeed) {
  std::vector<Answer> answers;
  for (const Check& k : registry())
    if (k.device == "cuda") answers.push_back(answer(k, &evidence_, nullptr));
  std::erase_if(answers, [](const Answer& a) {
    return a.check->id != "kernel/rms_norm/cuda" && a.check->id != "kernel/add/cuda";
  });
  ASSERT_EQ(answers.size(), 2u);
  std::set<std::string> drawn;
  for (uint64_t seed = 0; seed < 6; seed++) {
    const DigestSample a = recompute_digests(answers, 1, seed, false, spec_.context);
    ASSERT_EQ(a.rows.size(), 1u);
    EXPECT_TRUE(a.rows[0].equal());
    EXPECT_EQ(a.known, 2u);
    EXPECT_EQ(recompute_digests(answers, 1, seed, false, spec_.context).rows[0].check, a.rows[0].check);
    drawn.insert(a.rows[0].check);
  }
  EXPECT_EQ(drawn.size(), 2u);
  Evidence other = evidence_;
  other.checks.pop_back();
  EXPECT_NE(default_sample_seed(evidence_), default_sample_seed(other));
}

TEST(GateCli, BadUseIsExit2) {
  using cli_test::assay;
  const std::pair<std::string, std::string> rows[] = {
      {"gate", "--profile"},
      {"gate --profile nightly", "ci, device or release"},
      {"gate --profile device", "--record beside it"},
      {"gate --profile ci --record", "is for recording"},
      {"gate --profile release --filter x", "is for recording"},
      {"gate --profile device --record --sample 3", "is for judging"},
      {"gate --profile release --device simt", "evidence of no device"},
      {"gate --profile ci --device tpu", "cuda or simt"},
      {"gate --profile ci --seed -1", "2^64"},
      {"gate --profile ci --sample -1", "--sample"},
      {"gate --profile ci --evidence /nowhere", "/nowhere"},
      {"gate --profile device --record --module /nowhere.so", "no such module"},
      {"gate --profile device --record --budget -1", "--budget"},
      {"check --device cuda --evidence /nowhere", "/nowhere"},
      {"check --device cuda --evidence /tmp --no-evidence", "would answer nothing"},
      {"check --device cuda --evidence /tmp --module x.so", "would answer nothing"},
  };
  for (const auto& [arguments, words] : rows) {
    const cli_test::Output o = assay(arguments);
    EXPECT_EQ(o.code, 2) << arguments << "\n" << o.text;
    EXPECT_NE(o.text.find(words), std::string::npos) << arguments << "\n" << o.text;
  }
}

TEST(GateCli, RecordsAndJudgesTheEmulatedModule) {
  using cli_test::assay;
  const fs::path module = fs::path(ASSAY_PROGRAM).parent_path() / "cuda" / "libassay_simt.so";
  cli_test::Folder f;
  const std::string out = "'" + (f / "e") + "'";
  cli_test::Output o = assay("gate --profile device --record --filter kernel/rms_norm --module '" + module.string() +
                             "' --out " + out + " --json '" + (f / "r.json") + "'");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_NE(o.text.find("1 of "), std::string::npos) << o.text;
  EXPECT_NE(o.text.find("next     assay gate --profile device --record --all --missing"), std::string::npos) << o.text;
  std::ifstream in(f / "r.json");
  const Json r = Json::parse(in);
  EXPECT_EQ(r["evidence"]["state"], "incomplete");
  EXPECT_EQ(r["evidence"]["checks"], 1);
  EXPECT_EQ(r["recorded"][0]["id"], "kernel/rms_norm/simt");
  o = assay("gate --profile ci --device simt --evidence " + out);
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_NE(o.text.find("1 of 1 computed again"), std::string::npos) << o.text;
  EXPECT_NE(o.text.find("WARNING"), std::string::npos) << o.text;
  o = assay("gate --profile ci --evidence " + out);  // of a real device it is nothing
  EXPECT_EQ(o.code, 77) << o.text;
  o = assay("check --exact --filter kernel/rms_norm/cuda --evidence " + out);
  EXPECT_EQ(o.code, 77) << o.text;
}

}  // namespace
}  // namespace assay

// What the kill matrix may say, and what it must not: a fault that was not planted, or caught elsewhere, or by a check
// that fails anyway, is not caught.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <set>

#include "conformance/faults/judge.h"
#include "conformance/faults/mutations.h"

namespace assay {
namespace {

class Faults : public ::testing::Test {
 protected:
  Faults() {
    c_.root = ASSAY_SOURCE_DIR;
    c_.work = std::filesystem::temp_directory_path() / ("assay-faults-test-" + std::to_string(getpid()));
  }
  ~Faults() override { std::filesystem::remove_all(c_.work); }
  /// A fault whose one check says these things without it and with it.
  nlohmann::ordered_json judged(const Finding& clean, const Finding& planted, const std::string& place,
                                bool survives = false) {
    Fault f{"Z1/test", "a test", How::artifact};
    f.own = [=](const CheckContext&, const std::string&, bool p) { return p ? planted : clean; };
    Expectation e;
    e.check = "own/check";
    e.kind = CheckKind::artifact;
    e.place = place;
    e.survives = survives;
    return judge_fault(c_, f, {e});
  }
  ExpectedFaults table(const std::string& rows) {
    std::filesystem::create_directories(c_.work);
    const auto file = c_.work / "expected.json";
    std::ofstream(file) << "{\"faults\": {\"Z1/test\": [" << rows << "]}}";
    return read_expected(file);
  }
  CheckContext c_;
};

Finding failed(const std::string& place) {
  Finding f;
  f.failed = f.changed = true;
  f.place = place;
  return f;
}

std::string status_of(const nlohmann::ordered_json& r) {
  return r.at("found").at(0).at("status");
}

TEST_F(Faults, EveryFaultHasAnEntryAndEveryEntryAFault) {
  const ExpectedFaults expected = read_expected(c_.root / "conformance" / "faults" / "expected.json");
  std::set<std::string> entries, known;
  for (const auto& [id, rows] : expected) EXPECT_TRUE(entries.insert(id).second) << id << " stands twice";
  for (const Fault& f : faults()) known.insert(f.id);
  EXPECT_EQ(entries, known);
}

TEST_F(Faults, CaughtWhereExpected) {
  const auto r = judged({}, failed("layer.0/q_rope, row 3"), "layer.0/q_rope");
  EXPECT_EQ(status_of(r), "caught");
  EXPECT_TRUE(r.at("caught_as_expected").get<bool>());
  EXPECT_TRUE(r.at("clean").get<bool>());
}

TEST_F(Faults, CaughtElsewhereIsNotCaught) {
  const auto r = judged({}, failed("layer.1/q_rope"), "layer.0/q_rope");
  EXPECT_EQ(status_of(r), "elsewhere");
  EXPECT_FALSE(r.at("caught_as_expected").get<bool>());
}

TEST_F(Faults, WhatFailsWithoutTheFaultProvesNothing) {
  const auto r = judged(failed("layer.0/q_rope"), failed("layer.0/q_rope"), "layer.0/q_rope");
  EXPECT_FALSE(r.at("clean").get<bool>());
  EXPECT_FALSE(r.at("caught_as_expected").get<bool>());
}

TEST_F(Faults, APlantThatChangesNoByteIsNotPlanted) {
  const auto r = judged({}, {}, "layer.0/q_rope");
  EXPECT_EQ(status_of(r), "not_planted");
  EXPECT_FALSE(r.at("caught_as_expected").get<bool>());
}

TEST_F(Faults, APlantThatChangesBytesWhichTheCheckAcceptsIsMissed) {
  Finding changed;
  changed.changed = true;
  EXPECT_EQ(status_of(judged({}, changed, "layer.0/q_rope")), "missed");
}

TEST_F(Faults, ACheckThatShouldNotSeeItMustNotSeeIt) {
  Finding changed;
  changed.changed = true;
  EXPECT_TRUE(judged({}, changed, "", true).at("caught_as_expected").get<bool>());
  EXPECT_FALSE(judged({}, failed("anywhere"), "", true).at("caught_as_expected").get<bool>());
}

TEST_F(Faults, NotRunAndNotApplicableAreNeverCaught) {
  Finding absent;
  absent.not_run = "the weights are not there";
  auto r = judged(absent, {}, "x");
  EXPECT_EQ(status_of(r), "not_run");
  EXPECT_FALSE(r.at("caught_as_expected").get<bool>());
  Fault f{"Z1/test", "a test", How::program};
  f.own = [](const CheckContext&, const std::string&, bool planted) -> Finding {
    if (planted) throw NoPlace("Z1/test");
    return {};
  };
  Expectation e;
  e.check = "own/check";
  e.place = "x";
  r = judge_fault(c_, f, {e});
  EXPECT_EQ(status_of(r), "not_applicable");
  EXPECT_FALSE(r.at("caught_as_expected").get<bool>());
  EXPECT_FALSE(judge_fault(c_, f, {}).at("caught_as_expected").get<bool>()) << "no entry in the table";
}

TEST_F(Faults, APlaceMayQuoteAnyByte) {
  const auto r = judged({}, failed("header \xff\x1b[31m"), "header");
  EXPECT_NO_THROW(kill_matrix({r}).dump());
  EXPECT_EQ(r.at("found").at(0).at("place").get<std::string>(), "header ??[31m");
}

TEST_F(Faults, TheTableIsHeldToItsForm) {
  const std::string good = R"({"check": "a/b", "kind": "artifact", "place": "x"})";
  EXPECT_EQ(table(good).at(0).second.at(0).place, "x");
  for (const char* bad :
       {R"({"check": "a/b", "kind": "artefact", "place": "x"})", R"({"check": "a/b", "kind": "artifact"})",
        R"({"check": "a/b", "kind": "value", "scope": "everywhere", "place": "x"})",
        R"({"check": "a/b", "kind": "artifact", "place": "x", "survives": true})",
        R"({"check": "a/b", "kind": "artifact", "survives": true})",
        R"({"check": "a/b", "kind": "artifact", "place": "x", "chunks": 16})", R"({"kind": "artifact", "place": "x"})"})
    EXPECT_THROW(table(bad), Error) << bad;
  Expectation wrong;
  wrong.check = "integration/qwen3-odd/max_rel";
  wrong.kind = CheckKind::quality;
  wrong.place = "x";
  const auto r = judge_fault(c_, fault_named("B3/rope-pairs"), {wrong});
  EXPECT_EQ(status_of(r), "not_run") << "the registry's check is of another kind than the table says";
}

TEST_F(Faults, TheMatrixCountsAndTheTextNamesWhatToDo) {
  const auto good = judged({}, failed("x"), "x"), bad = judged({}, {}, "x");
  const auto m = kill_matrix({good, bad});
  EXPECT_EQ(m.at("summary").at("faults"), 2);
  EXPECT_EQ(m.at("summary").at("caught_as_expected"), 1);
  EXPECT_EQ(m.at("summary").at("not_as_expected"), 1);
  EXPECT_EQ(m.at("clean"), true);
  const std::string text = render_faults_text({good, bad}, false);
  EXPECT_NE(text.find("FAIL: 1 of 2 faults caught as expected"), std::string::npos) << text;
  EXPECT_NE(text.find("next     assay check --exact --all --filter faults/Z1/test --verbose"), std::string::npos)
      << text;
  EXPECT_NE(render_faults_text({good}, false).find("PASS: 1 of 1"), std::string::npos);
}

TEST_F(Faults, UnknownNamesAreRefusedWithTheKnownOnes) {
  EXPECT_EQ(fault_named("rope-pairs").id, "B3/rope-pairs");
  try {
    fault_named("rope-pears");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("rope-pairs"), std::string::npos);
  }
}

TEST_F(Faults, AMutationIsTheSameAloneAsAmongOthers) {
  const auto many = random_mutations(c_, 6, 3);
  ASSERT_EQ(many.size(), 6u);
  EXPECT_EQ(random_mutations(c_, 6, 3), many);
  for (const auto& r : many) EXPECT_TRUE(r.at("caught_as_expected").get<bool>()) << r.dump();
  nlohmann::ordered_json survivor = many[0];
  for (auto& f : survivor["found"]) f["status"] = "not_planted";
  survivor["caught_as_expected"] = false;
  const std::string text = render_mutations_text({survivor, many[1]});
  EXPECT_NE(text.find("SURVIVED without an explanation"), std::string::npos) << text;
  EXPECT_NE(text.find("FAIL: of 2 mutations 1 caught"), std::string::npos) << text;
}

}  // namespace
}  // namespace assay

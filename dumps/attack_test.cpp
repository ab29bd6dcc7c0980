// Ways in which a comparison was made to pass, or a dump to be lost, by people who tried. Each was a fault once.
#include <gtest/gtest.h>

#include <fstream>

#include "dumps/compare_test_dumps.h"
#include "dumps/error.h"
#include "dumps/text.h"

namespace assay {
namespace {

using namespace testing_dumps;

CompareResult compared(const Dump& base, const Dump& target, Level level) {
  CompareOptions o;
  o.level = level;
  o.tolerance = presets().at("f32");
  return compare(base, target, o);
}

std::vector<Values> small(double last = 4) {
  return {{"prompt0/prefill/0/embed", {1, 4}, {1, 2, 3, last}},
          {"prompt0/prefill/0/logits", {1, 4}, {4, 3, 2, 1}},
          {"prompt0/ids", {1}, {7}, DType::i64},
          {"prompt0/greedy_ids", {1}, {0}, DType::i64}};
}

TEST(Attack, ANanPassesNotEvenWithoutValues) {
  Folder f;
  for (CaptureMode mode : {CaptureMode::hash, CaptureMode::stats, CaptureMode::full}) {
    DumpOptions o;
    o.mode = mode;
    const Dump clean = write_dump(f / "clean", small(), o), nan = write_dump(f / "nan", small(kNaN), o);
    EXPECT_EQ(compared(clean, clean, Level::byte_exact).exit_code(), 0);
    for (Level level : {Level::byte_exact, Level::max_rel}) EXPECT_EQ(compared(nan, nan, level).exit_code(), 1) << name_of(mode);
  }
}

TEST(Attack, ATargetCanNotExcuseWhatAPassLeavesBehind) {
  Folder f;
  const Dump base = write_dump(f / "base", small());
  std::vector<Values> some = small();
  some.erase(some.begin(), some.begin() + 2);
  DumpOptions o;
  o.not_materialised = {"prompt0/prefill/0/embed", "prompt0/prefill/0/logits"};
  EXPECT_EQ(compared(base, write_dump(f / "excuse", some, o), Level::byte_exact).exit_code(), 1);
  some.push_back(small()[1]);
  o.not_materialised = {"prompt0/prefill/0/embed"};   // an inner phase of a fused kernel
  EXPECT_EQ(compared(base, write_dump(f / "fused", some, o), Level::byte_exact).exit_code(), 0);
}

TEST(Attack, FedTokensThatNoFlipExplainsFail) {
  Folder f;
  auto tensors = small();
  tensors[3] = {"prompt0/greedy_ids", {3}, {0, 1, 2}, DType::i64};
  DumpOptions free, forced;
  free.manifest["prompts"] = {{{"name", "prompt0"}, {"fed_ids", {0, 1}}}};
  forced.manifest["prompts"] = {{{"name", "prompt0"}, {"fed_ids", {5, 6}}}};
  const Dump base = write_dump(f / "free", tensors, free), target = write_dump(f / "forced", tensors, forced);
  EXPECT_EQ(compared(base, base, Level::greedy_prefix).exit_code(), 0);
  EXPECT_EQ(compared(base, target, Level::greedy_prefix).exit_code(), 1);
  EXPECT_EQ(compared(base, target, Level::max_rel).exit_code(), 1);
}

TEST(Attack, TwoWritersInOneFolder) {
  Folder f;
  DumpWriter::Options o;
  o.dir = f / "d";
  o.replace = true;
  o.sync = false;
  auto first = std::make_unique<DumpWriter>(o);
  try {
    DumpWriter second(o);
    ADD_FAILURE() << "a second writer was let in";
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), kUnfinished);
    EXPECT_NE(std::string(e.what()).find("another writer"), std::string::npos);
  }
  first.reset();
  EXPECT_NO_THROW(DumpWriter{o});
}

TEST(Attack, GlobsOfManyStarsEnd) {
  EXPECT_FALSE(glob_match("***************************z", std::string(200, 'a')));
  EXPECT_FALSE(glob_match("a*a*a*a*a*a*a*a*a*a*a*a*b", std::string(200, 'a')));
  EXPECT_TRUE(glob_match("q_*", "q_rope"));
  EXPECT_TRUE(glob_match("*rope", "q_rope"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_FALSE(glob_match("q_", "q_rope"));
  EXPECT_FALSE(glob_match("", "x"));
}

TEST(Attack, ToleranceZeroAsksForEqualValues) {
  Folder f;
  const Dump a = write_dump(f / "a", small()), b = write_dump(f / "b", small(4.0000005));
  CompareOptions o;
  o.level = Level::max_rel;
  o.tolerance.preset = "custom";
  EXPECT_EQ(compare(a, a, o).exit_code(), 0);
  EXPECT_EQ(compare(a, b, o).exit_code(), 1);
}

TEST(Attack, DigestsSpeakForWholeDumps) {
  Folder f;
  DumpOptions hash;
  hash.mode = CaptureMode::hash;
  const std::string digest = write_dump(f / "a", small()).digest();
  EXPECT_EQ(digest.size(), 32u);
  EXPECT_EQ(write_dump(f / "b", small(), hash).digest(), digest);
  EXPECT_NE(write_dump(f / "c", small(4.0000005)).digest(), digest);
}

}  // namespace
}  // namespace assay

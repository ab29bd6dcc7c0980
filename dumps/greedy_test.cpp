// Greedy ids: flips, near ties, forced and free-running targets, baselines with margins only.
#include "dumps/greedy.h"

#include <gtest/gtest.h>

#include <random>

#include "dumps/compare_test_dumps.h"

namespace assay {
namespace {

using namespace testing_dumps;
using Doubles = std::vector<double>;

constexpr int64_t kVocabulary = 50;
constexpr int kSteps = 6;  // decode passes; one id more

struct Timeline {
  Doubles ids{11, 12, 13};
  std::vector<Doubles> logits;  // kSteps + 1 rows
  Doubles greedy;
};

Timeline honest() {
  Timeline t;
  for (int s = 0; s <= kSteps; s++) {
    Doubles x = wave(kVocabulary, s, 1);
    x[size_t(10 + s)] = 4;
    x[size_t(30 + s)] = 4 - (s == 3 ? 1e-5 : 1.0);  // a margin of 1e-5 at step 3
    t.logits.push_back(x);
    t.greedy.push_back(10 + s);
  }
  return t;
}

/// Noise of 1e-4 everywhere; at `flip` the other id wins, elsewhere none.
Timeline noisy(int flip, double noise = 1e-4) {
  Timeline t = honest();
  for (int s = 0; s <= kSteps; s++) {
    Doubles& x = t.logits[size_t(s)];
    for (int64_t i = 0; i < kVocabulary; i++) x[size_t(i)] += noise * std::sin(double(5 * s + 3 * i));
    if (s != flip) x[size_t(30 + s)] = std::min(x[size_t(30 + s)], x[size_t(10 + s)] - 1e-5);
  }
  if (flip >= 0) {
    Doubles& x = t.logits[size_t(flip)];
    std::swap(x[size_t(10 + flip)], x[size_t(30 + flip)]);
    if (x[size_t(10 + flip)] >= x[size_t(30 + flip)]) x[size_t(30 + flip)] = x[size_t(10 + flip)] + 1e-5;
    t.greedy[size_t(flip)] = 30 + flip;
  }
  return t;
}

Dump write(const std::filesystem::path& dir, const Timeline& t, bool logits = true, std::vector<int64_t> fed = {}) {
  std::vector<Values> v;
  for (int s = 0; logits && s <= kSteps; s++) {
    v.push_back({s == 0 ? "prompt0/prefill/0/logits_last" : "prompt0/decode/" + std::to_string(s - 1) + "/logits", {1, kVocabulary},
                 t.logits[size_t(s)]});
  }
  v.push_back({"prompt0/ids", {int64_t(t.ids.size())}, t.ids, DType::i64});
  v.push_back({"prompt0/greedy_ids", {int64_t(t.greedy.size())}, t.greedy, DType::i64});
  DumpOptions o;
  if (!fed.empty()) o.manifest["prompts"] = {{{"name", "prompt0"}, {"fed_ids", fed}}};
  return write_dump(dir, v, o);
}

CompareOptions greedy_level(double cap = 1e-3, int64_t ties = 1) {
  CompareOptions o = at(Level::greedy_prefix);
  o.tolerance.greedy_margin_cap = cap;
  o.tolerance.max_near_ties = ties;
  return o;
}

TEST(Greedy, EqualIdsPass) {
  Folder f;
  const CompareResult r = compare(write(f / "b", honest()), write(f / "t", noisy(-1)), greedy_level());
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.greedy[0].prefix, kSteps + 1);
  EXPECT_EQ(r.greedy[0].length, kSteps + 1);
  EXPECT_NEAR(*r.greedy[0].min_margin, 1e-5, 1e-6);
  EXPECT_EQ(r.reached, Level::greedy_prefix);
}

TEST(Greedy, IdsThatTheTargetsOwnLogitsDoNotChooseFail) {  // found by attack: forced ids, dumped as chosen, always passed
  Folder f;
  const Dump base = write(f / "b", honest());
  Timeline other = honest();
  other.logits[2][17] = 9;
  const CompareResult r = compare(base, write(f / "t", other), greedy_level());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_NE(r.greedy[0].reason.find("step 2: the target's greedy_ids say 12, its own logits choose 17"), std::string::npos)
      << r.greedy[0].reason;
  Timeline nan = honest();
  for (double& x : nan.logits[0]) x = kNaN;
  EXPECT_EQ(compare(base, write(f / "n", nan), greedy_level()).exit_code(), 1);
  Timeline tie = honest();
  tie.logits[1][5] = 4;  // a tie may be broken either way
  EXPECT_EQ(compare(base, write(f / "tie", tie), greedy_level()).exit_code(), 0);
}

TEST(Greedy, AFlipAtAMarginBelowTheNoiseIsANearTieAndEndsAFreeRun) {
  Folder f;
  const Dump base = write(f / "b", honest()), target = write(f / "t", noisy(3));
  const CompareResult r = compare(base, target, greedy_level());
  const GreedyRecord& g = r.greedy[0];
  ASSERT_EQ(g.flips.size(), 1u);
  EXPECT_TRUE(g.flips[0].near_tie);
  EXPECT_NEAR(g.flips[0].margin, 1e-5, 1e-6);
  EXPECT_NEAR(g.flips[0].noise, 1e-4, 2e-5);
  EXPECT_EQ(g.status, Status::near_tie);
  EXPECT_EQ(g.prefix, 3);
  EXPECT_EQ(g.length, 4) << "what follows was fed another token";
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.near_ties, 1);
  // Bounded in number: the same tie fails where none is allowed.
  EXPECT_EQ(compare(base, target, greedy_level(1e-3, 0)).exit_code(), 1);
  EXPECT_NE(render_text(to_records(compare(base, target, greedy_level(1e-3, 0)), base, target), false, false).find("1 near ties, at most 0 allowed"),
            std::string::npos);
}

TEST(Greedy, ANearTieAtTheFirstStepAloneIsNoAgreement) {
  Folder f;
  Timeline near = honest();  // the margin at step 0 is within the noise
  near.logits[0][30] = 4 - 2.4e-7;
  Timeline flipped = noisy(-1);
  flipped.logits[0][30] = flipped.logits[0][10] + 4.8e-7;
  flipped.greedy[0] = 30;
  const Dump base = write(f / "b", near), free_run = write(f / "t", flipped);
  CompareResult r = compare(base, free_run, greedy_level());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.greedy[0].agreed, 0);
  ASSERT_EQ(r.greedy[0].flips.size(), 1u);
  EXPECT_TRUE(r.greedy[0].flips[0].near_tie);
  EXPECT_NE(r.greedy[0].reason.find("--force-ids"), std::string::npos) << r.greedy[0].reason;
  // Fed the baseline's ids, the steps behind it agree, and the same near tie is one again.
  std::vector<int64_t> forced;
  for (double id : honest().greedy) forced.push_back(int64_t(id));
  r = compare(base, write(f / "t2", flipped, true, forced), greedy_level());
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.greedy[0].agreed, kSteps);
  EXPECT_EQ(r.greedy[0].status, Status::near_tie);
}

TEST(Greedy, WithoutAPresetNoMarginIsATieAndTheTextSaysSo) {
  Folder f;
  const CompareResult r = compare(write(f / "b", honest()), write(f / "t", noisy(3)), greedy_level(0, 0));
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_NE(r.greedy[0].reason.find("without a preset"), std::string::npos) << r.greedy[0].reason;
}

TEST(Greedy, WithForcedIdsTheComparisonGoesOn) {
  Folder f;
  std::vector<int64_t> forced;
  for (double id : honest().greedy) forced.push_back(int64_t(id));
  const Dump base = write(f / "b", honest()), target = write(f / "t", noisy(3), true, forced);
  CompareResult r = compare(base, target, greedy_level());
  EXPECT_EQ(r.greedy[0].length, kSteps + 1);
  EXPECT_EQ(r.exit_code(), 0);
  // A flip behind it is seen, and at a margin of 1 it is a plain failure.
  Timeline two = noisy(3);
  two.greedy[5] = 35;
  two.logits[5][35] = 6;
  r = compare(base, write(f / "t2", two, true, forced), greedy_level());
  EXPECT_EQ(r.exit_code(), 1);
  ASSERT_EQ(r.greedy[0].flips.size(), 2u);
  EXPECT_EQ(r.greedy[0].flips[1].step, 5);
  EXPECT_FALSE(r.greedy[0].flips[1].near_tie);
}

TEST(Greedy, TheNoiseIsThatOfTheOtherPositions) {
  // A fault at the very step raises the error there alone: were it counted, it would excuse itself.
  Folder f;
  Timeline t = noisy(-1, 1e-7);
  t.logits[3][33] += 0.5;  // its error 0.5 is far above the margin 1e-5
  t.greedy[3] = 33;
  const CompareResult r = compare(write(f / "b", honest()), write(f / "t", t), greedy_level(1.0));
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_LT(r.greedy[0].flips[0].noise, 1e-5);
}

TEST(Greedy, AThirdChoiceIsHeldAgainstItsOwnMargin) {
  Folder f;
  Timeline t = noisy(3);
  t.greedy[3] = 5;  // an id whose baseline logit is far below the two best
  t.logits[3][5] = 5;
  const CompareResult r = compare(write(f / "b", honest()), write(f / "t", t), greedy_level());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_GT(r.greedy[0].flips[0].margin, 2);
}

TEST(Greedy, WithoutLogitsAFlipIsAFailure) {
  Folder f;
  const CompareResult r = compare(write(f / "b", honest(), false), write(f / "t", noisy(3), false), greedy_level());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_NE(r.greedy[0].reason.find("no logits"), std::string::npos) << r.greedy[0].reason;
  EXPECT_EQ(r.divergence->kind, "greedy");
}

TEST(Greedy, MarginsOfAnOfficialManifestServeWhereLogitsAreAbsent) {
  Folder f;
  const Timeline h = honest();
  std::vector<double> margins(kSteps + 1, 1.0);
  margins[3] = 1e-5;
  auto golden = [&](const char* dir) {
    return write_case(f / dir, {{"prompt0/ids", {3}, h.ids, DType::i64}, {"prompt0/greedy_ids", {kSteps + 1}, h.greedy, DType::i64}},
                      {{"logits", 2e-5}}, {{"case", "x"}, {"prompts", {{{"name", "prompt0"}, {"margins", margins}}}}});
  };
  CompareOptions o = greedy_level();
  o.tolerance.noise_factor = 4;
  CompareResult r = compare(golden("c"), write(f / "t", noisy(3), false), o);
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_DOUBLE_EQ(r.greedy[0].flips[0].noise, 8e-5);  // 4 x max_abs of the logits' floor
  margins[3] = 1e-2;
  r = compare(golden("d"), write(f / "t", noisy(3), false), o);
  EXPECT_EQ(r.exit_code(), 1);
}

TEST(Greedy, IdsAreTakenFromLogitsWhereNoneWereDumped) {
  Folder f;
  const Dump base = write(f / "b", honest());
  std::vector<Values> v;
  const Timeline t = noisy(-1, 1e-7);  // small enough not to turn the near tie
  for (int s = 0; s <= kSteps; s++) {
    v.push_back({s == 0 ? "prompt0/prefill/0/logits_last" : "prompt0/decode/" + std::to_string(s - 1) + "/logits", {1, kVocabulary},
                 t.logits[size_t(s)]});
  }
  v.push_back({"prompt0/ids", {3}, t.ids, DType::i64});
  CompareResult r = compare(base, write_dump(f / "t", v), greedy_level());
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.greedy[0].prefix, kSteps + 1);
  v[2].x[7] = kNaN;  // no id is chosen there
  r = compare(base, write_dump(f / "t2", v), greedy_level());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_NE(r.greedy[0].reason.find("NaN"), std::string::npos) << r.greedy[0].reason;
}

TEST(Greedy, TooFewIdsAndOtherPromptsFail) {
  Folder f;
  const Dump base = write(f / "b", honest());
  Timeline t = noisy(-1);
  t.greedy.resize(4);
  EXPECT_EQ(compare(base, write(f / "t", t), greedy_level()).exit_code(), 1);
  t = noisy(-1);
  t.ids[1] = 99;
  const CompareResult r = compare(base, write(f / "o", t), greedy_level());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_NE(r.greedy[0].reason.find("another prompt"), std::string::npos);
}

TEST(Greedy, BehindAFlipNothingIsHeldAgainstOtherTokens) {
  // At max_rel: the logits from the flip on belong to another text. They are skipped by name, not failed by the dozen.
  Folder f;
  CompareOptions o = greedy_level();
  o.level = Level::max_rel;
  o.tolerance.fixed = 1e-3;
  Timeline t = noisy(3);
  for (int s = 4; s <= kSteps; s++) t.logits[size_t(s)] = wave(kVocabulary, 100 + s, 3);
  const CompareResult r = compare(write(f / "b", honest()), write(f / "t", t), o);
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.skipped, 3);
  EXPECT_EQ(record_of(r, "prompt0/decode/2/logits").status, Status::pass);
  EXPECT_EQ(record_of(r, "prompt0/decode/3/logits").kind, "other_tokens");
  EXPECT_EQ(r.reached, Level::max_rel);
}

TEST(Greedy, PercentileIsTheSmallestValueThatCovers999OfThousand) {
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 rng(seed);
  for (size_t n : {1u, 2u, 999u, 1000u, 1001u, 5000u}) {
    Doubles x;
    for (size_t i = 0; i < n; i++) x.push_back(double(rng() % 1000));
    Doubles sorted = x;
    std::sort(sorted.begin(), sorted.end());
    const double p = percentile_999(x);
    const auto covered = std::upper_bound(sorted.begin(), sorted.end(), p) - sorted.begin();
    EXPECT_GE(double(covered), 0.999 * double(n));
    const auto below = std::lower_bound(sorted.begin(), sorted.end(), p) - sorted.begin();
    EXPECT_LT(double(below), 0.999 * double(n));
  }
  Doubles none;
  EXPECT_EQ(percentile_999(none), 0);
  EXPECT_EQ(near_tie_noise(1e-5, 1e-3, 1.0), 1e-3);
  EXPECT_EQ(near_tie_noise(1e-5, 1e-7, 1.0), 1e-5);
  EXPECT_EQ(near_tie_noise(1e-5, 1e-7, 1e-6), 1e-6);
}

}  // namespace
}  // namespace assay

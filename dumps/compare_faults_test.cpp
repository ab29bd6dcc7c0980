// Comparators that passed what they should fail (FAULTS C1-C10, C14, E4, E5). Each test plants the fault, shows the right
// answer, and computes the flawed figure beside it: had the flaw come back, the test would see another answer.
#include <gtest/gtest.h>

#include <algorithm>

#include "dumps/compare_test_dumps.h"
#include "dumps/error.h"
#include "dumps/greedy.h"

namespace assay {
namespace {

using namespace testing_dumps;
using Doubles = std::vector<double>;

constexpr const char* kName = "prompt0/prefill/0/layer.1/ffn_act";

/// One tensor against another, at max_rel.
struct Outcome {
  CompareResult result;
  CompareRecord record;
  std::string text;
};
Outcome hold(const Doubles& base, const Doubles& target, std::vector<int64_t> shape, double tol, bool extra = false,
             DType dtype = DType::f32) {
  Folder f;
  const Dump b = write_dump(f / "b", {{kName, shape, base, dtype}}), t = write_dump(f / "t", {{kName, shape, target, dtype}});
  CompareOptions o = at(Level::max_rel, tol);
  o.extra = extra;
  Outcome out{compare(b, t, o), {}, {}};
  out.record = out.result.records.at(0);
  out.text = render_text(to_records(out.result, b, t), false, true);
  return out;
}

// ---- flawed figures, as the tools in question formed them ----

double flawed_max_abs(const Doubles& b, const Doubles& t) {  // C1: a comparison with NaN is false
  double worst = 0;
  for (size_t i = 0; i < b.size(); i++) {
    const double d = std::fabs(t[i] - b[i]);
    if (d > worst) worst = d;
  }
  return worst;
}

size_t flawed_worst_index(const Doubles& b, const Doubles& t) {  // C2: 0/0 is "not less", and wins
  size_t at = 0;
  double worst = 0;
  for (size_t i = 0; i < b.size(); i++) {
    const double rel = std::fabs(t[i] - b[i]) / std::fabs(b[i]);
    if (!(rel <= worst)) worst = rel, at = i;
  }
  return at;
}

double cosine(const Doubles& b, const Doubles& t) {
  double bt = 0, bb = 0, tt = 0;
  for (size_t i = 0; i < b.size(); i++) bt += b[i] * t[i], bb += b[i] * b[i], tt += t[i] * t[i];
  return bt / std::sqrt(bb * tt);
}

double elementwise_rel(const Doubles& b, const Doubles& t) {
  double worst = 0;
  for (size_t i = 0; i < b.size(); i++) worst = std::max(worst, std::fabs(t[i] - b[i]) / std::fabs(b[i]));
  return worst;
}

double mean(const Doubles& x) {
  double sum = 0;
  for (double v : x) sum += v;
  return sum / double(x.size());
}

// ---- the rows ----

TEST(Faults, C1_NaNNeverPasses) {
  const Doubles base = wave(5 * 64);
  for (int side = 0; side < 3; side++) {
    Doubles b = base, t = base;
    const size_t i = 3 * 64 + 17;
    if (side != 1) t[i] = kNaN;
    if (side != 0) b[i] = kNaN;
    EXPECT_FALSE(flawed_max_abs(b, t) > 1e-6) << "the flaw would have passed it";
    const Outcome o = hold(b, t, {5, 64}, 1e-6);
    EXPECT_EQ(o.result.exit_code(), 1);
    EXPECT_EQ(o.record.kind, "non_finite");
    EXPECT_EQ(o.record.metrics->non_finite_at.row, 3);
    EXPECT_EQ(o.record.metrics->non_finite_at.column, 17);
    const char* words[] = {"NaN in target only", "NaN in base only", "NaN on both sides"};
    EXPECT_NE(o.record.reason.find(words[side]), std::string::npos) << o.record.reason;
    EXPECT_NE(o.text.find("row 3 (position 3), column 17"), std::string::npos) << o.text;
    EXPECT_TRUE(std::isinf(o.result.smallest_passing_tolerance));
    ASSERT_TRUE(o.result.divergence);
    EXPECT_EQ(o.result.divergence->row, 3);
  }
}

TEST(Faults, C1_NaNOfBothSidesDoesNotPassByEqualHashesEither) {
  Folder f;
  Doubles x = wave(64);
  x[9] = kNaN;
  const Dump b = write_dump(f / "b", {{kName, {1, 64}, x}}), t = write_dump(f / "t", {{kName, {1, 64}, x}});
  ASSERT_EQ(b.tensors()[0].xxh3_128, t.tensors()[0].xxh3_128) << "a comparator that trusts hashes alone would pass it";
  const CompareResult r = compare(b, t, at(Level::byte_exact));
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.records[0].kind, "non_finite");
  EXPECT_FALSE(r.reached);
}

TEST(Faults, C1_WhereANaNLeftNoChoiceIdsNeverAgree) {
  Folder f;
  DumpOptions o;  // forced ids went on behind a NaN: no id was chosen there, which is written as -1
  o.manifest["prompts"] = {{{"name", "prompt0"}, {"ids", {7}}, {"greedy_ids", {5, -1, 6}}, {"fed_ids", {5, 4}}}};
  const std::vector<Values> ids = {{"prompt0/ids", {1}, {7}, DType::i64}, {"prompt0/greedy_ids", {3}, {5, -1, 6}, DType::i64}};
  const Dump b = write_dump(f / "b", ids, o), t = write_dump(f / "t", ids, o);
  EXPECT_EQ(compare(b, t, at(Level::greedy_prefix)).exit_code(), 1);
  o.manifest["prompts"][0]["ids"] = {-1};
  EXPECT_THROW(write_dump(f / "p", {{"prompt0/ids", {1}, {-1}, DType::i64}}, o), Error) << "a prompt has no such id";
}

TEST(Faults, C1_InfOfOneSignAgreesAndIsCounted) {
  Doubles b = wave(64), t;
  b[5] = kInf;
  b[6] = -kInf;
  t = b;
  Outcome o = hold(b, t, {1, 64}, 1e-6);
  EXPECT_EQ(o.result.exit_code(), 0);
  EXPECT_EQ(o.record.metrics->non_finite_both, 2);
  EXPECT_EQ(o.record.metrics->bits_equal, 64);
  t[6] = kInf;  // the other sign
  o = hold(b, t, {1, 64}, 1e-6);
  EXPECT_EQ(o.record.kind, "non_finite");
  EXPECT_EQ(o.record.metrics->non_finite_at.column, 6);
  EXPECT_NE(o.record.reason.find("-Inf in base, Inf in target"), std::string::npos) << o.record.reason;
}

TEST(Faults, C2_WhereBothAreZeroTheyAreEqualAndTheWorstIsARealOffender) {
  Doubles b = wave(64), t = b;
  b[63] = t[63] = 0;
  EXPECT_TRUE(std::isnan(std::fabs(t[63] - b[63]) / std::fabs(b[63])));
  EXPECT_EQ(hold(b, t, {1, 64}, 1e-9).result.exit_code(), 0);
  EXPECT_EQ(hold(b, t, {1, 64}, 1e-9).record.metrics->bits_equal, 64);
  t[30] += 0.125;  // the one offender
  EXPECT_EQ(flawed_worst_index(b, t), 63u) << "the flaw would name a matching element";
  const Outcome o = hold(b, t, {1, 64}, 1e-9);
  EXPECT_EQ(o.record.kind, "value");
  EXPECT_EQ(o.record.metrics->max_rel_at.column, 30);
  EXPECT_EQ(o.record.metrics->max_abs_at.column, 30);
  EXPECT_EQ(o.record.metrics->first_difference.column, 30);
}

TEST(Faults, C3_NaNAgainstZeroIsAFailureWithItsClass) {
  Doubles b = wave(64), t = b;
  b[20] = 0;
  t[20] = kNaN;
  // The flaw: a helper that takes NaN for 0 before it subtracts (nan_to_num).
  EXPECT_EQ(std::fabs((std::isnan(t[20]) ? 0 : t[20]) - b[20]), 0);
  const Outcome o = hold(b, t, {1, 64}, 1e-3);
  EXPECT_EQ(o.record.kind, "non_finite");
  EXPECT_EQ(o.record.metrics->non_finite_target_only, 1);
  EXPECT_EQ(o.record.metrics->non_finite_base_only, 0);
  EXPECT_EQ(o.record.metrics->non_finite_at.base, 0);
  EXPECT_TRUE(std::isnan(o.record.metrics->non_finite_at.target));
  EXPECT_LT(o.record.metrics->bits_equal, 64);
}

TEST(Faults, C4_TheWorstRowFailsWhatTheCosineAccepts) {
  const int64_t rows = 50, columns = 64;
  const Doubles b = wave(rows * columns);
  Doubles t = b;
  for (int64_t r = 7; r < 16; r++) std::fill_n(t.begin() + r * columns, columns, 0.0);  // 9 of 50 rows: 18%
  EXPECT_GT(cosine(b, t), 0.9) << "a threshold of 0.9 accepts it";
  const Outcome o = hold(b, t, {rows, columns}, 0.5, true);
  EXPECT_EQ(o.result.exit_code(), 1);
  EXPECT_DOUBLE_EQ(o.record.metrics->max_rel, 1);
  EXPECT_NEAR(o.record.metrics->worst_row_l2, 1, 1e-9);
  EXPECT_GE(o.record.metrics->worst_row_l2_at, 7);
  EXPECT_GT(o.record.extra->cosine, 0.9);
  EXPECT_EQ(o.record.extra->worst_row_cosine, 0);
  EXPECT_EQ(o.record.extra->worst_row_cosine_at, 7);
  EXPECT_EQ(o.result.divergence->row, 7) << "the first row that breaks the tolerance";
}

TEST(Faults, C5_TheScaleIsTheRowsMaximumNotTheElement) {
  Doubles b = wave(64), t = b;
  b[12] = 1e-9;
  t[12] = 1.45e-7;  // honest noise of float32 beside values near 1
  EXPECT_GT(elementwise_rel(b, t), 143);
  Outcome o = hold(b, t, {1, 64}, 1e-6, true, DType::f64);
  EXPECT_EQ(o.result.exit_code(), 0);
  EXPECT_LT(o.record.metrics->max_rel, 2e-7);
  EXPECT_GT(o.record.extra->max_elementwise_rel, 143);
  EXPECT_EQ(o.record.extra->max_elementwise_rel_at.column, 12);

  // A row that is quiet throughout: its scale is not below a tenth of what the phase and layer have elsewhere.
  Doubles b2 = wave(2 * 64), t2;
  for (int i = 64; i < 128; i++) b2[size_t(i)] *= 1e-7;
  t2 = b2;
  t2[70] += 1e-7;
  const double most = std::fabs(*std::max_element(b2.begin(), b2.end(), [](double x, double y) { return std::fabs(x) < std::fabs(y); }));
  double row_most = 0;
  for (size_t i = 64; i < 128; i++) row_most = std::max(row_most, std::fabs(b2[i]));
  EXPECT_GT(1e-7 / row_most, 1) << "relative to its own row it would fail any tolerance";
  o = hold(b2, t2, {2, 64}, 1e-5, false, DType::f64);
  EXPECT_EQ(o.result.exit_code(), 0);
  EXPECT_NEAR(o.record.metrics->max_rel, 1e-7 / (0.1 * most), 1e-12);
}

TEST(Faults, C6_IdenticalZerosAreEqualAtEveryLevel) {
  const Doubles zeros(64, 0.0);
  EXPECT_TRUE(std::isnan(cosine(zeros, zeros))) << "a strict test of the cosine fails it";
  EXPECT_EQ(hold(zeros, zeros, {2, 32}, 1e-9).result.exit_code(), 0);
  Folder f;
  const Dump b = write_dump(f / "b", {{kName, {2, 32}, zeros}}), t = write_dump(f / "t", {{kName, {2, 32}, zeros}});
  const CompareResult r = compare(b, t, at(Level::byte_exact));
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.reached, Level::byte_exact);
  // And zeros against something are not: no scale is left, so that any difference is far above every tolerance.
  Doubles x = zeros;
  x[40] = 1e-30;
  const Outcome o = hold(zeros, x, {2, 32}, 0.5);
  EXPECT_EQ(o.result.exit_code(), 1);
  EXPECT_EQ(o.record.metrics->max_rel_at.row, 1);
}

TEST(Faults, C7_AMissingTensorIsAFailure) {
  Folder f;
  const Values a{"prompt0/prefill/0/embed", {2, 8}, wave(16)}, b{kName, {2, 8}, wave(16, 1)};
  const Dump base = write_dump(f / "b", {a, b}), target = write_dump(f / "t", {a});
  int64_t common = 0, differing = 0;  // the flaw: only what both have is looked at
  for (const DumpTensor& t : base.tensors()) {
    const DumpTensor* o = target.find(t.name);
    common += o != nullptr;
    differing += o && o->xxh3_128 != t.xxh3_128;
  }
  EXPECT_EQ(common, 1);
  EXPECT_EQ(differing, 0);
  for (Level level : {Level::max_rel, Level::byte_exact}) {
    const CompareResult r = compare(base, target, at(level, 1e-3));
    EXPECT_EQ(r.exit_code(), 1);
    EXPECT_EQ(r.missing, 1);
    EXPECT_EQ(record_of(r, kName).kind, "missing");
    EXPECT_EQ(r.divergence->name, kName);
  }
  const CompareResult extra = compare(target, base, at(Level::max_rel, 1e-3));
  EXPECT_EQ(extra.exit_code(), 1);
  EXPECT_EQ(extra.extra, 1);
}

TEST(Faults, C8_ElementsAreComparedNotMeans) {
  const Doubles b = wave(256);
  Doubles t = b;
  std::rotate(t.begin(), t.begin() + 1, t.end());
  EXPECT_NEAR(mean(b), mean(t), 1e-12) << "the means agree";
  EXPECT_EQ(hold(b, t, {4, 64}, 1e-2).result.exit_code(), 1);
}

TEST(Faults, C9_ALogitThatDiffersByMuchFailsThoughTheBestIdStays) {
  const std::string name = "prompt0/decode/0/logits";
  Doubles b = wave(4000, 0, 8), t = b;
  t[size_t(std::min_element(b.begin(), b.end()) - b.begin())] += 1.67;
  const auto best = [](const Doubles& x) { return std::max_element(x.begin(), x.end()) - x.begin(); };
  EXPECT_EQ(best(b), best(t));
  EXPECT_GT(cosine(b, t), 0.999) << "a light check prints OK";
  Folder f;
  const Dump base = write_dump(f / "b", {{name, {1, 4000}, b}}), target = write_dump(f / "t", {{name, {1, 4000}, t}});
  const CompareResult r = compare(base, target, at(Level::max_rel, 1e-3));
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_NEAR(r.records[0].metrics->max_abs, 1.67, 1e-5);
}

TEST(Faults, C10_ARunThatComparedNothingIsNoPass) {
  Folder f;
  const Values a{kName, {2, 8}, wave(16)};
  auto expect_nothing = [&](const Dump& b, const Dump& t, Level level) {
    const CompareResult r = compare(b, t, at(level, 1e-3));
    EXPECT_EQ(r.failed, 0) << "the flaw: exit code = anything failed?";
    EXPECT_EQ(r.compared, 0);
    EXPECT_EQ(r.exit_code(), 1);
    EXPECT_NE(render_text(to_records(r, b, t), false, false).find("nothing was compared"), std::string::npos);
    EXPECT_FALSE(r.reached);
  };
  const Dump empty = write_dump(f / "e", {});
  DumpOptions fused;
  fused.not_materialised = {kName};
  const Dump without = write_dump(f / "f", {}, fused), with = write_dump(f / "w", {a});
  const Dump hollow = write_dump(f / "h", {{kName, {0, 8}, {}}});
  for (Level level : {Level::max_rel, Level::byte_exact}) {
    expect_nothing(empty, empty, level);
    expect_nothing(with, without, level);
    expect_nothing(hollow, hollow, level);
  }
  expect_nothing(with, with, Level::greedy_prefix);  // no ids at all
}

TEST(Faults, C14_ReportsStayBoundedHoweverManyAndLongTheNames) {
  Folder f;
  std::vector<Values> b, t;
  const std::string stem(450, 'x');
  for (int i = 0; i < 600; i++) {
    b.push_back({stem + "/" + std::to_string(i), {1, 2}, {1, 2}});
    t.push_back({stem + "/" + std::to_string(i), {1, 2}, {1, 3}});
  }
  const Dump base = write_dump(f / "b", b), target = write_dump(f / "t", t);
  const CompareResult r = compare(base, target, at(Level::byte_exact));
  EXPECT_EQ(r.failed, 600);
  const auto records = to_records(r, base, target);
  EXPECT_EQ(records.size(), 602u);
  size_t longest_phase = 0;
  for (const auto& j : records) {
    if (j.contains("phase")) longest_phase = std::max(longest_phase, j["phase"].get<std::string>().size());
  }
  EXPECT_LE(longest_phase, 10u);
  const std::string text = render_text(records, false, false);
  EXPECT_LT(text.size(), 20000u);
  EXPECT_NE(text.find("... and 594 more"), std::string::npos);
}

TEST(Faults, E4_ARowOfUnknownOwnerIsAFailure) {
  Folder f;
  const Doubles rows = wave(4 * 8);
  Doubles three(rows.begin(), rows.begin() + 24);
  nlohmann::ordered_json prompts = {{{"name", "prompt0"}, {"ids", {5, 6, 7}}}};
  DumpOptions plain, tabled;
  plain.manifest["prompts"] = prompts;
  tabled.manifest["prompts"] = prompts;
  tabled.manifest["rows"] = {{"pass0", "pass0/rows"}};
  const Dump base = write_dump(f / "b", {{"prompt0/prefill/0/embed", {3, 8}, three}}, plain);
  // The target ran the prompt in a batch padded to four rows.
  const Values padded{"pass0/embed", {4, 8}, rows};
  auto target = [&](std::vector<double> table) {
    const int64_t n = int64_t(table.size()) / 3;
    return write_dump(f / "t", {padded, {"pass0/rows", {n, 3}, table, DType::i64}}, tabled);
  };
  EXPECT_EQ(compare(base, target({0, 0, 0, 0, 1, 0, 0, 2, 0, -1, -1, 1}), at(Level::byte_exact)).exit_code(), 0);
  // The flaw: rows are taken by number as far as both sides have them, and the fourth is nobody's.
  EXPECT_TRUE(std::equal(three.begin(), three.end(), rows.begin()));
  for (const std::vector<double>& table : {std::vector<double>{0, 0, 0, 0, 1, 0, 0, 2, 0},          // no owner for row 3
                                           {0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 2, 0},                   // the padding as position 2
                                           {0, 0, 0, 0, 1, 0, 0, 2, 0, 1, 0, 0}}) {                // as another prompt's
    const Dump wrong = target(table);
    try {
      const CompareResult r = compare(base, wrong, at(Level::byte_exact));
      FAIL() << "compared, exit " << r.exit_code();
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("unknown owner"), std::string::npos) << e.what();
      EXPECT_EQ(e.exit_code(), 2);
    }
  }
  // As position 3 it is a decode row that the baseline has not: extra, a failure as well.
  EXPECT_EQ(compare(base, target({0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 3, 0}), at(Level::byte_exact)).exit_code(), 1);
}

TEST(Faults, E5_NoiseNeverLiftsAFlipAboveTheCap) {
  // Base: at step 1 the best two logits are 0.02 apart. Target: noise so large that its own 99.9th percentile covers that.
  const int64_t vocabulary = 2000;
  auto dump = [&](const std::filesystem::path& dir, double noise, bool flip) {
    std::vector<Values> tensors;
    for (int s = 0; s < 4; s++) {
      Doubles x = wave(vocabulary, s, 2);
      x[100] = 5;
      x[200] = 4.98;
      for (int64_t i = 0; i < vocabulary; i++) x[size_t(i)] += noise * std::sin(3.1 * double(i) + s);
      if (s != 1) x[100] += 3;
      if (s == 1 && flip) x[200] = x[100] + 0.001;
      tensors.push_back({s == 0 ? "prompt0/prefill/0/logits_last" : "prompt0/decode/" + std::to_string(s - 1) + "/logits",
                         {1, vocabulary}, x});
    }
    const double second = flip ? 200 : 100;
    tensors.push_back({"prompt0/ids", {1}, {7}, DType::i64});
    tensors.push_back({"prompt0/greedy_ids", {4}, {100, second, 100, 100}, DType::i64});
    return write_dump(dir, tensors);
  };
  Folder f;
  const Dump base = dump(f / "b", 0, false), noisy = dump(f / "n", 0.1, true), honest = dump(f / "h", 0.01, true);
  CompareOptions o = at(Level::greedy_prefix);
  o.tolerance.greedy_margin_cap = 0.05;
  o.tolerance.max_near_ties = 1;
  const CompareResult within = compare(base, noisy, o);
  ASSERT_EQ(within.greedy.size(), 1u);
  ASSERT_EQ(within.greedy[0].flips.size(), 1u);
  EXPECT_TRUE(within.greedy[0].flips[0].near_tie) << "the margin is below this cap";
  EXPECT_EQ(within.exit_code(), 0);

  o.tolerance.greedy_margin_cap = 1e-3;  // that of official-f32
  for (const Dump* target : {&honest, &noisy}) {
    const CompareResult r = compare(base, *target, o);
    const GreedyRecord::Flip& flip = r.greedy[0].flips.at(0);
    EXPECT_NEAR(flip.margin, 0.02, 1e-5);
    EXPECT_EQ(flip.noise, 1e-3);
    EXPECT_FALSE(flip.near_tie);
    EXPECT_EQ(r.exit_code(), 1);
  }
  // Without a cap the tenfold noise turns the same flip into a tie, as the honest noise does not.
  EXPECT_GE(near_tie_noise(0.0999, 1e-7, kInf), 0.02);
  EXPECT_LT(near_tie_noise(0.00999, 1e-7, kInf), 0.02);
  for (const auto& [name, preset] : presets()) EXPECT_TRUE(preset.greedy_margin_cap > 0 && preset.greedy_margin_cap <= 0.25) << name;
}

}  // namespace
}  // namespace assay

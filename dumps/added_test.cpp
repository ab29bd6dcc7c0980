// Judging a low-precision target by the error that each of its windows adds.
#include "dumps/added.h"

#include <gtest/gtest.h>

#include "dumps/compare_test_dumps.h"
#include "dumps/schema_for_tests.h"

namespace assay {
namespace {

using namespace testing_dumps;

constexpr double kUnit = 0x1p-8;

NodeError node(std::string name, double added) {
  NodeError e;
  e.name = std::move(name);
  e.added = added;
  e.accumulated = 3 * added;
  e.inputs = {"embed"};
  e.row = 1, e.column = 1;
  e.oracle = 0.5, e.value = 0.75;
  return e;
}

/// Two phases that drifted by 0.2, as a long forward pass in bfloat16 may, and ids that agree.
struct Drifted {
  Folder f;
  const Dump base = write_dump(f / "base", {{"prompt0/prefill/0/layer.0/q_proj", {2, 2}, {1, 2, 3, 4}},
                                            {"prompt0/prefill/0/layer.0/k_proj", {2, 2}, {1, 2, 3, 4}},
                                            {"prompt0/ids", {2}, {5, 6}, DType::i64}});
  const Dump target = write_dump(f / "target", {{"prompt0/prefill/0/layer.0/q_proj", {2, 2}, {1.8, 2, 3, 4}},
                                                {"prompt0/prefill/0/layer.0/k_proj", {2, 2}, {1, 2.8, 3, 4}},
                                                {"prompt0/prefill/0/layer.0/v_proj", {2, 2}, {1, 2, 3, 4}},
                                                {"prompt0/ids", {2}, {5, 6}, DType::i64}});
  /// A baseline that holds k_proj alone, as official cases hold a part.
  Dump partial() const {
    DumpOptions part;
    part.partial = true;
    return write_dump(
        f / "part",
        {{"prompt0/prefill/0/layer.0/k_proj", {2, 2}, {1, 2, 3, 4}}, {"prompt0/ids", {2}, {5, 6}, DType::i64}}, part);
  }
  CompareOptions options(double q, double k) const {
    CompareOptions o = at(Level::max_rel);
    o.tolerance = presets().at("bf16");
    o.tolerance.fixed = 1e-3;
    o.added = {node("prompt0/prefill/0/layer.0/q_proj", q), node("prompt0/prefill/0/layer.0/k_proj", k)};
    return o;
  }
};

TEST(Added, AccumulatedErrorDecidesOnlyWhereNothingIsKnownOfTheAdded) {
  const Drifted d;
  CompareOptions o = d.options(kUnit, kUnit);
  Dump base = d.base;
  EXPECT_EQ(compare(base, d.target, o).failed, 1);  // the extra v_proj
  o.added.clear();
  const CompareResult alone = compare(base, d.target, o);
  EXPECT_EQ(alone.failed, 3);
  EXPECT_EQ(alone.divergence->kind, "value");
}

TEST(Added, TheFirstNodeThatAddsTooMuchIsNamedWithBothValues) {
  const Drifted d;
  const CompareResult r = compare(d.base, d.target, d.options(kUnit, 0.2));
  ASSERT_TRUE(r.divergence);
  EXPECT_EQ(r.divergence->kind, "added");
  EXPECT_EQ(r.divergence->name, "prompt0/prefill/0/layer.0/k_proj");
  EXPECT_EQ(r.divergence->row, 1);
  EXPECT_EQ(r.divergence->base, 0.5);
  EXPECT_EQ(r.divergence->target, 0.75);
  EXPECT_NE(r.divergence->text.find("adds 0.2, at most 0.004883"), std::string::npos) << r.divergence->text;
}

TEST(Added, ANotANumberFailsWhateverItsWindowAdds) {
  const Drifted d;
  const Dump bad = write_dump(d.f / "bad", {{"prompt0/prefill/0/layer.0/q_proj", {2, 2}, {1, kNaN, 3, 4}},
                                            {"prompt0/prefill/0/layer.0/k_proj", {2, 2}, {1, 2, 3, 4}},
                                            {"prompt0/ids", {2}, {5, 6}, DType::i64}});
  const CompareResult r = compare(d.base, bad, d.options(0, 0));
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.divergence->kind, "non_finite");
}

TEST(Added, WhatThePartialBaselineLacksIsJudgedToo) {
  const Drifted d;
  const Dump base = d.partial();
  EXPECT_EQ(compare(base, d.target, d.options(kUnit, kUnit)).exit_code(), 0);
  const CompareResult r = compare(base, d.target, d.options(0.3, kUnit));
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.divergence->name, "prompt0/prefill/0/layer.0/q_proj");
}

TEST(Added, ANaNThatThePartialBaselineLacksFails) {  // found by attack: it passed, with a model and without
  const Drifted d;
  const Dump base = d.partial();
  const Dump bad = write_dump(d.f / "bad", {{"prompt0/prefill/0/layer.0/k_proj", {2, 2}, {1, 2, 3, 4}},
                                            {"prompt0/decode/3/layer.0/q_rope", {2, 2}, {1, 2, 3, kNaN}},
                                            {"prompt0/ids", {2}, {5, 6}, DType::i64}});
  for (const CompareOptions& o : {d.options(0, 0), at(Level::max_rel, 1e-3)}) {
    const CompareResult r = compare(base, bad, o);
    EXPECT_EQ(r.exit_code(), 1);
    ASSERT_TRUE(r.divergence);
    EXPECT_EQ(r.divergence->name, "prompt0/decode/3/layer.0/q_rope");
    EXPECT_EQ(r.divergence->kind, "non_finite");
  }
}

TEST(Added, WithoutAUnitItIsShownAndDecidesNothing) {
  const Drifted d;
  CompareOptions o = d.options(0.9, 0.9);
  o.tolerance = presets().at("q8");
  o.tolerance.fixed = 0.9;
  const CompareResult r = compare(d.base, d.target, o);
  EXPECT_EQ(r.failed, 1);  // v_proj alone
  int shown = 0;
  for (const auto& j : to_records(r, d.base, d.target))
    if (j.at("record") == "node_error") shown += j.at("status") == "shown";
  EXPECT_EQ(shown, 2);
}

TEST(Added, TextAndRecordsHoldTheFigures) {
  const Drifted d;
  CompareOptions o = d.options(kUnit, 0.2);
  o.added_base = {node("prompt0/prefill/0/layer.0/q_proj", 1e-7)};
  const auto records = to_records(compare(d.base, d.target, o), d.base, d.target);
  const Schema schema = Schema::read(std::filesystem::path(ASSAY_DUMPS_DIR) / "schemas/record.schema.json");
  for (const auto& r : records) EXPECT_EQ(schema.check(r), "") << r.dump(1);
  const std::string text = render_text(records, false, false);
  for (const char* wanted : {"added error", "1.00e-07", "3.91e-03", "judged by the error they add", "80%"})
    EXPECT_NE(text.find(wanted), std::string::npos) << wanted << "\n" << text;
  EXPECT_EQ(text.find("would pass"), std::string::npos) << text;
}

}  // namespace
}  // namespace assay

// Choices of experts: other ones are judged by their regret, counted, and nothing behind them is compared.
#include "dumps/routing.h"

#include <gtest/gtest.h>

#include "dumps/compare_test_dumps.h"

namespace assay {
namespace {

using namespace testing_dumps;

/// Two layers, three rows, four experts, two per row: what both sides agree on unless a test says otherwise.
std::vector<Values> model(std::vector<double> ids0 = {0, 1, 2, 3, 1, 2}, std::vector<double> ids1 = {3, 2, 0, 1, 0, 2}, double shift = 0) {
  const std::string p = "prompt0/prefill/0/";
  std::vector<Values> out = {{p + "embed", {3, 2}, {1, 2, 3, 4, 5, 6}}};
  for (int l = 0; l < 2; l++) {
    const std::string q = p + "layer." + std::to_string(l) + "/";
    out.push_back({q + "ffn_norm", {3, 2}, {1 + shift * l, 2, 3, 4, 5, 6}});
    // Best two of layer 0: 0,1; 2,3 (0.001 before 1); 1,2. Of layer 1: 3,2; 0,1; 0,2.
    out.push_back({q + "router_logits", {3, 4}, l == 0 ? std::vector<double>{3, 2, 1, 0, 0, 1, 3, 1.001, 0, 3, 2, 1} : std::vector<double>{0, 1, 2, 3, 3, 2, 1, 0, 3, 0, 2, 1}});
    out.push_back({q + "router_topk_ids", {3, 2}, l == 0 ? ids0 : ids1, DType::i64});
    out.push_back({q + "moe_out", {3, 2}, {1 + shift, 2, 3, 4, 5, 6}});
  }
  out.push_back({p + "logits", {3, 2}, {1 + shift, 2, 3, 4, 5, 6}});
  out.push_back({"prompt0/state/after_prefill/layer.0/k", {1, 3, 2}, {1, 2, 3, 4, 5, 6}});
  out.push_back({"prompt0/state/after_prefill/layer.1/k", {1, 3, 2}, {1 + shift, 2, 3, 4, 5, 6}});
  out.push_back({"prompt0/ids", {3}, {7, 8, 9}, DType::i64});
  for (size_t i = 0; i < out.size(); i++) out[i].order = int64_t(i);
  return out;
}

CompareOptions options(double cap = 0.01, double share = 0.5) {
  CompareOptions o;
  o.tolerance.preset = "custom";
  o.tolerance.fixed = 1e-3;
  o.tolerance.regret_cap = cap;
  o.tolerance.max_flip_share = share;
  return o;
}

const CompareRecord& record_of(const CompareResult& r, const std::string& name) {
  for (const CompareRecord& c : r.records)
    if (c.name == "prompt0/" + name) return c;
  throw std::runtime_error("no record " + name);
}

// D14, E8: one of two experts swapped in layer 0. The choice is counted; what it made is skipped, not a wall of red.
TEST(Routing, ANearTieIsCountedAndWhatLiesBehindIsNotCompared) {
  Folder f;
  const Dump base = write_dump(f / "b", model()), target = write_dump(f / "t", model({0, 1, 2, 1, 1, 2}, {3, 2, 0, 1, 0, 2}, 5));
  const CompareResult r = compare(base, target, options());
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.flips, 1);
  EXPECT_EQ(r.choices, 3) << "choices of layer 1 follow from other experts";
  EXPECT_TRUE(r.partial);
  ASSERT_EQ(r.routing.size(), 1u);
  EXPECT_EQ(r.routing[0].status, Status::near_tie);
  EXPECT_NEAR(r.routing[0].worst_regret, 0.001, 1e-6);
  EXPECT_EQ(r.routing[0].row, 1);
  EXPECT_EQ(r.routing[0].base_ids, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(r.routing[0].target_ids, (std::vector<int64_t>{2, 1}));
  EXPECT_EQ(record_of(r, "prefill/0/layer.0/router_topk_ids").status, Status::pass);
  EXPECT_NE(record_of(r, "prefill/0/layer.0/router_topk_ids").reason.find("1 of 3 choices differ"), std::string::npos);
  for (const char* name : {"prefill/0/layer.0/moe_out", "prefill/0/layer.1/ffn_norm", "prefill/0/layer.1/router_topk_ids", "prefill/0/logits",
                           "state/after_prefill/layer.1/k"})
    EXPECT_EQ(record_of(r, name).kind, "other_experts") << name;
  for (const char* name : {"prefill/0/embed", "prefill/0/layer.0/ffn_norm", "prefill/0/layer.0/router_logits", "state/after_prefill/layer.0/k"})
    EXPECT_EQ(record_of(r, name).status, Status::pass) << name;
  const std::string text = render_text(to_records(r, base, target), false, false);
  EXPECT_NE(text.find("experts: 1 of 3 choices differ"), std::string::npos) << text;
  EXPECT_NE(text.find("--force-experts"), std::string::npos);
}

// The baseline ran with the target's experts: everything is compared, and the choice judged by the baseline's own scores.
TEST(Routing, AForcedBaselineHidesNothing) {
  Folder f;
  const std::vector<double> theirs = {0, 1, 2, 1, 1, 2};
  const Dump base = write_dump(f / "b", model(theirs)), same = write_dump(f / "t", model(theirs));
  CompareResult r = compare(base, same, options());
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(r.flips, 1);
  EXPECT_EQ(r.choices, 6);
  EXPECT_EQ(r.skipped, 0);
  EXPECT_FALSE(r.partial);
  auto wrong = model(theirs);
  wrong[4].x[3] += 0.1;  // layer 0's moe_out, behind the flip
  r = compare(base, write_dump(f / "w", wrong), options());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.divergence->name, "prompt0/prefill/0/layer.0/moe_out");
}

TEST(Routing, ABadChoiceFailsAtItsPlace) {
  Folder f;
  const Dump base = write_dump(f / "b", model()), target = write_dump(f / "t", model({0, 1, 2, 0, 1, 2}, {1, 2, 0, 1, 0, 2}, 5));
  const CompareResult r = compare(base, target, options());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.failed, 1) << "one verdict, not a wall of red";
  EXPECT_EQ(r.divergence->name, "prompt0/prefill/0/layer.0/router_topk_ids");
  EXPECT_EQ(record_of(r, "prefill/0/layer.0/router_topk_ids").kind, "routing");
  EXPECT_NEAR(r.routing[0].worst_regret, 1.001, 1e-6);
}

TEST(Routing, WithoutACapOrScoresAnyOtherChoiceFails) {
  Folder f;
  const Dump base = write_dump(f / "b", model()), target = write_dump(f / "t", model({0, 1, 2, 1, 1, 2}));
  EXPECT_EQ(compare(base, target, options(0)).exit_code(), 1);
  auto blind = model();
  std::erase_if(blind, [](const Values& v) { return v.name.find("router_logits") != std::string::npos; });
  auto t = model({0, 1, 2, 1, 1, 2});
  std::erase_if(t, [](const Values& v) { return v.name.find("router_logits") != std::string::npos; });
  const CompareResult r = compare(write_dump(f / "bb", blind), write_dump(f / "bt", t), options());
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_TRUE(r.routing.empty());
  EXPECT_EQ(record_of(r, "prefill/0/layer.0/router_topk_ids").kind, "ids");
  EXPECT_EQ(record_of(r, "prefill/0/layer.0/moe_out").kind, "other_experts");
}

TEST(Routing, IdsThatAreNoExpertsAndExpertsTakenTwiceFail) {
  Folder f;
  const Dump base = write_dump(f / "b", model());
  for (const std::vector<double>& ids : {std::vector<double>{0, 1, 2, 4, 1, 2}, {0, 1, 2, -1, 1, 2}, {0, 1, 2, 2, 1, 2}}) {
    const CompareResult r = compare(base, write_dump(f / "t", model(ids)), options(100, 1));
    EXPECT_EQ(r.exit_code(), 1) << ids[3];
    EXPECT_EQ(r.routing[0].worst_regret, kInf);
    std::filesystem::remove_all(f / "t");
  }
}

// The order of the chosen is part of the choice: weights and the sum go by rank.
TEST(Routing, AnotherOrderIsAnotherChoice) {
  Folder f;
  const CompareResult r = compare(write_dump(f / "b", model()), write_dump(f / "t", model({1, 0, 2, 3, 1, 2})), options(2));
  EXPECT_EQ(r.flips, 1);
  EXPECT_NEAR(r.routing[0].worst_regret, 1, 1e-6);
}

TEST(Routing, ManyNearTiesAreAnotherRouter) {
  Folder f;
  const Dump base = write_dump(f / "b", model()), target = write_dump(f / "t", model({0, 1, 2, 1, 1, 2}));
  const CompareResult r = compare(base, target, options(0.01, 0.2));
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_NE(record_of(r, "prefill/0/layer.0/router_topk_ids").reason.find("1 of 3 choices of experts differ, at most 20% may"), std::string::npos);
}

TEST(Routing, AtByteExactIdsAreBytes) {
  Folder f;
  CompareOptions o = options(100, 1);
  o.level = Level::byte_exact;
  const CompareResult r = compare(write_dump(f / "b", model()), write_dump(f / "t", model({0, 1, 2, 1, 1, 2})), o);
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.choices, 0);
  EXPECT_EQ(record_of(r, "prefill/0/layer.0/router_topk_ids").kind, "bits");
}

// A decode step after a flip of the prefill: layers up to the flip's read nothing that it made.
TEST(Routing, WhatADecodeStepSeesOfAnEarlierFlip) {
  Folder f;
  const auto steps = [](std::vector<double> ids0, double shift) {
    auto out = model(ids0);
    const std::string p = "prompt0/decode/0/";
    out.push_back({p + "layer.0/ffn_norm", {1, 2}, {1, 2}});
    out.push_back({p + "layer.0/moe_out", {1, 2}, {1, 2}});
    out.push_back({p + "layer.1/ffn_norm", {1, 2}, {1 + shift, 2}});
    out.push_back({p + "logits", {1, 2}, {1 + shift, 2}});
    return out;
  };
  const CompareResult r = compare(write_dump(f / "b", steps({0, 1, 2, 3, 1, 2}, 0)), write_dump(f / "t", steps({0, 1, 2, 1, 1, 2}, 5)), options());
  EXPECT_EQ(record_of(r, "decode/0/layer.0/moe_out").status, Status::pass);
  EXPECT_EQ(record_of(r, "decode/0/layer.1/ffn_norm").kind, "other_experts");
  EXPECT_EQ(record_of(r, "decode/0/logits").kind, "other_experts");
}

}  // namespace
}  // namespace assay

// A map is found by values alone: names of theirs that say nothing, shards, partial sums, permuted heads, pages.
#include "dumps/suggest.h"

#include <gtest/gtest.h>

#include "dumps/compare_test_dumps.h"
#include "dumps/error.h"
#include "dumps/map.h"
#include "dumps/suggest_match.h"

namespace assay {
namespace {

using namespace testing_dumps;
using suggesting::find_order;
using suggesting::Order;

TEST(Suggest, OrdersOfColumns) {
  const Order plain = find_order({{0, 1, 2, 3, 4, 5, 6, 7}}, "a");
  EXPECT_TRUE(plain.plain);
  EXPECT_EQ(plain.theirs_inner, "fa:8");
  // Two heads of 4, pairs (j, j + 2) side by side.
  const Order pairs = find_order({{0, 2, 1, 3, 4, 6, 5, 7}}, "");
  EXPECT_EQ(pairs.theirs_block + " " + pairs.theirs_inner, "h:2 j:2 pair:2");
  EXPECT_EQ(pairs.ours_block + " " + pairs.ours_inner, "h pair j");
  const Order apart = find_order({{0, 2, 4, 1, 3, 5}}, "");
  EXPECT_EQ(apart.theirs_inner + " => " + apart.ours_inner, "pair:2 j:3 => j pair");
  const Order heads = find_order({{6, 7, 8, 0, 1, 2, 3, 4, 5}}, "");
  EXPECT_EQ(heads.theirs_block + " " + heads.theirs_inner, "h:3[1,2,0] d:3");
  // Two ranks, each with half of the heads.
  EXPECT_TRUE(find_order({{0, 1, 2}, {3, 4, 5}}, "").plain);
  EXPECT_LT(find_order({{0, 3, 5, 1, 2, 4, 7, 6}}, "").agreed, 0.9);
  // A column that was not found spoils nothing.
  EXPECT_TRUE(find_order({{0, 1, -1, 3}}, "").plain);
}

/// Values of [tokens, columns] that are ours, by phase.
struct Model {
  static constexpr int64_t kTokens = 5, kLayers = 3, kHeads = 4, kKv = 2, kD = 4, kHidden = 12, kFfn = 6;
  static double value(const std::string& phase, int64_t layer, int64_t token, int64_t column) {
    double h = 0;  // another curve for each phase
    for (char c : phase) h = std::fmod(31 * h + c, 1009);
    return std::sin(h + 7.3 * double(layer) + 1.7 * double(token) * (1 + 0.37 * double(column)) +
                    3.1 * double(column)) *
           (1 + double(column % 5));
  }
  static Values ours(const std::string& phase, int64_t layer, int64_t columns) {
    Values v{"prompt0/prefill/0/" + (layer < 0 ? "" : "layer." + std::to_string(layer) + "/") + phase,
             {kTokens, columns},
             {}};
    for (int64_t t = 0; t < kTokens; t++)
      for (int64_t c = 0; c < columns; c++) v.x.push_back(value(phase, layer, t, c));
    return v;
  }
};

TEST(Suggest, TwoRanksWithoutAWordInTheirNames) {
  using M = Model;
  std::vector<Values> base, theirs;
  base.push_back(M::ours("embed", -1, M::kHidden));
  for (int64_t l = 0; l < M::kLayers; l++) {
    base.push_back(M::ours("q_proj", l, M::kHeads * M::kD));
    base.push_back(M::ours("k_proj", l, M::kKv * M::kD));
    base.push_back(M::ours("k_rope", l, M::kKv * M::kD));
    base.push_back(M::ours("o_proj", l, M::kHidden));
    base.push_back(M::ours("gate_proj", l, M::kFfn));
    base.push_back(M::ours("up_proj", l, M::kFfn));
    Values k{"prompt0/state/after_prefill/layer." + std::to_string(l) + "/k", {M::kKv, M::kTokens, M::kD}, {}};
    for (int64_t h = 0; h < M::kKv; h++)
      for (int64_t t = 0; t < M::kTokens; t++)
        for (int64_t d = 0; d < M::kD; d++) k.x.push_back(M::value("k_rope", l, t, h * M::kD + d));
    base.push_back(k);
  }
  base.push_back({"prompt0/ids", {M::kTokens}, {3, 1, 4, 1, 5}, DType::i64});
  const std::vector<int64_t> pages = {4, 1, 2};  // of two slots
  for (int64_t r = 0; r < 2; r++) {
    const std::string at = "w" + std::to_string(r) + "/";
    Values e = base[0];
    e.name = at + "t0";
    theirs.push_back(e);
    for (int64_t l = 0; l < M::kLayers; l++) {
      const std::string block = at + "b" + std::to_string(l) + ".";
      // q of half the heads, then k of half the kv heads.
      Values qk{block + "u", {M::kTokens, 12}, {}}, rope{block + "x", {M::kTokens, 4}, {}},
          gu{block + "g", {6, M::kTokens}, {}};
      Values o{block + "o", {M::kTokens, M::kHidden}, {}}, kv{block + "c", {6, 2, 4}, std::vector<double>(48, 99)};
      for (int64_t t = 0; t < M::kTokens; t++) {
        for (int64_t c = 0; c < 8; c++) qk.x.push_back(M::value("q_proj", l, t, 8 * r + c));
        for (int64_t c = 0; c < 4; c++) qk.x.push_back(M::value("k_proj", l, t, 4 * r + c));
        for (int64_t c = 0; c < 4; c++)
          rope.x.push_back(M::value("k_rope", l, t, 4 * r + c % 2 * 2 + c / 2));  // pairs side by side
        for (int64_t c = 0; c < M::kHidden; c++) {
          const double part = std::cos(double(31 * t + 7 * c + l));
          o.x.push_back(r == 0 ? part : M::value("o_proj", l, t, c) - part);
        }
        for (int64_t d = 0; d < 4; d++)
          kv.x[size_t((pages[size_t(t / 2)] * 2 + t % 2) * 4 + d)] = M::value("k_rope", l, t, 4 * r + d);
      }
      for (int64_t c = 0; c < 3; c++)  // gate and up side by side, features first
        for (const char* phase : {"gate_proj", "up_proj"})
          for (int64_t t = 0; t < M::kTokens; t++) gu.x.push_back(M::value(phase, l, t, 3 * r + c));
      for (const Values& v : {qk, rope, gu, o, kv}) theirs.push_back(v);
    }
  }
  theirs.push_back({"blocks", {3}, {4, 1, 2}, DType::i32});
  theirs.push_back({"in", {1, M::kTokens}, {3, 1, 4, 1, 5}, DType::i32});
  theirs.push_back({"noise", {2, 2}, {1, 2, 3, 4}});
  Folder f;
  DumpOptions prompts;
  prompts.manifest = {{"prompts", {{{"name", "prompt0"}, {"ids", {3, 1, 4, 1, 5}}}}}};
  const Dump b = write_dump(f / "b", base), t = write_dump(f / "t", theirs, prompts);
  const Suggestion s = suggest_map(b, t);
  EXPECT_EQ(s.rules, 7) << s.text;
  EXPECT_EQ(s.unsure, 1) << s.text;
  EXPECT_NE(s.text.find("# ? ignore noise"), std::string::npos) << s.text;
  EXPECT_NE(s.text.find("sum R"), std::string::npos) << s.text;
  EXPECT_NE(s.text.find("pages blocks"), std::string::npos) << s.text;
  // With the one decision taken, the map is whole and right.
  const DumpMap map = DumpMap::parse(s.text + "ignore noise\n", "suggested");
  const CompareResult r = compare(b, Mapping(t, map).dump(), at(Level::max_rel, 1e-5));
  EXPECT_EQ(r.exit_code(), 0) << s.text << r.first_divergence.value_or("");
  EXPECT_EQ(r.missing, 0);
  EXPECT_EQ(r.extra, 0);
}

DumpOptions with_prompts(const std::vector<std::vector<int>>& ids) {
  DumpOptions out;
  out.manifest["prompts"] = nlohmann::ordered_json::array();
  for (const auto& x : ids)
    out.manifest["prompts"].push_back(
        {{"name", "prompt" + std::to_string(out.manifest["prompts"].size())}, {"ids", x}});
  return out;
}

TEST(Suggest, RulesOfDifferentPassesStandTogether) {
  using M = Model;
  std::vector<Values> base, theirs;
  for (int64_t l = 0; l < M::kLayers; l++) {
    base.push_back(M::ours("o_proj", l, M::kHidden));
    base.push_back(M::ours("attn_norm", l, M::kHidden));
    base.push_back(M::ours("up_proj", l, M::kFfn));
    Values norm = M::ours("attn_norm", l, M::kHidden), up = M::ours("up_proj", l, M::kFfn);
    norm.name = "step0/layers." + std::to_string(l) + ".norm";  // no rank: `{R}` of the other pass is not in it
    up.name = "step0/layers." + std::to_string(l) + ".up";
    theirs.push_back(norm);
    theirs.push_back(up);
    for (int64_t r = 0; r < 2; r++) {
      Values o = M::ours("o_proj", l, M::kHidden);
      o.name = "rank" + std::to_string(r) + "/step0/layers." + std::to_string(l) + ".o";
      for (size_t i = 0; i < o.x.size(); i++) {
        const double part = std::cos(double(7 * i) + double(l));
        o.x[i] = r == 0 ? part : o.x[i] - part;
      }
      theirs.push_back(o);
    }
  }
  Folder f;
  const Dump b = write_dump(f / "b", base), t = write_dump(f / "t", theirs);
  const Suggestion s = suggest_map(b, t);
  EXPECT_EQ(s.rules, 3) << s.text;
  EXPECT_EQ(s.unsure, 0) << s.text;
  const CompareResult r = compare(b, Mapping(t, DumpMap::parse(s.text, "suggested")).dump(), at(Level::max_rel, 1e-5));
  EXPECT_EQ(r.exit_code(), 0) << s.text;
  EXPECT_EQ(r.missing + r.extra, 0);
}

TEST(Suggest, ARuleThatIsNotSureBringsItsPass) {
  std::vector<Values> base, theirs;
  for (int64_t l = 0; l < Model::kLayers; l++) {
    base.push_back(Model::ours("o_proj", l, 8));
    theirs.push_back(base.back());
    theirs.back().name = "step0/layers." + std::to_string(l) + ".o";
  }
  for (double& x : theirs.back().x) x = -x;  // layer 2 is not ours
  Folder f;
  const Dump t = write_dump(f / "t", theirs);
  const Suggestion s = suggest_map(write_dump(f / "b", base), t);
  EXPECT_EQ(s.rules, 0) << s.text;
  const size_t at = s.text.find("# ? /step0/layers.{L}.o -> /prompt0/prefill/0/layer.{L}/o_proj");
  ASSERT_NE(at, std::string::npos) << s.text;
  EXPECT_EQ(Mapping(t, DumpMap::parse(s.text.substr(at + 4), "uncommented")).lines().size(), 3u);
}

TEST(Suggest, IdsOfEveryPromptAndOfAnyShape) {
  const std::vector<double> a = {3, 1, 4, 1, 5}, b = {2, 7, 1};
  Values hidden = Model::ours("embed", -1, 8);
  const std::vector<Values> base = {hidden, {"prompt0/ids", {5}, a, DType::i64}, {"prompt1/ids", {3}, b, DType::i64}};
  hidden.name = "hidden";
  Folder f;
  const DumpOptions prompts = with_prompts({{3, 1, 4, 1, 5}, {2, 7, 1}});
  const Dump ours = write_dump(f / "b", base, prompts);
  const Dump t = write_dump(
      f / "t", {hidden, {"req0/tokens", {5, 1}, a, DType::i32}, {"req1/tokens", {1, 3}, b, DType::i32}}, prompts);
  const Suggestion s = suggest_map(ours, t);
  EXPECT_EQ(s.rules, 3) << s.text;
  EXPECT_EQ(s.unsure, 0) << s.text;
  EXPECT_NE(s.text.find("/req0/tokens -> /prompt0/ids : token 1 => token"), std::string::npos) << s.text;
  EXPECT_NE(s.text.find("/req1/tokens -> /prompt1/ids : 1 token => token"), std::string::npos) << s.text;
  const CompareResult r = compare(ours, Mapping(t, DumpMap::parse(s.text, "m")).dump(), at(Level::max_rel, 1e-5));
  EXPECT_EQ(r.exit_code(), 0);
  // Replicas of every rank, and a member that is none.
  const Dump ranks =
      write_dump(f / "r", {hidden, {"rank0/in", {5}, a, DType::i32}, {"rank1/in", {5}, a, DType::i32}}, prompts);
  const Suggestion same = suggest_map(ours, ranks);
  EXPECT_NE(same.text.find("/rank{R}/in -> /prompt0/ids : same R"), std::string::npos) << same.text;
  EXPECT_EQ(same.rules, 2) << same.text;
  const Dump other = write_dump(
      f / "o", {hidden, {"step0/in", {5}, a, DType::i32}, {"step1/in", {5}, {9, 9, 8, 7, 6}, DType::i32}}, prompts);
  const Suggestion part = suggest_map(ours, other);
  EXPECT_EQ(part.rules, 2) << part.text;
  EXPECT_NE(part.text.find("# ? ignore step*/in"), std::string::npos) << part.text;
}

TEST(Suggest, ATensorAloneAndNumbersWithLeadingZeros) {
  Folder f;
  const Dump base = write_dump(f / "b", {Model::ours("embed", -1, 8)});
  Values hidden = Model::ours("embed", -1, 8);
  int n = 0;
  for (const char* name : {"hidden", "shard00/hidden", "part007of010"}) {
    hidden.name = name;
    const Dump t = write_dump(f / std::to_string(n++), {hidden});
    const Suggestion s = suggest_map(base, t);
    EXPECT_EQ(s.rules, 1) << s.text;
    EXPECT_EQ(s.unsure, 0) << s.text;
    EXPECT_EQ(Mapping(t, DumpMap::parse(s.text, "m")).lines().size(), 1u) << s.text;
  }
  // A name that no map can hold does not spoil the rule beside it.
  hidden.name = "hidden";
  const Dump t = write_dump(f / "odd", {hidden, {"a#{c}", {2, 2}, wave(4)}});
  const Suggestion s = suggest_map(base, t);
  EXPECT_EQ(s.rules, 1) << s.text;
  EXPECT_NE(s.text.find("# ? ignore a*c*"), std::string::npos) << s.text;
}

TEST(Suggest, TheSearchGrowsWithFamiliesNotWithTensors) {
  std::vector<Values> base = {Model::ours("embed", -1, 8)};
  base.push_back({"prompt0/state/after_prefill/layer.0/k", {2, 6, 4}, wave(48, 1)});
  const auto searched = [&](int64_t n, int64_t columns) {
    std::vector<Values> theirs;
    for (int64_t i = 0; i < n; i++) {
      // As many positions and tokens as ours, in either axis, or pages of them; the tables fit a cache.
      theirs.push_back({"x." + std::to_string(i), {5, columns}, wave(5 * columns, 100 + int(i))});
      theirs.push_back({"c." + std::to_string(i), {6, 2, columns}, wave(12 * columns, 900 + int(i))});
      theirs.push_back({"i." + std::to_string(i), {6}, {0, 1, 2, 3, 4, 5}, DType::i32});
      theirs.push_back({"j." + std::to_string(i), {4}, {double(i % 2), 2, 3, 5}, DType::i32});
      theirs.push_back({"k." + std::to_string(i), {4}, {7, 7, double(i), 1}, DType::i32});  // a page twice: no table
    }
    Folder f;
    const Suggestion s = suggest_map(write_dump(f / "b", base), write_dump(f / "t", theirs));
    EXPECT_EQ(s.rules, 0) << s.text;
    return s.searched;
  };
  const int64_t few = searched(8, 24);
  EXPECT_GT(few, 0);
  EXPECT_LE(searched(80, 24), few + few / 4);  // some samples end early
  EXPECT_LE(searched(8, 2400), 4 * few);       // a sample of 64 columns
}

TEST(Suggest, WhatDoesNotFitIsNotProposed) {
  Folder f;
  const Dump base = write_dump(f / "b", {Model::ours("embed", -1, 8), Model::ours("q_proj", 0, 8)});
  Values other = Model::ours("something_else", 0, 8);
  other.name = "x.0";
  const Suggestion s = suggest_map(base, write_dump(f / "t", {other}));
  EXPECT_EQ(s.rules, 0) << s.text;
  EXPECT_EQ(s.unsure, 1);
  EXPECT_THROW(suggest_map(write_dump(f / "c", {{"prompt0/prefill/0/embed", {1, 8}, wave(8)}}), base), Error);
}

}  // namespace
}  // namespace assay

// Every layout of MAP.md on small tensors that can be checked by hand, and planted faults E1 to E4. What maps refuse:
// map_refusals_test.cpp.
#include "dumps/map.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "dumps/error.h"
#include "dumps/map_gather.h"
#include "dumps/map_test_dumps.h"
#include "dumps/metrics.h"
#include "dumps/rows.h"
#include "dumps/schema_for_tests.h"

namespace assay {
namespace {

using namespace testing_maps;

TEST_F(Maps, NamesPassesCapturesAndStars) {
  const Dump d = map_dump(theirs({{"s0/h.3.norm", {1, 2}, {1, 2}},
                                  {"s2/h.3.norm", {1, 2}, {3, 4}},
                                  {"s0/tap.x.y", {1}, {5}},
                                  {"junk", {1}, {6}}}),
                          "pass s0/ -> prompt0/prefill/0/\n"
                          "pass s{S}/ -> prompt0/decode/{S-1}/   # the first pass is the prefill\n"
                          "h.{L}.norm\n   -> layer.{L}/attn_norm\n"
                          "/s0/tap.*.* -> /taps/*-*\n"
                          "ignore junk\n");
  EXPECT_EQ(d.tensors().size(), 3u);
  EXPECT_EQ(values(d, "prompt0/prefill/0/layer.3/attn_norm"), V({1, 2}));
  EXPECT_EQ(values(d, "prompt0/decode/1/layer.3/attn_norm"), V({3, 4}));
  EXPECT_EQ(values(d, "taps/x-y"), V({5}));
  EXPECT_EQ(d.find("prompt0/decode/1/layer.3/attn_norm")->from, "s2/h.3.norm");
  // Only renamed: the bytes stay where they are and their hashes hold.
  EXPECT_TRUE(d.verify_hashes().empty());
  EXPECT_FALSE(d.find("taps/x-y")->xxh3_128.empty());
}

TEST_F(Maps, SplitsOfEveryNesting) {
  // Two rows; q has 2 heads of 2, k and v one.
  const Dump fused = theirs({{"qkv", {2, 8}, count(16)}});
  const Dump d = map_dump(fused, "qkv -> q | k | v : token (heads:2 d | d | d)");
  EXPECT_EQ(values(d, "q"), V({0, 1, 2, 3, 8, 9, 10, 11}));
  EXPECT_EQ(values(d, "k"), V({4, 5, 12, 13}));
  EXPECT_EQ(values(d, "v"), V({6, 7, 14, 15}));
  EXPECT_EQ(shape(d, "q"), S({2, 4}));
  EXPECT_EQ(d.find("k")->from, "qkv, part 2 of 3");
  // gate and up, one after the other column by column.
  const Dump gu = map_dump(fused, "qkv -> x/gate | up : token (f (1|1))");
  EXPECT_EQ(values(gu, "x/gate"), V({0, 2, 4, 6, 8, 10, 12, 14}));
  EXPECT_EQ(values(gu, "x/up"), V({1, 3, 5, 7, 9, 11, 13, 15}));
  // Grouped by kv head: [q, k, v] of the first, then of the second.
  const Dump grouped = map_dump(fused, "qkv -> q | k | v : token (kv:2 (g:2 d | d | d))");
  EXPECT_EQ(values(grouped, "q"), V({0, 1, 4, 5, 8, 9, 12, 13}));
  EXPECT_EQ(values(grouped, "k"), V({2, 6, 10, 14}));
  EXPECT_EQ(values(grouped, "v"), V({3, 7, 11, 15}));
}

TEST_F(Maps, TransposesPermutationsAndIndices) {
  const Dump d =
      theirs({{"t", {3, 2}, count(6)}, {"r", {1, 8}, count(8)}, {"h", {1, 6}, count(6)}, {"p", {4, 2}, count(8)}});
  const Dump m = map_dump(d,
                          "let heads = 2\n"
                          "t -> a : f token => token f\n"
                          "r -> b : token (heads j pair:2) => token (heads pair j)\n"
                          "h -> c : token (h[2,0:2] d:2)\n"
                          "p -> e : token f, token < 3\n");
  EXPECT_EQ(values(m, "a"), V({0, 2, 4, 1, 3, 5}));
  EXPECT_EQ(shape(m, "a"), S({2, 3}));
  EXPECT_EQ(values(m, "b"), V({0, 2, 1, 3, 4, 6, 5, 7}));
  EXPECT_EQ(values(m, "c"), V({4, 5, 0, 1, 2, 3}));
  EXPECT_EQ(values(m, "e"), V({0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(shape(m, "e"), S({3, 2}));
}

TEST_F(Maps, AxesThatStandInNames) {
  const Dump d =
      theirs({{"batch", {2, 2, 2}, count(8)}, {"stack", {2, 1, 2}, count(4)}, {"len", {2}, {2, 1}, DType::i32}});
  const Dump m = map_dump(d,
                          "batch -> prompt{b}/prefill/0/embed : b token f => token f, token < len[b]\n"
                          "stack -> prompt0/prefill/0/layer.{L}/o_proj : L token f => token f\n");
  EXPECT_EQ(values(m, "prompt0/prefill/0/embed"), V({0, 1, 2, 3}));
  EXPECT_EQ(values(m, "prompt1/prefill/0/embed"), V({4, 5}));
  EXPECT_EQ(values(m, "prompt0/prefill/0/layer.1/o_proj"), V({2, 3}));
}

const char* const kShards =
    "rank{R}/qkv -> prompt0/prefill/0/layer.0/q_proj | k_proj | v_proj : token (h d:2 | d | d)"
    " => token (R h d) | token (R d) | token (R d)\n";

std::vector<Values> shards() {
  return {{"rank0/qkv", {2, 8}, count(16)}, {"rank1/qkv", {2, 8}, count(16, 100)}};
}
std::vector<Values> wholes() {
  return {
      {"prompt0/prefill/0/layer.0/q_proj", {2, 8}, {0, 1, 2, 3, 100, 101, 102, 103, 8, 9, 10, 11, 108, 109, 110, 111}},
      {"prompt0/prefill/0/layer.0/k_proj", {2, 4}, {4, 5, 104, 105, 12, 13, 112, 113}},
      {"prompt0/prefill/0/layer.0/v_proj", {2, 4}, {6, 7, 106, 107, 14, 15, 114, 115}}};
}

TEST_F(Maps, E1RanksAreJoinedShardByShard) {
  const Dump base = ours(wholes());
  const Dump good = map_dump(theirs(shards()), kShards);
  EXPECT_EQ(compare(base, good, at(Level::byte_exact)).exit_code(), 0);
  EXPECT_EQ(good.find("prompt0/prefill/0/layer.0/k_proj")->from, "rank0..1/qkv, part 2 of 3");
  // Gathered by their engine, shard behind shard: the map that knows it is right,
  std::vector<double> joined;
  for (int row = 0; row < 2; row++)
    for (int rank = 0; rank < 2; rank++)
      for (int c = 0; c < 8; c++) joined.push_back(100 * rank + 8 * row + c);
  const Dump gathered = theirs({{"qkv", {2, 16}, joined}});
  const std::string prefix = "qkv -> prompt0/prefill/0/layer.0/q_proj | k_proj | v_proj : ";
  const Dump right =
      map_dump(gathered, prefix + "token (R:2 (h d:2 | d | d)) => token (R h d) | token (R d) | token (R d)");
  EXPECT_EQ(compare(base, right, at(Level::byte_exact)).exit_code(), 0);
  // and the one that takes the halves for q | k | v is caught at q_proj, with both names.
  const Dump wrong = map_dump(gathered, prefix + "token (h:4 d:2 | kv:2 d | kv d)");
  const CompareResult r = compare(base, wrong, at(Level::max_rel, 1e-6));
  EXPECT_EQ(r.exit_code(), 1);
  ASSERT_TRUE(r.divergence);
  EXPECT_EQ(r.divergence->phase, "q_proj");
  EXPECT_EQ(r.divergence->column, 4);
  EXPECT_NE(r.divergence->text.find("(from qkv, part 1 of 3)"), std::string::npos) << r.divergence->text;
}

TEST_F(Maps, E2PartialSums) {
  const std::string name = "prompt0/prefill/0/layer.0/o_proj";
  const Dump base = ours({{name, {1, 3}, {11, 22, 33}}});
  const Dump parts = theirs({{"rank0/o", {1, 3}, {1, 2, 3}}, {"rank1/o", {1, 3}, {10, 20, 30}}});
  const Dump sum = map_dump(parts, "rank{R}/o -> " + name + " : sum R");
  EXPECT_EQ(compare(base, sum, at(Level::byte_exact)).exit_code(), 0);
  const CompareResult r =
      compare(base, map_dump(parts, "rank0/o -> " + name + "\nignore rank1/o"), at(Level::max_rel, 0.1));
  ASSERT_TRUE(r.divergence);
  EXPECT_EQ(r.divergence->phase, "o_proj");
  EXPECT_EQ(r.divergence->from, "rank0/o");
  // Added in double and rounded once: bfloat16 steps would lose both small terms.
  const double small = std::ldexp(1, -8);
  const Dump three = theirs({{"rank0/o", {1, 1}, {1}, DType::bf16},
                             {"rank1/o", {1, 1}, {small}, DType::bf16},
                             {"rank2/o", {1, 1}, {small}, DType::bf16}});
  const Dump rounded = map_dump(three, "rank{R}/o -> o : sum R");
  EXPECT_EQ(values(rounded, "o"), V({1 + 2 * small}));
  EXPECT_EQ(rounded.find("o")->dtype, DType::bf16);
}

TEST_F(Maps, ReplicasMustAgree) {
  const std::string name = "prompt0/prefill/0/embed";
  const Dump base = ours({{name, {2, 2}, count(4)}});
  const std::string map = "rank{R}/e -> " + name + " : same R";
  const Dump equal = theirs({{"rank0/e", {2, 2}, count(4)}, {"rank1/e", {2, 2}, count(4)}});
  EXPECT_EQ(compare(base, map_dump(equal, map), at(Level::byte_exact)).exit_code(), 0);
  const Dump other = theirs({{"rank0/e", {2, 2}, count(4)}, {"rank1/e", {2, 2}, {0, 1, 2, 7}}});
  const CompareResult r = compare(base, map_dump(other, map), at(Level::max_rel, 1));
  EXPECT_EQ(r.exit_code(), 1) << "the first rank's values are right";
  EXPECT_EQ(record_of(r, name).kind, "replicas");
  EXPECT_NE(r.divergence->text.find("R = 1 is not R = 0, first at row 1, column 1: 7, 3"), std::string::npos)
      << r.divergence->text;
  // Written: nothing is left that could pass.
  const DumpMap parsed = DumpMap::parse(map, "m");
  const Mapping mapping(other, parsed);
  DumpWriter::Options o;
  o.dir = f / "out";
  o.sync = false;
  EXPECT_EQ(mapping.write(o).size(), 1u);
  EXPECT_THROW(Dump::open(f / "out"), Error);
}

TEST_F(Maps, PagesGoToPositionsAndE3IsFound) {
  const Paged right = paged({2, 0, 1});
  auto dump = [&](const Paged& p) {
    return theirs({{"kv.0", {2, 3, 2, 2, 1}, p.cache}, {"table", {2, 2}, p.table, DType::i32}}, kTwoPrompts);
  };
  const Dump m = map_dump(dump(right), kPaged);
  EXPECT_EQ(m.tensors().size(), 4u);
  EXPECT_EQ(values(m, "prompt0/state/after_prefill/layer.0/k"), V({1, 11, 21, 2, 12, 22}));
  EXPECT_EQ(values(m, "prompt0/state/after_prefill/layer.0/v"), V({101, 111, 121, 102, 112, 122}));
  EXPECT_EQ(values(m, "prompt1/state/after_prefill/layer.0/k"), V({-1, -11, -2, -12}));
  EXPECT_EQ(shape(m, "prompt1/state/after_prefill/layer.0/v"), S({2, 2, 1}));
  const std::vector<Values> base_values = {
      {"prompt0/state/after_prefill/layer.0/k", {2, 3, 1}, {1, 11, 21, 2, 12, 22}},
      {"prompt0/state/after_prefill/layer.0/v", {2, 3, 1}, {101, 111, 121, 102, 112, 122}},
      {"prompt1/state/after_prefill/layer.0/k", {2, 2, 1}, {-1, -11, -2, -12}},
      {"prompt1/state/after_prefill/layer.0/v", {2, 2, 1}, {-101, -111, -102, -112}}};
  const Dump base = ours(base_values);
  EXPECT_EQ(compare(base, m, at(Level::byte_exact)).exit_code(), 0);
  Paged exchanged = right;
  std::swap(exchanged.table[0], exchanged.table[1]);
  const CompareResult r = compare(base, map_dump(dump(exchanged), kPaged), at(Level::max_rel, 1e-3));
  ASSERT_TRUE(r.divergence);
  EXPECT_EQ(r.divergence->name, "prompt0/state/after_prefill/layer.0/k");
  EXPECT_EQ(r.divergence->position, 0);
  EXPECT_NE(r.divergence->text.find("kv head 0, position 0"), std::string::npos) << r.divergence->text;
}

TEST_F(Maps, E4PaddingRowsAreNobodys) {
  const Json manifest = {{"prompts", {{{"name", "prompt0"}, {"ids", {1, 2, 3}}}}}};
  auto dump = [&](V table) {
    return theirs({{"step0/x", {4, 1}, {1, 2, 3, 99}}, {"step0/who", {4, 3}, std::move(table), DType::i32}}, manifest);
  };
  const std::string map = "pass step{S}/ -> step{S}/\nx -> embed\nrows step{S} = step{S}/who\n";
  const Dump base = ours({{"prompt0/prefill/0/embed", {3, 1}, {1, 2, 3}}});
  const Dump good = map_dump(dump({0, 0, 0, 0, 1, 0, 0, 2, 0, -1, -1, 1}), map);
  EXPECT_EQ(compare(base, good, at(Level::byte_exact)).exit_code(), 0);
  EXPECT_EQ(align_rows(good).find("prompt0/prefill/0/embed")->from, "step0/x");
  const Dump bad = map_dump(dump({0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 2, 0}), map);
  try {
    compare(base, bad, at(Level::byte_exact));
    FAIL() << "a padding row passed as a token";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("step0/embed row 3: rows of unknown owner: prompt 0 position 2 a second time"),
              std::string::npos)
        << e.what();
  }
}

TEST_F(Maps, IdsOfOursNeedNoLine) {
  const Dump d = theirs({{"prompt0/ids", {2}, {7, 8}, DType::i32}, {"e", {2, 1}, {1, 2}}});
  const Dump m = map_dump(d, "e -> prompt0/prefill/0/embed\n");
  EXPECT_EQ(values(m, "prompt0/ids"), V({7, 8}));
  EXPECT_EQ(m.find("prompt0/ids")->dtype, DType::i64);
  EXPECT_EQ(m.find("prompt0/ids")->from, "");
  EXPECT_FALSE(map_dump(d, "e -> prompt0/prefill/0/embed\nignore prompt0/ids").find("prompt0/ids"));
}

TEST_F(Maps, IdsAreWidenedAndAbsentPhasesAreExcused) {
  const Dump base = ours({{"prompt0/ids", {2}, {7, 8}, DType::i64},
                          {"prompt0/prefill/0/layer.0/q_norm", {2, 1}, {1, 2}},
                          {"prompt0/prefill/0/embed", {2, 1}, {1, 2}}});
  const Dump d = theirs({{"input_ids", {1, 2}, {7, 8}, DType::i32}, {"e", {2, 1}, {1, 2}}});
  const std::string map = "input_ids -> prompt0/ids : 1 token\ne -> prompt0/prefill/0/embed\n";
  EXPECT_EQ(compare(base, map_dump(d, map), at(Level::max_rel, 1e-9)).exit_code(), 1);
  const Dump m = map_dump(d, map + "absent */layer.*/q_norm\n");
  EXPECT_EQ(m.find("prompt0/ids")->dtype, DType::i64);
  const CompareResult r = compare(base, m, at(Level::max_rel, 1e-9));
  EXPECT_EQ(r.exit_code(), 0);
  EXPECT_EQ(record_of(r, "prompt0/prefill/0/layer.0/q_norm").kind, "not_materialised");
}

TEST_F(Maps, LimitsComeBeforePagesAndNames) {
  const Dump d = theirs({{"x", {4, 1, 2}, count(8)},
                         {"kv", {2, 4, 1}, count(8)},
                         {"bt", {2}, {1, 0}, DType::i32},
                         {"n", {4}, {1, 1, 1, 1}, DType::i32}});
  const std::string rest = "\nignore *\n", x = "x -> prompt{batch}/prefill/0/embed : batch token f => token f, ";
  const Dump m = map_dump(d, x + "batch < 3" + rest);
  EXPECT_EQ(values(m, "prompt2/prefill/0/embed"), V({4, 5}));
  EXPECT_FALSE(m.find("prompt3/prefill/0/embed"));
  EXPECT_EQ(refusal([&] { map_dump(d, x + "batch < n[batch]" + rest); }).substr(0, 78),
            "m:1: x: the limit of \"batch\", which stands in our name, changes with {batch}; ");
  // The fourth slot of each page holds no position.
  const std::string kv = "kv -> c : page slot d => position d, pages bt, position < ";
  EXPECT_EQ(values(map_dump(d, kv + "6, slot < 3" + rest), "c"), V({4, 5, 6, 0, 1, 2}));
  EXPECT_EQ(refusal([&] { map_dump(d, kv + "2, page < 1" + rest); }),
            "bt [0]: a page outside of the cache; wanted 0 .. 0, found 1");
}

// Random shapes: what a map moves, its inverse moves back.
TEST_F(Maps, InversesGiveTheBytesBack) {
  const unsigned seed = std::random_device{}();
  std::mt19937 gen(seed);
  auto die = [&](int a, int b) { return std::uniform_int_distribution<int>(a, b)(gen); };
  for (int round = 0; round < 20; round++) {
    const int ranks = die(1, 3), h = die(1, 4), d = 2 * die(1, 4), f = die(1, 5), t = die(1, 4);
    SCOPED_TRACE("seed " + std::to_string(seed) + " round " + std::to_string(round));
    std::vector<Values> v;
    for (int r = 0; r < ranks; r++)
      v.push_back({"rank" + std::to_string(r) + "/x", {f, t, h * d + d}, count(f * t * (h + 1) * d, 1000 * r)});
    const Dump from = theirs(v);
    const std::string sizes = "let h = " + std::to_string(h) + "\nlet d = " + std::to_string(d) + "\n";
    const Dump there = map_dump(from, sizes + "rank{R}/x -> a | b : f t (h j p:2 | d) => t (R h p j) f | R d t f\n");
    Folder again;
    std::vector<Values> w;
    for (const char* name : {"a", "b"}) w.push_back({name, shape(there, name), values(there, name)});
    const Dump middle = write_dump(again / "m", w);
    const Dump back =
        map_dump(middle, sizes + "let p = 2\nlet R = " + std::to_string(ranks) +
                             "\na -> a{R} : t (R h p j) f => f t (h j p)\nb -> b{R} : R d t f => f t d\n");
    for (int r = 0; r < ranks; r++) {
      const std::string n = std::to_string(r);
      const V whole = values(from, "rank" + n + "/x"), a = values(back, "a" + n), b = values(back, "b" + n);
      for (int64_t row = 0; row < f * t; row++) {
        for (int64_t c = 0; c < (h + 1) * d; c++) {
          const double found = c < h * d ? a[size_t(row * h * d + c)] : b[size_t(row * d + c - h * d)];
          ASSERT_EQ(found, whole[size_t(row * (h + 1) * d + c)]) << row << " " << c;
        }
      }
    }
  }
}

TEST_F(Maps, WrittenIsWhatIsCompared) {
  const DumpMap map = DumpMap::parse(kShards, "shards.map");
  const Dump from = theirs(shards(), {{"engine", "stranger"}});
  const Mapping mapping(from, map);
  DumpWriter::Options o;
  o.dir = f / "out";
  o.sync = false;
  EXPECT_TRUE(mapping.write(o).empty());
  const Dump written = Dump::open(f / "out");
  EXPECT_TRUE(written.verify_hashes().empty());
  EXPECT_EQ(written.manifest()["engine"], "stranger");
  EXPECT_EQ(written.manifest()["mapped"]["map"], "shards.map");
  EXPECT_EQ(compare(ours(wholes()), written, at(Level::byte_exact)).exit_code(), 0);
  ASSERT_EQ(mapping.lines().size(), 3u);
  EXPECT_EQ(mapping.lines()[0].how, "moved");
  EXPECT_EQ(mapping.lines()[0].line, 1);
  const Schema schema = Schema::read(std::filesystem::path(ASSAY_DUMPS_DIR) / "schemas/record.schema.json");
  for (const Json& r : map_records(mapping, from, "shards.map", "", {})) EXPECT_EQ(schema.check(r), "") << r.dump();
}

TEST(RoundTo, EveryValueOf16BitsAndTheMiddlesBetweenThem) {
  for (DType type : {DType::f16, DType::bf16}) {
    const uint16_t inf = type == DType::f16 ? 0x7c00 : 0x7f80;
    for (uint32_t b = 0; b < inf; b++) {
      const uint16_t bits = uint16_t(b), next = uint16_t(b + 1);
      const double x = value_at(type, reinterpret_cast<const std::byte*>(&bits), 0);
      uint16_t found = 0;
      mapping::round_to(type, -x, reinterpret_cast<std::byte*>(&found));
      ASSERT_EQ(found, bits | 0x8000);
      if (next == inf) break;
      const double y = value_at(type, reinterpret_cast<const std::byte*>(&next), 0), middle = x + (y - x) / 2;
      mapping::round_to(type, middle, reinterpret_cast<std::byte*>(&found));
      ASSERT_EQ(found, bits % 2 ? next : bits) << "ties go to even";
      mapping::round_to(type, std::nextafter(middle, kInf), reinterpret_cast<std::byte*>(&found));
      ASSERT_EQ(found, next);
    }
    uint16_t found = 0;
    mapping::round_to(type, 1e300, reinterpret_cast<std::byte*>(&found));
    EXPECT_EQ(found, inf);
    mapping::round_to(type, kNaN, reinterpret_cast<std::byte*>(&found));
    EXPECT_EQ(found, type == DType::f16 ? 0x7e00 : 0x7fc0);
  }
}

}  // namespace
}  // namespace assay

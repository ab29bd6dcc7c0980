// Every layout of MAP.md on small tensors that can be checked by hand, planted faults E1 to E4, and what maps refuse.
#include "dumps/map.h"

#include <gtest/gtest.h>

#include <fstream>
#include <numeric>
#include <random>

#include "dumps/compare_test_dumps.h"
#include "dumps/error.h"
#include "dumps/map_gather.h"
#include "dumps/metrics.h"
#include "dumps/rows.h"
#include "dumps/schema_for_tests.h"

namespace assay {
namespace {

using namespace testing_dumps;
using Json = nlohmann::ordered_json;

std::vector<double> count(int64_t n, double from = 0) {
  std::vector<double> out(static_cast<size_t>(n));
  std::iota(out.begin(), out.end(), from);
  return out;
}

std::vector<double> values(const Dump& d, const std::string& name) {
  const DumpTensor* t = d.find(name);
  if (!t) throw std::runtime_error("no tensor " + name);
  std::vector<double> out;
  for (int64_t i = 0; i < t->elements(); i++) out.push_back(value_at(t->dtype, t->data, i));
  return out;
}

std::vector<int64_t> shape(const Dump& d, const std::string& name) {
  return d.find(name)->shape;
}

Dump map_dump(const Dump& theirs, const std::string& text) {
  return Mapping(theirs, DumpMap::parse(text, "m")).dump();
}

class Maps : public testing::Test {
 protected:
  Folder f;
  Dump theirs(const std::vector<Values>& v, const Json& manifest = Json::object()) {
    DumpOptions o;
    o.manifest = manifest;
    return write_dump(f / "theirs", v, o);
  }
  Dump ours(const std::vector<Values>& v) { return write_dump(f / "ours", v); }
};

using V = std::vector<double>;
using S = std::vector<int64_t>;

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

// A cache of 3 pages of 2 slots, 2 kv heads, head_dim 1; keys and values in one tensor; sequence 0 has 3 positions, 1
// has 2. Value: 100 * (v?) + 10 * position + head, of sequence 1 negative.
struct Paged {
  std::vector<double> cache;
  std::vector<double> table;
};
Paged paged(const std::vector<int>& pages) {
  Paged out;
  out.cache.assign(2 * 3 * 2 * 2, 999);
  auto put = [&](int kv, int page, int slot, int head, double x) {
    out.cache[size_t(((kv * 3 + page) * 2 + slot) * 2 + head)] = x;
  };
  for (int kv = 0; kv < 2; kv++) {
    for (int h = 0; h < 2; h++) {
      for (int p = 0; p < 3; p++) put(kv, pages[size_t(p / 2)], p % 2, h, 100 * kv + 10 * p + h + 1);
      for (int p = 0; p < 2; p++) put(kv, pages[2], p % 2, h, -(100 * kv + 10 * p + h + 1));
    }
  }
  out.table = {double(pages[0]), double(pages[1]), double(pages[2]), -1};
  return out;
}
const char* const kPaged =
    "kv.{L} -> prompt{P}/state/after_prefill/layer.{L}/k | v"
    " : (1|1) page slot head d => head position d | head position d, pages table[P]\n";
const Json kTwoPrompts = {
    {"prompts", {{{"name", "prompt0"}, {"ids", {1, 2, 3}}}, {{"name", "prompt1"}, {"ids", {4, 5}}}}}};

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
  const Schema schema = Schema::read(std::filesystem::path(__FILE__).parent_path() / "schemas" / "record.schema.json");
  for (const Json& r : map_records(mapping, from, "shards.map")) EXPECT_EQ(schema.check(r), "") << r.dump();
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

std::string refusal(const std::function<void()>& job) {
  try {
    job();
  } catch (const Error& e) {
    return e.exit_code() == kUsage ? e.what() : std::string("exit code ") + std::to_string(e.exit_code());
  }
  return "accepted";
}

TEST(MapFiles, WhatIsWrongIsSaidWithItsLine) {
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"", "m: a map without rules"},
      {"# only words\n", "m: a map without rules"},
      {"  a -> b", "m:1: a continued line, and none before it"},
      {"a -> b\nwhat is this", "m:2: the line can't be read"},
      {"a ->", "m:1: a name of ours is missing"},
      {"a -> b c", "m:1: the names of ours can't be read"},
      {"a -> b |", "m:1: a name of ours is missing"},
      {"a -> b :", "m:1: nothing behind the colon"},
      {"a -> /b", "m:1: one side with a full name, the other without"},
      {"a{ -> b", "m:1: a { without }"},
      {"a} -> b", "m:1: a } without {"},
      {"a{1} -> b", "m:1: not the name of a capture"},
      {"a{R}{S} -> b{R}{S}", "m:1: nothing between two captures"},
      {"a{R}.{R} -> b{R}", "m:1: {R} twice in one name"},
      {"a\xc3\xa4 -> b", "m:1: a name with odd bytes"},
      {"a -> b{L}", "m:1: {L} of ours is not in theirs"},
      {"a{L} -> b", "m:1: {L} has no use; wanted {L} in ours, L among our axes, sum L or same L"},
      {"a -> b*", "m:1: more * in ours than in theirs"},
      {"a{L} -> b{L*2}", "m:1: not the name of a capture"},
      {"a{L} -> b{L-x}", "m:1: not a capture; wanted {L}, {L+1} or {L-1}"},
      {"let d = 0\na -> b", "m:1: not a size"},
      {"let d = e\na -> b", "m:1: not a size"},
      {"let d = 99999999999999999999\na -> b", "m:1: not a size"},
      {"let d = 1\nlet d = 2\na -> b", "m:2: the size \"d\" is given twice"},
      {"let 1d = 2\na -> b", "m:1: not the name of a size"},
      {"pass a/ b/\na -> b", "m:1: the line can't be read; wanted pass THEIRS -> OURS"},
      {"pass a/ -> b/\n/a -> /b", "m:1: a pass, and no rule for it"},
      {"rows a -> b c\n", "m:1: the line can't be read; wanted rows OURS = THEIRS"},
      {"rows a b\na -> b", "m:1: the line can't be read; wanted rows OURS = THEIRS"},
      {"ignore\na -> b", "m:1: ignore takes one name"},
      {"absent x{L}\na -> b", "m:1: a capture under absent"},
      {"a -> b | c : token (x y)", "m:1: as many names of ours as parts of the split; wanted 1 names, found 2"},
      {"a -> b : token (x | y)", "m:1: as many names of ours as parts of the split; wanted 2 names, found 1"},
      {"a -> b | c : token (x | y) => token x", "m:1: as many layouts of ours as names; wanted 2, found 1"},
      {"a -> b : token (x", "m:1: the axes can't be read; wanted ), found the end of the line"},
      {"a -> b : token x)", "m:1: the axes can't be read"},
      {"a -> b : token ()", "m:1: the axes can't be read; wanted an axis"},
      {"a -> b : token 2", "m:1: an axis without a name; wanted 1, or NAME:SIZE"},
      {"a -> b : token x:y", "m:1: an unknown size"},
      {"a -> b : token x:0", "m:1: the axes can't be read; wanted a whole number from 1"},
      {"a -> b : token x[3:3]", "m:1: an empty range"},
      {"a -> b : token x[1", "m:1: the axes can't be read; wanted ] or ,"},
      {"a -> b : token x => token x:2", "m:1: a size among our axes"},
      {"a -> b : token x => token x[0]", "m:1: an index among our axes"},
      {"a -> b : token x => token (x|token)", "m:1: a split among our axes"},
      {"a -> b|c : token x", "m:1: a | within a name"},
      {"a -> b | c : (x|y) (z|w)", "m:1: two splits in one rule"},
      {"a -> b : token x => token", "m:1: the axis \"x\" of theirs is not among ours"},
      {"a -> b : token x => token y x", "m:1: the axis \"y\" of ours is not among theirs"},
      {"a -> b : token x => token x x", "m:1: the axis \"x\" stands twice among ours"},
      {"a -> b : token x, token y", "m:1: a clause twice"},
      {"a -> b : sum", "m:1: sum takes one capture"},
      {"a -> b : sum R", "m:1: {R} is not in theirs"},
      {"a{R} -> b{R} : sum R", "m:1: {R} is in ours and gathered"},
      {"a{R} -> b : token x => token (R x), same R", "m:1: {R} is gathered and an axis of ours"},
      {"a{R} -> b : token R => token R", "m:1: \"R\" is an axis and a capture"},
      {"a -> b : , token x", "m:1: an empty clause"},
      {"a -> b : pages t", "m:1: pages without their axes"},
      {"a -> b : page slot d, pages t", "m:1: pages without a layout of ours"},
      {"a -> b : page slot d => d, pages t", "m:1: the axis \"position\" of theirs is not among ours"},
      {"a -> b : page slot d => position d, pages t[P]", "m:1: [P] of a table is not among ours"},
      {"a -> b : token " + std::string(40, '(') + "x" + std::string(40, ')'), "m:1: parentheses are nested too deep"},
  };
  for (const auto& [text, wanted] : bad) {
    const std::string found = refusal([&t = text] { DumpMap::parse(t, "m"); });
    EXPECT_EQ(found.substr(0, wanted.size()), wanted) << "of the map:\n" << text << "\n-> " << found;
  }
  EXPECT_EQ(refusal([] { DumpMap::read("/nowhere/x.map"); }).substr(0, 38), "/nowhere/x.map: the map can't be read;");
}

TEST_F(Maps, WhatDoesNotFitADumpIsSaidWithItsTensor) {
  const Dump d = theirs({{"r0/x", {2, 6}, count(12)},
                         {"r1/x", {2, 6}, count(12)},
                         {"n", {2}, {0, 5}, DType::i32},
                         {"u/y", {4}, count(4)}},
                        kTwoPrompts);
  const std::string rest = "\nignore *\n";
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"r0/x -> a\nr1/x -> b", "m: no line takes \"n\" and 1 more tensors"},
      {"r{R}/x -> a{R}\nz -> c" + rest, "m:2: the line takes no tensor; wanted \"z\", found none"},
      {"r{R}/x -> a{R}\nr0/x -> c" + rest,
       "m:2: the line takes no tensor; wanted \"r0/x\", found 1 such tensors, all taken by lines above"},
      {"pass r{R}/ -> p{R}/\npass q/ -> q/\nx -> a" + rest, "m:2: the pass takes no tensor; wanted \"q/\", found none"},
      {"r0/x -> a\nr1/x -> a" + rest, "m:2: r1/x: two tensors get the name \"a\"; wanted r0/x, found r1/x"},
      {"r{R}/x -> a{R-1}" + rest, "m:1: r0/x: {R} gives a number below 0"},
      {"r{R}/x -> a : token f g => token (R f g)" + rest, "m:1: r0/x: another number of axes; wanted 3, found [2, 6]"},
      {"r{R}/x -> a : token f:5 => token (R f)" + rest,
       "m:1: r0/x: axis 1 of [2, 6] has another size; wanted 5, found 6"},
      {"r{R}/x -> a : token (f g) => token (R f g)" + rest,
       "m:1: r0/x: the size of \"f\" can't be told from the shape [2, 6]"},
      {"r{R}/x -> a : token (f g:4) => token (R f g)" + rest,
       "m:1: r0/x: axis 1 of [2, 6] can't be cut so; wanted 4 * f, found 6"},
      {"r{R}/x -> a | b : token (f | f | f)" + rest, "m:1: as many names"},
      {"r{R}/x -> a : token (f f) => token (R f)" + rest, "m:1: r0/x: the size of \"f\""},
      {"r{R}/x -> a : token f[7] => token (R f)" + rest,
       "m:1: r0/x: the index of \"f\" leaves the axis; wanted 0 to 5, found 7"},
      {"r{R}/x -> a : token f => token (R f), token < 3" + rest,
       "m:1: r0/x: more valid entries than the axis \"token\" has; wanted 0 .. 2, found 3"},
      {"r{R}/x -> a : token f => token (R f), token < n" + rest,
       "m:1: r0/x: the table n of lengths; wanted 1 numbers, found [2]"},
      {"r{R}/x -> a : token f => token (R f), token < u/y" + rest,
       "u/y: a table of an odd type; wanted integers, found F32"},
      {"r{R}/x -> a : token f => token (R f), token < w" + rest, "m:1: r0/x: the table \"w\" is not in the dump"},
      {"r{R}/x -> a : token f:9223372036854775806 => token (R f)" + rest,
       "m:1: r0/x: axis 1 of [2, 6] has another size"},
      {"r{R}/x -> a : token (f:4611686018427387904 g:4) => token (R f g)" + rest,
       "m:1: r0/x: the sizes of the axes overflow"},
      {"n -> a : sum n", "m:1: {n} is not in theirs"},
      {"*/x -> a" + rest, "m:1: r1/x: two tensors get the name \"a\""},
      {"r{R}/x -> " + std::string(600, 'a') + "{R}" + rest, "m:1: r0/x: not a tensor name"},
  };
  for (const auto& [text, wanted] : bad) {
    const std::string found = refusal([&, &t = text] { map_dump(d, t); });
    EXPECT_EQ(found.substr(0, wanted.size()), wanted) << "of the map:\n" << text << "\n-> " << found;
  }
  const Dump ranks = theirs({{"r0/x", {2, 6}, count(12)},
                             {"r2/x", {2, 6}, count(12)},
                             {"s0/x", {2, 6}, count(12)},
                             {"s1/x", {2, 5}, count(10)},
                             {"i0", {1}, {1}, DType::i32},
                             {"i1", {1}, {1}, DType::i32},
                             {"q987654321987654321/x", {1}, {1}}});
  for (const auto& [text, wanted] : std::vector<std::pair<std::string, std::string>>{
           {"r{R}/x -> a : sum R", "m:1: r0/x: a rank is missing; wanted R = 1, found 2 of 3 tensors"},
           {"s{R}/x -> a : sum R", "s1/x: ranks of two kinds; wanted F32 [2, 6] as in s0/x, found F32 [2, 5]"},
           {"i{R} -> a : sum R", "m:1: i0: a sum of what is no float"},
           {"q{R}/x -> a : sum R", "m:1: q987654321987654321/x: {R} is no number of a rank"}}) {
    EXPECT_EQ(refusal([&, &t = text] { map_dump(ranks, t + rest); }).substr(0, wanted.size()), wanted);
  }
}

TEST_F(Maps, BlockTablesAreNotBelieved) {
  const Paged p = paged({2, 0, 1});
  const std::vector<std::pair<V, std::string>> bad = {
      {{3, 0, 1, -1}, "table [0]: a page outside of the cache; wanted 0 .. 2, found 3"},
      {{2, -1, 1, -1}, "table [1]: a page outside of the cache; wanted 0 .. 2, found -1"},
      {{2, 2, 1, -1}, "table [1]: a page twice in one sequence; wanted each page once, found 2"},
  };
  for (const auto& [table, wanted] : bad) {
    const Dump d = theirs({{"kv.0", {2, 3, 2, 2, 1}, p.cache}, {"table", {2, 2}, table, DType::i32}}, kTwoPrompts);
    EXPECT_EQ(refusal([&] { map_dump(d, kPaged); }).substr(0, wanted.size()), wanted);
  }
  auto with = [&](S table_shape, V table, const Json& manifest) {
    return theirs({{"kv.0", {2, 3, 2, 2, 1}, p.cache}, {"table", std::move(table_shape), std::move(table), DType::i32}},
                  manifest);
  };
  EXPECT_NE(refusal([&] {
              map_dump(with({4}, p.table, kTwoPrompts), kPaged);
            }).find("the block table table; wanted [sequences, blocks]"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              map_dump(with({4, 1}, p.table, kTwoPrompts), kPaged);
            }).find("too short; wanted pages for 3 positions, found 1 pages of 2 slots"),
            std::string::npos);
  EXPECT_NE(refusal([&] {
              map_dump(with({2, 2}, p.table, Json::object()), kPaged);
            }).find("the number of valid positions is not known"),
            std::string::npos);
  // Said in the rule, nobody needs the manifest.
  const std::string said = std::string(kPaged).substr(0, std::string(kPaged).size() - 1) + ", position < 2\n";
  EXPECT_EQ(values(map_dump(with({2, 2}, p.table, Json::object()), said), "prompt0/state/after_prefill/layer.0/k"),
            V({1, 11, 2, 12}));
}

}  // namespace
}  // namespace assay

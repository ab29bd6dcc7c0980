// What maps refuse, with line or tensor.
#include "dumps/map.h"

#include <gtest/gtest.h>

#include <fstream>

#include "dumps/map_test_dumps.h"
#include "dumps/schema_for_tests.h"

namespace assay {
namespace {

using namespace testing_maps;

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
      {"a -> b | c : (page:4 slot:2 | f) d => position d | position f d, pages bt",
       "m:1: pages without their axes; wanted page and slot among theirs, position among ours, found no page in part 2"},
      {"kv -> prompt{P}/k | prompt7/v : (1|1) page slot d => position d | position d, pages bt[P], position < 4",
       "m:1: [P] of a table is not among ours"},
      {"a -> b{page} : page slot d => position d, pages t", "m:1: {page} of ours becomes position"},
      {"x -> prompt{batch}/a | prompt9/b : batch token (f:4|g) => token f | token g",
       "m:1: the axis \"batch\" of theirs is not among ours"},
      {"r{R}/x -> a | b : token (f|g) => token (R f) | token g", "m:1: {R} has no use"},
      {"let d = 2\na -> b : token f", "m:1: the size \"d\" has no use"},
      {"a -> b : token 1d", "m:1: the axes can't be read; wanted a blank behind an axis, found \"d\""},
      {"a -> b : token f:2x", "m:1: the axes can't be read; wanted a blank behind an axis, found \"x\""},
      {"a -> b\nabsent *", "m:2: absent fits every tensor"},
      {"a -> b\nabsent */*", "m:2: absent fits every tensor"},
      {"a -> b\nabsent */layer.*/q_nrom", "m:2: absent ends with no known phase"},
      {"a -> b : token " + std::string(40, '(') + "x" + std::string(40, ')'), "m:1: parentheses are nested too deep"},
  };
  for (const auto& [text, wanted] : bad) {
    const std::string found = refusal([&t = text] { DumpMap::parse(t, "m"); });
    EXPECT_EQ(found.substr(0, wanted.size()), wanted) << "of the map:\n" << text << "\n-> " << found;
  }
  EXPECT_EQ(refusal([] { DumpMap::parse("let d = 2\nlet e = d\na -> b : t f:e\nabsent */layer.*/q_*", "m"); }), "accepted");
  EXPECT_EQ(refusal([] { DumpMap::read("/dev/zero"); }).substr(0, 31), "/dev/zero: too long for a map; ");
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

TEST_F(Maps, ARankThatOneTensorLacksIsMissing) {
  const Dump d = theirs({{"r0/h.0", {1}, {1}}, {"r1/h.0", {1}, {2}}, {"r0/h.2", {1}, {3}}});
  for (const char* how : {"sum", "same"}) {
    EXPECT_EQ(refusal([&] { map_dump(d, std::string("r{R}/h.{L} -> layer.{L}/o_proj : ") + how + " R"); }),
              "m:1: r0/h.2: a rank is missing; wanted R = 1, found 1 of 2 tensors. R = 1 is there as \"r1/h.0\"");
  }
}

TEST_F(Maps, AbsurdSizesAreRefusedBeforeMemoryIs) {
  const auto repeated = [](const char* axis, const std::string& range, int times) {
    std::string out = std::string(axis) + "[" + range;
    for (int i = 1; i < times; i++) out += "," + range;
    return out + "] ";
  };
  // 2^62 elements of four bytes: no 64 bits hold their number.
  const Dump d = theirs({{"x", {128, 128, 64}, count(1 << 20)}});
  const std::string all = repeated("a", "0:128", 1 << 14) + repeated("b", "0:128", 1 << 14) +
                          repeated("c", "0:64", 1 << 14);
  EXPECT_EQ(refusal([&] { map_dump(d, "x -> y : " + all + "=> a b c"); }).substr(0, 47),
            "m:1: x: the tensor \"y\" would be absurdly large;");
  const Dump small = theirs({{"x", {16, 16}, count(256)}});
  const std::string many = repeated("a", "0:16", 2048) + repeated("b", "0:16", 2048);
  EXPECT_EQ(refusal([&] { map_dump(small, "x -> y : " + many + "=> a b"); }).substr(0, 47),
            "m:1: x: the tensor \"y\" would be absurdly large;");
}

TEST_F(Maps, ALengthBelowZeroIsNoLength) {
  const Paged p = paged({2, 0, 1});
  const Dump d = theirs({{"kv.0", {2, 3, 2, 2, 1}, p.cache},
                         {"table", {2, 2}, p.table, DType::i32},
                         {"len", {2}, {3, -1}, DType::i32}},
                        kTwoPrompts);
  const std::string map = std::string(kPaged).substr(0, std::string(kPaged).size() - 1) + ", position < len[P]\n";
  EXPECT_EQ(refusal([&] { map_dump(d, map); }), "len [1]: a negative length; wanted 0 or more, found -1");
}

TEST_F(Maps, WhatIsMappedIsNotAbsent) {
  const Dump d = theirs({{"e", {1}, {1}}});
  EXPECT_EQ(refusal([&] { map_dump(d, "e -> prompt0/prefill/0/embed\nabsent */embed\n"); }),
            "m:2: \"*/embed\" is said to be absent, and fits a mapped tensor; wanted names that nothing becomes, found "
            "\"prompt0/prefill/0/embed\" from \"e\"");
}

TEST_F(Maps, WritingSparesTheInputAndWhatWasThere) {
  const DumpMap map = DumpMap::parse("r{R}/x -> prompt0/prefill/0/embed : same R", "same.map");
  DumpWriter::Options o;
  o.dir = f / "out";
  o.sync = false;
  o.replace = true;
  const Dump equal = theirs({{"r0/x", {2}, {1, 2}}, {"r1/x", {2}, {1, 2}}});
  EXPECT_TRUE(Mapping(equal, map).write(o).empty());
  const std::string before = Dump::open(f / "out").digest();
  DumpWriter::Options onto = o;
  onto.dir = f / "theirs" / "." / "..";
  onto.dir /= "theirs";
  EXPECT_NE(refusal([&] { Mapping(equal, map).write(onto); }).find("the output would replace its own input"),
            std::string::npos);
  EXPECT_TRUE(Dump::open(f / "theirs").verify_hashes().empty());
  const Dump other = theirs({{"r0/x", {2}, {1, 2}}, {"r1/x", {2}, {1, 3}}});
  const Mapping differing(other, map);
  const std::vector<std::string> faults = differing.write(o);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults, differing.faults());
  EXPECT_EQ(Dump::open(f / "out").digest(), before) << "the older dump is gone";
  // The verdict is a record, and the text is made of it.
  const Schema schema = Schema::read(std::filesystem::path(ASSAY_DUMPS_DIR) / "schemas/record.schema.json");
  const std::vector<Json> failed = map_records(differing, other, "same.map", "out", faults);
  for (const Json& r : failed) EXPECT_EQ(schema.check(r), "") << r.dump();
  EXPECT_EQ(failed.back()["exit_code"], 1);
  EXPECT_NE(render_map(failed, false).find("FAIL     1 tensors whose replicas differ; nothing was written\n  " + faults[0]),
            std::string::npos);
  const std::vector<Json> good = map_records(Mapping(equal, map), equal, "my map", "my out", {});
  EXPECT_EQ(good.back()["exit_code"], 0);
  EXPECT_NE(render_map(good, false).find("assay compare BASE 'my out' --preset f32\n"), std::string::npos);
}

}  // namespace
}  // namespace assay

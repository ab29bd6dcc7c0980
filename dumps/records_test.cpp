// Every record that a comparison writes fits schemas/record.schema.json, and what the schema requires is there.
#include <gtest/gtest.h>

#include <fstream>

#include "dumps/compare_test_dumps.h"
#include "dumps/schema_for_tests.h"

namespace assay {
namespace {

using namespace testing_dumps;
using Json = nlohmann::ordered_json;

Schema schema() { return Schema::read(std::filesystem::path(ASSAY_DUMPS_DIR) / "schemas/record.schema.json"); }

TEST(Records, FitTheirSchema) {
  Folder f;
  std::vector<double> odd = wave(32);
  odd[3] = kNaN;
  odd[5] = -kInf;
  const std::vector<Values> common = {
      {"prompt0/prefill/0/embed", {4, 8}, wave(32)},
      {"prompt0/prefill/0/layer.0/q_rope", {4, 8}, odd},
      {"prompt0/prefill/0/logits", {4, 8}, wave(32, 2)},
      {"prompt0/decode/0/logits", {1, 8}, wave(8)},
      {"prompt0/decode/1/logits", {1, 8}, wave(8)},
      {"prompt0/state/after_prefill/layer.0/k", {2, 4, 2}, wave(16)},
      {"foreign name", {3}, {1, 2, 3}, DType::i64},
      {"prompt0/ids", {4}, {1, 2, 3, 4}, DType::i64},
  };
  std::vector<Values> a = common, b = common;
  a[6].name = b[6].name = "foreign_name";
  b[0].x[9] += 0.25;
  b[1].x = wave(32);
  b[2].x[1] = kInf;
  b[6].x[2] = 4;
  a.push_back({"prompt0/prefill/0/final_norm", {1, 4}, wave(4)});
  b.push_back({"prompt0/prefill/0/mine", {1, 4}, wave(4)});
  a.push_back({"prompt0/prefill/0/logits_top_ids", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 0}, DType::i64});
  a.push_back({"prompt0/greedy_ids", {3}, {1, 2, 3}, DType::i64});
  b.push_back({"prompt0/greedy_ids", {3}, {1, 5, 3}, DType::i64});
  const Dump base = write_dump(f / "b", a), target = write_dump(f / "t", b);
  const Schema s = schema();
  size_t kinds = 0;
  for (Level level : {Level::greedy_prefix, Level::max_rel, Level::byte_exact}) {
    CompareOptions o = at(level, 1e-3);
    o.extra = true;
    const CompareResult r = compare(base, target, o);
    EXPECT_EQ(r.exit_code(), 1);
    std::map<std::string, int> seen;
    for (const Json& j : to_records(r, base, target)) {
      EXPECT_EQ(s.check(j), "") << j.dump();
      seen[j["record"]]++;
      const Json back = Json::parse(j.dump());
      EXPECT_EQ(back, j);
    }
    kinds = std::max(kinds, seen.size());
    EXPECT_EQ(seen["compare"], 1);
    EXPECT_EQ(seen["summary"], 1);
    EXPECT_EQ(seen["greedy"], 1);
    EXPECT_EQ(size_t(seen["tensor"]), r.records.size());
  }
  EXPECT_GE(kinds, 5u) << "header, tensors, greedy, top-k, summary";
  // The validator bites: a record with a missing and one with an unknown key.
  Json bad = to_records(compare(base, base, at(Level::max_rel, 1)), base, base).back();
  EXPECT_EQ(s.check(bad), "");
  Json more = bad;
  more["surprise"] = 1;
  EXPECT_NE(s.check(more), "");
  bad.erase("compared");
  EXPECT_NE(s.check(bad), "");
}

}  // namespace
}  // namespace assay

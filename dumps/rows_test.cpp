// Planted fault E4 (a padding row compared as a token) and its relatives: every row has a known owner, or the dump is refused.
#include "dumps/rows.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "dumps/error.h"
#include "dumps/writer.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

using Table = std::vector<std::array<int64_t, 3>>;

float value(int64_t prompt, int64_t position, int64_t column) { return float(100 * prompt + 10 * position + column); }

class Rows : public testing::Test {
 protected:
  // Two prompts, of 3 and 2 tokens. pass0: the first two rows of prompt 0, all of prompt 1, one row of padding. pass1: the
  // rest of prompt 0 with a rejected draft. pass2: one decode step of both. Logits of the last rows only.
  const Table pass0 = {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}, {0, 1, 0}, {-1, -1, 1}};
  const Table pass1 = {{0, 2, 0}, {0, 3, 2}};
  const Table pass2 = {{1, 2, 0}, {0, 3, 0}};
  const Table logits0 = {{1, 1, 0}}, logits1 = {{0, 2, 0}};

  fs::path dir = fs::path(testing::TempDir()) / ("assay_rows_" + std::to_string(getpid()));
  void TearDown() override { fs::remove_all(dir); }

  static void put(DumpWriter& w, const std::string& name, const Table& rows, int64_t order) {
    std::vector<float> v;
    for (const auto& r : rows) {
      for (int c = 0; c < 4; ++c) v.push_back(r[2] == 0 ? value(r[0], r[1], c) : -1.0f);
    }
    TensorDecl d;
    d.name = name;
    d.shape = {int64_t(rows.size()), 4};
    d.order = order;
    w.write(d, v.data());
  }
  static void put_table(DumpWriter& w, const std::string& name, const Table& rows) {
    TensorDecl d;
    d.name = name;
    d.dtype = DType::i64;
    d.shape = {int64_t(rows.size()), 3};
    w.write(d, rows.data());
  }

  /// Tables as given, tensors always as the true passes ran.
  Dump write(const Table& t0, const Table& t1, const Table& t2, int prompts = 2) {
    DumpWriter::Options o;
    o.dir = dir;
    o.replace = true;
    o.sync = false;
    DumpWriter w(o);
    for (const char* phase : {"embed", "layer.0/q_proj"}) {
      const int64_t order = phase[0] == 'e' ? 0 : 1;
      put(w, std::string("pass0/") + phase, pass0, order);
      put(w, std::string("pass1/") + phase, pass1, order);
      put(w, std::string("pass2/") + phase, pass2, order);
    }
    put(w, "pass0/logits", logits0, 2);
    put(w, "pass1/logits", logits1, 2);
    put(w, "pass2/logits", pass2, 2);
    put(w, "elsewhere", pass2, 0);
    put_table(w, "pass0/rows", t0);
    put_table(w, "pass1/rows", t1);
    put_table(w, "pass2/rows", t2);
    put_table(w, "pass0/logits_rows", logits0);
    put_table(w, "pass1/logits_rows", logits1);
    w.manifest()["rows"] = {{"pass0", "pass0/rows"},
                            {"pass1", "pass1/rows"},
                            {"pass2", "pass2/rows"},
                            {"pass0/logits", "pass0/logits_rows"},
                            {"pass1/logits", "pass1/logits_rows"}};
    w.manifest()["prompts"] = nlohmann::ordered_json::array();
    for (int i = 0; i < prompts; ++i) {
      w.manifest()["prompts"].push_back({{"ids", std::vector<int64_t>(i == 0 ? 3 : 2, 1)}});
    }
    w.finish();
    return Dump::open(dir);
  }

  void expect_refused(const char* what, const Table& t0, const Table& t1, const Table& t2, const char* says,
                      int prompts = 2) {
    const Dump d = write(t0, t1, t2, prompts);
    try {
      align_rows(d);
      ADD_FAILURE() << what << ": accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::malformed) << what;
      EXPECT_NE(std::string(e.what()).find("unknown owner"), std::string::npos) << what << ": " << e.what();
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << what << ": " << e.what();
    }
  }
};

TEST_F(Rows, ChunkedBatchedPaddedAndSpeculativePassesAlign) {
  const Dump d = align_rows(write(pass0, pass1, pass2));
  std::vector<std::string> names;
  for (const DumpTensor& t : d.tensors()) names.push_back(t.name);
  EXPECT_EQ(names, (std::vector<std::string>{
                       "prompt0/prefill/0/embed", "prompt0/prefill/0/layer.0/q_proj", "prompt0/prefill/0/logits_last",
                       "prompt0/decode/0/embed", "prompt0/decode/0/layer.0/q_proj", "prompt0/decode/0/logits",
                       "prompt1/prefill/0/embed", "prompt1/prefill/0/layer.0/q_proj", "prompt1/prefill/0/logits_last",
                       "prompt1/decode/0/embed", "prompt1/decode/0/layer.0/q_proj", "prompt1/decode/0/logits",
                       "elsewhere"}));
  const auto expect = [&](const char* name, int64_t prompt, std::vector<int64_t> positions) {
    const DumpTensor* t = d.find(name);
    ASSERT_NE(t, nullptr) << name;
    ASSERT_EQ(t->shape, (std::vector<int64_t>{int64_t(positions.size()), 4})) << name;
    for (size_t r = 0; r < positions.size(); ++r) {
      float v[4];
      std::memcpy(v, t->data + r * 16, 16);
      for (int c = 0; c < 4; ++c) EXPECT_EQ(v[c], value(prompt, positions[r], c)) << name << " row " << r;
      EXPECT_EQ(t->row_hashes[r], xxh3_64(v, 16));
    }
  };
  expect("prompt0/prefill/0/layer.0/q_proj", 0, {0, 1, 2});
  expect("prompt1/prefill/0/embed", 1, {0, 1});
  expect("prompt0/decode/0/embed", 0, {3});
  expect("prompt1/decode/0/logits", 1, {2});
  expect("prompt0/prefill/0/logits_last", 0, {2});
  EXPECT_TRUE(d.verify_hashes().empty());
  EXPECT_FALSE(d.manifest().contains("rows"));
}

TEST_F(Rows, PaddingRowAsTokenIsRefused) {  // E4
  Table t = pass0;
  t[4] = {0, 1, 0};
  expect_refused("padding called a token", t, pass1, pass2, "pass0/embed row 4");
}

TEST_F(Rows, EveryOtherUnknownOwnerIsRefused) {
  Table t = pass0;
  t.pop_back();
  expect_refused("table shorter than the tensor", t, pass1, pass2, "other rows than the tensor");
  t = pass0;
  t.push_back({-1, -1, 1});
  expect_refused("table longer than the tensor", t, pass1, pass2, "other rows than the tensor");
  t = pass0;
  t[1] = {7, 0, 0};
  expect_refused("prompt not declared", t, pass1, pass2, "pass0/rows row 1");
  expect_refused("prompt 1 not declared", pass0, pass1, pass2, "does not declare", 1);
  t = pass0;
  t[1] = {-1, 0, 0};
  expect_refused("negative prompt", t, pass1, pass2, "does not declare");
  t = pass0;
  t[0] = {0, -1, 0};
  expect_refused("negative position", t, pass1, pass2, "negative position");
  t = pass0;
  t[0] = {0, 0, 3};
  expect_refused("unknown kind", t, pass1, pass2, "unknown kind");
  t = pass0;
  t[3] = {0, 0, 0};
  expect_refused("a position twice in a pass", t, pass1, pass2, "a second time");
  t = pass1;
  t[0] = {0, 1, 0};
  expect_refused("a position twice in two passes", pass0, t, pass2, "a second time");
  t = pass0;
  t[3] = {0, 1, 1};
  expect_refused("a token called padding", t, pass1, pass2, "position 1 is in no pass");
  t = pass1;
  t[1] = {0, 3, 0};
  expect_refused("a rejected draft called a token", pass0, t, pass2, "a second time");
}

TEST_F(Rows, OddTablesAreRefused) {
  const auto refused = [&](nlohmann::ordered_json rows) {
    DumpWriter::Options o;
    o.dir = dir;
    o.replace = true;
    o.sync = false;
    DumpWriter w(o);
    put(w, "pass0/embed", pass2, 0);
    put_table(w, "pass0/rows", pass2);
    w.manifest()["rows"] = std::move(rows);
    w.manifest()["prompts"] = {{{"ids", {1, 1, 1}}}, {{"ids", {1, 1}}}};
    w.finish();
    try {
      align_rows(Dump::open(dir));
      return false;
    } catch (const Error& e) {
      return e.kind() == ErrorKind::malformed;
    }
  };
  EXPECT_FALSE(refused({{"pass0", "pass0/rows"}}));
  EXPECT_TRUE(refused({{"pass0", "absent"}}));
  EXPECT_TRUE(refused({{"pass0", "pass0/embed"}})) << "not I64 [n, 3]";
  EXPECT_TRUE(refused({{"pass0", 3}}));
  EXPECT_TRUE(refused({{"pass0/embed", "pass0/rows"}})) << "no pass in front";
  EXPECT_TRUE(refused("pass0/rows"));
}

TEST_F(Rows, WithoutTablesNothingChanges) {
  DumpWriter::Options o;
  o.dir = dir;
  o.sync = false;
  {
    DumpWriter w(o);
    put(w, "prompt0/prefill/0/embed", pass2, 0);
    w.finish();
  }
  const Dump d = Dump::open(dir);
  const Dump a = align_rows(d);
  EXPECT_EQ(a.tensors().size(), 1u);
  EXPECT_EQ(a.tensors()[0].data, d.tensors()[0].data);
}

}  // namespace
}  // namespace assay

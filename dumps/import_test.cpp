#include "dumps/import.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "dumps/digest.h"
#include "dumps/dump.h"
#include "dumps/error.h"
#include "dumps/inspect.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

class Import : public testing::Test {
 protected:
  fs::path dir = fs::path(testing::TempDir()) / ("assay_import_" + std::to_string(getpid()));
  ImportOptions options;
  void SetUp() override {
    fs::remove_all(dir);
    fs::create_directories(dir);
    options.sync = false;
  }
  void TearDown() override { fs::remove_all(dir); }

  void file(const std::string& name, const std::string& header, const std::vector<float>& data) {
    std::string out(8, '\0');
    for (int i = 0; i < 8; ++i) out[size_t(i)] = static_cast<char>(uint64_t(header.size()) >> (8 * i));
    out += header;
    out.append(reinterpret_cast<const char*>(data.data()), data.size() * 4);
    fs::create_directories((dir / name).parent_path());
    std::ofstream(dir / name, std::ios::binary) << out;
  }
  static std::string entry(const std::string& tensor, int begin, int end) {
    return "\"" + tensor + R"(":{"dtype":"F32","shape":[)" + std::to_string((end - begin) / 4) + R"(],"data_offsets":[)" +
           std::to_string(begin) + "," + std::to_string(end) + "]}";
  }
  void expect_error(ErrorKind kind, const char* says, const std::vector<fs::path>& paths, const fs::path& out) {
    try {
      import_safetensors(paths, out, options);
      ADD_FAILURE() << says << ": accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), kind) << e.what();
      EXPECT_NE(std::string(e.what()).find(says), std::string::npos) << e.what();
    }
  }
};

TEST_F(Import, BareFilesGetHashesAndOrder) {
  file("in/a.safetensors", "{" + entry("prompt0/decode/0/embed", 0, 8) + "," + entry("prompt0/prefill/0/logits", 8, 16) + "}",
       {1, 2, 3, 4});
  file("in/b.safetensors", "{" + entry("prompt0/prefill/0/embed", 0, 8) + "}", {5, 6});
  file("other.safetensors", "{" + entry("their.name", 0, 4) + "}", {7});
  std::ofstream(dir / "blocks.json") << R"({"engine": {"name": "theirs"}, "not_materialised": ["prompt0/prefill/0/layer.0/q"]})";
  options.manifest = dir / "blocks.json";
  EXPECT_EQ(import_safetensors({dir / "in", dir / "other.safetensors"}, dir / "out", options), 4);
  const Dump d = Dump::open(dir / "out");
  EXPECT_EQ(d.kind(), Dump::Kind::dump);
  EXPECT_TRUE(d.has_hashes());
  EXPECT_TRUE(d.verify_hashes().empty());
  ASSERT_EQ(d.tensors().size(), 4u);
  EXPECT_EQ(d.tensors()[0].name, "prompt0/prefill/0/embed");
  EXPECT_EQ(d.tensors()[1].name, "prompt0/prefill/0/logits");
  EXPECT_EQ(d.tensors()[2].name, "prompt0/decode/0/embed");
  EXPECT_EQ(d.tensors()[3].name, "their.name");
  const float want[2] = {5, 6};
  EXPECT_EQ(d.tensors()[0].xxh3_128, xxh3_128_hex(want, 8));
  EXPECT_EQ(d.manifest()["engine"]["name"], "theirs");
  EXPECT_TRUE(d.is_not_materialised("prompt0/prefill/0/layer.0/q"));
  EXPECT_EQ(d.tensors()[0].stats->max, 6.0);

  options.mode = CaptureMode::hash;
  import_safetensors({dir / "in", dir / "other.safetensors"}, dir / "hashes", options);
  EXPECT_EQ(Dump::open(dir / "hashes").find("their.name")->xxh3_128, d.find("their.name")->xxh3_128);
}

TEST_F(Import, RefusesWhatItMust) {
  file("in/a.safetensors", "{" + entry("a", 0, 8) + "}", {1, 2});
  file("again.safetensors", "{" + entry("a", 0, 8) + "}", {1, 2});
  file("blank.safetensors", "{" + entry("a b", 0, 8) + "}", {1, 2});
  file("cut.safetensors", "{" + entry("a", 0, 12) + "}", {1, 2});
  expect_error(ErrorKind::malformed, "appears twice", {dir / "in", dir / "again.safetensors"}, dir / "out");
  expect_error(ErrorKind::malformed, "can't hold", {dir / "blank.safetensors"}, dir / "out");
  expect_error(ErrorKind::malformed, "outside the file", {dir / "cut.safetensors"}, dir / "out");
  expect_error(ErrorKind::usage, "its own input", {dir / "in"}, dir / "in");
  expect_error(ErrorKind::usage, "its own input", {dir / "in" / "a.safetensors"}, dir / "in");
  expect_error(ErrorKind::usage, "no input", {}, dir / "out");
  EXPECT_FALSE(fs::exists(dir / "out" / "manifest.json"));
  import_safetensors({dir / "in"}, dir / "out", options);
  expect_error(ErrorKind::usage, "finished dump", {dir / "in"}, dir / "out");
  std::ofstream(dir / "blocks.json") << R"({"tensors": []})";
  options.manifest = dir / "blocks.json";
  expect_error(ErrorKind::malformed, "belongs to the format", {dir / "in"}, dir / "out2");
}

TEST_F(Import, ADumpWithoutHashesKeepsItsManifest) {
  file("in/part-0000.safetensors", "{" + entry("z", 0, 8) + "," + entry("a", 8, 16) + "}", {1, 2, 3, 4});
  const auto size = fs::file_size(dir / "in" / "part-0000.safetensors");
  const Json m = {
      {"format", {{"name", "assay-dump"}, {"version", 1}}},
      {"capture", {{"mode", "full"}, {"filter", "a,z"}}},
      {"engine", {{"name", "small"}}},
      {"files", {{{"name", "part-0000.safetensors"}, {"bytes", size}}}},
      {"tensors",
       {{{"name", "z"}, {"dtype", "F32"}, {"shape", {2}}, {"order", 3}, {"file", "part-0000.safetensors"}, {"axes", {"hidden"}}},
        {{"name", "a"}, {"dtype", "F32"}, {"shape", {2}}, {"order", 5}, {"file", "part-0000.safetensors"}}}}};
  std::ofstream(dir / "in" / "manifest.json") << m.dump();
  EXPECT_FALSE(Dump::open(dir / "in").has_hashes());
  import_safetensors({dir / "in"}, dir / "out", options);
  const Dump d = Dump::open(dir / "out");
  EXPECT_TRUE(d.has_hashes());
  EXPECT_EQ(d.tensors()[0].name, "z") << "order 3 before order 5";
  EXPECT_EQ(d.tensors()[0].axes, (std::vector<std::string>{"hidden"}));
  EXPECT_EQ(d.manifest()["engine"]["name"], "small");
  EXPECT_EQ(d.manifest()["capture"]["filter"], "a,z");
  // Values that disagree with their hashes are not imported again.
  std::fstream f(dir / "out" / "part-0000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  f.seekp(-1, std::ios::end);
  f.put('\x33');
  f.close();
  expect_error(ErrorKind::malformed, "disagree with their hashes", {dir / "out"}, dir / "out2");
}

TEST_F(Import, MergedDumpsClaimNothingFalse) {
  const std::string norm = "prompt0/prefill/0/layer.0/q_norm";
  file("a.safetensors", "{" + entry("a", 0, 8) + "}", {1, 2});
  file("b.safetensors", "{" + entry(norm, 0, 8) + "}", {3, 4});
  file("c.safetensors", "{" + entry("c", 0, 8) + "}", {5, 6});
  for (const char* name : {"a", "b"}) import_safetensors({dir / (std::string(name) + ".safetensors")}, dir / name, options);
  const auto change = [&](const char* dump, const std::function<void(Json&)>& how) {
    const fs::path m = dir / dump / "manifest.json";
    Json j = Json::parse(std::ifstream(m));
    how(j);
    std::ofstream(m) << j.dump();
  };
  // Two imports, one of them mapped: of what a whole is made only its own import says.
  change("a", [](Json& j) { j["mapped"] = {{"map", "x.map"}}; });
  import_safetensors({dir / "a", dir / "b"}, dir / "both", options);
  const Dump both = Dump::open(dir / "both");
  EXPECT_EQ(both.manifest()["imported"]["sources"], Json({"a", "b"}));
  EXPECT_FALSE(both.manifest().contains("mapped"));
  EXPECT_FALSE(both.manifest()["capture"].contains("filter"));
  // A filter of all inputs, or none.
  change("a", [](Json& j) { j["capture"]["filter"] = "a*"; });
  import_safetensors({dir / "a", dir / "b"}, dir / "half", options);
  EXPECT_FALSE(Dump::open(dir / "half").manifest()["capture"].contains("filter"));
  import_safetensors({dir / "a", dir / "c.safetensors"}, dir / "bare", options);
  EXPECT_FALSE(Dump::open(dir / "bare").manifest()["capture"].contains("filter"));
  change("b", [](Json& j) { j["capture"]["filter"] = "q_norm"; });
  import_safetensors({dir / "a", dir / "b"}, dir / "filtered", options);
  EXPECT_EQ(Dump::open(dir / "filtered").manifest()["capture"]["filter"], "a*,q_norm");
  // What one excuses the other may not hold, globs included.
  change("a", [](Json& j) { j["not_materialised"] = {"*/q_norm"}; });
  expect_error(ErrorKind::malformed, "listed as not materialised", {dir / "a", dir / "b"}, dir / "out");
  EXPECT_FALSE(fs::exists(dir / "out"));
  // A dump that excuses what it holds is refused itself.
  change("b", [](Json& j) { j["not_materialised"] = {"*/q_norm"}; });
  expect_error(ErrorKind::malformed, "is there nevertheless", {dir / "b"}, dir / "out");
}

TEST_F(Import, InspectSaysWhatIsThere) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  file("in/a.safetensors", "{" + entry("prompt0/prefill/0/layer.0/attn_norm", 0, 8) + "," +
                               entry("prompt0/prefill/0/layer.1/attn_norm", 8, 16) + "," +
                               entry("prompt0/state/after_prefill/layer.0/k", 16, 24) + "}",
       {1, -2, nan, 4, 5, 6});
  import_safetensors({dir / "in"}, dir / "out", options);
  for (const fs::path& p : {dir / "in", dir / "out", dir / "in" / "a.safetensors"}) {
    std::ostringstream text, json;
    EXPECT_TRUE(inspect(p, text));
    EXPECT_NE(text.str().find("3 tensors, 24 B"), std::string::npos) << text.str();
    EXPECT_NE(text.str().find("1 VALUES"), std::string::npos) << text.str();
    EXPECT_NE(text.str().find("layer.1/attn_norm  1"), std::string::npos) << text.str();
    InspectOptions o;
    o.json = o.verify = o.tensors = true;
    EXPECT_TRUE(inspect(p, json, o));
    const Json facts = Json::parse(json.str());
    EXPECT_EQ(facts["tensors"], 3);
    EXPECT_EQ(facts["bytes"], 24);
    EXPECT_EQ(facts["non_finite"], 1);
    EXPECT_EQ(facts["phases"][0]["phase"], "attn_norm");
    EXPECT_EQ(facts["phases"][0]["tensors"], 2);
    EXPECT_EQ(facts["phases"][0]["min"], -2.0);
    EXPECT_EQ(facts["phases"][1]["phase"], "state/k");
    EXPECT_EQ(facts["tensor_list"].size(), 3u);
    EXPECT_TRUE(facts["hash_faults"].empty());
  }
  const fs::path official = fs::path(ASSAY_DUMPS_DIR).parent_path() / "goldens" / "official" / "qwen3-odd";
  if (fs::exists(official)) {
    std::ostringstream text;
    EXPECT_TRUE(inspect(official, text));
    EXPECT_NE(text.str().find("f32 floor"), std::string::npos);
    EXPECT_NE(text.str().find("prompt1  5 ids, 9 greedy"), std::string::npos) << text.str();
  }
}

}  // namespace
}  // namespace assay

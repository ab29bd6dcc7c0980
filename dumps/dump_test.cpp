#include "dumps/dump.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <functional>

#include "dumps/error.h"

namespace assay {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

struct Folder {
  fs::path path;
  explicit Folder(const char* name) : path(fs::path(testing::TempDir()) / ("assay_dump_" + std::to_string(getpid()) + name)) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~Folder() { fs::remove_all(path); }
};

void put(const fs::path& p, const std::string& bytes) {
  fs::create_directories(p.parent_path());
  std::ofstream(p, std::ios::binary) << bytes;
}

std::string safetensors(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  for (int i = 0; i < 8; ++i) out[size_t(i)] = static_cast<char>(uint64_t(header.size()) >> (8 * i));
  return out + header + data;
}

template <typename T>
std::string bytes_of(const std::vector<T>& v) {
  return {reinterpret_cast<const char*>(v.data()), v.size() * sizeof(T)};
}

TensorDecl decl(std::string name, DType dtype, std::vector<int64_t> shape, int64_t order) {
  TensorDecl d;
  d.name = std::move(name);
  d.dtype = dtype;
  d.shape = std::move(shape);
  d.order = order;
  return d;
}

void write_small(const fs::path& dir, CaptureMode mode = CaptureMode::full) {
  DumpWriter::Options o;
  o.dir = dir;
  o.mode = mode;
  o.sync = false;
  o.replace = true;
  DumpWriter w(o);
  const std::vector<float> v = {1, 2, 3, 4, 5, 6};
  const std::vector<int64_t> ids = {7, 8};
  w.write(decl("prompt0/ids", DType::i64, {2}, 0), ids.data());
  w.write(decl("prompt0/decode/0/embed", DType::f32, {1, 3}, 0), v.data());
  w.write(decl("prompt0/prefill/0/logits_last", DType::f32, {1, 3}, 9), v.data() + 3);
  w.write(decl("prompt0/prefill/0/embed", DType::f32, {2, 3}, 0), v.data());
  w.manifest()["prompts"] = {{{"name", "prompt0"}, {"ids", ids}}};
  w.not_materialised({"prompt0/prefill/0/layer.0/up_proj"});
  w.finish();
}

TEST(Dump, ExecutionOrder) {
  Folder f("order");
  write_small(f.path);
  const Dump d = Dump::open(f.path);
  std::vector<std::string> names;
  for (const DumpTensor& t : d.tensors()) names.push_back(t.name);
  EXPECT_EQ(names, (std::vector<std::string>{"prompt0/prefill/0/embed", "prompt0/prefill/0/logits_last",
                                             "prompt0/decode/0/embed", "prompt0/ids"}));
  EXPECT_FALSE(d.partial());
  EXPECT_TRUE(d.noise_floor().empty());
}

struct Bad {
  const char* what;
  std::function<void(Json&)> change;
  const char* says;
};

TEST(Dump, RefusesHostileManifests) {
  Folder f("hostile");
  write_small(f.path);
  std::ifstream in(f.path / "manifest.json");
  const Json good = Json::parse(in);
  const auto at = [](Json& m, const char* name) -> Json& {
    for (Json& t : m["tensors"]) {
      if (t["name"] == name) return t;
    }
    throw std::logic_error("no such tensor");
  };
  const std::string embed = "prompt0/prefill/0/embed";
  const Bad table[] = {
      {"other format", [](Json& m) { m["format"]["name"] = "other"; }, "not a dump of this format"},
      {"newer version", [](Json& m) { m["format"]["version"] = 2; }, "unknown version"},
      {"version as text", [](Json& m) { m["format"]["version"] = "1"; }, "wanted an integer"},
      {"format is text", [](Json& m) { m["format"] = "assay-dump"; }, "wanted an object"},
      {"unfinished", [](Json& m) { m["unfinished"] = true; }, "unfinished"},
      {"no capture", [](Json& m) { m.erase("capture"); }, "\"capture\" is missing"},
      {"odd mode", [](Json& m) { m["capture"]["mode"] = "most"; }, "unknown capture mode"},
      {"partial is text", [](Json& m) { m["capture"]["partial"] = "yes"; }, "true or false"},
      {"values in a stats dump", [](Json& m) { m["capture"]["mode"] = "stats"; }, "has no values"},
      {"no files", [](Json& m) { m.erase("files"); }, "\"files\" is missing"},
      {"file not listed", [](Json& m) { m["files"] = Json::array(); }, "not listed"},
      {"file vanished", [](Json& m) { m["files"].push_back({{"name", "part-0001.safetensors"}, {"bytes", 1}}); }, "can't be opened"},
      {"file twice", [](Json& m) { m["files"].push_back(m["files"][0]); }, "listed twice"},
      {"file size", [](Json& m) { m["files"][0]["bytes"] = 9; }, "size disagrees"},
      {"file outside", [](Json& m) { m["files"][0]["name"] = "../other.safetensors"; }, "not the name of a file"},
      {"file absolute", [](Json& m) { m["files"][0]["name"] = "/etc/x.safetensors"; }, "not the name of a file"},
      {"tensors is an object", [](Json& m) { m["tensors"] = Json::object(); }, "wanted an array"},
      {"tensor twice", [](Json& m) { m["tensors"].push_back(m["tensors"][0]); }, "listed twice"},
      {"tensor dropped", [](Json& m) { m["tensors"].erase(m["tensors"].size() - 1); }, "is not listed in the manifest"},
      {"tensor invented", [](Json& m) { m["tensors"].push_back(m["tensors"][0]); m["tensors"].back()["name"] = "new"; }, "not in its file"},
      {"tensor is null", [](Json& m) { m["tensors"][0] = nullptr; }, "wanted an object"},
      {"name with control bytes", [](Json& m) { m["tensors"][0]["name"] = "a\x1b[2J"; }, "not a tensor name"},
      {"no name", [](Json& m) { m["tensors"][0].erase("name"); }, "\"name\" is missing"},
      {"other dtype", [&](Json& m) { at(m, embed.c_str())["dtype"] = "I32"; }, "disagree"},
      {"unknown dtype", [&](Json& m) { at(m, embed.c_str())["dtype"] = "F8"; }, "unknown dtype"},
      {"other shape", [&](Json& m) { at(m, embed.c_str())["shape"] = {3, 2}; }, "disagree"},
      {"negative shape", [&](Json& m) { at(m, embed.c_str())["shape"] = {-2, -3}; }, "out of range"},
      {"shape overflow", [&](Json& m) { at(m, embed.c_str())["shape"] = {int64_t{1} << 62, 8}; }, "overflows"},
      {"shape with a fraction", [&](Json& m) { at(m, embed.c_str())["shape"] = {2.0, 3}; }, "wanted an integer"},
      {"order negative", [&](Json& m) { at(m, embed.c_str())["order"] = -1; }, "out of range"},
      {"hash too short", [&](Json& m) { at(m, embed.c_str())["xxh3_128"] = "00"; }, "not a hash"},
      {"hash not hex", [&](Json& m) { at(m, embed.c_str())["xxh3_128"] = std::string(32, 'g'); }, "not a hash"},
      {"hash missing", [&](Json& m) { at(m, embed.c_str()).erase("xxh3_128"); }, "has no hashes"},
      {"rows_at missing", [&](Json& m) { at(m, embed.c_str()).erase("rows_at"); }, "has no hashes"},
      {"rows_at beyond the table", [&](Json& m) { at(m, embed.c_str())["rows_at"] = 4; }, "row hashes are missing"},
      {"rows_at absurd", [&](Json& m) { at(m, embed.c_str())["rows_at"] = INT64_MAX; }, "out of range"},
      {"hash table shorter", [](Json& m) { m["hashes"]["rows"] = 4; }, "hash table disagrees"},
      {"hash table absurd", [](Json& m) { m["hashes"]["rows"] = INT64_MAX; }, "out of range"},
      {"hash table elsewhere", [](Json& m) { m["hashes"]["file"] = "../rows.u64"; }, "wrong name"},
      {"hashes gone", [](Json& m) { m.erase("hashes"); }, "the dump has none"},
      {"half the statistics", [&](Json& m) { at(m, embed.c_str()).erase("rms"); }, "incomplete statistics"},
      {"statistics are text", [&](Json& m) { at(m, embed.c_str())["min"] = "0"; }, "wanted a number"},
      {"min above max", [&](Json& m) { at(m, embed.c_str())["min"] = 1e9; }, "impossible statistics"},
      {"non-finite count", [&](Json& m) { at(m, embed.c_str())["non_finite"] = 7; }, "out of range"},
      {"file of a tensor not listed", [&](Json& m) { at(m, embed.c_str())["file"] = "x.safetensors"; }, "not listed"},
      {"axes are no text", [&](Json& m) { at(m, embed.c_str())["axes"] = {1}; }, "wanted a string"},
      {"there and not materialised", [&](Json& m) { m["not_materialised"] = {embed}; }, "there nevertheless"},
      {"ids disagree", [](Json& m) { m["prompts"][0]["ids"] = {7, 9}; }, "disagree"},
      {"ids shorter", [](Json& m) { m["prompts"][0]["ids"] = {7}; }, "disagree"},
      {"prompts is text", [](Json& m) { m["prompts"] = "hello"; }, "wanted an array"},
  };
  for (const Bad& bad : table) {
    Json m = good;
    bad.change(m);
    put(f.path / "manifest.json", m.dump());
    try {
      Dump::open(f.path);
      ADD_FAILURE() << bad.what << ": accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::malformed) << bad.what;
      EXPECT_NE(std::string(e.what()).find(bad.says), std::string::npos) << bad.what << ": " << e.what();
    }
  }
  const std::pair<const char*, std::string> texts[] = {
      {"empty", ""},
      {"cut", good.dump().substr(0, 100)},
      {"array", "[]"},
      {"deep", std::string(1'000'000, '[')},
      {"deep objects", [] {
         std::string s;
         for (int i = 0; i < 10000; ++i) s += "{\"a\":";
         return s;
       }()},
      {"duplicate key", R"({"format": {"name": "assay-dump", "version": 1}, "format": {}})"},
      {"bad UTF-8", "{\"format\": \"\xff\"}"},
      {"huge number", R"({"format": {"name": "assay-dump", "version": 1e999}})"},
      {"neither dump nor case", R"({"case": "x"})"},
  };
  for (const auto& [what, text] : texts) {
    put(f.path / "manifest.json", text);
    try {
      Dump::open(f.path);
      ADD_FAILURE() << what << ": accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::malformed) << what;
    }
  }
  put(f.path / "manifest.json", good.dump());
  EXPECT_EQ(Dump::open(f.path).tensors().size(), 4u) << "the unchanged manifest is accepted";
}

TEST(Dump, FilesAgainstTheManifest) {
  Folder f("files");
  write_small(f.path);
  put(f.path / "stray.safetensors", safetensors("{}", ""));
  EXPECT_THROW(Dump::open(f.path), Error) << "a file that the manifest does not know";
  fs::remove(f.path / "stray.safetensors");
  EXPECT_NO_THROW(Dump::open(f.path));
  fs::resize_file(f.path / "hashes" / "rows.u64", 8);
  EXPECT_THROW(Dump::open(f.path), Error) << "a short hash table";
  fs::remove(f.path / "hashes" / "rows.u64");
  EXPECT_THROW(Dump::open(f.path), Error) << "no hash table";
}

TEST(Dump, VerifyHashesNamesTensorAndRow) {
  Folder f("verify");
  write_small(f.path);
  size_t offset = 0;
  {
    const Dump d = Dump::open(f.path);
    EXPECT_TRUE(d.verify_hashes().empty());
    const Safetensors s = Safetensors::open(f.path / "part-0000.safetensors");
    offset = size_t(s.find("prompt0/prefill/0/embed")->data - s.file()->data());
  }
  std::fstream file(f.path / "part-0000.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(std::streamoff(offset + 3 * 4));  // row 1, column 0
  file.put('\x55');
  file.close();
  const std::vector<std::string> faults = Dump::open(f.path).verify_hashes();
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_NE(faults[0].find("prompt0/prefill/0/embed"), std::string::npos) << faults[0];
  EXPECT_NE(faults[0].find("row 1 of 2"), std::string::npos) << faults[0];
}

TEST(Dump, BareFolderAndFile) {
  Folder f("bare");
  const std::string a = safetensors(R"({"model.layers.0.out":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})",
                                    bytes_of<float>({1, 2, 3, 4}));
  const std::string b = safetensors(R"({"prompt0/decode/0/logits":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},)"
                                    R"("prompt0/prefill/0/embed":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]}})",
                                    bytes_of<float>({1, 2, 3, 4}));
  put(f.path / "a.safetensors", a);
  put(f.path / "b.safetensors", b);
  const Dump d = Dump::open(f.path);
  EXPECT_EQ(d.kind(), Dump::Kind::bare);
  ASSERT_EQ(d.tensors().size(), 3u);
  EXPECT_EQ(d.tensors()[0].name, "prompt0/prefill/0/embed");
  EXPECT_EQ(d.tensors()[1].name, "prompt0/decode/0/logits");
  EXPECT_EQ(d.tensors()[2].name, "model.layers.0.out");
  EXPECT_EQ(d.tensors()[0].role, "phase");
  EXPECT_FALSE(d.partial());
  EXPECT_FALSE(d.has_hashes());
  EXPECT_EQ(Dump::open(f.path / "a.safetensors").tensors().size(), 1u);
  put(f.path / "c.safetensors", a);
  try {
    Dump::open(f.path);
    ADD_FAILURE() << "a tensor in two files";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("appears twice"), std::string::npos);
  }
  Folder empty("empty");
  EXPECT_THROW(Dump::open(empty.path), Error);
  EXPECT_THROW(Dump::open(empty.path / "absent"), Error);
}

TEST(Dump, OfficialCaseTakesTheLargerFloor) {
  Folder f("case");
  put(f.path / "golden.safetensors",
      safetensors(R"({"prompt0/prefill/0/logits_last":{"dtype":"F64","shape":[1,2],"data_offsets":[0,16]},)"
                  R"("prompt0/prefill/0/embed":{"dtype":"F64","shape":[1,1],"data_offsets":[16,24]}})",
                  bytes_of<double>({1, 2, 3})));
  const Json good = {
      {"case", "x"},
      {"noise_floor",
       {{"float32", {{"logits", {{"max_rel_row", 1e-6}}}, {"state/k", {{"max_rel_row", 3e-6}}}}}, {"bfloat16", Json::object()}}},
      {"noise_floor_other_prompts", {{"float32", {{"logits", {{"max_rel_row", 2e-6}}}, {"state/k", {{"max_rel_row", 1e-6}}}}}}}};
  put(f.path / "manifest.json", good.dump());
  const Dump d = Dump::open(f.path);
  EXPECT_EQ(d.kind(), Dump::Kind::official_case);
  EXPECT_TRUE(d.partial());
  EXPECT_EQ(d.mode(), CaptureMode::full);
  EXPECT_EQ(d.noise_floor().at("logits"), 2e-6);
  EXPECT_EQ(d.noise_floor().at("state/k"), 3e-6);
  EXPECT_EQ(d.tensors()[0].name, "prompt0/prefill/0/embed") << "the vocabulary gives the order";

  for (const auto& [what, change] : std::vector<std::pair<const char*, std::function<void(Json&)>>>{
           {"no floors", [](Json& m) { m.erase("noise_floor"); }},
           {"no float32", [](Json& m) { m["noise_floor"].erase("float32"); }},
           {"negative", [](Json& m) { m["noise_floor"]["float32"]["logits"]["max_rel_row"] = -1; }},
           {"text", [](Json& m) { m["noise_floor"]["float32"]["logits"]["max_rel_row"] = "NaN"; }},
           {"null", [](Json& m) { m["noise_floor"]["float32"]["logits"]["max_rel_row"] = nullptr; }},
           {"floors are a list", [](Json& m) { m["noise_floor"]["float32"] = {1, 2}; }}}) {
    Json m = good;
    change(m);
    put(f.path / "manifest.json", m.dump());
    EXPECT_THROW(Dump::open(f.path), Error) << what;
  }
  fs::remove(f.path / "manifest.json");
  EXPECT_THROW(Dump::open(f.path), Error) << "a case without its manifest is not a bare folder";
}

TEST(Dump, OpensEveryOfficialCaseOfTheRepository) {
  const fs::path cases = fs::path(ASSAY_DUMPS_DIR).parent_path() / "goldens" / "official";
  if (!fs::exists(cases)) GTEST_SKIP() << "dumps/ is built alone: no goldens beside it";
  int opened = 0;
  for (const fs::directory_entry& e : fs::directory_iterator(cases)) {
    if (!fs::exists(e.path() / "golden.safetensors")) continue;
    const Dump d = Dump::open(e.path());
    EXPECT_EQ(d.kind(), Dump::Kind::official_case) << e.path();
    EXPECT_GT(d.tensors().size(), 100u) << e.path();
    EXPECT_TRUE(d.noise_floor().contains("logits")) << e.path();
    EXPECT_NE(d.find("prompt0/greedy_ids"), nullptr) << e.path();
    ++opened;
  }
  EXPECT_GE(opened, 1);
}

}  // namespace
}  // namespace assay

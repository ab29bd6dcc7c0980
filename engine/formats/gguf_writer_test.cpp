#include "engine/formats/gguf_writer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <thread>

#include "dumps/error.h"
#include "engine/formats/gguf.h"
#include "engine/formats/test_files.h"

namespace assay {
namespace {

using namespace testing_files;
namespace fs = std::filesystem;

size_t files_in(const fs::path& dir) {
  return size_t(std::distance(fs::directory_iterator(dir), fs::directory_iterator()));
}

TEST(GgufWriter, EveryKindOfValueAndTensorIsReadBack) {
  TempDir dir;
  const fs::path path = dir / "a.gguf";
  GgufWriter w(path);
  w.string("general.architecture", "llama");
  w.u32("n", 7);
  w.f32("x", 0.1f);
  w.boolean("yes", true);
  w.strings("words", {"a", "", "\xc4\xa0t"});
  w.i32s("numbers", {-1, 2});
  const std::vector<float> vector = {1, 2, 3};
  const std::vector<uint8_t> blocks(2 * 34, 5);
  const size_t v = w.tensor("v", WeightType::f32, {3});
  const size_t m = w.tensor("m", WeightType::q8_0, {2, 32});
  w.begin();
  std::thread other([&] { w.write(m, 34, blocks.data() + 34, 34); });
  w.write(m, 0, blocks.data(), 34);
  w.write(v, 0, vector.data(), 12);
  other.join();
  EXPECT_FALSE(fs::exists(path));
  w.finish();
  EXPECT_EQ(files_in(path.parent_path()), 1u);
  EXPECT_EQ(fs::file_size(path), w.file_bytes());

  const GgufFile f = GgufFile::open(path);
  ASSERT_EQ(f.metadata().size(), 6u);
  EXPECT_EQ(f.metadata()[1].first, "n");  // in the order given
  EXPECT_EQ(f.integer("n", 0, 100), 7);
  EXPECT_EQ(f.number("x"), double(0.1f));
  EXPECT_EQ(f.boolean("yes"), true);
  EXPECT_EQ(f.strings("words"), (std::vector<std::string_view>{"a", "", "\xc4\xa0t"}));
  EXPECT_EQ(f.integers("numbers"), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(std::memcmp(f.find_tensor("v")->data, vector.data(), 12), 0);
  EXPECT_EQ(f.find_tensor("m")->shape, (std::vector<int64_t>{2, 32}));
  EXPECT_EQ(std::memcmp(f.find_tensor("m")->data, blocks.data(), 68), 0);
}

TEST(GgufWriter, EveryTensorTypeHasItsNumber) {
  TempDir dir;
  for (int i = 0; i <= int(WeightType::q6_k); i++) {
    const WeightType type = WeightType(i);
    GgufWriter w(dir / "t.gguf", true);
    const std::string data(3 * row_bytes(type, 512), '\0');
    w.tensor("w", type, {3, 512});
    w.begin();
    w.write(0, 0, data.data(), data.size());
    w.finish();
    EXPECT_EQ(GgufFile::open(dir / "t.gguf").find_tensor("w")->type, type) << name_of(type);
  }
}

TEST(GgufWriter, AnUnfinishedFileLeavesNothing) {
  TempDir dir;
  const std::string data(64, 'x');
  {
    GgufWriter w(dir / "a.gguf");
    w.tensor("w", WeightType::f32, {16});
    w.begin();
    w.write(0, 0, data.data(), 32);
    EXPECT_EQ(files_in(dir.path()), 1u);
    EXPECT_THROW(w.finish(), Error);  // half of the tensor is missing
    EXPECT_THROW(w.write(0, 32, data.data(), 64), Error);
  }
  EXPECT_EQ(files_in(dir.path()), 0u);
}

TEST(GgufWriter, AFileOfThatNameIsKeptUnlessReplaced) {
  TempDir dir;
  write_file(dir / "a.gguf", "mine");
  {
    GgufWriter w(dir / "a.gguf");
    EXPECT_THROW(w.begin(), Error);
  }
  EXPECT_EQ(fs::file_size(dir / "a.gguf"), 4u);
  {
    GgufWriter w(dir / "a.gguf", true);
    w.begin();  // and not finished: the old one stays
  }
  EXPECT_EQ(fs::file_size(dir / "a.gguf"), 4u);
  EXPECT_EQ(files_in(dir.path()), 1u);
}

TEST(GgufWriter, AFullDiskIsAnErrorThatLeavesNothing) {
  TempDir dir;
  struct rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* handler = std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit small = before;
  small.rlim_cur = 4096;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    GgufWriter w(dir / "a.gguf");
    w.tensor("w", WeightType::f32, {1 << 20});
    w.begin();
  } catch (const Error& e) {
    message = e.what();
    EXPECT_EQ(e.kind(), ErrorKind::io);
  }
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find("the disk is full or a limit is reached"), std::string::npos) << message;
  EXPECT_NE(message.find("4194"), std::string::npos) << message;  // bytes wanted
  EXPECT_EQ(message.find("--"), std::string::npos) << "options of another command: " << message;
  EXPECT_EQ(files_in(dir.path()), 0u);
}

TEST(GgufWriter, RepeatedKeysAndTensorsAreBugs) {
  TempDir dir;
  GgufWriter w(dir / "a.gguf");
  w.u32("n", 7);
  EXPECT_THROW(w.f32("n", 1), Error);
  w.tensor("w", WeightType::f32, {4});
  EXPECT_THROW(w.tensor("w", WeightType::f32, {4}), Error);
  EXPECT_THROW(w.tensor("q", WeightType::q4_k, {2, 32}), Error);
}

}  // namespace
}  // namespace assay

// What the C header writes is a dump, also after import.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "dumps/assay_dump.h"
#include "dumps/dump.h"
#include "dumps/error.h"
#include "dumps/import.h"

extern "C" {
int assay_dump_c_test_write(const char* dir, int many);
int assay_dump_c_test_misuse(const char* dir);
}

namespace assay {
namespace {

namespace fs = std::filesystem;

class CHeader : public testing::Test {
 protected:
  fs::path dir = fs::path(testing::TempDir()) / ("assay_c_header_" + std::to_string(getpid()));
  void SetUp() override {
    fs::remove_all(dir);
    fs::create_directories(dir);
  }
  void TearDown() override { fs::remove_all(dir); }
};

TEST_F(CHeader, WritesADump) {
  ASSERT_EQ(assay_dump_c_test_write((dir / "c").c_str(), 3), 0);
  const Dump d = Dump::open(dir / "c");
  EXPECT_EQ(d.kind(), Dump::Kind::dump);
  EXPECT_FALSE(d.has_hashes());
  EXPECT_EQ(d.tensors().size(), 8u);
  EXPECT_EQ(d.manifest()["engine"]["name"], "c");
  const float want[6] = {1, 2, 3, 4, 5, 6};
  for (const char* name : {"prompt0/prefill/0/embed", "prompt0/prefill/0/final_norm", "prompt0/decode/2/layer.0/attn_norm"}) {
    const DumpTensor* t = d.find(name);
    ASSERT_NE(t, nullptr) << name;
    EXPECT_EQ(t->shape, (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(std::memcmp(t->data, want, sizeof want), 0) << name;
  }
  EXPECT_EQ(d.find("quote\"and\\slash")->dtype, DType::bf16);
  EXPECT_EQ(d.find("empty")->elements(), 0);
  ImportOptions options;
  options.sync = false;
  import_safetensors({dir / "c"}, dir / "whole", options);
  const Dump whole = Dump::open(dir / "whole");
  EXPECT_TRUE(whole.has_hashes());
  EXPECT_EQ(whole.tensors().size(), 8u);
  EXPECT_TRUE(whole.verify_hashes().empty());
}

TEST_F(CHeader, AFullHeaderStartsANewPart) {
  ASSERT_EQ(assay_dump_c_test_write((dir / "c").c_str(), 5000), 0);
  const Dump d = Dump::open(dir / "c");
  EXPECT_EQ(d.tensors().size(), 5005u);
  EXPECT_GE(d.manifest()["files"].size(), 2u);
}

TEST_F(CHeader, ErrorsAreSaid) {
  EXPECT_EQ(assay_dump_c_test_misuse(dir.c_str()), 0);
  EXPECT_THROW(Dump::open(dir / "1"), Error) << "no manifest after an error";
  ASSERT_EQ(assay_dump_c_test_write((dir / "c").c_str(), 0), 0);
  EXPECT_NE(assay_dump_c_test_write((dir / "c").c_str(), 0), 0) << "a finished dump is not overwritten";
}

}  // namespace
}  // namespace assay

// What an approved table of offload may say, and what is told of a run that differs.
#include "conformance/faults/offload.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>

#include "dumps/error.h"

namespace assay {
namespace {

const OffloadTable kApproved = {{"k_proj", {"device", "device", "cpu"}}, {"o_proj", {"device", "device", "device"}}};

TEST(Offload, TheFirstDifferenceIsNamed) {
  EXPECT_EQ(first_difference(kApproved, kApproved), "");
  OffloadTable found = kApproved;
  found["o_proj"][1] = "cpu and device";
  EXPECT_EQ(first_difference(kApproved, found), "o_proj, passes of 2 to 32 rows: cpu and device, approved device");
  found["k_proj"][0] = "cpu";
  EXPECT_EQ(first_difference(kApproved, found), "k_proj, passes of 1 rows: cpu, approved device");
}

TEST(Offload, WhatNeverRanOrNobodyApprovedIsADifference) {
  OffloadTable found = kApproved;
  found["k_proj"][2] = "";
  EXPECT_EQ(first_difference(kApproved, found), "k_proj, passes of 33 and more rows: never ran, approved cpu");
  found = kApproved;
  found["router"] = {"device", "", ""};
  EXPECT_EQ(first_difference(kApproved, found), "router, passes of 1 rows: device, approved nowhere");
  EXPECT_NE(first_difference(kApproved, {}), "");
}

class OffloadFile : public ::testing::Test {
 protected:
  ~OffloadFile() override { std::filesystem::remove(file_); }
  std::string refusal(const std::string& text) {
    std::ofstream(file_) << text;
    try {
      read_offload(file_, "a");
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::malformed);
      return e.what();
    }
    return "";
  }
  std::filesystem::path file_ =
      std::filesystem::temp_directory_path() / ("assay-offload-" + std::to_string(getpid()) + ".json");
};

TEST_F(OffloadFile, IsHeldToItsForm) {
  const std::string rows = R"({"rows": ["1", "2 to 32", "33 and more"], "cases": {)";
  EXPECT_EQ(refusal(rows + R"("a": {"k_proj": ["cpu", "device", "cpu"]}}})"), "");
  EXPECT_NE(refusal(rows + R"("b": {}}})").find("'a'"), std::string::npos) << "no such case";
  EXPECT_NE(refusal(rows + R"("a": {"k_proj": ["cpu", "gpu", "cpu"]}}})").find("no such place"), std::string::npos);
  EXPECT_NE(refusal(rows + R"("a": {"k_proj": ["cpu"]}}})"), "");
  EXPECT_NE(refusal(R"({"rows": ["1", "more"], "cases": {"a": {}}})").find("other classes of rows"), std::string::npos);
  EXPECT_NE(refusal("{"), "");
}

TEST_F(OffloadFile, TheApprovedOneIsWholeAndReadable) {
  const auto file = std::filesystem::path(ASSAY_SOURCE_DIR) / "conformance" / "faults" / "offload.json";
  EXPECT_EQ(read_offload(file, "qwen2-bias").size(), 19u);
}

}  // namespace
}  // namespace assay

// assay convert on the command line.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "conformance/cli/cli_test_program.h"

namespace {

using namespace cli_test;

const std::string kCase = std::string("'") + ASSAY_SOURCE_DIR + "/goldens/official/qwen3-k256/model'";
const std::string kOdd = std::string("'") + ASSAY_SOURCE_DIR + "/goldens/official/llama-rope3/model'";

TEST(CliConvert, AConvertedFileRunsAndItsReportNamesEveryMatrix) {
  Folder f;
  const Output o = assay("convert " + kCase + " " + (f / "m.gguf") + " --type Q4_K --report --json " + (f / "r.jsonl"));
  ASSERT_EQ(o.code, 0) << o.text;
  EXPECT_NE(o.text.find("blk.2.ffn_down.weight"), std::string::npos) << o.text;
  EXPECT_NE(o.text.find("placeholder tokens"), std::string::npos) << "what the file can't have is said";
  std::ifstream in(f / "r.jsonl");
  int tensors = 0;
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json r = nlohmann::json::parse(line);
    if (r.at("record") != "converted_tensor") continue;
    tensors++;
    EXPECT_EQ(r.at("type"), "Q4_K");
    EXPECT_FALSE(r.at("fallback").get<bool>());
    EXPECT_GT(r.at("sqnr_db").get<double>(), 20);
    EXPECT_LT(r.at("worst_row_sqnr_db").get<double>(), r.at("sqnr_db").get<double>());
    EXPECT_LT(r.at("worst_row").get<int64_t>(), r.at("shape").at(0).get<int64_t>());
  }
  EXPECT_EQ(tensors, 22);
  EXPECT_EQ(assay("run " + (f / "m.gguf") + " --tokens 1,2,3 -n 2 --ids").code, 0);
}

TEST(CliConvert, FallbacksAreSaidOnTheWay) {
  Folder f;
  const Output o = assay("convert " + kOdd + " " + (f / "m.gguf") + " --type Q6_K");
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_NE(o.text.find("can't be Q6_K"), std::string::npos) << o.text;
  EXPECT_NE(o.text.find("becomes Q8_0"), std::string::npos) << o.text;
}

TEST(CliConvert, WhatIsNotDoneIsRefusedByName) {
  Folder f;
  for (const char* type : {"FP8", "MXFP4", "NVFP4", "AWQ", "GPTQ", "IQ4_XS", "Q2_K", "Q3_K", "Q4_K_M", "nonsense"}) {
    const Output o = assay("convert " + kCase + " " + (f / "m.gguf") + " --type " + type);
    EXPECT_EQ(o.code, 2) << type;
    EXPECT_NE(o.text.find(type), std::string::npos) << o.text;
    EXPECT_NE(o.text.find("Q5_K, Q6_K"), std::string::npos) << o.text;
  }
  const Output folder = assay("convert " + kCase + " " + (f / "folder") + " --type Q8_0");
  EXPECT_EQ(folder.code, 2);
  EXPECT_NE(folder.text.find(".gguf"), std::string::npos) << folder.text;
  EXPECT_FALSE(std::filesystem::exists(f / "folder"));
  EXPECT_EQ(assay("convert " + kCase + " " + (f / "m.gguf")).code, 0);
  EXPECT_EQ(assay("convert " + kCase + " " + (f / "m.gguf")).code, 2) << "a file is not replaced";
  EXPECT_EQ(assay("convert " + kCase + " " + (f / "m.gguf") + " --force").code, 0);
}

}  // namespace

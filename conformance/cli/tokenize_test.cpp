// assay tokenize as a script meets it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "conformance/cli/cli_test_program.h"

namespace {

using namespace cli_test;

/// The program with `input` on stdin.
Output tokenize(const std::string& arguments, const std::string& input) {
  const std::string file = testing::TempDir() + "assay-tokenize-" + std::to_string(getpid());
  std::ofstream(file, std::ios::binary) << input;
  const Output o = assay("tokenize " + arguments + " < '" + file + "'");
  std::remove(file.c_str());
  return o;
}

const std::string kGolden = std::string(ASSAY_SOURCE_DIR) + "/goldens/tokenizers/tokenizer-smollm2";
const std::string kTokenizer = "'" + kGolden + "/tokenizer.json' ";

TEST(CliTokenize, LinesInLinesOut) {
  std::ifstream golden(kGolden + "/strings.jsonl");
  std::string line, input;
  std::vector<nlohmann::json> wanted;
  while (std::getline(golden, line)) {
    wanted.push_back(nlohmann::json::parse(line));
    input += nlohmann::json{{"text", wanted.back().at("text")}}.dump() + "\n";
  }
  ASSERT_EQ(wanted.size(), 200u);
  const Output o = tokenize(kTokenizer + "--jsonl", input);
  EXPECT_EQ(o.code, 0);
  std::istringstream lines(o.text);
  for (const nlohmann::json& w : wanted) {
    ASSERT_TRUE(std::getline(lines, line)) << o.text.substr(0, 500);
    const nlohmann::json found = nlohmann::json::parse(line);
    EXPECT_EQ(found.at("ids"), w.at("ids")) << line;
    EXPECT_EQ(found.at("decoded"), w.at("decoded")) << line;
  }
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(CliTokenize, IdsAreDecoded) {
  const Output o = tokenize(kTokenizer + "--jsonl", "{\"ids\": [8083, 1]}\n");
  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(nlohmann::json::parse(o.text).at("decoded"), "\uFFFD<|im_start|>");
}

TEST(CliTokenize, AMalformedLineIsNamed) {
  const std::pair<const char*, const char*> rows[] = {
      {"{\"text\": \"a\"}\n{\"text\": \"b\"\n", "line 2"},
      {"\n", "line 1"},
      {"[]\n", "line 1"},
      {"{\"text\": 5}\n", "line 1: text"},
      {"{\"txt\": \"a\"}\n", "line 1"},
      {"{\"text\": \"a\", \"ids\": []}\n", "line 1"},
      {"{\"text\": \"\\ud800\"}\n", "line 1"},
      {"{\"text\": \"\xC3\"}\n", "line 1"},
      {"{\"ids\": [-1]}\n", "line 1: ids"},
      {"{\"ids\": [4294967296]}\n", "line 1: ids"},
      {"{\"ids\": \"1\"}\n", "line 1: ids"},
  };
  for (const auto& [input, says] : rows) {
    const Output o = tokenize(kTokenizer + "--jsonl", input);
    EXPECT_EQ(o.code, 2) << input << o.text;
    EXPECT_NE(o.text.find(says), std::string::npos) << input << o.text;
  }
}

TEST(CliTokenize, ForPeople) {
  const Output o = tokenize(kTokenizer + "'Hi<|im_end|>'", "");
  EXPECT_EQ(o.code, 0);
  EXPECT_NE(o.text.find("2  \"<|im_end|>\"  special\n"), std::string::npos) << o.text;
  EXPECT_NE(o.text.find("2 ids of 12 bytes\n"), std::string::npos) << o.text;
  const Output plain = tokenize(kTokenizer + "--plain '<|im_end|>'", "");
  EXPECT_NE(plain.text.find("7 ids"), std::string::npos) << plain.text;
}

TEST(CliTokenize, BadUse) {
  for (const std::string& arguments :
       {std::string(""), kTokenizer, kTokenizer + "--jsonl text", std::string("/nowhere --jsonl"),
        "'" + std::string(ASSAY_SOURCE_DIR) + "/goldens/official/qwen3-odd/model' --jsonl"})
    EXPECT_EQ(tokenize(arguments, "").code, 2) << arguments;
}

}  // namespace

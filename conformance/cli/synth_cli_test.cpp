// assay synth, plan and limits on the command line.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "conformance/cli/cli_test_program.h"

namespace {

using namespace cli_test;

const std::string kShape = std::string(ASSAY_SOURCE_DIR) + "/goldens/official/qwen3-k256/model/config.json";

nlohmann::json record(const std::string& arguments) {
  const Output o = assay(arguments + " --json -");
  EXPECT_EQ(o.code, 0) << o.text;
  return nlohmann::json::parse(o.text, nullptr, false);
}

TEST(CliSynth, AFileAndTheModelInMemoryGenerateTheSame) {
  Folder f;
  const std::string file = f / "m.gguf";
  const Output made = assay("synth --shape '" + kShape + "' --quant Q4_K --seed 5 --layers 2 --out " + file);
  ASSERT_EQ(made.code, 0) << made.text;
  EXPECT_NE(made.text.find("wrote"), std::string::npos);
  const std::string ids = " --tokens 1,2,3 -n 6 --ids";
  const Output from_file = assay("run " + file + ids);
  const Output in_memory = assay("run 'synth:" + kShape + ":q4_k:layers=2:seed=5'" + ids);
  EXPECT_EQ(from_file.code, 0) << from_file.text;
  EXPECT_EQ(from_file.text, in_memory.text);
  EXPECT_NE(from_file.text, assay("run 'synth:" + kShape + ":Q4_K:layers=2:seed=6'" + ids).text) << "another seed";

  EXPECT_EQ(assay("synth --shape '" + kShape + "' --quant Q4_K --out " + file).code, 2) << "a file is not replaced";
  EXPECT_EQ(assay("synth --shape '" + kShape + "' --quant Q4_K --layers 1 --force --out " + file).code, 0);
  EXPECT_NE(assay("inspect 'synth:" + kShape + ":Q4_K'").text.find("Q4_K"), std::string::npos);
}

TEST(CliSynth, SaysWhatItRefuses) {
  Folder f;
  const std::string out = " --out " + (f / "x.gguf");
  const std::pair<std::string, std::string> rows[] = {
      {"synth --quant Q4_0" + out, "--shape"},
      {"synth --shape 8B" + out, "--quant"},
      {"synth --shape 8B --quant Q4_0", "--out"},
      {"synth --shape 8B --quant IQ4_XS" + out, "IQ4_XS"},
      {"synth --shape 30B-A3B --quant Q4_0" + out, "qwen3_moe"},
      {"synth --shape 9B --quant Q4_0" + out, "0.6B, VL-2B, 8B"},
      {"synth --shape 8B --quant Q4_0 --layers -1" + out, "--layers"},
      {"synth --shape 8B --quant Q4_0 --seed -1" + out, "found -1"},
      {"synth --shape 8B --quant Q4_0 --seed 18446744073709551616" + out, "found 18446744073709551616"},
      {"run synth:8B:Q4_0:layers=nine --tokens 1 --ids", "nine"},
      {"plan synth:8B:Q4_0 --slots 0", "--slots"},
      {"plan synth:8B:Q4_0 --ctx -1", "--ctx"},
      {"plan /nowhere", "/nowhere"},
      {"limits synth:8B:Q4_0 --ctx 0", "--ctx"},
      {"limits synth:8B:Q4_0 --bandwidth -1", "negative"},
  };
  for (const auto& [arguments, says] : rows) {
    const Output o = assay(arguments);
    EXPECT_EQ(o.code, 2) << arguments << "\n" << o.text;
    EXPECT_NE(o.text.find(says), std::string::npos) << arguments << "\n" << o.text;
  }
}

TEST(CliPlan, AddsUpAndScalesWithSlots) {
  const auto one = record("plan synth:0.6B:Q4_0 --ctx 1024 --slots 1 --threads 2");
  const auto four = record("plan synth:0.6B:Q4_0 --ctx 1024 --slots 4 --threads 2");
  size_t sum = 0;
  for (const char* part :
       {"mapped", "copies", "vectors", "panels", "kv", "rope", "values", "quantised", "scratch", "packing"})
    sum += one.at(part).get<size_t>();
  EXPECT_EQ(one.at("total"), sum);
  EXPECT_EQ(one.at("kv"), 2ll * 28 * 8 * 128 * 1024 * 2);
  EXPECT_EQ(four.at("kv").get<size_t>(), 4 * one.at("kv").get<size_t>());
  EXPECT_EQ(four.at("kv_per_slot"), one.at("kv"));
  EXPECT_EQ(record("plan synth:0.6B:Q4_0 --ctx 1024 --activations f32").at("panels"), 0);
  EXPECT_EQ(record("plan synth:0.6B:Q4_0 --ctx 1024 --isa scalar").at("panels"), 0);
}

TEST(CliPlan, WhatDoesNotFitIsExit3) {
  const Output large = assay("plan synth:8B:F32 --ctx 40960 --slots 4096");  // terabytes of cache
  EXPECT_EQ(large.code, 3) << large.text;
  EXPECT_NE(large.text.find("does not fit"), std::string::npos) << large.text;
  EXPECT_NE(large.text.find("kv"), std::string::npos) << "the classes are shown all the same";
}

TEST(CliLimits, ABandwidthGivesABound) {
  const auto r = record("limits synth:8B:Q4_0 --ctx 1 --prefill 128 --bandwidth 10 --rate 100");
  EXPECT_NEAR(r.at("weight_bytes").get<double>(), 4.258e9, 0.005e9);
  EXPECT_NEAR(r.at("decode_tokens_per_second_at_most").get<double>(), 10e9 / r.at("decode_bytes").get<double>(), 1e-6);
  EXPECT_NEAR(r.at("prefill_tokens_per_second_at_most_by_operations").get<double>(),
              100e9 / r.at("prefill_operations_per_token").get<double>(), 1e-6);
  EXPECT_FALSE(r.at("bandwidth_measured").get<bool>());
  EXPECT_EQ(r.at("kv_bytes_per_position"), 2 * 36 * 8 * 128 * 2);
}

}  // namespace

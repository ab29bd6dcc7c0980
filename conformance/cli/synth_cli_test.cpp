// assay synth, plan, limits and bench on the command line.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

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
      {"synth --shape 27B --quant Q4_0" + out, "qwen3_5"},
      {"synth --shape 9B --quant Q4_0" + out, "0.6B, VL-2B, 8B"},
      {"synth --shape 8B --quant Q4_0 --layers -1" + out, "--layers"},
      {"synth --shape 8B --quant Q4_0 --seed -1" + out, "found -1"},
      {"synth --shape 8B --quant Q4_0 --seed 18446744073709551616" + out, "found 18446744073709551616"},
      {"run synth:8B:Q4_0:layers=nine --tokens 1 --ids", "nine"},
      {"plan synth:8B:Q4_0 --slots 0", "--slots"},
      {"plan synth:8B:Q4_0 --ctx -1", "--ctx"},
      {"plan /nowhere", "/nowhere"},
      {"limits synth:8B:Q4_0 --ctx 0", "--ctx"},
      {"limits synth:8B:Q4_0 --bandwidth -1", "out of range"},
      {"limits synth:8B:Q4_0 --device z80", "cpu, cuda, h200"},
      {"limits synth:8B:Q4_0 --device h200 --rate 5", "brings its own rates"},
      {"limits synth:8B:Q4_0 --batch 0", "--batch"},
      {"limits synth:8B:F16 --device h200 --activations s8", "no quantised weights"},
      {"plan synth:8B:Q4_0 --backend tpu", "cpu or cuda"},
      {"plan synth:8B:Q4_0 --vram-budget 2G", "--backend cuda beside it"},
      {"plan synth:8B:Q4_0 --backend cuda --module /nowhere/x.so", "no such module"},
      {"plan synth:8B:F16 --activations s8", "no quantised weights"},
      {"plan synth:8B:Q4_0 --backend cuda --shadow cpu", "--shadow"},
      {"bench synth:0.6B:Q4_0:layers=1 --fuse", "--op beside it"},
      {"bench synth:0.6B:Q4_0:layers=1 --cold 1M", "--op beside it"},
      {"bench synth:0.6B:Q4_0:layers=1 --op all --decode 3", "no --op beside it"},
      {"bench synth:0.6B:Q4_0:layers=1 --op all --type Q8_0", "the model's own"},
      {"bench synth:0.6B:Q4_0:layers=1 --op all --fuse", "--backend cuda"},
      {"bench", "model"},
      {"bench synth:0.6B:Q4_0:layers=1 --rows 1,0", "--rows"},
      {"bench synth:0.6B:Q4_0:layers=1 --rows 1,2 --decode 0", "--decode above 0"},
      {"bench synth:0.6B:Q4_0:layers=1 --shape 4x4", "--op beside it"},
      {"bench synth:0.6B:Q4_0:layers=1 --op linear --shape 64x64", "shapes from one place"},
      {"bench --op linear", "shapes from one place"},
      {"bench --op linear --shape 64", "OUTPUTSxINPUTS"},
      {"bench --op linear,add --shape 64x64", "one for each op"},
      {"bench --op linear --shape 64x64 --type Q9", "--type"},
      {"bench --op linear --shape 64x64 --pass verify", "decode or prefill"},
      {"bench --op linear --shape 64x64 --cold much", "--cold"},
      {"bench --op linear --shape 64x64 --no-graph --backend cuda", "--no-graph"},
      {"bench --op add --shape 64 --backend cuda --module /nowhere/x.so", "no such module"},
      {"bench synth:0.6B:Q4_0:layers=1 --op moe_out", "moe_out"},
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
  const auto &decode = r.at("decode"), &prefill = r.at("prefill");
  EXPECT_NEAR(decode.at("weight_bytes").get<double>(), 4.258e9, 0.005e9);
  EXPECT_NEAR(decode.at("tokens_per_second_at_most").get<double>(), 10e9 / decode.at("bytes").get<double>(), 1e-6);
  EXPECT_EQ(decode.at("bound_by"), "bytes");
  EXPECT_NEAR(prefill.at("tokens_per_second_at_most").get<double>(),
              128 * 100e9 / prefill.at("operations").get<double>(), 1e-6);
  EXPECT_EQ(prefill.at("bound_by"), "f32 operations");
  EXPECT_FALSE(r.at("bandwidth_measured").get<bool>());
  EXPECT_EQ(r.at("kv_bytes_per_position"), 2 * 36 * 8 * 128 * 2);
}

TEST(CliLimits, APublishedDeviceBoundsByBytesOrByProducts) {
  const auto r = record("limits synth:8B:Q4_0 --device h200 --ctx 1 --prefill 2048");
  const double bytes = r.at("decode").at("bytes");
  EXPECT_NEAR(r.at("decode").at("tokens_per_second_at_most").get<double>(), 4.8e12 / bytes, 1e-3);
  EXPECT_EQ(r.at("prefill").at("bound_by"), "int8 products");  // s16: two products of each pair
  const auto s8 = record("limits synth:8B:Q4_0 --device h200 --ctx 1 --prefill 2048 --activations s8");
  EXPECT_EQ(r.at("prefill").at("int8_operations").get<double>(),
            2 * s8.at("prefill").at("int8_operations").get<double>());
  EXPECT_FALSE(r.at("bandwidth_measured").get<bool>());
}

TEST(CliLimits, AModuleMeasuresItsOwnDevice) {
  const std::string module = (std::filesystem::path(ASSAY_PROGRAM).parent_path() / "cuda/libassay_simt.so").string();
  const auto r = record("limits synth:0.6B:Q4_0 --device cuda --module '" + module + "'");
  EXPECT_TRUE(r.at("bandwidth_measured").get<bool>());
  EXPECT_GT(r.at("bandwidth_gbps"), 0);
  EXPECT_EQ(r.at("decode").at("bound_by"), "bytes") << "no rate of products is known";
}

TEST(CliPlan, ADeviceIsPlannedWithoutOne) {  // the emulation knows the sizes
  const std::string plan = "plan synth:0.6B:Q4_0 --ctx 1024 --slots 2 --backend cuda --vram-budget ";
  const auto all = record(plan + "2G").at("device"), some = record(plan + "300M").at("device");
  for (const auto* d : {&all, &some}) {
    size_t sum = 0;
    for (const char* part : {"weights", "window", "staging", "vectors", "rope", "kv", "values", "io", "scratch"})
      sum += d->at(part).get<size_t>();
    EXPECT_EQ(d->at("total"), sum);
    EXPECT_EQ(d->at("kv"), 2ll * 2 * 28 * 8 * 128 * 1024 * 2);
  }
  EXPECT_EQ(all.at("resident"), all.at("offered"));
  EXPECT_EQ(all.at("layers_resident"), 28);
  EXPECT_EQ(all.at("window"), 0);
  EXPECT_LT(some.at("resident"), some.at("offered"));
  EXPECT_LE(some.at("weights").get<size_t>() + some.at("window").get<size_t>() + some.at("staging").get<size_t>(),
            size_t(300) << 20);
  EXPECT_GT(some.at("upload_bytes_per_decode_pass"), 10 << 20);
  const Output few = assay(plan + "1M");
  EXPECT_EQ(few.code, 2) << few.text;
  EXPECT_NE(few.text.find("at least"), std::string::npos) << few.text;
}

TEST(CliBench, OneOpAlone) {
  const auto r = record("bench --op linear --shape 64x96 --type Q4_1 --rows 2 --cold 0 --reps 1 --threads 1");
  EXPECT_EQ(r.at("record"), "bench_op");
  EXPECT_EQ(r.at("shape"), "64x96");
  EXPECT_EQ(r.at("type"), "Q4_1");
  const Output text = assay("bench --op linear --shape 64x96 --rows 1,2 --cold 0 --reps 1 --threads 1");
  EXPECT_EQ(text.code, 0) << text.text;
  for (const char* part : {"plain read", "TFLOP/s", "next       assay bench"})
    EXPECT_NE(text.text.find(part), std::string::npos) << text.text;
}

TEST(CliBench, SeveralNumbersOfRowsAreACostCurve) {
  const std::string bench =
      "bench 'synth:" + kShape + ":Q4_K:layers=1' --rows 1,2 --prefill 4 --decode 2 --reps 1 --threads 1";
  Folder f;
  const Output o = assay(bench + " --json " + (f / "r.jsonl"));
  EXPECT_EQ(o.code, 0) << o.text;
  EXPECT_NE(o.text.find("step against"), std::string::npos) << o.text;
  std::ifstream in(f / "r.jsonl");
  std::vector<std::pair<std::string, int>> seen;
  for (std::string line; std::getline(in, line);) {
    const auto r = nlohmann::json::parse(line);
    seen.emplace_back(r.at("pass"), r.at("rows"));
  }
  const std::vector<std::pair<std::string, int>> wanted = {{"prefill", 4}, {"decode", 1}, {"decode", 2}};
  EXPECT_EQ(seen, wanted) << "the prompt is one sequence's: once";
}

}  // namespace

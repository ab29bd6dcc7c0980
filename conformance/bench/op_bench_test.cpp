// Ops alone: which shapes a model has, what a result says, on the CPU and on the emulated device. Times decide nothing.
#include "conformance/bench/op_bench.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "dumps/error.h"
#include "engine/formats/synth.h"
#include "engine/formats/test_files.h"

namespace assay {
namespace {

using testing_files::error_of;

const OpShape* named(const std::vector<OpShape>& shapes, const std::string& name) {
  for (const OpShape& s : shapes)
    if (s.name == name) return &s;
  return nullptr;
}

TEST(OpBench, ShapesOfAModelAreItsDistinctNodes) {
  const ModelOutline m = outline_model("synth:0.6B:Q4_0");  // hidden 1024, 16/8 heads of 128, ffn 3072
  const std::vector<OpShape> all = ops_of(m.model, {"all"});
  EXPECT_EQ(all.front().name, "embed");
  EXPECT_EQ(all.back().name, "logits");
  EXPECT_EQ(all.back().count, 0);
  EXPECT_TRUE(all.back().requested_rows);
  ASSERT_NE(named(all, "k_proj+v_proj"), nullptr);
  EXPECT_EQ(named(all, "k_proj+v_proj")->count, 2);
  EXPECT_EQ(named(all, "k_proj+v_proj")->text(), "1024x1024");
  ASSERT_NE(named(all, "gate_proj+up_proj"), nullptr);
  EXPECT_EQ(named(all, "gate_proj+up_proj")->text(), "3072x1024");
  ASSERT_NE(named(all, "attn_context"), nullptr);
  EXPECT_EQ(named(all, "attn_context")->text(), "16/8x128");
  int64_t nodes = 0;
  for (const OpShape& s : all) nodes += s.count;
  EXPECT_EQ(nodes, int64_t(build_program(m.model).nodes.size() - 3) / 28);  // all but embed, final_norm, logits
  const std::vector<OpShape> some = ops_of(m.model, {"down_proj", "rope"});
  EXPECT_EQ(some.size(), 3u);  // q_rope and k_rope have other widths
  EXPECT_NE(error_of([&] { ops_of(m.model, {"q_proj", "moe_out"}); }).find("moe_out"), std::string::npos);
}

TEST(OpBench, ShapesByHandAndTheirRefusals) {
  EXPECT_EQ(parse_op("linear", "64x96", WeightType::q8_0).rows, 64);
  EXPECT_EQ(parse_op("linear", "64x96", WeightType::q8_0).columns, 96);
  EXPECT_EQ(parse_op("attention", "8/2x64", WeightType::q8_0).columns, 512);
  EXPECT_EQ(parse_op("kv_store", "2x64", WeightType::q8_0).columns, 128);
  const std::tuple<const char*, const char*, const char*> rows[] = {{"linear", "64", "OUTPUTSxINPUTS"},
                                                                    {"linear", "64x", "OUTPUTSxINPUTS"},
                                                                    {"linear", "64x96x2", "OUTPUTSxINPUTS"},
                                                                    {"linear", "0x96", "1 to 2^24"},
                                                                    {"linear", "64x48", "a multiple of 32"},
                                                                    {"attention", "8x64", "HEADS/KV_HEADSxDIM"},
                                                                    {"attention", "8/3x64", "multiple of 3"},
                                                                    {"rope", "4x63", "even"},
                                                                    {"add", "7x7", "COLUMNS"},
                                                                    {"conv", "7", "unknown op"},
                                                                    {"q_proj", "64x64", "--model"}};
  for (const auto& [op, shape, says] : rows) {
    const std::string words = error_of([&, o = op, s = shape] { parse_op(o, s, WeightType::q4_0); });
    EXPECT_NE(words.find(says), std::string::npos) << op << " " << shape << ": " << words;
  }
}

OpBenchSpec every_op() {
  OpBenchSpec spec;
  spec.engine.threads = 1;
  for (const auto& [op, shape] : {std::pair{"linear", "48x64"},
                                  {"linear", "32x64"},
                                  {"embed", "40x64"},
                                  {"rms_norm", "64"},
                                  {"head_norm", "4x32"},
                                  {"rope", "4x32"},
                                  {"kv_store", "2x32"},
                                  {"attention", "4/2x32"},
                                  {"silu_mul", "96"},
                                  {"add", "64"}})
    spec.shapes.push_back(parse_op(op, shape, spec.shapes.size() == 1 ? WeightType::f16 : WeightType::q4_0));
  spec.rows = {1, 3};
  spec.depth = 5;
  spec.repetitions = 2;
  spec.cold_bytes = 0;  // two copies
  return spec;
}

/// Fields and their kinds, of every record.
void check_records(const OpReport& report, const OpBenchSpec& spec, const std::string& backend) {
  const auto all = records(report, spec, "");
  ASSERT_EQ(all.size(), spec.shapes.size() * spec.rows.size());
  for (const auto& r : all) {
    SCOPED_TRACE(r.dump());
    EXPECT_EQ(r.at("record"), "bench_op");
    EXPECT_EQ(r.at("backend"), backend);
    for (const char* key :
         {"op", "name", "shape", "type", "pass", "device", "isa", "activations", "kv", "kernel", "reference"})
      EXPECT_TRUE(r.at(key).is_string()) << key;
    for (const char* key : {"rows", "op_rows", "depth", "copies", "threads", "per_layer"})
      EXPECT_TRUE(r.at(key).is_number_integer()) << key;
    for (const char* key : {"seconds", "bytes", "operations", "gbps", "tflops", "reference_gbps"})
      EXPECT_TRUE(r.at(key).is_number()) << key;
    EXPECT_FALSE(r.at("refused").get<bool>());
    EXPECT_FALSE(r.at("kernel").get<std::string>().empty());
    EXPECT_GE(r.at("copies"), 2);
    EXPECT_GT(r.at("bytes"), 0);
    EXPECT_GE(r.at("seconds"), 0);
    EXPECT_EQ(r.at("all_seconds").size(), backend == "cpu" ? 2u * r.at("copies").get<size_t>() : 2u);
  }
  // Weight, input and output of 48x64 Q4_0 (18 bytes per 32), three rows.
  for (const OpResult& r : report.results)
    if (r.shape == 0 && r.rows == 3) {
      EXPECT_EQ(r.bytes, 48 * 2 * 18 + 3 * (64 + 48) * 4);
      EXPECT_EQ(r.operations, 2 * 3 * 48 * 64);
    }
  // K and V of three sequences of six positions, two heads of 32, f16; queries and mixes.
  for (const OpResult& r : report.results)
    if (spec.shapes[r.shape].op == OpKind::attention && r.rows == 3) {
      EXPECT_EQ(r.bytes, 3 * 6 * 2 * 2 * 32 * 2 + 2 * 3 * 128 * 4);
    }
}

TEST(OpBench, EveryOpOnTheCpu) {
  const OpBenchSpec spec = every_op();
  const OpReport report = bench_ops(spec);
  EXPECT_EQ(report.device, "");
  EXPECT_GT(report.reference_gbps, 0);
  check_records(report, spec, "cpu");
  const std::string text = render(report, spec, "", 0);
  for (const OpShape& s : spec.shapes) EXPECT_NE(text.find(s.text()), std::string::npos) << s.text() << "\n" << text;
}

TEST(OpBench, EveryOpOnTheEmulatedDevice) {
  OpBenchSpec spec = every_op();
  spec.engine.device.module = built_module("simt").string();
  ASSERT_TRUE(std::filesystem::exists(spec.engine.device.module)) << "the target assay_simt builds it";
  const OpReport report = bench_ops(spec);
  EXPECT_NE(report.device, "");
  check_records(report, spec, "cuda");
}

TEST(OpBench, ProductsInTheGroupsThatADeviceFuses) {
  testing_files::TempDir dir;
  testing_files::tiny_model("qwen3").write(dir.path());  // hidden 32, 4/2 heads of 16, ffn 64
  const ModelOutline m = outline_synthetic_model({(dir.path() / "config.json").string(), WeightType::q4_0, 1, 0});
  OpBenchSpec spec;
  spec.engine.threads = 1;
  spec.shapes = ops_of(m.model, {"linear"}, true, true);
  const std::pair<const char*, const char*> wanted[] = {{"attn_norm,q_proj,k_proj,v_proj", "64+32+32x32"},
                                                        {"o_proj,attn_residual", "32x64"},
                                                        {"ffn_norm,gate_proj,up_proj,ffn_act", "64+64x32"}};
  for (const auto& [name, text] : wanted) {
    const auto it = std::find_if(spec.shapes.begin(), spec.shapes.end(),
                                 [&, n = std::string(name)](const OpShape& s) { return s.name.find(n) == 0; });
    ASSERT_NE(it, spec.shapes.end()) << name;
    EXPECT_EQ(it->text(), text);
    EXPECT_TRUE(it->fused());
  }
  spec.rows = {1};
  spec.repetitions = 1;
  spec.cold_bytes = 0;
  EXPECT_NE(error_of([&] { bench_ops(spec); }).find("--backend cuda"), std::string::npos) << "a CPU fuses nothing";
  spec.engine.device.module = built_module("simt").string();
  const OpReport report = bench_ops(spec);
  for (const OpResult& r : report.results) {
    EXPECT_FALSE(r.refused) << spec.shapes[r.shape].name;
    EXPECT_FALSE(r.variant.empty());
  }
  // q, k and v in blocks of 18 bytes per 32, the norm's vector, x, and three outputs.
  EXPECT_EQ(report.results[0].bytes, (64 + 32 + 32) * 18 + 32 * 4 + (32 + 128) * 4);
  EXPECT_EQ(report.results[0].operations, 2 * 128 * 32 + 4 * 32 + 4);
}

TEST(OpBench, OperandsAreNeverZeros) {
  OpBenchSpec spec = every_op();
  spec.rows = {2};
  for (const OpShape& s : spec.shapes) {
    const auto c = make_case(s, spec);
    const auto varied = [](const std::byte* from, size_t bytes) {
      std::set<std::byte> seen(from, from + bytes);
      return seen.size() > 8;
    };
    for (const auto& x : c->inputs)
      EXPECT_TRUE(varied(reinterpret_cast<const std::byte*>(x.data()), x.size() * 4)) << s.name;
    for (const Matrix& m : c->weights) EXPECT_TRUE(varied(m.data, m.bytes())) << s.name;
    for (const KvLayer& k : c->caches)
      EXPECT_TRUE(varied(k.k, 2 * 2 * 6 * 32 * 2) && varied(k.v, 2 * 2 * 6 * 32 * 2)) << s.name;
    if (!c->weights.empty()) {
      EXPECT_NE(c->weights[0].data, c->weights[1].data) << "copies lie apart";
    }
  }
}

TEST(OpBench, NothingFallsBackToTheCpu) {
  OpBenchSpec spec = every_op();
  spec.engine.device.module = "/nowhere/libassay_none.so";
  EXPECT_THROW(bench_ops(spec), Error);
}

}  // namespace
}  // namespace assay

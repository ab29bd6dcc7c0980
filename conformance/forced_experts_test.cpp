// Forced routing through the whole house: engine and oracle run with given experts, dumps say which, and bisect runs such a dump again.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "conformance/drill/engine_replayer.h"
#include "conformance/runner.h"
#include "dumps/bisect.h"
#include "dumps/compare.h"
#include "dumps/error.h"
#include "engine/forced_experts.h"
#include "oracle/dump.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

class ForcedExpertsRun : public ::testing::Test {
 protected:
  void SetUp() override {
    folder = fs::temp_directory_path() / ("assay-forced-" + std::to_string(getpid()) + "-" + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder);
    fs::create_directories(folder);
  }
  void TearDown() override { fs::remove_all(folder); }

  DumpSpec spec(const std::string& name) const {
    DumpSpec s;
    s.out = folder / name;
    s.sync = false;
    s.engine.kv = KvType::f32;
    s.engine.threads = 2;
    s.requests = {{{5, 17, 3, 99, 42}, 2, {7, 8}}, {{1, 2, 3}, 1, {4}}};
    return s;
  }
  Dump run(const std::string& name, const std::function<void(DumpSpec&)>& change = {}) const {
    DumpSpec s = spec(name);
    if (change) change(s);
    run_dump(model, s);
    return Dump::open(s.out);
  }
  std::shared_ptr<const ForcedExperts> of(const Dump& d, int prompt) const { return forced_experts(d, "prompt" + std::to_string(prompt), model->config); }

  const fs::path model_path = fs::path(ASSAY_SOURCE_DIR) / "goldens/official/qwen3_moe-norm/model";
  const std::shared_ptr<const Model> model = std::make_shared<Model>(load_model(model_path));
  fs::path folder;
};

bool same_bytes(const Dump& a, const Dump& b) {
  CompareOptions o;
  o.level = Level::byte_exact;
  return compare(a, b, o).exit_code() == 0;
}

TEST_F(ForcedExpertsRun, OwnChoicesChangeNothingAndOthersAreTaken) {
  const Dump free = run("free");
  const auto own = of(free, 0);
  EXPECT_EQ(own->chosen, 2);
  EXPECT_EQ(own->layers.at(1).size(), 2u * 7);  // five rows and two passes
  EXPECT_EQ(own->at(1, 7), nullptr);
  EXPECT_TRUE(same_bytes(free, run("same", [&](DumpSpec& s) { s.requests[0].experts = own, s.requests[1].experts = of(free, 1); })));

  auto other = std::make_shared<ForcedExperts>(*own);
  other->layers[1][2 * 6] = (other->layers[1][2 * 6 + 1] + 1) % 8;  // the last decode pass
  for (int64_t chunk : {0, 2})
    for (bool batch : {false, true}) {
      const Dump forced = run("other", [&](DumpSpec& s) {
        s.replace = true;
        s.requests[0].experts = other;
        s.generate.chunk = chunk;
        s.generate.batch = batch;
      });
      EXPECT_EQ(of(forced, 0)->layers, other->layers) << chunk << batch;
      EXPECT_EQ(of(forced, 1)->layers, of(free, 1)->layers);
      CompareOptions o;
      o.level = Level::byte_exact;
      const CompareResult r = compare(free, forced, o);
      EXPECT_EQ(r.divergence->name, "prompt0/decode/1/layer.1/router_topk_ids");
      EXPECT_TRUE(forced.manifest()["prompts"][0]["forced_experts"]);
      EXPECT_FALSE(forced.manifest()["prompts"][1]["forced_experts"]);
    }
}

// A flip of ours, and the oracle with our experts: everything is compared, and the flip has its regret.
TEST_F(ForcedExpertsRun, TheOracleFollowsAndSaysWhatTheChoiceWasWorth) {
  const Dump free = run("free");
  auto other = std::make_shared<ForcedExperts>(*of(free, 0));
  std::swap(other->layers[0][4], other->layers[0][5]);  // row 2: the same two, the other way round
  const Dump flipped = run("flipped", [&](DumpSpec& s) { s.requests[0].experts = other; });
  DumpSpec s = spec("oracle");
  for (int p = 0; p < 2; p++) s.requests[size_t(p)].experts = of(flipped, p);
  oracle::DumpOptions o;
  o.out = s.out;
  o.sync = false;
  oracle::write_dump(oracle::Weights64::open(model_path), s.requests, o);
  CompareOptions options;
  options.tolerance = presets().at("f32");
  options.tolerance.regret_cap = 10;
  options.tolerance.max_flip_share = 1;
  CompareResult r = compare(Dump::open(s.out), flipped, options);
  EXPECT_EQ(r.exit_code(), 0) << r.first_divergence.value_or("");
  EXPECT_EQ(r.flips, 1);
  EXPECT_EQ(r.choices, 3 * (7 + 4));
  EXPECT_EQ(r.skipped, 0);
  EXPECT_GT(r.routing[0].worst_regret, 0);
  options.tolerance.regret_cap = r.routing[0].worst_regret * 0.99;
  r = compare(Dump::open(s.out), flipped, options);
  EXPECT_EQ(r.exit_code(), 1);
  EXPECT_EQ(r.divergence->name, "prompt0/prefill/0/layer.0/router_topk_ids");
}

TEST_F(ForcedExpertsRun, ARunWithForcedExpertsIsRunAgainWithThem) {
  const Dump free = run("free");
  auto other = std::make_shared<ForcedExperts>(*of(free, 0));
  std::swap(other->layers[0][4], other->layers[0][5]);
  const auto force = [&](DumpSpec& s) { s.requests[0].experts = other; };
  const Dump base = run("base", force), target = run("target", [&](DumpSpec& s) {
    force(s);
    s.plant = "gate-up-swapped";
  });
  EngineReplayer::Options o;
  o.model = model_path;
  o.threads = 2;
  EngineReplayer replayer(base, target, o);
  EXPECT_EQ(replayer.not_reproducible("prompt0/prefill/0/layer.0/expert_down_proj"), "");
  EXPECT_EQ(replayer.not_reproducible("prompt0/prefill/0/layer.0/router_topk_ids"), "");
}

TEST_F(ForcedExpertsRun, RefusesWhatIsNoChoiceOfThisModel) {
  const Dump free = run("free");
  const auto error_of = [&](const Dump& d, const std::string& prompt, const Config& c) -> std::string {
    try {
      forced_experts(d, prompt, c);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error_of(free, "prompt2", model->config).find("does not say which experts were chosen: prompt2/prefill/0/layer.0/router_topk_ids"), std::string::npos);
  Config c = model->config;
  c.experts = 3;
  EXPECT_NE(error_of(free, "prompt0", c).find("no expert; wanted 0 to 2"), std::string::npos) << error_of(free, "prompt0", c);
  c = model->config;
  c.experts_per_token = 3;
  EXPECT_NE(error_of(free, "prompt0", c).find("wanted I64, 3 experts a row"), std::string::npos);
  c.experts = 0;
  EXPECT_NE(error_of(free, "prompt0", c).find("the model has none to choose"), std::string::npos);
  const Dump hashes = run("hashes", [](DumpSpec& s) { s.mode = CaptureMode::hash; });
  EXPECT_NE(error_of(hashes, "prompt0", model->config).find("hashes alone"), std::string::npos);
}

}  // namespace
}  // namespace assay

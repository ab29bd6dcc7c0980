// Whole runs of the oracle: its dump, its windows over dumps of others, and that a fault in either shows.
#include "oracle/dump.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "dumps/compare.h"
#include "dumps/dump.h"
#include "dumps/error.h"
#include "dumps/json.h"
#include "oracle/window.h"

namespace fs = std::filesystem;

namespace assay::oracle {
namespace {

fs::path case_of(const std::string& name) {
  return fs::path(ASSAY_SOURCE_DIR) / "goldens" / "official" / name;
}

fs::path fresh(const std::string& name) {
  const fs::path dir = fs::temp_directory_path() / ("assay-oracle-" + std::to_string(getpid()) + "-" + name);
  fs::remove_all(dir);
  return dir;
}

/// A prompt of a case with some decode passes, golden ids forced. Of llama-base prompt 2 is captured whole.
Request request_of(const fs::path& dir, size_t index, int64_t decode = 2) {
  const nlohmann::ordered_json m = read_json(dir / "manifest.json");
  Request r;
  r.ids = m.at("prompts").at(index).at("ids").get<std::vector<int32_t>>();
  r.forced = m.at("prompts").at(index).at("greedy_ids").get<std::vector<int32_t>>();
  r.decode = decode;
  r.forced.resize(size_t(decode));
  return r;
}

class OracleRun : public ::testing::Test {
 protected:
  void SetUp() override {
    options.out = fresh(::testing::UnitTest::GetInstance()->current_test_info()->name());
    options.capture.state = true;
    options.sync = false;
  }
  void TearDown() override { fs::remove_all(options.out); }
  const fs::path dir = case_of("llama-base");
  DumpOptions options;
};

double worst(const std::vector<NodeError>& errors) {
  double most = 0;
  for (const NodeError& e : errors) most = std::max(most, e.added);
  return most;
}

TEST_F(OracleRun, AgreesWithItselfInWindows) {
  const Weights64 weights = Weights64::open(dir / "model");
  write_dump(weights, {request_of(dir, 1)}, options);
  const Dump dump = Dump::open(options.out);
  EXPECT_TRUE(dump.verify_hashes().empty());
  WindowOptions window;
  window.accumulated = true;
  const std::vector<NodeError> errors = window_errors(weights, dump, window);
  EXPECT_EQ(errors.size(), dump.tensors().size() - 2);  // all but ids and greedy_ids
  for (const NodeError& e : errors) {
    EXPECT_EQ(e.added, 0) << e.name;  // the same code on the same values
    EXPECT_EQ(e.accumulated, 0) << e.name;
  }
  const auto rope = std::find_if(errors.begin(), errors.end(),
                                 [](auto& e) { return e.name == "prompt0/decode/1/layer.1/attn_context"; });
  ASSERT_NE(rope, errors.end());
  EXPECT_EQ(rope->inputs, (std::vector<std::string>{"layer.1/q_rope", "layer.1/k_rope", "layer.1/v_proj",
                                                    "state:layer.1/k", "state:layer.1/v"}));
}

TEST_F(OracleRun, AnAlteredValueShowsInItsOwnWindowAlone) {
  const Weights64 weights = Weights64::open(dir / "model");
  options.alter = [](const PassInput& pass, int layer, std::string_view phase, Matrix64& m) {
    if (pass.pass == Pass::prefill && layer == 1 && phase == "k_proj") m.at(0, 3) *= 1.01;
  };
  write_dump(weights, {request_of(dir, 1)}, options);
  WindowOptions window;
  window.accumulated = true;
  int64_t accumulated = 0;
  for (const NodeError& e : window_errors(weights, Dump::open(options.out), window)) {
    const bool here = e.name == "prompt0/prefill/0/layer.1/k_proj";
    EXPECT_EQ(e.added > 0, here) << e.name << " " << e.added;
    if (here) {
      EXPECT_EQ(e.row, 0);
      EXPECT_EQ(e.column, 3);
      EXPECT_NEAR(e.value / e.oracle, 1.01, 1e-12);
      EXPECT_EQ(e.inputs, std::vector<std::string>{"layer.1/attn_norm"});
    }
    accumulated += *e.accumulated > 0;
  }
  EXPECT_GT(accumulated, 50);  // everything behind it
}

TEST_F(OracleRun, AWindowSpansWhatADumpLeavesOut) {
  const Weights64 weights = Weights64::open(dir / "model");
  options.capture.phases = {"attn_residual", "logits_last"};
  options.alter = [](const PassInput& pass, int layer, std::string_view phase, Matrix64& m) {
    if (pass.pass == Pass::decode && layer == 1 && phase == "v_proj") m.at(0, 0) += 0.1;
  };
  write_dump(weights, {request_of(dir, 1)}, options);
  const std::vector<NodeError> errors = window_errors(weights, Dump::open(options.out));
  for (const NodeError& e : errors) {
    const TensorName n = *parse_tensor_name(e.name);
    // decode/1 reads the altered row from a cache that the dump does not show.
    EXPECT_EQ(e.added > 1e-12, n.pass == "decode" && n.layer == "layer.1") << e.name << " " << e.added;
    if (e.name == "prompt0/decode/0/layer.1/attn_residual") {
      EXPECT_EQ(e.inputs, (std::vector<std::string>{"layer.0/attn_residual", "state:layer.1/k", "state:layer.1/v"}));
    }
  }
  EXPECT_GT(worst(errors), 1e-6);
}

TEST_F(OracleRun, AStaleCacheRowShowsInTheState) {
  // A subject whose cached v differs from its v_proj: the row is named, and what reads the state is not blamed again.
  const Weights64 weights = Weights64::open(dir / "model");
  const Request r = request_of(dir, 1);
  write_dump(weights, {r}, options);
  const Dump whole = Dump::open(options.out);
  const fs::path other = fresh("stale");
  DumpWriter::Options to;
  to.dir = other;
  to.sync = false;
  DumpWriter writer(to);
  writer.manifest()["prompts"] = whole.manifest()["prompts"];
  for (const DumpTensor& t : whole.tensors()) {
    std::vector<std::byte> bytes(t.data, t.data + t.bytes());
    if (t.name == "prompt0/state/after_prefill/layer.2/v") {
      const double stale = 7;
      memcpy(bytes.data() + sizeof(double) * size_t(2 * t.columns() + 1), &stale, sizeof stale);
    }
    writer.write({t.name, t.dtype, t.shape, t.order, t.inputs, t.role, t.axes}, bytes.data());
  }
  writer.finish();
  bool seen = false;
  for (const NodeError& e : window_errors(weights, Dump::open(other))) {
    if (e.name == "prompt0/state/after_prefill/layer.2/v") {
      seen = true;
      EXPECT_GT(e.added, 0.1);
      EXPECT_EQ(e.row, 2);
      EXPECT_EQ(e.column, 1);
      EXPECT_EQ(e.value, 7);
    }
  }
  EXPECT_TRUE(seen);
  fs::remove_all(other);
}

TEST_F(OracleRun, AWrongLineShowsAgainstTheOfficialGolden) {
  // Against goldens computed by other people's code: right as it is, wrong with one value moved by a millionth, and
  // with q rotated in the pairs (2j, 2j + 1).
  const Weights64 weights = Weights64::open(dir / "model");
  const int64_t heads = weights.config().heads, d = weights.config().head_dim;
  CompareOptions compare_options;
  compare_options.tolerance.preset = "custom";
  compare_options.tolerance.fixed = 1e-9;
  compare_options.only = {"attn_norm", "q_proj", "q_rope", "attn_context", "ffn_residual", "logits"};
  std::vector<Request> requests;
  for (size_t i = 0; i < 4; i++) requests.push_back(request_of(dir, i, 8));
  auto divergence = [&](auto alter) {
    options.alter = alter;
    options.replace = true;
    write_dump(weights, requests, options);
    const Dump golden = Dump::open(dir), ours = Dump::open(options.out);
    const CompareResult r = compare(golden, ours, compare_options);
    EXPECT_GT(r.compared, 50);
    return r.divergence ? r.divergence->name : "";
  };
  EXPECT_EQ(divergence([](const PassInput&, int, std::string_view, Matrix64&) {}), "");
  EXPECT_EQ(divergence([](const PassInput& pass, int layer, std::string_view phase, Matrix64& m) {
              if (pass.prompt == 2 && pass.pass == Pass::prefill && layer == 1 && phase == "q_proj")
                m.at(2, 5) *= 1 + 1e-6;
            }),
            "prompt2/prefill/0/layer.1/q_proj");
  Matrix64 before;
  EXPECT_EQ(divergence([&](const PassInput& pass, int layer, std::string_view phase, Matrix64& m) {
              if (layer != 0) return;
              if (phase == "q_proj") before = m;
              if (phase != "q_rope") return;
              const std::vector<double> frequency = rope_frequencies(weights.config().rope);
              for (int64_t t = 0; t < m.rows; t++)
                for (int64_t h = 0; h < heads; h++)
                  for (int64_t j = 0; j < d / 2; j++) {
                    const double angle = double(pass.position + t) * frequency[size_t(j)];
                    const double x = before.at(t, h * d + 2 * j), y = before.at(t, h * d + 2 * j + 1);
                    m.at(t, h * d + 2 * j) = x * std::cos(angle) - y * std::sin(angle);
                    m.at(t, h * d + 2 * j + 1) = y * std::cos(angle) + x * std::sin(angle);
                  }
            }),
            "prompt2/prefill/0/layer.0/q_rope");
}

TEST_F(OracleRun, RefusesWhatItCanNotRun) {
  const Weights64 weights = Weights64::open(dir / "model");
  Request r = request_of(dir, 1);
  r.ids.clear();
  EXPECT_THROW(write_dump(weights, {r}, options), Error);
  r.ids = {1 << 30};
  EXPECT_THROW(write_dump(weights, {r}, options), Error);
  r.ids.assign(100000, 1);
  EXPECT_THROW(write_dump(weights, {r}, options), Error);
  r.ids = {1};
  options.capture.phases = {"router_*"};
  EXPECT_THROW(write_dump(weights, {r}, options), Error);
  EXPECT_FALSE(fs::exists(options.out));
}

TEST(OracleRecords, NodeErrorsAsJson) {
  NodeError e;
  e.name = "prompt0/prefill/0/embed";
  e.added = INFINITY;
  e.problem = "nan where float64 has 0.3";
  const auto j = to_json(e, "target", 1e-3);
  EXPECT_EQ(j["status"], "fail");
  EXPECT_EQ(j["added"], "Infinity");
  EXPECT_EQ(j["reason"], e.problem);
  e.added = 1e-4;
  EXPECT_EQ(to_json(e, "base", 1e-3)["status"], "pass");
  EXPECT_EQ(to_json(e, "base")["status"], "shown");
}

}  // namespace
}  // namespace assay::oracle

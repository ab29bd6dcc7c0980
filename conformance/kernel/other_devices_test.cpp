// Whole models on devices that have less than the one that kernels were written for: an older architecture, less shared
// memory, no clusters. Other kernels are chosen there and some calls refused, which the CPU then does: the bytes are
// the same. Each op alone: cuda/*_test.cpp.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <string>

#include "conformance/integration/cases.h"
#include "conformance/integration/quantised.h"
#include "conformance/runner.h"
#include "cuda/test_support.h"
#include "dumps/compare.h"
#include "dumps/error.h"
#include "engine/device.h"

namespace assay {
namespace {

namespace fs = std::filesystem;

class OtherDevices : public testing::Test {
 protected:
  OtherDevices() {
    context_.root = ASSAY_SOURCE_DIR;
    context_.work = fs::path(testing::TempDir()) / ("other-devices-" + std::to_string(getpid()));
    fs::create_directories(context_.work);
  }
  ~OtherDevices() override { fs::remove_all(context_.work); }

  /// A prompt of many rows and one of few, with three decode passes each.
  DumpSpec spec_of(const OfficialCase& oc) const {
    DumpSpec s = case_spec(context_, oc, false);
    s.mode = CaptureMode::hash;
    s.replace = true;
    s.engine.kv = KvType::f16;
    s.requests.resize(2);
    for (size_t i = 0; i < 2; i++) {
      std::vector<int32_t>& ids = s.requests[i].ids;
      const std::vector<int32_t> own = ids;
      while (ids.size() < (i == 0 ? 36u : 3u)) ids.push_back(own[ids.size() % own.size()]);
      ids.resize(i == 0 ? 36 : 3);
      s.requests[i].decode = 3;
    }
    return s;
  }
  void holds(const std::shared_ptr<const Model>& model, DumpSpec spec) {
    spec.out = context_.work / "cpu";
    run_dump(model, spec);
    const Dump base = Dump::open(spec.out);
    spec.engine.device.module = built_module("simt").string();
    spec.out = context_.work / "device";
    CompareOptions options;
    options.level = Level::byte_exact;
    for (const test::OtherDevice& other : test::kOtherDevices) {
      SCOPED_TRACE(other.name);
      const test::Emulated emulated(other);
      const DumpRun run = run_dump(model, spec);
      const CompareResult r = compare(base, Dump::open(spec.out), options);
      EXPECT_EQ(r.exit_code(), kPass) << (r.divergence ? r.divergence->name : "");
      std::map<std::string_view, int64_t> ran;
      for (const TraceEntry& e : run.trace.entries) ran[e.backend]++;
      EXPECT_GT(ran["simt"], 0);
      EXPECT_TRUE(ran["cpu"] > 0 || other.kib() > 48) << "nothing was refused";
    }
  }
  CheckContext context_;
};

TEST_F(OtherDevices, FloatWeights) {
  const OfficialCase& oc = official_case("qwen2-bias");
  holds(shared_model(case_dir(context_, oc) / "model"), spec_of(oc));
}
TEST_F(OtherDevices, QuantisedWeights) {
  const OfficialCase& oc = official_case("qwen3-k256");
  holds(quantised_case(context_, oc, WeightType::q4_k), spec_of(oc));
}

}  // namespace
}  // namespace assay

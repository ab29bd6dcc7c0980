// The width checks can fail: the same run with a fault planted in the engine, at a few rows.
#include "conformance/integration/oracle_width.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "conformance/runner.h"

namespace assay {
namespace {

TEST(OracleWidth, APlantedFaultLeavesItsBound) {
  CheckContext c;
  c.work = std::filesystem::temp_directory_path() / ("assay-width-" + std::to_string(getpid()));
  std::filesystem::create_directories(c.work);
  const std::string model = "synth:" + head_dim_config(c, 96) + ":BF16:layers=1";
  const CheckOutcome clean = run_width(c, model, 3, Activations::f32, KvType::f32);
  EXPECT_EQ(clean.failed, 0) << (clean.failures.empty() ? "" : clean.failures[0]);
  EXPECT_GT(clean.compared, 10000);
  c.alter = [](DumpSpec& spec) { spec.plant = "rope-pairs"; };
  const CheckOutcome wrong = run_width(c, model, 3, Activations::f32, KvType::f32);
  EXPECT_GT(wrong.failed, 100);
  EXPECT_EQ(wrong.place.substr(0, wrong.place.find(',')), "layer.0/q_rope");
  std::filesystem::remove_all(c.work);
}

}  // namespace
}  // namespace assay

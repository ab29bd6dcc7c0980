// What slots of a hybrid hold: states are taken back into a verify pass and nowhere else, copied, reset; and drafts of an MTP head
// change no byte.
#include <gtest/gtest.h>

#include "dumps/error.h"
#include "engine/formats/loader.h"
#include "engine/mtp.h"

namespace assay {
namespace {

std::shared_ptr<const Model> model_of(const char* name) {
  return std::make_shared<Model>(load_model(std::filesystem::path(ASSAY_SOURCE_DIR) / "goldens/official" / name / "model"));
}

EngineOptions options() {
  EngineOptions o;
  o.threads = 2;
  o.kv = KvType::f32;
  o.slots = 2;
  o.context = 64;
  o.poison = true;
  return o;
}

const float* run(Engine& e, Pass pass, int slot, std::vector<int32_t> ids) {
  Batch b;
  b.pass = pass;
  b.segments = {{slot, e.length(slot), int64_t(ids.size()), 0, 0}};
  b.logit_rows = {int64_t(ids.size()) - 1};
  b.ids = std::move(ids);
  return e.forward(b);
}

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Hybrid, AStateGoesBackIntoItsLastVerifyPassAlone) {
  Engine e(model_of("qwen3_5-odd"), options());
  run(e, Pass::prefill, 0, {5, 6, 7});
  const std::string three = e.state_hash(0);
  EXPECT_NE(refusal([&] { e.truncate(0, 2); }).find("a recurrent state can't go back"), std::string::npos);
  run(e, Pass::verify, 0, {8, 9, 10, 11});
  run(e, Pass::prefill, 1, {5, 6, 7, 8, 9});
  EXPECT_NE(refusal([&] { e.truncate(0, 2); }).find("3 to 7"), std::string::npos) << "the pass is still there";
}

TEST(Hybrid, RowsThatAreTakenBackLeaveNoTrace) {
  Engine e(model_of("qwen3_5-odd"), options());
  run(e, Pass::prefill, 1, {5, 6, 7, 8, 9});
  const std::string five = e.state_hash(1);
  run(e, Pass::prefill, 0, {5, 6, 7});
  const std::string three = e.state_hash(0);
  run(e, Pass::verify, 0, {8, 9, 10, 11});
  EXPECT_NE(e.state_hash(0), five);
  e.truncate(0, 5);
  EXPECT_EQ(e.state_hash(0), five);
  run(e, Pass::verify, 0, {10, 11});
  e.truncate(0, 5);   // all of it
  EXPECT_EQ(e.state_hash(0), five);
  EXPECT_NE(refusal([&] { e.truncate(0, 3); }), "") << "that pass is gone";
  e.truncate(0, 0);
  run(e, Pass::prefill, 0, {5, 6, 7});
  EXPECT_EQ(e.state_hash(0), three) << "a new sequence sees nothing of the old one";
  e.copy_slot(1, 0);
  EXPECT_EQ(e.state_hash(0), five);
  EXPECT_EQ(e.length(0), 5);
}

TEST(Hybrid, LayersWithoutAttentionHoldNoCache) {
  const auto model = model_of("qwen3_5-odd");
  Engine e(model, options());
  size_t kv = 0, gdn = 0;
  for (int l = 0; l < int(model->config.layers); l++) {
    EXPECT_EQ(e.kv(l).elements() == 0, model->config.is_gdn(l)) << l;
    EXPECT_EQ(e.gdn(l).floats() > 0, model->config.is_gdn(l)) << l;
    kv += 2 * size_t(e.kv(l).elements()) * sizeof(float);
    gdn += size_t(2 * e.gdn(l).floats()) * sizeof(float);
  }
  EXPECT_EQ(e.memory().kv, kv);
  EXPECT_EQ(e.memory().gdn, gdn);
}

TEST(Hybrid, SpeculationIsPlainGreedyDecoding) {
  Engine e(model_of("qwen3_5-mtp"), options());
  const Request request{{137, 32, 22, 171, 38}, 20, {}};
  const auto plain = generate(e, {&request, 1}, {});
  for (int64_t draft : {1, 3, 8}) {
    SpeculationOptions o;
    o.draft = draft;
    o.chunk = 2;
    const Speculation s = speculate(e, request, o);
    EXPECT_EQ(s.ids, plain[0].greedy) << draft;
    EXPECT_LE(s.rounds, 20);
    EXPECT_GE(s.drafted[0], s.accepted[0]);
  }
}

TEST(Hybrid, SpeculationSaysWhatItCantDo) {
  Engine none(model_of("qwen3_5-odd"), options());
  const Request request{{1, 2}, 4, {}}, forced{{1, 2}, 4, {3}};
  EXPECT_NE(refusal([&] { speculate(none, request, {}); }).find("no MTP head"), std::string::npos);
  Engine e(model_of("qwen3_5-mtp"), options());
  EXPECT_NE(refusal([&] { speculate(e, forced, {}); }).find("forced"), std::string::npos);
  SpeculationOptions o;
  o.draft = 0;
  EXPECT_NE(refusal([&] { speculate(e, request, o); }).find("1 to 64"), std::string::npos);
  Batch b;
  b.pass = Pass::mtp_decode;
  b.ids = {1};
  b.segments = {{0, 0, 1, 0, 0}};
  EXPECT_NE(refusal([&] { e.forward(b); }).find("no hidden states"), std::string::npos);
}

}  // namespace
}  // namespace assay

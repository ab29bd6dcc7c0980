#include "engine/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dumps/error.h"
#include "engine/formats/loader.h"

namespace assay {
namespace {

std::shared_ptr<const Model> tiny() {
  static auto model = std::make_shared<Model>(load_model(std::string(ASSAY_SOURCE_DIR) + "/goldens/official/qwen2-bias/model"));
  return model;
}

EngineOptions options(int64_t context = 32, int slots = 1) {
  EngineOptions o;
  o.kv = KvType::f16;
  o.threads = 2;
  o.context = context;
  o.slots = slots;
  o.poison = true;
  return o;
}

/// The error's text; fails the test if there is none of that kind.
std::string error_of(ErrorKind kind, const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    EXPECT_EQ(int(e.kind()), int(kind)) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return "";
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Session, ContextOverflowSaysWantedAndFound) {
  Engine e(tiny(), options(8));
  const Request r{{1, 2, 3, 4, 5, 6}, 3, {}};
  const std::string text = error_of(ErrorKind::usage, [&] { generate(e, std::span(&r, 1), {}); });
  EXPECT_TRUE(has(text, "9 positions") && has(text, "a context of 8")) << text;
}

TEST(Session, BatchesThatDoNotContinueTheirSlotAreRefused) {
  Engine e(tiny(), options(8, 2));
  Batch b;
  b.ids = {1, 2};
  b.segments = {{0, 1, 2, 0, 0}};
  EXPECT_TRUE(has(error_of(ErrorKind::usage, [&] { e.forward(b); }), "does not continue"));
  b.segments = {{5, 0, 2, 0, 0}};
  EXPECT_TRUE(has(error_of(ErrorKind::usage, [&] { e.forward(b); }), "no such slot"));
  b.segments = {{0, 0, 1, 0, 0}, {0, 0, 1, 0, 0}};
  EXPECT_TRUE(has(error_of(ErrorKind::usage, [&] { e.forward(b); }), "two segments"));
  b.segments = {{0, 0, 3, 0, 0}};
  EXPECT_TRUE(has(error_of(ErrorKind::usage, [&] { e.forward(b); }), "disagree"));
  b.segments = {{0, 0, 2, 0, 0}};
  b.ids = {1, 401};
  EXPECT_TRUE(has(error_of(ErrorKind::usage, [&] { e.forward(b); }), "outside the vocabulary"));
  b.ids = {1, 400};
  b.logit_rows = {1};
  EXPECT_NE(e.forward(b), nullptr);
  EXPECT_EQ(e.length(0), 2);
}

TEST(Session, RepeatedRunsInAnySlotHaveEqualStateAndLogits) {
  Engine e(tiny(), options(40, 3));
  const Request r{{7, 300, 12, 12, 9}, 8, {}};
  std::string hash;
  std::vector<float> logits;
  for (int slot : {0, 0, 2, 1}) {
    GenerateOptions o;
    o.slot = slot;
    o.chunk = slot + 1;
    const Generated g = generate(e, std::span(&r, 1), o)[0];
    EXPECT_EQ(g.greedy.size(), 9u);
    if (hash.empty()) {
      hash = e.state_hash(slot);
      logits = g.last_logits;
    }
    EXPECT_EQ(e.state_hash(slot), hash) << "slot " << slot;
    EXPECT_EQ(g.last_logits, logits) << "slot " << slot;
  }
  e.truncate(2, 4);
  EXPECT_NE(e.state_hash(2), hash);
}

TEST(Session, RaggedBatchEqualsEachPromptAlone) {
  Engine e(tiny(), options(40, 3));
  const std::vector<Request> requests = {{{1}, 5, {}}, {{9, 8, 7, 6, 5, 4, 3}, 2, {}}, {{100, 200, 300}, 0, {}}};
  GenerateOptions batched;
  batched.batch = true;
  batched.chunk = 2;
  const auto together = generate(e, requests, batched);
  for (size_t i = 0; i < requests.size(); i++) {
    const auto alone = generate(e, std::span(&requests[i], 1), {});
    EXPECT_EQ(together[i].greedy, alone[0].greedy) << i;
    EXPECT_EQ(together[i].last_logits, alone[0].last_logits) << i;
  }
}

TEST(Session, ForcedIdsAreFedInsteadOfTheGreedyOnes) {
  Engine e(tiny(), options(40));
  const Request free{{1, 2, 3}, 4, {}};
  const auto g = generate(e, std::span(&free, 1), {})[0];
  Request forced = free;
  forced.forced.assign(g.greedy.begin(), g.greedy.end() - 1);   // the last id is fed to no pass
  EXPECT_EQ(generate(e, std::span(&forced, 1), {})[0].last_logits, g.last_logits);
  forced.forced[1] = (forced.forced[1] + 1) % 401;
  EXPECT_NE(generate(e, std::span(&forced, 1), {})[0].last_logits, g.last_logits);
}

/// Plants one value into a node's output where a position asks for it.
void spoil(Engine& e, int layer, const char* phase, int64_t position, int64_t column, float value) {
  Node* n = e.plantable_program().find(layer, phase);
  ASSERT_NE(n, nullptr);
  CpuBackend* b = &e.plantable_backend();
  n->variant = "spoiled";
  n->replacement = [=](NodeContext& c) {
    b->run(c);
    for (int64_t r = 0; r < c.rows; r++)
      if (c.positions[r] == position) c.output[r * c.columns + column] = value;
  };
}

TEST(Session, NanStopsGenerationAndIsLocatedAtItsFirstNode) {
  Engine e(tiny(), options(40));
  spoil(e, 1, "up_proj", 4, 17, std::numeric_limits<float>::quiet_NaN());   // position 4 is decode step 1
  const Request r{{1, 2, 3}, 6, {}};
  const Generated g = generate(e, std::span(&r, 1), {})[0];
  EXPECT_EQ(g.greedy.size(), 2u);
  ASSERT_TRUE(g.non_finite);
  EXPECT_EQ(g.non_finite->text(), "prompt0/decode/1/layer.1/up_proj, position 4, column 17: nan");

  Request forced = r;   // with forced ids it goes on
  forced.forced = {1, 2, 3, 4, 5, 6};
  const Generated f = generate(e, std::span(&forced, 1), {})[0];
  EXPECT_EQ(f.greedy.size(), 7u);
  EXPECT_EQ(f.greedy[2], -1);
  EXPECT_EQ(f.non_finite->text(), g.non_finite->text());
}

TEST(Session, ValuesThatDoNotFitTheF16CacheAreAnErrorWithAPlace) {
  const Request r{{1, 2, 3}, 3, {}};
  EngineOptions o = options(40);
  {
    Engine e(tiny(), o);
    spoil(e, 2, "v_proj", 3, 5, 65520.0f);   // rounds to infinity
    const std::string text = error_of(ErrorKind::numeric, [&] { generate(e, std::span(&r, 1), {}); });
    EXPECT_TRUE(has(text, "layer.2/v_proj") && has(text, "position 3, column 5") && has(text, "65504")) << text;
  }
  for (float fits : {65519.0f, -65504.0f}) {
    Engine e(tiny(), o);
    spoil(e, 2, "v_proj", 3, 5, fits);
    EXPECT_EQ(generate(e, std::span(&r, 1), {})[0].greedy.size(), 4u);
  }
  o.kv = KvType::bf16;
  Engine e(tiny(), o);
  spoil(e, 2, "v_proj", 3, 5, 65520.0f);
  EXPECT_EQ(generate(e, std::span(&r, 1), {})[0].greedy.size(), 4u);
}

TEST(Session, ArgmaxTakesTheLowerIdOfATieAndRefusesNan) {
  const float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(argmax(std::vector<float>{1, 3, 3, 2}), 1);
  EXPECT_EQ(argmax(std::vector<float>{-inf, -inf}), 0);
  EXPECT_EQ(argmax(std::vector<float>{1, inf, nan}), std::nullopt);
  EXPECT_EQ(argmax(std::vector<float>{nan, 1}), std::nullopt);
}

TEST(Session, TheTraceSaysWhichCodeRan) {
  EngineOptions o = options(40);
  o.isa = Isa::scalar;
  Engine e(tiny(), o);
  Trace t;
  const Request r{{1, 2, 3}, 2, {}};
  generate(e, std::span(&r, 1), {}, nullptr, &t);
  ASSERT_EQ(t.variants().size(), 1u);
  EXPECT_EQ(t.variants()[0].first, "cpu/scalar");
  EXPECT_EQ(t.passes, 3);
  EXPECT_EQ(t.variants()[0].second, int64_t(3 * e.program().nodes.size()));
}

TEST(Session, AttentionReadsTheStateNotThisPassesRows) {   // B15, D9: a skipped store must show
  Engine clean(tiny(), options(40)), planted(tiny(), options(40));
  Node* store = planted.plantable_program().find(1, "kv_store");
  ASSERT_NE(store, nullptr);
  store->variant = "store dropped";
  store->replacement = [](NodeContext&) {};
  const Request r{{1, 2, 3}, 1, {}};
  EXPECT_EQ(generate(clean, std::span(&r, 1), {})[0].greedy.size(), 2u);
  const Generated g = generate(planted, std::span(&r, 1), {})[0];   // the poisoned cache reaches the logits
  ASSERT_TRUE(g.non_finite);
  EXPECT_EQ(g.non_finite->phase, "attn_context");
  EXPECT_EQ(g.non_finite->layer, 1);
}

}  // namespace
}  // namespace assay

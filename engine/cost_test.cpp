// Counts by hand: a model small enough that every figure can be checked with a pencil.
#include "engine/cost.h"

#include <gtest/gtest.h>

#include "engine/formats/synth.h"
#include "engine/formats/test_files.h"
#include "engine/session.h"

namespace assay {
namespace {

using namespace testing_files;

/// tiny_model: hidden 32, 4 heads of 16, 2 kv heads, ffn 64, vocab 50, 2 layers, F32, untied.
struct Tiny {
  explicit Tiny(const std::string& family, WeightType t) {
    tiny_model(family).write(dir.path());
    model = make_synthetic_model({(dir.path() / "config.json").string(), t, 1, 0});
    program = build_program(model);
  }
  TempDir dir;
  Model model;
  Program program;
  NodeCost of(int layer, const char* phase, const PassLoad& load) const {
    const Node* n = program.find(layer, phase);
    EXPECT_NE(n, nullptr) << phase;
    return n ? cost_of(*n, program, load) : NodeCost{};
  }
};

TEST(Cost, NodesByHand) {
  const Tiny t("qwen2", WeightType::q8_0);
  const PassLoad decode = PassLoad::of_sequence(9, 1, KvType::f16);   // the tenth token
  const PassLoad prefill = PassLoad::of_sequence(2, 3, KvType::f32);  // tokens 2, 3, 4 of a prompt
  EXPECT_EQ(decode.positions, 10);
  EXPECT_EQ(decode.cached, 10);
  EXPECT_EQ(prefill.positions, 3 + 4 + 5);
  EXPECT_EQ(prefill.cached, 5);

  // q_proj: [64, 32] in Q8_0, one block of 34 bytes per row, bias of 64.
  EXPECT_EQ(t.of(0, "q_proj", decode).operations, 2 * 64 * 32 + 64);
  EXPECT_EQ(t.of(0, "q_proj", decode).weight_bytes, 64 * 34 + 64 * 4);
  EXPECT_EQ(t.of(0, "q_proj", decode).value_bytes, (32 + 64) * 4);
  EXPECT_EQ(t.of(0, "q_proj", prefill).operations, 3 * (2 * 64 * 32 + 64));
  EXPECT_EQ(t.of(0, "q_proj", prefill).weight_bytes, 64 * 34 + 64 * 4);
  EXPECT_EQ(t.of(0, "q_proj", prefill).moved(), 64 * 34 + 64 * 4);
  // embed: a row of 32 per token. Logits: [50, 32], of one row.
  EXPECT_EQ(t.of(-1, "embed", prefill).weight_bytes, 3 * 34);
  EXPECT_EQ(t.of(-1, "embed", prefill).operations, 0);
  EXPECT_EQ(t.of(-1, "logits", prefill).operations, 2 * 50 * 32);
  EXPECT_EQ(t.of(-1, "logits", prefill).weight_bytes, 50 * 34);
  // Norm over 32: 32 fma, / K, + eps, sqrt, 1 /, then two products each.
  EXPECT_EQ(t.of(1, "attn_norm", prefill).operations, 3 * (64 + 4 + 64));
  EXPECT_EQ(t.of(1, "attn_norm", prefill).weight_bytes, 32 * 4);
  // k_rope: 2 heads of 16, per column a product and an fma.
  EXPECT_EQ(t.of(0, "k_rope", prefill).operations, 3 * 32 * 3);
  // Cache: K and V of 2 heads of 16. Attention: 4 heads, dot and mix of 16 (64 operations) and 5 more per position.
  EXPECT_EQ(t.of(0, "kv_store", decode).state_written, 2 * 32 * 2);
  EXPECT_EQ(t.of(0, "kv_store", prefill).state_written, 3 * 2 * 32 * 4);
  EXPECT_EQ(t.of(0, "attn_context", decode).state_read, 10 * 2 * 32 * 2);
  EXPECT_EQ(t.of(0, "attn_context", prefill).state_read, 5 * 2 * 32 * 4);
  EXPECT_EQ(t.of(0, "attn_context", prefill).operations, 12 * 4 * (64 + 5) + 3 * 64);
  EXPECT_EQ(t.of(0, "ffn_act", decode).operations, 5 * 64);
  EXPECT_EQ(t.of(0, "ffn_residual", decode).operations, 32);
}

TEST(Cost, AWholePassByHand) {
  const Tiny t("qwen3", WeightType::f16);
  const PassLoad decode = PassLoad::of_sequence(0, 1, KvType::f16);
  const NodeCost c = cost_of(t.program, decode);
  // Per layer in f16: q 64*32, k and v 32*32, o 32*64, gate, up, down 64*32; norms of 32 twice and of 16 twice in f32.
  const int64_t matrices = 2 * 64 * 32 + 2 * 32 * 32 + 3 * 64 * 32, norms = 2 * 32 + 2 * 16;
  EXPECT_EQ(c.weight_bytes, 2 * (2 * matrices + 4 * norms) + 32 * 2 + 32 * 4 + 50 * 32 * 2);
  EXPECT_EQ(c.state_read, 2 * 2 * 32 * 2);
  EXPECT_EQ(c.state_written, 2 * 2 * 32 * 2);
  const int64_t norm = 4 * 32 + 4, head_norms = 4 * 64 + 4 * 4 + 4 * 32 + 4 * 2, ropes = 3 * 64 + 3 * 32;
  const int64_t attention = 4 * 69 + 64, rest = 5 * 64 + 2 * 32;
  EXPECT_EQ(c.operations, 2 * (2 * matrices + 2 * norm + head_norms + ropes + attention + rest) + norm + 2 * 50 * 32);
}

TEST(Cost, LoadsOfBatches) {
  Batch b;
  b.ids = {1, 2, 3, 4};
  b.segments = {{0, 5, 3, 0, 0}, {1, 0, 1, 1, 0}};
  b.logit_rows = {2, 3};
  const PassLoad l = PassLoad::of(b, KvType::bf16);
  EXPECT_EQ(l.rows, 4);
  EXPECT_EQ(l.logit_rows, 2);
  EXPECT_EQ(l.positions, 6 + 7 + 8 + 1);
  EXPECT_EQ(l.cached, 8 + 1);
  const Tiny t("llama", WeightType::q4_0);
  EXPECT_EQ(t.of(-1, "logits", l).operations, 2 * (2 * 50 * 32));
  Batch none = b;
  none.logit_rows.clear();  // a chunk of a prompt that is not its last: the head is not read
  EXPECT_EQ(t.of(-1, "logits", PassLoad::of(none, KvType::bf16)).moved(), 0);
}

}  // namespace
}  // namespace assay

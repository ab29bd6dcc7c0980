#include "dumps/names.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "dumps/dtype.h"

namespace assay {
namespace {

TEST(DType, NamesAreInverse) {
  for (int i = 0; i <= int(DType::boolean); ++i) {
    const DType t = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(name_of(t)), t);
    EXPECT_GE(size_of(t), 1u);
  }
  EXPECT_EQ(size_of(DType::bf16), 2u);
  EXPECT_EQ(name_of(DType::boolean), "BOOL");
  EXPECT_FALSE(dtype_from_name("F8_E4M3"));
  EXPECT_FALSE(dtype_from_name("f32"));
  EXPECT_TRUE(is_float(DType::f16));
  EXPECT_FALSE(is_float(DType::i64));
}

TEST(Names, PassesAreInverse) {
  for (int i = 0; i <= int(Pass::mtp_decode); ++i) {
    const Pass p = static_cast<Pass>(i);
    EXPECT_EQ(pass_from_name(name_of(p)), p);
  }
  EXPECT_FALSE(pass_from_name("state"));
}

TEST(Names, ParsesEveryForm) {
  auto n = parse_tensor_name("prompt12/prefill/0/layer.3/q_rope");
  ASSERT_TRUE(n);
  EXPECT_EQ(n->prompt, "prompt12");
  EXPECT_EQ(n->pass, "prefill");
  EXPECT_EQ(n->step, "0");
  EXPECT_EQ(n->layer, "layer.3");
  EXPECT_EQ(n->phase, "q_rope");
  EXPECT_FALSE(n->is_state());

  n = parse_tensor_name("prompt0/decode/17/logits");
  ASSERT_TRUE(n);
  EXPECT_EQ(n->layer, "");
  EXPECT_EQ(n->step, "17");

  n = parse_tensor_name("prompt1/state/after_prefill/layer.0/k");
  ASSERT_TRUE(n);
  EXPECT_TRUE(n->is_state());
  EXPECT_EQ(n->step, "after_prefill");

  n = parse_tensor_name("prompt1/greedy_ids");
  ASSERT_TRUE(n);
  EXPECT_EQ(n->pass, "");
}

TEST(Names, RefusesStrangeNames) {
  for (const char* s : {"", "prompt0", "prompt/ids", "prompt0/other", "prompt00/ids", "promptx/ids", "prompt0/prefill/0",
                        "prompt0/prefill/x/embed", "prompt0/prefill/-1/embed", "prompt0//0/embed", "prompt0/prefill/0/a/b/c",
                        "prompt0/state/after_prefill/k", "model.layers.0.q", "prompt0/prefill/0/layer.0/",
                        "prompt99999999999999999999/ids"}) {
    EXPECT_FALSE(parse_tensor_name(s)) << s;
  }
}

TEST(Names, NumbersAreThereOrSaidToBeAbsent) {
  const auto n = parse_tensor_name("prompt2147483647/decode/1099511627776/layer.12/q_rope");
  ASSERT_TRUE(n);
  EXPECT_EQ(n->prompt_number(), 2147483647);
  EXPECT_EQ(n->step_number(), int64_t(1) << 40);
  EXPECT_EQ(n->layer_number(), 12);
  EXPECT_EQ(parse_tensor_name("prompt0/prefill/0/embed")->layer_number(), -1);
  EXPECT_EQ(parse_tensor_name("prompt0/state/after_prefill/layer.0/k")->step_number(), -1);
  for (const char* name : {"prompt0/prefill/0/layer.x/q", "prompt0/prefill/0/layer.1x/q", "prompt0/prefill/0/mtp.0/q",
                           "prompt0/prefill/0/layer.99999999999/q"})
    EXPECT_FALSE(parse_tensor_name(name)->layer_number()) << name;
  for (const char* name : {"prompt3000000000/prefill/0/embed", "prompt0/decode/9223372036854775807/embed",
                           "prompt0/decode/99999999999999999999/embed"})
    EXPECT_FALSE(parse_tensor_name(name)) << name;
}

TEST(Names, BuildsWhatItParses) {
  EXPECT_EQ(tensor_name(0, Pass::prefill, 0, 3, "q_rope"), "prompt0/prefill/0/layer.3/q_rope");
  EXPECT_EQ(tensor_name(2, Pass::decode, 7, -1, "logits"), "prompt2/decode/7/logits");
  EXPECT_EQ(tensor_name(0, Pass::mtp_draft, 1, 0, "k"), "prompt0/mtp_draft/1/mtp.0/k");
  EXPECT_EQ(state_name(1, "after_decode", "layer.2", "v"), "prompt1/state/after_decode/layer.2/v");
}

TEST(Names, ExecutionOrder) {
  const std::vector<std::string> want = {
      "prompt0/prefill/0/embed", "prompt0/prefill/0/layer.0/attn_norm", "prompt0/prefill/0/layer.0/q_proj",
      "prompt0/prefill/0/layer.0/attn_post_norm", "prompt0/prefill/0/layer.0/attn_residual",
      "prompt0/prefill/0/layer.0/ffn_post_norm", "prompt0/prefill/0/layer.0/ffn_residual",
      "prompt0/prefill/0/layer.2/attn_norm",
      "prompt0/prefill/0/layer.10/attn_norm", "prompt0/prefill/0/final_norm", "prompt0/prefill/0/logits",
      "prompt0/prefill/0/logits_last", "prompt0/decode/2/embed", "prompt0/decode/10/embed",
      "prompt0/mtp_prefill/0/mtp_fc", "prompt0/mtp_prefill/0/mtp.0/attn_norm", "prompt0/mtp_prefill/0/mtp_norm",
      "prompt0/mtp_decode/0/mtp_embed", "prompt0/state/after_prefill/layer.0/k",
      "prompt0/state/after_prefill/layer.0/v", "prompt0/state/after_decode/layer.1/k", "prompt0/ids",
      "prompt0/greedy_ids", "prompt2/ids", "prompt10/prefill/0/embed", "any.other.name"};
  std::vector<std::string> got = want;
  std::sort(got.begin(), got.end());
  std::stable_sort(got.begin(), got.end(),
                   [](const auto& a, const auto& b) { return execution_key(a) < execution_key(b); });
  EXPECT_EQ(got, want);
  // A place given by the manifest goes before the vocabulary's.
  EXPECT_LT(execution_key("prompt0/prefill/0/layer.9/new_phase", 1), execution_key("prompt0/prefill/0/embed", 2));
}

}  // namespace
}  // namespace assay

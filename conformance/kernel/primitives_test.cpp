#include "conformance/kernel/primitives.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "conformance/kernel/kernel_check.h"
#include "cuda/prim_check.h"

namespace assay {
namespace {

const Check& check_named(const std::string& id) {
  return *std::find_if(registry().begin(), registry().end(), [&](const Check& c) { return c.id == id; });
}

TEST(Primitives, OneBitOfOneWordIsSeenAndPlaced) {
  for (const ExpectedPrimitive& e : expected_primitives()) {
    const CheckOutcome right = judge_primitive(e, {}, e.output);
    EXPECT_EQ(right.failed, 0) << e.name;
    EXPECT_EQ(right.compared, 8) << e.name;
    const CheckOutcome wrong = judge_primitive(e, {}, [&](const PrimitiveWords& in) {
      PrimitiveWords out = e.output(in);
      out[40961] ^= 1u << 20;
      return out;
    });
    EXPECT_EQ(wrong.failed, 8) << e.name;
    ASSERT_FALSE(wrong.failures.empty());
    EXPECT_NE(wrong.failures[0].find("any bits 0: word 40961: "), std::string::npos) << wrong.failures[0];
    EXPECT_NE(wrong.failures[0].find("[case 0]"), std::string::npos) << wrong.failures[0];
  }
}
/// A machine that left out what it was asked for would be seen on these inputs: no two primitives that read them agree.
TEST(Primitives, ExpectationsTellThemApart) {
  PrimitiveWords in(ASSAY_PRIMITIVE_WORDS);
  for (size_t i = 0; i < in.size(); i++) in[i] = uint32_t(i) * 2654435761u ^ 0x5bd1e995u;
  const auto all = expected_primitives();
  for (size_t i = 0; i < all.size(); i++)
    for (size_t j = 0; j < i; j++)
      EXPECT_NE(all[i].output(in), all[j].output(in)) << all[i].name << " and " << all[j].name;
}
TEST(Primitives, AreRecordedAsOtherKernelChecks) {
  for (const ExpectedPrimitive& e : expected_primitives())
    for (const char* device : {"simt", "cuda"}) {
      const Check& check = check_named(std::string("kernel/primitives/") + e.name + "/" + device);
      EXPECT_EQ(check.device, device);
      EXPECT_EQ(check.scope, Scope::kernel);
      CheckContext names;
      names.kernel.only = kNoCase;
      ASSERT_TRUE(check.cpu_digests);
      EXPECT_EQ(check.cpu_digests({}, "").at(0).name, check.cpu_digests(names, "").at(0).name) << check.id;
    }
  CheckContext c;
  const CheckOutcome o = check_named("kernel/primitives/clusters_16/simt").run(c);
  ASSERT_EQ(o.not_run, "");
  EXPECT_EQ(o.failed, 0);
  EXPECT_EQ(o.ran.launches, 8);
  EXPECT_EQ(o.ran.variants.at("clusters_16"), 8);
  EXPECT_EQ(o.digests, check_named("kernel/primitives/clusters_16/cuda").cpu_digests(c, ""));
}

}  // namespace
}  // namespace assay

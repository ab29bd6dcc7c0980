// The emulated primitives, with copies at every time that a device might choose, against what prim_expected.h says; the checks
// kernel/primitives/* hold a device against it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <regex>
#include <string>

#include "cuda/prim_check.h"
#include "cuda/prim_expected.h"

namespace assay {
namespace {

PrimitiveWords random_words(uint64_t seed) {
  std::mt19937_64 rng(seed);
  PrimitiveWords in(ASSAY_PRIMITIVE_WORDS);
  for (uint32_t& v : in) v = uint32_t(rng());
  return in;
}

TEST(Primitives, DoWhatTheManualSays) {
  const PrimitiveWords in = random_words(1);
  int which = 0;
  for (const ExpectedPrimitive& e : expected_primitives()) {
    ASSERT_STREQ(assay_primitive_name(which), e.name);
    const PrimitiveWords want = e.output(in);
    for (const char* copies : {"late", "early", "random"}) {
      setenv("ASSAY_SIMT_COPIES", copies, 1);
      PrimitiveWords out(in.size());
      char words[512];
      ASSERT_EQ(assay_check_primitive(0, which, in.data(), out.data(), words), 1) << e.name << ": " << words;
      for (size_t at = 0; at < in.size(); at++) ASSERT_EQ(out[at], want[at]) << e.name << ", word " << at << ", copies " << copies;
    }
    which++;
  }
  unsetenv("ASSAY_SIMT_COPIES");
  EXPECT_EQ(assay_primitive_name(which), nullptr) << "is nowhere written down plainly";
}
/// A primitive that no check calls could do one thing here and another on a device.
TEST(Primitives, EachOfPrimHasACheck) {
  const auto text_of = [](const char* name) {
    std::ifstream file(std::string(ASSAY_SOURCE_DIR "/cuda/") + name);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string declared = text_of("prim.cuh"), checks = text_of("prim_check.cu");
  const std::regex function("__device__ __forceinline__ \\w+ (\\w+)\\(");
  int functions = 0;
  for (std::sregex_iterator i(declared.begin(), declared.end(), function), end; i != end; ++i, functions++) {
    const std::string name = (*i)[1];
    EXPECT_TRUE(std::regex_search(checks, std::regex("\\b" + name + "(<\\d+>)?\\("))) << name << " of prim.cuh is called by no check";
  }
  EXPECT_GT(functions, 20);
}

}  // namespace
}  // namespace assay

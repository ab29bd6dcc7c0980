#include "conformance/quality/nll.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "dumps/error.h"
#include "engine/formats/loader.h"

namespace assay {
namespace {

TEST(Nll, OfOneIdAgainstTheFormula) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 8);
  for (const size_t n : {1, 2, 31, 1000, 50000}) {
    std::vector<float> logits(n);
    for (float& x : logits) x = normal(random);
    const int32_t id = int32_t(random() % n);
    long double sum = 0, largest = *std::max_element(logits.begin(), logits.end());
    for (const float x : logits) sum += std::exp((long double)x - largest);
    const double wanted = double(std::log(sum) + largest - (long double)logits[size_t(id)]);
    EXPECT_NEAR(nll_of(logits, id), wanted, 1e-12 * (1 + std::abs(wanted))) << n;
  }
}

TEST(Nll, ExtremeLogits) {
  const float inf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(nll_of(std::vector<float>{5}, 0), 0);
  EXPECT_NEAR(nll_of(std::vector<float>{1, 1, 1, 1}, 2), std::log(4.0), 1e-15);
  EXPECT_EQ(nll_of(std::vector<float>{0, 3e38f}, 1), 0);
  EXPECT_NEAR(nll_of(std::vector<float>{-3e38f, 3e38f}, 0), 6e38, 1e32);
  EXPECT_EQ(nll_of(std::vector<float>{0, -inf}, 0), 0);
  EXPECT_EQ(nll_of(std::vector<float>{0, -inf}, 1), inf);
  EXPECT_TRUE(std::isnan(nll_of(std::vector<float>{0, NAN, 1}, 0))) << "a NaN elsewhere in the row counts";
  EXPECT_TRUE(std::isnan(nll_of(std::vector<float>{0, inf}, 1)));
}

class TokenNllTest : public testing::Test {
 protected:
  Engine engine(int64_t context, int threads = 1, std::optional<Isa> isa = {}) {
    EngineOptions o;
    o.context = context;
    o.threads = threads;
    if (isa) o.isa = *isa;
    return Engine(model, o);
  }
  static std::vector<double> values(const Nll& n) {
    std::vector<double> out;
    for (const TokenNll& t : n.tokens) out.push_back(t.nll);
    return out;
  }
  const std::shared_ptr<const Model> model =
      std::make_shared<Model>(load_model(std::string(ASSAY_SOURCE_DIR) + "/goldens/official/qwen2-bias/model"));
  const std::vector<int32_t> ids = [] {
    std::vector<int32_t> v;
    for (int i = 0; i < 45; i++) v.push_back((i * i * 7 + 3 * i) % 401);
    return v;
  }();
};

TEST_F(TokenNllTest, BytesDependOnNoChunkThreadPassOrInstructionSet) {
  Engine base = engine(64);
  const Nll wanted = token_nll(base, ids, {.chunk = 0});
  ASSERT_EQ(wanted.tokens.size(), ids.size() - 1);
  EXPECT_FALSE(wanted.not_finite);
  for (const int64_t chunk : {1, 7, 44, 1000}) {
    Engine e = engine(64, 3);
    EXPECT_EQ(values(token_nll(e, ids, {.chunk = chunk})), values(wanted)) << chunk;
  }
  Engine scalar = engine(64, 1, Isa::scalar);
  EXPECT_EQ(values(token_nll(scalar, ids, {})), values(wanted));
  EXPECT_EQ(values(token_nll(base, ids, {.pass = Pass::decode})), values(wanted));
}

TEST_F(TokenNllTest, WindowsStartAnewAndPrefixesAreNotJudged) {
  Engine e = engine(64);
  const Nll all = token_nll(e, ids, {}), windows = token_nll(e, ids, {.window = 20});
  EXPECT_EQ(windows.tokens.size(), ids.size() - 3);
  EXPECT_EQ(windows.tokens[18].index, 19);
  EXPECT_EQ(windows.tokens[19].index, 21) << "the first id of a window has no prediction";
  EXPECT_EQ(windows.tokens[19].window, 1);
  EXPECT_EQ(windows.tokens[19].position, 1);
  for (size_t i = 0; i < 19; i++) EXPECT_EQ(windows.tokens[i].nll, all.tokens[i].nll);
  EXPECT_NE(windows.tokens[19].nll, all.tokens[20].nll);

  const Nll prefixed = token_nll(e, std::span(ids).subspan(1), {.prefix = {ids[0]}});
  EXPECT_EQ(values(prefixed), values(all)) << "a prefix is read as the text's first id is";
  EXPECT_EQ(prefixed.tokens[0].index, 0);
  EXPECT_EQ(values(token_nll(e, std::span(ids).subspan(3), {.pass = Pass::decode, .prefix = {ids[0], ids[1], ids[2]}}))
                .front(),
            all.tokens[2].nll);
  EXPECT_EQ(token_nll(e, std::span(ids).first(10), {.window = 4, .prefix = {1}}).tokens.size(), 10u)
      << "every id is judged with a prefix";
}

TEST_F(TokenNllTest, MeanAndPerplexity) {
  Nll n;
  for (const double x : {1.0, 2.0, 6.0}) n.tokens.push_back({0, 0, 0, x});
  EXPECT_EQ(n.mean(), 3.0);
  EXPECT_EQ(n.perplexity(), std::exp(3.0));
}

TEST_F(TokenNllTest, BadRequestsAreUsageErrors) {
  Engine e = engine(16);
  const std::vector<int32_t> outside = {1, 401};
  EXPECT_THROW(token_nll(e, std::span(ids).first(1), {}), Error);
  EXPECT_THROW(token_nll(e, std::vector<int32_t>{}, {}), Error);
  EXPECT_THROW(token_nll(e, outside, {}), Error);
  EXPECT_THROW(token_nll(e, ids, {.window = 17}), Error);
  EXPECT_THROW(token_nll(e, ids, {.window = 1}), Error);
}

}  // namespace
}  // namespace assay

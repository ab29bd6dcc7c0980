#include "engine/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "dumps/error.h"

namespace assay {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::map<int32_t, int> counts(const std::vector<float>& logits, const SamplingOptions& o, int n) {
  std::map<int32_t, int> out;
  for (int i = 0; i < n; i++) out[sample(logits, o, 7, uint32_t(i)).value()]++;
  return out;
}

TEST(Sampling, PhiloxGivesTheKnownAnswers) {  // kat_vectors of the Random123 distribution
  using C = std::array<uint32_t, 4>;
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}), (C{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}), (C{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32_10({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (C{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Sampling, TemperatureZeroIsGreedyAndTiesGoToTheLowerId) {
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3, 2}, {}, 0, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{1, 3, 3, 2}, {.temperature = 1, .top_k = 1}, 0, 0), 1);
  EXPECT_EQ(sample(std::vector<float>{-1, -0.0f, 0.0f}, {.temperature = 1, .top_k = 1}, 0, 0), 1) << "-0 equals +0";
}

TEST(Sampling, ANaNChoosesNoId) {
  for (const float temperature : {0.0f, 0.7f})
    EXPECT_EQ(sample(std::vector<float>{1, NAN, 3}, {.temperature = temperature}, 0, 0), std::nullopt);
}

TEST(Sampling, InfiniteLogits) {
  const SamplingOptions o{.temperature = 1};
  EXPECT_EQ(counts({1, kInf, 3, kInf}, o, 400).size(), 2u);
  EXPECT_EQ(counts({1, kInf, 3, kInf}, o, 400).begin()->first, 1);
  EXPECT_EQ(counts({-kInf, 0, -kInf}, o, 100).at(1), 100);
  EXPECT_EQ(counts({-kInf, -kInf}, o, 400).size(), 2u);
  EXPECT_EQ(counts({1e38f, 3e38f}, {.temperature = 1e-3f}, 400).size(), 2u) << "both overflow to Inf";
}

TEST(Sampling, SharesFollowTheProbabilities) {
  const std::vector<float> logits = {std::log(1.0f), std::log(2.0f), std::log(5.0f)};
  const int n = 40000;
  const auto plain = counts(logits, {.temperature = 1, .seed = 3}, n);
  for (const auto& [id, share] : {std::pair(0, 0.125), std::pair(1, 0.25), std::pair(2, 0.625)})
    EXPECT_NEAR(plain.at(id) / double(n), share,
                5 * std::sqrt(share * (1 - share) / n));                 // five standard deviations, seed fixed
  const auto hot = counts(logits, {.temperature = 0.5f, .seed = 3}, n);  // 1 : 4 : 25
  EXPECT_NEAR(hot.at(2) / double(n), 25 / 30.0, 0.01);
}

TEST(Sampling, FiltersKeepWhatTheyShould) {
  const std::vector<float> logits = {std::log(10.0f), std::log(40.0f), std::log(30.0f),
                                     std::log(20.0f)};  // 40, 30, 20, 10
  auto kept = [&](const SamplingOptions& o) {
    std::vector<int32_t> ids;
    for (const auto& [id, n] : counts(logits, o, 2000)) ids.push_back(id);
    return ids;
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(kept({.temperature = 1}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2}), (Ids{1, 2}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 99}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.39f}), (Ids{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.41f}), (Ids{1, 2})) << "the id that crosses p stays";
  EXPECT_EQ(kept({.temperature = 1, .top_p = 0.91f}), (Ids{0, 1, 2, 3}));
  EXPECT_EQ(kept({.temperature = 1, .min_p = 0.6f}), (Ids{1, 2})) << "0.75 of the largest stays, 0.5 goes";
  EXPECT_EQ(kept({.temperature = 1, .min_p = 1}), (Ids{1}));
  EXPECT_EQ(kept({.temperature = 1, .top_k = 2, .top_p = 0.5f}), (Ids{1}))
      << "top-p of what top-k left: 4/7 crosses 0.5";
}

TEST(Sampling, AnIdDependsOnSeedSequenceAndPositionAlone) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(5000);
  for (float& x : logits) x = normal(random);
  const SamplingOptions o{.temperature = 1.5f, .top_p = 0.95f, .seed = 0x123456789abcdefull};
  std::map<std::tuple<uint64_t, uint64_t, uint32_t>, int32_t> forward;
  for (uint64_t sequence : {0ull, 1ull, 1ull << 32})
    for (uint32_t position = 0; position < 20; position++)
      forward[{o.seed, sequence, position}] = *sample(logits, o, sequence, position);
  int moved = 0;
  for (auto at = forward.rbegin(); at != forward.rend(); ++at) {  // in another order, between others
    const auto& [seed, sequence, position] = at->first;
    sample(logits, o, sequence + 5, position);
    EXPECT_EQ(sample(logits, o, sequence, position), at->second);
    SamplingOptions other = o;
    other.seed ^= 1ull << 40;
    moved += sample(logits, other, sequence, position) != at->second;
  }
  EXPECT_GT(moved, 50) << "the upper half of the seed counts";
  EXPECT_NE((forward[{o.seed, 0, 3}]), (forward[{o.seed, 1ull << 32, 3}])) << "the upper half of the sequence counts";
}

TEST(Sampling, OptionsOutOfRangeAreRefused) {
  for (const SamplingOptions& o :
       {SamplingOptions{.temperature = -1}, SamplingOptions{.temperature = NAN}, SamplingOptions{.temperature = kInf},
        SamplingOptions{.top_k = -1}, SamplingOptions{.top_p = 0}, SamplingOptions{.top_p = 1.5f},
        SamplingOptions{.top_p = NAN}, SamplingOptions{.min_p = -0.1f}, SamplingOptions{.min_p = NAN}})
    EXPECT_THROW(check_sampling(o), Error);
}

}  // namespace
}  // namespace assay

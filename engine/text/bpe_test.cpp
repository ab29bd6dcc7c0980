#include "engine/text/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/text/unicode.h"

namespace assay {
namespace {

TEST(ByteLevel, TheAlphabetIsGpt2s) {
  EXPECT_EQ(byte_level_of_bytes(" a\n\x7F\xAD\xFF!"), "\u0120a\u010A\u0121\u0143\u00FF!");
  for (int b = 0; b < 256; b++) {
    const std::string bytes(1, char(b));
    EXPECT_EQ(bytes_of_byte_level(byte_level_of_bytes(bytes)), bytes) << b;
    EXPECT_EQ(first_invalid_utf8(byte_level_of_bytes(bytes)), std::nullopt) << b;
  }
  EXPECT_EQ(bytes_of_byte_level("a b"), std::nullopt);  // the space is spelled U+0120
  EXPECT_EQ(bytes_of_byte_level("\u4E2D"), std::nullopt);
}

struct Vocabulary {
  std::unordered_map<std::string, int32_t> tokens;
  std::vector<Merge> merges;
};

/// Random merges over few letters, so that words meet many of them.
Vocabulary random_vocabulary(std::mt19937& rng, int merges) {
  Vocabulary v;
  std::vector<std::string> all;
  for (char c = 'a'; c < 'd'; c++) {
    v.tokens[std::string(1, c)] = int32_t(all.size());
    all.push_back(std::string(1, c));
  }
  for (int i = 0; i < merges; i++) {
    const std::string l = all[rng() % all.size()], r = all[rng() % all.size()];
    if (l.size() + r.size() > 12) continue;
    const std::string both = l + r;
    if (v.tokens.try_emplace(both, int32_t(all.size())).second) all.push_back(both);
    const auto id = [&](const std::string& s) { return v.tokens.at(s); };
    v.merges.push_back({id(both.substr(0, both.size() - r.size())), id(r), id(both)});
    if (all.size() > 60) break;
  }
  return v;
}

/// The rule as it is written down: again and again, of all pairs the one of lowest rank, the leftmost of them.
std::vector<int32_t> by_the_rule(const Vocabulary& v, const std::string& word) {
  std::map<std::pair<int32_t, int32_t>, std::pair<size_t, int32_t>> ranks;
  for (size_t i = 0; i < v.merges.size(); i++) ranks[{v.merges[i].left, v.merges[i].right}] = {i, v.merges[i].result};
  std::vector<int32_t> ids;
  for (char c : word) ids.push_back(v.tokens.at(std::string(1, c)));
  while (true) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < ids.size(); i++) {
      auto it = ranks.find({ids[i], ids[i + 1]});
      if (it != ranks.end() && it->second.first < best) {
        best = it->second.first;
        at = i;
      }
    }
    if (best == SIZE_MAX) return ids;
    ids[at] = ranks.at({ids[at], ids[at + 1]}).second;
    ids.erase(ids.begin() + ptrdiff_t(at) + 1);
  }
}

TEST(Bpe, MergesAsTheRuleSays) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  for (int round = 0; round < 300; round++) {
    const Vocabulary v = random_vocabulary(rng, 40);
    const Bpe bpe(v.tokens, v.merges, -1, false);
    for (int w = 0; w < 10; w++) {
      std::string word(rng() % 40, 'a');
      for (char& c : word) c = char('a' + rng() % 3);
      std::vector<int32_t> ids;
      bpe.encode(word, ids);
      ASSERT_EQ(ids, by_the_rule(v, word)) << word;
    }
  }
}

TEST(Bpe, OfTwoMergesOfOnePairTheLaterCounts) {
  const std::unordered_map<std::string, int32_t> tokens = {{"a", 0}, {"b", 1}, {"c", 2}, {"ab", 3}, {"bc", 4}};
  std::vector<int32_t> ids;
  Bpe(tokens, {{0, 1, 3}, {1, 2, 4}, {0, 1, 3}}, -1, false).encode("abc", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 4}));
}

TEST(Bpe, WholeWordsFirstWhereMergesAreIgnored) {
  const std::unordered_map<std::string, int32_t> tokens = {{"a", 0}, {"b", 1}, {"ab", 2}, {"aba", 3}};
  for (bool ignore : {false, true}) {
    std::vector<int32_t> ids;
    Bpe(tokens, {{0, 1, 2}}, -1, ignore).encode("aba", ids);
    EXPECT_EQ(ids, ignore ? (std::vector<int32_t>{3}) : (std::vector<int32_t>{2, 0}));
  }
}

TEST(Bpe, AByteWithoutTokenIsUnknownOrLeftOut) {
  const std::unordered_map<std::string, int32_t> tokens = {{"a", 0}, {"b", 1}, {"ab", 2}, {"<unk>", 3}};
  std::vector<int32_t> ids;
  Bpe(tokens, {{0, 1, 2}}, 3, false).encode("axb", ids);
  EXPECT_EQ(ids, (std::vector<int32_t>{0, 3, 1}));
  ids.clear();
  Bpe(tokens, {{0, 1, 2}}, -1, false).encode("axbx", ids);  // its neighbours meet, as in the official code
  EXPECT_EQ(ids, (std::vector<int32_t>{2}));
  ids.clear();
  Bpe(tokens, {{0, 1, 2}}, -1, false).encode("xx", ids);
  EXPECT_TRUE(ids.empty());
}

// Half a megabyte without a space: with a merge step over the whole word it would not end within a day.
TEST(Bpe, LongWords) {
  std::unordered_map<std::string, int32_t> tokens = {{"a", 0}};
  std::vector<Merge> merges;
  for (int32_t i = 0; i < 10; i++) {
    merges.push_back({i, i, i + 1});
    tokens[std::string(size_t{2} << i, 'a')] = i + 1;
  }
  std::vector<int32_t> ids;
  Bpe(tokens, merges, -1, false).encode(std::string((512 << 10) + 5, 'a'), ids);
  ASSERT_EQ(ids.size(), 512u + 2);
  EXPECT_EQ(ids[0], 10);
  EXPECT_EQ(ids[511], 10);
  EXPECT_EQ(ids[512], 2);
  EXPECT_EQ(ids[513], 0);
}

}  // namespace
}  // namespace assay

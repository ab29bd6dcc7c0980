#include "engine/text/added_tokens.h"

#include <gtest/gtest.h>

#include <random>

namespace assay {
namespace {

AddedToken token(const std::string& content, int32_t id, bool special = true) {
  AddedToken t;
  t.content = content;
  t.id = id;
  t.special = special;
  return t;
}

/// "text|<7:token>|..."
std::string split(const AddedTokenFinder& f, const std::string& text, bool parse_special = true) {
  std::vector<TextPart> parts;
  f.split(text, parse_special, parts);
  std::string out;
  for (const TextPart& p : parts)
    out += (out.empty() ? "" : "|") +
           (p.id < 0 ? std::string(p.text) : "<" + std::to_string(p.id) + ":" + std::string(p.text) + ">");
  return out;
}

TEST(AddedTokens, LeftmostAndThereLongest) {
  const AddedTokenFinder f({token("<s>", 1), token("<s>x", 2), token("s>", 3), token("xyz", 4)});
  EXPECT_EQ(split(f, ""), "");
  EXPECT_EQ(split(f, "ab"), "ab");
  EXPECT_EQ(split(f, "<s>"), "<1:<s>>");
  EXPECT_EQ(split(f, "a<s>xyz"), "a|<2:<s>x>|yz");
  EXPECT_EQ(split(f, "s>><s>"), "<3:s>>|>|<1:<s>>");
  EXPECT_EQ(split(f, "<<s"), "<<s");
}

TEST(AddedTokens, SpecialOnesAreTextWhenTheyAreNotParsed) {
  const AddedTokenFinder f({token("<a>", 1), token("<b>", 2, false), token("a>", 3, false)});
  EXPECT_EQ(split(f, "<a><b>", false), "<a>|<2:<b>>");
  EXPECT_EQ(split(f, "xa>", false), "x|<3:a>>");  // but a special token hides what begins inside it, as above
}

TEST(AddedTokens, SingleWordsStandAlone) {
  AddedToken t = token("cat", 1);
  t.single_word = true;
  const AddedTokenFinder f({t});
  EXPECT_EQ(split(f, "cat cats acat -cat- \u00E9cat cat"), "<1:cat>| cats acat -|<1:cat>|- \u00E9cat |<1:cat>");
}

TEST(AddedTokens, WhiteSpaceIsTaken) {
  AddedToken left = token("L", 1), right = token("R", 2), both = token("B", 3);
  left.lstrip = both.lstrip = right.rstrip = both.rstrip = true;
  const AddedTokenFinder f({left, right, both});
  EXPECT_EQ(split(f, "a \u3000\tL b"), "a|<1: \u3000\tL>| b");
  EXPECT_EQ(split(f, "a R \n\u00A0b"), "a |<2:R \n\u00A0>|b");
  EXPECT_EQ(split(f, "R  L"), "<2:R  >|<1:L>");  // taken once
  EXPECT_EQ(split(f, " B "), "<3: B >");
  EXPECT_EQ(split(f, "a\u200BL"), "a\u200B|<1:L>");  // U+200B is no white space
}

TEST(AddedTokens, AgainstTheRuleOnRandomTexts) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  const auto random_text = [&](size_t most) {
    std::string s(1 + rng() % most, 'a');
    for (char& c : s) c = char('a' + rng() % 3);
    return s;
  };
  for (int round = 0; round < 500; round++) {
    std::vector<AddedToken> tokens;
    for (int i = 0; i < 4; i++) tokens.push_back(token(random_text(4), i));
    for (size_t i = 0; i < tokens.size(); i++)  // of equal contents the later one counts
      for (size_t j = i + 1; j < tokens.size(); j++)
        if (tokens[i].content == tokens[j].content) tokens[i].content = "zzz";
    const std::string text = random_text(30);
    std::string wanted, plain;
    for (size_t i = 0; i < text.size();) {
      const AddedToken* best = nullptr;
      for (const AddedToken& t : tokens)
        if (text.compare(i, t.content.size(), t.content) == 0 && (!best || t.content.size() > best->content.size()))
          best = &t;
      if (!best) {
        plain += text[i++];
        continue;
      }
      if (!plain.empty()) wanted += (wanted.empty() ? "" : "|") + plain;
      plain.clear();
      wanted += (wanted.empty() ? "<" : "|<") + std::to_string(best->id) + ":" + best->content + ">";
      i += best->content.size();
    }
    if (!plain.empty()) wanted += (wanted.empty() ? "" : "|") + plain;
    ASSERT_EQ(split(AddedTokenFinder(tokens), text), wanted) << text;
  }
}

}  // namespace
}  // namespace assay

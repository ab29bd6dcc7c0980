#include "engine/text/unicode.h"

#include <gtest/gtest.h>

namespace assay {
namespace {

const std::string kBad = "\xEF\xBF\xBD";

std::string times(int n, const std::string& s) {
  std::string out;
  for (int i = 0; i < n; i++) out += s;
  return out;
}

std::string replaced(std::string bytes) {
  return take_utf8(bytes, true);
}

// Unicode 15, tables 3-8 to 3-11.
TEST(Unicode, MaximalIllFormedPartsBecomeOneReplacementEach) {
  EXPECT_EQ(replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), times(8, kBad) + "A");
  EXPECT_EQ(replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), times(8, kBad) + "A");
  EXPECT_EQ(replaced("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), times(5, kBad) + "A" + times(2, kBad) + "B");
  EXPECT_EQ(replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), times(4, kBad) + "A");
}

TEST(Unicode, EveryCharacterIsWholeAndEverySurrogateIsNot) {
  for (char32_t c = 0; c <= 0x10FFFF; c += c < 0x3000 ? 1 : 61) {
    std::string s;
    if (c < 0x80) {
      s = {char(c)};
    } else if (c < 0x800) {
      s = {char(0xC0 | c >> 6), char(0x80 | (c & 63))};
    } else if (c < 0x10000) {
      s = {char(0xE0 | c >> 12), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
    } else {
      s = {char(0xF0 | c >> 18), char(0x80 | (c >> 12 & 63)), char(0x80 | (c >> 6 & 63)), char(0x80 | (c & 63))};
    }
    const Utf8Step step = utf8_step(s);
    if (c >= 0xD800 && c <= 0xDFFF) {
      EXPECT_EQ(step.kind, Utf8Step::broken) << uint32_t(c);
      continue;
    }
    ASSERT_EQ(step.kind, Utf8Step::whole) << uint32_t(c);
    ASSERT_EQ(uint32_t(step.character), uint32_t(c));
    ASSERT_EQ(step.bytes, s.size());
    ASSERT_EQ(uint32_t(last_character("x" + s)), uint32_t(c));
    for (size_t cut = 1; cut < s.size(); cut++)
      ASSERT_EQ(utf8_step(s.substr(0, cut)).kind, Utf8Step::cut) << uint32_t(c);
  }
}

TEST(Unicode, AnUnfinishedCharacterWaits) {
  std::string bytes = "a\xE2\x82";
  EXPECT_EQ(take_utf8(bytes, false), "a");
  EXPECT_EQ(bytes, "\xE2\x82");
  bytes += "\xAC";
  EXPECT_EQ(take_utf8(bytes, false), "\xE2\x82\xAC");
  EXPECT_EQ(bytes, "");
  EXPECT_EQ(first_invalid_utf8("ab\xE2\x82"), std::optional<size_t>(2));
  EXPECT_EQ(first_invalid_utf8("ab\xE2\x82\xAC"), std::nullopt);
}

TEST(Unicode, Nfc) {
  EXPECT_EQ(nfc("plain"), "plain");
  EXPECT_EQ(nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(nfc("q\u0307\u0323"), "q\u0323\u0307");  // reordered, nothing to compose
  EXPECT_EQ(nfc("\u1112\u1161\u11AB"), "\uD55C");    // Hangul
  EXPECT_EQ(nfc("\u0958"), "\u0915\u093C");          // a composition exclusion comes apart
  EXPECT_EQ(nfc("\uFB01\u00BD"), "\uFB01\u00BD");    // compatibility forms stay
  EXPECT_EQ(nfc(std::string("\0e\u0301", 4)), std::string("\0\u00E9", 3));
  EXPECT_EQ(nfc("\uFFFE\U0010FFFF"), "\uFFFE\U0010FFFF");  // noncharacters are text
}

TEST(Unicode, Classes) {
  EXPECT_TRUE(is_white_space(0x85));
  EXPECT_TRUE(is_white_space(0x3000));
  EXPECT_FALSE(is_white_space(0x180E));
  EXPECT_FALSE(is_white_space(0x200B));
  for (char32_t c : {U'a', U'_', U'\u00E9', U'9', U'\u0301', U'\u200D', U'\u4E2D', U'\u24B6'})
    EXPECT_TRUE(is_word_character(c)) << uint32_t(c);
  for (char32_t c : {U' ', U'-', U'\u00B2', U'\u3002', U'\u00A0'}) EXPECT_FALSE(is_word_character(c)) << uint32_t(c);
}

TEST(Unicode, ReadableTextCanNotSteerATerminal) {
  EXPECT_EQ(readable("a\u00E9\u4E2D \"\\\n"), "\"a\u00E9\u4E2D \\\"\\\\\\n\"");
  EXPECT_EQ(readable("\x1B[31m\x7F\u009B\u202E\xE4"), "\"\\x1b[31m\\x7f\\xc2\\x9b\\xe2\\x80\\xae\\xe4\"");
}

}  // namespace
}  // namespace assay

#include "engine/text/regex.h"

#include <gtest/gtest.h>

#include "dumps/error.h"
#include "engine/formats/test_files.h"
#include "engine/text/pretokenizer.h"

namespace assay {
namespace {

std::string found(const std::string& pattern, const std::string& text) {
  std::vector<Regex::Match> matches;
  Regex(pattern, "test").find_all(text, matches);
  std::string out;
  for (const auto& m : matches) out += "[" + text.substr(m.begin, m.end - m.begin) + "]";
  return out;
}

TEST(Regex, Gpt2Pattern) {
  EXPECT_EQ(found(kGpt2Pattern, "We've 12 cats,  ok\n\n x"), "[We]['ve][ 12][ cats][,][ ][ ok][\n\n][ x]");
  EXPECT_EQ(found(kGpt2Pattern, "  "), "[  ]");
}

// Oniguruma's \s is White_Space; PCRE2's also takes U+180E, and Ruby's \v is one character.
TEST(Regex, WhiteSpaceIsTheProperty) {
  EXPECT_EQ(found(R"(\s+)", "a\u180Eb\u2003\u00A0\u0085c\u200B\x0B"), "[\u2003\u00A0\u0085][\x0B]");
  EXPECT_EQ(found(R"([^\s]+)", "a\u180Eb c"), "[a\u180Eb][c]");
  EXPECT_EQ(found(R"(\S+)", "a\u180Eb\u3000c"), "[a\u180Eb][c]");
  EXPECT_EQ(found(R"([\S]+)", "a\u180Eb\u3000c"), "[a\u180Eb][c]");
  EXPECT_EQ(found(R"(\v)", "\n\x0B\u2028"), "[\x0B]");
  EXPECT_EQ(found(R"(\d)", "1\u0663\u00B2a"), "[1][\u0663]");
}

// PCRE2 takes Script_Extensions for a plain script name: U+3001 is Common, and used with Han.
TEST(Regex, AScriptIsTheScriptAlone) {
  EXPECT_EQ(found(R"(\p{Han}+)", "\u4E2D\u3001\u6587"), "[\u4E2D][\u6587]");
}

TEST(Regex, CaseInsensitiveGroupsFoldUnicode) {
  EXPECT_EQ(found("(?i:'s|'ll)", "'S 'lL '\u017F"), "['S]['lL]['\u017F]");
}

TEST(Regex, EmptyMatchesGoOnBehindTheNextCharacter) {
  EXPECT_EQ(found("x*", "a\u00E9xx"), "[][][xx][]");
  EXPECT_EQ(found("(?=b)", "abab"), "[][]");
  EXPECT_EQ(found("a", ""), "");
}

TEST(Regex, AWordMayBeLong) {
  const std::string text(300000, 'a');
  EXPECT_EQ(found(kGpt2Pattern, text).size(), text.size() + 2);
  const std::string blanks(300000, ' ');
  EXPECT_EQ(found(kGpt2Pattern, blanks + "x").size(), blanks.size() + 1 + 4);
}

TEST(Regex, APatternThatRunsAwayIsAnError) {
  const std::string message = testing_files::error_of([] { found("(?:a+)+[^a]", std::string(64, 'a')); });
  EXPECT_NE(message.find("can't be matched"), std::string::npos) << message;
}

TEST(Regex, WhatTheEnginesReadDifferentlyIsRefusedByName) {
  const std::pair<const char*, const char*> rows[] = {
      {R"(\w+)", "\\w"},
      {R"(a\b)", "\\b"},
      {R"(\h)", "\\h"},
      {R"(\R)", "\\R"},
      {R"((a)\1)", "\\1"},
      {"^a", "anchors"},
      {"a$", "anchors"},
      {"[a&&b]", "inters"},
      {"[a[bc]]", "class"},
      {"[]a]", "class"},
      {"[a", "no end"},
      {"a{,3}", "{n}"},
      {"a{2}+", "{2}+"},
      {"a{x}", "{n}"},
      {"(?s:.)", "(?s:"},
      {"(*UTF)a", "(*"},
      {"(?<n>a)", "(?<n"},
      {R"(\x41)", "\\x"},
      {R"(\x{110000})", ""},
      {R"(\u12)", "\\u12"},
      {R"(\p{L)", "\\p{"},
      {R"(\p{L}{)", "{"},
      {R"(\p{No-such})", "property"},
      {R"(\p{Nosuch})", "compile"},
      {"(a", "compile"},
      {"a\\", "\\"},
      {R"([[:alpha:]])", "class"},
      {"\xC3(", "UTF-8"},
  };
  for (const auto& [pattern, says] : rows) {
    const std::string message = testing_files::error_of([&] { Regex(pattern, "pre_tokenizer.pattern"); });
    EXPECT_NE(message.find(says), std::string::npos) << pattern << "\n" << message;
    EXPECT_NE(message.find("pre_tokenizer.pattern"), std::string::npos) << pattern << "\n" << message;
  }
}

TEST(Regex, LiteralTextIsNoPattern) {
  std::vector<Regex::Match> matches;
  Regex::literal("a.b*", "test").find_all("axb a.b*", matches);
  ASSERT_EQ(matches.size(), 1u);
  EXPECT_EQ(matches[0].begin, 4u);
}

}  // namespace
}  // namespace assay

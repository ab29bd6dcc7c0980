#include "engine/text/tokenizer.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "engine/formats/gguf.h"
#include "engine/formats/gguf_writer.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/provenance.h"
#include "engine/formats/test_files.h"
#include "engine/text/test_tokenizers.h"
#include "engine/text/tokenizer_model.h"
#include "engine/text/unicode.h"

namespace assay {
namespace {

using testing_files::error_of;
using testing_files::TempDir;
using testing_files::write_file;
using namespace testing_text;

using Ids = std::vector<int32_t>;
const std::string kSmolLM2 = std::string(ASSAY_SOURCE_DIR) + "/goldens/tokenizers/tokenizer-smollm2/tokenizer.json";

/// Characters of every length and kind: ASCII, marks, Hangul, Han, emoji, the last ones.
std::string random_text(std::mt19937& rng, size_t characters) {
  static const char* const kPool[] = {"a",      "b",      "t",      "h",       "e",          " ",       " ",
                                      "\n",     "\t",     "'s",     "1",       "\u00E9",     "e\u0301", "\u0920",
                                      "\u4E2D", "\uD55C", "\u1112", "\u200D",  "\U0001F600", "\uFFFF",  "\U0010FFFD",
                                      "<s>",    "<",      "</s",    "<think>", "\x7F",       "."};
  std::string s;
  for (size_t i = 0; i < characters; i++) s += kPool[rng() % std::size(kPool)];
  return s;
}

TEST(Tokenizer, MergesAndSpecialTokens) {
  const Tokenizer t = tokenizer_of(tiny_json({{"t", "h"}, {"th", "e"}, {"\u0120", "the"}}));
  EXPECT_EQ(t.encode("the the<s>"), (Ids{257, 258, 259}));
  EXPECT_EQ(pieces(t, "th <think>x</s>"), "[th][ ][<think>][x][</s>]");
  EXPECT_EQ(pieces(t, "<s><think>", false), "[<][s][>][<think>]");  // <think> is added, but not special
  EXPECT_EQ(t.decode(Ids{258, 259, 260}), " the<s></s>");
  EXPECT_EQ(t.encode(""), Ids{});
  EXPECT_EQ(t.decode({}), "");
  EXPECT_EQ(t.vocab_size(), 262);
  EXPECT_EQ(t.special_ids(), (Ids{259, 260}));
  EXPECT_TRUE(t.is_special(259));
  EXPECT_FALSE(t.is_special(261));
  EXPECT_FALSE(t.is_special(-1));
  EXPECT_EQ(t.id(" the"), 258);
  EXPECT_EQ(t.id("</s>"), 260);
  EXPECT_EQ(t.id("nothing"), std::nullopt);
  EXPECT_EQ(t.token(258), " the");
  EXPECT_FALSE(t.has_token(262));
  EXPECT_EQ(t.decode(Ids{258, 5000, -1, 258}), " the the");  // rows of padding say nothing
}

TEST(Tokenizer, TextThatIsNoUtf8IsRefusedWithItsPlace) {
  EXPECT_NE(error_of([] { tokenizer_of(tiny_json()).encode("ab\xC3"); }).find("byte 2"), std::string::npos);
}

TEST(Tokenizer, MergesMayBeStrings) {
  OrderedJson a = tiny_json({{"t", "h"}, {"th", "e"}}), b = a;
  b["model"]["merges"] = {"t h", "th e"};
  EXPECT_EQ(tokenizer_of(a).encode("the th"), tokenizer_of(b).encode("the th"));
  for (const char* bad : {"th", "t h e", " h", "t ", ""}) {
    b["model"]["merges"] = {"t h", bad};
    EXPECT_NE(error_of([&] { tokenizer_of(b); }).find("merges[1]"), std::string::npos) << bad;
  }
}

TEST(Tokenizer, NfcWhereTheNormalizerAsks) {
  OrderedJson j = tiny_json({{"\u00C3", "\u00A9"}});  // the bytes of U+00E9
  EXPECT_EQ(tokenizer_of(j).encode("e\u0301").size(), 3u);
  j["normalizer"] = {{"type", "NFC"}};
  EXPECT_EQ(tokenizer_of(j).encode("e\u0301"), (Ids{256}));
  j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}};
  EXPECT_EQ(tokenizer_of(j).encode("e\u0301"), (Ids{256}));
}

// A token with "normalized" is looked for after normalisation, in its normalised form; others before it.
TEST(Tokenizer, NormalizedAddedTokens) {
  OrderedJson j = tiny_json();
  j["normalizer"] = {{"type", "NFC"}};
  j["added_tokens"].push_back({{"id", 300}, {"content", "e\u0301!"}, {"normalized", true}, {"special", false}});
  j["added_tokens"].push_back({{"id", 301}, {"content", "o\u0301!"}, {"normalized", false}, {"special", false}});
  const Tokenizer t = tokenizer_of(j);
  EXPECT_EQ(t.encode("e\u0301!"), (Ids{300}));
  EXPECT_EQ(t.encode("\u00E9!"), (Ids{300}));
  EXPECT_EQ(t.encode("o\u0301!"), (Ids{301}));
  EXPECT_EQ(t.encode("\u00F3!").size(), 3u);
  EXPECT_EQ(t.decode(Ids{300, 301}), "e\u0301!o\u0301!");
}

TEST(Tokenizer, PreTokenizers) {
  // Every two neighbours of "aa  11" merge where no cut lies between them.
  const std::vector<std::pair<std::string, std::string>> merges = {{"a", "a"}, {"1", "1"},      {"\u0120", "\u0120"},
                                                                   {"a", "1"}, {"\u0120", "a"}, {"\u0120", "1"}};
  const auto with = [&](OrderedJson pre) {
    OrderedJson j = tiny_json(merges);
    j["pre_tokenizer"] = std::move(pre);
    return tokenizer_of(j);
  };
  EXPECT_EQ(pieces(with(sequence({})), "aa11"), "[aa][11]");
  EXPECT_EQ(pieces(with(sequence({{{"type", "Digits"}, {"individual_digits", true}}})), "a11a1"), "[a][1][1][a][1]");
  EXPECT_EQ(pieces(with(sequence({{{"type", "Digits"}, {"individual_digits", false}}})), "a11a1"), "[a][11][a][1]");
  EXPECT_EQ(pieces(with(sequence({split("a")})), "aa11"), "[a][a][11]");
  EXPECT_EQ(pieces(with(sequence({split("a", "Removed")})), "1a1"), "[1][1]");
  EXPECT_EQ(pieces(with(sequence({split("a+", "Removed", true)})), "1aa1"), "[aa]");
  EXPECT_EQ(pieces(with(sequence({split("a", "Isolated", true)})), "aa11"), "[a][a][11]");
  EXPECT_EQ(pieces(with(sequence({split("(?=a)")})), "1a1a"), "[1][a1][a]");
  const OrderedJson text = {{"type", "Split"}, {"pattern", {{"String", "a"}}}, {"behavior", "Isolated"}};
  EXPECT_EQ(pieces(with(sequence({text})), "aa1"), "[a][a][1]");
  const OrderedJson byte_level = {{"type", "ByteLevel"}};  // both of its switches are on where it says nothing
  EXPECT_EQ(pieces(with(byte_level), "a11<s>a"), "[ a][11][<s>][ a]");
  EXPECT_EQ(pieces(with(byte_level), " a  1"), "[ a][ ][ 1]");
}

TEST(Tokenizer, APostProcessorsIdsAreThePrefix) {
  OrderedJson j = tiny_json();
  j["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
         {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {256}}, {"tokens", {"<s>"}}}}}}}}}};
  const Tokenizer t = tokenizer_of(j);
  EXPECT_EQ(t.prefix(), (Ids{256}));
  EXPECT_EQ(t.encode("a").size(), 1u);
  auto& single = j["post_processor"]["processors"][1]["single"];
  std::swap(single[0], single[1]);  // an id behind the text
  EXPECT_NE(error_of([&] { tokenizer_of(j); }).find("single"), std::string::npos);
}

// Official code would do something else with each of these; nothing may load and be wrong.
TEST(Tokenizer, WhatIsNotSupportedIsRefusedByName) {
  struct Row {
    const char* path;
    OrderedJson value;
    const char* says;
  };
  const Row rows[] = {
      {"/normalizer", {{"type", "NFKC"}}, "NFKC"},
      {"/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "Lowercase"}}}}}, "Lowercase"},
      {"/pre_tokenizer", nullptr, "pre_tokenizer"},
      {"/pre_tokenizer", {{"type", "Metaspace"}}, "Metaspace"},
      {"/pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split("a")}}}, "ByteLevel"},
      {"/pre_tokenizer", sequence({{{"type", "ByteLevel"}}}), "last"},
      {"/pre_tokenizer", sequence({{{"type", "Whitespace"}}}), "Whitespace"},
      {"/pre_tokenizer", sequence({split("a", "MergedWithPrevious")}), "MergedWithPrevious"},
      {"/pre_tokenizer", sequence({split("\\w")}), "\\w"},
      {"/pre_tokenizer", {{"type", "Sequence"}}, "pretokenizers"},
      {"/decoder", nullptr, "decoder"},
      {"/decoder", {{"type", "Metaspace"}}, "Metaspace"},
      {"/decoder", {{"type", "Sequence"}, {"decoders", {{{"type", "Fuse"}}}}}, "Fuse"},
      {"/post_processor", {{"type", "BertProcessing"}}, "BertProcessing"},
      {"/truncation", {{"max_length", 5}}, "truncation"},
      {"/padding", {{"strategy", {{"Fixed", 5}}}}, "padding"},
      {"/model/type", "Unigram", "Unigram"},
      {"/model/dropout", 0.1, "dropout"},
      {"/model/continuing_subword_prefix", "##", "##"},
      {"/model/end_of_word_suffix", "</w>", "</w>"},
      {"/model/vocab", OrderedJson::array(), "model.vocab"},
      {"/model/vocab/!", -1, "not an id"},
      {"/model/vocab/!", 34, "id of another token"},
      {"/model/vocab/!", 100000000, "absurd id"},
      {"/model/merges", nullptr, "merges"},
      {"/model/merges", OrderedJson::array({OrderedJson::array({"t", "x"})}), "merge 0"},
      {"/model/merges", OrderedJson::array({OrderedJson::array({"t", "h", "e"})}), "merges[0]"},
      {"/added_tokens/0/id", 65, "id of another token"},
      {"/added_tokens/0/id", nullptr, "id"},
      {"/added_tokens/0/content", "</s>", "two ids"},
      {"/added_tokens/0/content", "!", "two ids"},
  };
  for (const Row& row : rows) {
    OrderedJson j = tiny_json({{"t", "h"}});
    j[OrderedJson::json_pointer(row.path)] = row.value;
    const std::string message = error_of([&] { tokenizer_of(j); });
    EXPECT_NE(message.find(row.says), std::string::npos) << row.path << " " << row.value.dump() << "\n" << message;
    EXPECT_NE(message.find("tokenizer.json"), std::string::npos) << message;
  }
  for (const char* key : {"byte_fallback", "fuse_unk"}) {  // without meaning where every byte has a token
    OrderedJson j = tiny_json();
    j["model"][key] = true;
    j["model"]["unk_token"] = "!";
    EXPECT_EQ(error_of([&] { tokenizer_of(j); }), "");
    j["model"]["vocab"].erase("\u00FF");
    EXPECT_NE(error_of([&] { tokenizer_of(j); }).find(key), std::string::npos);
  }
}

TEST(Tokenizer, RandomTextsComeBack) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  OrderedJson j = tiny_json({{"t", "h"},
                             {"th", "e"},
                             {"\u0120", "the"},
                             {"\u00E4", "\u00B8"},
                             {"\u00B8", "\u0143"},
                             {"\u00F0", "\u0141"},
                             {"a", "a"}});
  j["pre_tokenizer"] =
      sequence({split(R"((?i:'s)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)")});
  const Tokenizer tiny = tokenizer_of(j), smollm2 = Tokenizer::load(kSmolLM2);
  for (int i = 0; i < 200; i++) {
    const std::string text = random_text(rng, rng() % 60);
    for (const Tokenizer& t : {tiny, smollm2}) {
      for (bool special : {true, false}) {
        const Ids ids = t.encode(text, special);
        ASSERT_EQ(t.decode(ids), text);
        StreamDecoder stream(t);
        std::string streamed;
        for (int32_t id : ids) streamed += stream.push(id);
        ASSERT_EQ(streamed, text);  // nothing waits where the text is whole
        ASSERT_EQ(stream.finish(), "");
      }
    }
  }
}

TEST(StreamDecoder, NeverCutsACharacterAndEqualsDecode) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  const Tokenizer t = tokenizer_of(tiny_json({{"\u00E4", "\u00B8"}, {"\u00B8", "\u0143"}, {"\u0142", "\u00E4"}}));
  StreamDecoder stream(t);
  for (int i = 0; i < 2000; i++) {
    Ids ids(rng() % 12);
    for (int32_t& id : ids) id = rng() % 4 ? int32_t(0x80 + rng() % 0x80) : int32_t(rng() % uint32_t(t.vocab_size()));
    std::string text;
    for (int32_t id : ids) {
      const std::string part = stream.push(id);
      ASSERT_EQ(first_invalid_utf8(part), std::nullopt);
      text += part;
    }
    text += stream.finish();
    ASSERT_EQ(text, t.decode(ids));
  }
}

// 100 kB without a space, and one of spaces alone.
TEST(Tokenizer, LongWords) {
  const Tokenizer t = Tokenizer::load(kSmolLM2);
  for (const char* unit : {"ab", " ", "\u4E2D", "1"}) {
    std::string text;
    while (text.size() < 100000) text += unit;
    EXPECT_EQ(t.decode(t.encode(text)), text) << unit;
  }
}

TEST(Tokenizer, AFolderBringsTheIdsThatItsFilesName) {
  TempDir dir;
  write_file(dir / "tokenizer.json", tiny_json().dump());
  OrderedJson settings = {
      {"bos_token", {{"content", "<s>"}}},
      {"eos_token", "</s>"},
      {"added_tokens_decoder",
       {{"257", {{"content", "</s>"}, {"special", true}}}, {"259", {{"content", "<extra>"}, {"special", true}}}}}};
  write_file(dir / "tokenizer_config.json", settings.dump());
  write_file(dir / "generation_config.json", R"({"eos_token_id": [257, 258]})");
  const Tokenizer t = Tokenizer::load(dir.path());
  EXPECT_EQ(t.bos(), 256);
  EXPECT_EQ(t.eos(), (Ids{257, 258}));
  EXPECT_EQ(t.encode("<extra>"), (Ids{259}));
  Config config;
  config.vocab = 300;
  write_file(dir / "generation_config.json", "{}");
  EXPECT_EQ(t.hash(), check_tokenizer(dir.path(), config));  // one definition

  settings["added_tokens_decoder"]["257"]["content"] = "<s>";
  write_file(dir / "tokenizer_config.json", settings.dump());
  EXPECT_NE(error_of([&] { Tokenizer::load(dir.path()); }).find("contradicts tokenizer.json"), std::string::npos);
  settings.erase("added_tokens_decoder");
  settings["eos_token"] = "<|im_end|>";
  write_file(dir / "tokenizer_config.json", settings.dump());
  EXPECT_NE(error_of([&] { Tokenizer::load(dir.path()); }).find("<|im_end|>"), std::string::npos);
  settings["eos_token"] = "</s>";
  write_file(dir / "tokenizer_config.json", settings.dump());
  write_file(dir / "generation_config.json", R"({"eos_token_id": 5000})");
  EXPECT_NE(error_of([&] { Tokenizer::load(dir.path()); }).find("has no token"), std::string::npos);
}

TEST(Tokenizer, NothingThereSaysWhatIsWanted) {
  TempDir dir;
  EXPECT_NE(error_of([&] { Tokenizer::load(dir / "nowhere"); }).find("is not there"), std::string::npos);
  EXPECT_NE(error_of([&] { Tokenizer::load(dir.path()); }).find("has no tokenizer.json"), std::string::npos);
  write_file(dir / "t.json", "{");
  EXPECT_NE(error_of([&] { Tokenizer::load(dir / "t.json"); }).find("t.json"), std::string::npos);
}

std::string gguf_of(const OrderedJson& json, const TempDir& dir, int64_t rows,
                    const std::function<void(GgufWriter&)>& more = {}) {
  write_file(dir / "tokenizer.json", json.dump());
  const std::string path = (dir / "v.gguf").string();
  GgufWriter file(path, true);
  if (more) more(file);
  put_tokenizer_keys(file, tokenizer_parts(dir / "tokenizer.json"), rows);
  file.begin();
  file.finish();
  return path;
}

TEST(TokenizerGguf, TheSameIdsAsFromTheTokenizerJson) {
  const uint32_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 rng(seed);
  TempDir dir;
  const std::pair<const char*, bool> patterns[] = {
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       true},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       true},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       false}};
  for (const auto& [pattern, qwen] : patterns) {
    OrderedJson j = tiny_json({{"t", "h"}, {"th", "e"}, {"\u0120", "the"}, {"\u00E4", "\u00B8"}, {"1", "1"}});
    j["pre_tokenizer"] = sequence({split(pattern)});
    if (qwen) j["normalizer"] = {{"type", "NFC"}};
    if (!qwen) j["model"]["ignore_merges"] = true;
    const Tokenizer a = tokenizer_of(j), b = Tokenizer::load(gguf_of(j, dir, 300));
    EXPECT_EQ(b.vocab_size(), 300);  // rows of padding are unused tokens
    EXPECT_EQ(a.special_ids(), b.special_ids());
    for (int i = 0; i < 200; i++) {
      const std::string text = random_text(rng, rng() % 40);
      for (bool special : {true, false}) ASSERT_EQ(a.encode(text, special), b.encode(text, special)) << text;
      ASSERT_EQ(a.decode(a.encode(text)), b.decode(b.encode(text)));
    }
    EXPECT_EQ(b.hash(), tokenizer_hash(GgufFile::open(dir / "v.gguf")));
  }
  EXPECT_NE(error_of([&] { gguf_of(tiny_json(), dir, 300); }).find("GGUF has no name"), std::string::npos);
  OrderedJson j = tiny_json();
  j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  EXPECT_NE(error_of([&] { gguf_of(j, dir, 258); }).find("no row in the embedding"), std::string::npos);
}

TEST(TokenizerGguf, SpecialIds) {
  TempDir dir;
  OrderedJson j = tiny_json();
  j["pre_tokenizer"] = {{"type", "ByteLevel"}, {"add_prefix_space", false}};
  write_file(dir / "tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
  write_file(dir / "generation_config.json", R"({"eos_token_id": [257, 258]})");
  write_file(dir / "tokenizer.json", j.dump());
  TokenizerParts parts = tokenizer_parts(dir.path());
  parts.prefix = {256};
  GgufWriter file(dir / "v.gguf");
  put_tokenizer_keys(file, parts, 259);
  file.begin();
  file.finish();
  const Tokenizer t = Tokenizer::load(dir / "v.gguf");
  EXPECT_EQ(t.bos(), 256);
  EXPECT_EQ(t.eos(), (Ids{257, 258}));
  EXPECT_EQ(t.prefix(), (Ids{256}));
}

TEST(TokenizerGguf, UnknownKindsAreRefusedByName) {
  const auto with = [](const std::function<void(testing_files::GgufBuilder&)>& change) {
    testing_files::GgufBuilder b;
    b.str("tokenizer.ggml.model", "gpt2")
        .str("tokenizer.ggml.pre", "gpt-2")
        .strings("tokenizer.ggml.tokens", {"a", "b", "ab"})
        .strings("tokenizer.ggml.merges", {"a b"});
    change(b);
    const std::string bytes = b.build();
    return error_of([&] {
      Tokenizer::from_gguf(GgufFile::parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "f.gguf"));
    });
  };
  using B = testing_files::GgufBuilder;
  EXPECT_EQ(with([](B&) {}), "");
  EXPECT_NE(with([](B& b) { b.erase("tokenizer.ggml.model"); }).find("tokenizer.ggml.model"), std::string::npos);
  const std::pair<std::function<void(B&)>, const char*> rows[] = {
      {[](B& b) { b.value("tokenizer.ggml.model").bytes = testing_files::gguf_string("llama"); }, "llama"},
      {[](B& b) { b.value("tokenizer.ggml.pre").bytes = testing_files::gguf_string("tekken"); }, "smollm"},
      {[](B& b) { b.erase("tokenizer.ggml.pre"); }, "no such key"},
      {[](B& b) { b.erase("tokenizer.ggml.tokens"); }, "tokenizer.ggml.tokens"},
      {[](B& b) { b.erase("tokenizer.ggml.merges"); }, "tokenizer.ggml.merges"},
      {[](B& b) {
         b.erase("tokenizer.ggml.merges");
         b.strings("tokenizer.ggml.merges", {"ab"});
       },
       "entry 0"},
      {[](B& b) {
         b.erase("tokenizer.ggml.merges");
         b.strings("tokenizer.ggml.merges", {"a c"});
       },
       "merge 0"},
      {[](B& b) { b.array("tokenizer.ggml.token_type", testing_files::kVI32, 1, testing_files::raw(1)); },
       "token_type"},
      {[](B& b) { b.u32("tokenizer.ggml.eos_token_id", 7); }, "eos"},
      {[](B& b) { b.add("tokenizer.ggml.add_bos_token", testing_files::kVBool, std::string(1, '\1')); },
       "bos_token_id"},
      {[](B& b) {
         b.erase("tokenizer.ggml.tokens");
         b.strings("tokenizer.ggml.tokens", {"a", "b", "ab", "a"});
       },
       "twice"},
  };
  for (const auto& [change, says] : rows) {
    const std::string message = with(change);
    EXPECT_NE(message.find(says), std::string::npos) << says << "\n" << message;
  }
}

// The seeds of the fuzz target, so that they are run without a fuzzer too.
TEST(Tokenizer, FuzzSeedsLoadOrAreRefused) {
  int loaded = 0, refused = 0;
  for (const auto& e :
       std::filesystem::directory_iterator(std::string(ASSAY_SOURCE_DIR) + "/engine/text/fuzz_corpus/tokenizer")) {
    const std::string text = read_text_file(e.path());
    (error_of([&] { Tokenizer::from_json(text, e.path().string()); }).empty() ? loaded : refused)++;
  }
  EXPECT_GE(loaded, 4);
  EXPECT_GE(refused, 1);
}

}  // namespace
}  // namespace assay

#include "conformance/text/stream.h"

#include <gtest/gtest.h>

#include "conformance/text/test_model.h"
#include "dumps/error.h"
#include "engine/formats/loader.h"

namespace assay {
namespace {

std::string filtered(std::vector<std::string> stops, const std::vector<std::string>& pieces,
                     std::vector<std::string>* shown = nullptr) {
  StopFilter f(std::move(stops));
  std::string out;
  for (const std::string& p : pieces) {
    const std::string s = f.push(p);
    if (shown) shown->push_back(s);
    out += s;
  }
  return out + f.finish();
}

TEST(StopFilter, CutsAtTheFirstStopAndShowsNothingOfIt) {
  EXPECT_EQ(filtered({}, {"a", "b"}), "ab");
  EXPECT_EQ(filtered({"END"}, {"abcE", "N", "Dxyz", "more"}), "abc");
  EXPECT_EQ(filtered({"END"}, {"abcE", "N", "x"}), "abcENx");
  EXPECT_EQ(filtered({"END"}, {"abcEN"}), "abcEN") << "what was held back comes at the end";
  EXPECT_EQ(filtered({"xyz", "b"}, {"axb", "yz"}), "ax") << "the first in the text, not in the list";
  EXPECT_EQ(filtered({"aab"}, {"a", "a", "a", "b", "c"}), "a") << "a stop may begin inside a failed one";
  EXPECT_EQ(filtered({"\n\n"}, {"one\n", "two\n", "\nthree"}), "one\ntwo");
  std::vector<std::string> shown;
  filtered({"END", "E!"}, {"abE", "x", "E"}, &shown);
  EXPECT_EQ(shown, (std::vector<std::string>{"ab", "Ex", ""})) << "no more is held back than may become a stop";
}

class TextStreamTest : public testing::Test {
 protected:
  Streamed run(TextStream& s, const std::vector<int32_t>& prompt, StreamOptions o = {}) {
    shown.clear();
    return s.run(prompt, o, [&](const std::string& text) { shown += text; });
  }
  Engine engine(int64_t context = 64, int threads = 1) {
    EngineOptions o;
    o.kv = KvType::f32;
    o.context = context;
    o.threads = threads;
    return Engine(model, o);
  }
  const TextModelFolder folder;
  const std::shared_ptr<const Model> model = std::make_shared<Model>(load_model(folder.path()));
  const Tokenizer tokenizer = Tokenizer::load(folder.path());
  const std::vector<int32_t> prompt = tokenizer.encode("Hello, world");
  std::string shown;
};

TEST_F(TextStreamTest, GreedyIdsAreThoseOfGenerate) {
  Engine a = engine(), b = engine();
  TextStream s(a, tokenizer);
  const Streamed r = run(s, prompt, {.count = 9, .chunk = 5});
  const Request request{prompt, 8, {}};
  EXPECT_EQ(r.ids, generate(b, std::span(&request, 1), {})[0].greedy);
  EXPECT_EQ(r.end, Streamed::End::count);
  EXPECT_EQ(r.text, tokenizer.decode(r.ids));
  EXPECT_EQ(r.text, shown);
}

TEST_F(TextStreamTest, WhatTheCacheKeepsChangesNoId) {
  Engine a = engine();
  TextStream s(a, tokenizer);
  const StreamOptions o{.sampling = {.temperature = 1.2f, .seed = 4}, .count = 8};
  std::vector<int32_t> longer = prompt;
  const Streamed first = run(s, prompt, o);
  longer.insert(longer.end(), first.ids.begin(), first.ids.end());
  longer.push_back('x');
  const Streamed second = run(s, longer, o);
  EXPECT_EQ(second.reused, int64_t(prompt.size()) + 7) << "the last id chosen was never read";
  std::vector<int32_t> other = longer;
  other[3] = 'y';
  const Streamed third = run(s, other, o);
  EXPECT_EQ(third.reused, 3);
  EXPECT_EQ(run(s, other, o).reused, int64_t(other.size()) - 1) << "the last id's logits are wanted";
  for (const auto& [p, r] : {std::pair(prompt, first), std::pair(longer, second), std::pair(other, third)}) {
    Engine fresh = engine(64, 2);
    TextStream cold(fresh, tokenizer);
    EXPECT_EQ(run(cold, p, o).ids, r.ids);
  }
}

TEST_F(TextStreamTest, SamplingDependsOnSeedAndSequence) {
  Engine a = engine();
  TextStream s(a, tokenizer);
  auto ids = [&](uint64_t seed, uint64_t sequence) {
    return run(s, prompt, {.sampling = {.temperature = 2, .seed = seed}, .sequence = sequence, .count = 12}).ids;
  };
  EXPECT_EQ(ids(1, 0), ids(1, 0));
  EXPECT_NE(ids(1, 0), ids(2, 0));
  EXPECT_NE(ids(1, 0), ids(1, 1));
}

TEST_F(TextStreamTest, EveryEndIsNamed) {
  Engine a = engine(20);
  TextStream s(a, tokenizer);
  const std::vector<int32_t> greedy = run(s, prompt, {.count = 6}).ids;
  const auto fresh = std::find_if(greedy.begin() + 1, greedy.end(), [&](int32_t id) { return id != greedy[0]; });
  ASSERT_NE(fresh, greedy.end());
  const size_t at = size_t(fresh - greedy.begin());
  const Streamed eos = run(s, prompt, {.eos = {*fresh}});
  EXPECT_EQ(eos.end, Streamed::End::eos);
  EXPECT_EQ(eos.ids, std::vector<int32_t>(greedy.begin(), fresh + 1));
  EXPECT_EQ(eos.text, tokenizer.decode(std::span(greedy.data(), at))) << "the text of EOS is not shown";

  const Streamed full = run(s, prompt);
  EXPECT_EQ(full.end, Streamed::End::context);
  EXPECT_EQ(full.ids.size(), 20 - prompt.size() + 1) << "the last id needs no position";

  std::atomic<bool> interrupted{true};
  const Streamed none = run(s, prompt, {.interrupted = &interrupted});
  EXPECT_EQ(none.end, Streamed::End::interrupted);
  EXPECT_TRUE(none.ids.empty());
  interrupted = false;
  Streamed cut = s.run(prompt, {.interrupted = &interrupted}, [&](const std::string&) { interrupted = true; });
  EXPECT_EQ(cut.end, Streamed::End::interrupted);
  EXPECT_GE(cut.ids.size(), 1u);
  EXPECT_LT(cut.ids.size(), full.ids.size());
  EXPECT_EQ(run(s, prompt, {.count = 6}).ids, greedy) << "an interrupted stream leaves a cache that can be used";
}

TEST_F(TextStreamTest, BadPromptsAreUsageErrors) {
  Engine a = engine(8);
  TextStream s(a, tokenizer);
  for (const std::vector<int32_t>& bad : {std::vector<int32_t>{}, {-1}, {401}, std::vector<int32_t>(9, 1)}) {
    try {
      run(s, bad);
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage) << e.what();
    }
  }
}

}  // namespace
}  // namespace assay

// Every golden line, from both kinds of file.
#include <fmt/format.h>

#include "conformance/text/tokenizer_golden.h"
#include "engine/formats/gguf_writer.h"
#include "engine/text/tokenizer_model.h"

namespace assay {
namespace {

std::filesystem::path golden_dir(const CheckContext& c, const TokenizerCase& tc) {
  return c.root / "goldens" / "tokenizers" / tc.name;
}

CheckOutcome not_there() {
  CheckOutcome out;
  out.not_run = "the vocabulary is not there; ci/fetch-tokenizers fetches it (3 MB)";
  return out;
}

CheckOutcome from_json(const CheckContext& c, const TokenizerCase& tc) {
  const std::filesystem::path path = tokenizer_json_path(c, tc);
  if (!std::filesystem::exists(path)) return not_there();
  return compare_tokenizer(Tokenizer::load(path), golden_dir(c, tc));
}

/// The tokenizer.json written as GGUF keys and read back.
CheckOutcome from_gguf(const CheckContext& c, const TokenizerCase& tc) {
  const std::filesystem::path path = tokenizer_json_path(c, tc), gguf = c.work / "vocabulary.gguf";
  if (!std::filesystem::exists(path)) return not_there();
  const TokenizerParts parts = tokenizer_parts(path);
  GgufWriter file(gguf);
  put_tokenizer_keys(file, parts, TokenizerModel(parts).text.size());
  file.begin();
  file.finish();
  return compare_tokenizer(Tokenizer::load(gguf), golden_dir(c, tc));
}

/// The keys that llama.cpp's converter wrote into a published file.
CheckOutcome published_gguf(const CheckContext& c, const TokenizerCase& tc) {
  CheckOutcome out;
  const std::filesystem::path gguf = c.root / ".cache" / "smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(gguf)) {
    out.not_run = "SmolLM2 is not there; ci/fetch-smollm2 fetches it (90 MB)";
    return out;
  }
  return compare_tokenizer(Tokenizer::load(gguf), golden_dir(c, tc));
}

}  // namespace

void add_tokenizer_checks(std::vector<Check>& out) {
  const auto add = [&](const TokenizerCase& tc, const char* source, const char* target,
                       CheckOutcome (*run)(const CheckContext&, const TokenizerCase&)) {
    Check k;
    k.id = fmt::format("tokenizer/{}/{}", tc.model, source);
    k.kind = CheckKind::artifact;
    k.scope = Scope::none;
    k.family = tc.model;
    k.baseline = "ids and texts of the official tokenizer";
    k.target = target;
    k.expected = tc.expected;
    k.run = [&tc, run](const CheckContext& c) { return run(c, tc); };
    out.push_back(std::move(k));
  };
  for (const TokenizerCase& tc : tokenizer_cases()) {
    add(tc, "json", "our ids and texts from tokenizer.json", from_json);
    add(tc, "gguf", "our ids and texts from the same written as GGUF keys", from_gguf);
  }
  add(tokenizer_cases()[0], "published-gguf", "our ids and texts from a file of llama.cpp's converter", published_gguf);
}

}  // namespace assay

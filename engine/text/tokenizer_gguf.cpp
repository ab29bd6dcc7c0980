// The keys tokenizer.ggml.* of a GGUF file (github.com/ggml-org/ggml, docs/gguf.md; llama.cpp, src/llama-vocab.cpp:
// llama_vocab::impl::load and llm_tokenizer_bpe).
#include <fmt/format.h>

#include <algorithm>

#include "dumps/error.h"
#include "dumps/text.h"
#include "engine/formats/gguf.h"
#include "engine/formats/gguf_writer.h"
#include "engine/formats/provenance.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_model.h"

namespace assay {
namespace {

// As the models' tokenizer.json have them; llama.cpp spells (?i:...) out as classes.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen35 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDigit = R"(\p{N})";

/// What the name in tokenizer.ggml.pre stands for. NFC is not written into GGUF files, and llama.cpp leaves it out; the
/// Qwen models were trained with it, so it is done.
struct Pre {
  const char* name;
  std::vector<const char*> patterns;  // one after the other, each match isolated
  bool nfc = false, ignore_merges = false, add_bos = false;
};
const std::vector<Pre>& pre_table() {
  static const std::vector<Pre> table = {
      // Of several names for the same, the first is written.
      {"gpt-2", {kGpt2Pattern}},
      {"llama-bpe", {kLlama3}, false, true, true},
      {"qwen2", {kQwen2}, true},
      {"qwen35", {kQwen35}, true},
      {"smollm", {kDigit, kGpt2Pattern}},
      {"codeshell", {kDigit, kGpt2Pattern}},
      {"deepseek-r1-qwen", {kQwen2}, true},
      {"llama-v3", {kLlama3}, false, true, true},
      {"llama3", {kLlama3}, false, true, true},
      {"olmo", {kGpt2Pattern}},
      {"phi-2", {kGpt2Pattern}},
      {"refact", {kDigit, kGpt2Pattern}},
      {"starcoder", {kDigit, kGpt2Pattern}},
  };
  return table;
}

enum TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5
};  // llama.h, enum llama_token_type

std::string pre_name_list() {
  std::string names;
  for (const std::string& n : gguf_pre_names()) names += (names.empty() ? "" : ", ") + n;
  return names;
}

}  // namespace

std::vector<std::string> gguf_pre_names() {
  std::vector<std::string> names;
  for (const Pre& p : pre_table()) names.emplace_back(p.name);
  std::sort(names.begin(), names.end());
  return names;
}

Tokenizer Tokenizer::from_gguf(const GgufFile& file) {
  const auto refuse = [&](const std::string& key, const std::string& what, const std::string& wanted,
                          const std::string& found) {
    throw Error(ErrorKind::malformed, file.find(key) ? file.where(key) : file.name() + ": " + key, what, wanted, found);
  };
  const auto model = file.string("tokenizer.ggml.model");
  if (!model) refuse("tokenizer.ggml.model", "is missing", "\"gpt2\"", "no such key: the file has no tokenizer");
  if (*model != "gpt2")
    refuse("tokenizer.ggml.model", "is not supported", "\"gpt2\" (byte-level BPE)", in_quotes(*model, 40));
  const std::string pre_name = file.string("tokenizer.ggml.pre").value_or("");
  const Pre* pre = nullptr;
  for (const Pre& p : pre_table())
    if (p.name == pre_name) pre = &p;
  if (!pre) {
    refuse("tokenizer.ggml.pre", "is not supported", "one of " + pre_name_list(),
           pre_name.empty() ? "no such key" : in_quotes(pre_name, 40));
  }

  TokenizerParts p;
  p.name = file.name();
  p.hash = tokenizer_hash(file);
  p.nfc = pre->nfc;
  p.ignore_merges = pre->ignore_merges;
  for (const char* pattern : pre->patterns) {
    PreTokenizerStep step;
    step.regex.emplace_back(pattern, "tokenizer.ggml.pre " + pre_name);
    p.steps.push_back(std::move(step));
  }

  const auto tokens = file.strings("tokenizer.ggml.tokens");
  if (!tokens) refuse("tokenizer.ggml.tokens", "is missing", "a list of tokens", "no such key");
  const auto types = file.integers("tokenizer.ggml.token_type");
  if (types && types->size() != tokens->size())
    refuse("tokenizer.ggml.token_type", "contradicts tokenizer.ggml.tokens", std::to_string(tokens->size()),
           std::to_string(types->size()));
  for (size_t id = 0; id < tokens->size(); id++) {
    const std::string text((*tokens)[id]);
    const int64_t type = types ? (*types)[id] : int64_t{kNormal};
    if (type == kUnknown || type == kControl || type == kUserDefined) {
      AddedToken t;
      t.content = text;
      t.id = int32_t(id);
      t.special = type != kUserDefined;
      p.added.push_back(t);
    }
    p.vocabulary.emplace_back(text, int64_t(id));
  }
  const auto merges = file.strings("tokenizer.ggml.merges");
  if (!merges) refuse("tokenizer.ggml.merges", "is missing", "a list of merges \"a b\"", "no such key");
  for (const std::string_view merge : *merges) {
    const size_t space = merge.find(' ', 1);
    if (space == std::string_view::npos || space + 1 == merge.size())
      refuse("tokenizer.ggml.merges", fmt::format("entry {} is not a merge", p.merges.size()), "\"a b\"",
             in_quotes(merge, 40));
    p.merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  const auto id_of = [&](const char* key) { return file.integer(key, 0, INT32_MAX); };
  if (auto bos = id_of("tokenizer.ggml.bos_token_id")) p.bos = int32_t(*bos);
  for (const char* key :
       {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"}) {
    const auto id = id_of(key);
    if (id && std::find(p.eos.begin(), p.eos.end(), int32_t(*id)) == p.eos.end()) p.eos.push_back(int32_t(*id));
  }
  if (file.boolean("tokenizer.ggml.add_bos_token").value_or(pre->add_bos)) {
    if (!p.bos)
      refuse("tokenizer.ggml.bos_token_id", "is missing", "the id that add_bos_token puts before a text",
             "no such key");
    p.prefix.push_back(*p.bos);
  }
  return Tokenizer(std::make_shared<TokenizerModel>(std::move(p)));
}

void put_tokenizer_keys(GgufWriter& file, const TokenizerParts& parts, int64_t rows) {
  const auto same = [&](const Pre& pre) {
    if (pre.nfc != parts.nfc || pre.ignore_merges != parts.ignore_merges) return false;
    return std::equal(parts.steps.begin(), parts.steps.end(), pre.patterns.begin(), pre.patterns.end(),
                      [](const PreTokenizerStep& step, const char* pattern) {
                        return step.kind == PreTokenizerStep::split && !step.removed && !step.invert &&
                               step.regex.front().source() == pattern;
                      });
  };
  const auto pre = std::find_if(pre_table().begin(), pre_table().end(), same);
  if (pre == pre_table().end())
    throw Error(ErrorKind::usage, parts.name, "GGUF has no name for this normaliser and pre-tokenizer",
                "what one of " + pre_name_list() + " stands for");

  std::vector<std::string> tokens(static_cast<size_t>(rows));
  std::vector<int32_t> types(tokens.size(), kUnused);
  const auto put = [&](int64_t id, const std::string& text, TokenType type) {
    if (id < 0 || id >= rows)
      throw Error(ErrorKind::malformed, parts.name + ": token " + in_quotes(text, 40),
                  "its id has no row in the embedding", fmt::format("0 to {}", rows - 1), std::to_string(id));
    tokens[size_t(id)] = text;
    types[size_t(id)] = type;
  };
  for (const auto& [text, id] : parts.vocabulary) put(id, text, kNormal);
  for (const AddedToken& t : parts.added) put(t.id, t.content, t.special ? kControl : kUserDefined);
  for (int64_t id = 0; id < rows; id++)
    if (tokens[size_t(id)].empty()) tokens[size_t(id)] = fmt::format("[PAD{}]", id);  // llama.cpp wants them distinct
  std::vector<std::string> merges;
  merges.reserve(parts.merges.size());
  for (const auto& [left, right] : parts.merges) merges.push_back(left + " " + right);

  file.string("tokenizer.ggml.model", "gpt2");
  file.string("tokenizer.ggml.pre", pre->name);
  file.strings("tokenizer.ggml.tokens", tokens);
  file.i32s("tokenizer.ggml.token_type", types);
  file.strings("tokenizer.ggml.merges", merges);
  if (parts.bos) file.u32("tokenizer.ggml.bos_token_id", uint32_t(*parts.bos));
  if (!parts.eos.empty()) file.u32("tokenizer.ggml.eos_token_id", uint32_t(parts.eos[0]));
  if (parts.eos.size() > 1) file.u32("tokenizer.ggml.eot_token_id", uint32_t(parts.eos[1]));
  file.boolean("tokenizer.ggml.add_bos_token", !parts.prefix.empty());
}

}  // namespace assay

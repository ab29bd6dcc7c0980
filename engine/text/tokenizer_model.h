// What a Tokenizer is made of, and the plain parts that the readers of tokenizer.json and of GGUF keys fill in.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/added_tokens.h"
#include "engine/text/bpe.h"
#include "engine/text/pretokenizer.h"

namespace assay {

/// As the files spell it; nothing is checked yet.
struct TokenizerParts {
  std::string name, hash;
  std::vector<std::pair<std::string, int64_t>> vocabulary;  // entries in the byte-level alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // by rising rank, entries of the vocabulary
  std::vector<AddedToken> added;
  std::vector<PreTokenizerStep> steps;
  bool nfc = false, ignore_merges = false;
  std::optional<std::string> unknown;                // entry that stands for a byte without token
  bool fuse_unknown = false, byte_fallback = false;  // both without meaning where every byte has a token
  std::optional<int32_t> bos;
  std::vector<int32_t> eos;     // the first is the one that ends a turn
  std::vector<int32_t> prefix;  // ids before every text
};

struct TokenizerModel {
  /// Throws Error{malformed} naming the file and the entry: an id twice, negative or absurd, a merge of what is no
  /// token, an added token that contradicts the vocabulary, special ids without token.
  explicit TokenizerModel(TokenizerParts parts);

  std::string name, hash;
  std::vector<std::string> text;      // id -> the bytes that it stands for
  std::vector<bool> exists, special;  // by id
  std::unordered_map<std::string, int32_t> added_ids;
  Bpe bpe;
  bool nfc = false;
  AddedTokenFinder verbatim, normalized;  // in the text as it is, and after normalisation
  PreTokenizer pre_tokenizer;
  std::optional<int32_t> bos;
  std::vector<int32_t> eos, prefix, special_ids;
};

/// The parts of a tokenizer.json. Throws Error{malformed}.
TokenizerParts tokenizer_json_parts(std::string_view text, const std::string& name);
/// Of a tokenizer.json, or of a folder that holds one: with the ids that its other files name.
TokenizerParts tokenizer_parts(const std::filesystem::path& path);

class GgufWriter;
/// The keys tokenizer.ggml.* that say the same, for a model whose embedding has `rows` rows: ids without token become
/// unused ones. Throws Error{usage} where GGUF has no name for the pre-tokenizer.
void put_tokenizer_keys(GgufWriter& file, const TokenizerParts& parts, int64_t rows);

}  // namespace assay

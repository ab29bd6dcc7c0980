// Ids and texts of Hugging Face tokenizers (goldens/tokenizers/) against a Tokenizer.
#pragma once
#include <filesystem>
#include <string>

#include "conformance/check.h"
#include "engine/text/tokenizer.h"

namespace assay {

struct TokenizerCase {
  const char* name;   // folder below goldens/tokenizers: "tokenizer-qwen3"
  const char* model;  // "qwen3"
  int64_t expected;   // comparisons: per text ids, decoded text and streamed text; per chat its ids; per special token
                      // its id
};
const std::vector<TokenizerCase>& tokenizer_cases();

/// Where the case's tokenizer.json lies (in the repository, or in .cache/ once ci/fetch-tokenizers has run);
/// a path that need not be there.
std::filesystem::path tokenizer_json_path(const CheckContext& c, const TokenizerCase& tc);

/// Compares every line of the case. Failures name file, line and the first id that differs.
CheckOutcome compare_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& golden);

}  // namespace assay

// Canaries over the tokenizer's files of a Hugging Face folder: right code with another model's vocabulary must not
// load.
#pragma once
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "engine/formats/json_text.h"
#include "engine/model.h"

namespace assay {

inline constexpr size_t kMaxSpecialIds = 1024;  // of one kind; published models have fewer than ten

/// Holds tokenizer.json, tokenizer_config.json and generation_config.json, where they exist, against the config
/// (README.md, "Canaries") and adds the end ids of generation_config.json to config.eos. Throws Error{malformed} naming
/// both sides. Returns the XXH3-128 of tokenizer.json, or "" where there is none.
std::string check_tokenizer(const std::filesystem::path& dir, Config& config);

/// The tokenizer's files as texts; absent ones are nullopt. `folder` stands before their names in messages.
struct TokenizerTexts {
  std::string folder;
  std::optional<std::string> tokenizer, tokenizer_config, generation_config;
};
/// The same on texts (fuzzing, tests).
std::string check_tokenizer(const TokenizerTexts& texts, Config& config);

/// tensor -> file of a model.safetensors.index.json. Throws Error{malformed}; a file name that leaves the folder is
/// refused.
std::map<std::string, std::string> parse_safetensors_index(const Json& json, const std::string& name);

/// The whole file. Throws as MappedFile::open.
std::string read_text_file(const std::filesystem::path& path);

}  // namespace assay

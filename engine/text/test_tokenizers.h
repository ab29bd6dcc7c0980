// Small tokenizers made by hand, for tests.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/text/bpe.h"
#include "engine/text/tokenizer.h"

namespace assay::testing_text {

using OrderedJson = nlohmann::ordered_json;

/// A tokenizer.json: ids 0 to 255 are the bytes, then one token for each merge ("t h" in the byte-level alphabet), then
/// the added tokens <s>, </s> (special) and <think>. One pre-tokenizer: ByteLevel without pattern. Tests change it.
inline OrderedJson tiny_json(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  OrderedJson vocab = OrderedJson::object(), list = OrderedJson::array(), added = OrderedJson::array();
  int id = 0;
  for (; id < 256; id++) vocab[byte_level_of_bytes(std::string(1, char(id)))] = id;
  for (const auto& [left, right] : merges) {
    if (!vocab.contains(left + right)) vocab[left + right] = id++;
    list.push_back({left, right});
  }
  for (const char* content : {"<s>", "</s>", "<think>"})
    added.push_back({{"id", id++},
                     {"content", content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", std::string(content) != "<think>"}});
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", nullptr},
            {"ignore_merges", false},
            {"vocab", vocab},
            {"merges", list}}}};
}

/// A ByteLevel that follows the given components in a Sequence.
inline OrderedJson sequence(std::vector<OrderedJson> components) {
  components.push_back({{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", components}};
}
inline OrderedJson split(const std::string& regex, const char* behavior = "Isolated", bool invert = false) {
  return {{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", behavior}, {"invert", invert}};
}

inline Tokenizer tokenizer_of(const OrderedJson& json) {
  return Tokenizer::from_json(json.dump(), "tokenizer.json");
}

/// The pieces that `text` becomes, in brackets: "[a][bc]".
inline std::string pieces(const Tokenizer& t, const std::string& text, bool parse_special = true) {
  std::string out;
  for (int32_t id : t.encode(text, parse_special)) out += "[" + std::string(t.token(id)) + "]";
  return out;
}

}  // namespace assay::testing_text

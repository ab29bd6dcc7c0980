// Tokens that are found in the text as they are written, before anything else is done with it: special tokens first.
// The rules are those of Hugging Face tokenizers (tokenizer/added_vocabulary.rs).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace assay {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
  bool single_word = false;  // only where no word character stands beside it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in the normalised text
};

/// A part of a text: an added token (id >= 0) or text between two of them.
struct TextPart {
  std::string_view text;
  int32_t id = -1;
};

class AddedTokenFinder {
 public:
  AddedTokenFinder() = default;
  /// Of two tokens with the same content the later one counts.
  explicit AddedTokenFinder(std::vector<AddedToken> tokens);
  bool empty() const { return tokens_.empty(); }
  /// Parts of `text` in order, none empty: at the leftmost place where a token begins, the longest one that does. With
  /// parse_special false a special token stays text, but it still hides those that begin inside it.
  void split(std::string_view text, bool parse_special, std::vector<TextPart>& out) const;

 private:
  /// The token of the longest content that `text` begins with; -1: none.
  int32_t longest(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::unordered_map<uint64_t, int32_t> children_;  // (node << 8 | byte) -> node of a trie; 0 is the root
  std::vector<int32_t> token_of_node_;              // index into tokens_; -1: no token ends there
};

}  // namespace assay

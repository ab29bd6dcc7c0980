#include "engine/text/added_tokens.h"

#include <algorithm>

#include "engine/text/unicode.h"

namespace assay {
namespace {

/// White space at the end of `text`, in bytes.
size_t trailing_space(std::string_view text) {
  size_t n = 0;
  while (n < text.size()) {
    const std::string_view rest = text.substr(0, text.size() - n);
    size_t begin = rest.size() - 1;
    while (begin > 0 && (uint8_t(rest[begin]) & 0xC0) == 0x80) begin--;
    if (!is_white_space(utf8_step(rest.substr(begin)).character)) break;
    n = text.size() - begin;
  }
  return n;
}

size_t leading_space(std::string_view text) {
  size_t n = 0;
  while (n < text.size()) {
    const Utf8Step step = utf8_step(text.substr(n));
    if (!is_white_space(step.character)) break;
    n += step.bytes;
  }
  return n;
}

}  // namespace

AddedTokenFinder::AddedTokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)), token_of_node_{-1} {
  for (size_t t = 0; t < tokens_.size(); t++) {
    uint64_t node = 0;
    for (const char byte : tokens_[t].content) {
      const auto [child, fresh] = children_.try_emplace(node << 8 | uint8_t(byte), int32_t(token_of_node_.size()));
      if (fresh) token_of_node_.push_back(-1);
      node = uint64_t(child->second);
    }
    if (node != 0) token_of_node_[node] = int32_t(t);
  }
}

int32_t AddedTokenFinder::longest(std::string_view text) const {
  int32_t best = -1;
  uint64_t node = 0;
  for (const char byte : text) {
    auto child = children_.find(node << 8 | uint8_t(byte));
    if (child == children_.end()) break;
    node = uint64_t(child->second);
    if (token_of_node_[node] >= 0) best = token_of_node_[node];
  }
  return best;
}

void AddedTokenFinder::split(std::string_view text, bool parse_special, std::vector<TextPart>& out) const {
  size_t done = 0;  // all before it is in `out`
  for (size_t i = 0; i < text.size();) {
    const int32_t found = longest(text.substr(i));
    if (found < 0) {
      i++;
      continue;
    }
    const AddedToken& token = tokens_[size_t(found)];
    size_t begin = i, end = i + token.content.size();
    i = end;
    if (token.special && !parse_special) continue;
    if (token.single_word) {
      if (begin > 0 && is_word_character(last_character(text.substr(0, begin)))) continue;
      if (end < text.size() && is_word_character(utf8_step(text.substr(end)).character)) continue;
    }
    // White space that a token before has taken is gone.
    if (token.lstrip) begin -= trailing_space(text.substr(0, begin));
    begin = std::max(begin, done);
    if (token.rstrip) end += leading_space(text.substr(end));
    if (begin > done) out.push_back({text.substr(done, begin - done)});
    out.push_back({text.substr(begin, end - begin), token.id});
    done = end;
    i = std::max(i, end);
  }
  if (done < text.size()) out.push_back({text.substr(done)});
}

}  // namespace assay

#include "engine/text/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "dumps/error.h"
#include "engine/formats/gguf.h"
#include "engine/text/tokenizer_model.h"
#include "engine/text/unicode.h"

namespace assay {

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  if (auto bad = first_invalid_utf8(text))
    throw Error(ErrorKind::malformed, fmt::format("text: byte {}", *bad), "is not UTF-8");
  std::vector<int32_t> ids;
  std::vector<TextPart> outer, inner;
  model_->verbatim.split(text, parse_special, outer);
  for (const TextPart& part : outer) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    const std::string composed = model_->nfc ? nfc(part.text) : std::string(part.text);
    inner.clear();
    model_->normalized.split(composed, parse_special, inner);
    for (const TextPart& piece : inner) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
        continue;
      }
      for (const std::string& word : model_->pre_tokenizer.words(piece.text)) model_->bpe.encode(word, ids);
    }
  }
  return ids;
}

std::string Tokenizer::decode_bytes(std::span<const int32_t> ids) const {
  std::string bytes;
  for (int32_t id : ids) bytes += token(id);
  return bytes;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes = decode_bytes(ids);
  return take_utf8(bytes, true);
}

bool Tokenizer::has_token(int32_t id) const {
  return id >= 0 && size_t(id) < model_->exists.size() && model_->exists[size_t(id)];
}
std::string_view Tokenizer::token(int32_t id) const {
  return has_token(id) ? std::string_view(model_->text[size_t(id)]) : std::string_view();
}

std::optional<int32_t> Tokenizer::id(std::string_view token) const {
  const std::string key(token);
  if (auto it = model_->added_ids.find(key); it != model_->added_ids.end()) return it->second;
  if (auto it = model_->bpe.tokens().find(key); it != model_->bpe.tokens().end()) return it->second;
  return std::nullopt;
}

int32_t Tokenizer::vocab_size() const {
  return int32_t(model_->text.size());
}
std::optional<int32_t> Tokenizer::bos() const {
  return model_->bos;
}
const std::vector<int32_t>& Tokenizer::eos() const {
  return model_->eos;
}
const std::vector<int32_t>& Tokenizer::special_ids() const {
  return model_->special_ids;
}
bool Tokenizer::is_special(int32_t id) const {
  return has_token(id) && model_->special[size_t(id)];
}
const std::vector<int32_t>& Tokenizer::prefix() const {
  return model_->prefix;
}
const std::string& Tokenizer::hash() const {
  return model_->hash;
}
const std::string& Tokenizer::name() const {
  return model_->name;
}

std::string StreamDecoder::push(int32_t id) {
  pending_ += tokenizer_.token(id);
  return take_utf8(pending_, false);
}

std::string StreamDecoder::finish() {
  return take_utf8(pending_, true);
}

}  // namespace assay

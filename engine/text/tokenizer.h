// Text to token ids and back: byte-level BPE as Hugging Face tokenizers computes it (README.md), from a tokenizer.json,
// a Hugging Face folder or a GGUF file's tokenizer.ggml.* keys. Whatever a file asks for that is not done here is
// refused by name when it is read: a tokenizer that loads gives the ids of the official one.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

class GgufFile;
struct TokenizerModel;  // tokenizer_model.h

/// Immutable after reading; copies share the tables, and const members may be called from several threads.
class Tokenizer {
 public:
  /// A tokenizer.json, a folder that holds one, or a GGUF file (told by its first bytes). Throws Error{malformed}
  /// naming the file and the key, also for a component that is not supported, and Error{usage} where nothing is at
  /// `path`.
  static Tokenizer load(const std::filesystem::path& path);
  /// The text of a tokenizer.json; `name` stands for the path in messages.
  static Tokenizer from_json(std::string_view text, const std::string& name);
  /// The keys tokenizer.ggml.* of a GGUF file: model "gpt2", `pre` one of gguf_pre_names().
  static Tokenizer from_gguf(const GgufFile& file);
  explicit Tokenizer(std::shared_ptr<const TokenizerModel> model) : model_(std::move(model)) {}

  /// Ids of `text`, without ids that a template or post-processor puts around it (prefix()). Spelled-out special tokens
  /// become their ids; with parse_special false they are text like any other (added tokens that are not special, such
  /// as <think>, are still found, as in the official code). Throws Error{malformed} with the byte where `text` is not
  /// UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool parse_special = true) const;
  /// Text of the ids, special tokens spelled out; bytes that are no UTF-8 become U+FFFD, one for each maximal
  /// ill-formed part (Unicode 15, section 3.9, "U+FFFD Substitution of Maximal Subparts"). An id without token, e.g.
  /// one of the embedding's padding rows, adds nothing.
  std::string decode(std::span<const int32_t> ids) const;
  /// The same before the replacement: the bytes as the tokens hold them.
  std::string decode_bytes(std::span<const int32_t> ids) const;

  /// The bytes that this token stands for, which may begin or end inside a character; empty where the id has no token.
  std::string_view token(int32_t id) const;
  bool has_token(int32_t id) const;
  /// The id of a token by the bytes that it stands for ("<|im_end|>", " the").
  std::optional<int32_t> id(std::string_view token) const;
  /// Largest id + 1. A model's embedding may have more rows.
  int32_t vocab_size() const;

  std::optional<int32_t> bos() const;
  const std::vector<int32_t>& eos() const;          // every id that ends a text or a turn, as the files name them
  const std::vector<int32_t>& special_ids() const;  // rising
  bool is_special(int32_t id) const;
  /// Ids that the files put before a text (BOS of Llama 3); empty for Qwen and SmolLM2. encode() leaves them out.
  const std::vector<int32_t>& prefix() const;

  /// XXH3-128 by which artifacts name a tokenizer (formats/provenance.h); the same as Provenance::tokenizer_hash.
  const std::string& hash() const;
  const std::string& name() const;  // the file

 private:
  std::shared_ptr<const TokenizerModel> model_;
};

/// Values of tokenizer.ggml.pre that are known, sorted.
std::vector<std::string> gguf_pre_names();

/// Text of a stream of ids, cut only between characters: all push() results and finish() in a row are decode() of the
/// ids.
class StreamDecoder {
 public:
  explicit StreamDecoder(Tokenizer tokenizer) : tokenizer_(std::move(tokenizer)) {}
  /// What has become whole with this id; may be empty, and may hold several characters.
  std::string push(int32_t id);
  /// The rest: U+FFFD if the stream ended inside a character, else empty. The decoder is fresh afterwards.
  std::string finish();

 private:
  Tokenizer tokenizer_;
  std::string pending_;  // the beginning of a character: at most three bytes
};

}  // namespace assay

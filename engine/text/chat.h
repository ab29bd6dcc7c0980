// From messages to the text that a model was trained on: the model's own chat template (jinja.h) with its special
// tokens.
#pragma once
#include <ctime>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja.h"

namespace assay {

class GgufFile;

struct ChatMessage {
  std::string role;  // "system", "user", "assistant", "tool"
  std::string content;
};

class ChatTemplate {
 public:
  /// The template of a Hugging Face folder (chat_template.jinja, else the key chat_template of tokenizer_config.json,
  /// of a list the one named "default") or of a GGUF file (tokenizer.chat_template), with the special tokens beside it.
  /// nullopt where the model has none. Throws Error{malformed} with the place in the file or in the template.
  static std::optional<ChatTemplate> load(const std::filesystem::path& model);
  static std::optional<ChatTemplate> from_gguf(const GgufFile& file);
  /// A template's text; `name` stands for the file in messages, `tokens` are variables such as bos_token.
  ChatTemplate(std::string_view source, const std::string& name, std::map<std::string, std::string> tokens = {});

  /// Renders as transformers' apply_chat_template does: variables messages, tools and documents (none unless given),
  /// add_generation_prompt, the special tokens, and the members of `more`, which win. `now` is what strftime_now sees.
  /// Throws Error{usage} where the template refuses the conversation, Error{malformed} where it is not supported.
  std::string render(const nlohmann::ordered_json& messages, bool add_generation_prompt,
                     const nlohmann::ordered_json& more, const std::tm& now) const;
  std::string render(const std::vector<ChatMessage>& messages, bool add_generation_prompt, const std::tm& now) const;

 private:
  jinja::Template template_;
  std::map<std::string, std::string> tokens_;
};

}  // namespace assay

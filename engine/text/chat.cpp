#include "engine/text/chat.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/text.h"
#include "engine/formats/gguf.h"
#include "engine/formats/hf_tokenizer.h"

namespace assay {
namespace {

using Ordered = nlohmann::ordered_json;

/// Special tokens of tokenizer_config.json: strings, or objects with the member "content".
std::map<std::string, std::string> special_tokens(const Ordered& config, const std::string& where) {
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : config.items()) {
    if (!key.ends_with("_token") || key.starts_with("add_")) continue;
    if (value.is_string()) out[key] = value.get<std::string>();
    if (value.is_object())
      out[key] = json_string(json_get(value, "content", where + ": " + in_quotes(key)),
                             where + ": " + in_quotes(key) + ".content");
  }
  return out;
}

std::optional<std::string> template_of(const Ordered& config, const std::string& where) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return std::nullopt;
  if (!found->is_array()) return json_string(*found, where + ": chat_template");
  for (const Ordered& named : *found)
    if (json_string(json_get(named, "name", where + ": chat_template"), where + ": chat_template: name") == "default")
      return json_string(json_get(named, "template", where + ": chat_template"), where + ": chat_template: template");
  throw Error(ErrorKind::malformed, where + ": chat_template", "none of the templates is the default one",
              "one named \"default\"");
}

}  // namespace

ChatTemplate::ChatTemplate(std::string_view source, const std::string& name, std::map<std::string, std::string> tokens)
    : template_(jinja::Template::parse(source, name)), tokens_(std::move(tokens)) {}

std::optional<ChatTemplate> ChatTemplate::from_gguf(const GgufFile& file) {
  const std::optional<std::string> source = file.string("tokenizer.chat_template");
  if (!source) return std::nullopt;
  std::map<std::string, std::string> tokens;
  if (const auto texts = file.strings("tokenizer.ggml.tokens"))
    for (const char* name : {"bos", "eos", "unknown", "padding"}) {
      const auto id = file.integer("tokenizer.ggml." + std::string(name) + "_token_id", 0, int64_t(texts->size()) - 1);
      const std::string variable = name == std::string("unknown")   ? "unk"
                                   : name == std::string("padding") ? "pad"
                                                                    : name;
      if (id) tokens[variable + "_token"] = std::string((*texts)[size_t(*id)]);
    }
  return ChatTemplate(*source, file.name() + ": tokenizer.chat_template", std::move(tokens));
}

std::optional<ChatTemplate> ChatTemplate::load(const std::filesystem::path& model) {
  if (!std::filesystem::is_directory(model)) return from_gguf(GgufFile::open(model));
  std::map<std::string, std::string> tokens;
  std::optional<std::string> source;
  std::string name;
  const auto config = model / "tokenizer_config.json";
  if (std::filesystem::exists(config)) {
    const Ordered json = read_json(config);
    if (!json.is_object()) throw Error(ErrorKind::malformed, config.string(), "is no JSON object");
    tokens = special_tokens(json, config.string());
    source = template_of(json, config.string());
    name = config.string() + ": chat_template";
  }
  const auto file = model / "chat_template.jinja";
  if (std::filesystem::exists(file)) {
    source = read_text_file(file);
    name = file.string();
  }
  if (!source) return std::nullopt;
  return ChatTemplate(*source, name, std::move(tokens));
}

std::string ChatTemplate::render(const Ordered& messages, bool add_generation_prompt, const Ordered& more,
                                 const std::tm& now) const {
  Ordered variables = Ordered::object();
  variables["messages"] = messages;
  variables["tools"] = nullptr;
  variables["documents"] = nullptr;
  variables["add_generation_prompt"] = add_generation_prompt;
  for (const auto& [key, value] : tokens_) variables[key] = value;
  if (more.is_object())
    for (const auto& [key, value] : more.items()) variables[key] = value;
  return template_.render(variables, now);
}

std::string ChatTemplate::render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                                 const std::tm& now) const {
  Ordered list = Ordered::array();
  for (const ChatMessage& m : messages) list.push_back({{"role", m.role}, {"content", m.content}});
  return render(list, add_generation_prompt, {}, now);
}

}  // namespace assay

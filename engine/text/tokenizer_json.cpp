// tokenizer.json, the format of Hugging Face tokenizers (github.com/huggingface/tokenizers: the serde forms of
// TokenizerImpl, normalizers/, pre_tokenizers/, processors/ and decoders/), and the files beside it in a model's
// folder.
#include <fmt/format.h>

#include <charconv>

#include "dumps/error.h"
#include "dumps/safetensors.h"
#include "dumps/text.h"
#include "engine/formats/gguf.h"
#include "engine/formats/hf_tokenizer.h"
#include "engine/formats/json_text.h"
#include "engine/formats/provenance.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_model.h"

namespace fs = std::filesystem;

namespace assay {
namespace {

constexpr size_t kMaxSteps = 64;  // pre-tokenizer steps; published files have fewer than ten

[[noreturn]] void unsupported(const JsonReader& r, const char* key, const std::string& wanted,
                              const std::string& found) {
  throw Error(ErrorKind::malformed, r.where(key), "is not supported", wanted, found,
              "Only byte-level BPE tokenizers are read");
}

std::string type_of(const JsonReader& r) {
  auto type = r.string("type");
  if (!type) throw Error(ErrorKind::malformed, r.where("type"), "is missing", "the name of a component", "no such key");
  return *type;
}

/// Calls `each` on every component: on `r` itself, or on the members of a Sequence, which holds them under `list`.
template <typename F>
void for_components(const JsonReader& r, const char* list, F each) {
  if (type_of(r) != "Sequence") return each(r);
  const Json* members = r.find(list);
  if (!members || !members->is_array())
    throw Error(ErrorKind::malformed, r.where(list), "is missing", "a list of components");
  for (const Json& m : *members) for_components(JsonReader(m, r.where(list)), list, each);
}

void read_normalizer(const JsonReader& r, TokenizerParts& p) {
  for_components(r, "normalizers", [&](const JsonReader& n) {
    if (type_of(n) != "NFC") unsupported(n, "type", "NFC or none", in_quotes(type_of(n), 40));
    p.nfc = true;
  });
}

void read_split(const JsonReader& r, TokenizerParts& p) {
  const auto pattern = r.object("pattern");
  if (!pattern)
    throw Error(ErrorKind::malformed, r.where("pattern"), "is missing", "{\"Regex\": ...} or {\"String\": ...}");
  PreTokenizerStep step;
  if (auto regex = pattern->string("Regex"))
    step.regex.emplace_back(*regex, pattern->where("Regex"));
  else if (auto text = pattern->string("String"))
    step.regex.push_back(Regex::literal(*text, pattern->where("String")));
  else
    unsupported(r, "pattern", "Regex or String", in_quotes(pattern->json().dump(), 80));
  const std::string behavior = r.string("behavior").value_or("");
  if (behavior != "Isolated" && behavior != "Removed")
    unsupported(r, "behavior", "Isolated or Removed", in_quotes(behavior, 40));
  step.removed = behavior == "Removed";
  step.invert = r.boolean("invert").value_or(false);
  p.steps.push_back(std::move(step));
}

void read_pre_tokenizer(const JsonReader& root, TokenizerParts& p) {
  const auto pre = root.object("pre_tokenizer");
  bool byte_level = false;
  if (pre) {
    for_components(*pre, "pretokenizers", [&](const JsonReader& r) {
      const std::string type = type_of(r);
      if (byte_level) unsupported(r, "type", "ByteLevel as the last component", in_quotes(type, 40));
      if (p.steps.size() >= kMaxSteps)
        throw Error(ErrorKind::malformed, r.name(), "absurd number of pre-tokenizers",
                    fmt::format("at most {}", kMaxSteps));
      if (type == "Split") {
        read_split(r, p);
      } else if (type == "Digits") {
        PreTokenizerStep step;
        step.regex.emplace_back(r.boolean("individual_digits").value_or(false) ? R"(\p{N})" : R"(\p{N}+)", r.name());
        p.steps.push_back(std::move(step));
      } else if (type == "ByteLevel") {
        byte_level = true;
        if (r.boolean("add_prefix_space").value_or(true)) {
          PreTokenizerStep step;
          step.kind = PreTokenizerStep::prefix_space;
          p.steps.push_back(std::move(step));
        }
        if (r.boolean("use_regex").value_or(true)) {
          PreTokenizerStep step;
          step.regex.emplace_back(kGpt2Pattern, r.name());
          p.steps.push_back(std::move(step));
        }
      } else {
        unsupported(r, "type", "Split, Digits, ByteLevel or a Sequence of these", in_quotes(type, 40));
      }
    });
  }
  if (!byte_level) unsupported(root, "pre_tokenizer", "one with ByteLevel", pre ? "none" : "null");
}

void read_decoder(const JsonReader& root) {
  const auto decoder = root.object("decoder");
  if (!decoder) unsupported(root, "decoder", "ByteLevel", "null");
  for_components(*decoder, "decoders", [](const JsonReader& r) {
    if (type_of(r) != "ByteLevel") unsupported(r, "type", "ByteLevel", in_quotes(type_of(r), 40));
  });
}

/// A template's special tokens before the text become the prefix; there must be none behind it.
void read_template(const JsonReader& r, TokenizerParts& p) {
  const Json* single = r.find("single");
  if (!single || !single->is_array()) throw Error(ErrorKind::malformed, r.where("single"), "is missing", "a list");
  const auto ids = r.object("special_tokens");
  bool text_seen = false;
  for (const Json& piece : *single) {
    const JsonReader item(piece, r.where("single"));
    if (item.has("Sequence")) {
      text_seen = true;
      continue;
    }
    const auto token = item.object("SpecialToken");
    if (!token || text_seen)
      unsupported(r, "single", "special tokens and then the text", in_quotes(single->dump(), 120));
    const std::string name = token->string("id").value_or("");
    const auto entry = ids ? ids->object(name.c_str()) : std::nullopt;
    const Json* list = entry ? entry->find("ids") : nullptr;
    if (!list || !list->is_array())
      throw Error(ErrorKind::malformed, r.where("special_tokens"), "has no ids of " + in_quotes(name, 40));
    for (const Json& id : *list) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX)
        throw Error(ErrorKind::malformed, r.where("special_tokens"), "is not a list of ids", "",
                    in_quotes(list->dump(), 60));
      p.prefix.push_back(id.get<int32_t>());
    }
  }
}

void read_post_processor(const JsonReader& r, TokenizerParts& p) {
  for_components(r, "processors", [&](const JsonReader& n) {
    const std::string type = type_of(n);
    if (type == "TemplateProcessing")
      read_template(n, p);
    else if (type != "ByteLevel")  // which moves offsets only
      unsupported(n, "type", "TemplateProcessing or ByteLevel", in_quotes(type, 40));
  });
}

AddedToken read_added(const JsonReader& r, int64_t id) {
  AddedToken t;
  t.content = r.string("content").value_or("");
  t.id = int32_t(id);
  t.special = r.boolean("special").value_or(false);
  t.single_word = r.boolean("single_word").value_or(false);
  t.lstrip = r.boolean("lstrip").value_or(false);
  t.rstrip = r.boolean("rstrip").value_or(false);
  t.normalized = r.boolean("normalized").value_or(!t.special);
  return t;
}

void read_merges(const JsonReader& model, TokenizerParts& p) {
  const Json* merges = model.find("merges");
  if (!merges || !merges->is_array())
    throw Error(ErrorKind::malformed, model.where("merges"), "is missing", "a list of merges");
  p.merges.reserve(merges->size());
  for (const Json& m : *merges) {
    std::pair<std::string, std::string> merge;
    if (m.is_array() && m.size() == 2 && m[0].is_string() && m[1].is_string()) {
      merge = {m[0].get<std::string>(), m[1].get<std::string>()};
    } else if (m.is_string()) {
      const auto& text = m.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos)
        merge = {text.substr(0, space), text.substr(space + 1)};
    }
    if (merge.first.empty() || merge.second.empty()) {
      throw Error(ErrorKind::malformed, fmt::format("{}[{}]", model.where("merges"), p.merges.size()), "is not a merge",
                  "\"a b\" or [\"a\", \"b\"]", in_quotes(m.dump(), 80));
    }
    p.merges.push_back(std::move(merge));
  }
}

void read_model(const JsonReader& root, TokenizerParts& p) {
  const auto model = root.object("model");
  if (!model) throw Error(ErrorKind::malformed, root.where("model"), "is missing", "a BPE model");
  if (const std::string type = model->string("type").value_or("BPE"); type != "BPE")
    unsupported(*model, "type", "BPE", in_quotes(type, 40));
  if (model->number("dropout").value_or(0) != 0) unsupported(*model, "dropout", "null", "a number");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"})
    if (auto text = model->string(key); text && !text->empty()) unsupported(*model, key, "none", in_quotes(*text, 40));
  p.ignore_merges = model->boolean("ignore_merges").value_or(false);
  p.unknown = model->string("unk_token");
  p.fuse_unknown = model->boolean("fuse_unk").value_or(false);
  p.byte_fallback = model->boolean("byte_fallback").value_or(false);
  const auto vocab = model->object("vocab");
  if (!vocab) throw Error(ErrorKind::malformed, model->where("vocab"), "is missing", "an object token -> id");
  p.vocabulary.reserve(vocab->json().size());
  for (const auto& [token, id] : vocab->json().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX)
      throw Error(ErrorKind::malformed, vocab->name() + ": model.vocab: " + in_quotes(token, 40), "is not an id",
                  "0 to 2^31 - 1", in_quotes(id.dump(), 40));
    p.vocabulary.emplace_back(token, id.get<int64_t>());
  }
  read_merges(*model, p);
}

/// Added tokens that stand in tokenizer_config.json alone belong to the tokenizer too; those of both files must agree.
void read_settings(const JsonReader& r, TokenizerParts& p) {
  if (const auto added = r.object("added_tokens_decoder")) {
    for (const auto& [key, value] : added->json().items()) {
      int64_t id = 0;
      const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
      if (error != std::errc() || end != key.data() + key.size() || id < 0 || id > INT32_MAX)
        throw Error(ErrorKind::malformed, r.where("added_tokens_decoder"), "is not keyed by ids", "",
                    in_quotes(key, 40));
      const AddedToken token = read_added(JsonReader(value, r.name(), "added_tokens_decoder." + key), id);
      bool known = false;
      for (const AddedToken& t : p.added) {
        if (t.content != token.content && t.id != token.id) continue;
        if (t.content != token.content || t.id != token.id)
          throw Error(ErrorKind::malformed, r.where("added_tokens_decoder"), "contradicts tokenizer.json",
                      fmt::format("{} with id {}", in_quotes(t.content, 40), t.id),
                      fmt::format("{} with id {}", in_quotes(token.content, 40), token.id),
                      "Another model's tokenizer may lie in this folder");
        known = true;
      }
      if (!known) p.added.push_back(token);
    }
  }
}

/// The id of the token that a settings file names under `key`: a string or an object with "content".
std::optional<int32_t> named_id(const JsonReader& r, const char* key, const TokenizerParts& p) {
  const Json* v = r.find(key);
  if (!v) return std::nullopt;
  const std::string content =
      v->is_object() ? JsonReader(*v, r.name(), key).string("content").value_or("") : r.string(key).value_or("");
  for (const AddedToken& t : p.added)
    if (t.content == content) return t.id;
  for (const auto& [token, id] : p.vocabulary)
    if (token == content) return int32_t(id);
  throw Error(ErrorKind::malformed, r.where(key), in_quotes(content, 40) + " is not a token of tokenizer.json", "", "",
              "Another model's tokenizer may lie in this folder");
}

void add_eos(TokenizerParts& p, int64_t id) {
  if (std::find(p.eos.begin(), p.eos.end(), int32_t(id)) == p.eos.end()) p.eos.push_back(int32_t(id));
}

TokenizerParts folder_parts(const fs::path& dir) {
  const fs::path path = dir / "tokenizer.json";
  if (!is_there(path))
    throw Error(ErrorKind::malformed, dir.string(), "has no tokenizer.json",
                "a folder with one, a tokenizer.json, or a GGUF file");
  TokenizerParts p = tokenizer_json_parts(read_text_file(path), path.string());
  const auto optional_json = [&](const char* name) -> std::optional<std::pair<Json, std::string>> {
    if (!is_there(dir / name)) return std::nullopt;
    const std::string file = (dir / name).string();
    return std::pair(parse_json_tree(read_text_file(dir / name), file), file);
  };
  if (auto settings = optional_json("tokenizer_config.json")) {
    const JsonReader r(settings->first, settings->second);
    read_settings(r, p);
    if (auto id = named_id(r, "bos_token", p)) p.bos = *id;
    if (auto id = named_id(r, "eos_token", p)) add_eos(p, *id);
  }
  // A folder may be a tokenizer's alone. Which ids may end a text is the model's to say: see hf_tokenizer.h.
  for (const char* name : {"generation_config.json", "config.json"}) {
    const auto file = optional_json(name);
    const Json* ids = file ? JsonReader(file->first, file->second).find("eos_token_id") : nullptr;
    if (!ids) continue;
    for (const Json& id : ids->is_array() ? *ids : Json::array({*ids})) {
      if (!id.is_number_unsigned() || id.get<uint64_t>() > INT32_MAX)
        throw Error(ErrorKind::malformed, file->second + ": eos_token_id", "is not an id or a list of ids", "",
                    in_quotes(ids->dump(), 60));
      add_eos(p, id.get<int64_t>());
    }
  }
  return p;
}

}  // namespace

TokenizerParts tokenizer_json_parts(std::string_view text, const std::string& name) {
  const Json json = parse_json_tree(text, name);
  const JsonReader root(json, name);
  TokenizerParts p;
  p.name = name;
  p.hash = tokenizer_hash(text);
  if (root.has("truncation")) unsupported(root, "truncation", "null", "a limit");
  if (const auto padding = root.object("padding")) {
    const Json* strategy = padding->find("strategy");  // "BatchLongest" pads nothing where there is one text
    if (!strategy || *strategy != "BatchLongest") unsupported(root, "padding", "null", "a fixed length");
  }
  if (const auto normalizer = root.object("normalizer")) read_normalizer(*normalizer, p);
  read_pre_tokenizer(root, p);
  read_decoder(root);
  if (const auto post = root.object("post_processor")) read_post_processor(*post, p);
  read_model(root, p);
  if (const Json* added = root.find("added_tokens")) {
    if (!added->is_array())
      throw Error(ErrorKind::malformed, root.where("added_tokens"), "has the wrong type", "a list");
    for (const Json& t : *added) {
      const JsonReader r(t, name, "added_tokens");
      p.added.push_back(read_added(r, r.required_integer("id", 0, INT32_MAX)));
    }
  }
  return p;
}

TokenizerParts tokenizer_parts(const fs::path& path) {
  return fs::is_directory(path) ? folder_parts(path) : tokenizer_json_parts(read_text_file(path), path.string());
}

Tokenizer Tokenizer::from_json(std::string_view text, const std::string& name) {
  return Tokenizer(std::make_shared<TokenizerModel>(tokenizer_json_parts(text, name)));
}

Tokenizer Tokenizer::load(const fs::path& path) {
  if (!is_there(path))
    throw Error(ErrorKind::usage, path.string(), "is not there",
                "a folder with tokenizer.json, a tokenizer.json, or a GGUF file");
  if (!fs::is_directory(path)) {
    auto file = MappedFile::open(path);
    if (file->size() >= 4 && std::string_view(reinterpret_cast<const char*>(file->data()), 4) == "GGUF")
      return from_gguf(GgufFile::open(path));
  }
  return Tokenizer(std::make_shared<TokenizerModel>(tokenizer_parts(path)));
}

}  // namespace assay

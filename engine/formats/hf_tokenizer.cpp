#include "engine/formats/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "dumps/error.h"
#include "dumps/safetensors.h"
#include "dumps/text.h"
#include "engine/formats/provenance.h"

namespace fs = std::filesystem;

namespace assay {
namespace {

struct AddedToken {
  int64_t id;
  bool special;
};

/// What the canaries need of tokenizer.json.
struct Vocabulary {
  std::string file;
  int64_t tokens = 0;  // largest id + 1
  std::map<std::string, AddedToken> added;
  const Json* vocab = nullptr;  // token -> id (BPE) or a list (Unigram)
  std::optional<int64_t> id_of(const std::string& token) const {
    if (auto it = added.find(token); it != added.end()) return it->second.id;
    if (vocab && vocab->is_object()) {
      auto it = vocab->find(token);
      if (it != vocab->end() && it->is_number_unsigned()) return it->get<int64_t>();
    }
    return std::nullopt;
  }
  const AddedToken* added_by_id(int64_t id) const {
    for (const auto& [token, a] : added)
      if (a.id == id) return &a;
    return nullptr;
  }
};

Vocabulary read_vocabulary(const Json& json, const std::string& name, int64_t rows) {
  const JsonReader r(json, name);
  Vocabulary v;
  v.file = name;
  auto take = [&](const std::string& token, int64_t id) {
    if (id < 0 || id >= rows) {
      throw Error(ErrorKind::malformed, fmt::format("{}: token {}", name, in_quotes(token)),
                  "its id has no row in the embedding", fmt::format("0 to {} (vocab_size {})", rows - 1, rows),
                  std::to_string(id), "Another model's tokenizer may lie in this folder");
    }
    v.tokens = std::max(v.tokens, id + 1);
  };
  if (auto model = r.object("model")) {
    v.vocab = model->find("vocab");
    if (v.vocab && v.vocab->is_object()) {
      for (const auto& [token, id] : v.vocab->items()) take(token, id.is_number_unsigned() ? id.get<int64_t>() : -1);
    } else if (v.vocab && v.vocab->is_array() && !v.vocab->empty()) {
      take("the last one", int64_t(v.vocab->size()) - 1);
    }
  }
  if (const Json* added = r.find("added_tokens"); added && added->is_array()) {
    for (const Json& t : *added) {
      const JsonReader a(t, name, "added_tokens");
      const std::string content = a.string("content").value_or("");
      const int64_t id = a.required_integer("id", 0, INT64_MAX);
      take(content, id);
      v.added[content] = {id, a.boolean("special").value_or(false)};
    }
  }
  return v;
}

/// The text of a special token of tokenizer_config.json: a string, or an object with "content".
std::optional<std::string> special_text(const JsonReader& r, const char* key) {
  const Json* v = r.find(key);
  if (!v) return std::nullopt;
  if (v->is_string()) return v->get<std::string>();
  return JsonReader(*v, r.name(), key).string("content");
}

void add_ids(const JsonReader& r, const char* key, int64_t rows, std::vector<int64_t>& ids) {
  const Json* v = r.find(key);
  if (!v) return;
  const Json list = v->is_array() ? *v : Json::array({*v});
  if (list.size() > kMaxSpecialIds) {
    throw Error(ErrorKind::malformed, r.where(key), "is absurd", fmt::format("at most {} ids", kMaxSpecialIds),
                std::to_string(list.size()));
  }
  for (const Json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= uint64_t(rows)) {
      throw Error(ErrorKind::malformed, r.where(key), "is not a token of this model", fmt::format("0 to {}", rows - 1),
                  in_quotes(id.dump(-1, ' ', true, Json::error_handler_t::replace), 40));
    }
    if (std::find(ids.begin(), ids.end(), id.get<int64_t>()) == ids.end()) ids.push_back(id.get<int64_t>());
  }
}

std::string ids_text(const std::vector<int64_t>& ids) {
  return ids.size() == 1 ? std::to_string(ids[0]) : shape_text(ids);
}

void check_special(const Vocabulary& v, const char* what, int64_t id) {
  if (id >= v.tokens) {
    throw Error(ErrorKind::malformed, v.file,
                fmt::format("the config's {} token id is not a token of this tokenizer", what),
                fmt::format("an id below {}", v.tokens), std::to_string(id),
                "Another model's tokenizer may lie in this folder");
  }
  const AddedToken* added = v.added_by_id(id);
  if (!v.added.empty() && (!added || !added->special)) {
    throw Error(ErrorKind::malformed, v.file,
                fmt::format("the config's {} token id {} is an ordinary token here", what, id),
                "an entry of added_tokens with \"special\": true", added ? "special false" : "no such entry",
                "Another model's tokenizer may lie in this folder");
  }
}

/// The special token that tokenizer_config.json names must be one of the config's ids; either side may be silent.
void check_named(const Vocabulary& v, const JsonReader& r, const char* key, const std::vector<int64_t>& ids) {
  const auto token = special_text(r, key);
  if (!token || ids.empty()) return;
  const auto id = v.id_of(*token);
  if (id && std::find(ids.begin(), ids.end(), *id) != ids.end()) return;
  throw Error(ErrorKind::malformed, r.where(key), fmt::format("{} contradicts the config", in_quotes(*token)),
              "id " + ids_text(ids), id ? "id " + std::to_string(*id) : "no such token");
}

}  // namespace

std::string check_tokenizer(const fs::path& dir, Config& config) {
  auto read = [&](const char* name) {
    return is_there(dir / name) ? std::optional(read_text_file(dir / name)) : std::nullopt;
  };
  return check_tokenizer(
      {dir.string(), read("tokenizer.json"), read("tokenizer_config.json"), read("generation_config.json")}, config);
}

std::string check_tokenizer(const TokenizerTexts& texts, Config& config) {
  auto file = [&](const char* name) { return (fs::path(texts.folder) / name).string(); };
  if (texts.generation_config) {
    const std::string name = file("generation_config.json");
    const Json json = parse_json_tree(*texts.generation_config, name);
    add_ids(JsonReader(json, name), "eos_token_id", config.vocab, config.eos);
  }
  if (!texts.tokenizer) return {};
  const Json json = parse_json_tree(*texts.tokenizer, file("tokenizer.json"));
  const Vocabulary v = read_vocabulary(json, file("tokenizer.json"), config.vocab);
  for (int64_t id : config.eos) check_special(v, "eos", id);
  if (config.bos >= 0) check_special(v, "bos", config.bos);
  if (texts.tokenizer_config) {
    const std::string name = file("tokenizer_config.json");
    const Json settings = parse_json_tree(*texts.tokenizer_config, name);
    check_named(v, JsonReader(settings, name), "eos_token", config.eos);
    if (config.bos >= 0) check_named(v, JsonReader(settings, name), "bos_token", {config.bos});
  }
  return tokenizer_hash(*texts.tokenizer);
}

}  // namespace assay

#include "engine/formats/hf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>

#include "dumps/error.h"
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

}  // namespace

std::string check_tokenizer(const fs::path& dir, Config& config) {
  const fs::path generation = dir / "generation_config.json";
  if (fs::exists(generation)) {
    const Json json = parse_json(read_text_file(generation), generation.string());
    add_ids(JsonReader(json, generation.string()), "eos_token_id", config.vocab, config.eos);
  }
  const fs::path path = dir / "tokenizer.json";
  if (!fs::exists(path)) return {};
  const std::string text = read_text_file(path);
  const Json json = parse_json(text, path.string());
  const Vocabulary v = read_vocabulary(json, path.string(), config.vocab);
  for (int64_t id : config.eos) check_special(v, "eos", id);
  if (config.bos >= 0) check_special(v, "bos", config.bos);

  const fs::path settings = dir / "tokenizer_config.json";
  if (fs::exists(settings)) {
    const Json settings_json = parse_json(read_text_file(settings), settings.string());
    const JsonReader r(settings_json, settings.string());
    auto contradiction = [&](const char* key, const std::string& token, const std::string& wanted,
                             const std::string& found) {
      throw Error(ErrorKind::malformed, r.where(key), fmt::format("{} contradicts the config", in_quotes(token)),
                  wanted, found);
    };
    if (auto token = special_text(r, "eos_token"); token && !config.eos.empty()) {
      auto id = v.id_of(*token);
      if (!id || std::find(config.eos.begin(), config.eos.end(), *id) == config.eos.end()) {
        contradiction("eos_token", *token, "id " + ids_text(config.eos),
                      id ? "id " + std::to_string(*id) : "no such token");
      }
    }
    if (auto token = special_text(r, "bos_token"); token && config.bos >= 0) {
      auto id = v.id_of(*token);
      if (!id || *id != config.bos) {
        contradiction("bos_token", *token, "id " + std::to_string(config.bos),
                      id ? "id " + std::to_string(*id) : "no such token");
      }
    }
  }
  return hash_pieces({{text.data(), text.size()}});
}

}  // namespace assay

// JSON that a file brought, read distrustfully: bounded nesting, no duplicate key, and typed reads that name the key.
#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace assay {

// Sorted: an ordered_json object is searched from end to end for every key, which a vocabulary of 150000 tokens makes
// minutes.
using Json = nlohmann::json;

/// Parses `text`. Throws Error{malformed} ("NAME: byte N") on bad syntax, bad UTF-8, nesting beyond kJsonMaxDepth or a
/// key that stands twice in one object.
Json parse_json_tree(std::string_view text, const std::string& name);

/// Reads members of one JSON object; `name` is the file, `path` the object within it ("text_config").
class JsonReader {
 public:
  JsonReader(const Json& object, std::string name, std::string path = {});
  /// nullptr if absent or null.
  const Json* find(const char* key) const;
  bool has(const char* key) const { return find(key) != nullptr; }
  /// Throw Error{malformed} if the member has another type or lies outside [low, high].
  std::optional<int64_t> integer(const char* key, int64_t low, int64_t high) const;
  std::optional<double> number(const char* key) const;  // finite
  std::optional<bool> boolean(const char* key) const;
  std::optional<std::string> string(const char* key) const;
  std::optional<JsonReader> object(const char* key) const;
  int64_t required_integer(const char* key, int64_t low, int64_t high) const;
  double required_number(const char* key) const;

  /// "config.json: text_config.head_dim"
  std::string where(const char* key) const;
  const std::string& name() const { return name_; }
  const Json& json() const { return *object_; }

 private:
  [[noreturn]] void missing(const char* key, const char* wanted) const;
  const Json* object_;
  std::string name_;
  std::string path_;
};

}  // namespace assay

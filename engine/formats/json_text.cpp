#include "engine/formats/json_text.h"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "dumps/error.h"
#include "dumps/json.h"
#include "dumps/text.h"

namespace assay {
namespace {

std::string short_text(const Json& v) {
  return in_quotes(v.dump(-1, ' ', true, Json::error_handler_t::replace), 60);
}

}  // namespace

Json parse_json_tree(std::string_view text, const std::string& name) {
  check_json(text, name);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const Json::exception& e) {  // out_of_range: a number beyond double
    throw Error(ErrorKind::malformed, name, "is not JSON", "a JSON text", in_quotes(e.what(), 200));
  }
}

JsonReader::JsonReader(const Json& object, std::string name, std::string path)
    : object_(&object), name_(std::move(name)), path_(std::move(path)) {
  if (!object.is_object()) {
    throw Error(ErrorKind::malformed, path_.empty() ? name_ : name_ + ": " + path_, "has the wrong type",
                "a JSON object", short_text(object));
  }
}

std::string JsonReader::where(const char* key) const {
  return name_ + ": " + (path_.empty() ? "" : path_ + ".") + key;
}

const Json* JsonReader::find(const char* key) const {
  auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::optional<int64_t> JsonReader::integer(const char* key, int64_t low, int64_t high) const {
  const Json* v = find(key);
  if (!v) return std::nullopt;
  const bool fits = v->is_number_integer() && !(v->is_number_unsigned() && v->get<uint64_t>() > uint64_t(INT64_MAX));
  if (!fits || v->get<int64_t>() < low || v->get<int64_t>() > high) {
    throw Error(ErrorKind::malformed, where(key), "is not a usable value",
                fmt::format("an integer from {} to {}", low, high), short_text(*v));
  }
  return v->get<int64_t>();
}

std::optional<double> JsonReader::number(const char* key) const {
  const Json* v = find(key);
  if (!v) return std::nullopt;
  if (!v->is_number() || !std::isfinite(v->get<double>())) {
    throw Error(ErrorKind::malformed, where(key), "is not a usable value", "a finite number", short_text(*v));
  }
  return v->get<double>();
}

std::optional<bool> JsonReader::boolean(const char* key) const {
  const Json* v = find(key);
  if (!v) return std::nullopt;
  if (!v->is_boolean()) {
    throw Error(ErrorKind::malformed, where(key), "is not a usable value", "true or false", short_text(*v));
  }
  return v->get<bool>();
}

std::optional<std::string> JsonReader::string(const char* key) const {
  const Json* v = find(key);
  if (!v) return std::nullopt;
  if (!v->is_string())
    throw Error(ErrorKind::malformed, where(key), "is not a usable value", "a string", short_text(*v));
  return v->get<std::string>();
}

std::optional<JsonReader> JsonReader::object(const char* key) const {
  const Json* v = find(key);
  if (!v) return std::nullopt;
  return JsonReader(*v, name_, path_.empty() ? key : path_ + "." + key);
}

void JsonReader::missing(const char* key, const char* wanted) const {
  throw Error(ErrorKind::malformed, where(key), "is missing", wanted, "no such key");
}

int64_t JsonReader::required_integer(const char* key, int64_t low, int64_t high) const {
  auto v = integer(key, low, high);
  if (!v) missing(key, "an integer");
  return *v;
}

double JsonReader::required_number(const char* key) const {
  auto v = number(key);
  if (!v) missing(key, "a number");
  return *v;
}

}  // namespace assay

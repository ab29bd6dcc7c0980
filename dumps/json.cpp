#include "dumps/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "dumps/error.h"
#include "dumps/safetensors.h"
#include "dumps/text.h"

namespace assay {

using Json = nlohmann::ordered_json;

namespace {

/// Passes over JSON text before a tree is built of it: nlohmann's builders keep one of two equal keys silently, have no depth
/// limit, and with a callback take time quadratic in the length of an array.
class JsonWatch : public nlohmann::json_sax<nlohmann::json> {
 public:
  JsonWatch(const std::string& where, size_t max_keys) : where_(where), max_keys_(max_keys) {}
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    deeper();
    keys_.emplace_back();
    return true;
  }
  bool key(string_t& key) override {
    if (!keys_.back().add(key))
      throw Error(ErrorKind::malformed, where_, "the key " + in_quotes(key) + " appears twice", "each key once");
    if (keys_.back().set.size() > max_keys_)
      throw Error(ErrorKind::malformed, where_, "an object with too many keys", fmt::format("{} at most", max_keys_));
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    depth_--;
    return true;
  }
  bool start_array(size_t) override {
    deeper();
    return true;
  }
  bool end_array() override {
    depth_--;
    return true;
  }
  bool parse_error(size_t byte, const std::string&, const nlohmann::json::exception& e) override {
    throw Error(ErrorKind::malformed, fmt::format("{}: byte {}", where_, byte), "is not JSON", "a JSON text",
                in_quotes(e.what(), 200));
  }

 private:
  void deeper() {
    if (++depth_ > kJsonMaxDepth)
      throw Error(ErrorKind::malformed, where_, "JSON nested too deeply", fmt::format("{} levels at most", kJsonMaxDepth));
  }
  // Keys of the objects that are open. Small objects, which a manifest has by the thousand, are searched as a list.
  struct Keys {
    static constexpr size_t kSmall = 32;
    std::vector<std::string> list;
    std::unordered_set<std::string> set;
    bool add(const std::string& key) {
      if (list.size() < kSmall) {
        if (std::find(list.begin(), list.end(), key) != list.end()) return false;
        list.push_back(key);
        return true;
      }
      if (set.empty()) set.insert(list.begin(), list.end());
      return set.insert(key).second;
    }
  };
  const std::string& where_;
  size_t max_keys_;
  int depth_ = 0;
  std::vector<Keys> keys_;
};

}  // namespace

void check_json(std::string_view text, const std::string& where, size_t max_keys) {
  JsonWatch watch(where, max_keys);
  nlohmann::json::sax_parse(text.begin(), text.end(), &watch);
}

Json json_number(double x) {
  if (std::isnan(x)) return "NaN";
  if (std::isinf(x)) return x < 0 ? "-Infinity" : "Infinity";
  return x;
}

Json parse_json(std::string_view text, const std::string& where) {
  check_json(text, where, 20000);
  try {
    return Json::parse(text.begin(), text.end());
  } catch (const nlohmann::json::exception& e) {
    throw Error(ErrorKind::malformed, where, "is not JSON", {}, std::string(e.what()).substr(0, 200));
  }
}

Json read_json(const std::filesystem::path& path) {
  constexpr size_t kMaxBytes = size_t{512} << 20;
  const std::shared_ptr<MappedFile> file = MappedFile::open(path);
  if (file->size() > kMaxBytes) {
    throw Error(ErrorKind::malformed, path.string(), "absurd size of a JSON file", bytes_text(kMaxBytes) + " at most",
                bytes_text(file->size()));
  }
  return parse_json({reinterpret_cast<const char*>(file->data()), file->size()}, path.string());
}

const Json& json_get(const Json& object, const char* key, const std::string& where) {
  if (!object.is_object()) throw Error(ErrorKind::malformed, where, "wrong JSON type", "an object", object.type_name());
  const auto it = object.find(key);
  if (it == object.end()) throw Error(ErrorKind::malformed, where, fmt::format("the key \"{}\" is missing", key));
  return *it;
}

std::string json_string(const Json& value, const std::string& where) {
  if (!value.is_string()) throw Error(ErrorKind::malformed, where, "wrong JSON type", "a string", value.type_name());
  return value.get<std::string>();
}

int64_t json_int(const Json& value, const std::string& where, int64_t least, int64_t most) {
  if (!value.is_number_integer()) {
    throw Error(ErrorKind::malformed, where, "wrong JSON type", "an integer", value.type_name());
  }
  const bool absurd = value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX);
  const int64_t v = absurd ? INT64_MAX : value.get<int64_t>();
  if (absurd || v < least || v > most) {
    throw Error(ErrorKind::malformed, where, "number out of range", fmt::format("{} .. {}", least, most), value.dump());
  }
  return v;
}

double json_finite(const Json& value, const std::string& where) {
  if (!value.is_number()) throw Error(ErrorKind::malformed, where, "wrong JSON type", "a number", value.type_name());
  const double v = value.get<double>();
  if (!std::isfinite(v)) throw Error(ErrorKind::malformed, where, "not a finite number");
  return v;
}

std::vector<int64_t> json_ints(const Json& value, const std::string& where, int64_t least) {
  if (!value.is_array()) throw Error(ErrorKind::malformed, where, "wrong JSON type", "an array", value.type_name());
  std::vector<int64_t> out;
  out.reserve(value.size());
  for (const Json& v : value) out.push_back(json_int(v, where, least, INT64_MAX));
  return out;
}

std::vector<std::string> json_strings(const Json& value, const std::string& where) {
  if (!value.is_array()) throw Error(ErrorKind::malformed, where, "wrong JSON type", "an array", value.type_name());
  std::vector<std::string> out;
  out.reserve(value.size());
  for (const Json& v : value) out.push_back(json_string(v, where));
  return out;
}

}  // namespace assay

// Holds records against a JSON Schema, in tests.
#pragma once
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace assay {

/// The part of JSON Schema that our schemas use. Empty: valid; else the first contradiction.
class Schema {
 public:
  using Json = nlohmann::ordered_json;
  explicit Schema(Json root) : root_(std::move(root)) {}
  static Schema read(const std::filesystem::path& path) {
    std::ifstream file(path);
    return Schema(Json::parse(file));
  }
  std::string check(const Json& value) const { return check(root_, value, "record"); }

 private:
  static bool is_type(const std::string& t, const Json& v) {
    return (t == "object" && v.is_object()) || (t == "array" && v.is_array()) || (t == "string" && v.is_string()) ||
           (t == "boolean" && v.is_boolean()) || (t == "null" && v.is_null()) || (t == "integer" && v.is_number_integer()) ||
           (t == "number" && v.is_number());
  }

  std::string check(const Json& schema, const Json& v, const std::string& at) const {
    if (schema.contains("$ref")) {
      return check(root_.at(Json::json_pointer(schema["$ref"].get<std::string>().substr(1))), v, at);
    }
    for (const auto& [key, rule] : schema.items()) {
      if (key == "type") {
        bool fits = false;
        for (const Json& t : rule.is_array() ? rule : Json::array({rule})) fits = fits || is_type(t, v);
        if (!fits) return at + ": type " + v.type_name();
      } else if (key == "const" && rule != v) {
        return at + ": " + v.dump() + " is not " + rule.dump();
      } else if (key == "enum" && std::find(rule.begin(), rule.end(), v) == rule.end()) {
        return at + ": " + v.dump() + " is none of " + rule.dump();
      } else if (key == "minimum" && v.is_number() && v < rule) {
        return at + ": below the minimum";
      } else if ((key == "anyOf" || key == "oneOf")) {
        std::string all;
        int fits = 0;
        for (const Json& one : rule) {
          const std::string error = check(one, v, at);
          fits += error.empty();
          all += (all.empty() ? "" : "; ") + error;
        }
        if (fits == 0 || (key == "oneOf" && fits != 1)) return all;
      } else if (key == "required" && v.is_object()) {
        for (const Json& name : rule) {
          if (!v.contains(name.get<std::string>())) return at + ": no " + name.get<std::string>();
        }
      } else if (key == "items" && v.is_array()) {
        for (const Json& x : v) {
          if (const std::string error = check(rule, x, at + "[]"); !error.empty()) return error;
        }
      } else if (key == "properties" && v.is_object()) {
        for (const auto& [name, x] : v.items()) {
          if (!rule.contains(name)) continue;
          if (const std::string error = check(rule[name], x, at + "." + name); !error.empty()) return error;
        }
      } else if (key == "additionalProperties" && v.is_object()) {
        for (const auto& [name, x] : v.items()) {
          if (schema.contains("properties") && schema["properties"].contains(name)) continue;
          if (rule == false) return at + ": unknown key " + name;
          if (const std::string error = check(rule, x, at + "." + name); !error.empty()) return error;
        }
      }
    }
    return "";
  }

  Json root_;
};

}  // namespace assay

// Every record that a comparison writes fits schemas/record.schema.json, and what the schema requires is there.
#include <gtest/gtest.h>

#include <fstream>

#include "dumps/compare_test_dumps.h"

namespace assay {
namespace {

using namespace testing_dumps;
using Json = nlohmann::ordered_json;

/// The part of JSON Schema that record.schema.json uses. Empty: valid; else the first contradiction.
class Schema {
 public:
  explicit Schema(Json root) : root_(std::move(root)) {}
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

Schema schema() {
  std::ifstream file(std::filesystem::path(__FILE__).parent_path() / "schemas" / "record.schema.json");
  return Schema(Json::parse(file));
}

TEST(Records, FitTheirSchema) {
  Folder f;
  std::vector<double> odd = wave(32);
  odd[3] = kNaN;
  odd[5] = -kInf;
  const std::vector<Values> common = {
      {"prompt0/prefill/0/embed", {4, 8}, wave(32)},
      {"prompt0/prefill/0/layer.0/q_rope", {4, 8}, odd},
      {"prompt0/prefill/0/logits", {4, 8}, wave(32, 2)},
      {"prompt0/decode/0/logits", {1, 8}, wave(8)},
      {"prompt0/decode/1/logits", {1, 8}, wave(8)},
      {"prompt0/state/after_prefill/layer.0/k", {2, 4, 2}, wave(16)},
      {"foreign name", {3}, {1, 2, 3}, DType::i64},
      {"prompt0/ids", {4}, {1, 2, 3, 4}, DType::i64},
  };
  std::vector<Values> a = common, b = common;
  a[6].name = b[6].name = "foreign_name";
  b[0].x[9] += 0.25;
  b[1].x = wave(32);
  b[2].x[1] = kInf;
  b[6].x[2] = 4;
  a.push_back({"prompt0/prefill/0/final_norm", {1, 4}, wave(4)});
  b.push_back({"prompt0/prefill/0/mine", {1, 4}, wave(4)});
  a.push_back({"prompt0/prefill/0/logits_top_ids", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 0}, DType::i64});
  a.push_back({"prompt0/greedy_ids", {3}, {1, 2, 3}, DType::i64});
  b.push_back({"prompt0/greedy_ids", {3}, {1, 5, 3}, DType::i64});
  const Dump base = write_dump(f / "b", a), target = write_dump(f / "t", b);
  const Schema s = schema();
  size_t kinds = 0;
  for (Level level : {Level::greedy_prefix, Level::max_rel, Level::byte_exact}) {
    CompareOptions o = at(level, 1e-3);
    o.extra = true;
    const CompareResult r = compare(base, target, o);
    EXPECT_EQ(r.exit_code(), 1);
    std::map<std::string, int> seen;
    for (const Json& j : to_records(r, base, target)) {
      EXPECT_EQ(s.check(j), "") << j.dump();
      seen[j["record"]]++;
      const Json back = Json::parse(j.dump());
      EXPECT_EQ(back, j);
    }
    kinds = std::max(kinds, seen.size());
    EXPECT_EQ(seen["compare"], 1);
    EXPECT_EQ(seen["summary"], 1);
    EXPECT_EQ(seen["greedy"], 1);
    EXPECT_EQ(size_t(seen["tensor"]), r.records.size());
  }
  EXPECT_GE(kinds, 5u) << "header, tensors, greedy, top-k, summary";
  // The validator bites: a record with a missing and one with an unknown key.
  Json bad = to_records(compare(base, base, at(Level::max_rel, 1)), base, base).back();
  EXPECT_EQ(s.check(bad), "");
  Json more = bad;
  more["surprise"] = 1;
  EXPECT_NE(s.check(more), "");
  bad.erase("compared");
  EXPECT_NE(s.check(bad), "");
}

}  // namespace
}  // namespace assay

// Reading JSON that others wrote: bounded depth and size, no duplicate keys, every failure an Error{malformed} with its place.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace assay {

inline constexpr int kJsonMaxDepth = 64;

/// Throws Error{malformed} with the byte unless `text` is JSON of at most kJsonMaxDepth levels without a key that stands twice
/// in one object, and with at most `max_keys` keys per object. Trees are built only of texts that passed.
void check_json(std::string_view text, const std::string& where, size_t max_keys = SIZE_MAX);

/// Throws Error{malformed}: not JSON, a key twice in one object, deeper than 64 levels, an object of more than 20000 keys
/// (ordered_json searches linearly; lists belong into arrays).
nlohmann::ordered_json parse_json(std::string_view text, const std::string& where);
/// The same of a whole file of at most 512 MiB.
nlohmann::ordered_json read_json(const std::filesystem::path& path);

/// A number exactly, or one of the strings "NaN", "Infinity", "-Infinity", which JSON has no numbers for (records).
nlohmann::ordered_json json_number(double x);

/// Typed access with messages: `where` names the file and the place inside ("m.json: tensors[3].shape"). Throw Error{malformed}.
const nlohmann::ordered_json& json_get(const nlohmann::ordered_json& object, const char* key, const std::string& where);
std::string json_string(const nlohmann::ordered_json& value, const std::string& where);
int64_t json_int(const nlohmann::ordered_json& value, const std::string& where, int64_t least, int64_t most);
double json_finite(const nlohmann::ordered_json& value, const std::string& where);
std::vector<int64_t> json_ints(const nlohmann::ordered_json& value, const std::string& where, int64_t least);
std::vector<std::string> json_strings(const nlohmann::ordered_json& value, const std::string& where);

}  // namespace assay

// FAULTS B13: an option that can change a bit and is not in the manifest is a hidden option.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace assay {

/// JSON pointers that a dump of this engine must hold and `manifest` does not.
std::vector<std::string> missing_echoes(const nlohmann::ordered_json& manifest);

/// FAULTS E6: echoed options that are not what the model's config.json says, one line each: "rms_eps 1e-05, wanted 1e-06".
std::vector<std::string> echoes_unlike_config(const nlohmann::ordered_json& manifest, const std::filesystem::path& config_json);

}  // namespace assay

// FAULTS B13: an option that can change a bit and is not in the manifest is a hidden option.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace assay {

/// JSON pointers that a dump of this engine must hold and `manifest` does not.
std::vector<std::string> missing_echoes(const nlohmann::ordered_json& manifest);

}  // namespace assay

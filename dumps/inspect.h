// `assay inspect` of a dump, an official case, or safetensors files: what it is and what is in it, on one screen.
#pragma once
#include <filesystem>
#include <iosfwd>
#include <nlohmann/json.hpp>

#include "dumps/dump.h"

namespace assay {

struct InspectOptions {
  bool json = false;     // one JSON object instead of text
  bool verify = false;   // read all values and hold them against their hashes
  bool tensors = false;  // one line per tensor as well
};

/// Facts of a dump; the text is rendered from them alone. Statistics that the dump lacks are taken from its values.
nlohmann::ordered_json inspect_facts(const Dump& dump, const InspectOptions& options = {});
/// Returns false if `verify` found values that disagree with their hashes. Throws as Dump::open.
bool inspect(const std::filesystem::path& path, std::ostream& out, const InspectOptions& options = {});

}  // namespace assay

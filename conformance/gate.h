// May this be released? Parts, each with a verdict of its own, in one report. A part that did not run is named as such:
// the gate's verdict speaks of those that did.
#pragma once
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "conformance/evidence.h"

namespace assay {

struct GateSpec {
  std::string profile;  // "ci": what every change must pass without a device; "release": refuses what ci warns of
  CheckContext context;
  std::filesystem::path evidence;  // folder
  bool emulated = false;           // judge evidence of the emulated module, to try the gate: never with "release"
  size_t sample = 8;               // digests to compute again
  std::optional<uint64_t> seed;    // of the sample; none: default_sample_seed()
  bool slow = false;               // digests of slow checks too
};

/// One document: {"gate", "profile", "verdict", "exit_code", "parts": [{"part", "verdict", "exit_code", "words",
/// "next"}], "not_in_this_gate", "evidence": {"state", "checks", "device", ...}}. Verdicts: "pass", "warning" (ci
/// alone), "fail", "not run". "evidence".state is that of the device with most to show: "fresh"; "incomplete" (no check
/// is stale, some have nothing); "stale"; "missing" (nothing at all); "failed" (a check failed on these sources, or a
/// digest is another on this CPU). Never throws for what lies in the folder.
nlohmann::ordered_json gate_report(const GateSpec& spec);
std::string render_gate_text(const nlohmann::ordered_json& report);

}  // namespace assay

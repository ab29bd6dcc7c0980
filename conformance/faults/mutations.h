// Random mutations: generic small wrongs anywhere in the program, the state or the values of a tiny model. What the
// planted faults prove for wrongs that happened, these prove for wrongs that did not happen yet.
#pragma once
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "conformance/check.h"

namespace assay {

/// `n` mutations of the tiny dense cases as fault records (how "mutation"), the same for the same seed on every
/// machine. Two checks judge each: the official float64 goldens (max_rel) and the fault-free bytes. caught_as_expected:
/// one of them failed, or no byte changed for a reason that was verified (note says which). Anything else is a survivor
/// without an explanation. `progress` is called before each.
std::vector<nlohmann::ordered_json> random_mutations(const CheckContext& c, int64_t n, uint64_t seed,
                                                     const std::function<void(int64_t)>& progress = nullptr);

/// For people, from these records: by kind of mutation, then what only bytes told, and the survivors with their
/// reasons.
std::string render_mutations_text(const std::vector<nlohmann::ordered_json>& records);

}  // namespace assay

// The kinds of mutation: each picks its place in an engine's program by a random number, and plants itself there.
#pragma once
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "engine/session.h"

namespace assay {

/// What was planted, and why it may be no fault at all.
struct Mutant {
  std::string what;  // "layer.2/q_rope turns by positions + 1"
  /// Asked where no byte changed, after the run: a verified reason, else "".
  std::function<std::string()> reason = [] { return std::string(); };
};

struct MutantKind {
  const char* name;                                           // "input-swapped"
  std::optional<Mutant> (*plant)(Engine&, std::mt19937_64&);  // nullopt: this model has no place for it
};
const std::vector<MutantKind>& mutant_kinds();

}  // namespace assay

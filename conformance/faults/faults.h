// Planted faults: each rewrites the program of an engine the way a real engine went wrong (FAULTS.md holds the stories).
// Nothing here runs unless a fault is asked for by name, and every dump made with one says so in its manifest.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "engine/session.h"

namespace assay {

struct Fault {
  std::string name;         // what `--plant` takes: "rope-pairs"
  std::string row;          // the row of FAULTS.md: "B3"
  std::string what;         // one line
  std::function<void(Engine&)> apply;
  bool slow = false;        // judged on the 48-layer case: minutes
};
const std::vector<Fault>& faults();

/// Rewrites the engine's program. Throws Error{usage} for an unknown name, with the known ones, and where the model has no
/// place for it (a fault that is not planted must never count as caught).
void plant(Engine& engine, const std::string& name);

}  // namespace assay

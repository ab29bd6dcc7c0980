// Activation patching: the target run again with values of the baseline put in. If the error vanishes behind a node,
// that node caused it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "conformance/drill/engine_replayer.h"

namespace assay {

struct GraftResult {
  std::vector<std::string> nodes;     // full names of the values put in
  int64_t behind = 0;                 // tensors computed behind the first of them
  int64_t differed = 0, differs = 0;  // of these: without and with the graft
  std::string first_left;             // the first that still differs behind it; empty: none
  bool vanished() const { return differs == 0 && differed > 0; }
  std::string text;  // one sentence
};

/// `nodes`: a full name, the end of one ("layer.0/q_rope": in every prompt and pass), or a glob with *; several by
/// commas; those that the baseline holds are put in. `work`: an empty folder for the run's dump. Throws Error{usage} where
/// the target can't be run again, no node is meant, or the baseline has no value for any.
GraftResult graft(EngineReplayer& replayer, const Dump& base, const Dump& target, const std::string& nodes,
                  const CompareOptions& options, const std::filesystem::path& work);

nlohmann::ordered_json to_record(const GraftResult& r);
std::string render_graft_text(const nlohmann::ordered_json& record);

}  // namespace assay

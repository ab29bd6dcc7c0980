// Which nodes of a model run where, by their phase and by the rows of a pass, held against an approved table. A node
// that runs elsewhere than approved has the right bytes and another speed: no comparison of values sees it.
#pragma once
#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "engine/backend.h"
#include "engine/program.h"

namespace assay {

struct Check;

/// Classes of a pass's token rows: the sizes at which devices change kernels.
inline constexpr std::array<const char*, 3> kRowClasses = {"1", "2 to 32", "33 and more"};

/// By phase: where its nodes ran in passes of each class, "device", "cpu", "cpu and device", or "" where none ran.
using OffloadTable = std::map<std::string, std::array<std::string, kRowClasses.size()>>;

/// The approved table of a case (offload.json). Error{malformed} with the entry.
OffloadTable read_offload(const std::filesystem::path& file, const std::string& name);
OffloadTable offload_of(const Trace& trace, const Program& program);
/// The first entry that differs, in words: "k_proj, passes of 1 rows: cpu, approved device"; "" where the tables agree.
std::string first_difference(const OffloadTable& approved, const OffloadTable& found);

/// "counter/qwen2-bias/offload/simt" and the same of a real device.
void add_offload_checks(std::vector<Check>& out);

}  // namespace assay

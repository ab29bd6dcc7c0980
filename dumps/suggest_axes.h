// The inside of suggest_map(): layouts, from where columns were found. Not for other folders.
#pragma once
#include <string>
#include <vector>

#include "dumps/suggest_family.h"

namespace assay::suggesting {

struct AxesText {
  std::string clause;              // of MAP.md; "": plain
  std::vector<std::string> names;  // of ours, one for each part
  std::string problem;             // why there is none
};
/// `ranks`: hits of each rank (one where there are no shards), `seen` the first. Caches: `token` is "position".
AxesText axes_text(const DumpTensor& t, const Seen& seen, const std::vector<std::vector<Hit>>& ranks,
                   const Index& index, const std::string& token);

}  // namespace assay::suggesting

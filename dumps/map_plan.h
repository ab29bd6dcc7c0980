// What becomes what: the plan behind Mapping (map.h). Not for other folders.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "dumps/map.h"
#include "dumps/map_gather.h"
#include "dumps/map_rules.h"

namespace assay::mapping {

/// One tensor of ours.
struct Output {
  Mapping::Line line;
  Walk walk;
  bool one_piece = false;
  bool whole = false;  // all bytes of one tensor in their order and rows: its hashes hold
  bool widen = false;  // integers to I64
  int64_t first = 0;   // of one piece
};

/// Points into the dump that it was made from.
struct MapPlan {
  std::string where;            // the map file
  std::vector<Output> outputs;  // in execution order
  std::vector<std::string> ignored;
  std::vector<std::pair<std::string, const DumpTensor*>> rows;  // prefix of ours, table
  std::vector<std::string> not_materialised;                    // sorted; entries may hold *

  Gathered values(const Output& o) const;
  nlohmann::ordered_json rows_block() const;  // of the manifest
};

/// Throws as Mapping does.
MapPlan plan_map(const Dump& theirs, const DumpMap::Impl& map);

}  // namespace assay::mapping

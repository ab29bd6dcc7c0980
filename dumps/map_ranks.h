// Ranks: which tensors of theirs one rule gathers into the same tensors of ours. Not for other folders.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dumps/dump.h"
#include "dumps/map_gather.h"
#include "dumps/map_rules.h"

namespace assay::mapping {

/// Tensors of theirs that one rule turns into the same tensors of ours: they differ in the gathered captures only.
struct Group {
  const Rule* rule;
  const PassPrefix* pass;  // null: full names
  Match fixed;             // captures that ours use, stars
  std::vector<std::pair<Match, const DumpTensor*>> members;
};

/// A capture that a group gathers, and how many values it has: 0 .. n-1.
struct Gather {
  std::string name;
  int64_t n = 0;
  const DumpTensor* last = nullptr;  // a tensor of the largest number
};

/// Counts of the gathered captures, over all groups of one rule: a rank that a single group lacks is not overlooked.
using RankCounts = std::map<std::string, Gather>;
void count_ranks(const Group& g, RankCounts& counts);
/// Those of `g`, in the order in which the names of theirs hold them.
std::vector<Gather> gathers_of(const Group& g, const Pattern& pattern, const RankCounts& counts);
/// Theirs in the order of the gathered captures. Throws Error{malformed}: one is missing, or is of another kind.
std::vector<const DumpTensor*> grid_of(const Group& g, const std::vector<Gather>& gathers, const std::string& rule,
                                       const std::string& where);
/// Puts ranks among the axes of `v`, or as terms and replicas into `walk`. `reduced`: the capture that is summed or
/// must agree; empty: none.
void place_ranks(Walk& walk, View& v, const std::vector<Gather>& gathers, const std::vector<const DumpTensor*>& grid,
                 const std::string& reduced);
/// What the group was made from, as a name: "rank0..1/step0/o_proj".
std::string from_text(const Group& g, const std::vector<Gather>& gathers, const Pattern& pattern);

}  // namespace assay::mapping

// Integers of a dump that a map leans on: block tables, lengths. Not for other folders.
#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "dumps/dump.h"
#include "dumps/map_rules.h"

namespace assay::mapping {

bool is_integer(DType t);  // no BOOL
/// Element i of a tensor of integers. U64 beyond 2^63 comes back negative.
int64_t int_at(const DumpTensor& t, int64_t i);

/// The tensor that `ref` names with these captures. Throws Error{malformed}: it is not there, or holds no integers.
const DumpTensor& table_of(const Dump& theirs, const TableRef& ref, const std::map<std::string, int64_t>& bound,
                           const std::string& where);
/// How many entries of the axis are valid.
int64_t limit_of(const Dump& theirs, const Limit& l, const std::map<std::string, int64_t>& bound,
                 const std::string& where);
/// The axes page and slot of `view` as positions, through the rule's block table. `name`: of our tensor; where the rule
/// has no limit, its prompt in the manifest says how many positions there are. Throws Error{malformed} naming the
/// table's entry.
ViewAxis position_axis(const Dump& theirs, const Rule& rule, const View& view, const std::string& name,
                       const std::map<std::string, int64_t>& bound, const std::string& where);

}  // namespace assay::mapping

// The inside of suggest_map(): integers of theirs that can be block tables of a cache. Not for other folders.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "dumps/suggest_family.h"

namespace assay::suggesting {

/// The pages of one prompt, as far as they are different from one another: only these can be a table.
struct PageTable {
  const DumpTensor* tensor = nullptr;
  std::vector<int64_t> pages, most;  // the page of each block; the largest up to there
  /// Where each position stands in a cache of `size` pages of `slots`; empty: it does not fit.
  std::vector<int64_t> places(int64_t positions, int64_t size, int64_t slots) const;
};
/// One of each family: that of the prompt where a number tells it, else the first. Equal ones once.
std::vector<PageTable> page_tables(const std::map<std::string, Family>& families, const std::set<const Family*>& done,
                                   int64_t prompt);

}  // namespace assay::suggesting

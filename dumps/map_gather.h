// Moving values: one of our tensors gathered from views of theirs. Not for other folders.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include "dumps/dump.h"
#include "dumps/map_layout.h"

namespace assay::mapping {

/// Our tensor as a walk over theirs: axes slowest first, as ours; element (i0, i1, ...) lies in source
/// sum(i * source_stride), at base + sum(offset).
struct Walk {
  std::vector<ViewAxis> axes;
  int64_t base = 0;
  std::vector<std::vector<const DumpTensor*>>
      sources;  // [replica or term][source]; one replica where nothing is summed
  enum class Reduce { none, sum, same } reduce = Reduce::none;
  std::vector<std::string> replica_names;  // "R = 1"
};

/// Joins neighbouring axes that lie one behind the other, drops axes of size 1. Does not change what is walked.
void simplify(Walk& walk);
/// Whether the values lie in one piece in one tensor; then `*first` is its first element.
bool is_one_piece(const Walk& walk, int64_t* first);

struct Gathered {
  std::vector<std::byte> values;
  std::string fault;  // replicas that differ: one sentence
};
/// `shape`: of our tensor, for the place of a fault. Sums: in double, in order, rounded once to the dtype (nearest
/// even).
Gathered gather(const Walk& walk, DType dtype, const std::vector<int64_t>& shape, const std::string& where);

/// `x` rounded to a float type, nearest even, written to `to`. NaN becomes the canonical one.
void round_to(DType dtype, double x, std::byte* to);

}  // namespace assay::mapping

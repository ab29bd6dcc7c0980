// `assay map --suggest`: proposing a map (MAP.md) from names and values. Nothing is applied.
#pragma once
#include <cstdint>
#include <string>

#include "dumps/dump.h"

namespace assay {

struct Suggestion {
  std::string text;      // a map file; every rule with what speaks for it, commented out where that is too little
  int rules = 0;         // that are held for right
  int unsure = 0;        // rules and tensors that a person must decide
  int64_t searched = 0;  // columns of theirs that were looked for among ours: what the search costs
};

/// Looks for each column of `base` (values of tokens, one column of one phase) among the columns of `theirs`: equal
/// names are not needed, transposes, splits, ranks, partial sums, head permutations, paged caches and physical batches
/// with rows tables are found by value. Works on the prompt of `base` with the most phases and its first two layers,
/// then holds what each rule makes against all of `base`, and the whole map against its rules: with its ignore lines it
/// can be applied and makes just what they make alone. Throws Error{usage}: no values, or no prefill of two or more
/// tokens in `base`.
Suggestion suggest_map(const Dump& base, const Dump& theirs);

}  // namespace assay

// `assay map --suggest`: proposing a map (MAP.md) from names and values. Nothing is applied.
#pragma once
#include <string>

#include "dumps/dump.h"

namespace assay {

struct Suggestion {
  std::string text;  // a map file; every rule with what speaks for it, commented out where that is too little
  int rules = 0;     // that are held for right
  int unsure = 0;    // rules and tensors that a person must decide
};

/// Looks for each column of `base` (values of tokens, one column of one phase) among the columns of `theirs`: equal
/// names are not needed, transposes, splits, ranks, partial sums, head permutations, paged caches and physical batches
/// with rows tables are found by value. Works on the prompt of `base` with the most phases and its first two layers,
/// then holds what the whole map makes against all of `base`. Throws Error{usage}: no values, or no prefill of two or
/// more tokens in `base`.
Suggestion suggest_map(const Dump& base, const Dump& theirs);

}  // namespace assay

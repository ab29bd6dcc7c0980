// The inside of suggest_map(): rules held against ours, alone and together, and written as a map. Not for other
// folders.
#pragma once
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "dumps/suggest.h"

namespace assay::suggesting {

struct Rule {
  std::string text, reason;
  std::vector<std::pair<std::string, std::string>> passes;  // prefixes of theirs and ours that it needs
  std::string ids;                                          // our name of ids: held for right where all are equal
  bool good = false;
  std::set<std::string> makes;  // what becomes what where the rule stands alone
};
/// Tensors that no rule takes: a person must say what they are.
struct Leftover {
  std::string glob, note;
};
struct Found {
  std::vector<Rule> rules;
  std::string rows_line;  // "rows ...\n" or ""
  std::vector<Leftover> left;
};

/// Judges each rule by the values that it makes alone, then plans the whole map: together the rules must make the same
/// tensors of the same parts. Rules whose passes do not go together get full names; what still disturbs the others is
/// written as unsure.
Suggestion write_suggestion(const Dump& base, const Dump& theirs, Found found);

}  // namespace assay::suggesting

// Lists of what a dump does not hold: names, and globs with * that stand for many.
#pragma once
#include <algorithm>
#include <string>

#include "dumps/text.h"

namespace assay {

/// The first of `names` (a set or map by name) that `listed` means: itself, or with * any that fits; end() if there is none.
template <class Names>
auto find_listed(const Names& names, const std::string& listed) {
  if (listed.find('*') == std::string::npos) return names.find(listed);
  return std::find_if(names.begin(), names.end(), [&](const auto& n) {
    if constexpr (requires { n.first; })
      return glob_match(listed, n.first);
    else
      return glob_match(listed, n);
  });
}

}  // namespace assay

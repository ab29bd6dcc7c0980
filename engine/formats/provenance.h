// Hashes that say which files a model came from.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace assay {

/// XXH3-128 of the pieces one after the other, 32 hex digits (canonical, big-endian order).
std::string hash_pieces(const std::vector<std::pair<const void*, size_t>>& pieces);

}  // namespace assay

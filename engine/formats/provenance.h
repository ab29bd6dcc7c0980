// Hashes that say which files a model came from.
#pragma once
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace assay {

class GgufFile;

/// XXH3-128 of the pieces one after the other, 32 hex digits (canonical, big-endian order).
std::string hash_pieces(const std::vector<std::pair<const void*, size_t>>& pieces);

/// What names a tokenizer in artifacts (Provenance::tokenizer_hash): XXH3-128 of the bytes of a tokenizer.json;
std::string tokenizer_hash(std::string_view tokenizer_json);
/// or over the tokenizer.* keys in name order: key, a zero byte, the value as it lies in the file. "" without tokens.
std::string tokenizer_hash(const GgufFile& file);
/// The same of keys that are not in a file yet; others than tokenizer.* are left out.
struct GgufKeyBytes {
  std::string_view key, bytes;
};
std::string tokenizer_hash(std::vector<GgufKeyBytes> keys);

}  // namespace assay

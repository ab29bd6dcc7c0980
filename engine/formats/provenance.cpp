#include "engine/formats/provenance.h"

#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>

#include "engine/formats/gguf.h"

namespace assay {

std::string hash_pieces(const std::vector<std::pair<const void*, size_t>>& pieces) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  for (auto [data, size] : pieces) XXH3_128bits_update(&state, data, size);
  const XXH128_hash_t h = XXH3_128bits_digest(&state);
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

std::string tokenizer_hash(std::string_view tokenizer_json) {
  return hash_pieces({{tokenizer_json.data(), tokenizer_json.size()}});
}

std::string tokenizer_hash(std::vector<GgufKeyBytes> keys) {
  std::erase_if(keys, [](const GgufKeyBytes& k) { return !k.key.starts_with("tokenizer."); });
  std::sort(keys.begin(), keys.end(), [](auto& a, auto& b) { return a.key < b.key; });
  if (std::none_of(keys.begin(), keys.end(), [](auto& k) { return k.key == "tokenizer.ggml.tokens"; })) return {};
  std::vector<std::pair<const void*, size_t>> pieces;
  for (const GgufKeyBytes& k : keys) {
    pieces.emplace_back(k.key.data(), k.key.size());
    pieces.emplace_back("", 1);
    pieces.emplace_back(k.bytes.data(), k.bytes.size());
  }
  return hash_pieces(pieces);
}

std::string tokenizer_hash(const GgufFile& file) {
  std::vector<GgufKeyBytes> keys;
  for (const auto& [key, value] : file.metadata()) keys.push_back({key, value.bytes});
  return tokenizer_hash(std::move(keys));
}

}  // namespace assay

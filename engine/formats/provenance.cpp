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

std::string tokenizer_hash(const GgufFile& file) {
  if (!file.find("tokenizer.ggml.tokens")) return {};
  std::vector<const std::pair<std::string, GgufValue>*> keys;
  for (const auto& entry : file.metadata()) {
    if (entry.first.rfind("tokenizer.", 0) == 0) keys.push_back(&entry);
  }
  std::sort(keys.begin(), keys.end(), [](auto* a, auto* b) { return a->first < b->first; });
  std::vector<std::pair<const void*, size_t>> pieces;
  for (const auto* entry : keys) {
    pieces.emplace_back(entry->first.c_str(), entry->first.size() + 1);
    pieces.emplace_back(entry->second.bytes.data(), entry->second.bytes.size());
  }
  return hash_pieces(pieces);
}

}  // namespace assay

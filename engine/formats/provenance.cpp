#include "engine/formats/provenance.h"

#include <fmt/format.h>
#include <xxhash.h>

namespace assay {

std::string hash_pieces(const std::vector<std::pair<const void*, size_t>>& pieces) {
  XXH3_state_t state;
  XXH3_INITSTATE(&state);
  XXH3_128bits_reset(&state);
  for (auto [data, size] : pieces) XXH3_128bits_update(&state, data, size);
  const XXH128_hash_t h = XXH3_128bits_digest(&state);
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace assay

// Forced routing: the experts that rows go to instead of those that their routers choose, so that a run stays comparable with
// one that chose otherwise.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "dumps/dump.h"
#include "engine/model.h"

namespace assay {

/// The choices of one prompt's rows. Where a layer has none, or a position lies beyond them, the router chooses.
struct ForcedExperts {
  int64_t chosen = 0;                                 // per row
  std::vector<std::vector<int32_t>> layers;           // [positions, chosen] by rank; empty: none
  /// The ids of a row; null: the router's choice holds.
  const int32_t* at(int64_t layer, int64_t position) const {
    if (layer < 0 || size_t(layer) >= layers.size()) return nullptr;
    const std::vector<int32_t>& ids = layers[size_t(layer)];
    return (position + 1) * chosen <= int64_t(ids.size()) ? ids.data() + position * chosen : nullptr;
  }
};

/// What the dump's `router_topk_ids` of a prompt say: prefill/0, then decode/0, decode/1 ... as far as they go. Throws
/// Error{usage}: it has none for the prompt, or not of every layer of experts; Error{malformed}: another number of experts per
/// token, ids outside the model's experts, one expert twice in a row, or layers that end at different positions.
std::shared_ptr<const ForcedExperts> forced_experts(const Dump& dump, const std::string& prompt, const Config& config);

}  // namespace assay

// The engine at real width against the oracle, for the checks and their test.
#pragma once
#include <string>

#include "conformance/check.h"
#include "engine/model.h"

namespace assay {

/// Runs `tokens` rows of a synthetic model (engine/formats/synth.h) at positions from 5000 on, behind a cache of seeded
/// values that the engine and the oracle are both given, and holds every node of the pass to its bound in NUMERICS.md:
/// about 20 rows (edges of lanes and tiles, the last ones), all columns, the logits of the last 16 rows; of quantised
/// products some 160 outputs. The context's `alter` may plant a fault.
CheckOutcome run_width(const CheckContext& c, const std::string& model_spec, int64_t tokens, Activations activations,
                       KvType kv);

/// Writes the config.json of a small model of one head dimension into c.work and returns its path: eight query heads on
/// two kv heads; 40 is llama with llama3 scaling, 96 qwen2 with biases, others qwen3.
std::string head_dim_config(const CheckContext& c, int64_t head_dim);

}  // namespace assay

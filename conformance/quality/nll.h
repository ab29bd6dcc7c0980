// Negative log-likelihood of a text, id by id, through prefill passes or through decode passes.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/session.h"

namespace assay {

/// -log p(id) in nats: log2-sum-exp2 in double of the logits in the order of ids, by numerics.h alone, so that the same
/// logits give the same bytes on every machine. NaN if a logit is NaN.
double nll_of(std::span<const float> logits, int32_t id);

struct NllOptions {
  Pass pass = Pass::prefill;  // prefill: all rows' logits of prefill passes; decode: one row a pass, ids forced
  int64_t chunk = 128;        // prefill rows per pass, 0: a whole window. Bounds the logits held: chunk * vocab floats
  int64_t window = 0;         // positions per window; each starts with an empty cache. 0: the engine's context
  std::vector<int32_t> prefix = {};  // ids that every window starts with (BOS); they are not judged
};

struct TokenNll {
  int64_t index;  // of the judged id in `ids`
  int64_t window;
  int64_t position;  // in its window
  double nll;
};
struct Nll {
  std::vector<TokenNll> tokens;      // in order; the first id of a window has no prediction unless there is a prefix
  double mean() const;               // summed in order
  double perplexity() const;         // e^mean
  std::optional<size_t> not_finite;  // first of `tokens` whose NLL is no finite number
};

/// Uses slot 0. The bytes of every NLL are the same for any chunk, thread count and instruction set, since those of the
/// logits are. Throws Error{usage} for fewer than two ids, ids outside the vocabulary and a window that does not fit
/// the context.
Nll token_nll(Engine& engine, std::span<const int32_t> ids, const NllOptions& options);

}  // namespace assay

// Widening stored elements to f32 at load: exact, so no arithmetic but on bits is needed.
#pragma once
#include <cstddef>

#include "engine/model.h"

namespace assay {

/// `n` elements of type f32, f16 or bf16 at `data` (any alignment). Precondition: not a quantised type.
Vector widen(WeightType type, const std::byte* data, int64_t n);

}  // namespace assay

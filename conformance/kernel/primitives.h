// Kernel scope of the primitives of cuda/prim.cuh: primitives.cpp.
#pragma once
#include <functional>

#include "conformance/kernel/device_kernels.h"
#include "cuda/prim_expected.h"

namespace assay {

/// Runs one primitive's kernel on [ASSAY_PRIMITIVE_WORDS] words.
using PrimitiveRun = std::function<PrimitiveWords(const PrimitiveWords& in)>;
/// Eight cases, one comparison each; null: no device, the digest alone.
CheckOutcome judge_primitive(const ExpectedPrimitive& e, const KernelRun& run, const PrimitiveRun& target);

}  // namespace assay

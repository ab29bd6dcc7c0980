// Planned failures of the calls of runtime.h, for tests of what module.cu and the ops do about them.
#pragma once
#include "cuda/simt/runtime.h"

namespace simt {

/// The n-th call from now on answers with `error` instead of doing its work (what ends or destroys something does that, too);
/// n = 0: none. Returns how many calls the plan before was still away from its failure: 0 where it has come.
int fail_call(int n, cudaError_t error = cudaErrorInvalidValue);

}  // namespace simt

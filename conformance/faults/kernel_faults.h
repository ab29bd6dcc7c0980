// Faulty variants of kernels: where only the kernel can be wrong. Each is judged by the kernel check of its op, and
// planted into whole models (faults.h) under the same name.
#pragma once
#include <string>
#include <vector>

#include "engine/ops/kernels.h"

namespace assay {

struct KernelFault {
  std::string name;         // what `--plant` takes: "nibbles-swapped"
  std::string row;          // of FAULTS.md: "A10"
  std::string what;         // one line
  void (*apply)(Kernels&);  // rewrites a copy of the scalar table
};
const std::vector<KernelFault>& kernel_faults();

/// The scalar kernels with the fault in them. Error{usage} for an unknown name.
Kernels planted_kernels(const std::string& fault);

}  // namespace assay

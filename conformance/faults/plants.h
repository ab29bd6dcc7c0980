// What plants into an engine share.
#pragma once
#include <functional>
#include <vector>

#include "conformance/faults/faults.h"

namespace assay {

/// Gives every node of a kind a body that runs instead of the backend's kernel. Throws NoPlace where there is none.
inline void replace(Engine& engine, OpKind op, const char* fault, std::function<void(NodeContext&, CpuBackend&)> body) {
  int replaced = 0;
  CpuBackend* backend = &engine.plantable_backend();
  for (Node& n : engine.plantable_program().nodes)
    if (n.op == op) {
      n.replacement = [body, backend](NodeContext& c) { body(c, *backend); };
      n.variant = fault;
      replaced++;
    }
  if (replaced == 0) throw NoPlace(fault);
}

/// Runs the backend's own kernel on another first input.
inline void run_on(NodeContext& c, CpuBackend& backend, const std::vector<float>& input) {
  const float* own = c.inputs[0];
  c.inputs[0] = input.data();
  backend.run(c);
  c.inputs[0] = own;
}

}  // namespace assay

// Which nodes of a program run as one launch on a device. A step is one node, or a group whose inner values no other node
// reads: those are not written ("not materialised"), the outer ones have the bytes that the single nodes would give.
#pragma once
#include <functional>
#include <vector>

#include "engine/program.h"

namespace assay {

struct DeviceStep {
  std::vector<int> nodes;     // of the program, contiguous, in execution order; the last one's output is always written
  int norm = -1;              // rms_norm in front of linears, fused into them
  std::vector<int> linears;   // 1 to 3 that share an input
  std::vector<int> experts;   // 1 or 2 products by expert that share an input
  int act = -1;               // silu_mul of two linears or products by expert
  int recurrence = -1;        // delta_rule behind what makes its operands: [l2_norm, l2_norm, columns, sigmoid, decay]
  int residual = -1;          // add behind one linear, expert_sum or gated_add
  int q_rope = -1;            // a heads step: [q_norm, k_norm,] q_rope, k_rope, kv_store
  int attention = -1;         // attention behind a heads step, in its launch
  bool single() const { return nodes.size() == 1; }
  /// Outputs that the step writes.
  std::vector<ValueId> outputs(const Program& p) const;
};

struct StepOptions {
  bool fused = true;
  bool gated = true;   // silu(gate) * up in the launch of gate and up: passes of one decode row
  /// Whether the device would run this step; groups that it would not are tried smaller. Null: it would.
  std::function<bool(const DeviceStep&)> supported;
};

/// All nodes of the program, each in one step. Planted nodes (Node::replacement) stay alone.
std::vector<DeviceStep> plan_steps(const Program& program, const StepOptions& options);

}  // namespace assay

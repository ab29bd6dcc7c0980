// A NodeCase on a device (replay.h).
#pragma once
#include "engine/replay.h"

namespace assay {

/// Runs the node alone, unfused, on the module of c.options.device. What the module refuses the CPU runs, and `variant` says so.
/// Throws what opening the module throws. Faults are planted in modules, not in such a run.
NodeRun run_case_on_device(const NodeCase& c);

}  // namespace assay

// A check in a process of its own, for modules that somebody else wrote: one that ends the process, crashes or hangs costs the
// check that ran it, and no other.
#pragma once
#include "conformance/check.h"

namespace assay {

/// run_check() in a child process, and its record (to_json). A child that ends without a verdict, or has none after `limit`
/// seconds, is Verdict::error with how it ended. Precondition: this process has no other threads, and has not loaded the module.
/// Throws Error{io} where no process can be made. Debuggers have to follow the child (gdb: set follow-fork-mode child).
nlohmann::ordered_json run_check_apart(const Check& check, const CheckContext& context, double limit);

}  // namespace assay
